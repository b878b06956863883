"""Envs whose observations their space does not hold, for the tests of how that is counted."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

LENGTH = 4


class OddEnv(gym.Env):
    """Episodes of 4 steps; those of odd seeds see NaN at two of their five observations.

    Step 3 of every episode is out of bounds.
    """

    observation_space = gym.spaces.Dict(
        {
            "wrist": gym.spaces.Box(-1, 1, (3,), np.float32),
            "place": gym.spaces.Discrete(4),
        }
    )
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.seed: int | None = None
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.seed = seed
        else:
            self.seed = 0 if self.seed is None else self.seed + 1
        self.t = 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        del action
        self.t += 1
        return self._see(), 1.0, self.t == LENGTH, False, {"is_success": True}

    def _see(self) -> dict[str, Any]:
        wrist = np.zeros(3, np.float32)
        if self.seed is not None and self.seed % 2 and self.t in (0, LENGTH):
            wrist[2] = np.nan
        if self.t == LENGTH - 1:
            wrist[0] = 5
        return {"wrist": wrist, "place": self.t % 4}


def make() -> OddEnv:
    """Return one."""
    return OddEnv()


def policy(observation: Any) -> int:
    """Return an action whatever is seen."""
    del observation
    return 0
