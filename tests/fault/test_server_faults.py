"""Servers under signals, with clients that freeze or die, and envs that hang or die."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollmesh.errors import ConnectionLost
from rollmesh.ports import ResetReply, StepReply
from rollmesh.wire.messages import Kind
from tests.unit.serving_toys import LIMIT_S, Client, close_clients

pytestmark = pytest.mark.fault

ROOT = Path(__file__).resolve().parents[2]
CLIENT = """
import os, sys, time
from tests.unit.serving_toys import Client
client = Client(sys.argv[1])
client.enter()
client.reset()
client.step()
print("stepped", flush=True)
time.sleep(60)
"""


class Served:
    """A server process."""

    def __init__(self, folder, kind, **environ):
        self.folder = folder
        self.socket = folder / "server.sock"
        self.address = f"rollmesh+unix://{self.socket}"
        self.closed = folder / "closed"
        ready = folder / "ready"
        self.process = run(
            [str(ROOT / "tests/fault/server_process.py"), kind, self.address, str(ready)],
            CLOSED=str(self.closed),
            **environ,
        )
        end = time.monotonic() + 30
        while not ready.exists():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end
            time.sleep(0.01)

    def enter(self):
        client = Client(self.address)
        client.enter()
        return client

    def signal(self, number):
        self.process.send_signal(number)

    def ended(self, limit_s=LIMIT_S):
        """Wait for the end; return the exit code and what was printed."""
        output, _ = self.process.communicate(timeout=limit_s)
        return self.process.returncode, output.decode()

    def times_closed(self):
        return self.closed.read_text().count("closed") if self.closed.exists() else 0


def run(arguments, **environ):
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": path, **environ},
        cwd=ROOT,
    )


@pytest.fixture
def serve(tmp_path):
    """Give a function that starts a server; ends it, and checks that nothing is left."""
    made = []

    def start(kind="env", **environ):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Served(folder, kind, **environ))
        return made[-1]

    yield start
    close_clients()
    for served in made:
        if served.process.poll() is None:
            served.process.kill()
        served.process.wait()
        served.process.stdout.close()


def children(pid):
    """Return the processes that a process started and that are still there."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(folder.name))
    return found


def is_gone(pid):
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


# ----------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["env", "steals", "model"])
def test_p11_a_signal_closes_once_and_exits_with_0(serve, kind, number):
    served = serve(kind)
    served.signal(number)
    code, output = served.ended()
    assert (code, "returned" in output) == (0, True), output
    assert served.times_closed() == 1
    assert not served.socket.exists()
    assert not (served.folder / "ready").exists()


def test_p11_sessions_may_finish_while_it_drains(serve):
    served = serve()
    client = served.enter()
    assert isinstance(client.reset(), ResetReply)
    served.signal(signal.SIGTERM)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        assert isinstance(client.step(), StepReply)
        time.sleep(0.05)
    with Client(served.address) as other:
        assert other.enter().code == "draining"
    client.leave()
    assert served.ended()[0] == 0
    assert served.times_closed() == 1


def test_p11_a_drain_has_an_end(serve):
    served = serve(DRAIN_S="0.3")
    client = served.enter()
    client.reset()
    served.signal(signal.SIGTERM)
    with pytest.raises(ConnectionLost):  # noqa: PT012 - one of the steps
        while True:
            client.step()
    assert served.ended()[0] == 0


@pytest.mark.parametrize("kind", ["env", "steals"])
def test_p11_a_second_signal_ends_it_at_once_also_in_a_hung_env(serve, kind):
    served = serve(kind)
    client = served.enter()
    client.reset()
    client.send(Kind.STEP, client.step_request(7))
    time.sleep(0.2)
    served.signal(signal.SIGTERM)
    time.sleep(0.5)
    begun = time.monotonic()
    served.signal(signal.SIGTERM)
    code, _ = served.ended()
    assert time.monotonic() - begun < 1.0
    assert code == 128 + signal.SIGTERM
    assert not served.socket.exists()


def test_c45_a_close_that_hangs_does_not_hold_up_the_exit(serve):
    served = serve("hangs")
    begun = time.monotonic()
    served.signal(signal.SIGTERM)
    code, _ = served.ended()
    assert time.monotonic() - begun < 5
    assert code == 1
    assert not served.socket.exists()


# ----------------------------------------------------------------------------------- clients


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_c56_a_client_that_dies_or_freezes_gives_its_place_away(serve, number):
    served = serve()
    client = run(["-c", CLIENT, served.address])
    try:
        assert client.stdout.readline() == b"stepped\n"
        client.send_signal(number)
        begun = time.monotonic()
        other = served.enter()
        assert time.monotonic() - begun < 5
        assert other.step().code == "not_ready"
        assert isinstance(other.reset(), ResetReply)
        assert other.step().observation[0][0, 0] == 1
        other.leave()
    finally:
        client.kill()
        client.communicate()
    served.signal(signal.SIGTERM)
    assert served.ended()[0] == 0


# -------------------------------------------------------------------------------------- envs


@pytest.mark.parametrize(("action", "how"), [(5, "exited with code 0"), (6, "died of SIGKILL")])
def test_c47_c48_an_isolated_env_that_dies_is_named_and_started_anew(serve, action, how):
    served = serve("isolated")
    client = served.enter()
    client.reset()
    begun = time.monotonic()
    body = client.step(action)
    assert time.monotonic() - begun < 5
    assert (body.code, body.error_class, body.is_recoverable) == ("crashed", "EnvProcessDied", True)
    assert how in body.message
    assert client.step().code == "not_ready"
    assert client.reset().observation[0][0, 1] == 1
    assert isinstance(client.step(), StepReply)
    client.leave()
    served.signal(signal.SIGTERM)
    assert served.ended()[0] == 0
    assert served.times_closed() == 1


def test_p1_an_isolated_env_that_hangs_is_killed_and_the_session_goes_on(serve):
    served = serve("isolated")
    client = served.enter()
    client.reset()
    (child,) = children(served.process.pid)
    begun = time.monotonic()
    body = client.step(7, timeout_ms=200)
    assert time.monotonic() - begun < 0.2 + 0.25
    assert (body.code, body.is_recoverable) == ("timeout", True)
    assert is_gone(child)
    assert client.step().code == "not_ready"
    assert isinstance(client.reset(), ResetReply)
    assert isinstance(client.step(), StepReply)
    client.leave()


@pytest.mark.parametrize("hung", [False, True])
def test_p11_an_isolated_env_dies_with_its_server(serve, hung):
    served = serve("isolated")
    (child,) = children(served.process.pid)
    if hung:
        client = served.enter()
        client.reset()
        client.send(Kind.STEP, client.step_request(7))
        time.sleep(0.1)
    served.process.kill()
    assert is_gone(child)


def test_a_server_that_is_killed_can_be_started_again_at_its_address(serve):
    served = serve()
    served.process.kill()
    served.process.wait()
    assert served.socket.exists()
    (served.folder / "ready").unlink()
    again = Served(served.folder, "env")
    client = again.enter()
    assert isinstance(client.reset(), ResetReply)
    client.leave()
    again.signal(signal.SIGTERM)
    assert again.ended()[0] == 0
