"""Receiving in parts: a deadline in the middle of a message loses nothing, where that is wanted."""

from __future__ import annotations

import random
import socket

import numpy as np
import pytest

from rollmesh.errors import ConnectionLost, TransportTimeout
from rollmesh.ports import StepReply
from rollmesh.transport.connection import ConnectionOptions
from rollmesh.transport.native import NativeConnection
from rollmesh.wire.frames import HEADER_BYTES
from rollmesh.wire.framing import Framing
from rollmesh.wire.messages import Kind, Message, Probe
from tests.unit.frame_toys import ARM, CAMERA, same

LIMIT_S = 10.0


def camera(number, *, info=None, rows=1):
    image = np.full((rows, 256, 256, 3), number % 200, np.uint8)
    infos = ({} if info is None else info,) + ({},) * (rows - 1)
    return Message(
        Kind.STEP, number, StepReply(observation=[image], rewards=(1.0,) * rows, infos=infos)
    )


def probe(number, size):
    return Message(Kind.PROBE, number, Probe(b"p" * size))


MIXED = [
    probe(1, 3),
    camera(2),
    camera(3),  # expected to be as large as the last one
    camera(4),  # like one before
    camera(5, info={"note": "x" * 100_000}),
    camera(6, info={"note": "y" * 100_001}),
    camera(7, rows=3),
    probe(8, 5_000),
    probe(9, 70_000),
    camera(10),
    Message(Kind.PING, 11),
]


def bytes_of(messages):
    framing = Framing()
    framing.bind(CAMERA.codec, ARM.codec, 64)
    frames = [framing.encode(message) for message in messages]
    return [
        b"".join([bytes(part) for part in (frame.header(), *frame.parts, frame.section)])
        for frame in frames
    ]


class Pipe:
    """A connection, and the bare socket at its other end."""

    def __init__(self, *, keeps_parts):
        listener = socket.create_server(("127.0.0.1", 0))
        self.raw = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        listener.close()
        self.raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.end = NativeConnection(accepted, "raw", ConnectionOptions(spin="never"))
        self.end.admit()
        self.end.framing.bind(CAMERA.codec, ARM.codec, 64)
        self.end.keeps_parts = keeps_parts

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end.close()
        self.raw.close()

    def send(self, data):
        """Send without waiting for a reader, in pieces that the sockets hold."""
        self.raw.sendall(data)

    def in_parts(self, data, places, count=1):
        """Send up to each place, and look for messages after each; return so many."""
        came, begin = [], 0
        for place in [*places, len(data)]:
            self.send(data[begin:place])
            begin = place
            came += self.there()
        while len(came) < count:  # the last bytes may come a moment later
            came.append(self.end.receive(LIMIT_S))
        return came

    def there(self):
        """Return the messages that are there as a whole."""
        came = []
        while True:
            try:
                came.append(self.end.receive(0.0))
            except TransportTimeout as error:
                if not error.is_usable:
                    raise
                return came


def cuts(size):
    whole = [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, size // 2, size - 1]
    return sorted({place for place in whole if 0 < place < size})


@pytest.mark.parametrize("before", [0, 2, 3])
def test_a_message_is_gone_on_with_wherever_it_was_cut(before):
    for number in range(before, len(MIXED)):
        data = bytes_of(MIXED)
        for place in cuts(len(data[number])):
            with Pipe(keeps_parts=True) as pipe:
                for one, message in zip(data[:number], MIXED[:number], strict=True):
                    pipe.send(one)
                    assert same(pipe.end.receive(LIMIT_S).body, message.body)
                (got,) = pipe.in_parts(data[number], [place])
                assert same(got.body, MIXED[number].body)
                pipe.send(data[-1])
                assert pipe.end.receive(LIMIT_S).kind is Kind.PING
        if before:
            break


@pytest.mark.parametrize("seed", range(3))
def test_any_pieces_make_the_same_messages(seed):
    chance = random.Random(seed)
    data = b"".join(bytes_of(MIXED * 2))
    places = sorted({chance.randrange(1, len(data)) for _ in range(60)})
    with Pipe(keeps_parts=True) as pipe:
        came = pipe.in_parts(data, places, 2 * len(MIXED))
        assert all(same(one.body, two.body) for one, two in zip(came, MIXED * 2, strict=True))


def test_a_message_that_is_amid_is_told_apart_from_none():
    (data,) = bytes_of([camera(1)])
    with Pipe(keeps_parts=True) as pipe:
        assert pipe.there() == []
        assert not pipe.end.is_amid
        pipe.send(data[: HEADER_BYTES + 20_000])
        with pytest.raises(TransportTimeout, match="the rest of a message") as late:
            pipe.end.receive(0.1)
        assert late.value.is_usable
        assert pipe.end.is_amid


def test_a_peer_that_ends_in_the_middle_is_lost():
    (data,) = bytes_of([camera(1)])
    with Pipe(keeps_parts=True) as pipe:
        pipe.send(data[:-1])
        with pytest.raises(TransportTimeout):
            pipe.end.receive(0.05)
        pipe.raw.close()
        with pytest.raises(ConnectionLost, match="in the middle"):
            pipe.end.receive(LIMIT_S)


def test_an_observation_that_came_in_parts_has_memory_of_its_own():
    (first, second) = bytes_of([camera(1), camera(2)])
    with Pipe(keeps_parts=True) as pipe:
        (one,) = pipe.in_parts(first, [100_000])
        kept = one.body.observation
        (two,) = pipe.in_parts(second, [50_000, 100_000])
        assert int(kept[0].max()) == int(kept[0].min()) == 1
        assert int(two.body.observation[0].min()) == 2
