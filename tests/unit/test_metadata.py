"""Infos: plain values come through as they are, odd ones never end a run."""

from __future__ import annotations

import collections
import datetime as dt
import enum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest

from rollmesh.limits import SIZE_LIMITS
from rollmesh.spaces.metadata import ReportOnce, carry


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Thing:
    def __repr__(self):
        return "Thing()"


class Broken:
    def __repr__(self):
        raise RuntimeError("no")


class Word(str):
    __slots__ = ()


class Pose(NamedTuple):
    x: int
    y: list


class Tensor:
    def __array__(self, dtype=None, copy=None):
        return np.array([1.0, 2.0])


class Reports(list):
    def __call__(self, path, detail):
        self.append((path, detail))


def carried(info):
    reports = Reports()
    return carry(info, reports), reports


def same(left, right):
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        is_alike = left.dtype == right.dtype and left.shape == right.shape
        if left.dtype.hasobject:
            return is_alike and same(left.ravel().tolist(), right.ravel().tolist())
        return is_alike and left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right or (np.isnan(left) and np.isnan(right))


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 7, -(2**70), 0.5, float("nan"), float("-inf"), 1 + 2j, "text", b"\x00\xff"),
        *(..., np.int64(7), np.float32(0.5), np.bool_(True), np.float16(1), np.complex64(1j)),
        *(np.str_("x"), np.longdouble(1.5), np.uint64(2**64 - 1), np.datetime64("2024-01-01")),
        *(dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc), dt.date(2024, 1, 1), dt.timedelta(1)),
        *(dt.time(1), Colour.RED, Level.LOW, Pose(1, [2])),
        *([1, {"x": 2}], (1, 2), {"l": [1, {"x": (2,)}]}, {}, [], (), {1, 2}),
        frozenset({1, (2, 3.5)}),
        {0: 1, ("a", 1): 2, None: 3, 1.5: 4, b"k": 5, frozenset({1}): 6},
        {np.int64(8): 7, Colour.RED: 8},
        *(np.arange(6).reshape(2, 3), np.array(3), np.zeros((0, 2), np.float16)),
        *(np.array([1, 2], ">i4"), np.array(["ab", "c"]), np.array([b"x"])),
        np.array([1, "a", None, [1, {"b": 2}]], dtype=object),
        np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array(["2024-01-01"], "M8[D]"),
    ],
    ids=repr,
)
def test_plain_values_keep_value_and_type(value):
    result, reports = carried({"key": value, "deep": {"list": [value]}})
    assert not reports
    assert same(result["key"], value)
    assert same(result["deep"]["list"][0], value)


def test_nothing_mutable_is_shared_with_the_env():
    array, items, objects = np.zeros(3), [1, [2]], np.array([[1], None], dtype=object)
    inner = {"a": array}
    result, _ = carried({"array": array, "items": items, "inner": inner, "objects": objects})
    array[:] = 9
    items[1].append(3)
    inner["b"] = 1
    objects[0] = "changed"
    assert result["array"].tolist() == [0, 0, 0]
    assert result["items"] == [1, [2]]
    assert list(result["inner"]) == ["a"]
    assert result["inner"]["a"].tolist() == [0, 0, 0]
    assert result["objects"][0] == [1]
    view = np.arange(10)[::-2]
    assert not np.shares_memory(carried({"v": view})[0]["v"], view)


def test_what_has_no_plain_form_becomes_its_repr_and_is_named():
    info = {"obj": Thing(), "deep": {"list": [1, Thing()]}, "set": {1, Thing()}, "fn": len}
    result, reports = carried(info)
    assert result["obj"] == "Thing()"
    assert result["deep"] == {"list": [1, "Thing()"]}
    assert result["set"] == {1, "Thing()"}
    assert result["fn"] == "<built-in function len>"
    paths = [path for path, _ in reports]
    assert paths == ["info['obj']", "info['deep']['list'][1]", "info['set'][Thing()]", "info['fn']"]
    assert "Thing has no plain form; replaced by its repr Thing()" in reports[0][1]


def test_odd_keys_are_replaced_too():
    result, reports = carried({Thing(): 1, (1, Thing()): 2})
    assert result == {"Thing()": 1, (1, "Thing()"): 2}
    assert len(reports) == 2


def test_cycles_and_depth_end():
    loop = {"name": "loop"}
    loop["self"] = loop
    chain = array = np.empty(1, object)
    array[0] = array
    deep = []
    for _ in range(SIZE_LIMITS.nesting + 5):
        deep = [deep]
    result, reports = carried({"loop": loop, "array": chain, "deep": deep})
    assert result["loop"]["name"] == "loop"
    assert isinstance(result["loop"]["self"], str)
    assert [detail.split(";")[0] for _, detail in reports] == [
        "contains itself",
        "an array nested too deep or in itself",
        f"nested deeper than {SIZE_LIMITS.nesting} levels",
    ]


def test_the_same_list_twice_is_no_cycle():
    shared = [1]
    result, reports = carried({"a": [shared, shared]})
    assert result == {"a": [[1], [1]]}
    assert not reports


def test_reprs_are_bounded_and_may_raise():
    class Long:
        def __repr__(self):
            return "x" * 10_000

    result, _ = carried({"long": Long(), "broken": Broken()})
    assert len(result["long"]) == 200
    assert "whose repr raised RuntimeError" in result["broken"]


def test_subclasses_become_plain_and_tensors_become_arrays():
    masked = np.ma.masked_array([1, 2], [True, False])
    result, reports = carried(
        {
            "word": Word("w"),
            "ordered": collections.OrderedDict(a=1),
            "proxy": MappingProxyType({"a": 1}),
            "matrix": np.arange(4).reshape(2, 2).view(np.recarray),
            "masked": masked,
            "tensor": Tensor(),
            "bytes": bytearray(b"ab"),
        }
    )
    assert not reports
    kinds = {key: type(value) for key, value in result.items()}
    assert kinds == {
        "word": str,
        "ordered": dict,
        "proxy": dict,
        "matrix": np.ndarray,
        "masked": np.ma.MaskedArray,
        "tensor": np.ndarray,
        "bytes": bytes,
    }
    assert result["masked"].mask.tolist() == [True, False]
    assert result["tensor"].tolist() == [1.0, 2.0]


def test_report_once_remembers_paths_up_to_a_bound():
    reports = Reports()
    report = ReportOnce(reports, most=2)
    for path in ("a", "a", "b", "c", "a"):
        report(path, "odd")
    assert [path for path, _ in reports] == ["a", "b"]


def test_an_empty_info_is_an_empty_dict_of_ones_own():
    empty = {}
    assert carry(empty, print) == {}
    assert carry(empty, print) is not empty
