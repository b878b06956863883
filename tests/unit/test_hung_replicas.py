"""Runs whose model hangs in a process of its own, or is not there yet at one of its addresses."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import rollmesh
from rollmesh import EvalResult, Limits, ModelFailed, evaluate
from rollmesh.fleet.settings import FleetSettings
from rollmesh.runs.reading import read_run

MARK = "ROLLMESH_TEST_HUNG"
"""Names the file that says that the model has hung once."""
HANGS_ON = 3
LIMITS = Limits(model_predict_s=1.0)


class Seeded(gym.Env):
    """An env that shows its seed, for three steps."""

    observation_space = gym.spaces.Box(0.0, 1e6, (1,), np.float32)
    action_space = gym.spaces.Box(-1e6, 1e6, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = np.array([seed], np.float32)
        self.left = 3
        return self.seen, {}

    def step(self, action):
        self.left -= 1
        return self.seen, float(action[0]), self.left == 0, False, {}


class HangsOnce:
    """A policy that hangs when it first sees a certain seed."""

    def predict_batch(self, observation):
        mark = Path(os.environ[MARK])
        if (observation == HANGS_ON).any() and not mark.exists():
            mark.touch()
            while True:
                signal.pause()
        return observation


class HangsAlways(HangsOnce):
    """A policy that hangs whenever it sees a certain seed."""

    def predict_batch(self, observation):
        if (observation == HANGS_ON).any():
            while True:
                signal.pause()
        return observation


@pytest.fixture
def mark(tmp_path, monkeypatch):
    monkeypatch.setenv(MARK, str(tmp_path / "hung"))


def play(model, **given) -> EvalResult:
    return evaluate(
        model,
        Seeded,
        seeds=range(8),
        workers=2,
        fleet=FleetSettings(model_workers=2),
        limits=LIMITS,
        **given,
    )


@pytest.mark.slow
@pytest.mark.usefixtures("mark")
def test_a_replica_that_hangs_is_replaced_and_its_episodes_start_anew(tmp_path):
    result = play(HangsOnce, run_dir=tmp_path / "run")
    assert result.num_errors == 0
    assert [e.total_reward for e in result.episodes] == [3.0 * seed for seed in range(8)]
    hung = result.episodes[HANGS_ON]
    assert hung.attempts in (2, 3)
    assert any("did not answer within 1 s and was replaced" in cause for cause in hung.causes)
    failed = read_run(tmp_path / "run").failed_attempts
    assert (HANGS_ON, 1) in [(one.index, one.attempt) for one in failed]
    assert any("did not answer within 1 s" in one.cause for one in failed)


@pytest.mark.slow
def test_a_model_that_always_hangs_ends_its_run():
    with pytest.raises(ModelFailed, match="did not answer within 1 s") as caught:
        play(HangsAlways)
    result = caught.value.result
    assert result is not None
    assert HANGS_ON not in [e.index for e in result.episodes if e.error is None]


def unused_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def policy(observation):
    return observation


def test_a_run_starts_though_one_address_has_no_server(caplog):
    dead = f"rollmesh+tcp://127.0.0.1:{unused_port()}"
    with rollmesh.ModelServer(policy, "rollmesh+tcp://127.0.0.1:0") as server:
        result = evaluate([dead, server.address], Seeded, seeds=range(4), workers=2)
    assert [e.total_reward for e in result.episodes] == [3.0 * seed for seed in range(4)]
    assert f"waiting_for=the model at {dead}" in caplog.text


def test_where_no_address_has_a_server_each_is_named():
    dead = [f"rollmesh+tcp://127.0.0.1:{unused_port()}" for _ in range(2)]
    limits = Limits(model_connect_s=0.3)
    with pytest.raises(ModelFailed) as caught:
        evaluate(dead, Seeded, seeds=[1], workers=1, limits=limits)
    assert all(f"- the model at {address}: " in str(caught.value) for address in dead)
