"""Values that are wrong on purpose: NaN, other shapes, shared buffers, odd infos (layer 7).

Works on arrays, numbers, dicts and tuples of them, as Gymnasium's spaces make them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np

_Array = np.ndarray[Any, Any]
_HUGE_BYTES = 8 * 2**20


def with_nan(value: Any) -> Any:
    """Return a copy in which every floating number is NaN."""

    def spoil(array: _Array) -> _Array:
        return np.full_like(array, np.nan) if array.dtype.kind == "f" else array

    return _each_array(value, spoil)


def with_wrong_shape(value: Any) -> Any:
    """Return a copy in which every array has two dimensions more: no chunk and no batch either."""

    def spoil(array: _Array) -> _Array:
        return np.array(np.broadcast_to(array, (2, 3, *array.shape)), order="C")

    return _each_array(value, spoil)


def aliased(value: Any, buffers: dict[str, Any], path: str = "") -> Any:
    """Return the value in the buffers of last time: whoever kept those sees them change."""
    if isinstance(value, dict):
        table = cast("dict[Any, Any]", value)
        return {key: aliased(one, buffers, f"{path}.{key}") for key, one in table.items()}
    if isinstance(value, tuple):
        parts = cast("tuple[Any, ...]", value)
        return tuple([aliased(one, buffers, f"{path}[{i}]") for i, one in enumerate(parts)])
    if not isinstance(value, np.ndarray):
        return value
    array = cast("_Array", value)
    kept: _Array | None = buffers.get(path)
    if kept is None or kept.shape != array.shape or kept.dtype != array.dtype:
        kept = buffers[path] = np.array(array, order="C", subok=True)
    kept[...] = array
    return kept


def huge(nbytes: int | None = None) -> _Array:
    """Return an array of so many bytes, 8 MiB by default."""
    return np.zeros(_HUGE_BYTES if nbytes is None else nbytes, np.uint8)


def odd_info() -> dict[Any, Any]:
    """Return an info full of what cannot be sent as it is."""
    cycle: list[Any] = []
    cycle.append(cycle)
    return {
        "lambda": lambda: None,
        "lock": threading.Lock(),
        "cycle": cycle,
        "deep": _nested(50),
        "big": 2**200,
        ("tuple", 1): "odd key",
        "set": {1, 2},
        "nan": float("nan"),
        "objects": np.array([object(), "text", 3], dtype=object),
    }


def _nested(depth: int) -> Any:
    value: Any = "bottom"
    for _ in range(depth):
        value = {"down": value}
    return value


def _each_array(value: Any, change: Callable[[_Array], Any]) -> Any:
    if isinstance(value, dict):
        table = cast("dict[Any, Any]", value)
        return {key: _each_array(one, change) for key, one in table.items()}
    if isinstance(value, (tuple, list)):
        parts = cast("tuple[Any, ...] | list[Any]", value)
        return type(parts)([_each_array(one, change) for one in parts])
    if isinstance(value, (np.ndarray, np.generic, int, float)):
        return change(np.asarray(value))
    return value
