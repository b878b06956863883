"""An engine that you turn yourself: one lane, step by step, with `rollmesh.Session`.

The loop, the checks and the chunk queue are those of `evaluate`; you decide when to reset, may
replace an action, and see each step's outcome.
"""

from __future__ import annotations

from typing import Any

import rollmesh


def policy(observation: Any) -> int:
    return int(observation[2] + 0.3 * observation[3] > 0)


def main() -> None:
    with rollmesh.Session(policy, "CartPole-v1") as session:
        observation, _info = session.reset(seed=7)
        total = 0.0
        while not session.done:
            # For the first ten steps we know better than the policy.
            action = int(observation[1] < 0) if total < 10 else session.predict()
            step = session.step(action)
            observation = step.observation
            total += step.reward
        print(f"the episode with seed 7 ended with a return of {total}")


if __name__ == "__main__":
    main()
