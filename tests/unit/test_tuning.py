"""Tuning: how many workers and rows are chosen, and that the curves are those of env and model."""

from __future__ import annotations

import time

import gymnasium as gym
import numpy as np
import pytest

from rollmesh.errors import EndpointFault, InvalidSpec
from rollmesh.fleet.plan import Task
from rollmesh.fleet.settings import FleetSettings
from rollmesh.fleet.sizing import CallPoint, SupplyPoint, choose
from rollmesh.tuning import TuningOptions, tune

STEP_S = 0.02
CALL_S, ROW_S = 0.02, 0.0002


def supply(*rates):
    return [SupplyPoint(workers=2**k, steps_per_s=rate) for k, rate in enumerate(rates)]


def calls(base_s, row_s, most=64):
    sizes = [2**k for k in range(20) if 2**k <= most]
    return [CallPoint(rows=rows, call_s=base_s + row_s * rows) for rows in sizes]


# ------------------------------------------------------------------------------------ choosing


def test_a_free_model_gets_as_many_workers_as_help():
    choice = choose(supply(100, 200, 380, 385), calls(1e-6, 1e-6))
    assert choice.workers == 4, "eight give hardly more"
    assert "the envs give no more; more workers would give 385 at most" in choice.reason


def test_where_more_workers_give_less_nothing_more_is_promised() -> None:
    choice = choose(supply(400, 480, 250), calls(1e-6, 1e-6))
    assert choice.workers == 2
    assert choice.reason.endswith("the envs give no more")


def test_a_slow_model_gets_no_more_workers_than_it_can_serve():
    choice = choose(supply(*[1000 * 2**k for k in range(7)]), calls(0.0, 0.01))
    assert (choice.workers, choice.max_batch) == (2, 1), "rows cost what they cost, alone or not"
    assert choice.steps_per_s == pytest.approx(100, rel=0.06)
    assert "the model takes no more" in choice.reason


def test_a_model_that_batches_well_gets_large_batches():
    choice = choose(supply(*[50 * 2**k for k in range(6)]), calls(0.02, 0.0005))
    assert (choice.workers, choice.max_batch) == (32, 32)


def test_a_batch_is_no_larger_than_the_lanes():
    choice = choose(supply(50), calls(0.02, 0.0))
    assert (choice.workers, choice.max_batch) == (1, 1)
    assert choose(supply(50), calls(0.02, 0.0), lanes_per_worker=8).max_batch == 8


def test_a_chunk_of_actions_needs_the_model_less():
    slow = calls(0.0, 0.1)
    alone = choose(supply(*[100 * 2**k for k in range(6)]), slow)
    chunked = choose(supply(*[100 * 2**k for k in range(6)]), slow, frames=50)
    assert alone.steps_per_s == pytest.approx(10, rel=0.06)
    assert chunked.steps_per_s > 40 * alone.steps_per_s
    assert chunked.workers > alone.workers


# ----------------------------------------------------------------------------------- measuring


class Napping(gym.Env):
    """An env whose steps take a while and no processor."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, *, step_s: float = STEP_S, breaks: bool = False, jams: bool = False) -> None:
        self.step_s, self.breaks, self.jams, self.t = step_s, breaks, jams, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        time.sleep(self.step_s)
        self.t += 1
        if self.breaks:
            raise RuntimeError("the arm is stuck")
        return np.full(2, 0.5, np.float32), 1.0, self.t >= 10, False, {}

    def close(self):
        if self.jams:
            raise RuntimeError("the door is stuck")


class Batched:
    """A policy whose calls cost much and whose rows cost little."""

    def predict_batch(self, observations):
        time.sleep(CALL_S + ROW_S * len(observations))
        return np.zeros(len(observations), np.int64)


class Single:
    """A policy that takes one row at a time."""

    def predict(self, observation):
        time.sleep(CALL_S)
        return 0


def options(most_workers, max_batch=8, **more):
    return TuningOptions(
        settings=FleetSettings(max_batch=max_batch), most_workers=most_workers, point_s=0.5, **more
    )


@pytest.mark.slow
@pytest.mark.alone
def test_the_curves_are_those_of_env_and_model():
    tuned = tune(Batched(), Napping, options=options(4))
    assert [point.workers for point in tuned.supply] == [1, 2, 4]
    assert [call.rows for call in tuned.calls] == [1, 2, 4, 8]
    one, _, four = [point.steps_per_s for point in tuned.supply]
    assert one < 1 / STEP_S, "a step takes at least its nap"
    assert four > 2 * one, "naps go on side by side"
    assert tuned.calls[-1].rows_per_s > 3 * tuned.calls[0].rows_per_s, "calls cost, rows hardly"
    assert (tuned.workers, tuned.settings.max_batch) == (4, 4)
    text = tuned.table()
    assert text.count("<") == 2, text
    assert "4 workers and batches of up to 4" in text


@pytest.mark.slow
@pytest.mark.alone
def test_a_model_that_takes_one_row_is_no_reason_for_many_workers():
    tuned = tune(Single, Napping, options=options(8, max_batch=4, env_kwargs={"step_s": 0.002}))
    assert tuned.workers < 8
    assert tuned.settings.max_batch == 1
    assert "the model takes no more" in tuned.choice.reason


@pytest.mark.slow
def test_a_task_says_what_is_measured_and_a_fault_ends_it():
    task = Task(name="stuck", env_kwargs={"breaks": True}, episodes=1)
    with pytest.raises(EndpointFault, match="the arm is stuck"):
        tune(Single(), Napping, options=options(1, task=task))


@pytest.mark.slow
def test_an_env_that_raises_as_it_is_closed_spoils_nothing(caplog):
    tuned = tune(Single(), Napping, options=options(1, max_batch=1, env_kwargs={"jams": True}))
    assert tuned.workers == 1
    assert "the door is stuck" in caplog.text


@pytest.mark.parametrize("env", [None, ["tcp://127.0.0.1:5000"], [Napping, Napping]])
def test_an_env_that_no_worker_builds_is_refused(env):
    with pytest.raises(InvalidSpec, match="measures an env that workers build"):
        tune(Single(), env, options=options(1))
