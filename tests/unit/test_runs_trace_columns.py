"""Values of every kind of space as columns of Arrow."""

from __future__ import annotations

import json

import gymnasium.spaces as gym
import numpy as np
import pytest

from rollmesh.runs.trace_columns import column_of
from rollmesh.spaces.gymnasium import from_gymnasium

SPACES = {
    "discrete": gym.Discrete(5, start=-2),
    "scalar box": gym.Box(-1.0, 1.0, (), np.float64),
    "box": gym.Box(-1.0, 1.0, (2, 3), np.float32),
    "image": gym.Box(0, 255, (2, 2, 3), np.uint8),
    "empty box": gym.Box(-1.0, 1.0, (0, 3), np.float32),
    "bool box": gym.Box(0, 1, (3,), np.bool_),
    "binary": gym.MultiBinary(4),
    "multi": gym.MultiDiscrete([3, 4]),
    "text": gym.Text(5),
    "dict": gym.Dict({"b": gym.Discrete(2), "a": gym.Box(0.0, 1.0, (2,))}),
    "tuple": gym.Tuple((gym.Discrete(2), gym.Text(3))),
    "deep": gym.Dict({"x": gym.Tuple((gym.Dict({"y": gym.MultiBinary(2)}),))}),
    "sequence": gym.Sequence(gym.Box(0.0, 1.0, (2,))),
    "graph": gym.Graph(gym.Box(0.0, 1.0, (2,)), gym.Discrete(3)),
    "one of": gym.OneOf((gym.Discrete(2), gym.Box(0.0, 1.0, (2,)))),
}
RAGGED = ("sequence", "graph", "one of")


def values_of(space, count=3):
    space.seed(4)
    ours = from_gymnasium(space)
    codec = ours.codec
    return ours, [codec.decode(codec.encode(space.sample()), 0, copy=True) for _ in range(count)]


def plain(value):
    if isinstance(value, np.ndarray):
        return value.reshape(-1).tolist() if value.shape else value.item()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return {str(index): plain(item) for index, item in enumerate(value)}
    return value


@pytest.mark.parametrize("name", [name for name in SPACES if name not in RAGGED])
def test_values_come_back_exactly(name):
    space, values = values_of(SPACES[name])
    field, array = column_of("action", space, values)
    assert (field.name, field.type) == ("action", array.type)
    assert array.to_pylist() == [plain(value) for value in values]


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_values_are_json(name):
    space, values = values_of(SPACES[name])
    _, array = column_of("action", space, values)
    assert len(array) == 3
    for text in array.to_pylist():
        assert isinstance(json.loads(text), (list, dict))


def test_the_shape_stands_beside_the_column():
    space, values = values_of(SPACES["image"])
    field, array = column_of("action", space, values)
    assert json.loads(field.metadata[b"shape"]) == [2, 2, 3]
    assert array.type.list_size == 12
