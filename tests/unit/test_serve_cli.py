"""`rollmesh serve`: what was bound is told, signals end it, and bad arguments never listen."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

import rollmesh
from rollmesh.cli import exit_codes, main
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.probing import probe
from rollmesh.transport.security import TlsClient

SOURCE = str(Path(rollmesh.__file__).parent.parent)
COMMAND = [sys.executable, "-c", "import sys; from rollmesh.cli import main; sys.exit(main())"]
SECRET = "0123456789abcdef" * 2
LIMIT_S = 25.0

MODULE = """
import os, sys, threading, time
import gymnasium as gym
import numpy as np


class Env(gym.Env):
    observation_space = gym.spaces.Box(-1e6, 1e6, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=3, noisy=False):
        self.length = length
        if noisy:
            print("simulator banner {")
            os.write(1, b"from C \\x00\\n")
            sys.stdout = None

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t >= self.length, False, {}


class Sticks(Env):
    def close(self):
        if threading.current_thread() is not threading.main_thread():
            time.sleep(3600)


def broken():
    raise RuntimeError("no GPU")


def zero(observation):
    return 0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "served.py").write_text(textwrap.dedent(MODULE))
    return tmp_path


class Served:
    """A serve command under way."""

    def __init__(self, process: subprocess.Popen[str], values: dict[str, Any]) -> None:
        self.process = process
        self.values = values
        self.addresses: list[str] = values["addresses"]

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Send a signal; return exit code, the rest of stdout, and stderr."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, err


@contextlib.contextmanager
def serving(folder: Path, *arguments: str, **more: Any) -> Iterator[Served]:
    """Run `rollmesh serve … --json` until clients are served."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("ROLLMESH_")}
    environ |= {"PYTHONPATH": SOURCE, **more.pop("environ", {})}
    process = subprocess.Popen(
        [*COMMAND, "serve", *arguments, "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environ,
        **more,
    )
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], LIMIT_S)[0], "nothing was served in time"
        line = process.stdout.readline()
        assert line, process.communicate(timeout=LIMIT_S)[1]
        yield Served(process, json.loads(line))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=LIMIT_S)


def play(address: str, **options: Any) -> Any:
    return probe(address, client_options(environ={}, **options), measure_s=0.02)


# --------------------------------------------------------------------------------- lifecycle


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_0_and_leaves_nothing_behind(folder: Path, number: int) -> None:
    ready = folder / "ready"
    address = f"rollmesh+unix://{folder}/env.sock"
    arguments = ("env", "served:Env", "-a", address, "-a", "rollmesh+tcp://127.0.0.1:0")
    with serving(folder, *arguments, "--ready-file", str(ready)) as served:
        assert served.values["service"] == "env"
        assert served.values["process"] == served.process.pid
        assert served.values["contract"]["observation_space"]["kind"] == "Box"
        assert served.addresses[0] == address
        port = int(served.addresses[1].rpartition(":")[2])
        assert port > 0
        assert wait_for(ready).splitlines() == served.addresses
        assert stat.S_IMODE((folder / "env.sock").stat().st_mode) == 0o600
        for one in served.addresses:
            assert play(one).health == "serving"
        code, out, err = served.end(number)
    assert code == exit_codes.OK, err
    assert out == ""
    assert err.endswith("ended\n")
    assert f"{address}  (this user)" in err
    assert f"127.0.0.1:{port}  (this machine, plain text, no token)" in err
    assert not ready.exists()
    assert not (folder / "env.sock").exists()


def test_an_env_that_is_left_behind_at_the_end_makes_it_1(folder: Path) -> None:
    arguments = ("env", "served:Sticks", "-a", f"rollmesh+unix://{folder}/env.sock")
    with serving(folder, *arguments, "--close-timeout", "0.2") as served:
        where = served.addresses[0]
        with rollmesh.RemoteEnv(where) as one, rollmesh.RemoteEnv(where) as two:
            one.reset()
            two.reset()
        code, _, err = served.end()
    assert code == exit_codes.FAILED, err
    assert err.count("close_overdue") == 1


def wait_for(path: Path) -> str:
    """Return the content of a file that is about to appear complete."""
    stop = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < stop
        time.sleep(0.01)
    return path.read_text()


def test_the_ready_descriptor_gets_the_addresses(folder: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as pipe:
        arguments = ("env", "served:Env", "--ready-fd", str(writing))
        with serving(folder, *arguments, pass_fds=[writing]) as served:
            os.close(writing)
            assert pipe.read().splitlines() == served.addresses
            # without an address: a socket of our own in a private folder
            assert served.addresses[0].startswith("rollmesh+unix:///")
            path = Path(served.addresses[0].partition("//")[2])
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            served.end()
    assert not path.exists()


def test_standard_output_is_ours_alone_whatever_the_env_prints(folder: Path) -> None:
    with serving(folder, "env", "served:Env", "--env-kwargs", '{"noisy": true}') as served:
        code, out, err = served.end()
    assert (code, out) == (exit_codes.OK, "")
    assert "simulator banner" in err


def test_a_model_is_served_without_spaces(folder: Path) -> None:
    address = f"rollmesh+unix://{folder}/model.sock"
    with serving(folder, "model", "served:zero", "-a", address) as served:
        assert "contract" not in served.values
        assert play(address).service == "model"
        result = rollmesh.evaluate(address, "CartPole-v1", episodes=2, base_seed=0)
        here = rollmesh.evaluate(lambda _: 0, "CartPole-v1", episodes=2, base_seed=0)
        assert served.end()[0] == exit_codes.OK
    assert [e.total_reward for e in result.episodes] == [e.total_reward for e in here.episodes]


def test_isolate_process_serves_an_env_of_another_process(folder: Path) -> None:
    with serving(folder, "env", "served:Env", "--isolate", "process") as served:
        report = probe(served.addresses[0], client_options(environ={}), measure_s=0.02, steps=7)
        assert report.steps is not None
        assert report.steps.count == 7
        assert served.end()[0] == exit_codes.OK


def test_it_ends_when_idle_for_long_enough(folder: Path) -> None:
    with serving(folder, "env", "served:Env", "--exit-when-idle", "0.2") as served:
        assert served.process.wait(LIMIT_S) == exit_codes.OK


def test_verbose_shows_who_comes_and_goes(folder: Path) -> None:
    with serving(folder, "env", "served:Env", "--verbose") as served:
        play(served.addresses[0])
        _, _, err = served.end()
    assert "session_begun" in err


# --------------------------------------------------------------------------------- addresses


def test_C60_a_port_alone_is_loopback_and_comes_with_a_private_socket(folder: Path) -> None:
    with serving(folder, "env", "served:Env", "-a", "0") as served:
        address, native = served.addresses
        assert address.startswith("tcp://127.0.0.1:")
        assert native.startswith("rollmesh+unix:///")
        assert play(address).taken == native
        assert play(address, transport="grpc").path == "gRPC"
        local = address.replace("127.0.0.1", "localhost")
        assert play(local).health == "serving"


def test_the_private_socket_can_be_left_out(folder: Path) -> None:
    with serving(folder, "env", "served:Env", "-a", "localhost:0", "--no-native") as served:
        (address,) = served.addresses
        assert play(address).taken == address


def test_C60_an_ipv6_address_is_bound_and_found_as_localhost(folder: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_INET6)) as trial:
        try:
            trial.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
    with serving(folder, "env", "served:Env", "-a", "rollmesh+tcp://[::1]:0") as served:
        (address,) = served.addresses
        assert address.startswith("rollmesh+tcp://[::1]:")
        begun = time.monotonic()
        assert play(address.replace("[::1]", "localhost")).health == "serving"
        assert time.monotonic() - begun < 2.0


PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "grpc_proxy")


def test_C62_proxies_are_not_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = dict.fromkeys(PROXIES, "http://127.0.0.1:9")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    arguments = ("-a", "127.0.0.1:0", "-a", "rollmesh+tcp://127.0.0.1:0")
    with serving(folder, "env", "served:Env", *arguments, environ=environ) as served:
        for address in served.addresses:
            assert play(address).health == "serving"
        assert play(served.addresses[0], transport="grpc").path == "gRPC"


# ---------------------------------------------------------------------------------- security


def test_a_token_from_a_file_is_asked_for(folder: Path) -> None:
    path = folder / "token"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    with serving(folder, "env", "served:Env", "--token-file", str(path)) as served:
        address = served.addresses[0]
        assert play(address, token=SECRET).health == "serving"
        for wrong in ({}, {"token": "f" * 32}):
            report = play(address, **wrong)
            assert (report.health, report.service) == ("refused", None)
            assert "unauthenticated: the token is missing or wrong" in report.detail
        _, out, err = served.end()
    assert "(this user, token)" in err
    assert SECRET not in out + err


def test_a_token_from_the_environment_is_asked_for(folder: Path) -> None:
    environ = {"ROLLMESH_TOKEN": SECRET}
    with serving(folder, "env", "served:Env", environ=environ) as served:
        assert play(served.addresses[0], token=SECRET).health == "serving"
        assert play(served.addresses[0]).health == "refused"


@pytest.mark.parametrize("scheme", ["rollmesh+tcp", "tcp"])
def test_a_client_certificate_is_asked_for(folder: Path, scheme: str) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    for name, issued in (("server", ca.issue_cert("127.0.0.1")), ("client", ca.issue_cert("c"))):
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        (folder / f"{name}.pem").write_bytes(chain)
    files = ("--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-client-ca", "ca.pem")
    address = ("-a", f"{scheme}://127.0.0.1:0", "--no-native")
    with serving(folder, "env", "served:Env", *address, *files) as served:
        without = TlsClient(ca=folder / "ca.pem")
        complete = TlsClient(
            ca=folder / "ca.pem", certificate=folder / "client.pem", key=folder / "client.key"
        )
        assert play(served.addresses[0], tls=without).health in {"refused", "unreachable"}
        assert play(served.addresses[0], tls=complete).health == "serving"
        assert "mutual TLS" in served.end()[2]


@pytest.mark.parametrize("scheme", ["rollmesh+tcp", "tcp"])
def test_tls_and_token_open_an_address_to_the_network(folder: Path, scheme: str) -> None:
    ca = trustme.CA()
    certificate = ca.issue_cert("127.0.0.1", "localhost")
    ca.cert_pem.write_to_path(folder / "ca.pem")
    certificate.private_key_pem.write_to_path(folder / "server.key")
    with (folder / "server.pem").open("wb") as stream:
        stream.writelines(blob.bytes() for blob in certificate.cert_chain_pems)
    arguments = ("--tls-cert", "server.pem", "--tls-key", "server.key")
    address = ("-a", f"{scheme}://0.0.0.0:0", "--no-native")
    environ = {"ROLLMESH_TOKEN": SECRET}
    with serving(folder, "env", "served:Env", *address, *arguments, environ=environ) as served:
        where = served.addresses[0].replace("0.0.0.0", "127.0.0.1")
        report = play(where, token=SECRET, tls=TlsClient(ca=folder / "ca.pem"))
        assert report.health == "serving"
        assert "TLSv1.3" in report.path or report.path == "gRPC"
        assert play(where, token=SECRET).health in {"refused", "unreachable"}
        wrong = play(where, token="f" * 32, tls=TlsClient(ca=folder / "ca.pem"))
        assert wrong.detail.startswith("unauthenticated")
        _, _, err = served.end()
    assert "(other machines too, TLS, token)" in err
    assert "insecure_plaintext" not in err


def test_plain_text_for_the_network_is_served_with_a_warning(folder: Path) -> None:
    arguments = ("-a", "rollmesh+tcp://0.0.0.0:0", "--insecure-plaintext")
    with serving(folder, "env", "served:Env", *arguments) as served:
        _, _, err = served.end()
    assert "WARNING insecure_plaintext address=rollmesh+tcp://0.0.0.0:0" in err
    assert "(other machines too, plain text, no token)" in err


# ----------------------------------------------------------------------------- what is refused


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """The folder as working directory, and nothing in the environment."""
    for name in [name for name in os.environ if name.startswith("ROLLMESH_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-a", "nonsense"], "wants host:port"),
        (["-a", "https://host:1"], "https:// is not spoken"),
        (["-a", "rollmesh+tcp://0.0.0.0:0"], "TLS and a token are missing"),
        (["-a", "0.0.0.0:0"], "TLS and a token are missing"),
        (["--token-file", "nowhere"], "token_file: cannot read nowhere"),
        (["--tls-cert", "nowhere"], "tls_key: is missing"),
        (["--max-sessions", "0"], "max_sessions: wants a whole number from 1"),
        (["--max-sessions", "1.5"], "wants a whole number, got '1.5'"),
        (["--idle-timeout", "-1"], "idle_timeout_s: wants more than 0"),
        (["--conformance", "loud"], "loud"),
        (["--env-kwargs", "[]"], "JSON object"),
        (["--isolate", "thread"], "thread"),
    ],
)
def test_bad_arguments_exit_2_with_a_sentence(
    quiet: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["serve", "env", "CartPole-v1", *arguments]) == exit_codes.BAD_ARGUMENTS
    out, err = capfd.readouterr()
    assert out == ""
    assert words in " ".join(err.split())


def test_an_empty_token_in_the_environment_exits_2(
    quiet: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLMESH_TOKEN", "")
    assert main(["serve", "env", "CartPole-v1"]) == exit_codes.BAD_ARGUMENTS
    assert "an empty token protects nothing" in capfd.readouterr().err


def test_an_unknown_env_exits_2(quiet: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "env", "NoSuchEnv-v0"]) == exit_codes.BAD_ARGUMENTS
    assert "NoSuchEnv" in capfd.readouterr().err


def test_an_env_that_cannot_be_built_exits_1_with_its_traceback(
    quiet: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "env", "served:broken"]) == exit_codes.FAILED
    err = capfd.readouterr().err
    assert "error: served:broken: RuntimeError: no GPU" in err
    assert "raise RuntimeError" in err


def test_C59_an_address_in_use_exits_1_at_once(
    quiet: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"rollmesh+tcp://127.0.0.1:{other.getsockname()[1]}"
        begun = time.monotonic()
        assert main(["serve", "env", "served:Env", "-a", address]) == exit_codes.FAILED
        assert time.monotonic() - begun < 5.0
    err = capfd.readouterr().err
    assert f"error: cannot listen at {address}: address in use" in err


def test_C61_a_long_socket_path_exits_2_with_length_and_limit(
    quiet: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    address = f"rollmesh+unix:///tmp/{'s' * 200}"
    assert main(["serve", "env", "served:Env", "-a", address]) == exit_codes.BAD_ARGUMENTS
    assert "this one has 205" in capfd.readouterr().err
