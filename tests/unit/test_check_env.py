"""`check_env`: a sentence for everything that a run would trip over."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList

import rollmesh
from rollmesh.errors import InvalidSpec
from rollmesh.limits import Limits
from rollmesh.testing import CheckReport, Level, check_env


class Good(gym.Env[Any, Any]):
    """A random walk that follows its seed, ends after 5 steps and refuses a sixth."""

    observation_space = gym.spaces.Box(-100, 100, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {"seed": seed}

    def step(self, action: Any) -> Any:
        if self.t >= 5:
            raise RuntimeError("the episode is over")
        self.t += 1
        return self.observe(), float(action), self.t >= 5, False, {}

    def observe(self) -> Any:
        return np.array([self.t, self.np_random.random()])


def found(report: CheckReport, rule: str) -> Level:
    levels = [f.level for f in report.findings if f.rule == rule]
    assert len(levels) >= 1, str(report)
    return levels[0]


def test_a_good_env_passes_without_warnings() -> None:
    report = check_env(Good)
    assert report.passed, str(report)
    assert report.warnings == []
    assert str(report).endswith("Good: passed")
    for rule in ("spaces", "same seed", "same seed, new env", "seeds", "buffers", "close"):
        assert found(report, rule) is Level.OK
    assert "refused (RuntimeError)" in str(report)


def test_an_instance_is_checked_and_stays_open() -> None:
    class Closes(Good):
        closed = False

        def close(self) -> None:
            self.closed = True

    env = Closes()
    report = check_env(env)
    assert report.passed, str(report)
    assert not env.closed
    assert not any(f.rule == "same seed, new env" for f in report.findings)


def test_an_id_and_keyword_arguments_are_taken() -> None:
    assert check_env("CartPole-v1", max_steps=20).passed
    with pytest.raises(InvalidSpec):
        check_env("NoSuchEnv-v0")


def mutant(**methods: Any) -> type[Good]:
    return type("Mutant", (Good,), methods)


def _shared_buffer(self: Any) -> Any:
    if not hasattr(self, "buffer"):
        self.buffer = np.zeros(2)
    self.buffer[:] = self.t, self.np_random.random()
    return self.buffer


def _ignores_seed(self: Any, *, seed: int | None = None, options: Any = None) -> Any:
    if not hasattr(self, "started"):
        self.started = True
        gym.Env.reset(self, seed=0)
    self.t = 0
    return self.observe(), {}


def _deaf_to_seed(self: Any, *, seed: int | None = None, options: Any = None) -> Any:
    gym.Env.reset(self, seed=0)
    self.t = 0
    return self.observe(), {}


def _changed_step(**over: Any) -> Any:
    names = ("observation", "reward", "terminated", "truncated", "info")

    def step(self: Any, action: Any) -> Any:
        values = dict(zip(names, Good.step(self, action), strict=True))
        return tuple({**values, **over}.values())

    return step


def _raises(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise ValueError("not today")


def _exits(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise SystemExit(3)


def _takes_no_seed(self: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("rule", "level", "words", "methods"),
    [
        ("buffers", Level.WARN, "return a copy", {"observe": _shared_buffer}),
        ("same seed", Level.FAIL, "another episode", {"reset": _ignores_seed}),
        ("seeds", Level.WARN, "same episode", {"reset": _deaf_to_seed}),
        ("reset", Level.FAIL, "ValueError: not today", {"reset": _raises}),
        ("reset", Level.FAIL, "(observation, info)", {"reset": lambda self, **_: 3}),
        ("step", Level.FAIL, "ValueError: not today", {"step": _raises}),
        ("reset", Level.FAIL, "SystemExit: 3", {"reset": _exits}),
        ("reset", Level.FAIL, "must take seed and options", {"reset": _takes_no_seed}),
        ("step", Level.FAIL, "SystemExit: 3", {"step": _exits}),
        ("close", Level.FAIL, "SystemExit: 3", {"close": _exits}),
        ("step", Level.FAIL, "a tuple of 4", {"step": lambda self, _: (1, 2, 3, 4)}),
        ("observation", Level.FAIL, "observation", {"observe": lambda self: np.zeros(3)}),
        ("observation", Level.FAIL, "observation", {"observe": lambda self: np.full(2, 1e6)}),
        ("reward", Level.FAIL, "single number", {"step": _changed_step(reward=[1.0, 2.0])}),
        ("reward", Level.WARN, "nan", {"step": _changed_step(reward=float("nan"))}),
        ("flags", Level.FAIL, "terminated is str", {"step": _changed_step(terminated="yes")}),
        ("flags", Level.FAIL, "truncated is NoneType", {"step": _changed_step(truncated=None)}),
        ("flags", Level.WARN, "read as a bool", {"step": _changed_step(truncated=0)}),
        ("info", Level.FAIL, "a dict is wanted", {"step": _changed_step(info=[1])}),
        ("info", Level.WARN, "callback", {"step": _changed_step(info={"callback": lambda: 3})}),
        ("end", Level.WARN, "max_episode_steps", {"step": _changed_step(terminated=False)}),
        ("close", Level.FAIL, "not today", {"close": _raises}),
        ("build", Level.FAIL, "not today", {"__init__": _raises}),
    ],
)
def test_each_fault_has_its_sentence(
    rule: str, level: Level, words: str, methods: dict[str, Any]
) -> None:
    report = check_env(mutant(**methods), max_steps=5)
    assert found(report, rule) is level, str(report)
    assert words in str(report)
    assert report.passed is (level is not Level.FAIL)


def test_an_env_that_hangs_is_a_finding_and_gets_no_further_call() -> None:
    ended, calls = threading.Event(), []

    class Hangs(Good):
        def step(self, action: Any) -> Any:
            ended.wait(30.0)
            return super().step(action)

        def close(self) -> None:
            calls.append("close")

    report = check_env(Hangs, limits=Limits(env_step_s=0.05))
    ended.set()
    assert found(report, "step") is Level.FAIL
    assert "step 1 raised TimeoutError: step did not come back within 0.05 s" in str(report)
    assert calls == []


def test_a_factorys_env_lives_on_one_thread() -> None:
    threads: set[int] = set()

    class Watches(Good):
        def __init__(self) -> None:
            threads.add(threading.get_ident())

        def reset(self, **given: Any) -> Any:
            threads.add(threading.get_ident())
            return super().reset(**given)

        def close(self) -> None:
            threads.add(threading.get_ident())

    assert check_env(Watches).passed
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_what_gymnasium_warns_of_a_step_after_the_end_is_not_shown() -> None:
    report = check_env("CartPole-v1", max_steps=200)  # warnings are errors in these tests
    assert "step after the end: is answered" in str(report)


def test_state_outside_the_env_shows_in_a_second_one() -> None:
    made: list[Any] = []

    class Shared(Good):
        def __init__(self) -> None:
            made.append(self)
            self.bias = len(made)

        def observe(self) -> Any:
            return np.array([self.t, self.bias], np.float64)

    report = check_env(Shared)
    assert found(report, "same seed") is Level.OK
    assert found(report, "same seed, new env") is Level.FAIL


def test_a_missing_space_and_a_foreign_one_are_named() -> None:
    report = check_env(mutant(action_space=None))
    assert "action_space is missing" in str(report)
    assert not report.passed


# ------------------------------------------------------------------------------ vector envs


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_gymnasiums_own_vector_env_passes_in_every_mode(mode: AutoresetMode) -> None:
    report = check_env(lambda: SyncVectorEnv([Good, Good, Good], autoreset_mode=mode))
    assert report.passed, str(report)
    assert f"does what {mode.name} says" in str(report)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_vector_env_whose_infos_are_a_list_of_dicts_passes_too(mode: AutoresetMode) -> None:
    report = check_env(
        lambda: DictInfoToList(SyncVectorEnv([Good, Good, Good], autoreset_mode=mode))
    )
    assert report.passed, str(report)


@pytest.mark.parametrize("said", ["NextStep", "next_step", "NEXT_STEP"])
def test_a_mode_declared_as_a_text_is_taken_as_a_run_takes_it(said: str) -> None:
    report = check_env(WrongMode(said, AutoresetMode.NEXT_STEP))
    assert report.passed, str(report)
    assert "does what NEXT_STEP says" in str(report)


class WrongMode(SyncVectorEnv):
    """Says another mode than it has."""

    said: Any = None

    def __init__(self, said: Any, mode: AutoresetMode) -> None:
        super().__init__([Good, Good], autoreset_mode=mode)
        self.metadata = {**self.metadata, "autoreset_mode": said}


@pytest.mark.parametrize(
    ("said", "mode", "words"),
    [
        (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, "reward 0"),
        (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, "final_obs"),
        (None, AutoresetMode.NEXT_STEP, "nobody knows"),
    ],
)
def test_autoreset_other_than_declared_is_found(said: Any, mode: AutoresetMode, words: str) -> None:
    report = check_env(WrongMode(said, mode), seed=1)
    assert found(report, "autoreset") is Level.FAIL, str(report)
    assert words in str(report)


def test_a_partial_reset_that_touches_other_lanes_is_found() -> None:
    class Clumsy(SyncVectorEnv):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            if options is not None:
                options = {"reset_mask": np.ones(self.num_envs, np.bool_)}
            return super().reset(seed=seed, options=options)

    class Longer(Good):
        def step(self, action: Any) -> Any:
            self.t += 1
            return self.observe(), 0.0, self.t >= 7, False, {}

    report = check_env(Clumsy([Good, Longer], autoreset_mode=AutoresetMode.DISABLED), max_steps=50)
    assert "changed lane 1" in str(report), str(report)


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_served_env_is_played_like_any_other(lanes: int) -> None:
    options = rollmesh.ServerOptions(num_envs=lanes)
    with rollmesh.EnvServer(Good, "rollmesh+unix://", options) as server:
        report = check_env(server.address)
        assert report.subject == server.address
        assert report.passed, str(report)
        assert found(report, "spaces") is Level.OK
        assert found(report, "same seed") is Level.OK
        assert found(report, "close") is Level.OK
        with pytest.raises(InvalidSpec, match="its server has them"):
            check_env(server.address, env_kwargs={"a": 1})


def test_an_address_at_which_nobody_is_does_not_pass(tmp_path: Any) -> None:
    address = f"rollmesh+unix://{tmp_path}/nobody.sock"
    report = check_env(address, limits=Limits(env_connect_s=0.1))
    assert not report.passed
    assert "connecting to it raised" in str(report)
