"""Stable-Baselines3 trains through served envs, and what it learned is evaluated there."""

from __future__ import annotations

import pytest

import rollmesh
from rollmesh import EnvServer, RemoteEnv

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.timeout(300)]

sb3 = pytest.importorskip("stable_baselines3")

SEED = 3
STEPS = 4000


def trained(env):
    """Train a little, the same way each time."""
    model = sb3.PPO("MlpPolicy", env, seed=SEED, n_steps=256, device="cpu", verbose=0)
    model.learn(STEPS)
    return model


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Small networks gain nothing by a second thread, and lose much where the cores are taken."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def address():
    with EnvServer("CartPole-v1", "rollmesh+unix://") as server:
        yield server.address


def test_training_through_a_served_env_learns(address):
    before = rollmesh.evaluate("random", address, episodes=20, base_seed=1)
    with RemoteEnv(address) as env:
        model = trained(env)
        after = rollmesh.evaluate(model, env, episodes=20, base_seed=1)
    assert mean(after) > 2 * mean(before)


def test_training_through_a_served_env_is_the_same_as_training_beside_it(address):
    import gymnasium as gym

    with RemoteEnv(address) as env:
        remote = trained(env)
    local = trained(gym.make("CartPole-v1"))
    ours = rollmesh.evaluate(remote, "CartPole-v1", episodes=5, base_seed=1)
    theirs = rollmesh.evaluate(local, "CartPole-v1", episodes=5, base_seed=1)
    assert [e.steps for e in ours.episodes] == [e.steps for e in theirs.episodes]


def test_check_env_of_stable_baselines3_passes(address):
    from stable_baselines3.common.env_checker import check_env

    with RemoteEnv(address) as env:
        check_env(env)


def test_several_served_envs_make_a_vector_env_of_stable_baselines3(address):
    from stable_baselines3.common.vec_env import DummyVecEnv

    envs = DummyVecEnv([lambda: RemoteEnv(address)] * 3)
    model = sb3.PPO("MlpPolicy", envs, seed=SEED, n_steps=64, device="cpu", verbose=0)
    model.learn(500)
    envs.close()


def test_subprocesses_connect_by_themselves(address):
    from stable_baselines3.common.vec_env import SubprocVecEnv

    envs = SubprocVecEnv([lambda: RemoteEnv(address)] * 2, start_method="spawn")
    envs.seed(1)
    assert envs.reset().shape == (2, 4)
    envs.close()


def mean(result):
    return sum(e.total_reward for e in result.episodes) / len(result.episodes)
