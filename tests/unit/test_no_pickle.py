"""Nothing unpickles: not by import, and not while a run, in process or served, is under way."""

from __future__ import annotations

import ast
import contextlib
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

import rollmesh
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.probing import probe
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.transport.address import parse_address

PACKAGE = Path(rollmesh.__file__).parent
ADDRESSES = ("rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0", "127.0.0.1:0")
STAYS = ServerOptions(native=False)
"""Whoever comes over gRPC stays with it."""
FORBIDDEN = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}

RUN_UNDER_AUDIT = """
import sys

found = []

def watch(event, arguments):
    if event == "pickle.find_class":
        found.append(arguments)

sys.addaudithook(watch)
import gymnasium
import rollmesh
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions

options = ServerOptions(native=False)  # what is served over gRPC stays there
for num_envs in (1, 2):
    result = rollmesh.evaluate(
        "random", "CartPole-v1", episodes=3, base_seed=0, num_envs=num_envs
    )
    assert len(result.episodes) == 3
    result.to_json()

for address in ADDRESSES:
    with (
        EnvServer("CartPole-v1", address, options) as env,
        ModelServer("random", address, options) as model,
    ):
        result = rollmesh.evaluate(model.address, env.address, episodes=3, base_seed=0)
    assert len(result.episodes) == 3
import pickle

assert not found, found
pickle.loads(pickle.dumps(gymnasium.Env))
assert found, "the watch sees what it is there to see"
"""


class Bomb:
    """What only pickle could carry, and what would go off when unpickled."""

    went_off = False

    def __reduce__(self):
        return setattr, (Bomb, "went_off", True)


HOSTILE = [pickle.dumps(Bomb()), b"\x80\x04.", bytes(range(256)) * 4, b"\xff" * 70_000, b""]


def imported_modules(source: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize(
    "source", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_module_imports_pickle_or_its_kin(source: Path) -> None:
    assert imported_modules(source) & FORBIDDEN == set()


def test_a_run_and_a_served_run_find_no_class_by_pickle() -> None:
    path = str(PACKAGE.parent)
    start = f"import sys; sys.path.insert(0, {path!r})\nADDRESSES = {ADDRESSES!r}"
    code = f"{start}\n{RUN_UNDER_AUDIT}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("address", ADDRESSES)
def test_C63_a_hostile_peer_sets_nothing_off_and_others_are_served(address: str) -> None:
    with EnvServer("CartPole-v1", address, STAYS) as server:
        where = parse_address(server.address)
        for data in HOSTILE:
            family = socket.AF_UNIX if where.family == "unix" else socket.AF_INET
            with socket.socket(family) as sock, contextlib.suppress(ConnectionError):
                sock.settimeout(10)
                sock.connect(where.path or (where.host, where.port))
                sock.sendall(data)
                with contextlib.suppress(OSError):  # the server may have hung up already
                    sock.shutdown(socket.SHUT_WR)
                while sock.recv(65536):
                    pass
        assert probe(server.address, client_options(environ={}), measure_s=0.01).health == "serving"
    assert not Bomb.went_off


@pytest.mark.parametrize("address", ADDRESSES)
def test_C63_what_only_pickle_could_carry_is_named_and_not_carried(address: str) -> None:
    """An action that is no value is an error with its type; an info becomes its repr."""

    class Bombs(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(2)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return 0, {"bomb": Bomb()}

        def step(self, action):
            return 0, 0.0, True, False, {"bomb": Bomb()}

    with (
        EnvServer(Bombs, address, STAYS) as env,
        ModelServer(lambda _: Bomb(), address, STAYS) as model,
    ):
        rollmesh.evaluate("random", env.address, episodes=1)
        with pytest.raises(rollmesh.ModelFailed, match="Bomb"):
            rollmesh.evaluate(model.address, env.address, episodes=1)
    assert not Bomb.went_off
