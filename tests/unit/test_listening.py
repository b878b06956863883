"""Listeners: addresses in use, leftovers, modes of socket files, accept and close."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import threading
import time
from pathlib import Path

import pytest

from rollmesh.errors import ConnectFailed, ConnectionLost, InvalidSpec, ListenFailed
from rollmesh.transport import dialing, unix_paths
from rollmesh.transport.address import LONGEST_UNIX_PATH
from rollmesh.transport.dialing import dial, listen
from rollmesh.wire.messages import Kind, Message
from tests.unit.frame_toys import on_thread

NATIVE = "rollmesh+unix://"
LIMIT_S = 10.0


@pytest.fixture
def folder():
    """A folder with a short name, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    yield path
    shutil.rmtree(path)


def speaks(address):
    with listen(address) as listener:
        return is_served(listener)


SYSTEM_LISTS = Path("/proc/net/unix").exists()


def drop_askers(listener, count):
    """Drop those who had to connect to know whether somebody listens; nobody has, on Linux."""
    for _ in range(0 if SYSTEM_LISTS else count):
        listener.accept(LIMIT_S).close()
    assert listener.accept(0.0) is None


def is_served(listener):
    with dial(listener.address) as client, listener.accept(LIMIT_S) as server:
        client.send(Message(Kind.PING, 1))
        return server.receive(LIMIT_S).kind is Kind.PING


# ---------------------------------------------------------------------------------- C59: in use


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_c59_port_0_gives_a_port_that_can_be_read(host):
    with listen(f"rollmesh+tcp://{host}:0") as listener:
        assert listener.address.port > 0
        assert str(listener.address) == f"rollmesh+tcp://{host}:{listener.address.port}"
        assert is_served(listener)


def test_c59_a_busy_port_is_a_clear_error_and_harms_nobody():
    with listen("rollmesh+tcp://127.0.0.1:0") as first:
        begun = time.monotonic()
        with pytest.raises(ListenFailed, match="address in use") as caught:
            listen(str(first.address))
        assert time.monotonic() - begun < 1
        assert str(first.address) in str(caught.value)
        assert isinstance(caught.value, OSError)
        assert is_served(first)


def test_c59_a_port_can_be_used_again_at_once():
    first = listen("rollmesh+tcp://127.0.0.1:0")
    with dial(first.address):
        server = first.accept(LIMIT_S)
        server.close()  # the server's side closes first and stays in TIME_WAIT
    first.close()
    assert speaks(str(first.address))


def test_c59_a_busy_path_is_a_clear_error_and_harms_nobody(folder):
    address = f"{NATIVE}{folder}/x.sock"
    with listen(address) as first:
        begun = time.monotonic()
        with pytest.raises(ListenFailed, match="address in use") as caught:
            listen(address)
        assert time.monotonic() - begun < 1
        assert address in str(caught.value)
        drop_askers(first, 1)
        assert is_served(first)


def test_c59_a_leftover_socket_file_is_replaced(folder):
    path = folder / "x.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.listen()
    dead.close()
    assert path.is_socket()
    assert speaks(f"{NATIVE}{path}")


def test_what_is_no_socket_is_left_alone(folder):
    path = folder / "notes.txt"
    path.write_text("mine")
    with pytest.raises(ListenFailed, match="is no socket"):
        listen(f"{NATIVE}{path}")
    assert path.read_text() == "mine"


def test_a_folder_that_is_not_there_is_named(folder):
    with pytest.raises(ListenFailed, match=r"there is no folder .*/nowhere"):
        listen(f"{NATIVE}{folder}/nowhere/x.sock")


def test_a_host_that_is_not_there_or_not_ours_is_named():
    with pytest.raises(ListenFailed, match="host is not known"):
        listen("rollmesh+tcp://no.such.host.invalid:0")
    with pytest.raises(ListenFailed, match=r"198\.51\.100\.1"):
        listen("rollmesh+tcp://198.51.100.1:0")


def test_servers_that_start_at_once_do_not_take_each_others_path(folder):
    address = f"{NATIVE}{folder}/x.sock"
    made, refused = [], []
    barrier = threading.Barrier(8)

    def start():
        barrier.wait()
        try:
            made.append(listen(address))
        except ListenFailed:
            refused.append(1)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert (len(made), len(refused)) == (1, 7)
    with made[0]:
        drop_askers(made[0], 7)
        assert is_served(made[0])


# ------------------------------------------------------------------------------ C61: long paths


@pytest.mark.parametrize("size", [100, LONGEST_UNIX_PATH])
def test_c61_a_path_up_to_the_limit_works(folder, size):
    path = str(folder / "s")
    path += "s" * (size - len(path))
    assert speaks(NATIVE + path)


def test_c61_a_longer_path_names_its_length_and_the_limit(folder):
    for size in (LONGEST_UNIX_PATH + 1, 200):
        path = str(folder / "s")
        path += "s" * (size - len(path))
        with pytest.raises(InvalidSpec, match=rf"{LONGEST_UNIX_PATH} bytes.*{size}"):
            listen(NATIVE + path)


@pytest.mark.parametrize("name", ["a b.sock", "%20.sock", "häß.sock"])
def test_c61_a_path_is_taken_as_it_stands(folder, name):
    with listen(f"{NATIVE}{folder}/{name}") as listener:
        assert (folder / name).is_socket()
        assert is_served(listener)


def test_c61_a_relative_path_works(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert speaks(f"{NATIVE}x.sock")


@pytest.mark.parametrize("runtime", ["", "/nowhere", "/tmp/" + "x" * 150])
def test_c61_our_own_paths_do_not_depend_on_long_folders(runtime, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setenv("TMPDIR", "/tmp/" + "t" * 150)
    with listen(NATIVE) as listener:
        assert listener.address.path.startswith(f"/tmp/rollmesh-{os.getuid()}/")
        assert is_served(listener)


# ------------------------------------------------------------------------------- socket files


def test_our_own_socket_is_for_this_user_only_and_goes_with_its_listener(folder, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    with listen(NATIVE) as listener:
        path = Path(listener.address.path)
        assert path.parent == folder / "rollmesh"
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == []


def test_a_socket_at_a_named_path_is_for_this_user_only(folder):
    old = os.umask(0)
    try:
        with listen(f"{NATIVE}{folder}/x.sock"):
            assert stat.S_IMODE((folder / "x.sock").stat().st_mode) == 0o600
    finally:
        os.umask(old)
    assert not (folder / "x.sock").exists()


def test_leftovers_in_our_own_folder_are_swept_and_the_living_are_not(folder, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    with listen(NATIVE) as alive:
        dead = folder / "rollmesh" / "server-1-dead.sock"
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(dead))
        with listen(NATIVE):
            assert not dead.exists()
            assert Path(alive.address.path).exists()
            drop_askers(alive, 1)
            assert is_served(alive)


def test_who_listens_is_known_without_connecting_where_the_system_says_so(folder, monkeypatch):
    if not SYSTEM_LISTS:
        pytest.skip("this system does not list who listens")
    path = f"{folder}/x y.sock"
    with listen(f"{NATIVE}{path}") as listener, dial(listener.address), listener.accept(LIMIT_S):
        assert path in unix_paths._listed()
        with pytest.raises(ListenFailed, match="another server listens there"):
            listen(listener.address)
        assert listener.accept(0.0) is None
    assert path not in unix_paths._listed()
    monkeypatch.setattr(unix_paths, "_listed", frozenset)
    with listen(f"{NATIVE}{folder}/x.sock") as listener:
        with pytest.raises(ListenFailed, match="another server listens there"):
            listen(listener.address)
        listener.accept(LIMIT_S).close()  # elsewhere one has to connect to know


def test_a_folder_of_ours_that_others_may_enter_is_not_used(folder, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    (folder / "rollmesh").mkdir(mode=0o755)
    with listen(NATIVE) as listener:
        assert not listener.address.path.startswith(str(folder))
    (folder / "link").symlink_to(folder / "rollmesh")
    with pytest.raises(ListenFailed, match="nobody else may enter"):
        unix_paths._private(folder / "link")


def test_closing_leaves_the_socket_of_a_successor_alone(folder):
    address = f"{NATIVE}{folder}/x.sock"
    first = listen(address)
    (folder / "x.sock").unlink()
    with listen(address) as second:
        first.close()
        assert is_served(second)


# ---------------------------------------------------------------------------- accept and close


@pytest.mark.parametrize("address", [NATIVE, "rollmesh+tcp://127.0.0.1:0", "mem://closing"])
def test_close_ends_an_accept_at_once(address):
    listener = listen(address)

    def wait():
        with pytest.raises(ConnectionLost, match="the listener is closed"):
            listener.accept()

    with on_thread(wait):
        listener.close()
    listener.close()
    with pytest.raises(ConnectionLost):
        listener.accept()


@pytest.mark.parametrize("address", [NATIVE, "rollmesh+tcp://127.0.0.1:0", "mem://waiting"])
def test_accept_gives_nothing_when_its_time_is_over(address):
    with listen(address) as listener:
        begun = time.monotonic()
        assert listener.accept(0.05) is None
        assert 0.04 < time.monotonic() - begun < 0.05 + 0.25


@pytest.mark.parametrize("address", [NATIVE, "rollmesh+tcp://127.0.0.1:0", "mem://living"])
def test_connections_outlive_their_listener(address):
    listener = listen(address)
    with dial(listener.address) as client, listener.accept(LIMIT_S) as server:
        listener.close()
        client.send(Message(Kind.PING, 1))
        assert server.receive(LIMIT_S).kind is Kind.PING


def test_descriptors_do_not_leak():
    def count():
        return len(list(Path("/proc/self/fd").iterdir()))

    speaks(NATIVE)
    before = count()
    for address in (NATIVE, "rollmesh+tcp://127.0.0.1:0") * 20:
        speaks(address)
    assert count() == before


@pytest.mark.parametrize("address", [NATIVE, "rollmesh+tcp://127.0.0.1:0"])
@pytest.mark.parametrize("error", [OSError("gone"), KeyboardInterrupt()])
def test_a_socket_that_becomes_no_connection_is_closed(address, error, monkeypatch):
    made = []

    def fails(sock, name, options):
        made.append(sock)
        raise error

    monkeypatch.setattr(dialing, "NativeConnection", fails)
    with listen(address) as listener:
        expected = ConnectFailed if isinstance(error, OSError) else KeyboardInterrupt
        with pytest.raises(expected):
            dial(listener.address)
    assert [sock.fileno() for sock in made] == [-1]
