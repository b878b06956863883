"""The doors of a server as one: checked when made, bound together, opened later, closed at last."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest
import trustme

from rollmesh.endpoint.servers import door_set
from rollmesh.endpoint.servers.door_set import DoorSet
from rollmesh.endpoint.servers.doors import ListenerDoor
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import ConnectFailed, InvalidSpec, ListenFailed, TransportTimeout
from rollmesh.transport.address import LONGEST_UNIX_PATH, parse_address
from rollmesh.transport.dialing import dial
from rollmesh.transport.security import TlsClient, TlsServer, Token, client_wrap
from rollmesh.wire.messages import GENERATION, Hello, Kind, Message
from tests.unit.serving_toys import LIMIT_S, Counter
from tests.unit.session_toys import mem_address

TCP = "rollmesh+tcp://127.0.0.1:0"


@pytest.fixture
def folder():
    """A folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="doorset-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def doors_at():
    """Return what makes the doors of a server that has not started; they are closed in the end."""
    made = []

    def make(address, **options):
        server = EnvServer(Counter, mem_address(), ServerOptions(**options))
        made.append(DoorSet(server, address))
        return made[-1]

    yield make
    for doors in made:
        doors.close()


def knock(address, wrap=None):
    """Come to a door and ask for a model, which an env's server refuses whatever its state is."""
    connection = dial(address, wrap=wrap)
    hello = Hello(generation=GENERATION, service="model", token="")
    connection.send(Message(Kind.HELLO, 1, hello))
    return connection


def answer(connection, limit_s=LIMIT_S):
    """Return the code of what is said at the door."""
    with connection:
        return connection.receive(limit_s).body.code


# --------------------------------------------------------------------------------- checking


def test_no_address_at_all_is_refused(doors_at):
    with pytest.raises(InvalidSpec, match="address: wants at least one"):
        doors_at([])


@pytest.mark.parametrize("asked", ["0.0.0.0:0", ["mem://fine", "rollmesh+tcp://0.0.0.0:0"]])
@pytest.mark.parametrize("given", [{}, {"token": Token("s" * 32)}])
def test_every_address_is_checked_for_strangers_before_any_is_bound(doors_at, asked, given):
    with pytest.raises(InvalidSpec, match=r"0\.0\.0\.0:0 can be reached from other machines"):
        doors_at(asked, **given)


def test_a_parsed_address_is_taken_as_well_alone_and_among_texts(doors_at):
    address = parse_address(mem_address(), "bind")
    alone, among = doors_at(address), doors_at([address, TCP])
    alone.bind()
    assert alone.addresses == (str(address),)
    alone.close()
    among.bind()
    assert among.addresses[0] == str(address)
    assert among.addresses[1].startswith("rollmesh+tcp://127.0.0.1:")


# ---------------------------------------------------------------------------------- binding


def test_addresses_are_known_once_bound_in_the_order_asked_for(doors_at, folder):
    file = folder / "a.sock"
    doors = doors_at([TCP, f"rollmesh+unix://{file}"])
    assert doors.addresses == ()
    doors.bind()
    first, second = doors.addresses
    assert int(first.rpartition(":")[2]) > 0
    assert second == f"rollmesh+unix://{file}"
    assert stat.S_ISSOCK(file.stat().st_mode)


def test_whoever_comes_between_bind_and_open_waits_and_is_then_greeted(doors_at):
    doors = doors_at(TCP)
    doors.bind()
    connection = knock(doors.addresses[0])
    with pytest.raises(TransportTimeout):
        connection.receive(0.05)
    doors.open()
    assert answer(connection) == "incompatible"


def test_where_one_address_is_in_use_none_stays_bound(doors_at, folder):
    file = folder / "first.sock"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        doors = doors_at([f"rollmesh+unix://{file}", f"rollmesh+tcp://127.0.0.1:{port}"])
        with pytest.raises(ListenFailed, match=f"{port}.*in use"):
            doors.bind()
    assert not file.exists()
    again = doors_at(f"rollmesh+unix://{file}")
    again.bind()
    assert file.exists()


def test_a_missing_tls_file_is_told_before_anything_is_bound(doors_at, folder):
    file, missing = folder / "a.sock", str(folder / "missing.pem")
    doors = doors_at(f"rollmesh+unix://{file}", tls=TlsServer(certificate=missing, key=missing))
    with pytest.raises(InvalidSpec, match=r"missing\.pem"):
        doors.bind()
    assert not file.exists()
    assert doors.addresses == ()


def test_tls_is_spoken_at_tcp_doors_and_nowhere_else(doors_at, folder):
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    blobs = {
        "ca": [ca.cert_pem],
        "chain": issued.cert_chain_pems,
        "key": [issued.private_key_pem],
    }
    for name, parts in blobs.items():
        (folder / name).write_bytes(b"".join([part.bytes() for part in parts]))
    tls = TlsServer(certificate=folder / "chain", key=folder / "key")
    doors = doors_at([TCP, f"rollmesh+unix://{folder / 'a.sock'}"], tls=tls)
    doors.bind()
    doors.open()
    tcp, unix = doors.addresses
    assert answer(knock(unix)) == "incompatible"
    wrap = client_wrap(TlsClient(ca=folder / "ca"), "127.0.0.1")
    assert answer(knock(tcp, wrap)) == "incompatible"
    with pytest.raises(ConnectFailed):
        dial(tcp, wrap=client_wrap(TlsClient(), "127.0.0.1"))  # whom the system believes


# ------------------------------------------------------------------------- socket files' paths


def test_a_relative_path_means_what_it_meant_when_the_server_was_made(
    doors_at, folder, monkeypatch
):
    made_in, moved_to = folder / "made", folder / "moved"
    made_in.mkdir()
    moved_to.mkdir()
    monkeypatch.chdir(made_in)
    doors = doors_at("rollmesh+unix://a.sock")
    monkeypatch.chdir(moved_to)  # as envs do in their constructors
    doors.bind()
    assert (made_in / "a.sock").exists()
    assert not list(moved_to.iterdir())
    assert doors.addresses == (f"rollmesh+unix://{made_in / 'a.sock'}",)


def test_a_path_that_is_too_long_when_absolute_stays_as_it_was_given(doors_at, folder, monkeypatch):
    deep = folder / ("d" * LONGEST_UNIX_PATH)
    deep.mkdir()
    assert len(os.fsencode(deep / "a.sock")) > LONGEST_UNIX_PATH
    monkeypatch.chdir(deep)
    doors = doors_at("rollmesh+unix://a.sock")
    doors.bind()
    assert (deep / "a.sock").exists()
    assert doors.addresses == ("rollmesh+unix://a.sock",)


# ---------------------------------------------------------------------------------- closing


def test_closing_ends_all_doors_any_number_of_times_and_leaves_no_file(doors_at, folder):
    file = folder / "a.sock"
    doors = doors_at([TCP, f"rollmesh+unix://{file}"])
    doors.bind()
    doors.open()
    for _ in range(2):
        doors.close()
        assert not file.exists()
        for address in doors.addresses:
            with pytest.raises(ConnectFailed):
                dial(address)


def test_a_connection_that_is_in_survives_the_close(doors_at):
    doors = doors_at(TCP)
    doors.bind()
    doors.open()
    with dial(doors.addresses[0]) as connection:
        knocked = knock(doors.addresses[0])  # doors let in one after the other
        assert answer(knocked) == "incompatible"
        doors.close()
        hello = Hello(generation=GENERATION, service="model", token="")
        connection.send(Message(Kind.HELLO, 1, hello))
        assert connection.receive(LIMIT_S).body.code == "incompatible"


def test_a_door_that_cannot_be_closed_keeps_no_other_open(doors_at, folder, monkeypatch, caplog):
    class Stuck(ListenerDoor):
        def close(self):
            super().close()
            if self.address.family == "tcp":
                raise OSError("the hinge is broken")

    monkeypatch.setattr(door_set, "ListenerDoor", Stuck)
    file = folder / "a.sock"
    doors = doors_at([TCP, f"rollmesh+unix://{file}"])
    doors.bind()
    doors.close()
    assert not file.exists()
    assert f"door_close_failed address={doors.addresses[0]}" in caplog.text
    assert "the hinge is broken" in caplog.text


def test_doors_that_were_never_bound_can_be_closed(doors_at):
    doors = doors_at(TCP)
    doors.close()
    assert doors.addresses == ()
