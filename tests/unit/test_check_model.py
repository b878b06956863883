"""`check_model`: a sentence for everything that a run would trip over."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rollmesh.errors import InvalidSpec
from rollmesh.testing import CheckReport, Level, check_model


class World(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(0, 1, (3,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.random(3), {}

    def step(self, action: Any) -> Any:
        pytest.fail("check_model steps no env")


class Good:
    def predict(self, observation: Any) -> Any:
        return observation[:2].astype(np.float32)


def found(report: CheckReport, rule: str) -> Level:
    levels = [f.level for f in report.findings if f.rule == rule]
    assert len(levels) >= 1, str(report)
    return levels[0]


def test_a_good_model_passes_without_warnings() -> None:
    report = check_model(Good, World)
    assert report.passed, str(report)
    assert report.warnings == []
    for rule in ("load", "action", "batch", "batch and row", "same seed", "episode end", "close"):
        assert found(report, rule) is Level.OK


def test_instances_and_callables_say_their_corners() -> None:
    assert "has predict; the others are derived" in str(check_model(Good(), World()))
    assert "is a callable" in str(check_model(lambda observation: observation[:2], World()))


def test_chunks_and_horizons_are_told() -> None:
    class Chunks:
        def predict_chunk(self, observation: Any, horizon: int | None = None) -> Any:
            return np.zeros((4, 2), np.float32)

    text = str(check_model(Chunks, World))
    assert "a chunk of 4 actions" in text
    assert "execution_horizon=2 gives" in text


def test_a_batch_that_mixes_rows_is_found() -> None:
    class Mixes:
        def predict_batch(self, observations: Any) -> Any:
            return np.repeat(observations.mean(axis=0)[None, :2], len(observations), axis=0)

    report = check_model(Mixes, World)
    assert found(report, "batch and row") is Level.WARN
    assert report.passed


def test_a_model_that_cannot_be_repeated_is_found() -> None:
    rng = np.random.default_rng(0)

    class Draws:
        def __init__(self) -> None:
            self.bias = rng.random()

        def predict(self, observation: Any) -> Any:
            return np.full(2, self.bias, np.float32)

    assert found(check_model(Draws, World), "same seed") is Level.WARN


@pytest.mark.parametrize(
    ("rule", "words", "predict"),
    [
        ("action", "(3,)", lambda self, observation: np.zeros(3)),
        ("action", "None", lambda self, observation: None),
        ("action", "ZeroDivisionError", lambda self, observation: 1 / 0),
        ("action", "NaN", lambda self, observation: np.full(2, np.nan, np.float32)),
    ],
)
def test_each_fault_has_its_sentence(rule: str, words: str, predict: Any) -> None:
    report = check_model(type("Mutant", (), {"predict": predict}), World)
    assert found(report, rule) is Level.FAIL, str(report)
    assert words.lower() in str(report).lower()
    assert not report.passed


def test_out_of_bounds_actions_are_a_warning() -> None:
    report = check_model(lambda observation: np.full(2, 9.0, np.float32), World)
    assert found(report, "action") is Level.WARN
    assert report.passed


def test_a_model_that_cannot_be_built_is_a_finding() -> None:
    class Heavy:
        def __init__(self) -> None:
            raise OSError("no weights here")

        def predict(self, observation: Any) -> Any:
            return None

    report = check_model(Heavy, World)
    assert found(report, "load") is Level.FAIL
    assert "no weights here" in str(report)


def test_an_episode_end_that_raises_is_a_finding() -> None:
    class Sore(Good):
        def on_episode_end(self, context: Any) -> None:
            raise RuntimeError("already gone")

    report = check_model(Sore, World)
    assert found(report, "episode end") is Level.FAIL


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InvalidSpec):
        check_model(3, World)
