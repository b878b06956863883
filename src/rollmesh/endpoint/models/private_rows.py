"""Rows of several requests as one batch that nobody else sees, so that it is copied once (layer 6).

A policy gets arrays that it may write into. Leaves are shared and may not be written to, so that
they are copied for it. But rows that were put together for one call belong to that call: here the
copy is the batch itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from rollmesh.spaces.codec import Codec, Leaves
from rollmesh.spaces.recycling import WORTH_BYTES, Twinned


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
    if not isinstance(leaf, ndarray) or leaf.nbytes < WORTH_BYTES:
        return leaf
    memory = leaf.base
    if type(memory) is not ndarray or not memory.flags.writeable:
        return leaf  # not ours alone
    # NumPy skips a base whose own base is a plain array
    base = memory.view(_Between).view(_Private)
    base.memory = memory
    base.flags.writeable = False
    return ndarray(leaf.shape, leaf.dtype, base)


__all__ = ["gather_private"]
