"""The life of a server: ready, drain, close, idle exit, signals, systemd, the watchdog."""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time

import pytest

from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.lifecycle import Readiness, Signals, notify_systemd
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.endpoint.servers.watchdog import Watchdog, now_ns
from rollmesh.errors import ConnectionLost, InvalidSpec, ListenFailed, TransportError
from rollmesh.ports import StepReply
from rollmesh.wire.messages import Kind
from tests.unit.serving_toys import LIMIT_S, Client, Counter, close_clients, entered, serving
from tests.unit.test_env_server import wait_for

# ----------------------------------------------------------------------------------- ready


def test_the_ready_file_appears_complete_and_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "ready"
    with serving(ready_file="ready") as server:
        os.chdir("/")  # as an env may
        assert file.read_text() == f"{server.address}\n"
    assert not list(tmp_path.iterdir())


def test_what_a_killed_server_left_is_not_taken_for_the_word_of_the_next(tmp_path):
    file = tmp_path / "ready"
    file.write_text("tcp://127.0.0.1:1\n")
    seen = []

    def build():
        seen.append(file.exists())
        return Counter()

    with serving(build, ready_file=file) as server:
        assert file.read_text() == f"{server.address}\n"
    assert seen == [False]


def test_a_server_that_cannot_start_leaves_the_word_of_the_one_that_runs(tmp_path):
    file = tmp_path / "ready"
    with serving(address="mem://only-one", ready_file=file) as server:
        second = EnvServer(Counter, "mem://only-one", ServerOptions(ready_file=file))
        with pytest.raises(ListenFailed):
            second.start()
        assert file.read_text() == f"{server.address}\n"


def test_a_server_that_ends_late_leaves_the_word_of_the_next_one(tmp_path):
    file = tmp_path / "ready"
    with serving(address="mem://next", ready_file=file) as after:
        with serving(address="mem://late", ready_file=tmp_path / "other") as before:
            before.readiness = Readiness(ready_file=file)
            before.readiness.ready(before.addresses)
            next_one = Readiness(ready_file=file)
            next_one.begin()
            next_one.ready(after.addresses)
        assert file.read_text() == "mem://next\n"


@pytest.mark.parametrize("way", ["serve", "start"])
def test_a_server_that_is_ended_while_its_env_is_built_never_says_that_it_is_ready(way):
    told = []

    class Note(Readiness):
        def ready(self, addresses):
            told.append(addresses)

    def build():
        server.ask_shutdown("a signal")
        wait_for(lambda: not server.is_serving and server._draining)
        return Counter()

    server = EnvServer(build, "mem://ended-early")
    server.readiness = Note()
    getattr(server, way)()
    assert server.wait(LIMIT_S)
    assert told == []


def test_the_ready_descriptor_gets_the_addresses_and_is_closed():
    reading, writing = os.pipe()
    with serving(address=["mem://ready-one", "mem://ready-two"], ready_fd=writing):
        with os.fdopen(reading) as stream:
            assert stream.read() == "mem://ready-one\nmem://ready-two\n"
        with pytest.raises(OSError):
            os.fstat(writing)


def test_nobody_at_the_ready_descriptor_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    Readiness(writing).ready(["x"])


@pytest.mark.parametrize("way", ["serve", "start"])
def test_a_ready_descriptor_that_is_not_open_is_refused_before_anything_is_built(way):
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    server = EnvServer(_never_built, "mem://not-told", ServerOptions(ready_fd=writing))
    with pytest.raises(InvalidSpec, match=f"ready_fd: {writing} is no open descriptor"):
        getattr(server, way)()


def test_a_ready_file_without_a_folder_is_refused_before_anything_is_built(tmp_path):
    file = tmp_path / "nowhere" / "ready"
    server = EnvServer(_never_built, "mem://not-told", ServerOptions(ready_file=file))
    with pytest.raises(InvalidSpec, match=r"ready_file: the folder .*nowhere does not exist"):
        server.serve()


def _never_built():
    raise AssertionError


def test_an_env_is_closed_at_once_where_the_word_that_it_is_ready_fails(caplog):
    class Mute(Readiness):
        def ready(self, addresses):
            raise OSError("the disk is full")

    env = Counter()
    options = ServerOptions(close_timeout_s=LIMIT_S, closes_env=True)
    server = EnvServer(env, "mem://mute", options)
    server.readiness = Mute()
    with pytest.raises(OSError, match="the disk is full"):
        server.serve()
    assert env.closed
    assert "close_overdue" not in caplog.text


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_is_told(tmp_path, monkeypatch, is_abstract):
    path = f"\0rollmesh-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.settimeout(LIMIT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", path.replace("\0", "@"))
        with serving() as server:
            told = sock.recv(4096).decode()
            assert told.startswith("READY=1\n")
            assert server.address in told
            server.drain(0.0)
            assert sock.recv(4096) == b"STOPPING=1"


def test_without_systemd_nothing_is_told(monkeypatch, tmp_path):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify_systemd("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    assert not notify_systemd("READY=1")


# --------------------------------------------------------------------------- drain and close


def test_a_draining_server_takes_nobody_new():
    with serving(Counter()) as server, entered(server) as client:
        client.reset()
        waiting = Client(server.address)
        assert waiting.connection.receive(LIMIT_S).body.position == 1
        drained = threading.Thread(target=server.drain, args=(LIMIT_S,))
        drained.start()
        assert waiting.connection.receive(LIMIT_S).body.code == "draining"
        with Client(server.address) as other:
            assert other.enter().code == "draining"
        assert not server.is_serving
        assert isinstance(client.step(), StepReply)
        client.leave()
        drained.join(LIMIT_S)
        assert not drained.is_alive()


def test_a_drain_ends_idle_sessions_at_once():
    with serving() as server, entered(server) as client:
        client.reset()
        begun = time.monotonic()
        assert server.drain(LIMIT_S)
        assert time.monotonic() - begun < 5
        with pytest.raises(ConnectionLost):
            client.step()


def test_a_close_lets_the_request_under_way_finish():
    env = Counter()
    with serving(env) as server:
        client = entered(server)
        client.reset()
        request_id = client.send(Kind.STEP, client.step_request(2))
        wait_for(lambda: any(session.flights for session in server._sessions.values()))
        closing = threading.Thread(target=server.close)
        closing.start()
        env.gate.set()
        reply = client.connection.receive(LIMIT_S)
        assert reply.request_id == request_id
        assert isinstance(reply.body, StepReply)
        closing.join(LIMIT_S)


def test_closing_twice_or_before_the_start_is_fine():
    server = EnvServer(Counter)
    server.close()
    server.close()
    assert server.wait(0)
    with pytest.raises(RuntimeError):
        server.start()
    with pytest.raises(RuntimeError, match="not started"):
        _ = EnvServer(Counter).address


def test_a_closed_server_is_gone(tmp_path):
    address = f"rollmesh+unix://{tmp_path}/s.sock"
    for _ in range(3):
        with serving(address=address) as server, entered(server) as client:
            client.reset()
        with pytest.raises(TransportError):
            Client(address)
    assert not list(tmp_path.iterdir())


def test_no_thread_is_left():
    before = set(threading.enumerate())
    with serving() as server, entered(server) as client:
        client.reset()

    def left():
        return {t.name for t in set(threading.enumerate()) - before if t.name[:8] == "rollmesh"}

    wait_for(lambda: not left())


def test_an_idle_server_ends_by_itself():
    server = EnvServer(Counter, options=ServerOptions(exit_when_idle_s=0.2, drain_timeout_s=0.0))
    server.start()
    client = entered(server)
    client.reset()
    time.sleep(0.3)
    assert isinstance(client.step(), StepReply)
    client.leave()
    assert server.wait(LIMIT_S)
    close_clients()


# ---------------------------------------------------------------------------------- signals


def taken(signals, *numbers):
    """Raise signals while they are handled; return what was called."""
    called = queue.SimpleQueue()
    old = signals._on_signal
    signals._on_signal = lambda number, before: called.put((number, before))
    with signals:
        for number in numbers:
            signal.raise_signal(number)
        result = [called.get(timeout=LIMIT_S) for _ in numbers]
    signals._on_signal = old
    return sorted(result, key=lambda one: one[1])


def test_signals_are_taken_in_order_and_counted():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    found = taken(Signals(print), signal.SIGTERM, signal.SIGINT)
    assert found == [(signal.SIGTERM, 0), (signal.SIGINT, 1)]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_c52_an_env_that_takes_the_handlers_does_not_take_the_signals():
    called = queue.SimpleQueue()
    swallowed = []
    with Signals(lambda number, before: called.put((number, before))) as signals:
        signal.signal(signal.SIGTERM, lambda *_: swallowed.append("term"))
        signal.raise_signal(signal.SIGTERM)
        assert called.get(timeout=LIMIT_S) == (signal.SIGTERM, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signals.install_again()
        signal.raise_signal(signal.SIGINT)
        assert called.get(timeout=LIMIT_S) == (signal.SIGINT, 1)
    assert swallowed == ["term"]


def test_off_the_main_thread_signals_are_left_alone():
    before = signal.getsignal(signal.SIGTERM)
    installed = []

    def work():
        with Signals(print) as signals:
            signals.install_again()
            installed.append(signals.is_installed)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(LIMIT_S)
    assert installed == [False]
    assert signal.getsignal(signal.SIGTERM) == before


# --------------------------------------------------------------------------------- watchdog


class Due:
    """Wants to be looked at every so often."""

    def __init__(self, every_ns):
        self.every_ns = every_ns
        self.looks = queue.SimpleQueue()

    def check(self, at_ns):
        self.looks.put(at_ns)
        return at_ns + self.every_ns


def test_the_watchdog_looks_when_it_was_told_to():
    watchdog = Watchdog("test")
    due = Due(20_000_000)
    begun = now_ns()
    watchdog.watch(due)
    looks = [due.looks.get(timeout=LIMIT_S) for _ in range(4)]
    assert looks[3] - begun >= 40_000_000
    watchdog.close()


def test_the_watchdog_looks_when_it_is_rung():
    watchdog = Watchdog("test")
    due = Due(10**15)
    watchdog.watch(due)
    due.looks.get(timeout=LIMIT_S)
    watchdog.ring()
    due.looks.get(timeout=LIMIT_S)
    watchdog.unwatch(due)
    watchdog.close()


def test_one_that_raises_does_not_stop_the_others(caplog):
    class Bad:
        def check(self, at_ns):
            raise RuntimeError("oops")

    watchdog = Watchdog("test")
    due = Due(10_000_000)
    watchdog.watch(Bad())
    watchdog.watch(due)
    for _ in range(3):
        due.looks.get(timeout=LIMIT_S)
    watchdog.close()
    assert "watchdog_failed" in caplog.text
