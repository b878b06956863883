"""Leaf codecs: what a leaf is, and what all of them can do (layer 2).

A leaf is one buffer per fundamental space, with a row per lane. `leaves.py` has the fixed ones,
`ragged.py` those whose rows differ in length.
"""

# numpy's and gymnasium's stubs, and values of unknown origin, leave types partly unknown:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from rollmesh.errors import InvalidValue
from rollmesh.limits import SIZE_LIMITS
from rollmesh.spaces.conformance import Checker

Leaf: TypeAlias = "np.ndarray[Any, np.dtype[Any]] | bytes"
"""A fixed leaf is an array, a ragged one `bytes`."""
Leaves: TypeAlias = "list[Leaf]"
"""A value, or a batch of N: one leaf per fundamental space, in declared order."""
Buffer: TypeAlias = "bytes | bytearray | memoryview"
Pairs: TypeAlias = "Sequence[tuple[Any, int]]"


class Given(list[Any]):
    """Leaves that nobody reads any more but the one they are given to, who may have their memory.

    A plain list of leaves is anybody's; so is whatever is made of these.
    """

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class LeafSpec:
    """What one leaf is.

    Attributes:
        path: Where it sits in the value, as in `['wrist'][2]`; empty for a space that is one leaf.
        kind: `box`, `discrete`, `multi_binary`, `multi_discrete`, `text`, `sequence`, `graph` or
            `one_of`.
        dtype: Little-endian dtype of the elements; uint8 for a ragged leaf.
        shape: Shape of one row; empty for a ragged leaf.
        row_bytes: Bytes of one row, or None for a ragged leaf.
    """

    path: str
    kind: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    row_bytes: int | None


class LeafCodec(ABC):
    """Turns the value of one fundamental space into rows of a leaf and back."""

    spec: LeafSpec

    def lending(self) -> LeafCodec:
        """Return one like this whose large leaves share the memory of the value encoded."""
        return self

    @abstractmethod
    def one(self, value: Any, checker: Checker) -> Leaf:
        """Return a leaf of one row."""

    @abstractmethod
    def rows(self, values: Sequence[Any], checker: Checker) -> Leaf:
        """Return a leaf with a row per value."""

    @abstractmethod
    def stacked(self, value: Any, rows: int, checker: Checker) -> Leaf:
        """Return a leaf of `rows` rows from a value in Gymnasium's vector convention."""

    @abstractmethod
    def view(self, leaf: Any, row: int) -> Any:
        """Return one row as a value, without a copy where that is possible."""

    @abstractmethod
    def fresh(self, leaf: Any, row: int) -> Any:
        """Return one row as a value of its own, writable and C-contiguous."""

    def own(self, leaf: Any, row: int) -> Any:
        """Return one row as `fresh` does, of a leaf given away: its memory may go along."""
        return self.fresh(leaf, row)

    def own_all(self, leaf: Any, rows: int) -> Any:
        """Return all rows as `unstack` copies them, of a leaf that was given away."""
        return self.unstack(leaf, rows, copy=True)

    @abstractmethod
    def unstack(self, leaf: Any, rows: int, *, copy: bool) -> Any:
        """Return all rows in Gymnasium's vector convention."""

    @abstractmethod
    def take(self, leaf: Any, rows: Sequence[int]) -> Leaf:
        """Return a leaf of these rows."""

    @abstractmethod
    def put(self, leaf: Any, rows: Sequence[int], part: Any) -> Leaf:
        """Return a leaf with these rows replaced by the rows of `part`."""

    @abstractmethod
    def gather(self, pairs: Pairs) -> Leaf:
        """Return a leaf whose row i is row `pairs[i][1]` of leaf `pairs[i][0]`."""

    @abstractmethod
    def to_buffer(self, leaf: Any) -> memoryview | bytes:
        """Return the leaf's bytes without a copy."""

    @abstractmethod
    def from_buffer(self, buffer: Buffer, rows: int) -> Leaf:
        """Return a leaf over the buffer; every length is checked."""

    @abstractmethod
    def verify(self, leaf: Any, rows: int) -> None:
        """Raise `InvalidValue` unless this is a leaf of that many rows."""

    @abstractmethod
    def count(self, value: Any) -> int:
        """Return the number of rows of a value in Gymnasium's vector convention."""


def row_count(value: Any, path: str) -> int:
    """Return how many rows a batched value has along its first axis.

    Raises:
        InvalidValue: It has no first axis.
    """
    try:
        return len(value)
    except TypeError:
        kind = type(value).__name__
        raise InvalidValue("value" + path, f"expected a batch of rows, got {kind}") from None


def check_total(total: int) -> None:
    """Raise `InvalidValue` if a value has more bytes than a message may have."""
    if total > SIZE_LIMITS.message_bytes:
        raise InvalidValue(
            "leaves",
            f"{total} bytes are more than SIZE_LIMITS.message_bytes allows "
            f"({SIZE_LIMITS.message_bytes})",
        )
