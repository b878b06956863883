"""P12 at the level of frames and arrays: any bytes are accepted or refused with `WireError`.

Mutants are made of real messages with their structure in mind: fields of headers, lengths, tags,
sections and whole parts are changed, swapped, cut and repeated.
"""

from __future__ import annotations

import datetime as dt
import random
import resource
import struct
import sys

import numpy as np
import pytest
from gymnasium.spaces import GraphInstance
from hypothesis import given
from hypothesis import strategies as st

from rollmesh.errors import WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.ports import StepReply
from rollmesh.spaces.metadata import carry
from rollmesh.spaces.space import Graph, Tuple
from rollmesh.spaces.space import Sequence as SequenceSpace
from rollmesh.wire.frames import HEADER, HEADER_BYTES, PREFIX_BYTES, TAIL, read_header
from rollmesh.wire.framing import Framing
from rollmesh.wire.messages import Kind, Message
from rollmesh.wire.metadata import decode_map, encode_map
from tests.property.strategies import batches
from tests.unit.frame_toys import ARM, ROBOT, SMALL, every_message, same
from tests.unit.test_wire_metadata import VALUES

MOST_TEXT = 2000
MOST_GROWTH_BYTES = 50 * 2**20
ODD_NUMBERS = [
    *(0, 1, 2, 7, 8, 9, 16, 127, 128, 255, 256, 65535, 65536),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1),
    *(SIZE_LIMITS.keys, SIZE_LIMITS.keys + 1, SIZE_LIMITS.text_bytes + 1, SIZE_LIMITS.rows),
    *(SIZE_LIMITS.message_bytes, SIZE_LIMITS.message_bytes + 1),
]
NESTED = Tuple(
    (
        SequenceSpace(ARM),
        Graph(SMALL, ARM),
        ROBOT,
    )
)


def framing(observation=ROBOT):
    made = Framing(report=lambda path, detail: None)
    made.bind(observation.codec, ARM.codec, 8)
    return made


def read(reader, data):
    """Read a frame as a connection does: header, checks, then what it announces, if it is there."""
    if len(data) < HEADER_BYTES:
        raise WireError("short")
    plan = reader.plans.get(data[:PREFIX_BYTES])
    if plan is not None and not plan.is_shared and len(data) >= plan.stop:
        tail = TAIL.unpack_from(data, PREFIX_BYTES)
        return plan.read(data[HEADER_BYTES : plan.end], *tail, data[plan.end : plan.stop])
    header = read_header(data)
    reader.check(header)
    middle = HEADER_BYTES + header.payload_bytes
    if len(data) < middle + header.section_bytes:
        raise WireError("short")
    buffer = memoryview(np.empty(header.payload_bytes, np.uint8))
    buffer[:] = data[HEADER_BYTES:middle]
    return reader.decode(header, buffer, 0, data[middle : middle + header.section_bytes])


def samples():
    """Return real frames as their parts: header, payload, section."""
    parts = []
    for message in every_message():
        frame = framing().encode(message)
        parts.append((frame.header(), b"".join(frame.parts), frame.section))
    info = carry(VALUES, lambda path, detail: None)
    odd = every_message()[9]
    body = StepReply(
        observation=every_message()[10].body.observation, rewards=(0.0, 1.0), infos=(info, info)
    )
    frame = framing().encode(Message(Kind.STEP, odd.request_id, body))
    parts.append((frame.header(), b"".join(frame.parts), frame.section))
    return parts


def poke(chance, data):
    """Change a few places of some bytes."""
    data = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        if not data:
            break
        place = chance.randrange(len(data))
        how = chance.randrange(6)
        if how == 0:
            data[place] = chance.randrange(256)
        elif how == 1:
            data[place] ^= 1 << chance.randrange(8)
        elif how == 2:
            size, form = chance.choice([(4, "<I"), (8, "<Q"), (2, "<H")])
            number = chance.choice(ODD_NUMBERS) % 2 ** (8 * size)
            data[place : place + size] = struct.pack(form, number)
        elif how == 3:
            del data[place : place + chance.choice([1, 2, 8, len(data)])]
        elif how == 4:
            data[place:place] = data[place : place + chance.choice([1, 5, 8, 64])]
        else:
            data[place:place] = bytes(chance.choice([1, 8, 100]))
    return bytes(data)


FIELDS = 13
FIELD_BYTES = [1, 1, 1, 1, 4, 4, 2, 2, 8, 4, 4, 8, 8]


def mutant(chance, parts):
    """Return a frame that is wrong somewhere, mostly deep inside."""
    head, payload, section = chance.choice(parts)
    how = chance.randrange(8)
    if how == 0:
        fields = list(HEADER.unpack(head))
        place = chance.randrange(FIELDS)
        fields[place] = chance.choice(ODD_NUMBERS) % 2 ** (8 * FIELD_BYTES[place])
        return HEADER.pack(*fields) + payload + section
    if how == 1:
        return poke(chance, head + payload + section)
    if how == 2:
        other = chance.choice(parts)
        payload, section = chance.choice([(other[1], section), (payload, other[2])])
    elif how == 3:
        payload = poke(chance, payload)
    elif how in (4, 5, 6):
        section = poke(chance, section)
    else:
        other = chance.choice(parts)[0]
        fields, others = list(HEADER.unpack(head)), HEADER.unpack(other)
        place = chance.randrange(2, FIELDS)
        fields[place] = others[place]
        head = HEADER.pack(*fields)
    # the sizes are right, so that what is behind them is looked at
    fields = list(HEADER.unpack(head))
    fields[8], fields[9] = len(payload), len(section)
    return HEADER.pack(*fields) + payload + section


def memory_bytes():
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def run_mutants(count, seed):
    chance = random.Random(seed)
    parts = samples()
    accepted = refused = longest = 0
    before = memory_bytes()
    reader = framing()
    for number in range(count):
        if number % 1000 == 0:
            reader = framing()
        data = mutant(chance, parts)
        try:
            read(reader, data)
            accepted += 1
        except WireError as error:
            longest = max(longest, len(str(error)))
            refused += 1
    assert longest < MOST_TEXT
    return accepted, refused, memory_bytes() - before


def test_p12_any_mutant_is_accepted_or_refused():
    accepted, refused, growth = run_mutants(20_000, seed=12)
    assert accepted > 500
    assert refused > 5000
    assert growth < MOST_GROWTH_BYTES


@pytest.mark.fault_full
def test_p12_any_mutant_is_accepted_or_refused_in_full():
    for seed in range(10):
        _, _, growth = run_mutants(20_000, seed=100 + seed)
        assert growth < MOST_GROWTH_BYTES


@pytest.mark.parametrize("count", [3000, pytest.param(100_000, marks=pytest.mark.fault_full)])
def test_p12_any_mutant_of_an_info_is_accepted_or_refused(count):
    chance = random.Random(5)
    encoded = encode_map(carry(VALUES, lambda path, detail: None))
    single = [encode_map(carry({"k": value}, lambda p, d: None)) for value in VALUES.values()]
    before = memory_bytes()
    accepted = 0
    for _ in range(count):
        try:
            repr(decode_map(poke(chance, chance.choice([encoded, *single]))))
            accepted += 1
        except WireError:
            pass
    assert accepted > count // 50
    assert memory_bytes() - before < MOST_GROWTH_BYTES


@pytest.mark.parametrize("count", [3000, pytest.param(100_000, marks=pytest.mark.fault_full)])
def test_p12_any_mutant_of_an_array_is_accepted_or_refused(count):
    chance = random.Random(7)
    value = (
        (ARM.codec.decode(ARM.codec.encode([0.5] * 7)),) * 3,
        _graph(),
        ROBOT.codec.decode(every_message()[10].body.observation),
    )
    leaves = NESTED.codec.encode(value)
    frame = framing(NESTED).encode(
        Message(Kind.STEP, 1, StepReply(observation=leaves, rewards=(0.0,), infos=({},)))
    )
    head, payload = frame.header(), b"".join(frame.parts)
    for _ in range(count):
        data = poke(chance, payload)
        fields = list(HEADER.unpack(head))
        fields[8] = len(data)
        try:
            body = read(framing(NESTED), HEADER.pack(*fields) + data).body
        except WireError:
            continue
        NESTED.codec.verify(body.observation, 1)
        NESTED.codec.decode(body.observation)


def _graph():
    return GraphInstance(
        np.zeros((2, 4), np.float32), np.zeros((1, 7), np.float32), np.array([[0, 1]])
    )


@given(st.binary(max_size=200))
def test_p12_any_bytes_at_all(data):
    for start in (b"", b"\xa7\x01", framing().encode(every_message()[0]).header()):
        with pytest.raises(WireError):
            read(framing(), start[:40] + data[:47])


@given(batches())
def test_every_space_comes_back(batch):
    space, values = batch
    rows = len(values)
    leaves = space.codec.encode_many(values)
    body = StepReply(observation=leaves, rewards=(1.5,) * rows, infos=({},) * rows)
    frame = framing(space).encode(Message(Kind.STEP, 3, body))
    data = frame.header() + b"".join(frame.parts) + frame.section
    back = read(framing(space), data).body.observation
    assert same(list(back), list(leaves))
    space.codec.verify(back, rows)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary()
    | st.dates()
    | st.datetimes(timezones=st.none() | st.just(dt.timezone.utc))
    | st.timedeltas(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=20) | st.integers(), plain, max_size=5))
def test_every_plain_map_comes_back(values):
    assert same(decode_map(encode_map(values)), values)
