"""Turns whatever a user hands over into an array of a declared dtype and shape (layer 2).

This is the slow path of every fixed leaf: lists, numpy scalars, big-endian arrays, subclasses,
tensors. It never changes a number silently: it converts exactly, tells the checker, or refuses.

It knows no space; the caller passes what is declared as a `Declared`.
"""

# numpy's and gymnasium's stubs, and values of unknown origin, leave types partly unknown:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollmesh.errors import InvalidValue
from rollmesh.spaces.conformance import Checker

Array = np.ndarray[Any, np.dtype[Any]]

_NUMERIC = "biuf"
_EXACT = 2**53
"""Up to here float64 holds every integer."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What a space says about one array.

    Attributes:
        path: Path below the checker's root.
        dtype: Little-endian dtype.
        quiet: Do not report another integer dtype (Discrete and MultiBinary accept any).
        scores_hint: What an error adds where fractions came: they may be scores of the values.
    """

    path: str
    dtype: np.dtype[Any]
    quiet: bool = False
    scores_hint: str = ""


def conform(value: Any, declared: Declared, shape: tuple[int, ...], checker: Checker) -> Array:
    """Return `value` as an array of the declared dtype and of `shape`, in any memory layout.

    May return the input itself: the caller copies.

    Raises:
        InvalidValue: It cannot be read, has another shape, or would have to be changed.
    """
    where = checker.root + declared.path
    array, has_dtype = read_array(value, where)
    if array.shape != shape:
        got = f"{array.shape}{_hint(array, shape)}"
        if _is_opaque(array):
            got = f"a {type(value).__name__}"
        raise InvalidValue(where, f"expected shape {shape}, got {got}")
    if array.dtype == declared.dtype:
        return array
    if array.dtype.kind not in _NUMERIC or (
        not has_dtype and array.dtype.kind == "f" and declared.dtype.kind in "iu"
    ):
        array = _exact_integers(value, array, declared, where)
    return _cast(array, declared, checker, has_dtype=has_dtype)


def read_array(value: Any, where: str) -> tuple[Array, bool]:
    """Return `value` as a plain array, and whether it brought a dtype of its own.

    Tensors that need it are detached and moved to the CPU first.

    Raises:
        InvalidValue: It cannot be read; the error says what to call.
    """
    if isinstance(value, np.ndarray):
        mask = getattr(value, "mask", None)
        if isinstance(value, np.ma.MaskedArray) and np.any(mask):
            raise InvalidValue(where, "has masked elements; call .filled(value) first")
        return np.asarray(value), True
    if value is None:
        raise InvalidValue(where, "expected an array, got None; return a value that fits the space")
    try:
        plain = _to_cpu(value)
        if hasattr(plain, "__dlpack__") and not hasattr(plain, "__array__"):
            array = np.from_dlpack(plain)
        else:
            array = np.asarray(plain)
    except Exception as error:  # foreign code: anything can come out of it
        kind = type(value).__name__
        said = f"{type(error).__name__}: {error}"
        raise InvalidValue(
            where,
            f"cannot read {kind} as an array ({said[:300]}); pass a NumPy array, for a tensor "
            "call .detach().cpu().numpy() (and .float() for bfloat16) first",
        ) from error
    return array, hasattr(value, "dtype")


def _to_cpu(value: Any) -> Any:
    detach: Callable[[], Any] | None = getattr(value, "detach", None)
    if detach is not None and getattr(value, "requires_grad", False):
        value = detach()
    device = getattr(value, "device", None)
    to_cpu: Callable[[], Any] | None = getattr(value, "cpu", None)
    if to_cpu is not None and device is not None and not str(device).startswith("cpu"):
        value = to_cpu()
    return value


def _is_opaque(array: Array) -> bool:
    """Return whether this is one object that NumPy could not look into."""
    return array.ndim == 0 and array.dtype.hasobject


def _hint(array: Array, shape: tuple[int, ...]) -> str:
    if array.shape == (1, *shape):
        return "; drop the leading axis of 1, for example value[0]"
    if array.size == int(np.prod(shape)):
        return f"; if the order is right, call .reshape({shape})"
    return ""


def _exact_integers(value: Any, array: Array, declared: Declared, where: str) -> Array:
    """Return Python integers that NumPy would round or leave as objects, without losing a bit."""
    if array.dtype.kind == "f" and (array.size == 0 or not np.any(np.abs(array) >= _EXACT)):
        return array
    objects = np.asarray(value, dtype=object)
    items = objects.ravel().tolist()
    if not all(isinstance(item, (int, np.integer)) for item in items):
        if array.dtype.kind == "f":
            return array
        got = f"a {type(value).__name__}" if _is_opaque(array) else f"dtype {array.dtype}"
        raise InvalidValue(
            where,
            f"expected numbers for dtype {declared.dtype}, got {got}; "
            f"convert it first, for example .astype({declared.dtype.name!r})",
        )
    if declared.dtype.kind not in "iu":
        try:
            return np.array([float(item) for item in items]).reshape(objects.shape)
        except OverflowError:
            raise InvalidValue(where, f"a number is too large for {declared.dtype}") from None
    limits = np.iinfo(declared.dtype)
    for item in items:
        if not int(limits.min) <= int(item) <= int(limits.max):
            raise InvalidValue(where, _range_text(int(item), declared.dtype))
    return np.array([int(i) for i in items], dtype=declared.dtype).reshape(objects.shape)


def _cast(array: Array, declared: Declared, checker: Checker, *, has_dtype: bool) -> Array:
    source, target, path = array.dtype, declared.dtype, declared.path
    if source == target or np.can_cast(source, target, "safe"):
        return array.astype(target)
    if target.kind == "f":
        return _cast_to_float(array, declared, checker, has_dtype=has_dtype)
    where = checker.root + path
    if source.kind == "f":
        _require_integral(array, declared, where)
        if checker.wants("integral", path):
            got = f"whole numbers as {source}"
            checker.note("integral", path, _conversion_text(got, target, checker))
    _require_range(array, target, where)
    if has_dtype and source.kind != "f" and not declared.quiet and checker.wants("dtype", path):
        checker.note("dtype", path, _conversion_text(str(source), target, checker))
    return array.astype(target)


def _cast_to_float(array: Array, declared: Declared, checker: Checker, *, has_dtype: bool) -> Array:
    source, target, path = array.dtype, declared.dtype, declared.path
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(target)
    # what NumPy computes is float64: actions of that are no mistake
    is_usual = checker.refuses_nan and source.kind == "f"
    if has_dtype and checker.wants("dtype", path, is_usual=is_usual):
        detail = _conversion_text(str(source), target, checker, is_done=is_usual)
        checker.note("dtype", path, detail, is_usual=is_usual)
    if checker.wants("overflow", path):
        lost = np.isinf(result) & np.isfinite(array)
        if np.any(lost):
            got = array[lost].flat[0].item()
            becomes = "would become" if checker.policy == "strict" else "becomes"
            checker.note("overflow", path, f"{got!r} is too large for {target}: {becomes} infinite")
    return result


def _conversion_text(
    got: str, target: np.dtype[Any], checker: Checker, *, is_done: bool = False
) -> str:
    """Say that another dtype came, and what was done about it or has to be."""
    is_refused = checker.policy == "strict" and not is_done
    cure = f"convert it, for example .astype({target.name!r})" if is_refused else "converted"
    return f"expected dtype {target}, got {got}; {cure}"


def scores_hint(start: int) -> str:
    """Return what an error says where scores of the actions may have come instead of an action.

    Args:
        start: The first action's number.
    """
    shift = f" + {start}" if start else ""
    return (
        "if these are scores of the actions, return the best one's number, as in "
        f"int(np.argmax(scores)){shift}"
    )


def _require_integral(array: Array, declared: Declared, where: str) -> None:
    finite = np.isfinite(array)
    whole = finite & (np.trunc(array) == array)
    if np.all(whole):
        return
    hint = declared.scores_hint if array.size > 1 and np.any(finite & ~whole) else ""
    if np.all(finite):
        got = array[~whole].flat[0].item()
        cure = f"; {hint}, else round it yourself" if hint else "; round it yourself"
    else:  # no rounding makes an action of NaN
        got = array[~finite].flat[0].item()
        cure = f"; {hint}" if hint else ""
    raise InvalidValue(
        where, f"expected whole numbers for dtype {declared.dtype}, got {got!r}{cure}"
    )


def _require_range(array: Array, target: np.dtype[Any], where: str) -> None:
    if array.size == 0:
        return
    low, high = (0, 1) if target.kind == "b" else (np.iinfo(target).min, np.iinfo(target).max)
    for extreme in (array.min(), array.max()):
        number = int(extreme)  # exact for whole floats too
        if not int(low) <= number <= int(high):
            raise InvalidValue(where, _range_text(number, target))


def _range_text(number: int, dtype: np.dtype[Any]) -> str:
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return f"{number} does not fit dtype {dtype} ({low} to {high}); it would be changed"
