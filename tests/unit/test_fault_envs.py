"""Envs and policies that misbehave: each fault does what its name says, at its step."""

from __future__ import annotations

import signal
import threading

import gymnasium
import numpy as np
import pytest

import rollmesh
from rollmesh.errors import EnvFailed, InvalidSpec, ModelFailed, OperationTimeout
from rollmesh.limits import Limits
from rollmesh.testing.faults import ENV_FAULTS, MODEL_FAULTS, Child, broken_env, broken_model
from rollmesh.testing.faults.misdeeds import EXIT_CODE

LIMIT_S = 30.0
HERE = "tests.unit.test_fault_envs"
DEADLY = ("kills_process", "segfaults")


class Counts(gymnasium.Env):
    """Observes how many steps were taken; counts its closings."""

    observation_space = gymnasium.spaces.Dict(
        {
            "t": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32),
            "n": gymnasium.spaces.Discrete(100),
        }
    )
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self):
        self.t = 0
        self.closed = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        return self.observe(), 1.0, self.t >= 5, False, {"t": self.t}

    def observe(self):
        return {"t": np.full(2, self.t, np.float32), "n": self.t}

    def close(self):
        self.closed += 1


def still(observation):
    return np.zeros(1, np.float32)


def playing(fault, **kwargs):
    env = broken_env(Counts, fault=fault, **kwargs)
    env.reset(seed=1)
    return env


def step_in_a_child(tell, *, fault):
    env = playing(fault, at_step=2)
    env.step(still(None))
    tell()
    env.step(still(None))


def call_in_a_child(tell, *, fault):
    model = broken_model(still, fault=fault, at_call=2)
    model(None)
    tell()
    model(None)


# -------------------------------------------------------------------------------------- envs


@pytest.mark.parametrize("fault", [name for name in ENV_FAULTS if name not in DEADLY])
def test_nothing_happens_before_the_step(fault):
    env = playing(fault, at_step=99)
    for number in range(1, 4):
        observation, reward, *_, info = env.step(still(None))
        assert observation["t"].tolist() == [number, number]
        assert (reward, info) == (1.0, {"t": number})
    assert env.observation_space == Counts.observation_space


def test_raises_and_exits_at_the_step_and_only_so_many_times():
    env = playing("raises", at_step=2, times=1)
    env.step(still(None))
    with pytest.raises(ValueError, match="broken on purpose at 2"):
        env.step(still(None))
    env.step(still(None))
    with pytest.raises(SystemExit):
        playing("exits").step(still(None))


def test_step_0_is_the_first_reset_only():
    env = broken_env(Counts(), fault="raises", at_step=0, times=1)
    with pytest.raises(ValueError, match="broken on purpose at 0"):
        env.reset()
    env.reset()


def test_hangs_until_it_is_released():
    env = playing("hangs")
    done = threading.Event()
    thread = threading.Thread(target=lambda: (env.step(still(None)), done.set()), daemon=True)
    thread.start()
    assert not done.wait(0.05)
    env.release()
    assert done.wait(LIMIT_S)
    thread.join()


def test_values_are_spoiled():
    observation, reward, *_ = playing("nan").step(still(None))
    assert np.isnan(observation["t"]).all()
    assert observation["n"] == 1
    assert np.isnan(reward)
    observation, *_ = playing("wrong_shape").step(still(None))
    assert observation["t"].shape == (2, 3, 2)
    env = playing("aliases")
    first, *_ = env.step(still(None))
    second, *_ = env.step(still(None))
    assert first["t"] is second["t"]
    assert first["t"].tolist() == [2, 2]
    *_, info = playing("huge_info", nbytes=1000).step(still(None))
    assert info["huge"].nbytes == 1000
    *_, info = playing("odd_info").step(still(None))
    assert {"lambda", "cycle", "t"} <= set(info)


def test_closing_goes_wrong():
    inner = Counts()
    broken_env(inner, fault="closes_twice").close()
    assert inner.closed == 2
    with pytest.raises(RuntimeError, match="on purpose"):
        broken_env(Counts, fault="close_raises").close()


def test_hogs_stay_bounded_and_noise_is_printed(capfd):
    env = playing("hogs_memory", nbytes=1000)
    for _ in range(20):
        env.step(still(None))
    assert len(env._misdeeds._hogged) == 8
    playing("prints_noise", nbytes=100).step(still(None))
    printed = capfd.readouterr()
    assert "noise" in printed.out
    assert "noise" in printed.err


@pytest.mark.parametrize(
    ("fault", "code"), [("kills_process", EXIT_CODE), ("segfaults", -signal.SIGSEGV)]
)
@pytest.mark.parametrize("function", ["step_in_a_child", "call_in_a_child"])
def test_deadly_faults_end_the_process(function, fault, code):
    with Child(f"{HERE}:{function}", fault=fault) as child:
        assert child.wait(LIMIT_S) == code


def test_a_broken_env_is_a_target_and_its_faults_are_named_errors():
    target = "rollmesh.testing.faults.envs:broken_env"
    with pytest.raises(EnvFailed, match="broken on purpose at 3"):
        rollmesh.evaluate("random", target, seeds=[1], env_kwargs={"fault": "raises", "at_step": 3})
    with pytest.raises(OperationTimeout):
        rollmesh.evaluate(
            "random",
            target,
            seeds=[1],
            env_kwargs={"fault": "hangs", "seconds": 2.0},
            limits=Limits(env_step_s=0.2, close_s=0.2),
        )


# ------------------------------------------------------------------------------------ models


class Corner(rollmesh.Model):
    def __init__(self):
        self.told = []

    def predict_batch(self, observations, context):
        assert len(context) == len(observations["n"])
        return np.zeros((len(observations["n"]), 1), np.float32)

    def on_episode_start(self, context):
        self.told.append("start")

    def on_episode_end(self, context):
        self.told.append("end")


@pytest.mark.parametrize("model", [still, Corner])
def test_a_policy_that_is_not_broken_yet_plays_as_the_one_inside(model):
    inner = model if model is still else model()
    broken = broken_model(inner, fault="raises", at_call=99)
    result = rollmesh.evaluate(broken, Counts(), seeds=[1, 2])
    assert [episode.steps for episode in result.episodes] == [5, 5]
    assert broken.calls == 10
    if model is Corner:
        assert inner.told == ["start", "end"] * 2


@pytest.mark.parametrize(
    "fault", ["raises", "exits", "nan", "wrong_shape", "returns_none", "start_raises"]
)
def test_a_broken_policy_is_a_named_error(fault):
    with pytest.raises(ModelFailed):
        rollmesh.evaluate(broken_model(still, fault=fault), Counts(), seeds=[1])


@pytest.mark.parametrize("fault", ["sleeps", "aliases", "writes_observation", "end_raises"])
def test_what_a_policy_may_do_changes_nothing(fault):
    result = rollmesh.evaluate(
        broken_model(still, fault=fault, seconds=0.001), Counts(), seeds=[1, 2]
    )
    assert [episode.steps for episode in result.episodes] == [5, 5]


def test_a_policy_hangs_until_it_is_released():
    model = broken_model(still, fault="hangs")
    done = threading.Event()
    thread = threading.Thread(target=lambda: (model(None), done.set()), daemon=True)
    thread.start()
    assert not done.wait(0.05)
    model.release()
    assert done.wait(LIMIT_S)
    thread.join()


def test_unknown_faults_and_numbers_below_0_are_refused():
    with pytest.raises(InvalidSpec, match="explodes"):
        broken_env(Counts, fault="explodes")
    with pytest.raises(InvalidSpec, match="explodes"):
        broken_model(still, fault="explodes")
    with pytest.raises(InvalidSpec, match="at:"):
        broken_env(Counts, at_step=-1)
    with pytest.raises(InvalidSpec, match="no policy"):
        broken_model(object())
    assert len(set(ENV_FAULTS)) >= 12
    assert len(set(MODEL_FAULTS)) >= 12
