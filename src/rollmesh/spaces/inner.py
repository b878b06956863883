"""Inner batches: leaves inside the body of a ragged leaf (layer 2).

Fields are u64, little-endian. A fixed leaf is its bytes, a ragged one its length and its bytes;
each is padded to 8 bytes, so that arrays over them are aligned. It knows no space.
"""

# numpy's and gymnasium's stubs, and values of unknown origin, leave types partly unknown:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from rollmesh.errors import InvalidValue
from rollmesh.limits import SIZE_LIMITS
from rollmesh.spaces.conformance import Checker
from rollmesh.spaces.leaf_codec import Leaf, Leaves
from rollmesh.spaces.reading import read_array

if TYPE_CHECKING:
    from rollmesh.spaces.codec import Codec

LINK_DTYPES = tuple(
    np.dtype(code) for code in ("<i8", "<i4", "<i2", "<i1", "<u8", "<u4", "<u2", "<u1")
)
"""Dtypes of edge links; a body names one by its position."""
_MAX_EMPTY_ROWS = 2**20
"""Rows of an inner batch whose rows have no bytes: nothing else would bound them."""


def padded(data: bytes) -> tuple[bytes, bytes]:
    """Return the data and the zeros that bring it to a multiple of 8 bytes."""
    return data, bytes(-len(data) % 8)


def pack_batch(leaves: Leaves) -> list[bytes]:
    """Return the pieces of an inner batch."""
    pieces: list[bytes] = []
    for leaf in leaves:
        if isinstance(leaf, bytes):
            pieces.append(struct.pack("<Q", len(leaf)))
            pieces.extend(padded(leaf))
        else:
            pieces.extend(padded(leaf.tobytes()))
    return pieces


class Reader:
    """Reads a body from its start to its end, checking each length before it is used."""

    def __init__(self, leaf: bytes, start: int, stop: int, where: str) -> None:
        self.where = where
        self._leaf = leaf
        self._at = start
        self._stop = stop

    def integer(self) -> int:
        """Return the next u64."""
        at = self._advance(8)
        return struct.unpack_from("<Q", self._leaf, at)[0]

    def batch(self, codec: Codec, rows: int, *, check: bool = False) -> Leaves:
        """Return the next inner batch; `check` looks into its ragged leaves too."""
        check_rows(rows, codec, self.where)
        leaves: Leaves = []
        buffers: list[Any] = []
        for spec in codec.leaf_specs:
            if spec.row_bytes is None:
                size = self.integer()
                at = self._advance(size)
                leaf: Leaf = self._leaf[at : at + size]
                buffers.append(leaf)
            else:
                size = rows * spec.row_bytes
                at = self._advance(size)
                leaf = ndarray((rows, *spec.shape), spec.dtype, self._leaf, at)
                buffers.append(memoryview(self._leaf)[at : at + size])
            leaves.append(leaf)
            self._advance(-size % 8)
        if check:
            codec.from_buffers(buffers, rows)
        return leaves

    def links(self, edge_rows: int) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the next edge links, shape (E, 2)."""
        code = self.integer()
        if code >= len(LINK_DTYPES):
            raise InvalidValue(self.where, f"unknown dtype {code} of edge links")
        dtype = LINK_DTYPES[code]
        size = edge_rows * 2 * dtype.itemsize
        at = self._advance(size)
        self._advance(-size % 8)
        return ndarray((edge_rows, 2), dtype, self._leaf, at)

    def end(self) -> None:
        """Raise `InvalidValue` if something is left."""
        if self._at != self._stop:
            raise InvalidValue(self.where, f"{self._stop - self._at} bytes too many")

    def _advance(self, size: int) -> int:
        at = self._at
        if at + size > self._stop:
            raise InvalidValue(self.where, "a row ends before its own lengths say")
        self._at = at + size
        return at


def check_rows(rows: int, codec: Codec, where: str) -> None:
    """Raise `InvalidValue` if an inner batch of that many rows would be too large."""
    if codec.row_bytes == 0:
        limit = _MAX_EMPTY_ROWS
    else:
        limit = SIZE_LIMITS.message_bytes // (codec.row_bytes or 8)
    if rows > limit:
        raise InvalidValue(where, f"{rows} elements are more than the {limit} that are allowed")


def count_rows(codec: Codec, value: Any, where: str) -> int:
    """Return the rows of a batched value, naming the right place where it is none."""
    try:
        return codec.count_rows(value)
    except InvalidValue as error:
        raise InvalidValue(where + error.path.removeprefix("value"), error.detail) from error


def encode_items(codec: Codec, items: list[Any], checker: Checker, where: str) -> Leaves:
    """Encode elements, naming the element that does not fit."""
    try:
        return codec.encode_many(items, checker)
    except InvalidValue as error:
        for index, item in enumerate(items):
            try:
                codec.encode(item, checker)
            except InvalidValue as inner:
                path = f"{where}[{index}]" + inner.path.removeprefix(checker.root)
                raise InvalidValue(path, inner.detail) from error
        raise


def whole_number(value: Any, where: str) -> int:
    """Return an index given as int, numpy integer or array of one element."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    array, _ = read_array(value, where)
    if array.size != 1 or array.dtype.kind not in "iu":
        raise InvalidValue(where, f"expected an integer, got {type(value).__name__}")
    return int(array.reshape(()).item())
