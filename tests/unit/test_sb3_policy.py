"""A Stable-Baselines3 algorithm as a policy: what it remembers of an episode is kept for it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollmesh.api import evaluate
from rollmesh.endpoint.models.sb3 import StableBaselinesPolicy


class Sums:
    """As a recurrent algorithm: the action is the sum of all observations of the episode."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def predict(self, observation: Any, state: Any = None, *, deterministic: bool) -> Any:
        assert deterministic
        given = observation["x"] if isinstance(observation, dict) else observation
        self.calls.append(np.shape(given))
        rows = np.reshape(given, (-1, 1)).astype(np.float32)
        memory = rows if state is None else state[0] + rows
        actions = memory if np.ndim(given) > 1 else memory[0]
        return actions, (memory,)


class Plain:
    """As an algorithm without a memory, which need not take a state."""

    def predict(self, observation: Any, *, deterministic: bool) -> Any:
        assert deterministic
        return np.zeros((*np.shape(observation)[:-1], 1), np.float32), None


class Shows(gym.Env[Any, Any]):
    """Shows 1, 2, 3, … from the seed on; the reward is what an action says."""

    action_space = gym.spaces.Box(-1e6, 1e6, (1,), np.float32)

    def __init__(self, *, is_dict: bool = False) -> None:
        space = gym.spaces.Box(-1e6, 1e6, (1,), np.float32)
        self.is_dict = is_dict
        self.observation_space: Any = gym.spaces.Dict(x=space) if is_dict else space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.now, self.left = seed or 0, 2 + (seed or 0) % 3
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.now += 1
        self.left -= 1
        return self._observation(), float(action[0]), self.left == 0, False, {}

    def _observation(self) -> Any:
        value = np.array([self.now], np.float32)
        return {"x": value} if self.is_dict else value


def returns(seed: int) -> float:
    """Return what an episode comes to whose every action is the sum of what was shown."""
    shown = [seed + t for t in range(2 + seed % 3)]
    return float(sum(sum(shown[: t + 1]) for t in range(len(shown))))


SEEDS = [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("is_dict", [False, True])
@pytest.mark.parametrize("lanes", ["one", "own", "vector"])
def test_a_recurrent_algorithm_has_its_memory_of_each_episode(lanes: str, is_dict: bool) -> None:
    def make() -> Any:
        return Shows(is_dict=is_dict)

    envs: dict[str, Any] = {
        "one": make,
        "own": [make, make],
        "vector": lambda: SyncVectorEnv([make] * 3, autoreset_mode=AutoresetMode.DISABLED),
    }
    result = evaluate(StableBaselinesPolicy(Sums()), envs[lanes], seeds=SEEDS)
    assert [one.total_reward for one in result.episodes] == [returns(seed) for seed in SEEDS]


def test_one_without_a_memory_is_asked_for_all_rows_at_once() -> None:
    class Counting(Plain):
        rows: list[int] = []

        def predict(self, observation: Any, *, deterministic: bool) -> Any:
            self.rows.append(len(observation))
            return super().predict(observation, deterministic=deterministic)

    env = SyncVectorEnv([Shows] * 3, autoreset_mode=AutoresetMode.DISABLED)
    evaluate(StableBaselinesPolicy(Counting()), env, seeds=[0, 3, 6])
    assert Counting.rows == [3, 3]
    env.close()
