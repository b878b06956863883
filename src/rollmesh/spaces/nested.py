"""Sequence, Graph and OneOf: ragged leaves whose bodies hold inner batches (layer 2).

The bodies are ours, the wire of the peers has none:

    Sequence   [rows] [leaves of `rows` elements]
    Graph      [nodes] [edges or NO_EDGES] [leaves of nodes] [leaves of edges] [dtype] [links]
    OneOf      [index] [leaves of one row of that space]

`inner.py` has the form of inner batches. It knows no space: inner codecs are passed in.
"""

# numpy's and gymnasium's stubs, and values of unknown origin, leave types partly unknown:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollmesh.errors import InvalidValue
from rollmesh.spaces.conformance import Checker
from rollmesh.spaces.inner import (
    LINK_DTYPES,
    Reader,
    check_rows,
    count_rows,
    encode_items,
    pack_batch,
    padded,
    whole_number,
)
from rollmesh.spaces.ragged import RaggedLeaf
from rollmesh.spaces.reading import read_array

if TYPE_CHECKING:
    from rollmesh.spaces.codec import Codec

_NO_EDGES = 2**64 - 1
_PAIR = 2
_TRIPLE = 3


class SequenceLeaf(RaggedLeaf):
    """Sequence: any number of elements, as a tuple or (stacked) as one batched value."""

    def __init__(self, path: str, element: Codec, *, stack: bool) -> None:
        super().__init__(path, "sequence")
        self._element = element
        self._stack = stack
        self._suffix = path + "[*]"

    def body(self, value: Any, checker: Checker) -> bytes:
        inner = checker.at(self._suffix)
        where = checker.root + self.spec.path
        if self._stack:
            rows = count_rows(self._element, value, where)
            check_rows(rows, self._element, where)
            leaves = self._element.encode_stacked(value, rows, inner)
        else:
            if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
                kind = "None" if value is None else type(value).__name__
                raise InvalidValue(where, f"expected a tuple of elements, got {kind}")
            items = list(value)
            rows = len(items)
            check_rows(rows, self._element, where)
            leaves = encode_items(self._element, items, inner, where)
        return b"".join([struct.pack("<Q", rows), *pack_batch(leaves)])

    def value(self, leaf: bytes, start: int, stop: int, *, copy: bool) -> Any:
        reader = Reader(leaf, start, stop, "leaves" + self.spec.path)
        rows = reader.integer()
        leaves = reader.batch(self._element, rows)
        if self._stack:
            return self._element.decode_stacked(leaves, rows, copy=copy)
        return tuple(self._element.decode(leaves, row, copy=copy) for row in range(rows))

    def check_body(self, leaf: bytes, start: int, stop: int) -> None:
        reader = Reader(leaf, start, stop, "leaves" + self.spec.path)
        reader.batch(self._element, reader.integer(), check=True)
        reader.end()


class OneOfLeaf(RaggedLeaf):
    """OneOf: the index of a space and a value of that space."""

    def __init__(self, path: str, choices: Sequence[Codec]) -> None:
        super().__init__(path, "one_of")
        self._choices = tuple(choices)

    def body(self, value: Any, checker: Checker) -> bytes:
        where = checker.root + self.spec.path
        if not isinstance(value, (tuple, list)) or len(value) != _PAIR:
            raise InvalidValue(where, "expected a pair (index, value)")
        index = whole_number(value[0], where + "[0]")
        if not 0 <= index < len(self._choices):
            raise InvalidValue(
                where + "[0]", f"expected an index from 0 to {len(self._choices) - 1}, got {index}"
            )
        leaves = self._choices[index].encode(value[1], checker.at(self.spec.path + "[1]"))
        return b"".join([struct.pack("<Q", index), *pack_batch(leaves)])

    def value(self, leaf: bytes, start: int, stop: int, *, copy: bool) -> Any:
        reader = Reader(leaf, start, stop, "leaves" + self.spec.path)
        index = reader.integer()
        choice = self._choice(index)
        return np.int64(index), choice.decode(reader.batch(choice, 1), 0, copy=copy)

    def check_body(self, leaf: bytes, start: int, stop: int) -> None:
        reader = Reader(leaf, start, stop, "leaves" + self.spec.path)
        reader.batch(self._choice(reader.integer()), 1, check=True)
        reader.end()

    def _choice(self, index: int) -> Codec:
        if index >= len(self._choices):
            raise InvalidValue(
                "leaves" + self.spec.path,
                f"expected an index below {len(self._choices)}, got {index}",
            )
        return self._choices[index]


class GraphLeaf(RaggedLeaf):
    """Graph: nodes, and edges with their links where the graph has any."""

    def __init__(self, path: str, node: Codec, edge: Codec | None) -> None:
        super().__init__(path, "graph")
        self._node = node
        self._edge = edge

    def body(self, value: Any, checker: Checker) -> bytes:
        path, where = self.spec.path, checker.root + self.spec.path
        nodes, edges, links = self._parts(value, where)
        node_rows = count_rows(self._node, nodes, where + ".nodes")
        check_rows(node_rows, self._node, where + ".nodes")
        node_leaves = self._node.encode_stacked(nodes, node_rows, checker.at(path + ".nodes"))
        if edges is None:
            header = struct.pack("<QQ", node_rows, _NO_EDGES)
            return b"".join([header, *pack_batch(node_leaves)])
        if self._edge is None:
            raise InvalidValue(where + ".edges", "expected None (the space has no edge space)")
        edge_rows = count_rows(self._edge, edges, where + ".edges")
        check_rows(edge_rows, self._edge, where + ".edges")
        edge_leaves = self._edge.encode_stacked(edges, edge_rows, checker.at(path + ".edges"))
        array = self._read_links(links, node_rows, edge_rows, checker)
        return b"".join(
            [
                struct.pack("<QQ", node_rows, edge_rows),
                *pack_batch(node_leaves),
                *pack_batch(edge_leaves),
                struct.pack("<Q", LINK_DTYPES.index(array.dtype)),
                *padded(array.tobytes()),
            ]
        )

    def _parts(self, value: Any, where: str) -> tuple[Any, Any, Any]:
        try:
            if isinstance(value, (tuple, list)) and len(value) == _TRIPLE:
                nodes, edges, links = value
            else:
                given: Any = value
                nodes, edges, links = given.nodes, given.edges, given.edge_links
        except AttributeError:
            kind = type(value).__name__
            raise InvalidValue(where, f"expected a GraphInstance, got {kind}") from None
        if nodes is None:
            raise InvalidValue(where + ".nodes", "expected a batch of nodes, got None")
        if (edges is None) != (links is None):
            raise InvalidValue(where, "expected edges and edge_links both set or both None")
        return nodes, edges, links

    def _read_links(
        self, links: Any, node_rows: int, edge_rows: int, checker: Checker
    ) -> np.ndarray[Any, np.dtype[Any]]:
        path = self.spec.path + ".edge_links"
        where = checker.root + path
        array, _ = read_array(links, where)
        if array.shape != (edge_rows, 2):
            raise InvalidValue(where, f"expected shape {(edge_rows, 2)}, got {array.shape}")
        if array.dtype.kind not in "iu":
            raise InvalidValue(where, f"expected integers, got dtype {array.dtype}")
        if checker.looks and array.size and not (array.min() >= 0 and array.max() < node_rows):
            checker.note(
                "bounds",
                path,
                f"expected node numbers from 0 to {node_rows - 1}",
                refuse=checker.refuses_integers,
            )
            checker.keep("bounds", path)
        return array.astype(array.dtype.newbyteorder("<"), copy=False)

    def value(self, leaf: bytes, start: int, stop: int, *, copy: bool) -> Any:
        reader = Reader(leaf, start, stop, "leaves" + self.spec.path)
        node_rows, edge_rows = reader.integer(), reader.integer()
        node_leaves = reader.batch(self._node, node_rows)
        nodes = self._node.decode_stacked(node_leaves, node_rows, copy=copy)
        make = graph_instance()
        if edge_rows == _NO_EDGES or self._edge is None:
            return make(nodes=nodes, edges=None, edge_links=None)
        edge_leaves = reader.batch(self._edge, edge_rows)
        edges = self._edge.decode_stacked(edge_leaves, edge_rows, copy=copy)
        links = reader.links(edge_rows)
        return make(nodes=nodes, edges=edges, edge_links=links.copy() if copy else links)

    def check_body(self, leaf: bytes, start: int, stop: int) -> None:
        reader = Reader(leaf, start, stop, "leaves" + self.spec.path)
        node_rows, edge_rows = reader.integer(), reader.integer()
        reader.batch(self._node, node_rows, check=True)
        if edge_rows != _NO_EDGES:
            if self._edge is None:
                raise InvalidValue(reader.where, "edges without an edge space")
            reader.batch(self._edge, edge_rows, check=True)
            reader.links(edge_rows)
        reader.end()


class PlainGraph(NamedTuple):
    """What a graph decodes to where Gymnasium is not installed."""

    nodes: Any
    edges: Any
    edge_links: Any


_graph_instance: list[Any] = []


def graph_instance() -> Any:
    """Return Gymnasium's `GraphInstance`, imported at the first graph."""
    if not _graph_instance:
        try:
            from gymnasium.spaces import GraphInstance
        except ImportError:
            _graph_instance.append(PlainGraph)
        else:
            _graph_instance.append(GraphInstance)
    return _graph_instance[0]
