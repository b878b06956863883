"""Infos on the wire: lossless for what `carry` lets through, bounded for what a peer sends."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import json
import struct
import sys

import numpy as np
import pytest

from rollmesh.errors import WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.spaces.metadata import carry
from rollmesh.wire.metadata import decode_map, encode_map, map_from_text, map_to_text
from tests.unit.frame_toys import same


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Bits(enum.Flag):
    A = 1
    B = 2


Point = collections.namedtuple("Point", ["x", "y"])  # noqa: PYI024 - what users write
STRUCTURED = np.dtype([("a", "<f8", (2,)), ("b", "U3"), ("c", "?")])
VALUES = {
    "none": None,
    "true": True,
    "int": -7,
    "edge": 2**63 - 1,
    "big": 2**63,
    "huge": -(2**200),
    "float": 0.1,
    "minus_zero": -0.0,
    "inf": float("-inf"),
    "nan": float("nan"),
    "complex": 1 - 2j,
    "str": "häß 🙂",
    "surrogate": "\udcff",
    "empty": "",
    "bytes": b"\0\xff",
    "ellipsis": ...,
    "list": [1, [2, "x"], []],
    "tuple": (1, (2,), ()),
    "set": {1, "a", (2, 3)},
    "frozenset": frozenset([frozenset([1])]),
    "dict": {0: 1, ("a", 1): 2, None: 3, 1.5: {}, b"k": [], np.int64(3): 4, True and "t": 5},
    "datetime": dt.datetime(2024, 2, 29, 1, 2, 3, 4, fold=1),  # noqa: DTZ001 - a naive one, too
    "utc": dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc),
    "zoned": dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-3), "here")),
    "date": dt.date(1, 1, 1),
    "time": dt.time(23, 59, 59, 999999),
    "delta": dt.timedelta(-5, 3, 2),
    "zone": dt.timezone(dt.timedelta(minutes=30)),
    "enum": Colour.BLUE,
    "int_enum": Level.LOW,
    "flags": Bits.A | Bits.B,
    "named": Point([1], {"y": 2}),
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "zero_d": np.array(3),
    "no_rows": np.zeros((0, 3), np.float32),
    "bools": np.array([True, False]),
    "texts": np.array(["ab", "ç"]),
    "chars": np.array([b"x", b"yz"]),
    "dates": np.array(["2024-01-01", "NaT"], "datetime64[ns]"),
    "structured": np.zeros(2, STRUCTURED),
    "row": np.zeros(2, STRUCTURED)[0],
    "objects": np.array([1, "a", None, (1, [2])], dtype=object),
    "big_endian": np.arange(3, dtype=">i4"),
    "f4": np.float32(0.5),
    "f8": np.float64(0.1),
    "bool_": np.bool_(True),
    "u8": np.uint64(2**64 - 1),
    "longdouble": np.longdouble(1) / 3,
    "clongdouble": np.clongdouble(1j) / 3,
    "str_": np.str_("x"),
    "bytes_": np.bytes_(b"x"),
    "datetime64": np.datetime64("2024-01-01T00:00:01"),
}


def loud(path, detail):
    raise AssertionError(f"{path}: {detail}")


@pytest.mark.parametrize("name", VALUES)
def test_a_plain_value_comes_back_equal_and_of_its_type(name):
    info = carry({name: VALUES[name]}, loud)
    assert same(decode_map(encode_map(info, loud)), info)


def test_all_at_once_and_nested():
    info = {"all": carry(VALUES, loud), "again": [carry(VALUES, loud)]}
    assert same(decode_map(encode_map(info, loud)), info)


def test_masked_arrays_keep_their_mask():
    array = np.ma.MaskedArray([1.0, 2.0, 3.0], mask=[0, 1, 0])
    back = decode_map(encode_map({"m": array}, loud))["m"]
    assert isinstance(back, np.ma.MaskedArray)
    assert back.mask.tolist() == [False, True, False]
    assert back.compressed().tolist() == [1.0, 3.0]


def test_an_empty_map_takes_no_bytes():
    assert encode_map({}) == b""
    assert decode_map(b"") == {}


def test_arrays_are_the_receivers_own_and_writable():
    encoded = encode_map({"a": np.zeros(3), "s": np.zeros(2, STRUCTURED)[0]})
    first, second = decode_map(encoded), decode_map(encoded)
    first["a"][0] = 1
    first["s"]["a"][0] = 1
    assert second["a"][0] == 0
    assert second["s"]["a"][0] == 0


def test_a_class_that_is_not_loaded_becomes_its_plain_value(monkeypatch):
    encoded = encode_map({"e": Colour.BLUE, "p": Point(1, 2), "f": Bits.A})
    monkeypatch.delitem(sys.modules, __name__)
    assert decode_map(encoded) == {"e": "blue", "p": (1, 2), "f": 1}
    assert type(decode_map(encoded)["p"]) is tuple


def test_nothing_is_imported_or_called_on_a_peers_word():
    for qualname in ("system", "path.join", "environ"):
        encoded = encode_map({"e": Colour.BLUE})
        module = __name__.encode()
        old = struct.pack("<cI", b"s", len(module)) + module
        new = struct.pack("<cI", b"s", 2) + b"os"
        old += struct.pack("<cI", b"s", 6) + b"Colour"
        new += struct.pack("<cI", b"s", len(qualname)) + qualname.encode()
        assert old in encoded
        assert decode_map(encoded.replace(old, new)) == {"e": "blue"}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (lambda: 0, "has no form"),
        ("x" * (SIZE_LIMITS.text_bytes + 1), "a text of"),
        (1 << (8 * SIZE_LIMITS.text_bytes + 8), "an integer of"),
        (dict.fromkeys(range(SIZE_LIMITS.keys + 1)), "keys"),
        (set(range(SIZE_LIMITS.keys + 1)), "a set of more"),
        (np.zeros((1,) * (SIZE_LIMITS.dims + 1)), "dimensions"),
        (np.array([object()]), "has no form"),
    ],
    ids=["foreign", "text", "integer", "keys", "set", "dims", "object_array"],
)
def test_what_cannot_be_sent_becomes_its_repr_and_is_reported(value, why):
    seen = []
    info = {"before": 1, "odd": value, "after": [2]}
    back = decode_map(encode_map(info, lambda path, detail: seen.append((path, detail))))
    assert (back["before"], back["after"]) == (1, [2])
    assert isinstance(back["odd"], (str, np.ndarray))
    assert seen[0][0].startswith("info['odd']")
    assert why in seen[0][1]


def test_what_is_at_a_limit_is_sent():
    deep = 1
    for _ in range(SIZE_LIMITS.nesting - 1):
        deep = [deep]
    info = {
        "x" * SIZE_LIMITS.key_bytes: "y" * SIZE_LIMITS.text_bytes,
        "deep": deep,
        "keys": dict.fromkeys(range(SIZE_LIMITS.keys)),
        "dims": np.zeros((1,) * SIZE_LIMITS.dims),
    }
    assert same(decode_map(encode_map(info, loud)), info)


def test_what_is_nested_too_deep_is_cut():
    deep = 1
    for _ in range(SIZE_LIMITS.nesting * 1000):
        deep = [deep]
    seen = []
    encode_map({"deep": deep}, lambda path, detail: seen.append(detail))
    assert "nested deeper than 16" in seen[0]


def test_a_key_that_is_too_long_is_left_out_with_its_value():
    seen = []
    long = "k" * (SIZE_LIMITS.key_bytes + 1)
    encoded = encode_map({"a": 1, long: 2}, lambda path, detail: seen.append(detail))
    assert decode_map(encoded) == {"a": 1}
    assert "left out" in seen[0]


def test_a_map_with_too_many_keys_keeps_the_first():
    seen = []
    many = {str(k): k for k in range(SIZE_LIMITS.keys + 5)}
    back = decode_map(encode_map(many, lambda path, detail: seen.append(detail)))
    assert list(back) == list(many)[: SIZE_LIMITS.keys]
    assert len(seen) == 1


def _map_of(*entries):
    return struct.pack("<cI", b"m", len(entries)) + b"".join(entries)


def _text(text):
    return struct.pack("<cI", b"s", len(text)) + text


KEY = _text(b"k")
ANY_SIZE = 2**32 - 1


@pytest.mark.parametrize(
    "encoded",
    [
        b"x",
        b"l\0\0\0\0",
        b"m",
        struct.pack("<cI", b"m", ANY_SIZE),
        struct.pack("<cI", b"m", SIZE_LIMITS.keys + 1) + bytes(10_000),
        _map_of(KEY + b"?"),
        _map_of(KEY + b"N") + b"N",
        _map_of(KEY + struct.pack("<cI", b"s", ANY_SIZE)),
        _map_of(KEY + struct.pack("<cI", b"b", ANY_SIZE)),
        _map_of(KEY + struct.pack("<cI", b"I", ANY_SIZE)),
        _map_of(KEY + struct.pack("<cI", b"l", ANY_SIZE)),
        _map_of(KEY + struct.pack("<cI", b"e", ANY_SIZE)),
        _map_of(_text(b"k" * (SIZE_LIMITS.key_bytes + 1)) + b"N"),
        _map_of(_text(b"\xff") + b"N"),
        _map_of(b"l\0\0\0\0" + b"N"),
        _map_of(KEY + b"e" + struct.pack("<I", 1) + b"l\0\0\0\0"),
        _map_of(KEY + b"n1\x03<f8" + b"\x01" + struct.pack("<Q", 2**62)),
        _map_of(KEY + b"n1\x03<f8" + bytes([SIZE_LIMITS.dims + 1]) + bytes(8 * 9)),
        _map_of(KEY + b"n1\x02|O" + b"\0"),
        _map_of(KEY + b"n1\x0c<U999999999\0" + b"\0"),
        _map_of(KEY + b"g1\x03|b1\x02"),
        _map_of(KEY + b"n1\x03<U1\0" + struct.pack("<I", 0x110000)),
        _map_of(KEY + b"O\x01" + struct.pack("<Q", 2**40)),
        _map_of(KEY + b"O\x02" + struct.pack("<QQ", 0, 2**63)),
        _map_of(KEY + b"M" + b"N"),
        _map_of(KEY + b"D" + bytes(20) + b"N"),
        _map_of(KEY + struct.pack("<cI", b"a", 0)),
        _map_of(KEY + b"zh" + struct.pack("<iII", 2, 0, 0) + _text(b"")),
        _map_of(KEY + b"n3" * 100),
        _map_of(KEY + b"g2" + struct.pack("<II", 8, 1) + _text(b"a") + b"\xff\xff\xff\x7f1\x03<f8"),
        _map_of(KEY + b"n1\x03|V0\x01" + struct.pack("<Q", 2**27)),
        _map_of(KEY + b"n1\x03|V0\x02" + struct.pack("<QQ", 2**20, 2**20)),
    ],
)
def test_p12_odd_bytes_are_refused_with_the_one_error(encoded):
    with pytest.raises(WireError, match="metadata"):
        decode_map(encoded)


@pytest.mark.parametrize("depth", [SIZE_LIMITS.nesting + 1, 100_000])
def test_p12_nesting_is_bounded(depth):
    one = struct.pack("<cI", b"l", 1)
    with pytest.raises(WireError, match=r"nested|announced"):
        decode_map(_map_of(KEY + one * depth + b"N"))


@pytest.mark.parametrize("values", [{}, {"a": (1, None), "b": np.float32(2)}])
def test_a_map_comes_back_from_text_that_json_can_hold(values):
    text = map_to_text(values)
    assert json.loads(json.dumps(text)) == text
    assert text.isascii()
    again = map_from_text(text)
    assert again == values
    assert list(map(type, again.values())) == list(map(type, values.values()))


def test_p12_every_cut_is_refused():
    encoded = encode_map(carry(VALUES, loud))
    for size in range(1, len(encoded)):
        with pytest.raises(WireError):
            decode_map(encoded[:size])
