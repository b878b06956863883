"""How a client sends over gRPC: without waiting, interrupted, and to a server that says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from rollmesh.errors import ConnectionLost, TransportTimeout
from rollmesh.transport import grpc_client
from rollmesh.wire.messages import Kind, Message
from tests.unit.test_grpc_transport import Pair, hello, step


@pytest.fixture
def pair() -> Iterator[Pair]:
    one = Pair()
    yield one
    one.close()


def test_what_is_posted_is_received(pair):
    client, server = pair.meet()
    assert client.post(Message(Kind.STEP, 7, step()))
    client.flush()
    assert server.receive(5).request_id == 7
    client.close()
    with pytest.raises(ConnectionLost):
        client.post(Message(Kind.STEP, 8, step()))


@pytest.mark.parametrize("how", ["send", "post"])
def test_an_interrupt_within_a_send_ends_the_connection(pair, how):
    client, server = pair.meet()

    def interrupted(*_):
        raise KeyboardInterrupt

    setattr(client._stream, how, interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(client, how)(Message(Kind.STEP, 7, step()))
    assert not client.is_open
    with pytest.raises(ConnectionLost, match="interrupted while sending"):
        client.send(Message(Kind.STEP, 8, step()))
    with pytest.raises(ConnectionLost):
        server.receive(5)


def test_a_released_server_that_gives_no_welcome_is_late_by_the_limit_that_was_given(
    pair, monkeypatch
):
    read_welcome = grpc_client.wire.read_welcome

    def released(*arguments):
        said, contract = read_welcome(*arguments)
        return replace(said, capabilities={}), contract

    monkeypatch.setattr(grpc_client.wire, "read_welcome", released)
    client = pair.dial()
    with pytest.raises(TransportTimeout, match=r"no welcome came within 0\.2 s"):
        client.send(hello(), 0.2)
