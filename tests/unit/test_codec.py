"""The codec: any value of a space to leaves and back; rows and buffers without decoding."""

from __future__ import annotations

import struct
import sys
from collections import OrderedDict, UserDict
from types import MappingProxyType

import numpy as np
import pytest
from gymnasium.spaces import GraphInstance

from rollmesh.errors import InvalidValue
from rollmesh.limits import SIZE_LIMITS
from rollmesh.spaces import nested
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

F4 = np.float32


def once(space, value):
    return space.codec.decode(space.codec.encode(value))


# ---------------------------------------------------------------------------- one value


@pytest.mark.parametrize("shape", [(4,), (2000,)])
def test_c22_a_value_is_never_shared_with_the_env(shape):
    space, source = Box(shape, F4), np.ones(shape, F4)
    for leaves in (
        space.codec.encode(source),
        space.codec.encode_many([source, source]),
        space.codec.encode_stacked(np.ones((2, *shape), F4), 2),
    ):
        source[:] = 7
        assert space.codec.decode(leaves).max() == 1
        view, copy = space.codec.decode(leaves), space.codec.decode(leaves, copy=True)
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 5
        copy[0] = 5
        assert space.codec.decode(leaves).max() == 1
        source[:] = 1
    frozen = np.full(shape, 255.0, F4)
    frozen.flags.writeable = False
    decoded = space.codec.decode(space.codec.encode(frozen), copy=True)
    decoded /= 255.0
    assert frozen.min() == 255.0


def test_a_lending_codec_shares_large_arrays_read_only_and_copies_the_rest():
    space = Dict({"large": Box((300, 300), F4, -1, 1), "small": Box((3,), F4, -1, 1)})
    value = {"large": np.zeros((300, 300), F4), "small": np.zeros(3, F4)}
    leaves = space.codec.lending.encode(value)
    assert [leaf.flags.writeable for leaf in leaves] == [False, False]
    assert np.shares_memory(leaves[0], value["large"])
    assert not np.shares_memory(leaves[1], value["small"])
    assert value["large"].flags.writeable
    batch = space.codec.lending.encode_stacked(
        {"large": np.ones((2, 300, 300), F4), "small": np.ones((2, 3), F4)}, 2
    )
    space.codec.verify(batch, 2)
    turned = value["large"].T[::-1]
    assert not np.shares_memory(space.codec.lending.encode({**value, "large": turned})[0], turned)
    assert not np.shares_memory(space.codec.encode(value)[0], value["large"])


def test_c27_unusual_dtypes_keep_every_bit():
    values = {
        "f16": np.array([0.1, -65504, 6e-8], np.float16),
        "i8": np.array([-128, 127], np.int8),
        "u16": np.array([65535], np.uint16),
        "u64": np.array([2**64 - 1, 2**63], np.uint64),
        "b": np.array([True, False]),
        "mb": np.array([1, 0, 1], np.int8),
        "s": np.array(2.5, F4),
    }
    space = Dict(
        {
            **{k: Box(v.shape, v.dtype) for k, v in values.items() if k != "mb"},
            "mb": MultiBinary(3),
        }
    )
    decoded = once(space, values)
    for key, value in values.items():
        assert decoded[key].dtype == value.dtype
        assert decoded[key].shape == value.shape
        assert decoded[key].tobytes() == value.tobytes()
    assert once(space, {**values, "u64": [2**64 - 1, 1]})["u64"].tolist() == [2**64 - 1, 1]


def test_nan_payloads_and_signs_survive():
    value = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 0x00000001], np.uint32).view(F4)
    assert once(Box((4,), F4), value).tobytes() == value.tobytes()


def test_c28_dict_values_are_matched_by_name_and_decoded_in_declared_order():
    names = ["z", "a.b", "a", "c/d", "ü", " ", ""]
    space = Dict([(name, Box((1,), F4)) for name in names])
    value = {name: [float(i)] for i, name in enumerate(names)}
    for turn in range(len(names)):
        order = names[turn:] + names[:turn]
        for kind in (dict, OrderedDict, UserDict, lambda d: MappingProxyType(dict(d))):
            decoded = once(space, kind((name, value[name]) for name in order))
            assert list(decoded) == names
            assert [decoded[name][0] for name in names] == list(range(len(names)))


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint16])
def test_c29_discrete_values_arrive_as_scalars_of_the_declared_dtype(dtype):
    start = 10 if dtype is np.uint16 else -2
    space = Discrete(5, start, dtype)
    for number in range(start, start + 5):
        for value in (number, np.int64(number), np.array(number), np.array([number])):
            for _ in range(2):
                decoded = once(space, value)
                assert type(decoded) is dtype
                assert decoded == number


def test_c39_what_counts_as_a_discrete_value():
    space = Discrete(2)
    for value in (
        *(1, np.int64(1), np.int32(1), np.uint8(1), np.array(1), np.array([1]), np.array([[1]])),
        *(True, np.bool_(True), 1.0, np.float32(1), np.array([1.0]), [1]),
    ):
        decoded = space.codec.decode(space.codec.encode(value))
        assert type(decoded) is np.int64
        assert decoded == 1
        batch = space.codec.encode_many([value, 0])
        assert space.codec.decode_stacked(batch, 2).tolist() == [1, 0]
    for value in (1.5, "1", None, np.array([0, 1]), [], b"1", 1j, {}):
        with pytest.raises(InvalidValue) as caught:
            space.codec.encode(value)
        assert caught.value.path == "value"
    assert space.codec.decode_stacked(space.codec.encode_stacked([[1], [0]], 2), 2).shape == (2,)
    column = np.array([[1], [0]])
    assert space.codec.decode_stacked(space.codec.encode_stacked(column, 2), 2).tolist() == [1, 0]
    with pytest.raises(InvalidValue, match=r"expected shape \(2,\)"):
        space.codec.encode_stacked(np.zeros((2, 2)), 2)


def test_c30_multi_discrete_keeps_its_shape():
    space = MultiDiscrete([[2, 3], [4, 5]], [[0, 1], [-1, 2]])
    decoded = once(space, [[1, 3], [2, 6]])
    assert decoded.dtype == np.int64
    assert decoded.tolist() == [[1, 3], [2, 6]]


@pytest.mark.parametrize(
    ("space", "value", "says"),
    [
        (Box((2,), F4), None, "got None"),
        (Box((2,), F4), np.zeros(3), "expected shape (2,), got (3,)"),
        (Box((2,), F4), np.zeros((1, 2)), "drop the leading axis"),
        (Box((2, 2), F4), np.zeros(4), ".reshape((2, 2))"),
        (Box((2,), F4), 1.0, "got ()"),
        (Box((2,), F4), ["a", "b"], "expected numbers"),
        (Box((2,), F4), np.array([1j, 2j]), "expected numbers"),
        (Box((2,), F4), np.array([None, 1]), "expected numbers"),
        (Box((2,), F4), [[1], [1, 2]], "cannot read list"),
        (Box((2,), F4), {"a": 1}, "got a dict"),
        (Box((1,), F4), [10**400], "too large"),
        (Text(0, 5), None, "expected a str, got None"),
        (Text(0, 5), b"abc", "expected a str, got bytes"),
        (Dict({"a": Discrete(2)}), [1], "expected a mapping with keys ['a'], got list"),
        (Dict({"a": Discrete(2)}), {"b": 1}, "missing ['a']"),
        (Tuple([Discrete(2)]), {"a": 1}, "expected a tuple of 1, got dict"),
        (Tuple([Discrete(2)]), (1, 1), "expected a tuple of 1, got 2 values"),
        (Tuple([Discrete(2)]), np.array(1), "expected a tuple of 1, got ndarray"),
        (Sequence(Discrete(2)), 5, "expected a tuple of elements, got int"),
        (Sequence(Discrete(2)), "11", "expected a tuple of elements, got str"),
        (Sequence(Discrete(2), stack=True), 5, "expected a batch"),
        (OneOf([Discrete(2)]), 1, "expected a pair"),
        (OneOf([Discrete(2)]), (1, 1), "from 0 to 0, got 1"),
        (OneOf([Discrete(2)]), (0.5, 1), "expected an integer"),
        (Graph(Discrete(2)), 1, "expected a GraphInstance, got int"),
        (Graph(Discrete(2)), (None, None, None), "got None"),
        (Graph(Discrete(2)), ([0], [0], [[0, 0]]), "no edge space"),
        (Graph(Discrete(2), Discrete(2)), ([0], [0], None), "both set or both None"),
        (Graph(Discrete(2), Discrete(2)), ([0], [0], [[0]]), "expected shape (1, 2)"),
        (Graph(Discrete(2), Discrete(2)), ([0], [0], [[0.5, 0]]), "expected integers"),
    ],
)
def test_wrong_structure_is_one_clear_error(space, value, says):
    with pytest.raises(InvalidValue) as caught:
        space.codec.encode(value)
    assert says in str(caught.value)
    assert caught.value.path.startswith("value")


def test_errors_name_the_place_in_nested_values():
    inner = Dict({"x": Box((2,), F4)})
    space = Dict(
        {
            "wrist": Tuple([Discrete(2), Discrete(2), Box((2,), F4)]),
            "list": Sequence(inner),
            "choice": OneOf([Discrete(2), inner]),
            "graph": Graph(Box((2,), F4)),
        }
    )
    good = {
        "wrist": (0, 1, [0, 0]),
        "list": ({"x": [0, 0]},),
        "choice": (1, {"x": [0, 0]}),
        "graph": ([[0, 0]], None, None),
    }
    assert space.codec.encode(good)
    for key, bad, path in (
        ("wrist", (0, 1, [0]), "value['wrist'][2]"),
        ("list", ({"x": [0, 0]}, {"x": [0]}), "value['list'][1]['x']"),
        ("choice", (1, {"x": [0]}), "value['choice'][1]['x']"),
        ("graph", ([[0]], None, None), "value['graph'].nodes"),
    ):
        with pytest.raises(InvalidValue) as caught:
            space.codec.encode({**good, key: bad})
        assert caught.value.path == path
    with pytest.raises(InvalidValue, match=r"\(row 1\)") as caught:
        space.codec.encode_many([good, {**good, "wrist": (0, 1, [0])}])
    assert caught.value.path == "value['wrist'][2]"


def test_tuples_are_read_from_lists_and_arrays_too():
    space = Tuple([Discrete(2), Discrete(3)])
    for value in ((1, 2), [1, 2], np.array([1, 2])):
        assert once(space, value) == (1, 2)


def test_text_takes_every_character_and_every_kind_of_string():
    space = Text(0, 20)
    for text in ("", "héllo", "🙂\n\0", "lone \ud800 surrogate"):
        assert once(space, text) == text
    for value in (np.str_("abc"), np.array("abc"), np.array(["abc"]), np.array(["abc"], object)):
        decoded = once(space, value)
        assert type(decoded) is str
        assert decoded == "abc"
    with pytest.raises(InvalidValue, match=r"SIZE_LIMITS\.text_bytes"):
        space.codec.encode("x" * (SIZE_LIMITS.text_bytes + 1))


def test_text_is_laid_out_as_the_wire_says():
    leaf = Text(0, 20).codec.encode_many(["a", "", "üb"])[0]
    assert leaf == struct.pack("<QQQQ", 3, 1, 0, 3) + b"a\xc3\xbcb"


def test_c31_sequences_graphs_and_choices():
    box = Box((2,), F4, -1, 1)
    value = tuple(np.full(2, 0.5, F4) for _ in range(5))
    assert [item.tolist() for item in once(Sequence(box), value)] == [[0.5, 0.5]] * 5
    assert once(Sequence(box), ()) == ()
    stacked = once(Sequence(box, stack=True), np.full((3, 2), 0.25, F4))
    assert stacked.shape == (3, 2)
    assert once(Sequence(box, stack=True), np.zeros((0, 2), F4)).shape == (0, 2)
    nodes = np.zeros((3, 2), F4)
    links = np.array([[0, 1], [1, 2]], np.int32)
    graph = once(Graph(box, Discrete(3)), GraphInstance(nodes, np.array([0, 2]), links))
    assert type(graph) is GraphInstance
    assert graph.edges.tolist() == [0, 2]
    assert graph.edge_links.dtype == np.int32
    assert graph.edge_links.tolist() == links.tolist()
    bare = once(Graph(box, Discrete(3)), GraphInstance(nodes[:1], None, None))
    assert bare.nodes.shape == (1, 2)
    assert bare.edges is None
    assert bare.edge_links is None
    index, inner = once(OneOf((Discrete(4), box)), (0, 3))
    assert (type(index), type(inner), int(inner)) == (np.int64, np.int64, 3)


def test_graphs_decode_without_gymnasium(monkeypatch):
    monkeypatch.setattr(nested, "_graph_instance", [])
    monkeypatch.setitem(sys.modules, "gymnasium.spaces", None)
    graph = once(Graph(Discrete(2)), ([0, 1], None, None))
    assert type(graph) is nested.PlainGraph
    assert once(Graph(Discrete(2)), graph).nodes.tolist() == [0, 1]


def test_inner_arrays_are_aligned():
    space = Tuple([Text(0, 9), Sequence(Tuple([Box((3,), np.uint8), Box((1,), np.float64)]))])
    item = ([1, 2, 3], [0.5])
    leaves = space.codec.encode_many([("abc", (item,)), ("", (item, item))])
    for row in range(2):
        for inner in space.codec.decode(leaves, row)[1]:
            assert inner[1].flags.aligned


# ------------------------------------------------------------------------- whole batches


def test_stacked_values_must_have_the_rows_that_were_announced():
    space = Dict({"x": Box((2,), F4), "t": Text(0, 9)})
    good = {"x": np.zeros((2, 2), F4), "t": ("a", "b")}
    assert space.codec.encode_stacked(good, 2)
    for key, bad in (
        ("x", np.zeros((3, 2), F4)),
        ("x", np.zeros(2, F4)),
        ("t", ("a",)),
        ("t", "ab"),
        ("t", 5),
    ):
        with pytest.raises(InvalidValue):
            space.codec.encode_stacked({**good, key: bad}, 2)


def test_large_rows_are_stacked_like_small_ones():
    space = Box((64, 64), F4)
    rows = [np.full((64, 64), i, F4)[::-1] for i in range(3)]
    leaves = space.codec.encode_many(rows)
    space.codec.verify(leaves, 3)
    assert [space.codec.decode(leaves, row)[0, 0] for row in range(3)] == [0, 1, 2]


def test_single_rows_are_taken_and_put_without_a_copy():
    space = Tuple([Box((2,), F4), Text(0, 9)])
    leaves = space.codec.encode(([1, 2], "a"))
    assert all(a is b for a, b in zip(space.codec.take(leaves, (0,)), leaves, strict=True))
    other = space.codec.encode(([3, 4], "b"))
    assert space.codec.decode(space.codec.put(leaves, (0,), other))[1] == "b"
    many = space.codec.encode_many([([1, 2], "a"), ([3, 4], "b")])
    taken = space.codec.take(many, (1,))
    assert np.shares_memory(taken[0], many[0])
    with pytest.raises(IndexError):
        space.codec.decode(many, 2)


def test_rows_come_from_anywhere():
    space = Tuple([Box((2,), F4), Text(0, 9), Discrete(9)])
    first = space.codec.encode_many([([0, 0], "a", 0), ([1, 1], "b", 1)])
    second = space.codec.encode(([2, 2], "c", 2))
    batch = space.codec.gather([(second, 0), (first, 1), (first, 0), (first, 1)])
    assert [space.codec.decode(batch, row)[1:] for row in range(4)] == [
        ("c", 2),
        ("b", 1),
        ("a", 0),
        ("b", 1),
    ]
    assert not batch[0].flags.writeable
    assert space.codec.nbytes(batch, 4) == 4 * 16 + (8 + 4 * 8 + 4)
    assert Box((2,), F4).codec.nbytes([], 7) == 56
    space.codec.verify(space.codec.gather([]), 0)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda x, t, d: [x, t], "expected 3 leaves, got 2"),
        (lambda x, t, d: "xtd", "expected a list of leaves"),
        (lambda x, t, d: [b"", t, d], "expected an array float32 (2, 2), got bytes"),
        (lambda x, t, d: [x.astype(np.float64), t, d], "got float64"),
        (lambda x, t, d: [x[:1], t, d], "got float32 (1, 2)"),
        (lambda x, t, d: [np.asfortranarray(x), t, d], "not C-contiguous"),
        (lambda x, t, d: [x, d, d], "expected bytes, got ndarray"),
        (lambda x, t, d: [x, b"", d], "too few"),
        (lambda x, t, d: [x, t + b"x", d], "want 26 bytes, got 27"),
        (lambda x, t, d: [x, struct.pack("<Q", 1) + t[8:], d], "expected 2 rows, got 1"),
    ],
)
def test_verify_finds_leaves_that_do_not_belong(damage, says):
    space = Tuple([Box((2,), F4), Text(0, 9), Discrete(2)])
    leaves = space.codec.encode_many([([1, 2], "a", 0), ([3, 4], "b", 1)])
    space.codec.verify(leaves, 2)
    with pytest.raises(InvalidValue) as caught:
        space.codec.verify(damage(*leaves), 2)
    assert says in str(caught.value)


# ------------------------------------------------------------------------------- buffers


def test_buffers_are_views_both_ways():
    space = Box((2,), F4)
    leaves = space.codec.encode_many([[1, 2], [3, 4]])
    (buffer,) = space.codec.to_buffers(leaves)
    assert np.shares_memory(np.frombuffer(buffer, np.uint8), leaves[0])
    received = bytearray(buffer)
    (again,) = space.codec.from_buffers([received], 2)
    assert np.shares_memory(np.frombuffer(received, np.uint8), again)
    assert not again.flags.writeable
    assert again.tolist() == [[1, 2], [3, 4]]


def test_zero_size_leaves_have_rows_from_outside():
    space = Tuple([Box((0, 3), F4), Discrete(2)])
    leaves = space.codec.encode_many([(np.zeros((0, 3)), 1)] * 2)
    buffers = space.codec.to_buffers(leaves)
    assert bytes(buffers[0]) == b""
    assert space.codec.from_buffers(buffers, 2)[0].shape == (2, 0, 3)


@pytest.mark.parametrize(
    ("space", "buffers", "rows"),
    [
        (Discrete(2), [], 1),
        (Discrete(2), [bytes(8), bytes(8)], 1),
        (Discrete(2), [bytes(7)], 1),
        (Discrete(2), [bytes(16)], 1),
        (Discrete(2), [b""], -1),
        (Box((2,), bool), [b"\x01\x02"], 1),
        (Text(0, 9), [b""], 0),
        (Text(0, 9), [struct.pack("<QQ", 1, 2) + b"a"], 1),
        (Text(0, 9), [struct.pack("<QQ", 1, 2**63)], 1),
        (Text(0, 9), [struct.pack("<Q", 2**60)], 2**60),
        (Text(0, 9), [struct.pack("<QQ", 1, 1) + b"\xff"], 1),
        (Sequence(Discrete(2)), [struct.pack("<QQQ", 1, 8, 1)], 1),
        (Sequence(Discrete(2)), [struct.pack("<QQQ", 1, 8, 2**61)], 1),
        (Sequence(Box((0,), F4)), [struct.pack("<QQQ", 1, 8, 2**61)], 1),
        (Sequence(Discrete(2)), [struct.pack("<QQQQ", 1, 16, 0, 0)], 1),
        (Sequence(Text(0, 9)), [struct.pack("<QQQQQ", 1, 24, 1, 8, 0)], 1),
        (OneOf([Discrete(2)]), [struct.pack("<QQQQ", 1, 16, 1, 0)], 1),
        (Graph(Discrete(2)), [struct.pack("<QQQQ", 1, 16, 0, 0)], 1),
        (Graph(Discrete(2), Discrete(2)), [struct.pack("<QQQQQ", 1, 24, 0, 0, 99)], 1),
    ],
)
def test_buffers_from_outside_are_not_believed(space, buffers, rows):
    with pytest.raises(InvalidValue):
        space.codec.from_buffers(buffers, rows)


def test_a_message_has_a_largest_size():
    size = SIZE_LIMITS.message_bytes + 1
    huge = np.empty(size, np.uint8)  # never touched, so never really there
    with pytest.raises(InvalidValue, match="message_bytes"):
        Box((size,), np.uint8).codec.from_buffers([memoryview(huge)], 1)


def test_empty_elements_cannot_multiply_without_bound():
    space = Sequence(Box((0,), F4))
    assert len(once(space, [np.zeros(0, F4)] * 3)) == 3
    with pytest.raises(InvalidValue, match="allowed"):
        space.codec.encode([np.zeros(0, F4)] * (2**20 + 1))
