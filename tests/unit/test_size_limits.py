"""Every limit of `SIZE_LIMITS`, at the limit, one over, and a thousand times over.

Two kinds of tests: what is made or received whole is accepted at the limit and refused beyond it;
what only announces a size is refused before anything of that size is allocated.
"""

from __future__ import annotations

import socket
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, fields

import msgspec
import numpy as np
import pytest

from rollmesh.errors import ConnectionLost, InvalidValue, WireError
from rollmesh.limits import SIZE_LIMITS, SizeLimits
from rollmesh.ports import AutoresetMode
from rollmesh.spaces.space import Box, Dict, MultiBinary, Sequence, Space, Text, Tuple
from rollmesh.transport.dialing import dial, listen
from rollmesh.wire import contract as contracts
from rollmesh.wire._gen import rlmesh_spaces_v1_pb2 as pb
from rollmesh.wire.contract import decode_contract
from rollmesh.wire.frames import HEADER, HEADER_BYTES, MAGIC, VERSION, read_header
from rollmesh.wire.messages import Hello, Kind, Message, Probe
from rollmesh.wire.metadata import decode_map, encode_map
from rollmesh.wire.proto_metadata import decode_map as decode_proto_map
from rollmesh.wire.proto_spaces import decode_space
from rollmesh.wire.sections import encode_section

L = SIZE_LIMITS
REFUSALS = (InvalidValue, WireError)
BOX = Box((1,))
BYTE = encode_section(contracts._MultiBinary((1,)))


def sized(tag: bytes, size: int) -> bytes:
    """The start of a metadata value: its tag and a size."""
    return struct.pack("<cI", tag, min(size, 2**32 - 1))


def entry(value: bytes, key: bytes = b"k") -> bytes:
    """A metadata map of one entry."""
    return sized(b"m", 1) + sized(b"s", len(key)) + key + value


def header(*, kind: Kind = Kind.HELLO, rows: int = 0, payload: int = 0, section: int = 0) -> bytes:
    return HEADER.pack(MAGIC, VERSION, kind, 0, rows, 0, 0, 0, payload, section, 0, 1, 0)


def contract_of(space: bytes, num_envs: int = 1) -> bytes:
    raw, mode = msgspec.Raw(space), AutoresetMode.DISABLED.value
    return encode_section(contracts._Contract(b"x", num_envs, mode, None, raw, raw, b""))


# ------------------------------------------------------------------ what is made or comes whole


def nested_space(levels: int) -> Space:
    space: Space = BOX
    for _ in range(levels - 1):
        space = Sequence(space)
    return space


def nested_contract(levels: int) -> bytes:
    # from the inside out, each level a prefix of the same few bytes
    level = encode_section(contracts._Sequence(msgspec.Raw(b"\xc0"), False))
    head, tail = level[: level.index(b"\xc0")], level[level.index(b"\xc0") + 1 :]
    return contract_of(head * (levels - 1) + BYTE + tail * (levels - 1))


def nested_list(levels: int) -> bytes:
    return entry(sized(b"l", 1) * levels + b"N")


def nested_map(levels: int) -> bytes:
    # the outermost map is no level of its own
    return entry((sized(b"m", 1) + b"N") * (levels - 1) + sized(b"m", 0))


def nested_proto_list(levels: int) -> pb.MetaMap:
    source = pb.MetaMap()
    value = source.entries["k"]
    for _ in range(min(levels, 90)):  # protobuf itself takes no more
        value = value.list.items.add()
    value.integer = 1
    return source


def proto_box(shape: tuple[int, ...]) -> pb.SpaceSpec:
    spec = pb.SpaceSpec(shape=shape, dtype=pb.DATA_TYPE_UINT8)
    spec.box.unbounded = True
    return spec


def proto_tuple(count: int) -> pb.SpaceSpec:
    spec = pb.SpaceSpec()
    spec.tuple.spaces.extend([proto_box((1,))] * count)
    return spec


def proto_map(**entries: object) -> pb.MetaMap:
    source = pb.MetaMap()
    for key, value in entries.items():
        source.entries[key].text = value
    return source


def many_keys(count: int) -> bytes:
    keys = (sized(b"s", 8) + b"%08d" % number + b"N" for number in range(count))
    return sized(b"m", count) + b"".join(keys)


def text_leaf(size: int) -> list[bytes]:
    body = b"x" * size
    return [struct.pack("<QQ", 1, size) + body]


@dataclass(frozen=True)
class Whole:
    """Something of which the limit is accepted and more is not.

    Attributes:
        limit: The field of `SizeLimits`.
        what: What it is.
        attempt: Takes a size; raises where it is refused.
        most: The largest size worth trying, where a thousand times the limit cannot be built.
    """

    limit: str
    what: str
    attempt: Callable[[int], object]
    most: int | None = None


TEXT = Text(0, 2**40).codec
WHOLE = [
    Whole("dims", "a space", lambda n: Box((1,) * n)),
    Whole("dims", "a space from protobuf", lambda n: decode_space(proto_box((1,) * n))),
    Whole(
        "dims",
        "a space in a contract",
        lambda n: decode_contract(
            contract_of(encode_section(contracts._Box((1,) * n, "uint8", b"\0", b"\1")))
        ),
    ),
    Whole(
        "dims",
        "an array in an info",
        lambda n: decode_map(
            entry(b"n1\x03<f8" + bytes([n]) + struct.pack(f"<{n}Q", *[1] * n) + bytes(8))
        ),
        most=255,
    ),
    Whole("nesting", "a space", nested_space),
    Whole("nesting", "a contract", lambda n: decode_contract(nested_contract(n))),
    Whole("nesting", "a list in an info", lambda n: decode_map(nested_list(n))),
    Whole("nesting", "a map in an info", lambda n: decode_map(nested_map(n))),
    Whole("nesting", "protobuf metadata", lambda n: decode_proto_map(nested_proto_list(n))),
    Whole("keys", "a Tuple", lambda n: Tuple([BOX] * n)),
    Whole("keys", "a Dict", lambda n: Dict([(str(k), BOX) for k in range(n)])),
    Whole("keys", "a space from protobuf", lambda n: decode_space(proto_tuple(n)), most=50_000),
    Whole(
        "keys",
        "a contract",
        lambda n: decode_contract(
            contract_of(encode_section(contracts._Tuple((msgspec.Raw(BYTE),) * n)))
        ),
    ),
    Whole("keys", "an info", lambda n: decode_map(many_keys(n))),
    Whole(
        "keys",
        "protobuf metadata",
        lambda n: decode_proto_map(proto_map(**{str(k): "v" for k in range(n)})),
        most=50_000,
    ),
    Whole("key_bytes", "a Dict", lambda n: Dict({"k" * n: BOX})),
    Whole("key_bytes", "a Dict, in bytes", lambda n: Dict({"é" * (n // 2) + "k" * (n % 2): BOX})),
    Whole("key_bytes", "an info", lambda n: decode_map(entry(b"N", b"k" * n))),
    Whole("key_bytes", "protobuf metadata", lambda n: decode_proto_map(proto_map(**{"k" * n: ""}))),
    Whole("text_bytes", "a Text", lambda n: TEXT.encode("x" * n), most=2**25),
    Whole(
        "text_bytes", "a received Text", lambda n: TEXT.from_buffers(text_leaf(n), 1), most=2**25
    ),
    Whole(
        "text_bytes", "an info", lambda n: decode_map(entry(sized(b"s", n) + b"x" * n)), most=2**25
    ),
    Whole(
        "text_bytes",
        "protobuf metadata",
        lambda n: decode_proto_map(proto_map(k="é" * (n // 2) + "k" * (n % 2))),
        most=2**25,
    ),
    Whole("message_bytes", "a space from protobuf", lambda n: decode_space(proto_box((n,)))),
    Whole(
        "message_bytes",
        "a space in a contract",
        lambda n: decode_contract(contract_of(encode_section(contracts._MultiBinary((n,))))),
    ),
    Whole("message_bytes", "a header", lambda n: read_header(header(payload=n))),
    Whole(
        "message_bytes",
        "payload and section of a header",
        lambda n: read_header(header(payload=n - 1, section=1)),
    ),
    Whole("hello_bytes", "a header", lambda n: read_header(header(section=n), 0, L.hello_bytes)),
    Whole("rows", "a header", lambda n: read_header(header(kind=Kind.STEP, rows=n))),
    Whole("rows", "a contract", lambda n: decode_contract(contract_of(BYTE, num_envs=n))),
]


@pytest.mark.parametrize("probe", WHOLE, ids=lambda probe: f"{probe.limit}: {probe.what}")
def test_the_limit_is_accepted_and_more_is_refused(probe: Whole) -> None:
    limit = getattr(L, probe.limit)
    probe.attempt(limit)
    for size in (limit + 1, min(1000 * limit, probe.most or 1000 * limit)):
        assert size > limit
        with pytest.raises(REFUSALS):
            probe.attempt(size)


def test_every_limit_has_its_tests() -> None:
    assert {probe.limit for probe in WHOLE} == {field.name for field in fields(SizeLimits)}


# --------------------------------------------------------------------- what is only announced

FAR = 1000
ANNOUNCED = {
    "a text": lambda: decode_map(entry(sized(b"s", FAR * L.text_bytes))),
    "bytes": lambda: decode_map(entry(sized(b"b", FAR * L.message_bytes))),
    "a list": lambda: decode_map(entry(sized(b"l", FAR * L.message_bytes))),
    "a set": lambda: decode_map(entry(sized(b"e", FAR * L.keys))),
    "a map": lambda: decode_map(sized(b"m", FAR * L.keys)),
    "a key": lambda: decode_map(sized(b"m", 1) + sized(b"s", FAR * L.key_bytes)),
    "an integer": lambda: decode_map(entry(sized(b"I", FAR * L.text_bytes))),
    "an array": lambda: decode_map(entry(b"n1\x03<f8\x01" + struct.pack("<Q", L.message_bytes))),
    "a huge array": lambda: decode_map(
        entry(b"n1\x03<f8\x02" + struct.pack("<QQ", L.message_bytes, L.message_bytes))
    ),
    "an object array": lambda: decode_map(entry(b"O\x01" + struct.pack("<Q", L.message_bytes))),
    "an array of nothing": lambda: decode_map(
        entry(b"n1\x03<U0\x01" + struct.pack("<Q", L.message_bytes))
    ),
    "a dtype": lambda: decode_map(entry(b"n1\x0b<U999999999\x01" + struct.pack("<Q", 1))),
    "a space": lambda: decode_space(proto_box((2**31, 2**31, 2**31))),
    "a space in a contract": lambda: decode_contract(
        contract_of(encode_section(contracts._MultiBinary((2**40,))))
    ),
    "a Text of a batch": lambda: TEXT.from_buffers([struct.pack("<QQ", 1, 2**60)], 1),
    "rows of a Text": lambda: TEXT.from_buffers([struct.pack("<QQ", 2**60, 1)], 1),
}


@pytest.mark.parametrize("attempt", ANNOUNCED.values(), ids=ANNOUNCED)
def test_what_is_announced_is_refused_before_it_is_allocated(attempt) -> None:
    with pytest.raises(REFUSALS):
        attempt()  # whatever is loaded late is loaded
    tracemalloc.start()
    try:
        with pytest.raises(REFUSALS):
            attempt()
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------------ sending side


def test_an_info_over_a_limit_is_replaced_and_reported_and_still_arrives() -> None:
    values = {
        "text": "x" * (L.text_bytes + 1),
        "keys": dict.fromkeys(range(FAR * L.keys)),
        "dims": np.zeros((1,) * (L.dims + 1)),
        "fine": 1,
    }
    told: list[str] = []
    back = decode_map(encode_map(values, lambda path, why: told.append(path)))
    assert back["fine"] == 1
    assert len(told) == 3
    assert all(len(back[key]) <= 300 for key in ("text", "keys", "dims"))


def test_a_batch_over_a_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmesh.spaces.leaf_codec.SIZE_LIMITS", SizeLimits(message_bytes=2**10))
    codec = MultiBinary((2**10,)).codec
    assert codec.from_buffers([bytes(2**10)], 1)
    for rows in (2, 1000):
        with pytest.raises(InvalidValue, match="message_bytes"):
            codec.from_buffers([bytes(rows * 2**10)], rows)


# -------------------------------------------------------------------------------- hello, live


def hello_of(nbytes: int) -> Hello:
    """A hello whose frame has so many bytes after the header."""
    empty = Hello(generation="g", service="env", session_id="x" * 300)
    return Hello(
        generation="g",
        service="env",
        session_id="x" * (300 + nbytes - len(encode_section(empty)) - 3),
        peer={},
    )


def hello_frame(nbytes: int) -> bytes:
    for slack in range(-8, 9):
        section = encode_section(hello_of(nbytes + slack))
        if len(section) == nbytes:
            return header(section=nbytes) + section
    raise AssertionError("no hello of this size")


@pytest.mark.parametrize(
    ("nbytes", "is_accepted"),
    [(L.hello_bytes, True), (L.hello_bytes + 1, False), (1000 * L.hello_bytes, False)],
)
def test_a_peer_that_is_not_admitted_sends_small_messages_only(nbytes, is_accepted) -> None:
    with listen("rollmesh+tcp://127.0.0.1:0") as listener:
        where = (listener.address.host, listener.address.port)
        with socket.create_connection(where, 5) as sock:
            frame = hello_frame(nbytes) if nbytes < 2**17 else header(section=nbytes)
            sock.sendall(frame[: HEADER_BYTES + L.hello_bytes])
            with listener.accept(5) as connection:
                if is_accepted:
                    assert isinstance(connection.receive(5).body, Hello)
                    return
                # the header alone is enough: nothing is waited for or allocated
                with pytest.raises(WireError, match=f"at most {L.hello_bytes} are allowed"):
                    connection.receive(5)
                with pytest.raises(ConnectionLost):
                    connection.receive(5)


def test_after_the_hello_larger_messages_are_accepted() -> None:
    large = Probe(bytes(10 * L.hello_bytes))
    with (
        listen("rollmesh+tcp://127.0.0.1:0") as listener,
        dial(listener.address) as client,
        listener.accept(5) as server,
    ):
        server.admit()
        client.send(Message(Kind.PROBE, 1, large), 5)
        assert server.receive(5).body == large
