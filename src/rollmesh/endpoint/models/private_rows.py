"""Rows of several requests as one batch that nobody else sees, so that it is copied once (layer 6).

A policy gets arrays that it may write into. Leaves are shared and may not be written to, so that
they are copied for it. But rows that were put together for one call belong to that call: here the
copy is the batch itself.

Large rows need not wait for their batch: a `Slab` takes each as it comes, while the model is busy
or others are on their way, so that nothing is left to copy when the batch goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from rollmesh.spaces.codec import Codec, Leaf, Leaves
from rollmesh.spaces.recycling import KEPT_BYTES, WORTH_BYTES, Kept, Recycler, Twinned

_plain: Any = ndarray
"""NumPy's stubs lose the types of views below Python 3.11."""


class _Private(Twinned):
    """Bytes that are given away once, as they are."""

    memory: ndarray[Any, np.dtype[np.uint8]] | None = None

    def twin(self, leaf: Any, offset: int, shape: tuple[int, ...], nbytes: int) -> Any:
        memory = self.memory
        if memory is None or offset or nbytes != leaf.nbytes:
            return None
        self.memory = None
        return ndarray(shape, leaf.dtype, memory)


class _Between(ndarray[Any, np.dtype[np.uint8]]):
    """Stands between `_Private` and its memory."""


def gather_private(codec: Codec, pairs: Sequence[tuple[Leaves, int]]) -> Leaves:
    """Return `codec.gather(pairs)`, which the caller gives to one call of a model and then forgets.

    What the model decodes with `copy=True` is then the batch itself where that is large; the
    leaves may change when it writes into that.
    """
    gathered = codec.gather(pairs)
    return gathered if len(pairs) == 1 else [_private(leaf) for leaf in gathered]


def _private(leaf: Any) -> Any:
    """Return a leaf whose memory is given away by the first that wants to write into it."""
    if not isinstance(leaf, _plain) or leaf.nbytes < WORTH_BYTES:
        return leaf
    memory = leaf.base
    if type(memory) not in (_plain, Kept) or not memory.flags.writeable:
        return leaf  # not ours alone
    # NumPy skips a base whose own base is a plain array
    base = memory.view(_Between).view(_Private)
    base.memory = memory
    base.flags.writeable = False
    return ndarray(leaf.shape, leaf.dtype, base)


class SlabMaker:
    """Makes the slabs of one batcher, over memory that is used again.

    Args:
        codec: Of one row.

    Attributes:
        is_worth_it: Whether a row has a leaf that is large enough to be copied early.
    """

    def __init__(self, codec: Codec) -> None:
        self._large = [
            (place, spec.dtype, spec.shape, spec.row_bytes)
            for place, spec in enumerate(codec.leaf_specs)
            if spec.row_bytes is not None and spec.row_bytes >= WORTH_BYTES
        ]
        self._codec = codec
        self._recycler = Recycler()
        self.is_worth_it = bool(self._large)

    def make(self, rows: int) -> Slab:
        """Return a slab with room for so many rows, or for fewer where they are very large."""
        largest = max([size for _, _, _, size in self._large])
        room = max(1, min(rows, KEPT_BYTES // largest))
        parts = {
            place: self._recycler.array((room, *shape), dtype, room * size)
            for place, dtype, shape, size in self._large
        }
        return Slab(self._codec, room, parts)


class Slab:
    """Room for the rows of one batch, to be copied there as they come.

    Who adds rows reserves their places first, one at a time; copies may go on side by side.
    """

    def __init__(self, codec: Codec, room: int, parts: dict[int, Any]) -> None:
        self._codec = codec
        self._room = room
        self._parts = parts
        self._used = 0

    def reserve(self, rows: int) -> int | None:
        """Return the place of the first of so many rows; None where there is no room left."""
        place = self._used
        if place + rows > self._room:
            return None
        self._used = place + rows
        return place

    def copy(self, leaves: Leaves, rows: int, place: int) -> None:
        """Put the rows of some leaves where room was reserved for them."""
        for index, part in self._parts.items():
            part[place : place + rows] = leaves[index]

    def finish(self, pairs: Sequence[tuple[Leaves, int]], missing: int) -> Leaves | None:
        """Return the batch, as `gather_private` would; None where it has no room for it.

        Args:
            pairs: The rows that were copied, in the order of their places, from the first on.
            missing: How many times the last of them is to be repeated.
        """
        rows = len(pairs) + missing
        if rows > self._room:
            return None
        ready: dict[int, Leaf] = {}
        for index, part in self._parts.items():
            part[len(pairs) : rows] = part[len(pairs) - 1]
            leaf = ndarray((rows, *part.shape[1:]), part.dtype, part.base)
            leaf.flags.writeable = False
            ready[index] = leaf
        self._parts = {}
        gathered = self._codec.gather([*pairs, *(list(pairs[-1:]) * missing)], ready)
        return [_private(leaf) for leaf in gathered]
