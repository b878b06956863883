"""Servers that are not there: what the log says at once, what is told at once, and cancelling."""

from __future__ import annotations

import logging
import socket

import gymnasium
import numpy as np
import pytest

import rollmesh
from rollmesh.errors import EnvFailed, ModelFailed, RouteCancelled
from rollmesh.limits import Limits
from rollmesh.runtime.cancel import CancelToken
from rollmesh.wire.messages import Kind
from tests.unit.model_toys import EchoPort
from tests.unit.session_toys import ToyServer

NOWHERE = "rollmesh+unix:///tmp/rollmesh-nobody-listens-here.sock"
LOGGER = "rollmesh.endpoint.clients.client_dialing"


class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False, {}


class CancelOnWarning(logging.Handler):
    """Cancels as soon as the log says that somebody waits."""

    def __init__(self, token):
        super().__init__(logging.WARNING)
        self.token, self.lines = token, []

    def emit(self, record):
        self.lines.append(record.getMessage())
        self.token.cancel("enough")


@pytest.fixture
def impatient():
    """Give a token that is cancelled by the first warning, and the handler that does it."""
    handler = CancelOnWarning(CancelToken())
    logging.getLogger(LOGGER).addHandler(handler)
    yield handler
    logging.getLogger(LOGGER).removeHandler(handler)


@pytest.mark.parametrize("address", [NOWHERE, "tcp://127.0.0.1:9"])
@pytest.mark.parametrize("side", ["env", "model", "lanes"])
def test_waiting_is_told_at_once_and_a_cancel_ends_it(side, address, impatient):
    env = {"env": address, "model": Env, "lanes": [address, address]}[side]
    model = address if side == "model" else "random"
    limits = Limits(env_connect_s=600, model_connect_s=600)
    with pytest.raises(RouteCancelled, match="enough") as caught:
        rollmesh.evaluate(model, env, episodes=1, limits=limits, cancel=impatient.token)
    assert caught.value.operation == ("model.connect" if side == "model" else "env.connect")
    assert len(caught.value.result.episodes) == 0
    assert len(impatient.lines) <= (2 if side == "lanes" else 1)
    service = "model" if side == "model" else "env"
    told = f"waiting_for_server address={address} service={service} left_s=600 "
    assert impatient.lines[0].startswith(told)


def test_a_cancel_ends_the_preparation_of_a_served_model():
    token = CancelToken()
    with ToyServer(EchoPort(), service="model") as server:
        server.plan(Kind.RESOLVE, lambda connection, message: token.cancel("enough"))
        with pytest.raises(RouteCancelled, match="enough"):
            rollmesh.evaluate(server.address, Env, episodes=1, cancel=token)


def test_a_session_can_be_cancelled_while_it_connects(impatient):
    with pytest.raises(RouteCancelled, match="enough"):
        rollmesh.Session("random", NOWHERE, cancel=impatient.token)


def test_waiting_without_a_limit_says_so(impatient):
    limits = Limits(env_connect_s=None)
    with pytest.raises(RouteCancelled):
        rollmesh.evaluate("random", NOWHERE, episodes=1, limits=limits, cancel=impatient.token)
    assert "left_s=unlimited" in impatient.lines[0]


@pytest.mark.parametrize("scheme", ["rollmesh+tcp", "tcp"])
@pytest.mark.parametrize("side", ["env", "model"])
def test_a_host_that_nobody_knows_is_an_error_at_once(side, scheme, monkeypatch):
    def ask(host, *args, **options):
        assert host == "no-such-host"
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    address = f"{scheme}://no-such-host:5000"
    limits = Limits(env_connect_s=600, model_connect_s=600)
    env, model, kind = (address, "random", EnvFailed)
    if side == "model":
        env, model, kind = Env, address, ModelFailed
    with pytest.raises(kind, match=r"no host is called 'no-such-host'.*look at its spelling"):
        rollmesh.evaluate(model, env, episodes=1, limits=limits)


def test_a_name_service_that_is_not_there_yet_is_waited_for(monkeypatch, impatient):
    def ask(*args, **options):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    address = "rollmesh+tcp://some-host:5000"
    with pytest.raises(RouteCancelled):
        rollmesh.evaluate("random", address, episodes=1, cancel=impatient.token)
    assert "Temporary failure" in impatient.lines[0]


@pytest.mark.parametrize(
    ("queue_size", "said"),
    [(64, "all its places are taken; we are number 1"), (0, "it is busy: all 1 places are taken")],
)
def test_lanes_that_find_no_place_say_what_they_waited_for_and_what_to_give(queue_size, said):
    options = rollmesh.ServerOptions(max_sessions=1, queue_size=queue_size)
    limits = Limits(env_connect_s=0.5)
    with (
        rollmesh.EnvServer("CartPole-v1", "rollmesh+unix://", options) as server,
        pytest.raises(EnvFailed, match=f"{said}.* --max-sessions of num_envs or more"),
    ):
        rollmesh.evaluate("random", server.address, episodes=2, num_envs=2, limits=limits)
