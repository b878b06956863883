"""What a space checks about itself when it is made (layer 2).

Everything here raises `InvalidValue` with the field as its path. It knows no space.
"""

# numpy's and gymnasium's stubs, and values of unknown origin, leave types partly unknown:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from rollmesh.errors import InvalidValue
from rollmesh.limits import SIZE_LIMITS
from rollmesh.spaces.leaf_codec import LeafSpec

_MOST_BYTES = 8
"""Bytes of the widest element."""

Array = np.ndarray[Any, np.dtype[Any]]


def check_dtype(field: str, dtype: DTypeLike, *, kinds: str) -> np.dtype[Any]:
    """Return a dtype as little-endian, if its kind is allowed and it has at most 64 bits."""
    try:
        checked = np.dtype(dtype)
    except TypeError as error:
        raise InvalidValue(field, f"expected a dtype, got {dtype!r}") from error
    if checked.kind not in kinds or checked.itemsize > _MOST_BYTES:
        names = {"b": "bool", "i": "int", "u": "uint", "f": "float"}
        allowed = ", ".join(names[kind] for kind in kinds)
        raise InvalidValue(field, f"expected one of {allowed} up to 64 bits, got {checked}")
    little = checked.newbyteorder("<")
    # NumPy's own instance where there is one: arrays carry it, so that `is` finds it
    return np.dtype(little.type) if little.isnative else little


def check_shape(field: str, shape: Iterable[Any]) -> tuple[int, ...]:
    """Return a shape as a tuple of ints >= 0 within the size limits."""
    try:
        checked = tuple(int(size) for size in shape)
    except (TypeError, ValueError) as error:
        raise InvalidValue(field, f"expected a tuple of whole numbers, got {shape!r}") from error
    if any(size < 0 for size in checked):
        raise InvalidValue(field, f"expected sizes of 0 or more, got {checked}")
    if len(checked) > SIZE_LIMITS.dims:
        raise InvalidValue(
            field, f"expected at most {SIZE_LIMITS.dims} dimensions, got {len(checked)}"
        )
    return checked


def check_count(field: str, count: int) -> None:
    """Check the number of children of a space."""
    if count > SIZE_LIMITS.keys:
        raise InvalidValue(field, f"expected at most {SIZE_LIMITS.keys} spaces, got {count}")


def check_name(field: str, name: object) -> None:
    """Check the name of an entry; the empty string is a name."""
    if not isinstance(name, str):
        raise InvalidValue(field, f"expected names that are strings, got {name!r}; rename it")
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > SIZE_LIMITS.key_bytes:
        raise InvalidValue(
            field, f"expected names of at most {SIZE_LIMITS.key_bytes} bytes, got {size}"
        )


def check_bound(
    field: str, value: ArrayLike | None, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    """Return a bound as a read-only array of shape and dtype; uniform ones take no memory.

    None and the infinities stand for the end of the range where the dtype has no infinity.
    """
    is_low = field.endswith("low")
    least, greatest = _range(dtype)
    if value is None:
        value = least if is_low else greatest
    given = np.asarray(value)
    if given.dtype.kind not in "biuf":
        given = _whole_objects(field, given)
    if given.ndim and given.shape != shape:
        raise InvalidValue(field, f"expected a number or shape {shape}, got shape {given.shape}")
    if given.dtype.kind == "f" and np.any(np.isnan(given)):
        raise InvalidValue(field, "expected no NaN")
    if given.dtype == dtype:
        bound = given
    elif dtype.kind == "f":
        with np.errstate(over="ignore"):
            bound = given.astype(dtype)
        if np.any(np.isinf(bound) & np.isfinite(given.astype(np.float64))):
            raise InvalidValue(field, f"out of the range of {dtype}")
    else:
        bound = _whole_bound(field, given, dtype, is_low=is_low)
    if bound.size and np.all(bound == bound.flat[0]):
        bound = np.array(bound.flat[0], dtype)
    return np.broadcast_to(bound.copy(), shape)


def _range(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "f":
        return -math.inf, math.inf
    if dtype.kind == "b":
        return 0, 1
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _whole_objects(field: str, given: Array) -> Array:
    """Return an object array of Python integers, or refuse."""
    if given.dtype.kind == "O" and all(isinstance(item, int) for item in given.ravel().tolist()):
        return given
    raise InvalidValue(field, f"expected numbers, got dtype {given.dtype}")


def _whole_bound(field: str, given: Array, dtype: np.dtype[Any], *, is_low: bool) -> Array:
    """Return bounds of an integer dtype exactly; an infinity on its own side is the range's end."""
    least, greatest = _range(dtype)
    open_end, replacement = (-math.inf, least) if is_low else (math.inf, greatest)
    items: list[Any] = given.ravel().tolist()
    for item in items:
        if item != open_end and (item != item // 1 or not least <= item <= greatest):
            raise InvalidValue(field, f"expected whole numbers {least} to {greatest}, got {item}")
    numbers = [replacement if item == open_end else int(item) for item in items]
    return np.array(numbers, dtype).reshape(given.shape)


def check_integers(field: str, value: ArrayLike) -> Array:
    """Return whole numbers as an array of Python ints."""
    given = np.asarray(value)
    items = given.ravel().tolist()
    if given.dtype.kind not in "biu" and not all(isinstance(item, int) for item in items):
        raise InvalidValue(field, f"expected whole numbers, got dtype {given.dtype}")
    array = np.empty(given.shape, object)
    array[...] = np.array(items, object).reshape(given.shape)
    return array


def frozen(array: Array) -> Array:
    """Return the array, read-only from now on."""
    array.flags.writeable = False
    return array


def fixed_spec(path: str, kind: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> LeafSpec:
    """Return the spec of a fixed leaf."""
    size = math.prod(shape) * dtype.itemsize
    return LeafSpec(path=path, kind=kind, dtype=dtype, shape=shape, row_bytes=size)


def content(array: Array) -> bytes:
    """Return the bytes that tell two bounds of one shape and dtype apart."""
    return array.flat[0].tobytes() + b"u" if _is_uniform(array) else array.tobytes()


def short(array: Array) -> str:
    """Return one number for a uniform bound, else the array's own short text."""
    if _is_uniform(array):
        return str(array.flat[0].item())
    with np.printoptions(threshold=20, edgeitems=2):
        return " ".join(str(array).split())


def _is_uniform(array: Array) -> bool:
    return array.size > 0 and not any(array.strides)
