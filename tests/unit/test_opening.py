"""Opening env and model of a run: what those who serve them are told of each other."""

from __future__ import annotations

import contextlib

import pytest

import rollmesh
from rollmesh import EnvServer, ModelServer, RemoteEnv, RemoteModel
from rollmesh.endpoint.servers import reception
from tests.unit.serving_toys import Counter

ADDRESS = "rollmesh+unix://"


@pytest.fixture
def told(monkeypatch):
    """Return what servers were told of how many processes take turns."""
    counts = []
    read = reception.processes_of

    def processes_of(facts):
        counts.append(read(facts))
        return counts[-1]

    monkeypatch.setattr(reception, "processes_of", processes_of)
    return counts


@pytest.fixture
def served():
    with contextlib.ExitStack() as stack:
        yield lambda server: stack.enter_context(server).address


def short():
    return Counter(length=3)


def plain(_observation):
    return 0


def test_both_servers_know_of_each_other(told, served):
    env, model = served(EnvServer(short, ADDRESS)), served(ModelServer(plain, ADDRESS))
    assert len(rollmesh.evaluate(model, env, episodes=1).episodes) == 1
    assert told == [3, 3]
    assert len(rollmesh.evaluate(RemoteModel(model), env, episodes=1).episodes) == 1
    assert told[2:] == [3, 3]


def test_a_server_alone_is_told_of_nobody(told, served):
    env, model = served(EnvServer(short, ADDRESS)), served(ModelServer(plain, ADDRESS))
    rollmesh.evaluate(plain, env, episodes=1)
    rollmesh.evaluate(model, short, episodes=1)
    with RemoteEnv(env) as remote:
        rollmesh.evaluate(plain, remote, episodes=1)
    assert told == [2, 2, 2]


def test_an_env_that_is_connected_already_counts(told, served):
    env, model = served(EnvServer(short, ADDRESS)), served(ModelServer(plain, ADDRESS))
    with RemoteEnv(env) as remote:
        rollmesh.evaluate(model, remote, episodes=1)
    assert told == [2, 3]


def test_lanes_of_one_server_are_one_process_and_each_server_counts(told, served):
    first, second = served(EnvServer(short, ADDRESS)), served(EnvServer(short, ADDRESS))
    rollmesh.evaluate(plain, [first, first], episodes=2)
    assert told == [2, 2]
    rollmesh.evaluate(plain, [first, second], episodes=2)
    assert told[2:] == [3, 3]
