"""Cases about servers themselves: addresses, clients that vanish, hostile bytes, signals.

Each function takes the run, asserts what its case calls right, and returns a few words or None.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rollmesh import EnvFailed, InvalidSpec, Limits, evaluate
from rollmesh.endpoint.clients.client_dialing import Dialer
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import ListenFailed
from rollmesh.testing.faults import FaultProxy
from rollmesh.testing.faults.links import Pipe
from rollmesh.transport.address import parse_address
from tests.cases.case_files import environment
from tests.cases.case_run import CaseRun
from tests.cases.judging import finished, raised
from tests.cases.recording import Outcome
from tests.cases.served_ways import GRPC, TCP, UNIX, options, served_env, served_model

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 20.0
LINKS = (UNIX, TCP, GRPC)


def driven(act: Callable[[CaseRun], str | None]) -> Callable[[CaseRun, Outcome], None]:
    """Return what drives a case by a function that asserts by itself."""

    def drive(run: CaseRun, outcome: Outcome) -> None:
        outcome.answer = act(run)

    return drive


def judge_driven(outcome: Outcome) -> str | None:
    """Return what that function said, or raise what it raised."""
    finished(outcome)
    return outcome.answer


@contextlib.contextmanager
def child(module: str, *arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Run a module in a process, which is ended by its own id."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **environ},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that another thread or process does."""
    expiry = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < expiry, what
        time.sleep(0.005)


def zero(observation: Any) -> Any:
    """Act as little as possible."""
    del observation
    return np.zeros(2, np.float32)


def plays(address: str) -> None:
    """Assert that an address serves an episode."""
    limits = Limits(env_connect_s=PATIENCE_S)
    result = evaluate(zero, address, seeds=[0], max_episode_steps=2, limits=limits)
    assert [episode.steps for episode in result.episodes] == [2], result


def refused_to_listen(
    run: CaseRun, address: str, kind: type[Exception] = ListenFailed, *words: str
) -> None:
    """Assert one clear error at start."""
    error = raised(kind, lambda: EnvServer(run.factory, address, options()).start())
    for word in words:
        assert word in str(error), error


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """Give a folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="rm", dir="/tmp") as path:
        yield path


# -------------------------------------------------------------------------------------- C56


def c56_client_vanishes(run: CaseRun) -> str:
    """Free the place of a client that was killed or stopped, and end its episode everywhere."""
    env_options = {"max_sessions": 1, "contested_grace_s": 0.2, "idle_timeout_s": 0.5}
    ended: list[str] = []

    class Model:
        def predict(self, observation: Any) -> Any:
            return np.zeros(2, np.float32)

        def on_episode_end(self, context: Any) -> None:
            ended.append(context.episode_id)

    model_options = ServerOptions(resume_grace_s=0.2, close_timeout_s=1.0)
    with (
        EnvServer(run.factory, UNIX.address, options(**env_options)) as env,
        ModelServer(Model(), UNIX.address, model_options) as model,
        child("tests.cases.lost_client", env.address, model.address) as client,
    ):
        assert client.stdout is not None
        assert client.stdout.readline() == "here\n"
        client.send_signal(getattr(signal, run.variant))
        begun = time.monotonic()
        plays(env.address)
        assert time.monotonic() - begun < 10
        assert not ended or run.variant == "SIGKILL"
        client.kill()
        until(lambda: len(ended) == 1, "the model was not told of the lost client's end")
        until(lambda: model.sessions == 0, "the lost client's session lives on")
    return "its place was given away"


# -------------------------------------------------------------------------------- C59 to C61


def c59_address_in_use(run: CaseRun) -> str | None:
    """Tell of an address in use, and take one that is free."""
    for link in (TCP, GRPC):
        scheme = link.address.partition("://")[0]
        if run.variant == "busy_port":
            with socket.create_server(("127.0.0.1", 0)) as busy:
                address = f"{scheme}://127.0.0.1:{busy.getsockname()[1]}"
                refused_to_listen(run, address, ListenFailed, address, "in use")
        if run.variant == "restart":
            with served_env(run.factory, link) as address:
                assert not address.endswith(":0"), "port 0 gives a port that can be read"
                plays(address)
            with EnvServer(run.factory, address, options()) as again:
                plays(again.address)
    with folder() as where:
        for scheme in ("rollmesh+unix", "unix"):
            address = f"{scheme}://{where}/{scheme}.sock"
            if run.variant == "busy_path":
                with EnvServer(run.factory, address, options()) as first:
                    refused_to_listen(run, address, ListenFailed, address, "in use")
                    plays(first.address)
            if run.variant == "stale_path":
                with socket.socket(socket.AF_UNIX) as stale:
                    stale.bind(parse_address(address).path)
                with EnvServer(run.factory, address, options()) as server:
                    plays(server.address)
    return None


def c60_bind(run: CaseRun) -> str | None:
    """Listen where it was asked for and nowhere else; localhost is whichever loopback is there."""
    if run.variant == "default":
        with EnvServer(run.factory, options=options()) as server:
            assert parse_address(server.address).family == "unix", server.address
            plays(server.address)
        return "a socket file of this user"
    host = f"[{run.variant}]" if ":" in run.variant else run.variant
    for scheme in ("rollmesh+tcp", "tcp"):
        with EnvServer(run.factory, f"{scheme}://{host}:0", options()) as server:
            port = parse_address(server.address).port
            assert listeners(port) == ["::1" if run.variant == "::1" else "127.0.0.1"]
            plays(f"{scheme}://{host}:{port}")
            plays(f"{scheme}://localhost:{port}")
        refused_to_listen(run, f"{scheme}://0.0.0.0:0", InvalidSpec, "TLS", "token")
    return None


def listeners(port: int) -> list[str]:
    """Return the addresses that something listens at on a port, as the system says."""
    found: list[str] = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text("ascii").splitlines()[1:]:
            local, _, state = line.split()[1:4]
            host, _, number = local.partition(":")
            if int(number, 16) == port and state == "0A":
                words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
                name = socket.inet_ntop(family, b"".join(words))
                found.append(name.removeprefix("::ffff:"))  # grpc's IPv4 addresses are mapped
    return found


def c60_tracebacks(run: CaseRun) -> str | None:
    """Send no traceback to whoever may be a stranger, unless that was asked for."""

    def broken(lane: int) -> Any:
        env = run.make_env(lane)
        env.length = "not a number"
        return env

    for link, is_told in ((UNIX, True), (TCP, False), (GRPC, False)):
        with (
            environment({"ROLLMESH_TRANSPORT": link.transport}),
            EnvServer(broken, link.address, ServerOptions(close_timeout_s=0.5)) as server,
        ):
            where = server.address
            error = raised(EnvFailed, lambda to=where: plays(to))
        assert isinstance(error, EnvFailed)
        assert ("common.py" in str(error)) is is_told, (link, error)
        assert error.error_class == "TypeError"
    return None


def c61_path_lengths(run: CaseRun) -> str | None:
    """Take paths of up to 107 bytes, odd letters and all, and name the limit for longer ones."""
    path_of = run.case.path_of
    with folder() as where:
        for scheme in ("rollmesh+unix", "unix"):
            for length in run.run["lengths"]:
                address = f"{scheme}://{path_of(where, length)}"
                if length <= 107:
                    with EnvServer(run.factory, address, options()) as server:
                        plays(server.address)
                else:
                    refused_to_listen(run, address, InvalidSpec, str(length), "107")
            for name in ("a b", "a%20b", "Öl-日本"):
                with EnvServer(run.factory, f"{scheme}://{where}/{name}.sock", options()) as server:
                    plays(server.address)
            address = f"{scheme}://{where}/nowhere/x.sock"
            refused_to_listen(run, address, ListenFailed, "there is no folder", "nowhere")
            os.chdir(where)  # of a process of its own
            with EnvServer(run.factory, f"{scheme}://relative.sock", options()) as server:
                plays(server.address)
            os.chdir("/")
        long = Path(where) / ("t" * 150)
        long.mkdir()
        with environment({"TMPDIR": str(long)}), served_env(run.factory, UNIX) as address:
            plays(address)
    return None


# -------------------------------------------------------------------------------------- C63


def c63_raw_bytes(run: CaseRun) -> str | None:
    """Survive hostile bytes at the port, run none of them, and send nothing that is a pickle."""
    for link in LINKS:
        with served_env(run.factory, link) as address, served_model(zero, link) as model:
            for data in run.case.HOSTILE:
                for target in (address, model):
                    _throw(target, data)
            plays(address)
            sent = _on_the_wire(address, model)
            assert len(sent) > 1000
            for word in (b"cnumpy", b"numpy.core", b"numpy._core", b"_reconstruct", b"__reduce__"):
                assert word not in sent, f"{word!r} on the wire of {link.address}"
            for first in (b"\x80\x04\x95", b"\x80\x05\x95", b"\x80\x03c"):
                assert first not in sent, "a pickle on the wire"
        assert not Path(run.case.MARK).exists(), "the bomb went off"
    return None


def _throw(address: str, data: bytes) -> None:
    """Send bytes to a port, and hear what comes back."""
    where = parse_address(address)
    with contextlib.ExitStack() as stack:
        if where.family == "unix":
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.settimeout(PATIENCE_S)
            sock.connect(where.path)
        else:
            sock = stack.enter_context(socket.create_connection((where.host, where.port), 5))
        sock.settimeout(PATIENCE_S)
        with contextlib.suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass


def _on_the_wire(address: str, model: str) -> bytes:
    """Play through a proxy, and return all bytes that passed it."""
    seen = bytearray()
    pass_on = Pipe._pass_on

    def note(self: Any, chunk: Any, now_s: float) -> None:
        seen.extend(chunk.data)
        pass_on(self, chunk, now_s)

    setattr(Pipe, "_pass_on", note)  # noqa: B010 - it is a method
    try:
        with FaultProxy(address) as to_env, FaultProxy(model) as to_model:
            result = evaluate(str(to_model.address), str(to_env.address), seeds=[0])
    finally:
        setattr(Pipe, "_pass_on", pass_on)  # noqa: B010 - as above
    assert len(result.episodes) == 1
    return bytes(seen)


# -------------------------------------------------------------------------------- C52 and C54


def c52_signals(run: CaseRun) -> str | None:
    """Stop a server whose env took the signal handlers, and close the env once."""
    for number in (signal.SIGINT, signal.SIGTERM):
        _stop(run, number)
    return None


def _stop(run: CaseRun, number: signal.Signals) -> None:
    with tempfile.TemporaryDirectory() as where:
        ready, tape = Path(where) / "ready", Path(where) / "tape.jsonl"
        arguments = (str(run.case.__file__), UNIX.address, str(ready))
        with child("tests.cases.case_server", *arguments, CASE_TAPE=str(tape)) as server:
            until(lambda: server.poll() is not None or ready.exists(), "it did not start")
            until(lambda: ready.read_text().endswith("\n"), "it is not ready")
            plays(ready.read_text().split()[0])
            server.send_signal(number)
            assert server.wait(PATIENCE_S) == 0
        notes = tape.read_text("utf-8")
    assert notes.count('"close"') == 1, notes
    assert "swallowed" not in notes, "the env took the signal"


def c54_second_client(run: CaseRun) -> str | None:
    """Let a second client in while the first call of the model takes its time."""
    run.case.SLOW_S = 1.0
    slow = run.make_policy()
    for link in (UNIX, GRPC):
        type(slow).first = True
        with served_model(slow, link) as address:
            _enter_beside(run, slow, address)
    return None


def _enter_beside(run: CaseRun, slow: Any, address: str) -> None:
    results: list[Any] = []

    def play() -> None:
        results.append(evaluate(address, run.factory, seeds=[0]))

    first = threading.Thread(target=play)
    first.start()
    until(lambda: not type(slow).first, "the first call did not begin")
    door = Dialer(parse_address(address), "model", client_options())
    with door.open("", PATIENCE_S).connection:
        assert not results, "the second client waited for the first call"
    first.join(PATIENCE_S)
    assert [len(result.episodes) for result in results] == [1]
