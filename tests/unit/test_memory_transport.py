"""The memory transport: the promises of a connection, without sockets."""

from __future__ import annotations

import time

import numpy as np
import pytest

from rollmesh.errors import ConnectFailed, ConnectionLost, ListenFailed, TransportTimeout, WireError
from rollmesh.transport.connection import ConnectionOptions
from rollmesh.transport.dialing import dial, listen
from rollmesh.transport.memory import memory_pair
from rollmesh.wire.messages import Kind, Message, Probe
from tests.unit.frame_toys import ARM, ROBOT, every_message, on_thread, same, step_reply

MESSAGES = every_message()


@pytest.fixture
def pair():
    ends = memory_pair()
    for end in ends:
        end.framing.bind(ROBOT.codec, ARM.codec, 8)
    yield ends
    for end in ends:
        end.close()


def test_every_message_arrives_as_it_was(pair):
    for sender, receiver in (pair, pair[::-1]):
        for message in MESSAGES * 2:
            sent = sender.send(message)
            got = receiver.receive(1)
            assert (got.kind, got.request_id) == (message.kind, message.request_id)
            assert same(got.body, message.body)
            assert got.nbytes <= sent


def test_what_arrives_shares_nothing_with_what_was_sent(pair):
    ours, theirs = pair
    message = step_reply(infos=({"pose": np.zeros(3)},))
    ours.send(message)
    message.body.infos[0]["pose"][0] = 5
    got = theirs.receive(1).body
    assert got.infos[0]["pose"][0] == 0
    assert not np.shares_memory(got.observation[0], message.body.observation[0])


@pytest.mark.parametrize("writable", [False, True])
def test_leaves_are_writable_where_asked(writable):
    ours, theirs = memory_pair(ConnectionOptions(writable=writable))
    for end in (ours, theirs):
        end.framing.bind(ROBOT.codec, ARM.codec, 8)
    ours.send(step_reply())
    assert theirs.receive(1).body.observation[0].flags.writeable is writable


def test_listeners_are_found_by_name():
    with listen("mem://arm") as listener:
        with pytest.raises(ListenFailed, match="address in use"):
            listen("mem://arm")
        with dial("mem://arm") as client, listener.accept(1) as server:
            client.send(Message(Kind.PING, 1))
            assert server.receive(1).kind is Kind.PING
    with pytest.raises(ConnectFailed, match="nobody listens"):
        dial("mem://arm")
    with listen("mem://arm"):
        pass


def test_those_who_wait_are_told_when_a_listener_closes():
    listener = listen("mem://leaving")
    client = dial("mem://leaving")
    listener.close()
    with pytest.raises(ConnectionLost, match="peer closed"):
        client.receive(1)


def test_before_admission_messages_are_small():
    with listen("mem://small") as listener:
        client, server = dial("mem://small"), listener.accept(1)
        client.send(Message(Kind.PROBE, 1, Probe(bytes(20_000))))
        with pytest.raises(WireError, match="at most 16384"):
            server.receive(1)
        with pytest.raises(ConnectionLost):
            client.receive(1)


def test_p1_a_receive_ends_at_its_deadline(pair):
    begun = time.monotonic()
    for timeout_s in (0.05, 0):
        with pytest.raises(TransportTimeout) as caught:
            pair[0].receive(timeout_s)
        assert caught.value.is_usable
    assert time.monotonic() - begun < 0.05 + 0.25
    pair[1].send(Message(Kind.PING, 1))
    assert pair[0].receive(1).kind is Kind.PING


@pytest.mark.parametrize("how", ["shutdown", "close"])
def test_another_thread_ends_a_receive(pair, how):
    def wait():
        with pytest.raises(ConnectionLost, match=r"shut down here|closed here"):
            pair[0].receive()

    with on_thread(wait):
        getattr(pair[0], how)()
    with pytest.raises(ConnectionLost):
        pair[0].send(Message(Kind.PING, 1))


def test_the_other_end_hears_of_a_close_after_all_that_was_sent(pair):
    ours, theirs = pair
    ours.send(Message(Kind.PROBE, 1, Probe(b"last words")))
    ours.close()
    assert theirs.receive(1).body == Probe(b"last words")
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="peer closed"):
            theirs.receive(1)


def test_call_works_here_too(pair):
    client, server = pair

    def serve():
        request = server.receive(5)
        server.send(Message(request.kind, request.request_id - 1, step_reply().body))
        server.send(step_reply(request.request_id))

    with on_thread(serve):
        request = next(m for m in MESSAGES if m.kind is Kind.STEP and not m.is_reply)
        reply = client.call(Message(Kind.STEP, 50, request.body), 5)
    assert reply.request_id == 50
