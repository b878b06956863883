"""Large payloads through a socket: sizes that differ a little, and what follows them."""

from __future__ import annotations

import numpy as np
import pytest

from rollmesh.ports import StepReply
from rollmesh.spaces.space import Box, Text
from rollmesh.spaces.space import Dict as DictSpace
from rollmesh.transport.connection import ConnectionOptions
from rollmesh.transport.receiving import INBOX_BYTES
from rollmesh.wire.messages import Kind, Message
from tests.unit.test_native import LIMIT_S, connected

TCP = "rollmesh+tcp://127.0.0.1:0"
TOLD = DictSpace((("image", Box((128, 128, 3), np.uint8, 0, 255)), ("says", Text(0, 60_000, None))))


def told(request_id, text):
    value = {"image": np.full((128, 128, 3), request_id % 256, np.uint8), "says": text}
    body = StepReply(observation=TOLD.codec.encode(value), rewards=(0.5,), infos=({},))
    return Message(Kind.STEP, request_id, body)


def check(message, request_id, text):
    value = TOLD.codec.decode(message.body.observation)
    assert message.request_id == request_id
    assert value["says"] == text
    assert (value["image"].min(), value["image"].max()) == (request_id % 256, request_id % 256)


@pytest.mark.parametrize("lengths", [[5, 300, 20, 2000, 0, 7], [0, 50_000, 10, 59_000, 30_000, 1]])
def test_texts_of_any_length_come_as_they_were(lengths):
    with connected(TCP, ConnectionOptions(shared_memory=False), TOLD) as (client, server):
        kept = []
        for request_id, length in enumerate(lengths * 4, 1):
            server.send(told(request_id, "x" * length), LIMIT_S)
            kept.append(client.receive(LIMIT_S))
        for request_id, (length, message) in enumerate(zip(lengths * 4, kept, strict=True), 1):
            check(message, request_id, "x" * length)


def test_payloads_about_as_large_as_the_last_go_where_they_stay():
    with connected(TCP, ConnectionOptions(shared_memory=False), TOLD) as (client, server):
        for request_id in range(1, 40):
            server.send(told(request_id, "go " * (request_id % 9)), LIMIT_S)
            check(client.receive(LIMIT_S), request_id, "go " * (request_id % 9))
            # the inbox grows where a large message takes the way of small ones
            assert len(client._receiver.inbox) == INBOX_BYTES


def test_small_messages_right_behind_a_shorter_payload_are_not_lost():
    with connected(TCP, ConnectionOptions(shared_memory=False), TOLD) as (client, server):
        server.send(told(1, "y" * 3000), LIMIT_S)
        check(client.receive(LIMIT_S), 1, "y" * 3000)
        for turn in range(5):
            number = 10 * turn + 2
            for message in (
                told(number, "short"),
                Message(Kind.PING, number + 1),
                told(number + 2, "z" * 2500),
                Message(Kind.PING, number + 3),
                Message(Kind.PONG, number + 4),
            ):
                server.send(message, LIMIT_S)
            check(client.receive(LIMIT_S), number, "short")
            assert client.receive(LIMIT_S).request_id == number + 1
            check(client.receive(LIMIT_S), number + 2, "z" * 2500)
            kinds = [client.receive(LIMIT_S).kind for _ in range(2)]
            assert kinds == [Kind.PING, Kind.PONG]
