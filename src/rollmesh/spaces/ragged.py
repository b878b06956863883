"""Ragged leaves, whose rows differ in length: what they share, and Text (layer 2).

A ragged leaf is `bytes`: `[u64 count][u64 length of each row][bodies]`, little-endian. The body of
a Text is its UTF-8; `nested.py` has the bodies of Sequence, Graph and OneOf. It knows no space.
"""

# numpy's and gymnasium's stubs, and values of unknown origin, leave types partly unknown:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from rollmesh.errors import InvalidValue
from rollmesh.limits import SIZE_LIMITS
from rollmesh.spaces.conformance import Checker
from rollmesh.spaces.leaf_codec import Buffer, Leaf, LeafCodec, LeafSpec, Pairs, row_count

_WORD = 8
"""Bytes of a u64."""
_MOST_KNOWN = 64
_MOST_KNOWN_BYTES = 4096
"""Texts that were found right are remembered, but no more and no longer ones."""
_SURROGATES = "surrogatepass"
"""Python strings may hold lone surrogates; they come back as they were."""


class RaggedLeaf(LeafCodec):
    """Common part: a row is a body of bytes."""

    def __init__(self, path: str, kind: str) -> None:
        dtype = np.dtype(np.uint8)
        self.spec = LeafSpec(path=path, kind=kind, dtype=dtype, shape=(), row_bytes=None)

    @abstractmethod
    def body(self, value: Any, checker: Checker) -> bytes:
        """Return the body of one value."""

    @abstractmethod
    def value(self, leaf: bytes, start: int, stop: int, *, copy: bool) -> Any:
        """Return the value of the body at `leaf[start:stop]`."""

    @abstractmethod
    def check_body(self, leaf: bytes, start: int, stop: int) -> None:
        """Raise `InvalidValue` unless this body came from `body`, or could have."""

    def one(self, value: Any, checker: Checker) -> Leaf:
        return pack([self.body(value, checker)])

    def rows(self, values: Sequence[Any], checker: Checker) -> Leaf:
        found = checker.found
        if found is None:
            return pack([self.body(value, checker) for value in values])
        bodies: list[bytes] = []
        for row, value in enumerate(values):
            first = len(found)
            bodies.append(self.body(value, checker))
            checker.keep_as_row(row, first)
        return pack(bodies)

    def stacked(self, value: Any, rows: int, checker: Checker) -> Leaf:
        where = checker.root + self.spec.path
        if isinstance(value, str) or row_count(value, self.spec.path) != rows:
            got = type(value).__name__ if isinstance(value, str) else f"{len(value)} values"
            raise InvalidValue(where, f"expected a tuple of {rows} values, got {got}")
        return self.rows(list(value), checker)

    def view(self, leaf: Any, row: int) -> Any:
        start, stop = body_span(leaf, row)
        return self.value(leaf, start, stop, copy=False)

    def fresh(self, leaf: Any, row: int) -> Any:
        start, stop = body_span(leaf, row)
        return self.value(leaf, start, stop, copy=True)

    def unstack(self, leaf: Any, rows: int, *, copy: bool) -> Any:
        del rows
        spans = body_spans(leaf)
        return tuple(self.value(leaf, start, stop, copy=copy) for start, stop in spans)

    def take(self, leaf: Any, rows: Sequence[int]) -> Leaf:
        spans = body_spans(leaf)
        if len(spans) == 1 and len(rows) == 1 and rows[0] == 0:
            return leaf
        return pack([leaf[slice(*spans[row])] for row in rows])

    def put(self, leaf: Any, rows: Sequence[int], part: Any) -> Leaf:
        bodies = [leaf[start:stop] for start, stop in body_spans(leaf)]
        for row, (start, stop) in zip(rows, body_spans(part), strict=True):
            bodies[row] = part[start:stop]
        return pack(bodies)

    def gather(self, pairs: Pairs) -> Leaf:
        return pack([leaf[slice(*body_span(leaf, row))] for leaf, row in pairs])

    def to_buffer(self, leaf: Any) -> memoryview | bytes:
        return leaf

    def from_buffer(self, buffer: Buffer, rows: int) -> Leaf:
        leaf = buffer if isinstance(buffer, bytes) else bytes(buffer)
        self.verify(leaf, rows)
        for start, stop in body_spans(leaf):
            self.check_body(leaf, start, stop)
        return leaf

    def verify(self, leaf: Any, rows: int) -> None:
        where = "leaves" + self.spec.path
        if not isinstance(leaf, bytes):
            raise InvalidValue(where, f"expected bytes, got {type(leaf).__name__}")
        if len(leaf) < _WORD * (1 + rows):
            raise InvalidValue(where, f"{len(leaf)} bytes are too few for {rows} rows")
        (count,) = struct.unpack_from("<Q", leaf)
        if count != rows:
            raise InvalidValue(where, f"expected {rows} rows, got {count}")
        total = _WORD * (1 + rows) + sum(struct.unpack_from(f"<{rows}Q", leaf, _WORD))
        if total != len(leaf):
            raise InvalidValue(where, f"its lengths want {total} bytes, got {len(leaf)}")

    def count(self, value: Any) -> int:
        return row_count(value, self.spec.path)


def pack(bodies: Sequence[bytes]) -> bytes:
    """Return the ragged leaf of these bodies."""
    count = len(bodies)
    return b"".join((struct.pack(f"<{count + 1}Q", count, *map(len, bodies)), *bodies))


def body_span(leaf: bytes, row: int) -> tuple[int, int]:
    """Return where the body of a row starts and ends.

    Raises:
        IndexError: There is no such row.
    """
    count, length = struct.unpack_from("<QQ", leaf) if len(leaf) > _WORD else (0, 0)
    if not 0 <= row < count:
        raise IndexError(f"row {row} of a leaf with {count} rows")
    start = _WORD * (1 + count)
    if row:
        lengths = struct.unpack_from(f"<{row + 1}Q", leaf, _WORD)
        start += sum(lengths[:row])
        length = lengths[row]
    return start, start + length


def body_spans(leaf: bytes) -> list[tuple[int, int]]:
    """Return where each body starts and ends."""
    (count,) = struct.unpack_from("<Q", leaf)
    start = _WORD * (1 + count)
    spans: list[tuple[int, int]] = []
    for length in struct.unpack_from(f"<{count}Q", leaf, _WORD):
        spans.append((start, start + length))
        start += length
    return spans


class TextLeaf(RaggedLeaf):
    """Text: UTF-8.

    Args:
        path: Path below the root.
        min_length: Least number of characters.
        max_length: Greatest number of characters.
        charset: Characters allowed, or None for any.
    """

    def __init__(
        self, path: str, min_length: int, max_length: int, charset: frozenset[str] | None
    ) -> None:
        super().__init__(path, "text")
        self._min_length = min_length
        self._max_length = max_length
        self._charset = charset
        self._known: dict[str, tuple[Checker, bytes]] = {}

    def one(self, value: Any, checker: Checker) -> Leaf:
        # instructions come again and again
        if type(value) is not str:
            return pack([self.body(value, checker)])
        known = self._known.get(value)
        if known is not None and known[0] is checker:
            return known[1]
        found = checker.found
        before = 0 if found is None else len(found)
        leaf = pack([self.body(value, checker)])
        is_odd = found is not None and len(found) > before  # to be counted each time
        if len(leaf) <= _MOST_KNOWN_BYTES and not is_odd:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[value] = checker, leaf
        return leaf

    def body(self, value: Any, checker: Checker) -> bytes:
        text = self._read(value, checker)
        if checker.looks:
            self._look(text, checker)
        body = text.encode("utf-8", _SURROGATES)
        if len(body) > SIZE_LIMITS.text_bytes:
            raise InvalidValue(
                checker.root + self.spec.path,
                f"{len(body)} bytes are more than SIZE_LIMITS.text_bytes allows "
                f"({SIZE_LIMITS.text_bytes})",
            )
        return body

    def _read(self, value: Any, checker: Checker) -> str:
        if type(value) is str:
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "UOT":
            item = value.reshape(()).item()
            if isinstance(item, str):
                return item
        kind = "None" if value is None else type(value).__name__
        raise InvalidValue(checker.root + self.spec.path, f"expected a str, got {kind}")

    def _look(self, text: str, checker: Checker) -> None:
        path = self.spec.path
        if not self._min_length <= len(text) <= self._max_length:
            checker.note(
                "length",
                path,
                f"expected {self._min_length} to {self._max_length} characters, got {len(text)}",
            )
            checker.keep("length", path)
        if self._charset is not None and not self._charset.issuperset(text):
            odd = sorted(set(text) - self._charset)[:20]
            checker.note("charset", path, f"characters outside the charset: {''.join(odd)!r}")
            checker.keep("charset", path)

    def value(self, leaf: bytes, start: int, stop: int, *, copy: bool) -> Any:
        del copy
        return leaf[start:stop].decode("utf-8", _SURROGATES)

    def check_body(self, leaf: bytes, start: int, stop: int) -> None:
        where = "leaves" + self.spec.path
        if stop - start > SIZE_LIMITS.text_bytes:
            raise InvalidValue(where, f"a text of {stop - start} bytes is over the limit")
        try:
            leaf[start:stop].decode("utf-8", _SURROGATES)
        except UnicodeDecodeError as error:
            raise InvalidValue(where, f"not UTF-8: {error}") from None
