"""Neither tokens nor observations reach a log: canaries are searched for in every record."""

from __future__ import annotations

import base64
import contextlib
import logging
import socket
import traceback
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest

import rollmesh
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.env_client import connect_env
from rollmesh.endpoint.clients.probing import probe
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import EndpointFault
from rollmesh.ports import ResetRequest, StepRequest
from rollmesh.transport.dialing import dial
from rollmesh.wire.messages import GENERATION, Hello, Kind, Message

TOKEN = "c4na7y" * 6
WRONG = "wr0ngc4na7y" * 4
WORD = "canary-in-a-text-observation"
NUMBER = 31337.125
ACTION = 4242.5
ADDRESSES = ["rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0", "mem://canary", "127.0.0.1:0"]


class Canaries(gymnasium.Env):
    """Observations that are easy to find again."""

    observation_space = gymnasium.spaces.Dict(
        text=gymnasium.spaces.Text(100, charset=frozenset(WORD)),
        numbers=gymnasium.spaces.Box(-1e6, 1e6, (3,), np.float64),
    )
    action_space = gymnasium.spaces.Box(-1e6, 1e6, (1,), np.float64)

    def _observe(self):
        return {"text": WORD, "numbers": np.full(3, NUMBER)}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._observe(), {"word": WORD}

    def step(self, action):
        self.t += 1
        if self.t == 3:
            raise RuntimeError("broken on purpose")
        return self._observe(), 1.0, self.t >= 2, False, {"word": WORD, "odd": object()}


class Keeper(logging.Handler):
    """Keeps every word of every record."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.words += [record.getMessage(), repr(record.args), repr(vars(record))]
        if record.exc_info and record.exc_info[1] is not None:
            error = traceback.TracebackException(*record.exc_info, capture_locals=True)
            self.words.append("".join(error.format()))


@pytest.fixture
def words() -> Iterator[list[str]]:
    """Everything that is logged, by whomever, at any level."""
    keeper = Keeper()
    root, ours = logging.getLogger(), logging.getLogger("rollmesh")
    before = root.level, ours.level
    root.setLevel(logging.DEBUG)
    ours.setLevel(logging.DEBUG)
    root.addHandler(keeper)
    try:
        yield keeper.words
    finally:
        root.removeHandler(keeper)
        root.setLevel(before[0])
        ours.setLevel(before[1])


def canaries() -> list[str]:
    raw = [np.float64(NUMBER).tobytes(), np.float64(ACTION).tobytes()]
    secrets = [TOKEN, WRONG, WORD, str(NUMBER), str(ACTION)]
    encoded = [base64.b64encode(secret.encode()).decode().rstrip("=") for secret in (TOKEN, WRONG)]
    return [*secrets, *encoded, *[repr(data)[2:-1] for data in raw], TOKEN.encode().hex()]


def look_for_canaries(words: list[str]) -> None:
    assert words, "something is logged"
    found = [(canary, word) for word in words for canary in canaries() if canary in word]
    assert not found


def constant(observation):
    return np.full(1, ACTION)


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_served_run_logs_no_token_and_no_observation(
    address: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROLLMESH_TOKEN_FILE", raising=False)
    monkeypatch.setenv("ROLLMESH_TOKEN", TOKEN)
    options = ServerOptions(token=TOKEN, expose_tracebacks=False, native=False)
    with EnvServer(Canaries, address, options) as env:
        other = address.replace("canary", "canary-model")
        with ModelServer(constant, other, options) as model:
            rollmesh.evaluate(model.address, env.address, episodes=2, base_seed=0)
        probe(env.address, measure_s=0.01)
    look_for_canaries(words)


@pytest.mark.parametrize("address", ADDRESSES)
def test_what_goes_wrong_logs_no_token_and_no_observation(address: str, words: list[str]) -> None:
    options = ServerOptions(token=TOKEN, resume_grace_s=0.0, native=False)
    with EnvServer(Canaries, address, options) as server:
        with pytest.raises(EndpointFault) as refused:
            connect_env(server.address, client_options(token=WRONG, environ={}))
        port = connect_env(server.address, client_options(token=TOKEN, environ={}))
        port.reset(ResetRequest(episode_ids=("e",), seeds=(0,)))
        step = StepRequest(action=[np.full((1, 1), ACTION)], episode_ids=("e",))
        port.step(step)
        port.step(step)
        with pytest.raises(EndpointFault, match="broken on purpose"):
            port.step(step)
        port.interrupt()
        port.close(5.0)
        if address.endswith(":0"):
            send_rubbish(server.address)
    assert WRONG not in str(refused.value)
    look_for_canaries(words)


def send_rubbish(address: str) -> None:
    """Say what is no message but holds the token."""
    port = int(address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(TOKEN.encode() * 10)
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(4096):
                pass


def test_a_client_cannot_write_lines_of_its_own_into_the_log(words: list[str]) -> None:
    with EnvServer(Canaries, "mem://canary") as server, dial(server.address) as connection:
        hello = Hello(generation=GENERATION, service="env", peer={"host": "a\nFORGED line\x1b[2J"})
        assert connection.call(Message(Kind.HELLO, 1, hello), 5).kind is Kind.WELCOME
    forged = [word for word in words if "FORGED" in word]
    assert forged
    assert not [word for word in forged if "\n" in word or "\x1b" in word]


def test_the_search_finds_what_it_looks_for(words: list[str]) -> None:
    logger = logging.getLogger("rollmesh.test")
    for leak in (TOKEN, np.float64(NUMBER).tobytes(), {"text": WORD}, (ACTION,)):
        words.clear()
        logger.debug("leak value=%s", leak)
        with pytest.raises(AssertionError):
            look_for_canaries(words)


def test_options_that_hold_a_token_do_not_show_it() -> None:
    server, client = ServerOptions(token=TOKEN), client_options(token=TOKEN, environ={})
    assert TOKEN not in f"{server!r} {client!r}"
