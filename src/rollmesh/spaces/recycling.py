"""Recycles the memory of large arrays once nobody holds it any more (layer 2).

Memory of this size goes back to the system when it is freed and comes as fresh pages when it is
asked for again. For a camera frame the page faults cost ten times the copy itself. A `Recycler`
keeps a few buffers and hands one out again when its reference count says that nothing else refers
to it: no array, view, memoryview or tensor over it. Whoever wants to keep a value just keeps it.

A received payload may lie where a copy costs nothing until it is written to (`Twinned`).

It knows arrays only.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import numpy as np
from numpy import ndarray

WORTH_BYTES = 32 * 1024
"""Smaller arrays are not worth it: malloc keeps their memory by itself."""
KEPT_BYTES = 64 * 2**20
"""Bytes that one recycler keeps per size of buffer."""
_KEPT_BUFFERS = 128
_KEPT_SIZES = 8
"""Powers of two: batches of different numbers of rows share buffers, and pages that nobody has
written to cost nothing."""
_TRIES = 4
_getrefcount = sys.getrefcount


class Kept(ndarray[Any, np.dtype[np.uint8]]):
    """A buffer of a `Recycler`; arrays over it hold it as their base."""

    __slots__ = ()


class Twinned(ndarray[Any, np.dtype[np.uint8]]):
    """Bytes that may have a twin: the same content, in memory that may be written to."""

    def twin(self, leaf: Any, offset: int, shape: tuple[int, ...], nbytes: int) -> Any:
        """Return what lies at an offset of a leaf over these bytes as an array of its own.

        None where it must be copied: it has no twin, or somebody was given it before.

        Args:
            leaf: An array directly over these bytes, C-contiguous.
            offset: Where in it, in bytes.
            shape: Of the array, whose dtype is that of the leaf.
            nbytes: Its size.
        """
        del leaf, offset, shape, nbytes


def is_kept(leaf: Any) -> bool:
    """Return whether an array lies in a buffer of a `Recycler`, directly or with one between."""
    base = leaf.base
    return type(base) is Kept or (type(base) is ndarray and type(base.base) is Kept)


def _count_of_one_reference() -> int:
    """Return what `getrefcount` says about an object that only one local variable holds."""
    buffer = Kept(1, np.uint8)
    return _getrefcount(buffer)


_FREE = _count_of_one_reference()
_HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()


class Recycler:
    """Makes arrays over buffers that are used again.

    Guarantees: a buffer in use is never handed out again; safe from several threads. A buffer is
    out of the queue while its references are counted, and held by the taker when it goes back, so
    that two takers can never both find it free. Without a GIL nothing is recycled.
    """

    def __init__(self) -> None:
        self._kept: dict[int, deque[Kept]] = {}

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> Any:
        """Return a writable array of `size` bytes; its content is whatever was there before."""
        return ndarray(shape, dtype, self._take(size))

    def _take(self, size: int) -> Kept:
        """Return a buffer of at least so many bytes."""
        size = 1 << (size - 1).bit_length()
        kept = self._kept.get(size)
        if kept is None:
            if size > KEPT_BYTES or not _HAS_GIL or len(self._kept) >= _KEPT_SIZES:
                return Kept(size, np.uint8)
            kept = self._kept.setdefault(size, deque(maxlen=min(KEPT_BYTES // size, _KEPT_BUFFERS)))
        take = kept.pop  # the latest first: the caches still hold it
        for _ in range(_TRIES):
            try:
                buffer = take()
            except IndexError:
                break
            is_free = _getrefcount(buffer) <= _FREE
            kept.append(buffer)
            if is_free:
                return buffer
            take = kept.popleft
        buffer = Kept(size, np.uint8)
        kept.append(buffer)  # the oldest one falls out where the queue is full
        return buffer
