"""Tests of `rollmesh.wire.proto_metadata`."""

from __future__ import annotations

import datetime as dt
import enum
import math
from typing import NamedTuple

import numpy as np
import pytest

from rollmesh.errors import WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.wire._gen import rlmesh_spaces_v1_pb2 as pb
from rollmesh.wire.proto_metadata import (
    decode_lanes,
    decode_map,
    encode_lanes,
    encode_map,
    encode_vector,
)


class Colour(enum.Enum):
    RED = 1
    ODD = frozenset()


class Level(enum.IntEnum):
    HIGH = 7


class Words(str):
    __slots__ = ()


class Point(NamedTuple):
    x: int
    y: int


def refuse(path, detail):
    raise AssertionError(f"{path}: {detail}")


def sent(values, report=refuse):
    message = pb.MetaMap()
    encode_map(values, message, report)
    return decode_map(pb.MetaMap.FromString(message.SerializeToString()))


ARRIVES_AS = [
    (None, None),
    (True, True),
    (np.True_, True),
    (-7, -7),
    (2**63 - 1, 2**63 - 1),
    (-(2**63), -(2**63)),
    (np.uint8(5), 5),
    (np.float32(0.5), 0.5),
    (np.longdouble(1.5), 1.5),
    (math.inf, math.inf),
    ("grüße", "grüße"),
    (Words("abc"), "abc"),
    (b"\0\xff", b"\0\xff"),
    ([1, [2.0, "x", None]], [1, [2.0, "x", None]]),
    ((1, 2), [1, 2]),
    ({"a": {"b": {}}}, {"a": {"b": {}}}),
    (Point(1, 2), {"x": 1, "y": 2}),
    (Colour.RED, 1),
    (Colour.ODD, "ODD"),
    (Level.HIGH, 7),
    (np.arange(4, dtype=np.float32).reshape(2, 2), [[0.0, 1.0], [2.0, 3.0]]),
    (np.array(3), 3),
    (np.array(["a", "b"]), ["a", "b"]),
    (np.array([1, "x", None], object), [1, "x", None]),
    (np.zeros((0, 3)), []),
]


@pytest.mark.parametrize(("value", "expected"), ARRIVES_AS, ids=repr)
def test_a_value_arrives_as_the_table_says(value, expected):
    got = sent({"key": value})["key"]
    assert got == expected
    assert type(got) is type(expected)


def test_nan_is_allowed():
    assert math.isnan(sent({"x": math.nan})["x"])


ODD = [
    2**63,
    -(2**70),
    np.uint64(2**64 - 1),
    {1, 2},
    1 + 2j,
    dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc),
    object,
    lambda: None,
    "\ud800",
    np.void(b"ab"),
]


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_an_odd_value_becomes_its_repr_and_is_reported_and_the_rest_survives(value):
    told = []
    plain = int(value) if isinstance(value, np.uint64) else value
    got = sent({"a": 1, "deep": [{"odd": value}], "b": 2}, lambda *one: told.append(one))
    assert (got["a"], got["b"]) == (1, 2)
    assert got["deep"][0]["odd"] == repr(plain).encode("utf-8", "backslashreplace").decode()[:200]
    [(path, detail)] = told
    assert path == "info['deep'][0]['odd']"
    assert "replaced by" in detail


def test_an_object_whose_repr_raises_is_replaced_too():
    class Broken:
        def __repr__(self):
            raise RuntimeError

    told = []
    got = sent({"x": Broken()}, lambda *one: told.append(one))
    assert "whose repr raised RuntimeError" in got["x"]
    assert len(told) == 1


def test_keys_that_are_no_texts_become_texts_and_are_reported():
    told = []
    got = sent({1: "a", ("x", 2): "b", "\udc00": "c"}, lambda *one: told.append(one))
    assert got == {"1": "a", "('x', 2)": "b", "\\udc00": "c"}
    assert len(told) == 3


def test_what_is_nested_too_deep_becomes_its_repr():
    deep = value = []
    for _ in range(SIZE_LIMITS.nesting + 5):
        value.append([])
        value = value[0]
    told = []
    got = sent({"x": deep}, lambda *one: told.append(one))
    assert len(told) == 1
    assert "nested deeper" in told[0][1]
    assert got["x"]


def test_both_spellings_of_null_and_an_unknown_kind_read_as_none():
    message = pb.MetaMap()
    message.entries["unset"].SetInParent()
    message.entries["null"].null.SetInParent()
    data = (
        message.SerializeToString()
        + bytes.fromhex("0a0a 0a03")
        + b"new"
        + bytes.fromhex("1203 7a01 41")
    )
    assert decode_map(pb.MetaMap.FromString(data)) == {"unset": None, "null": None, "new": None}


def test_null_is_sent_as_no_kind():
    message = pb.MetaMap()
    encode_map({"x": None}, message, refuse)
    assert message.entries["x"].WhichOneof("kind") is None
    assert b"\x42" not in message.SerializeToString()


# ------------------------------------------------------------------------------------ lanes

INFOS = ({"at": 1, "only": "a"}, {"at": 2, "pose": {"x": 1.5}}, {"at": 3})


def lanes(infos, ended=(False, True, False)):
    message = pb.MetaMap()
    encode_lanes(infos, message, refuse, ended)
    return message


def vector(infos):
    message = pb.MetaMap()
    encode_vector(infos, message, refuse)
    return message


@pytest.mark.parametrize("write", [lanes, vector])
def test_each_lane_gets_its_own_keys_back(write):
    assert decode_lanes(write(INFOS), 3) == INFOS


def test_lanes_are_a_list_of_maps_and_a_list_of_flags():
    got = decode_map(lanes(INFOS))
    assert got == {"final_info": list(INFOS), "_final_info": [False, True, False]}


def test_a_vector_is_a_list_and_a_mask_per_key_with_gymnasiums_fillers():
    got = decode_map(vector(({"ok": True, "n": 1}, {"x": 0.5, "pose": {"a": 1}, "name": "b"})))
    assert got == {
        "ok": [True, False],
        "_ok": [True, False],
        "n": [1, 0],
        "_n": [True, False],
        "x": [0.0, 0.5],
        "_x": [False, True],
        "pose": {"a": [0, 1], "_a": [False, True]},
        "_pose": [False, True],
        "name": [None, "b"],
        "_name": [False, True],
    }


def test_one_row_is_the_plain_map():
    message = pb.MetaMap()
    encode_map({"at": [1], "_at": [True]}, message, refuse)
    assert decode_lanes(message, 1) == ({"at": [1], "_at": [True]},)


def test_what_is_not_per_lane_belongs_to_every_lane():
    message = pb.MetaMap()
    whole = {"map": "kitchen", "odd": [1, 2, 3], "rlmesh.conformance.warning": ["a", "b"]}
    encode_map(whole, message, refuse)
    assert decode_lanes(message, 2) == (whole, whole)


def test_old_vector_envs_with_final_infos_of_some_lanes_are_understood():
    message = pb.MetaMap()
    whole = {"final_info": [None, {"is_success": True}], "_final_info": [False, True], "at": [1, 2]}
    encode_map(whole, message, refuse)
    assert decode_lanes(message, 2) == ({"at": 1}, {"at": 2, "is_success": True})


def test_no_infos_are_empty_ones_that_are_not_shared():
    one, other = decode_lanes(pb.MetaMap(), 2)
    assert one == other == {}
    assert one is not other


# ----------------------------------------------------------------------------------- limits


def keys(count):
    message = pb.MetaMap()
    for index in range(count):
        message.entries[f"k{index}"].SetInParent()
    return message


def key_of(size):
    message = pb.MetaMap()
    message.entries["k" * size].integer = 1
    return message


def wide_key_of(size):
    message = pb.MetaMap()
    message.entries["ü" * (size // 2) + "k" * (size % 2)].integer = 1
    return message


def text_of(size):
    message = pb.MetaMap()
    message.entries["k"].text = "t" * size
    return message


def nested(levels):
    message = inner = pb.MetaMap()
    for _ in range(levels - 1):
        inner = inner.entries["k"].map
    inner.SetInParent()
    return message


@pytest.mark.parametrize(
    ("make", "limit", "most"),
    [
        (keys, SIZE_LIMITS.keys, 1000),
        (key_of, SIZE_LIMITS.key_bytes, 1000),
        (wide_key_of, SIZE_LIMITS.key_bytes, 1000),
        (text_of, SIZE_LIMITS.text_bytes, 100),
        (nested, SIZE_LIMITS.nesting + 1, 3),
    ],
)
def test_limits_hold_at_one_over_and_far_over(make, limit, most):
    decode_map(make(limit))
    for count in (limit + 1, most * limit):
        with pytest.raises(WireError):
            decode_map(make(count))


def test_few_bytes_cannot_become_many_objects():
    message = pb.MetaMap()
    message.entries["k"].list.SetInParent()
    inner = bytes([0x0A, 0x00]) * (2**20 + 1)
    message.entries["k"].list.MergeFromString(inner)
    with pytest.raises(WireError, match="more than 1048576 values"):
        decode_map(message)
