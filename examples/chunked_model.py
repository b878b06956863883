"""A policy that plans several actions at once, and how many of them are executed.

`predict_chunk` returns a chunk (T, *A): T actions, here T = 8 for a made-up reaching task. With
`execution_horizon=4` the first four are executed and the policy is asked again; without it, all
eight are. When an episode ends, what is left of its chunk is dropped, so no episode starts with an
old plan.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

import rollmesh


class Reach(gymnasium.Env[np.ndarray, np.ndarray]):
    """Move a point in the plane to the origin; 40 steps of at most 0.1."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-0.1, 0.1, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.place = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        self.steps = 0
        return self.place, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        wind = self.np_random.normal(0.0, 0.01, 2)
        self.place = (self.place + action + wind).astype(np.float32)
        self.steps += 1
        distance = float(np.linalg.norm(self.place))
        arrived = distance < 0.1
        return self.place, -distance, arrived, self.steps == 40, {"is_success": arrived}


class Planner(rollmesh.Model):
    """Plan eight equal moves towards the origin, and count how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def predict_chunk(self, observation: Any) -> np.ndarray:
        """Return a chunk (8, 2) of moves, each within -0.1..0.1."""
        self.asked += 1
        moves = np.clip(-observation / 8, -0.1, 0.1)
        return np.tile(moves, (8, 1)).astype(np.float32)


def main() -> None:
    for horizon in (None, 4, 1):
        planner = Planner()
        result = rollmesh.evaluate(
            planner, Reach, episodes=20, base_seed=1, execution_horizon=horizon
        )
        print(
            f"horizon {horizon or 'all'}: asked {planner.asked} times in {result.total_steps} "
            f"steps, success rate {result.success_rate}"
        )


if __name__ == "__main__":
    main()
