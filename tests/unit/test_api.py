"""`evaluate`: arguments, seeds, ownership, failures and results."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollmesh.api import evaluate
from rollmesh.errors import EnvFailed, InvalidSpec, ModelFailed, RouteCancelled
from rollmesh.limits import Limits
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.hooks import Hooks
from rollmesh.runtime.seeds import episode_seed
from rollmesh.session import Session


class Counter(gym.Env[Any, Any]):
    """Observes the step number; ends after `length` steps, reward 1 a step."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, length: int = 3, log: list[Any] | None = None, breaks_on: int = -1) -> None:
        self.length = length
        self.log: list[Any] = [] if log is None else log
        self.breaks_on = breaks_on
        self.log.append("built")
        self.t = 0
        self.resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.log.append(("reset", seed, options))
        self.t = 0
        self.resets += 1
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.resets == self.breaks_on:
            raise RuntimeError("the gripper fell off")
        ended = self.t >= self.length
        return np.full(1, self.t, np.float32), 1.0, ended, False, {"is_success": ended}

    def close(self) -> None:
        self.log.append("closed")


def zero(observation: Any) -> int:
    return 0


class Touchy:
    """Fails the test when anything is built."""

    def __call__(self) -> Any:
        pytest.fail("the env was built")


def resets(log: list[Any]) -> list[Any]:
    return [entry for entry in log if isinstance(entry, tuple)]


# ------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("episodes", {}),
        ("episodes", {"episodes": -1}),
        ("episodes", {"episodes": 1.5}),
        ("episodes", {"episodes": True}),
        ("episodes", {"episodes": 3, "seeds": [1, 2]}),
        ("base_seed", {"base_seed": 7, "seeds": [1, 2]}),
        ("base_seed", {"base_seed": "7", "episodes": 2}),
        ("base_seed", {"base_seed": -1, "episodes": 2}),
        ("seeds[0]", {"seeds": [-1]}),
        ("seeds[1]", {"seeds": [0, 1.5]}),
        ("seeds[0]", {"seeds": ["7"]}),
        ("seeds[0]", {"seeds": [True]}),
        ("seeds", {"seeds": "12"}),
        ("seeds", {"seeds": 12}),
        ("options", {"episodes": 2, "options": [{}]}),
        ("options", {"episodes": 2, "options": "hard"}),
        ("options[1]", {"episodes": 2, "options": [{}, 3]}),
        ("num_envs", {"episodes": 2, "num_envs": 0}),
        ("max_episode_steps", {"episodes": 2, "max_episode_steps": 0}),
        ("max_episode_seconds", {"episodes": 2, "max_episode_seconds": float("nan")}),
        ("execution_horizon", {"episodes": 2, "execution_horizon": 0}),
        ("replan", {"episodes": 2, "replan": "never"}),
        ("on_error", {"episodes": 2, "on_error": "ignore"}),
        ("conformance", {"episodes": 2, "conformance": "loose"}),
        ("conformance", {"episodes": 2, "conformance": {"policy": "off"}}),
        ("conformance['env']", {"episodes": 2, "conformance": {"env": "loose"}}),
        ("hooks", {"episodes": 2, "hooks": [3]}),
        ("limits", {"episodes": 2, "limits": {"env_step_s": 3}}),
        ("cancel", {"episodes": 2, "cancel": threading.Event()}),
        ("env_kwargs", {"episodes": 2, "env_kwargs": "length=3"}),
    ],
)
def test_bad_arguments_name_the_field_and_touch_nothing(
    field: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(InvalidSpec) as caught:
        evaluate(zero, Touchy(), **arguments)
    assert caught.value.field == field


@pytest.mark.parametrize("arguments", [{"episodes": 0}, {"seeds": []}])
def test_no_episodes_give_an_empty_result_and_touch_nothing(arguments: dict[str, Any]) -> None:
    result = evaluate(zero, Touchy(), **arguments)
    assert result.episodes == ()
    assert result.success_rate is None


def test_bad_arguments_are_refused_for_no_episodes_too() -> None:
    with pytest.raises(InvalidSpec, match="replan"):
        evaluate(zero, Touchy(), episodes=0, replan="never")  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------- seeds


def test_r41_seeds_follow_from_the_base_seed() -> None:
    log: list[Any] = []
    result = evaluate(zero, Counter, episodes=3, base_seed=7, env_kwargs={"log": log})
    wanted = [episode_seed(7, "", k) for k in range(3)]
    assert [e.seed for e in result.episodes] == wanted
    assert [entry[1] for entry in resets(log)] == wanted
    assert result.plan_seed == result.base_seed == 7


def test_r41_a_drawn_plan_seed_is_told_and_repeats_the_plan(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Told(Hooks):
        lines: list[str] = []

        def log(self, event: Any) -> None:
            if event.source == "evaluate":
                self.lines.append(event.message)

    with caplog.at_level(logging.INFO, logger="rollmesh"):
        first = evaluate(zero, Counter, episodes=3, hooks=Told())
    assert first.plan_seed is not None
    assert str(first.plan_seed) in Told.lines[0]
    assert str(first.plan_seed) in caplog.text
    second = evaluate(zero, Counter, episodes=3, base_seed=first.plan_seed)
    assert [e.seed for e in first.episodes] == [e.seed for e in second.episodes]


def test_any_int_of_0_or_more_reaches_the_env_exactly() -> None:
    log: list[Any] = []
    good = [0, 2**31, 2**63, 2**64 - 1, 2**100, np.int64(5)]
    result = evaluate(zero, Counter(length=1, log=log), seeds=good)
    got = [entry[1] for entry in resets(log)]
    assert got == [0, 2**31, 2**63, 2**64 - 1, 2**100, 5]
    assert all(type(seed) is int for seed in got)
    assert [e.seed for e in result.episodes] == got
    assert json.loads(result.to_json())["episodes"][4]["seed"] == 2**100
    assert result.plan_seed is None


def test_r42_every_seed_runs_once_whatever_the_width_in_plan_order() -> None:
    seeds = list(range(10, 17))
    for width in (1, 3):
        result = evaluate(zero, Counter, seeds=seeds, num_envs=width)
        assert [e.seed for e in result.episodes] == seeds
        assert [e.index for e in result.episodes] == list(range(7))
        assert [e.steps for e in result.episodes] == [3] * 7


def test_lanes_that_no_episode_needs_are_not_built() -> None:
    log: list[Any] = []
    result = evaluate(zero, Counter, episodes=2, num_envs=8, env_kwargs={"log": log})
    assert log.count("built") == 2
    assert result.num_envs == 2


def test_options_are_one_for_all_or_one_each() -> None:
    log: list[Any] = []
    evaluate(zero, Counter(log=log), episodes=2, options={"task": 3})
    evaluate(zero, Counter(log=log), seeds=[0, 1], options=[{"task": 4}, None])
    assert [entry[2] for entry in resets(log)] == [{"task": 3}, {"task": 3}, {"task": 4}, None]


# ------------------------------------------------------------------ envs that reset themselves


def vector(mode: AutoresetMode) -> SyncVectorEnv:
    return SyncVectorEnv([Counter, Counter], autoreset_mode=mode)


def test_self_resetting_envs_run_unseeded_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = vector(AutoresetMode.SAME_STEP)
    with caplog.at_level(logging.WARNING, logger="rollmesh.api"):
        result = evaluate(zero, env, episodes=4)
    assert [e.steps for e in result.episodes] == [3] * 4
    assert {e.seed for e in result.episodes} == {None}
    assert result.plan_seed is None
    assert caplog.text.count("no_seeds_sent") == 1
    env.close()


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("seeds", {"seeds": [1, 2]}),
        ("base_seed", {"episodes": 2, "base_seed": 1}),
        ("options", {"episodes": 2, "options": {}}),
        ("max_episode_steps", {"episodes": 2, "max_episode_steps": 2}),
        ("max_episode_seconds", {"episodes": 2, "max_episode_seconds": 2.0}),
    ],
)
def test_r2_a_plan_needs_resets_that_rollmesh_owns(field: str, arguments: dict[str, Any]) -> None:
    env = vector(AutoresetMode.SAME_STEP)
    with pytest.raises(InvalidSpec, match="SAME_STEP") as caught:
        evaluate(zero, env, **arguments)
    assert caught.value.field == field
    env.close()


def test_what_is_advised_for_an_env_that_resets_itself_can_be_followed() -> None:
    theirs = gym.make_vec("CartPole-v1", num_envs=2)  # knows no reset_mask, in no mode
    with pytest.raises(InvalidSpec, match=r"make_vec\(…, vectorization_mode='sync'\)"):
        evaluate("random", theirs, episodes=2, base_seed=1)
    theirs.close()
    synced = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    lanes = evaluate("random", "CartPole-v1", episodes=2, base_seed=1, num_envs=2)
    result = evaluate("random", synced, episodes=2, base_seed=1)
    assert [e.total_reward for e in result.episodes] == [e.total_reward for e in lanes.episodes]
    synced.close()


def test_a_disabled_vector_env_is_seeded() -> None:
    env = vector(AutoresetMode.DISABLED)
    result = evaluate(zero, env, seeds=[5, 6, 7, 8])
    assert [e.seed for e in result.episodes] == [5, 6, 7, 8]
    env.close()


# -------------------------------------------------------------------------------- ownership


def test_an_instance_stays_open_and_a_factory_is_closed() -> None:
    given: list[Any] = []
    built: list[Any] = []
    evaluate(zero, Counter(log=given), episodes=1)
    evaluate(zero, Counter, episodes=1, env_kwargs={"log": built})
    assert "closed" not in given
    assert built.count("closed") == 1


def test_what_was_built_is_closed_when_the_model_cannot_be_opened() -> None:
    log: list[Any] = []

    class Heavy:
        def __init__(self) -> None:
            raise OSError("no weights here")

        def predict(self, observation: Any) -> int:
            return 0

    with pytest.raises(ModelFailed, match="no weights here") as caught:
        evaluate(Heavy, Counter, episodes=1, env_kwargs={"log": log})
    assert caught.value.operation == "model.connect"
    assert caught.value.result is not None
    assert caught.value.result.episodes == ()
    assert log.count("closed") == 1


def test_an_env_that_cannot_be_built_is_env_failed() -> None:
    def broken() -> Any:
        raise OSError("no display")

    with pytest.raises(EnvFailed, match="no display") as caught:
        evaluate(zero, broken, episodes=1)
    assert caught.value.operation == "env.connect"


def test_a_refused_plan_closes_the_env_that_was_built() -> None:
    log: list[Any] = []

    def build() -> Any:
        return SyncVectorEnv([lambda: Counter(log=log)], autoreset_mode=AutoresetMode.SAME_STEP)

    with pytest.raises(InvalidSpec):
        evaluate(zero, build, seeds=[1])
    assert log.count("closed") == 1


def test_a_model_that_was_built_is_closed_once() -> None:
    calls: list[str] = []

    class Policy:
        def load(self) -> None:
            calls.append("load")

        def predict(self, observation: Any) -> int:
            return 0

        def close(self) -> None:
            calls.append("close")

    evaluate(Policy, Counter, episodes=2)
    assert calls == ["load", "close"]
    evaluate(Policy(), Counter, episodes=1)
    assert calls == ["load", "close", "load"]


def test_env_and_model_built_here_share_one_thread() -> None:
    threads: set[str] = set()

    class Where(Counter):
        def step(self, action: Any) -> Any:
            threads.add(threading.current_thread().name)
            return super().step(action)

    class Policy:
        def predict(self, observation: Any) -> int:
            threads.add(threading.current_thread().name)
            return 0

    evaluate(Policy, Where, episodes=1)
    assert threads == {"rollmesh-route"}


# --------------------------------------------------------------------------------- failures


def test_finished_episodes_are_kept_when_the_env_breaks() -> None:
    with pytest.raises(EnvFailed, match="the gripper fell off") as caught:
        evaluate(zero, Counter(breaks_on=3), seeds=[1, 2, 3, 4])
    result = caught.value.result
    assert result is not None
    assert [e.seed for e in result.episodes if e.error is None] == [1, 2]
    assert result.num_errors == 1
    assert result.success_rate == 1.0
    assert result.planned == 4
    assert "the gripper fell off" in (result.stopped or "")
    assert caught.value.report is not None


def test_on_error_continue_marks_the_episode_and_goes_on_with_a_new_env() -> None:
    log: list[Any] = []
    result = evaluate(
        zero,
        Counter,
        seeds=[1, 2, 3, 4],
        on_error="continue",
        env_kwargs={"breaks_on": 3, "log": log},
    )
    assert [e.seed for e in result.episodes] == [1, 2, 3, 4]
    assert [e.error is None for e in result.episodes] == [True, True, False, True]
    assert log.count("built") == log.count("closed") == 2


def test_a_cancel_from_another_thread_keeps_what_had_ended() -> None:
    cancel = CancelToken()

    class Stop(Hooks):
        def episode_completed(self, event: Any) -> None:
            if event.episode_index == 2:
                thread = threading.Thread(target=cancel.cancel, args=("enough",))
                thread.start()
                thread.join()

    with pytest.raises(RouteCancelled, match="enough") as caught:
        evaluate(zero, Counter(), episodes=100, hooks=Stop(), cancel=cancel)
    assert caught.value.result is not None
    assert len(caught.value.result.episodes) == 3
    assert caught.value.result.stopped == "enough"


@pytest.mark.parametrize("given", [{}, {"num_envs": 2}, {"workers": 1}])
def test_a_drained_run_says_why(given: dict[str, Any]) -> None:
    cancel = CancelToken()

    class Drain(Hooks):
        def episode_started(self, event: Any) -> None:
            cancel.drain("the lab closes")

    result = evaluate(zero, Counter, episodes=100, hooks=Drain(), cancel=cancel, **given)
    assert len(result.episodes) < 100
    assert result.stopped == "the lab closes"


def test_draining_ends_with_the_episodes_that_ran() -> None:
    cancel = CancelToken()

    class Drain(Hooks):
        def episode_started(self, event: Any) -> None:
            if event.episode_index == 1:
                cancel.drain()

    result = evaluate(zero, Counter(), episodes=100, hooks=Drain(), cancel=cancel)
    assert len(result.episodes) == 2
    assert result.stopped == "asked to start no new episode"


def test_a_hung_env_from_a_factory_ends_at_its_limit() -> None:
    release = threading.Event()

    class Hangs(Counter):
        def step(self, action: Any) -> Any:
            release.wait(30)
            return super().step(action)

    try:
        with pytest.raises(TimeoutError, match="did not come back"):
            evaluate(zero, Hangs, episodes=1, limits=Limits(env_step_s=0.05))
    finally:
        release.set()


# ------------------------------------------------------------------------------------ rest


def test_hooks_hear_both_endpoints_connect_before_the_session() -> None:
    heard: list[str] = []

    class Ear(Hooks):
        def env_connected(self, event: Any) -> None:
            heard.append(f"env {event.route.env_component}")

        def model_connected(self, event: Any) -> None:
            heard.append(f"model {event.route.model_component}")

        def session_started(self, event: Any) -> None:
            heard.append("session")

        def session_ended(self, event: Any) -> None:
            heard.append("ended")

    evaluate(zero, Counter, episodes=1, hooks=[Ear()])
    assert heard == ["env Counter", "model zero", "session", "ended"]


def test_runs_on_any_thread() -> None:
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(evaluate(zero, Counter, episodes=2, num_envs=2))
    )
    thread.start()
    thread.join(20)
    assert len(found[0].episodes) == 2


def test_caps_truncate_and_the_result_adds_up() -> None:
    result = evaluate(zero, Counter(length=50), episodes=3, max_episode_steps=5)
    assert [(e.steps, e.truncated, e.terminated) for e in result.episodes] == [(5, True, False)] * 3
    assert result.mean_return == result.mean_length == 5.0
    assert result.total_steps == 15
    assert result.telemetry is not None
    assert result.elapsed_s > 0
    assert "zero in Counter: 3 episodes" in repr(result)


def test_a_registered_id_and_the_random_policy() -> None:
    result = evaluate("random", "CartPole-v1", seeds=[1, 2])
    again = evaluate("random", "CartPole-v1", seeds=[1, 2], num_envs=2)
    assert [e.total_reward for e in result.episodes] == [e.total_reward for e in again.episodes]


def test_conformance_may_differ_for_env_and_model() -> None:
    class Wide(Counter):
        observation_space = gym.spaces.Box(0, 1, (1,), np.float32)

    result = evaluate(zero, Wide(), episodes=1, conformance={"env": "off"})
    assert result.episodes[0].steps == 3
    with pytest.raises(EnvFailed, match="observation"):
        evaluate(zero, Wide(), episodes=1, conformance={"env": "strict"})


class _Still:
    def predict(self, observation):
        return 0


@pytest.mark.parametrize(
    ("model", "env"),
    [
        ("CartPole-v1", "random"),
        ("CartPole-v1", _Still()),
        (Counter(length=1), _Still),
        (Counter(length=1), Counter(length=1)),
        ("CartPole-v1", "policy.zip"),
        (Counter, zero),
        ("module:Thing-v0", "CartPole-v1"),
    ],
)
def test_two_arguments_that_look_swapped_are_asked_about(model, env) -> None:
    with pytest.raises(InvalidSpec, match=r"are the two swapped.* model comes first, then the env"):
        evaluate(model, env, episodes=1)
    with pytest.raises(InvalidSpec, match="are the two swapped"):
        Session(model, env)


@pytest.mark.parametrize(("model", "env"), [("random", "No-v0"), (zero, 5), ("lambda", Counter)])
def test_other_bad_arguments_are_not_asked_about(model, env) -> None:
    with pytest.raises(InvalidSpec) as caught:
        evaluate(model, env, episodes=1)
    assert "swapped" not in str(caught.value)
