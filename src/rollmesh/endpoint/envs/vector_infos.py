"""The infos of a vector env: one dict per lane, and Gymnasium's form for all of them (layer 6).

Gymnasium batches infos as a dict of arrays: under `key` one entry per lane, under `_key` a mask
of the lanes that said something; the others hold a filler (0 or None), which must not be taken
for a value. Nested dicts are batched the same way, level by level.

Other vector envs leave the masks out. There an entry with the lanes along its first axis is
split, and anything else belongs to every lane as it is.

Gymnasium keeps a Python int, float or bool in an array of int64, float64 or bool; these come
back as Python numbers. Other numpy types come back as numpy scalars of their type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

_Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_Infos: TypeAlias = "Mapping[str, Any] | list[Any] | tuple[Any, ...] | _Array | None"
"""Infos of all lanes, or what all of them have under one key; anything else is told from these."""

_PLAIN_DTYPES = (np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.bool_))


def split_infos(infos: _Infos, count: int) -> list[dict[str, Any]]:
    """Return one dict per lane, each with its own values only.

    Args:
        infos: A dict in Gymnasium's form, or a sequence with one dict (or None) per lane.
        count: Number of lanes.

    Raises:
        TypeError: It has neither form.
    """
    if isinstance(infos, Mapping):
        return _split(infos, count)
    if isinstance(infos, (list, tuple, np.ndarray)) and len(infos) == count:
        return [_one(info, lane) for lane, info in enumerate(infos)]
    raise TypeError(f"wants a dict or {count} dicts, got {type(infos).__name__}")


def _one(info: Mapping[str, Any] | str | None, lane: int) -> dict[str, Any]:
    if info is None:
        return {}
    if isinstance(info, Mapping):
        return dict(info)
    raise TypeError(f"wants a dict for lane {lane}, got {type(info).__name__}")


def _split(infos: Mapping[Any, Any], count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    value: _Infos
    for key, value in infos.items():
        if _is_mask(infos, key, count):
            continue
        mask = infos.get(f"_{key}") if isinstance(key, str) else None
        said: Iterable[int] = range(count)
        if mask is not None and _is_lane_mask(mask, count):
            said = np.flatnonzero(mask).tolist()
        if isinstance(value, Mapping):
            parts: Any = _split(value, count)
        else:
            parts = _lanes_of(value, count)
        for lane in said:
            rows[lane][key] = parts[lane]
    return rows


def _is_mask(infos: Mapping[Any, Any], key: Any, count: int) -> bool:
    """Return whether `key` only says which lanes have a value under the key it is named for."""
    return (
        isinstance(key, str)
        and key.startswith("_")
        and key[1:] in infos
        and _is_lane_mask(infos[key], count)
    )


def _is_lane_mask(value: _Infos, count: int) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.bool_ and value.shape == (count,)


def _lanes_of(value: _Infos, count: int) -> Any:
    """Return something that gives the entry of each lane by index."""
    tensor: Any = value
    if isinstance(value, np.ndarray):
        if value.ndim == 1 and value.dtype in _PLAIN_DTYPES and len(value) == count:
            return value.tolist()
        if value.ndim and len(value) == count:
            return value
    elif isinstance(value, (list, tuple)):
        if len(value) == count:
            return value
    elif getattr(tensor, "ndim", 0) and tensor.shape[0] == count:
        return tensor
    return [value] * count


def merge_infos(rows: Mapping[int, Mapping[str, Any]], count: int) -> dict[str, Any]:
    """Return lanes' infos in Gymnasium's vector form: an array per key, and a mask `_key`.

    Args:
        rows: Info per lane that has one.
        count: Number of lanes.
    """
    merged: dict[str, Any] = {}
    keys = dict.fromkeys([key for info in rows.values() for key in info])
    for key in keys:
        values = {lane: info[key] for lane, info in rows.items() if key in info}
        mask = np.zeros(count, np.bool_)
        mask[list(values)] = True
        if key != "final_obs" and all([isinstance(v, dict) for v in values.values()]):
            merged[key] = merge_infos(values, count)
        else:
            merged[key] = _column(values, count, is_object=key == "final_obs")
        merged[f"_{key}"] = mask
    return merged


def _column(values: Mapping[int, Any], count: int, *, is_object: bool) -> Any:
    """Return one key's values as an array with an entry per lane."""
    first: _Array | np.number[Any] | float = next(iter(values.values()))
    alike = all([type(value) is type(first) for value in values.values()])
    if alike and not is_object:
        try:
            if type(first) in {int, float, bool} or isinstance(first, np.number):
                column: Any = np.zeros(count, type(first))
            elif isinstance(first, np.ndarray) and first.dtype != object:
                shapes = {(value.shape, value.dtype) for value in values.values()}
                column = np.zeros((count, *first.shape), first.dtype) if len(shapes) == 1 else None
            else:
                column = None
            if column is not None:
                for lane, value in values.items():
                    column[lane] = value
                return column
        except OverflowError:  # an int beyond 64 bits
            pass
    column = np.full(count, None, object)
    for lane, value in values.items():
        column[lane] = value
    return column
