"""Tests of `rollmesh.wire.proto_spaces`."""

from __future__ import annotations

import string

import numpy as np
import pytest

from rollmesh.errors import WireError
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
from rollmesh.wire._gen import rlmesh_spaces_v1_pb2 as pb
from rollmesh.wire.dialect import FOREIGN, ROLLMESH
from rollmesh.wire.proto_spaces import decode_space, encode_space

PLAIN = [
    Box((3,), np.float32),
    Box((3,), np.float64, -1, 1),
    Box((2,), np.float16, [0, -2], [np.inf, 2]),
    Box((2, 2, 3), np.uint8, 0, 255),
    Box((2,), np.uint8, 0, 100),
    Box((2,), np.int64),
    Box((2,), np.uint64, 0, 2**64 - 1),
    Box((3,), bool),
    Discrete(5, -2),
    Discrete(3, 250, np.uint8),
    MultiBinary((2, 2)),
    MultiDiscrete([[3, 4], [5, 6]]),
    MultiDiscrete([3], dtype=np.uint8),
    Text(1, 20),
    Text(1, 5, "abü"),
    Dict([("z", Discrete(2)), ("a", Box((1,)))]),
    Dict([]),
    Tuple([Discrete(3), Tuple([])]),
]
OURS_ONLY = [
    Box((), np.float32, -1, 1),
    Box((0, 3), np.float32, -1, 1),
    Box((2, 0), np.int8),
    MultiBinary(()),
    MultiBinary((2, 0)),
    MultiDiscrete(3),
    MultiDiscrete([3, 4], [1, -1]),
    Sequence(Discrete(2), stack=True),
    Sequence(Text(0, 3)),
    Graph(Box((2,)), None),
    Graph(Discrete(3), Box((1,))),
    OneOf([Discrete(2), Box((2,))]),
    Dict([("", Discrete(2))]),
]


@pytest.mark.parametrize("space", PLAIN, ids=repr)
def test_a_plain_space_survives_towards_anybody(space):
    for dialect in (FOREIGN, ROLLMESH):
        data = encode_space(space, dialect).SerializeToString()
        assert decode_space(pb.SpaceSpec.FromString(data)) == space


@pytest.mark.parametrize("space", OURS_ONLY, ids=repr)
def test_a_space_of_ours_survives_between_rollmesh_ends(space):
    data = encode_space(space, ROLLMESH).SerializeToString()
    assert decode_space(pb.SpaceSpec.FromString(data)) == space


@pytest.mark.parametrize("space", OURS_ONLY, ids=repr)
def test_a_space_of_ours_is_refused_towards_a_released_peer_with_its_place(space):
    outer = Dict([("arm", Tuple([space]))])
    with pytest.raises(WireError, match=r"space\['arm'\]\[0\].*cannot be sent to this peer"):
        encode_space(outer, FOREIGN)


def test_a_default_charset_is_left_out_towards_a_released_peer_only():
    default = Text(1, 9, string.ascii_letters + string.digits)
    assert encode_space(default, FOREIGN).text.charset == ""
    assert decode_space(encode_space(default, ROLLMESH)) == default


def test_an_empty_text_is_allowed_between_rollmesh_ends_and_sent_as_one_character_elsewhere():
    assert encode_space(Text(0, 0), FOREIGN).text.min_length == 1
    assert encode_space(Text(0, 0), FOREIGN).text.max_length == 1
    for space in (Text(0, 5), Text(0, 0, ""), Text(0, 3, "")):
        assert decode_space(encode_space(space, ROLLMESH)) == space


def test_uniform_bounds_are_one_number_and_unbounded_floats_none():
    assert encode_space(Box((1000,), np.float32, -1, 1), FOREIGN).ByteSize() < 40
    assert encode_space(Box((1000,)), FOREIGN).box.unbounded
    image = encode_space(Box((8, 8), np.uint8), FOREIGN).box.uniform
    assert (image.low, image.high) == (b"\0", b"\xff")
    assert len(encode_space(Box((2,), np.float32, [0, 1], 2), FOREIGN).box.elementwise.low) == 8


def test_a_number_beyond_64_bits_is_refused():
    with pytest.raises(WireError, match="does not fit"):
        encode_space(Discrete(2**63, 0, np.uint64), ROLLMESH)


def spec(**fields):
    return pb.SpaceSpec(**fields)


F32, U8, I64 = pb.DATA_TYPE_FLOAT32, pb.DATA_TYPE_UINT8, pb.DATA_TYPE_INT64
UNIFORM = pb.UniformBounds(low=b"\0" * 4, high=b"\0\0\x80\x3f")
DISCRETE = spec(dtype=I64, discrete=pb.DiscreteSpec(n=2))
REFUSED = {
    "no kind": (spec(dtype=U8), "no kind"),
    "unknown dtype": (spec(shape=[2], dtype=99, box=pb.BoxSpec(unbounded=True)), "number 99"),
    "no dtype": (spec(shape=[2], box=pb.BoxSpec(unbounded=True)), "number 0"),
    "no bounds": (spec(shape=[2], dtype=F32, box=pb.BoxSpec()), "without bounds"),
    "negative size": (spec(shape=[-1], dtype=F32, box=pb.BoxSpec(unbounded=True)), "0 or more"),
    "short bounds": (
        spec(shape=[2], dtype=F32, box=pb.BoxSpec(uniform=pb.UniformBounds(low=b"\0", high=b""))),
        "expected 4 bytes",
    ),
    "long bounds": (
        spec(
            shape=[2],
            dtype=U8,
            box=pb.BoxSpec(elementwise=pb.ElementwiseBounds(low=b"\0" * 3, high=b"\0" * 2)),
        ),
        "expected 2 bytes",
    ),
    "low above high": (
        spec(shape=[2], dtype=U8, box=pb.BoxSpec(uniform=pb.UniformBounds(low=b"\5", high=b"\1"))),
        "low <= high",
    ),
    "NaN bound": (
        spec(
            shape=[2],
            dtype=F32,
            box=pb.BoxSpec(uniform=pb.UniformBounds(low=b"\0\0\xc0\x7f", high=b"\0" * 4)),
        ),
        "NaN",
    ),
    "bool bound of 2": (
        spec(shape=[2], dtype=1, box=pb.BoxSpec(uniform=pb.UniformBounds(low=b"\0", high=b"\2"))),
        "bool bytes",
    ),
    "float Discrete": (spec(dtype=F32, discrete=pb.DiscreteSpec(n=3)), "signed, unsigned"),
    "Discrete with a shape": (spec(shape=[1], dtype=I64, discrete=pb.DiscreteSpec(n=3)), "shape"),
    "Discrete of nothing": (spec(dtype=I64, discrete=pb.DiscreteSpec(n=0)), "positive"),
    "Discrete beyond its dtype": (spec(dtype=U8, discrete=pb.DiscreteSpec(n=300)), "do not fit"),
    "float MultiBinary": (
        spec(shape=[2], dtype=F32, multi_binary=pb.MultiBinarySpec()),
        "bytes for a MultiBinary",
    ),
    "too few counts": (
        spec(shape=[3], dtype=I64, multi_discrete=pb.MultiDiscreteSpec(nvec=[3])),
        "expected 3 counts",
    ),
    "too few starts": (
        spec(shape=[2], dtype=I64, multi_discrete=pb.MultiDiscreteSpec(nvec=[3, 3], start=[1])),
        "1 starts",
    ),
    "float Text": (spec(dtype=F32, text=pb.TextSpec(min_length=1, max_length=5)), "a Text has"),
    "Text of negative length": (
        spec(dtype=U8, text=pb.TextSpec(min_length=-1, max_length=5)),
        "min_length",
    ),
    "Text with odd lengths": (
        spec(dtype=U8, text=pb.TextSpec(min_length=9, max_length=5)),
        "min_length",
    ),
    "parity": (spec(dict=pb.DictSpec(keys=["a"], spaces=[DISCRETE] * 2)), "1 keys for 2"),
    "key twice": (spec(dict=pb.DictSpec(keys=["a", "a"], spaces=[DISCRETE] * 2)), "once"),
    "container with a dtype": (spec(dtype=U8, tuple=pb.TupleSpec()), "neither dtype nor shape"),
    "OneOf of nothing": (spec(one_of=pb.OneOfSpec()), "at least one"),
    "Graph without nodes": (spec(graph=pb.GraphSpec()), "no kind"),
    "Sequence of nothing": (spec(sequence=pb.SequenceSpec()), "no kind"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_spec_that_is_not_valid_is_refused_with_its_place(name):
    broken, words = REFUSED[name]
    outer = spec(dict=pb.DictSpec(keys=["ok", "bad"], spaces=[DISCRETE, broken]))
    with pytest.raises(WireError, match=words) as error:
        decode_space(outer, "observation_space")
    assert "observation_space['bad']" in str(error.value)


def test_multi_binary_may_be_any_byte():
    for dtype in (pb.DATA_TYPE_BOOL, pb.DATA_TYPE_UINT8, pb.DATA_TYPE_INT8):
        given = spec(shape=[2], dtype=dtype, multi_binary=pb.MultiBinarySpec())
        assert decode_space(given) == MultiBinary((2,))


def test_unbounded_of_any_dtype_is_its_whole_range_also_where_it_says_false():
    for flag in (True, False):
        given = spec(shape=[2], dtype=U8, box=pb.BoxSpec(unbounded=flag))
        assert decode_space(given) == Box((2,), np.uint8)


def nested(levels):
    given = DISCRETE
    for _ in range(levels - 1):
        given = spec(tuple=pb.TupleSpec(spaces=[given]))
    return given


def tuple_of(count):
    return spec(tuple=pb.TupleSpec(spaces=[DISCRETE] * count))


def box_of(shape, dtype=U8):
    return spec(shape=shape, dtype=dtype, box=pb.BoxSpec(unbounded=True))


LIMITS = {
    "dims": (lambda n: box_of([1] * n), SIZE_LIMITS.dims),
    "nesting": (nested, SIZE_LIMITS.nesting),
    "keys": (tuple_of, SIZE_LIMITS.keys),
    "key_bytes": (
        lambda n: spec(dict=pb.DictSpec(keys=["k" * n], spaces=[DISCRETE])),
        SIZE_LIMITS.key_bytes,
    ),
    "message_bytes": (lambda n: box_of([n]), SIZE_LIMITS.message_bytes),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_hold_at_one_over_and_a_thousand_times_over(name):
    make, limit = LIMITS[name]
    decode_space(make(limit))
    for count in (limit + 1, 3 * limit if name == "nesting" else 1000 * limit):
        with pytest.raises(WireError):
            decode_space(make(count))


def test_a_huge_shape_is_refused_before_anything_is_made_of_it():
    with pytest.raises(WireError, match="more bytes"):
        decode_space(spec(shape=[2**62] * 8, dtype=F32, box=pb.BoxSpec(uniform=UNIFORM)))
