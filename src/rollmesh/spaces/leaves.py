"""Fixed leaves: an array per fundamental space, rows (lanes) along its first axis (layer 2).

A fixed leaf is a C-contiguous little-endian array of shape (N, *shape). Leaves made here are
read-only, so they can be shared freely: views, slices and whole leaves are handed out instead of
copies. `ragged.py` has the leaves whose rows differ in length.

It knows no space: a space passes what it declares.
"""

# numpy's and gymnasium's stubs, and values of unknown origin, leave types partly unknown:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from copy import copy as duplicate
from typing import Any

import numpy as np
from numpy import ndarray

from rollmesh.errors import InvalidValue
from rollmesh.spaces.conformance import Checker
from rollmesh.spaces.leaf_codec import Buffer, Leaf, LeafCodec, LeafSpec, Pairs, row_count
from rollmesh.spaces.reading import Array, Declared, conform
from rollmesh.spaces.recycling import WORTH_BYTES, Recycler, Twinned, is_kept

_JOIN_BELOW = 4096
"""Batches of rows up to this many bytes go through `bytes`; larger ones are copied in place."""
_CLIP_BELOW = 512
"""Rows up to this many bytes are checked by clipping a copy."""
_FEW = 16
"""Rows of up to this many elements with the same bounds are compared in Python."""
_SHORT_ROW = 64
"""Rows of up to this many elements get their bounds repeated for a batch."""
_greater_equal = np.greater_equal
_less_equal = np.less_equal
_equal = np.equal
_fmax = np.fmax
_fmin = np.fmin


class ArrayLeaf(LeafCodec):
    """Box, MultiBinary and MultiDiscrete: an array of one dtype and shape.

    Args:
        spec: What the leaf is.
        low: Least values, broadcastable to the shape.
        high: Greatest values, broadcastable to the shape.
        is_integer_domain: Values outside the bounds make no sense (MultiDiscrete, MultiBinary), so
            that an action with one is refused.

    Attributes:
        lends: Whether large leaves share memory with the value encoded.
    """

    def __init__(
        self, spec: LeafSpec, low: Array, high: Array, *, is_integer_domain: bool = False
    ) -> None:
        self.spec = spec
        self.dtype = spec.dtype
        self.shape = spec.shape
        self.row_bytes = spec.row_bytes or 0
        self.low = np.broadcast_to(low, spec.shape)
        self.high = np.broadcast_to(high, spec.shape)
        self.is_integer_domain = is_integer_domain
        self.declared = Declared(
            path=spec.path, dtype=spec.dtype, quiet=spec.kind in ("discrete", "multi_binary")
        )
        self._one_shape = (1, *spec.shape)
        self._is_large = self.row_bytes >= WORTH_BYTES
        self._recycler = Recycler()
        self.lends = False
        self._least, self._greatest, self._test_nan = self._tests()
        least, greatest = self._least, self._greatest
        self._limits = (
            None if least is None else least.flat[0].item(),
            None if greatest is None else greatest.flat[0].item(),
        )
        # NumPy takes longer to begin than a few numbers take to compare
        self._is_short = (
            len(spec.shape) == 1
            and 0 < self.low.size <= _FEW
            and spec.dtype.kind in "fiu"
            and not (least is not None and least.ndim)
            and not (greatest is not None and greatest.ndim)
        )
        self._repeats = bool(spec.shape) and self.low.size <= _SHORT_ROW
        self._repeated: tuple[int, Array | None, Array | None] | None = None

    def _tests(self) -> tuple[Array | None, Array | None, bool]:
        """Return the bounds that can be crossed, and whether only NaN is left to look for."""
        kind = self.dtype.kind
        if kind == "b" or self.low.size == 0:
            return None, None, False
        if kind == "f":
            least, greatest = -np.inf, np.inf
        else:
            least, greatest = np.iinfo(self.dtype).min, np.iinfo(self.dtype).max
        low: Array | None = smallest(self.low)
        high: Array | None = smallest(self.high)
        low = None if np.all(low == least) else low
        high = None if np.all(high == greatest) else high
        return low, high, kind == "f" and low is None and high is None

    # -------------------------------------------------------------------------- encode

    def lending(self) -> LeafCodec:
        twin = duplicate(self)
        twin.lends = True
        return twin

    def one(self, value: Any, checker: Checker) -> Leaf:
        if (
            type(value) is not ndarray
            or (value.dtype is not self.dtype and value.dtype != self.dtype)
            or value.shape != self.shape
        ):
            value = conform(value, self.declared, self.shape, checker)
        if self._is_large:
            return self._one_large(value, checker)
        data = value.tobytes()
        if checker.looks:
            least, greatest = self._least, self._greatest
            if self._is_short:
                inside = self._is_short_inside(value.tolist())
            elif self.row_bytes <= _CLIP_BELOW and least is not None and greatest is not None:
                # clipping moves what is out of bounds or NaN, and is the cheapest way to see it
                inside = _fmin(_fmax(value, least), greatest).tobytes() == data
            else:
                inside = False
            if not inside and not self._is_inside(value, least, greatest):
                self._find(value, checker, is_batch=False)
        # the bytes object is immutable, which makes the array over it read-only
        return ndarray(self._one_shape, self.dtype, data)

    def _is_short_inside(self, numbers: list[Any]) -> bool:
        """Return whether all is right with a few numbers; False where one has to look closer."""
        least, greatest = self._limits
        if least is not None and min(numbers) < least:
            return False
        if greatest is not None and max(numbers) > greatest:
            return False
        total = sum(numbers)
        return total == total  # noqa: PLR0124 - a NaN spoils the sum

    def _one_large(self, value: Any, checker: Checker) -> Leaf:
        """Return a leaf of one row of an array already of the right dtype and shape."""
        if checker.looks and not self._is_inside(value, self._least, self._greatest):
            self._find(value, checker, is_batch=False)
        return self._read_only(value, 1)

    def rows(self, values: Sequence[Any], checker: Checker) -> Leaf:
        dtype, shape = self.dtype, self.shape
        arrays = [
            value
            if type(value) is ndarray and value.dtype == dtype and value.shape == shape
            else conform(value, self.declared, shape, checker)
            for value in values
        ]
        full_shape = (len(arrays), *shape)
        if self.row_bytes <= _JOIN_BELOW:
            leaf = ndarray(full_shape, dtype, b"".join([array.tobytes() for array in arrays]))
        else:
            leaf = self._blank(len(arrays))
            for row, array in enumerate(arrays):
                leaf[row] = array
            leaf.flags.writeable = False
        if checker.looks and not self._is_inside(leaf, *self._bounds(len(arrays))):
            self._find(leaf, checker, is_batch=True)
        return leaf

    def stacked(self, value: Any, rows: int, checker: Checker) -> Leaf:
        shape = (rows, *self.shape)
        if not (type(value) is ndarray and value.dtype == self.dtype and value.shape == shape):
            value = conform(value, self.declared, shape, checker)
        if checker.looks and not self._is_inside(value, *self._bounds(rows)):
            self._find(value, checker, is_batch=True)
        if rows * self.row_bytes > _JOIN_BELOW:
            return self._read_only(value, rows)
        return ndarray(shape, self.dtype, value.tobytes())

    def _blank(self, rows: int) -> Any:
        """Return a writable leaf to be filled."""
        shape, size = (rows, *self.shape), rows * self.row_bytes
        if size < WORTH_BYTES:
            return np.empty(shape, self.dtype)
        return self._recycler.array(shape, self.dtype, size)

    def _read_only(self, array: Any, rows: int) -> Array:
        """Return the rows of a large array, copied unless this one lends."""
        if self.lends and array.flags.c_contiguous:
            leaf = ndarray((rows, *self.shape), self.dtype, array)
        else:
            leaf = self._blank(rows)
            leaf[...] = array
        leaf.flags.writeable = False
        return leaf

    def _bounds(self, rows: int) -> tuple[Array | None, Array | None]:
        """Return the bounds to compare a batch with.

        NumPy is slow when short rows meet a bound per element, so these bounds are repeated.
        """
        least, greatest = self._least, self._greatest
        if not self._repeats or (least is None and greatest is None):
            return least, greatest
        known = self._repeated
        if known is None or known[0] != rows:
            shape = (rows, *self.shape)
            known = self._repeated = (
                rows,
                None if least is None else np.broadcast_to(least, shape).copy(),
                None if greatest is None else np.broadcast_to(greatest, shape).copy(),
            )
        return known[1], known[2]

    def _is_inside(self, array: Array, least: Array | None, greatest: Array | None) -> bool:
        """Return whether no element is out of bounds or NaN (NaN fails any comparison).

        Looking for a zero byte in the outcome is several times faster than `.all()`.
        """
        if least is not None and b"\0" in _greater_equal(array, least).tobytes():
            return False
        if greatest is not None:
            return b"\0" not in _less_equal(array, greatest).tobytes()
        return not self._test_nan or b"\0" not in _equal(array, array).tobytes()

    def _find(self, array: Array, checker: Checker, *, is_batch: bool) -> None:
        """Say what is wrong with an array of which something is."""
        path, has_nan = self.spec.path, False
        if self.dtype.kind == "f":
            nan = np.isnan(array)
            refuse = checker.refuses_nan
            if has_nan := bool(np.any(nan)):
                if checker.wants("nan", path, refuse=refuse):
                    where = _place(nan, is_batch=is_batch)
                    checker.note("nan", path, f"NaN{where}; expected numbers", refuse=refuse)
                checker.keep("nan", path, _rows(nan, is_batch=is_batch))
        refuse = self.is_integer_domain and checker.refuses_integers
        wants_text = checker.wants("bounds", path, refuse=refuse)
        if not wants_text:
            if checker.found is None:
                return
            if not (has_nan or is_batch):  # then it is nothing else
                checker.keep("bounds", path)
                return
        outside = (array < self.low) | (array > self.high)
        if not np.any(outside):
            return
        checker.keep("bounds", path, _rows(outside, is_batch=is_batch))
        if wants_text:
            first = tuple(int(i) for i in np.argwhere(outside)[0])
            inner = first[is_batch:]
            checker.note(
                "bounds",
                path,
                f"{array[first].item()!r}{_place(outside, is_batch=is_batch)} is outside "
                f"[{self.low[inner].item()!r}, {self.high[inner].item()!r}]",
                refuse=refuse,
            )

    # -------------------------------------------------------------------------- decode

    def view(self, leaf: Any, row: int) -> Any:
        return leaf[row]

    def fresh(self, leaf: Any, row: int) -> Any:
        if not self._is_large:
            return leaf[row].copy()
        base, size = leaf.base, self.row_bytes
        if isinstance(base, Twinned):
            twin = base.twin(leaf, row * size, self.shape, size)
            if twin is not None:
                return twin
        value = self._recycler.array(self.shape, self.dtype, size)
        value[...] = leaf[row]
        return value

    def own(self, leaf: Any, row: int) -> Any:
        if not self._is_large or not is_kept(leaf):
            return self.fresh(leaf, row)
        value = leaf[row]
        value.flags.writeable = True
        return value

    def own_all(self, leaf: Any, rows: int) -> Any:
        if not is_kept(leaf):
            return self.unstack(leaf, rows, copy=True)
        value = leaf.view()
        value.flags.writeable = True
        return value

    def unstack(self, leaf: Any, rows: int, *, copy: bool) -> Any:
        if not copy:
            return leaf
        base, size = leaf.base, rows * self.row_bytes
        if size >= WORTH_BYTES and isinstance(base, Twinned):
            twin = base.twin(leaf, 0, (rows, *self.shape), size)
            if twin is not None:
                return twin
        value = self._blank(rows)
        value[...] = leaf
        return value

    # ---------------------------------------------------------------------------- rows

    def take(self, leaf: Any, rows: Sequence[int]) -> Leaf:
        if len(rows) == 1:
            row = rows[0]
            return leaf if row == 0 and len(leaf) == 1 else leaf[row : row + 1]
        if self._is_large:
            return self.gather([(leaf, row) for row in rows])
        taken = leaf[list(rows)]
        taken.flags.writeable = False
        return taken

    def put(self, leaf: Any, rows: Sequence[int], part: Any) -> Leaf:
        if len(leaf) == 1 and len(rows) == 1:
            return part
        result = self._blank(len(leaf))
        result[...] = leaf
        result[list(rows)] = part
        result.flags.writeable = False
        return result

    def gather(self, pairs: Pairs) -> Leaf:
        if len(pairs) == 1:
            leaf, row = pairs[0]
            return leaf if row == 0 and len(leaf) == 1 else leaf[row : row + 1]
        if not pairs:
            return ndarray((0, *self.shape), self.dtype, b"")
        if self._is_large:
            result = self._blank(len(pairs))
            for index, (leaf, row) in enumerate(pairs):
                result[index] = leaf[row]
        else:
            result = np.concatenate([leaf[row : row + 1] for leaf, row in pairs])
        result.flags.writeable = False
        return result

    # ------------------------------------------------------------------------- buffers

    def to_buffer(self, leaf: Any) -> memoryview | bytes:
        return memoryview(leaf).cast("B") if leaf.nbytes else b""

    def from_buffer(self, buffer: Buffer, rows: int) -> Leaf:
        view = memoryview(buffer)
        if view.nbytes != rows * self.row_bytes:
            raise InvalidValue(
                "leaves" + self.spec.path,
                f"expected {rows * self.row_bytes} bytes for {rows} rows, got {view.nbytes}",
            )
        shape = (rows, *self.shape)
        leaf = ndarray(shape, self.dtype, view.toreadonly() if view.nbytes else b"")
        if self.dtype.kind == "b" and leaf.size and int(leaf.view(np.uint8).max()) > 1:
            raise InvalidValue("leaves" + self.spec.path, "expected bool bytes 0 or 1")
        return leaf

    def verify(self, leaf: Any, rows: int) -> None:
        shape = (rows, *self.shape)
        if not isinstance(leaf, ndarray):
            got = f"{type(leaf).__name__}"
        elif leaf.shape != shape or leaf.dtype != self.dtype:
            got = f"{leaf.dtype} {leaf.shape}"
        elif not leaf.flags.c_contiguous:
            got = "an array that is not C-contiguous; call np.ascontiguousarray"
        else:
            return
        raise InvalidValue(
            "leaves" + self.spec.path, f"expected an array {self.dtype} {shape}, got {got}"
        )

    def count(self, value: Any) -> int:
        return row_count(value, self.spec.path)


class ScalarArrayLeaf(ArrayLeaf):
    """An array of shape (): its rows decode to 0-d arrays."""

    def view(self, leaf: Any, row: int) -> Any:
        return leaf[row, ...]

    def fresh(self, leaf: Any, row: int) -> Any:
        return leaf[row, ...].copy()


def array_leaf(
    spec: LeafSpec, low: Array, high: Array, *, is_integer_domain: bool = False
) -> ArrayLeaf:
    """Return the leaf codec of a Box, MultiBinary or MultiDiscrete."""
    make = ArrayLeaf if spec.shape else ScalarArrayLeaf
    return make(spec, low, high, is_integer_domain=is_integer_domain)


def smallest(bound: Array) -> Array:
    """Return a uniform bound as a 0-d array, any other as it is."""
    return np.array(bound.flat[0]) if bound.size and not any(bound.strides) else bound


def _rows(mask: Array, *, is_batch: bool) -> list[int]:
    """Return the rows of a batch in which an element is set."""
    if not is_batch:
        return [0]
    return np.flatnonzero(mask.reshape(len(mask), -1).any(axis=1)).tolist()


def _place(mask: Array, *, is_batch: bool) -> str:
    """Say where the first set element is: ` at [1, 2] of row 0`, or nothing for a scalar."""
    index = [int(i) for i in np.argwhere(mask)[0]]
    row, inner = index[:is_batch], index[is_batch:]
    text = f" at {inner}" if inner else ""
    return text + (f" of row {row[0]}" if row else "")
