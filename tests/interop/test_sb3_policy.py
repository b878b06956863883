"""Policies of Stable-Baselines3: saved ones, and algorithms in memory."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest

import rollmesh
from rollmesh.endpoint.models.model_loading import open_model
from rollmesh.endpoint.models.sb3 import check_policy_file, likely_algorithm
from rollmesh.errors import InvalidSpec
from rollmesh.ports import (
    AdapterContext,
    EpisodeInfo,
    PredictRequest,
    ReleaseAdapterRequest,
    SubmitsOperations,
)
from rollmesh.spaces.space import Box, Discrete

pytestmark = [
    pytest.mark.slow,
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
sb3 = pytest.importorskip("stable_baselines3")

CONTEXT = AdapterContext("s", "r", "1")
OBSERVATIONS = {"CartPole-v1": Box((4,)), "Pendulum-v1": Box((3,))}
ACTIONS = {"CartPole-v1": Discrete(2), "Pendulum-v1": Box((1,), low=-2, high=2)}
ALGORITHMS = [
    ("PPO", "CartPole-v1"),
    ("A2C", "Pendulum-v1"),
    ("DQN", "CartPole-v1"),
    ("SAC", "Pendulum-v1"),
    ("TD3", "Pendulum-v1"),
    ("DDPG", "Pendulum-v1"),
]


def untrained(name, env):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(sb3, name)("MlpPolicy", env, device="cpu", seed=0)


def actions(port, env, rows):
    request = PredictRequest(
        context=CONTEXT,
        observation=OBSERVATIONS[env].codec.encode_many(rows),
        episode_info=tuple(EpisodeInfo(f"e{i}", i) for i in range(len(rows))),
    )
    frames = port.predict(request).frames
    return ACTIONS[env].codec.decode_stacked(frames[0], len(rows))


@pytest.mark.parametrize(("name", "env"), ALGORITHMS)
def test_a_saved_policy_acts_as_it_did_alone_and_in_a_batch(name, env, tmp_path):
    algorithm = untrained(name, env)
    path = tmp_path / "policy.zip"
    algorithm.save(path)
    assert likely_algorithm(check_policy_file(path)) == {"DDPG": "TD3"}.get(name, name)
    port = open_model(path, observation_space=OBSERVATIONS[env], action_space=ACTIONS[env])
    assert isinstance(port, SubmitsOperations)
    shape = OBSERVATIONS[env].shape
    rows = [np.random.default_rng(i).normal(size=shape).astype(np.float32) for i in range(3)]
    wanted = [algorithm.predict(row, deterministic=True)[0] for row in rows]
    np.testing.assert_allclose(actions(port, env, rows), wanted, rtol=1e-4, atol=1e-5)
    for row, one in zip(rows, wanted, strict=True):
        np.testing.assert_allclose(actions(port, env, [row])[0], one, rtol=1e-4, atol=1e-5)
    port.release_adapter(ReleaseAdapterRequest(CONTEXT, "done", 5.0))


def test_an_algorithm_in_memory_is_a_policy():
    algorithm = untrained("PPO", "CartPole-v1")
    port = open_model(
        algorithm, observation_space=OBSERVATIONS["CartPole-v1"], action_space=Discrete(2)
    )
    assert not isinstance(port, SubmitsOperations)
    rows = [np.zeros(4, np.float32)]
    wanted, _ = algorithm.predict(rows[0], deterministic=True)
    assert actions(port, "CartPole-v1", rows)[0] == wanted


@pytest.mark.parametrize("place", ["here", "rollmesh+unix://", "tcp://127.0.0.1:0"])
def test_a_policy_of_another_env_is_refused_before_it_is_asked(place, tmp_path):
    path = tmp_path / "policy.zip"
    untrained("PPO", "CartPole-v1").save(path)
    words = r"model\.observation_space: PPO declares Box\(\(4,\).*the env has Box\(\(3,\)"
    if place == "here":
        with pytest.raises(InvalidSpec, match=words):
            rollmesh.evaluate(path, "Pendulum-v1", episodes=1, seeds=[1])
        return
    native = place.startswith("rollmesh")
    with rollmesh.ModelServer(path, place, rollmesh.ServerOptions(native=native)) as server:
        with pytest.raises(InvalidSpec, match=words):
            rollmesh.evaluate(server.address, "Pendulum-v1", episodes=1, seeds=[1])
        result = rollmesh.evaluate(
            server.address, "CartPole-v1", episodes=1, seeds=[1], max_episode_steps=3
        )
    assert len(result.episodes) == 1


def test_a_policy_of_images_takes_them_with_the_channels_last():
    env = gymnasium.make("CartPole-v1")
    env.reset()
    space = gymnasium.spaces.Box(0, 255, (36, 40, 3), np.uint8)
    env = gymnasium.wrappers.TransformObservation(
        env, lambda _: np.full((36, 40, 3), 7, np.uint8), space
    )
    algorithm = sb3.DQN("CnnPolicy", env, device="cpu", seed=0, buffer_size=10)
    assert algorithm.observation_space.shape == (3, 36, 40)
    result = rollmesh.evaluate(algorithm, env, episodes=1, seeds=[1], max_episode_steps=2)
    assert result.episodes[0].steps == 2


def test_a_file_that_no_algorithm_loads_names_what_was_tried(tmp_path):
    import zipfile

    path = tmp_path / "policy.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", '{"policy_class": {}}')
    with pytest.raises(InvalidSpec, match=r"no algorithm loads .*PPO: .*DDPG: "):
        open_model(path, observation_space=Box((4,)), action_space=Discrete(2))
