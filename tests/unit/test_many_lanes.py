"""Many lanes against one served model: their requests are under way at once, and share batches."""

from __future__ import annotations

import threading

import gymnasium
import numpy as np
import pytest

import rollmesh
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from tests.unit.session_toys import until

LANES = 64
ADDRESSES = {
    "unix": ("rollmesh+unix://", "auto"),
    "tcp": ("rollmesh+tcp://127.0.0.1:0", "auto"),
    "grpc": ("tcp://127.0.0.1:0", "grpc"),
}


class Short(gymnasium.Env):
    """Ends after three steps."""

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1e9, 1e9, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        self.t, self.seed = 0, seed
        return np.array([self.t, self.seed], np.float64), {}

    def step(self, action):
        self.t += 1
        assert action[0] == self.seed
        return np.array([self.t, self.seed], np.float64), float(action[0]), self.t == 3, False, {}


class Gated:
    """Answers with the env's seed; its first call waits for the gate."""

    def __init__(self):
        self.gate = threading.Event()
        self.rows = []

    def predict_batch(self, observations):
        self.rows.append(len(observations))
        assert self.gate.wait(30)
        return observations[:, 1:]


@pytest.mark.parametrize(("address", "transport"), ADDRESSES.values(), ids=ADDRESSES)
def test_all_lanes_ask_at_once_and_share_batches(address, transport, monkeypatch):
    monkeypatch.setenv("ROLLMESH_TRANSPORT", transport)
    policy, results = Gated(), []

    def run():
        results.append(
            rollmesh.evaluate(server.address, Short, num_envs=LANES, seeds=range(2 * LANES))
        )

    with ModelServer(policy, address, ServerOptions(max_batch=LANES)) as server:
        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: [len(one.flights) for one in server._all_sessions()] == [LANES])
        policy.gate.set()
        thread.join(30)
    # those that came before the first call, then at least all that waited for its end
    assert sum(policy.rows[:2]) >= LANES, policy.rows
    (result,) = results
    assert [one.total_reward for one in result.episodes] == [3.0 * n for n in range(2 * LANES)]
