"""Evaluate two shipped policies in two real environments and print what can be said about them.

CartPole-v1 for 100 episodes, then HalfCheetah-v5 (MuJoCo) on four lanes, each with an env and a
thread of its own. `make demo` runs this; `--quick` plays fewer and shorter episodes.
"""

from __future__ import annotations

import sys

import mujoco
from cartpole_policy import CartPolePolicy
from half_cheetah import HalfCheetahPolicy

import rollmesh


def show(result: rollmesh.EvalResult) -> None:
    """Print the table of a result, intervals and speed included, and its first episodes."""
    print(result)
    print("  first episodes:")
    print("  index        seed  lane  steps     return")
    for episode in result.episodes[:4]:
        print(
            f"  {episode.index:5}{episode.seed:>12}{episode.env_index:>6}"
            f"{episode.steps:>7}{episode.total_reward:>11.1f}"
        )
    print()


def main() -> None:
    quick = "--quick" in sys.argv[1:]
    # MuJoCo 4 warns, once an env, of an attribute in Gymnasium's own cheetah model.
    mujoco.set_mju_user_warning(lambda _text: None)  # pyright: ignore[reportAttributeAccessIssue]

    show(
        rollmesh.evaluate(
            CartPolePolicy, "CartPole-v1", episodes=5 if quick else 100, base_seed=2024
        )
    )
    show(
        rollmesh.evaluate(
            HalfCheetahPolicy,
            "HalfCheetah-v5",
            episodes=4 if quick else 16,
            num_envs=4,
            max_episode_steps=50 if quick else None,
            base_seed=2024,
        )
    )


if __name__ == "__main__":
    main()
