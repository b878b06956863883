"""Sending without waiting for the peer, and what an interrupt within a send leaves behind."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from rollmesh.errors import ConnectionLost, TransportTimeout
from rollmesh.ports import StepReply
from rollmesh.transport import native
from rollmesh.transport.connection import ConnectionOptions
from rollmesh.transport.stream import WrappedStream
from rollmesh.wire.messages import Kind, Message, Probe
from tests.unit.frame_toys import CAMERA, on_thread
from tests.unit.test_native import LIMIT_S, connected, everywhere

BIG = 50_000_000


def probe(request_id, fill=b"x", size=BIG):
    return Message(Kind.PROBE, request_id, Probe(fill * size))


@everywhere
@pytest.mark.parametrize("wrapped", [False, True])
def test_p1_a_post_waits_for_nobody_and_what_was_left_arrives_in_order(
    address, wrapped, monkeypatch
):
    if wrapped:
        monkeypatch.setattr(native, "open_stream", WrappedStream)
    with connected(address, ConnectionOptions(shared_memory=False)) as (client, server):
        assert not client.post(probe(1, b"a"))  # nobody reads: this comes back all the same
        assert client.post(probe(2, b"b"))  # and is seen to together with the first
        assert client.post(probe(3, b"c", 10))
        with on_thread(lambda: client.flush(LIMIT_S)):
            for number, fill in ((1, b"a"), (2, b"b"), (3, b"c")):
                message = server.receive(LIMIT_S)
                assert message.request_id == number
                assert bytes(message.body.payload).strip(fill) == b""
        assert client.post(probe(4, b"d", 10))  # nothing is left
        assert server.receive(LIMIT_S).request_id == 4


def test_the_leaves_of_what_was_posted_may_be_changed():
    image = np.full((200, 256, 256, 3), 7, np.uint8)
    body = StepReply(observation=[image], rewards=(1.0,) * 200, infos=({},) * 200)
    options = ConnectionOptions(shared_memory=False)
    with connected(options=options, observation=CAMERA) as (client, server):
        client.framing.bind(CAMERA.codec, CAMERA.codec, 200)
        server.framing.bind(CAMERA.codec, CAMERA.codec, 200)
        assert not client.post(Message(Kind.STEP, 1, body))
        image[:] = 0
        with on_thread(lambda: client.flush(LIMIT_S)):
            (leaf,) = server.receive(LIMIT_S).body.observation
        assert (leaf == 7).all()


@everywhere
def test_a_peer_that_takes_nothing_counts_as_gone(address):
    with connected(address) as (client, _):
        assert not client.post(probe(1))
        with pytest.raises(TransportTimeout, match="took nothing") as caught:
            client.flush(0.05)
        assert not caught.value.is_usable
        with pytest.raises(ConnectionLost, match="takes nothing any more"):
            client.post(probe(2))


def test_another_thread_ends_a_flush_at_once():
    with connected() as (client, _):
        assert not client.post(probe(1))

        def push():
            with pytest.raises(ConnectionLost, match="left by the test"):
                client.flush()

        with on_thread(push):
            client.shutdown("left by the test")


def test_a_post_does_not_wait_for_who_flushes():
    with connected() as (client, _):
        assert not client.post(probe(1))
        waits, client._stream.wait_for_room = threading.Event(), lambda _: waits.set()
        done = threading.Event()

        def push():
            with pytest.raises(ConnectionLost):
                client.flush()
            done.set()

        with on_thread(push):
            assert waits.wait(LIMIT_S)
            assert client.post(probe(2))
            client.shutdown()
            assert done.wait(LIMIT_S)


def test_a_send_comes_after_what_was_posted_before():
    with connected() as (client, server):
        assert not client.post(probe(1))
        with pytest.raises(TransportTimeout, match="what goes before") as caught:
            client.send(probe(2, size=10), 0.01)
        assert caught.value.is_usable
        with on_thread(lambda: client.send(probe(3, size=10), LIMIT_S)):
            assert [server.receive(LIMIT_S).request_id for _ in range(2)] == [1, 3]


@everywhere
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_within_a_send_leaves_no_half_message_on_an_open_connection(address, error):
    with connected(address, ConnectionOptions(shared_memory=False)) as (client, server):
        write = client._stream.write

        def interrupted(parts, total, timeout_s):
            del timeout_s
            assert 0 < write(parts, total, 0.0) < total
            raise error

        client._stream.write = interrupted
        with pytest.raises(error):
            client.send(probe(1), LIMIT_S)
        assert not client.is_open
        with pytest.raises(ConnectionLost, match="interrupted while sending"):
            client.send(probe(2, size=10))
        with pytest.raises(ConnectionLost):
            server.receive(LIMIT_S)


def test_an_interrupt_once_a_message_is_known_to_the_framing_breaks_the_connection():
    with connected() as (client, _):
        encode = client.framing.encode

        def interrupted(message):
            encode(message)  # the next message would refer to this one
            raise KeyboardInterrupt

        client.framing.encode = interrupted
        with pytest.raises(KeyboardInterrupt):
            client.send(probe(1, size=10))
        assert not client.is_open


def test_a_copy_into_shared_memory_that_is_interrupted_keeps_no_slot(monkeypatch):
    with connected() as (client, server):
        server.send(Message(Kind.PING, 1))
        client.receive(LIMIT_S)  # now it is known that the other end takes shared memory
        ring = client._ring
        assert ring is not None
        frame = client.framing.encode(probe(1))
        frame.parts[:] = [object()]  # the copy fails
        with pytest.raises(TypeError):
            client._share(frame, ring)
        assert ring._states[:8].count(b"\1") == 0


def test_what_is_left_of_a_message_and_cannot_be_kept_breaks_the_connection(monkeypatch):
    def remaining(*_):
        raise MemoryError

    with connected() as (client, _):
        monkeypatch.setattr(native, "remaining", remaining)
        with pytest.raises(MemoryError):
            client.post(probe(1))
        assert not client.is_open
