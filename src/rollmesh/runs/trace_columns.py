"""Values of a space as columns of Arrow (layer 7).

| space | column |
|---|---|
| Discrete, Box of shape () | a number |
| Box, MultiBinary, MultiDiscrete | a list of fixed size in C order, with `shape` as metadata |
| Text | a string |
| Dict, Tuple | a struct; the fields of a Tuple are called 0, 1, … |
| Sequence, Graph, OneOf | a string: the value as JSON |
"""

from __future__ import annotations

import json
from collections.abc import Sequence as Values
from typing import Any, TypeAlias, cast

import numpy as np

from rollmesh.runs.exporting import arrow
from rollmesh.spaces.space import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    Text,
    Tuple,
)

_Ragged: TypeAlias = (
    "np.ndarray[Any, Any] | np.generic[Any] | dict[str, Any] | list[Any] | tuple[Any, ...] | str"
)
"""A value of a space that has no column of its own, or a part of one."""


def column_of(name: str, space: Space, values: Values[Any]) -> tuple[Any, Any]:
    """Return the Arrow field and array of some values of a space."""
    pa, _ = arrow()
    match space:
        case Discrete():
            array = pa.array(np.asarray(values, dtype=space.dtype))
        case Box() | MultiBinary() | MultiDiscrete():
            return _numbers(name, values)
        case Text():
            array = pa.array([str(value) for value in values], pa.string())
        case Dict():
            return _struct(
                name, [column_of(key, part, [v[key] for v in values]) for key, part in space.spaces]
            )
        case Tuple():
            return _struct(
                name,
                [
                    column_of(str(i), part, [v[i] for v in values])
                    for i, part in enumerate(space.spaces)
                ],
            )
        case _:
            array = pa.array([json.dumps(_plain(value)) for value in values], pa.string())
    return pa.field(name, array.type), array


def _numbers(name: str, values: Values[Any]) -> tuple[Any, Any]:
    pa, _ = arrow()
    stacked = np.stack([np.asarray(value) for value in values])
    rows, shape = stacked.shape[0], stacked.shape[1:]
    flat = pa.array(stacked.ravel())
    if not shape:
        return pa.field(name, flat.type), flat
    size = stacked.size // rows
    if size == 0:
        array = pa.array([[]] * rows, pa.list_(flat.type))
    else:
        array = pa.FixedSizeListArray.from_arrays(flat, size)
    return pa.field(name, array.type, metadata={"shape": json.dumps(shape)}), array


def _struct(name: str, parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    pa, _ = arrow()
    fields = [field for field, _ in parts]
    array = pa.StructArray.from_arrays([array for _, array in parts], fields=fields)
    return pa.field(name, array.type), array


def _plain(value: _Ragged) -> Any:
    """Return a value of a ragged space as values that JSON knows."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "_asdict"):  # a graph
        return _plain(cast("Any", value)._asdict())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
