"""A probe finds out who serves, what, and how fast the way is, and disturbs nobody."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.probing import probe
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import EndpointFault, InvalidSpec

WAYS = ("--token-file", "token=", "token_file=", "ROLLMESH_TOKEN ", "ROLLMESH_TOKEN_FILE")
SECRET = "0123456789abcdef" * 2


class Camera(gymnasium.Env):
    """Notes what is done to it."""

    observation_space = gymnasium.spaces.Dict(
        image=gymnasium.spaces.Box(0, 255, (240, 320, 3), np.uint8),
        text=gymnasium.spaces.Text(10),
    )
    action_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    calls: list[str] = []

    def __init__(self, length: int = 4, breaks: bool = False) -> None:
        self.length, self.breaks = length, breaks
        self.observation = {"image": np.zeros((240, 320, 3), np.uint8), "text": "hello"}

    def reset(self, *, seed=None, options=None):
        self.calls.append("reset")
        self.t = 0
        return self.observation, {}

    def step(self, action):
        self.calls.append("step")
        self.t += 1
        if self.breaks:
            raise RuntimeError("the lens cap is on")
        return self.observation, 0.0, self.t >= self.length, False, {}


@pytest.fixture
def calls() -> list[str]:
    Camera.calls = []
    return Camera.calls


def look(address: str, **more):
    given = {key: more.pop(key) for key in ("token", "transport") if key in more}
    return probe(address, client_options(environ={}, **given), **{"measure_s": 0.02, **more})


ADDRESSES = ["rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0", "mem://probed", "127.0.0.1:0"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_env_is_described_and_not_touched(address: str, calls: list[str]) -> None:
    with EnvServer(Camera, address, ServerOptions(native=False)) as server:
        report = look(server.address)
        assert (report.health, report.service, report.detail) == ("serving", "env", "")
        assert report.contract == server.contract
        assert report.peer["component"] == "rollmesh-env"
        assert "rebuild" in report.capabilities
        assert report.connect_ms is not None
        actions, observations = report.round_trips
        assert (actions.what, actions.payload_bytes) == ("actions", 12)
        # what varies in size counts nothing
        assert (observations.what, observations.payload_bytes) == ("observations", 240 * 320 * 3)
        for trips in report.round_trips:
            assert trips.count >= 20
            assert 0 < trips.p50_us <= trips.p99_us
            assert trips.mb_per_s > 0
        assert report.steps is None
    assert calls == []


def test_the_path_says_what_is_used_and_why() -> None:
    with EnvServer("CartPole-v1", [*ADDRESSES[:2]]) as server:
        local, tcp = (look(address) for address in server.addresses)
    assert "unix socket, payloads from 64 KiB on through shared memory" in local.path
    assert local.why == tcp.why == "it is the address that was given"
    assert tcp.path == "native frames over TCP"
    assert tcp.taken == tcp.address


def test_a_grpc_address_leads_to_the_native_one() -> None:
    with EnvServer("CartPole-v1", "127.0.0.1:0") as server:
        address, native = server.addresses
        report = look(address)
        forced = look(address, transport="grpc")
    assert (report.address, report.taken) == (address, native)
    assert "socket file" in report.why
    assert (forced.taken, forced.path, forced.why) == (address, "gRPC", "gRPC was asked for")


def test_an_env_is_stepped_only_where_that_is_asked_for(calls: list[str]) -> None:
    with EnvServer(Camera, "mem://probed") as server:
        report = look(server.address, steps=10)
    steps = report.steps
    assert steps is not None
    assert steps.count == 10
    assert steps.steps_per_s > 0
    assert 0 < steps.way_p50_us <= steps.way_p99_us
    # episodes of four steps, reset at the start and where one ends
    assert calls == ["reset", *["step"] * 4, "reset", *["step"] * 4, "reset", "step", "step"]


def test_lanes_are_stepped_together() -> None:
    with EnvServer("CartPole-v1", "mem://probed", ServerOptions(num_envs=3)) as server:
        report = look(server.address, steps=3)
    assert report.contract is not None
    assert report.contract.num_envs == 3
    assert report.steps is not None


def test_a_step_that_fails_says_what_was_raised() -> None:
    server = EnvServer(lambda: Camera(breaks=True), "mem://probed")
    with server, pytest.raises(EndpointFault, match="the lens cap is on"):
        look(server.address, steps=1)


def test_a_model_is_found_out_and_has_no_contract() -> None:
    with ModelServer(lambda observation: 0, "mem://probed") as server:
        report = look(server.address)
        assert (report.health, report.service, report.contract) == ("serving", "model", None)
        assert [trips.what for trips in report.round_trips] == ["small messages", "large messages"]
        wrong = look(server.address, service="env")
    assert wrong.health == "refused"
    assert "serves a model, the client wants an env" in wrong.detail


def test_a_full_server_is_healthy_and_nobody_waits_in_its_queue() -> None:
    env = Camera()
    with EnvServer(env, "mem://probed") as server:
        inside = threading.Event()
        leave = threading.Event()

        def occupy() -> None:
            from rollmesh.endpoint.clients.env_client import connect_env

            port = connect_env(server.address, client_options(environ={}))
            inside.set()
            leave.wait(10)
            port.close(1.0)

        client = threading.Thread(target=occupy)
        client.start()
        try:
            assert inside.wait(10)
            report = look(server.address)
        finally:
            leave.set()
            client.join(10)
    assert (report.health, report.service, report.position) == ("full", "env", 1)
    assert report.round_trips == ()
    assert "all places are taken" in report.detail


def test_a_token_is_sent_and_a_refusal_is_told() -> None:
    with EnvServer("CartPole-v1", "mem://probed", ServerOptions(token=SECRET)) as server:
        assert look(server.address, token=SECRET).health == "serving"
        report, wrong = look(server.address), look(server.address, token="f" * 32)
    assert (report.health, wrong.health) == ("refused", "refused")
    begins = "unauthenticated: the token is missing or wrong; "
    assert report.detail.startswith(f"{begins}no token was given; ")
    assert wrong.detail.startswith(f"{begins}the token given was refused; ")
    for detail in (report.detail, wrong.detail):
        for way in WAYS:
            assert way in detail
    assert "f" * 32 not in wrong.detail


# ------------------------------------------------------------------------- nobody of ours there


def test_nobody_there_is_unreachable_after_the_time_to_wait(tmp_path: Path) -> None:
    report = look(f"rollmesh+unix://{tmp_path}/nobody.sock", wait_s=0.05)
    assert report.health == "unreachable"
    assert "is the server running?" in report.detail


def test_a_server_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    address = f"rollmesh+unix://{tmp_path}/late.sock"
    reports = []
    thread = threading.Thread(target=lambda: reports.append(look(address, wait_s=20.0)))
    thread.start()
    with EnvServer("CartPole-v1", address):
        thread.join(20)
    assert [report.health for report in reports] == ["serving"]


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 100, b""])
def test_somebody_else_there_is_told_with_what_to_look_at(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(4096)
                sock.sendall(answer)

        thread = threading.Thread(target=speak)
        thread.start()
        report = look(f"rollmesh+tcp://127.0.0.1:{listener.getsockname()[1]}")
        thread.join(10)
    assert report.health == "refused"
    assert (
        "is it a rollmesh server, does it want TLS (--tls-ca), and is the scheme right"
        in report.detail
    )
    assert "No token was given; if it wants one, give the server's: --token-file" in report.detail


def test_a_native_address_that_is_dialled_as_grpc_is_told_with_the_right_scheme() -> None:
    with EnvServer("CartPole-v1", "rollmesh+tcp://127.0.0.1:0") as server:
        report = look(server.address.removeprefix("rollmesh+"))
    assert report.health == "unreachable"
    assert report.detail.endswith(f"does not speak gRPC; try {server.address}")


def test_what_is_no_address_or_would_tell_a_secret_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="wants host:port"):
        look("nonsense")
    with pytest.raises(InvalidSpec, match=r"wants host:port after rollmesh\+tcp://"):
        look("rollmesh+tcp://sim-host")
    with pytest.raises(InvalidSpec, match="address: wants a text, got an int"):
        look(5000)
    with pytest.raises(InvalidSpec, match="plain text"):
        look("rollmesh+tcp://10.0.0.1:1", token=SECRET)
