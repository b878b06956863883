"""The door: whoever knows the name and the secret of a start is let in, once."""

from __future__ import annotations

import queue
import socket

import pytest

from rollmesh.errors import ConnectFailed, ConnectionLost
from rollmesh.fleet.door import SERVICE, WorkerDoor
from rollmesh.transport.address import parse_address
from rollmesh.transport.dialing import dial
from rollmesh.wire.messages import GENERATION, Close, Hello, Kind, Message

LIMIT_S = 10.0


@pytest.fixture(params=["rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0"])
def door(request):
    made = WorkerDoor(request.param)
    yield made
    made.close()


@pytest.fixture
def arrivals():
    return queue.SimpleQueue()


def arrive(arrivals):
    return lambda connection, sock: arrivals.put((connection, sock))


def knock(door, name, token, *, generation=GENERATION, service=SERVICE):
    connection = dial(door.address)
    hello = Hello(generation=generation, service=service, token=token, peer={"worker": name})
    connection.send(Message(Kind.HELLO, 1, hello))
    return connection


def is_turned_away(connection):
    with connection, pytest.raises(ConnectionLost):
        connection.receive(LIMIT_S)
    return True


def test_one_that_is_expected_is_let_in_and_its_socket_is_handed_over(door, arrivals):
    token = door.expect("0.1", arrive(arrivals))
    with knock(door, "0.1", token) as worker:
        connection, sock = arrivals.get(timeout=LIMIT_S)
        with connection:
            assert isinstance(sock, socket.socket)
            worker.send(Message(Kind.CLOSE, 2, Close(close_env=True)))
            assert connection.receive(LIMIT_S).kind is Kind.CLOSE


def test_a_secret_is_good_for_one_arrival(door, arrivals):
    token = door.expect("0.1", arrive(arrivals))
    with knock(door, "0.1", token):
        connection, _ = arrivals.get(timeout=LIMIT_S)
        assert is_turned_away(knock(door, "0.1", token))
        connection.close()


def test_secrets_differ(door, arrivals):
    assert door.expect("0.1", arrive(arrivals)) != door.expect("1.1", arrive(arrivals))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "1.1"},
        {"name": ""},
        {"token": ""},
        {"token": "0" * 32},
        {"token": "ä"},
        {"generation": "rollmesh-native-0"},
        {"service": "env"},
    ],
)
def test_whoever_says_something_else_is_turned_away_and_the_right_one_is_not(door, arrivals, wrong):
    token = door.expect("0.1", arrive(arrivals))
    right = {"name": "0.1", "token": token}
    assert is_turned_away(knock(door, **{**right, **wrong}))
    with knock(door, **right):
        connection, _ = arrivals.get(timeout=LIMIT_S)
        connection.close()


def test_one_that_is_not_expected_any_more_is_turned_away(door, arrivals):
    token = door.expect("0.1", arrive(arrivals))
    door.forget("0.1")
    door.forget("0.1")
    assert is_turned_away(knock(door, "0.1", token))


def test_another_message_than_hello_is_turned_away(door):
    connection = dial(door.address)
    connection.send(Message(Kind.CLOSE, 1, Close(close_env=True)))
    assert is_turned_away(connection)


def test_noise_and_silence_hold_up_nobody(door, arrivals):
    address = parse_address(door.address)
    is_unix = address.family == "unix"
    family = socket.AF_UNIX if is_unix else socket.AF_INET
    place = address.path if is_unix else (address.host, address.port)
    with socket.socket(family) as silent, socket.socket(family) as noisy:
        silent.connect(place)
        noisy.connect(place)
        noisy.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
        token = door.expect("0.1", arrive(arrivals))
        with knock(door, "0.1", token):
            connection, _ = arrivals.get(timeout=LIMIT_S)
            connection.close()


def test_a_closed_door_opens_to_nobody_and_leaves_no_socket_file(door):
    door.close()
    door.close()
    with pytest.raises(ConnectFailed):
        dial(door.address)
