"""W5: envs that take time to step, and an accelerator that takes time to answer.

An env of another workload whose steps sleep, so that others can use the processor meanwhile, as
they could while a simulator waits for a renderer. Constant: 5 ms a step. Heavy-tailed, with the
same mean: one step in twenty stalls for 60 ms, the others take 2.1 ms.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks import workloads

LANES = 16
STEP_S = 0.005
FORWARD_S = 0.020
ROW_S = 0.0005
LIMIT = LANES / (STEP_S + FORWARD_S + LANES * ROW_S + 0.0004)
"""Steps a second where model and envs take turns, with 0.4 ms for what two timers add."""

_STALL_S, _STALLS = 0.060, 0.05
_BETWEEN_S = (STEP_S - _STALLS * _STALL_S) / (1 - _STALLS)


def _constant(chance: random.Random) -> float:
    del chance
    return STEP_S


def _heavy(chance: random.Random) -> float:
    return _STALL_S if chance.random() < _STALLS else _BETWEEN_S


def _lognormal(chance: random.Random) -> float:
    sigma = 1.5
    return STEP_S * chance.lognormvariate(-sigma * sigma / 2, sigma)


THINKING: dict[str, Callable[[random.Random], float]] = {
    "constant": _constant,
    "heavy-tailed": _heavy,
    "lognormal": _lognormal,
}


AWAKE = "awake"
"""Does not sleep: a real simulator."""


class SleepyEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Sleeps in each step; for how long is drawn anew from each reset's seed.

    Args:
        env: What it hands on.
        thinking: A name in `THINKING`; the reset option `thinking` changes it.
    """

    def __init__(self, env: gym.Env[Any, Any], thinking: str) -> None:
        super().__init__(env)
        self._think_s = THINKING[thinking]
        self._chance = random.Random()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset it."""
        if seed is not None:
            self._chance.seed(seed)
        if options and "thinking" in options:
            self._think_s = THINKING[options["thinking"]]
        return self.env.reset(seed=seed)

    def step(self, action: Any) -> Any:
        """Sleep, then step."""
        time.sleep(self._think_s(self._chance))
        return self.env.step(action)


def make_env(key: str, thinking: str = "constant") -> gym.Env[Any, Any]:
    """Return an env of a workload, named as in `workloads.named`, that sleeps unless `AWAKE`."""
    env = workloads.named(key).make()
    return env if thinking == AWAKE else SleepyEnv(env, thinking)


class Accelerator:
    """A model that answers one batch at a time, and notes when it answered how many rows.

    Attributes:
        answered: When, in seconds of a clock, and how many rows.
    """

    def __init__(self, action: Any) -> None:
        self.answered: list[tuple[float, int]] = []
        self._action = np.asarray(action)
        self._lock = threading.Lock()

    def predict(self, observation: Any) -> Any:
        """Answer one row."""
        del observation
        self.forward(1)
        return self._action

    def predict_batch(self, observation: Any) -> Any:
        """Answer a batch."""
        rows = len(next(iter(observation.values()))) if isinstance(observation, dict) else None
        rows = len(observation) if rows is None else rows
        self.forward(rows)
        return np.stack([self._action] * rows)

    def forward(self, rows: int) -> None:
        """Take the time of a forward."""
        with self._lock:
            time.sleep(FORWARD_S + ROW_S * rows)
            self.answered.append((time.perf_counter(), rows))
