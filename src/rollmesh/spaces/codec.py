"""The codec: a value of any space to its list of leaves and back (layer 2).

A space compiles once into a flat list of leaf codecs and, where it is a Dict or Tuple, a tree of
branches that splits a value into the parts of the leaves and builds it again. Work is a few Python
operations per leaf plus memory copies, never per element.

It knows no space: a space hands its branches and leaves over.
"""

# numpy's and gymnasium's stubs, and values of unknown origin, leave types partly unknown:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rollmesh.errors import InvalidValue
from rollmesh.spaces.conformance import STRUCTURE_ONLY, Checker
from rollmesh.spaces.leaf_codec import Buffer, Given, Leaf, LeafCodec, LeafSpec, Leaves, check_total

if TYPE_CHECKING:
    from rollmesh.spaces.space import Space

__all__ = ["Codec", "Given", "Leaf", "LeafSpec", "Leaves"]


_MOST_NAMES = 20
"""Names that one error lists."""


class Branch(ABC):
    """A Dict or Tuple: splits a value into parts and builds it from parts."""

    @abstractmethod
    def split(self, value: Any, parts: list[Any], checker: Checker) -> None:
        """Append one part per leaf, in declared order."""

    @abstractmethod
    def build(self, parts: Iterator[Any]) -> Any:
        """Return the value made of the next parts."""


class DictBranch(Branch):
    """A Dict: values are matched by name, whatever their order.

    Args:
        path: Path of the Dict below the root.
        items: Names in declared order with their branches; None stands for a leaf.
    """

    def __init__(self, path: str, items: Sequence[tuple[str, Branch | None]]) -> None:
        self._path = path
        self._items = tuple(items)
        self._names = frozenset(name for name, _ in items)

    def split(self, value: Any, parts: list[Any], checker: Checker) -> None:
        if type(value) is not dict and not isinstance(value, Mapping):
            raise InvalidValue(
                checker.root + self._path,
                f"expected a mapping with keys {self._known()}, got {_kind(value)}",
            )
        names = self._names
        if len(value) != len(names) or not names.issuperset(value):
            self._compare(value, checker)
        for name, branch in self._items:
            if branch is None:
                parts.append(value[name])
            else:
                branch.split(value[name], parts, checker)

    def build(self, parts: Iterator[Any]) -> Any:
        return {
            name: next(parts) if branch is None else branch.build(parts)
            for name, branch in self._items
        }

    def _compare(self, value: Mapping[Any, Any], checker: Checker) -> None:
        """Refuse missing keys; note extra ones."""
        missing = [name for name, _ in self._items if name not in value]
        if missing:
            raise InvalidValue(
                checker.root + self._path,
                f"missing {_names(missing)}; expected keys {self._known()}, "
                f"got {_names(list(value))}",
            )
        extra = [key for key in value if key not in self._names]
        if extra and checker.wants("keys", self._path):
            checker.note(
                "keys",
                self._path,
                f"{_names(extra)} not in the space, left out; expected keys {self._known()}",
            )

    def _known(self) -> str:
        return _names([name for name, _ in self._items])


class TupleBranch(Branch):
    """A Tuple: values are matched by position.

    Args:
        path: Path of the Tuple below the root.
        items: The branches in order; None stands for a leaf.
    """

    def __init__(self, path: str, items: Sequence[Branch | None]) -> None:
        self._path = path
        self._items = tuple(items)

    def split(self, value: Any, parts: list[Any], checker: Checker) -> None:
        if not isinstance(value, (tuple, list, np.ndarray)) or (
            isinstance(value, np.ndarray) and value.ndim == 0
        ):
            raise InvalidValue(
                checker.root + self._path,
                f"expected a tuple of {len(self._items)}, got {_kind(value)}",
            )
        if len(value) != len(self._items):
            raise InvalidValue(
                checker.root + self._path,
                f"expected a tuple of {len(self._items)}, got {len(value)} values",
            )
        for item, branch in zip(value, self._items, strict=True):
            if branch is None:
                parts.append(item)
            else:
                branch.split(item, parts, checker)

    def build(self, parts: Iterator[Any]) -> Any:
        return tuple(
            next(parts) if branch is None else branch.build(parts) for branch in self._items
        )


class Codec:
    """Value ↔ leaves for one space; made by `Space.codec`.

    Wherever a number of rows matters it comes from the caller, never from the size of a leaf.

    Guarantees: leaves never share memory with the value they were made from, and are read-only;
    inputs are never written to; safe to use from several threads at once.

    Attributes:
        space: The space.
        leaf_specs: What each leaf is, in order.
        row_bytes: Bytes of one row over all leaves, or None if a leaf is ragged.
    """

    def __init__(self, space: Space, leaves: Sequence[LeafCodec], branch: Branch | None) -> None:
        self.space = space
        self.leaf_specs: tuple[LeafSpec, ...] = tuple(leaf.spec for leaf in leaves)
        sizes = [spec.row_bytes for spec in self.leaf_specs]
        self.row_bytes: int | None = (
            None if None in sizes else sum(size for size in sizes if size is not None)
        )
        self._fixed_bytes = sum(size for size in sizes if size is not None)
        self._ragged = tuple(place for place, size in enumerate(sizes) if size is None)
        self._leaves = tuple(leaves)
        self._branch = branch

    @cached_property
    def lending(self) -> Codec:
        """The same, but large leaves share memory with the value that they were made from.

        For whoever is done with the leaves before the value may change.
        """
        return Codec(self.space, [leaf.lending() for leaf in self._leaves], self._branch)

    def __repr__(self) -> str:
        return f"Codec({self.space!r})"

    # -------------------------------------------------------------------------- encode

    def encode(self, value: Any, checker: Checker | None = None) -> Leaves:
        """Return the leaves of one value (one row).

        Args:
            value: A value of the space, in any memory layout.
            checker: Looks at content (bounds, NaN); None checks structure only.

        Raises:
            InvalidValue: The value does not fit; the path starts with the checker's root.
        """
        if checker is None:
            checker = STRUCTURE_ONLY
        parts: list[Any] = []
        self._split(value, parts, checker)
        return [leaf.one(part, checker) for leaf, part in zip(self._leaves, parts, strict=True)]

    def encode_many(self, values: Sequence[Any], checker: Checker | None = None) -> Leaves:
        """Return a batch with a row per value.

        Raises:
            InvalidValue: A value does not fit; the sentence names its row.
        """
        if checker is None:
            checker = STRUCTURE_ONLY
        try:
            split: list[list[Any]] = []
            for value in values:
                parts: list[Any] = []
                self._split(value, parts, checker)
                split.append(parts)
            return [
                leaf.rows([parts[index] for parts in split], checker)
                for index, leaf in enumerate(self._leaves)
            ]
        except InvalidValue:
            self._blame_row(values, checker)
            raise

    def encode_stacked(self, value: Any, rows: int, checker: Checker | None = None) -> Leaves:
        """Return a batch from a value in Gymnasium's vector convention.

        Arrays carry the rows along their first axis, Dicts and Tuples hold such values, and a
        ragged space (Text, Sequence, Graph, OneOf) is a tuple of values.

        Raises:
            InvalidValue: The value does not fit, or has another number of rows.
        """
        if checker is None:
            checker = STRUCTURE_ONLY
        parts: list[Any] = []
        self._split(value, parts, checker)
        return [
            leaf.stacked(part, rows, checker)
            for leaf, part in zip(self._leaves, parts, strict=True)
        ]

    def count_rows(self, value: Any) -> int:
        """Return the number of rows of a value in Gymnasium's vector convention.

        A space without leaves has none.

        Raises:
            InvalidValue: The value is no batch.
        """
        parts: list[Any] = []
        self._split(value, parts, STRUCTURE_ONLY)
        return self._leaves[0].count(parts[0]) if parts else 0

    def _split(self, value: Any, parts: list[Any], checker: Checker) -> None:
        if self._branch is None:
            parts.append(value)
        else:
            self._branch.split(value, parts, checker)

    def _blame_row(self, values: Sequence[Any], checker: Checker) -> None:
        """Raise for the first value that does not fit on its own, naming its row."""
        for row, value in enumerate(values):
            try:
                self.encode(value, checker)
            except InvalidValue as error:
                detail = f"{error.detail} (row {row})"
                raise InvalidValue(error.path, detail) from error

    # -------------------------------------------------------------------------- decode

    def decode(self, leaves: Leaves, row: int = 0, *, copy: bool = False) -> Any:
        """Return one row as a value that the space contains.

        Args:
            leaves: A batch.
            row: Which row of it.
            copy: True gives arrays of the caller's own, writable and C-contiguous; False gives
                views into the leaves where possible, read-only like the leaves made here.
        """
        if copy and type(leaves) is Given:
            parts = [codec.own(leaf, row) for codec, leaf in zip(self._leaves, leaves, strict=True)]
        elif copy:
            parts = [
                codec.fresh(leaf, row) for codec, leaf in zip(self._leaves, leaves, strict=True)
            ]
        else:
            parts = [
                codec.view(leaf, row) for codec, leaf in zip(self._leaves, leaves, strict=True)
            ]
        return parts[0] if self._branch is None else self._branch.build(iter(parts))

    def decode_stacked(self, leaves: Leaves, rows: int, *, copy: bool = False) -> Any:
        """Return the whole batch in Gymnasium's vector convention (see `encode_stacked`)."""
        if copy and type(leaves) is Given:
            parts = [
                codec.own_all(leaf, rows) for codec, leaf in zip(self._leaves, leaves, strict=True)
            ]
        else:
            parts = [
                codec.unstack(leaf, rows, copy=copy)
                for codec, leaf in zip(self._leaves, leaves, strict=True)
            ]
        return parts[0] if self._branch is None else self._branch.build(iter(parts))

    # ---------------------------------------------------------------------------- rows

    def take(self, leaves: Leaves, rows: Sequence[int]) -> Leaves:
        """Return a batch of these rows, in this order; may share memory with `leaves`."""
        return [codec.take(leaf, rows) for codec, leaf in zip(self._leaves, leaves, strict=True)]

    def put(self, leaves: Leaves, rows: Sequence[int], part: Leaves) -> Leaves:
        """Return a batch in which row `rows[i]` is row i of `part`; the inputs stay as they are."""
        return [
            codec.put(leaf, rows, piece)
            for codec, leaf, piece in zip(self._leaves, leaves, part, strict=True)
        ]

    def gather(
        self, pairs: Sequence[tuple[Leaves, int]], ready: Mapping[int, Leaf] | None = None
    ) -> Leaves:
        """Return a batch whose row i is row `pairs[i][1]` of batch `pairs[i][0]`.

        Args:
            pairs: A batch and a row of it, each.
            ready: Leaves that have been put together already, by their place.
        """
        ready = ready or {}
        return [
            ready[index]
            if index in ready
            else codec.gather([(leaves[index], row) for leaves, row in pairs])
            for index, codec in enumerate(self._leaves)
        ]

    # ------------------------------------------------------------------------- buffers

    def nbytes(self, leaves: Leaves, rows: int) -> int:
        """Return the bytes of a batch, as sent."""
        total = self._fixed_bytes * rows
        for place in self._ragged:
            total += len(leaves[place])
        return total

    def to_buffers(self, leaves: Leaves) -> list[memoryview | bytes]:
        """Return each leaf's bytes, without a copy."""
        return [codec.to_buffer(leaf) for codec, leaf in zip(self._leaves, leaves, strict=True)]

    def from_buffers(self, buffers: Sequence[Buffer], rows: int) -> Leaves:
        """Return a batch over buffers that came from outside.

        Fixed leaves are views of the buffers, which the caller must not change any more; ragged
        ones are copied unless they are `bytes`.

        Raises:
            InvalidValue: Another number of leaves, a wrong length, a ragged leaf that does not
                hold together, or more than `SIZE_LIMITS` allows.
        """
        if rows < 0:
            raise InvalidValue("leaves", f"expected 0 rows or more, got {rows}")
        self._check_leaf_count(buffers)
        check_total(sum(memoryview(buffer).nbytes for buffer in buffers))
        return [
            codec.from_buffer(buffer, rows)
            for codec, buffer in zip(self._leaves, buffers, strict=True)
        ]

    def verify(self, leaves: Any, rows: int) -> None:
        """Check the number of leaves, their types, dtypes, shapes and rows.

        Raises:
            InvalidValue: Something is not as declared.
        """
        if not isinstance(leaves, (list, tuple)):
            raise InvalidValue("leaves", f"expected a list of leaves, got {_kind(leaves)}")
        self._check_leaf_count(leaves)
        for codec, leaf in zip(self._leaves, leaves, strict=True):
            codec.verify(leaf, rows)

    def _check_leaf_count(self, leaves: Sequence[Any]) -> None:
        if len(leaves) != len(self._leaves):
            raise InvalidValue("leaves", f"expected {len(self._leaves)} leaves, got {len(leaves)}")


class SingleLeafCodec(Codec):
    """A codec of a space that is one leaf, without the detours."""

    def __init__(self, space: Space, leaf: LeafCodec) -> None:
        super().__init__(space, [leaf], None)
        self._leaf = leaf

    def encode(self, value: Any, checker: Checker | None = None) -> Leaves:
        return [self._leaf.one(value, STRUCTURE_ONLY if checker is None else checker)]

    def encode_many(self, values: Sequence[Any], checker: Checker | None = None) -> Leaves:
        if checker is None:
            checker = STRUCTURE_ONLY
        try:
            return [self._leaf.rows(values, checker)]
        except InvalidValue:
            self._blame_row(values, checker)
            raise

    def decode(self, leaves: Leaves, row: int = 0, *, copy: bool = False) -> Any:
        if copy:
            own = self._leaf.own if type(leaves) is Given else self._leaf.fresh
            return own(leaves[0], row)
        return self._leaf.view(leaves[0], row)


def make_codec(space: Space, leaves: Sequence[LeafCodec], branch: Branch | None) -> Codec:
    """Return the codec of a compiled space."""
    if branch is None:
        return SingleLeafCodec(space, leaves[0])
    return Codec(space, leaves, branch)


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _names(names: Sequence[Any]) -> str:
    """List names, bounded: an error must not carry a thousand keys."""
    text = ", ".join(repr(name)[:80] for name in names[:_MOST_NAMES])
    return f"[{text}{', …' if len(names) > _MOST_NAMES else ''}]"
