"""P2 where many requests are under way: lanes, several sessions, a model that lanes share.

Connections are cut at random moments from the server's side, some hundred times a run; the run must
give what an undisturbed local one gives, without a new attempt.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time

import pytest

import rollmesh
from rollmesh import EnvServer, ModelServer
from tests.unit.env_toys import Count

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

EPISODES = 24
LANES = 6
WAYS = {
    "lanes": (False, True, None),
    "lanes and a model": (True, True, None),
    "an env and a model": (True, False, None),
    "sessions and a model": (True, False, 4),
}


class Long(Count):
    def __init__(self):
        super().__init__(length=40, high=2**31)


def episodes_of(model, env, **options):
    result = rollmesh.evaluate(model, env, episodes=EPISODES, base_seed=3, **options)
    return [(e.index, e.seed, e.steps, e.total_reward, e.attempts) for e in result.episodes]


@contextlib.contextmanager
def cutting(*servers, seed):
    """Shut down the connections of these servers again and again."""
    over = threading.Event()
    cuts = []

    def cut():
        chance = random.Random(seed)
        while not over.wait(chance.uniform(0.001, 0.01)):
            for server in servers:
                for session in list(server._sessions.values()):
                    connection = session._connection
                    if connection is not None and chance.random() < 0.6:
                        connection.shutdown("cut by the test")
                        cuts.append(time.monotonic())

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        yield cuts
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def undisturbed():
    return episodes_of("random", Long)


def run(way, address, undisturbed, seed):
    is_model_served, is_lanes, num_envs = WAYS[way]
    with (
        EnvServer([Long] * LANES if is_lanes else Long, address) as env,
        ModelServer("random", address) as model,
        cutting(env, model, seed=seed) as cuts,
    ):
        policy = model.address if is_model_served else "random"
        assert episodes_of(policy, env.address, num_envs=num_envs) == undisturbed
    assert cuts


@pytest.mark.parametrize("address", ["rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(3))
def test_p2_p3_cuts_change_nothing(way, address, undisturbed, seed):
    run(way, address, undisturbed, seed)


@pytest.mark.fault_full
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(100, 150))
def test_p2_p3_cuts_change_nothing_in_full(way, undisturbed, seed):
    run(way, "rollmesh+tcp://127.0.0.1:0", undisturbed, seed)
