"""Watch a run, and change what the policy sees.

A hooks object overrides the events it wants; events that nobody wants are not even built.
Observers cannot hurt a run: what they raise is logged. The two transforms can, since their word
counts. `BackgroundHooks` moves a slow observer to a thread of its own.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import rollmesh


class ActionCount(rollmesh.Hooks):
    """Counts the actions of each episode and prints a line when it ends."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[int]] = {}

    def action_received(self, event: Any) -> None:
        """Count the action of every row: one lane of the event each."""
        for row, episode_id in enumerate(event.episode_ids):
            self.counts.setdefault(episode_id, Counter())[int(event.decode(row))] += 1

    def episode_completed(self, event: Any) -> None:
        """Print the counts of the episode that ended and forget them."""
        counts = dict(sorted(self.counts.pop(event.episode_id).items()))
        print(f"episode {event.episode_index}: {event.steps} steps, actions {counts}")


class BlindToSpin(rollmesh.Hooks):
    """Hides the pole's angular velocity from the policy."""

    def transform_observation(self, context: Any, observation: Any) -> Any:
        """Return the observations with their last number set to zero."""
        values = [context.decode(observation, row) for row in range(len(context.episode_ids))]
        for value in values:
            value[3] = 0.0
        return context.encode(values)


def policy(observation: Any) -> int:
    return int(observation[2] + 0.3 * observation[3] > 0)


def main() -> None:
    with rollmesh.BackgroundHooks(ActionCount()) as background:
        blind = rollmesh.evaluate(
            policy, "CartPole-v1", episodes=5, base_seed=3, hooks=[BlindToSpin(), background]
        )
    seeing = rollmesh.evaluate(policy, "CartPole-v1", episodes=5, base_seed=3)
    print(f"mean return {blind.mean_return} blind, {seeing.mean_return} seeing")


if __name__ == "__main__":
    main()
