"""Batched infos come apart into one dict per lane (case C37)."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from rollmesh.endpoint.envs.vector_infos import merge_infos, split_infos
from tests.unit.env_toys import Count


def batched(*infos):
    """Batch infos as Gymnasium does."""
    env = SyncVectorEnv([Count] * len(infos))
    out = {}
    for lane, info in enumerate(infos):
        out = env._add_info(out, info, lane)
    return out


def same(one, other):
    if isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in other)
    if isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize(
    "value",
    [
        1,
        0,
        0.5,
        True,
        False,
        "text",
        None,
        np.float32(0.5),
        np.int8(3),
        np.bool_(True),
        b"bytes",
        (1, 2),
        [1, "a"],
        np.array([1.0, 2.0]),
        np.array(["a", None], object),
        {"deep": {"deeper": 1}, "other": "x"},
        {},
    ],
)
def test_c37_a_value_comes_back_on_its_lane_alone_with_its_type(value):
    first, second, third = split_infos(batched({}, {"key": value}, {"else": 2}), 3)
    assert first == {}
    assert same(second, {"key": value})
    assert same(third, {"else": 2})


def test_c37_fillers_are_not_values():
    rows = split_infos(batched({"a": 1, "n": {"x": 1.5}}, {"b": "t", "n": {"y": 2}}), 2)
    assert rows == [{"a": 1, "n": {"x": 1.5}}, {"b": "t", "n": {"y": 2}}]


def test_a_key_that_begins_with_an_underscore_is_a_key():
    assert split_infos(batched({"_a": 1}, {}), 2) == [{"_a": 1}, {}]


def test_without_masks_lanes_are_along_the_first_axis_or_share_the_value():
    infos = {
        "per_lane": np.array([1.5, 2.5]),
        "frames": np.zeros((2, 3), np.uint8),
        "names": ["a", "b"],
        "shared": "all",
        "wide": np.arange(3),
        "number": 4,
        "deep": {"x": np.array([1, 2])},
        7: np.array([True, False]),
    }
    first, second = split_infos(infos, 2)
    assert (first["per_lane"], second["per_lane"]) == (1.5, 2.5)
    assert first["frames"].shape == (3,)
    assert (first["names"], second["names"]) == ("a", "b")
    assert first["shared"] == second["shared"] == "all"
    assert first["wide"].tolist() == [0, 1, 2]
    assert second["number"] == 4
    assert (first["deep"], second["deep"]) == ({"x": 1}, {"x": 2})
    assert (first[7], second[7]) == (True, False)


def test_one_dict_per_lane_is_taken_as_it_is():
    assert split_infos([{"a": 1}, None], 2) == [{"a": 1}, {}]
    assert split_infos(np.array([None, {"b": 1}], object), 2) == [{}, {"b": 1}]


@pytest.mark.parametrize("infos", [[{}], 5, "ab", [1, 2]])
def test_any_other_form_is_refused(infos):
    with pytest.raises(TypeError, match="wants"):
        split_infos(infos, 2)


def test_what_is_merged_comes_apart_again():
    rows = [
        {"count": 3, "pose": np.arange(2.0), "inner": {"note": "x"}},
        {},
        {"count": 2**70, "pose": np.arange(3.0), "inner": {"note": "y", "more": True}},
    ]
    merged = merge_infos(dict(enumerate(rows)), len(rows))
    assert same(dict(enumerate(split_infos(merged, len(rows)))), dict(enumerate(rows)))
    assert merged["_count"].tolist() == [True, False, True]
