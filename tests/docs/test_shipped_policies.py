"""The policies that are shipped reach what is said of them, and their scripts make them."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest

import rollmesh
from examples import cartpole_policy, half_cheetah, train_cartpole


def test_the_cartpole_policy_reaches_475() -> None:
    result = rollmesh.evaluate(
        cartpole_policy.CartPolePolicy, "CartPole-v1", episodes=20, base_seed=11
    )
    assert result.mean_return >= 475.0


def test_the_half_cheetah_policy_runs() -> None:
    pytest.importorskip("mujoco")
    result = rollmesh.evaluate(
        half_cheetah.HalfCheetahPolicy, "HalfCheetah-v5", episodes=8, num_envs=4, base_seed=1
    )
    assert all(episode.steps == 1000 for episode in result.episodes)
    # Most runs reach 5,000, some fall: the median is what stays put.
    assert np.median([episode.total_reward for episode in result.episodes]) > 4000.0


@pytest.mark.slow
def test_the_training_script_finds_weights_as_good() -> None:
    weights = train_cartpole.train(train_cartpole.ROUNDS)
    env = gymnasium.make("CartPole-v1")
    returns = [train_cartpole.play(env, weights, seed=seed) for seed in range(1000, 1020)]
    env.close()
    assert np.mean(returns) >= 475.0


def test_the_weights_are_small_enough_to_commit() -> None:
    for path in (cartpole_policy.WEIGHTS, half_cheetah.WEIGHTS):
        json.loads(path.read_text(encoding="utf-8"))
        assert path.stat().st_size < 10_000
