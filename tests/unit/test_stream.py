"""Streams: waiting for the rest of a large message."""

from __future__ import annotations

import socket
import sys
import threading

import numpy as np
import pytest

from rollmesh.transport.connection import ConnectionOptions
from rollmesh.transport.stream import open_stream
from tests.unit.frame_toys import CAMERA
from tests.unit.test_native import camera_reply, connected

LIMIT_S = 10.0
MANY = 256 * 1024


@pytest.fixture
def pair():
    """Give a stream and the socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname(), LIMIT_S)
        ours, _ = listener.accept()
    stream = open_stream(ours)
    yield stream, theirs
    theirs.close()
    stream.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems wake up for every byte")
def test_a_wait_for_many_bytes_is_not_over_with_few(pair):
    stream, theirs = pair
    theirs.sendall(bytes(1000))
    assert stream.wait(LIMIT_S)
    assert not stream.wait(0.02, MANY)
    assert stream.wait(LIMIT_S)
    theirs.sendall(bytes(MANY))
    assert stream.wait(LIMIT_S, MANY)


def test_a_wait_for_many_bytes_ends_with_the_connection(pair):
    stream, theirs = pair
    theirs.sendall(bytes(1000))
    threading.Timer(0.05, theirs.close).start()
    assert stream.wait(LIMIT_S, MANY)
    assert stream.read(bytearray(2000)) == 1000
    assert stream.read(bytearray(2000)) == 0


def test_a_wait_for_more_bytes_than_fit_is_not_forever(pair):
    stream, theirs = pair
    sender = threading.Thread(target=theirs.sendall, args=(bytes(64 * MANY),))
    sender.start()
    left, buffer = 64 * MANY, bytearray(MANY)
    while left:
        assert stream.wait(LIMIT_S, left)
        left -= stream.read(buffer)
    sender.join(LIMIT_S)


@pytest.mark.parametrize("spin", ["always", "never", "auto"])
def test_large_messages_come_whole_however_they_are_waited_for(spin):

    options = ConnectionOptions(spin=spin)
    with connected("rollmesh+tcp://127.0.0.1:0", options, CAMERA) as (client, server):
        for rows in (1, 1, 20, 20, 1):
            message = camera_reply(rows=rows, shade=rows)
            sender = threading.Thread(target=server.send, args=(message, LIMIT_S))
            sender.start()
            back = client.receive(LIMIT_S)
            sender.join(LIMIT_S)
            assert back.body.rewards == message.body.rewards
            assert np.array_equal(back.body.observation[0], message.body.observation[0])


SO_BUF_LOCK = 72
"""Linux 5.18; Python has no name for it. Which buffers somebody has set a size of."""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_the_buffers_of_tcp_grow_as_the_way_needs_them(pair):
    stream, _ = pair
    try:
        locked = stream._sock.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK)
    except OSError:
        pytest.skip("this kernel does not tell")
    assert locked == 0
