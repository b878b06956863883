"""Spaces: valid by construction, equal by content, immutable."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

from rollmesh.errors import InvalidValue
from rollmesh.limits import SIZE_LIMITS
from rollmesh.spaces.space import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)

BOX = Box((2,), np.float32, -1, 1)
ONE_OF_EACH = [
    BOX,
    Box((2,), np.float32, [-1, 0], [1, 1]),
    Box((), np.uint64, 0, 2**64 - 1),
    Discrete(5, -2),
    MultiBinary((2, 3)),
    MultiDiscrete([[2, 3], [4, 5]], [[0, 1], [-1, 2]]),
    Text(0, 9, "abc"),
    Dict([("z", BOX), ("a", Discrete(2))]),
    Tuple([BOX, Discrete(2)]),
    Sequence(BOX, stack=True),
    Graph(BOX, None),
    OneOf([BOX, Discrete(2)]),
]


def nested(levels):
    space = BOX
    for _ in range(levels - 1):
        space = Tuple([space])
    return space


@pytest.mark.parametrize("space", ONE_OF_EACH, ids=repr)
def test_equal_content_is_equal_and_hashes_alike(space):
    values = tuple(getattr(space, field.name) for field in dataclasses.fields(space))
    again = type(space)(*values)
    assert again == space
    assert hash(again) == hash(space)
    assert [other for other in ONE_OF_EACH if other == space] == [space]
    assert space != "a space"


@pytest.mark.parametrize("space", ONE_OF_EACH, ids=repr)
def test_spaces_are_immutable(space):
    field = dataclasses.fields(space)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(space, field, None)
    assert copy.copy(space) is space
    assert copy.deepcopy(space) is space


@pytest.mark.parametrize("space", ONE_OF_EACH, ids=repr)
def test_spaces_survive_a_trip_to_another_process(space):
    assert space.codec is space.codec
    again = pickle.loads(pickle.dumps(space))
    assert again == space
    assert "codec" not in vars(again)


def test_repr_says_what_the_space_is():
    assert repr(BOX) == "Box((2,), float32, -1.0, 1.0)"
    assert repr(Box((2,), np.int8, [0, 1], [2, 3])) == "Box((2,), int8, [0 1], [2 3])"
    assert repr(Discrete(3, 1)) == "Discrete(3, start=1, dtype=int64)"
    assert repr(Text(0, 3)) == "Text(0, 3, charset=any)"
    assert repr(Dict({"a": Discrete(2)})) == "Dict('a': Discrete(2, start=0, dtype=int64))"
    assert repr(Sequence(Discrete(2))).startswith("Sequence(Discrete(2")


def test_uniform_bounds_take_no_memory_and_cannot_be_written():
    space = Box((1000, 1000), np.uint8, 0, 255)
    assert space.low.strides == (0, 0)
    assert not space.low.flags.writeable
    assert space == Box((1000, 1000), np.uint8, np.zeros((1000, 1000)), 255)
    assert not Box((2,), np.float32, [0, 1], 2).low.flags.writeable


def test_unbounded_is_the_whole_range_of_the_dtype():
    assert Box((), np.float64).low == -np.inf
    assert Box((), np.int16).low == -(2**15)
    assert Box((), np.uint64).high == 2**64 - 1
    assert Box((), np.int64, -np.inf, np.inf) == Box((), np.int64)
    assert Box((), bool) == Box((), bool, 0, 1)


def test_integer_bounds_stay_exact():
    space = Box((2,), np.int64, [-(2**63), 2**53 + 1], [2**63 - 1, 2**53 + 1])
    assert space.low.tolist() == [-(2**63), 2**53 + 1]
    assert space.high.tolist() == [2**63 - 1, 2**53 + 1]


def test_foreign_byte_order_becomes_little_endian():
    assert Box((1,), ">f4").dtype == np.dtype("<f4")
    assert Discrete(2, dtype=">i2").dtype == np.dtype("<i2")


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: Box((2,), np.float32, np.nan, 1), "Box.low"),
        (lambda: Box((2,), np.float32, 2, 1), "Box.low"),
        (lambda: Box((2,), np.uint8, -1, 1), "Box.low"),
        (lambda: Box((2,), np.uint8, 0, 256), "Box.high"),
        (lambda: Box((2,), np.uint8, 0, 1.5), "Box.high"),
        (lambda: Box((2,), np.uint8, np.inf, 1), "Box.low"),
        (lambda: Box((2,), np.float16, 0, 1e6), "Box.high"),
        (lambda: Box((2,), np.float32, [0, 0, 0], 1), "Box.low"),
        (lambda: Box((2,), np.float32, "low", 1), "Box.low"),
        (lambda: Box((2,), np.complex64), "Box.dtype"),
        (lambda: Box((2,), np.longdouble), "Box.dtype"),
        (lambda: Box((2,), "no dtype"), "Box.dtype"),
        (lambda: Box((-1,), np.float32), "Box.shape"),
        (lambda: Box(("a",), np.float32), "Box.shape"),
        (lambda: Discrete(0), "Discrete.n"),
        (lambda: Discrete(2, 127, np.int8), "Discrete"),
        (lambda: Discrete(2, dtype=np.float32), "Discrete.dtype"),
        (lambda: MultiDiscrete([2, 0]), "MultiDiscrete.nvec"),
        (lambda: MultiDiscrete([2.5]), "MultiDiscrete.nvec"),
        (lambda: MultiDiscrete([2, 2], [0]), "MultiDiscrete.start"),
        (lambda: MultiDiscrete([2], [2**63 - 1]), "MultiDiscrete"),
        (lambda: MultiBinary((-2,)), "MultiBinary.shape"),
        (lambda: Text(3, 2), "Text"),
        (lambda: Text(-1, 2), "Text"),
        (lambda: Text(0, 2, ["ab"]), "Text.charset"),
        (lambda: Dict([("a", BOX), ("a", BOX)]), "Dict"),
        (lambda: Dict({1: BOX}), "Dict"),
        (lambda: Dict({"a": "no space"}), "Dict['a']"),
        (lambda: Tuple(["no space"]), "Tuple[0]"),
        (lambda: OneOf([]), "OneOf"),
        (lambda: Sequence(None), "Sequence.space"),
        (lambda: Graph(BOX, "no space"), "Graph.edge_space"),
    ],
)
def test_what_makes_no_sense_is_refused_by_field(make, path):
    with pytest.raises(InvalidValue) as caught:
        make()
    assert caught.value.path == path


def test_odd_but_valid_spaces_are_possible():
    space = Dict([("", Box((), np.float32)), (" ", Box((0, 3), np.uint8)), ("é/.'\"", Text(0, 0))])
    assert [spec.path for spec in space.codec.leaf_specs] == ["['']", "[' ']", "['é/.\\'\"']"]
    assert Dict([]).codec.encode({}) == []
    assert Dict([]).codec.decode([]) == {}
    assert Tuple([]).codec.decode(Tuple([]).codec.encode(())) == ()


def test_size_limits_hold_when_a_space_is_made():
    assert Box((1,) * SIZE_LIMITS.dims).shape
    assert nested(SIZE_LIMITS.nesting).depth == SIZE_LIMITS.nesting
    assert Dict({"k" * SIZE_LIMITS.key_bytes: BOX})
    for make in (
        lambda: Box((1,) * (SIZE_LIMITS.dims + 1)),
        lambda: nested(SIZE_LIMITS.nesting + 1),
        lambda: Dict({"é" * SIZE_LIMITS.key_bytes: BOX}),
        lambda: Tuple([BOX] * (SIZE_LIMITS.keys + 1)),
        lambda: Dict({str(i): BOX for i in range(SIZE_LIMITS.keys + 1)}),
    ):
        with pytest.raises(InvalidValue, match="at most"):
            make()


def test_children_and_items_are_reached_by_name_and_position():
    space = Dict([("z", Tuple([BOX, Discrete(2)])), ("a", OneOf([Discrete(3)]))])
    assert space["z"][1] == Discrete(2)
    assert space["a"][0] == Discrete(3)
    with pytest.raises(KeyError):
        space["b"]
    assert space.children == (space["z"], space["a"])
    assert Graph(BOX, Discrete(2)).children == (BOX, Discrete(2))
    assert Graph(BOX).children == (BOX,)
    assert space.depth == 3


def test_leaf_specs_say_what_the_wire_needs():
    space = Dict(
        [
            ("b", Box((2, 3), np.float16)),
            ("t", Tuple([Discrete(3), Text(0, 5)])),
            ("m", MultiBinary(4)),
        ]
    )
    specs = space.codec.leaf_specs
    assert [(spec.path, spec.kind) for spec in specs] == [
        ("['b']", "box"),
        ("['t'][0]", "discrete"),
        ("['t'][1]", "text"),
        ("['m']", "multi_binary"),
    ]
    assert [spec.dtype.str for spec in specs] == ["<f2", "<i8", "|u1", "|i1"]
    assert [spec.row_bytes for spec in specs] == [12, 8, None, 4]
    assert space.codec.row_bytes is None
    assert Tuple([Discrete(3), MultiBinary(4)]).codec.row_bytes == 12
