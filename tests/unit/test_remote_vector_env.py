"""`RemoteVectorEnv`: a served env as a `gymnasium.vector.VectorEnv`."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import rollmesh
import rollmesh.gymnasium_plugin
from rollmesh import RemoteVectorEnv
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.remote_vector_env import merge_infos
from rollmesh.endpoint.envs.gym_env import GymEnvPort
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.errors import InvalidSpec, InvalidValue
from rollmesh.wire.messages import Kind
from tests.unit.env_toys import Count
from tests.unit.session_toys import ToyServer, mem_address

OPTIONS = client_options(resume_grace_s=2.0, environ={})
ACTIONS = np.array([1, 2])


class Fresh(Count):
    """Hands out a new array each time: Gymnasium's own vector env keeps what it was given."""

    def _obs(self):
        return super()._obs().copy()


def make(mode, lengths=(2, 3)):
    return SyncVectorEnv(
        [lambda i=i, n=n: Fresh(length=n, lane=i) for i, n in enumerate(lengths)],
        autoreset_mode=mode,
    )


def same(one, other):
    """Compare results, keys of infos in any order."""
    if isinstance(one, dict):
        assert set(one) == set(other)
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, tuple):
        for left, right in zip(one, other, strict=True):
            same(left, right)
    else:
        assert one.dtype == other.dtype
        assert repr(one) == repr(other)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_it_gives_what_the_served_one_gives(mode):
    local = make(mode)
    with (
        EnvServer(lambda: make(mode), mem_address()) as server,
        RemoteVectorEnv(server.address) as env,
    ):
        assert env.num_envs == 2
        assert env.metadata["autoreset_mode"] is mode
        for space in ("observation_space", "action_space", "single_action_space"):
            assert getattr(env, space) == getattr(local, space)
        same(env.reset(seed=3), local.reset(seed=3))
        for _ in range(2 if mode is AutoresetMode.DISABLED else 9):
            same(env.step(ACTIONS), local.step(ACTIONS))
        same(env.reset(seed=[7, 9]), local.reset(seed=[7, 9]))
        same(env.step(ACTIONS), local.step(ACTIONS))
    local.close()


def test_c13_a_reset_by_hand_clears_the_pending_one():
    with (
        EnvServer(lambda: make(AutoresetMode.NEXT_STEP, (2, 2)), mem_address()) as server,
        RemoteVectorEnv(server.address) as env,
    ):
        env.reset(seed=0)
        env.step(ACTIONS)
        assert env.step(ACTIONS)[2].all()
        env.reset(seed=1)
        observation, rewards, *_ = env.step(ACTIONS)
    assert observation[:, 0].tolist() == [1.0, 1.0]
    assert rewards.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("served", ["vector", "lanes"])
def test_single_lanes_are_reset_by_a_mask(served):
    target = [Count, Count] if served == "lanes" else lambda: make(AutoresetMode.DISABLED)
    with EnvServer(target, mem_address()) as server, RemoteVectorEnv(server.address) as env:
        first, _ = env.reset(seed=1)
        stepped = env.step(ACTIONS)[0]
        mask = np.array([False, True])
        again, infos = env.reset(seed=[5, 6], options={"reset_mask": mask})
        assert first.tolist() == [[0.0, 1.0], [0.0, 2.0]]
        assert stepped.tolist() == [[1.0, 1.0], [1.0, 2.0]]
        assert again.tolist() == [[1.0, 1.0], [0.0, 6.0]]
        assert infos["_lane"].tolist() == mask.tolist()
        again[:] = -1  # the caller's own
        assert env.step(ACTIONS)[0].tolist() == [[2.0, 1.0], [1.0, 6.0]]
        stepped = env.reset(options={"reset_mask": ~mask})[0]
        assert stepped.tolist() == [[0.0, -1.0], [1.0, 6.0]]


@pytest.mark.parametrize("served", ["vector", "lanes"])
def test_a_lane_that_has_ended_is_reset_before_the_next_step(served):
    two = [lambda: Count(length=1), lambda: Count(length=3)]
    target = two if served == "lanes" else lambda: make(AutoresetMode.DISABLED, (1, 3))
    with EnvServer(target, mem_address()) as server, RemoteVectorEnv(server.address) as env:
        env.reset(seed=1)
        ended = env.step(ACTIONS)[2]
        assert ended.tolist() == [True, False]
        cure = r"call reset\(options=\{'reset_mask': terminated \| truncated\}\) first"
        for _ in range(2):
            with pytest.raises(InvalidSpec, match=rf"^step: .* lanes \[0\] have ended.*{cure}"):
                env.step(ACTIONS)
        env.reset(options={"reset_mask": ended})
        assert env.step(ACTIONS)[0][:, 0].tolist() == [1.0, 2.0]  # nothing was sent above
        env.reset(seed=1)
        assert env.step(ACTIONS)[0][:, 0].tolist() == [1.0, 1.0]


def test_a_single_lane_that_has_ended_is_reset_before_the_next_step():
    with (
        EnvServer(lambda: Count(length=1), mem_address()) as server,
        RemoteVectorEnv(server.address) as env,
    ):
        env.reset()
        env.step(ACTIONS[:1])
        with pytest.raises(InvalidSpec, match=r"lanes \[0\] have ended.*call reset\(\) first"):
            env.step(ACTIONS[:1])
        env.reset()
        assert env.step(ACTIONS[:1])[0].tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize(
    "mask", [[True, False], np.zeros(2, bool), np.ones(3, bool), np.array([1, 0])]
)
def test_a_bad_mask_is_refused(mask):
    with (
        EnvServer([Count, Count], mem_address()) as server,
        RemoteVectorEnv(server.address) as env,
    ):
        env.reset()
        with pytest.raises(InvalidSpec, match="reset_mask"):
            env.reset(options={"reset_mask": mask})


def test_a_mask_needs_an_env_that_can_and_a_first_reset():
    mask = {"reset_mask": np.array([True, False])}
    with (
        EnvServer(lambda: make(AutoresetMode.SAME_STEP), mem_address()) as server,
        RemoteVectorEnv(server.address) as env,
    ):
        env.reset()
        with pytest.raises(InvalidSpec, match="cannot reset single lanes"):
            env.reset(options=mask)
    with (
        EnvServer([Count, Count], mem_address()) as server,
        RemoteVectorEnv(server.address) as env,
        pytest.raises(InvalidSpec, match="reset all lanes first"),
    ):
        env.reset(options=mask)


def test_a_scalar_env_is_a_vector_of_one():
    with (
        EnvServer(Count, "rollmesh+unix://") as server,
        gym.make_vec("rollmesh/Remote-v0", address=server.address, num_envs=1) as env,
    ):
        assert isinstance(env, RemoteVectorEnv)
        assert env.reset(seed=4)[0].tolist() == [[0.0, 4.0]]
        assert env.step(np.array([1]))[0].tolist() == [[1.0, 4.0]]


def test_observations_are_the_callers_own():
    with (
        EnvServer(lambda: make(AutoresetMode.SAME_STEP), mem_address()) as server,
        RemoteVectorEnv(server.address) as env,
    ):
        kept, _ = env.reset(seed=1)
        kept[:] = 9
        other = env.step(ACTIONS)[0]
        assert other.tolist() == [[1.0, 1.0], [1.0, 2.0]]
        assert (kept == 9).all()


def test_errors_are_clear():
    with ToyServer(GymEnvPort(Count())) as server:
        env = RemoteVectorEnv(server.address, options=OPTIONS)
        with pytest.raises(InvalidSpec, match="call reset"):
            env.step(np.array([1]))
        with pytest.raises(InvalidSpec, match="wants one per lane"):
            env.reset(seed=[1, 2])
        with pytest.raises(InvalidSpec, match=r"seed\[0\]"):
            env.reset(seed=2**63)
        with pytest.raises(InvalidSpec, match="options"):
            env.reset(options=3)
        env.reset()
        with pytest.raises(InvalidValue, match="action"):
            env.step(np.array([7, 7]))
        server.session_id = None
        server.drop_connections()
        with pytest.raises(rollmesh.EnvFailed, match="is lost"):
            env.step(np.array([1]))
        assert env.reset(seed=3)[0].tolist() == [[0.0, 3.0]]
        env.close()
        env.close()
        assert server.executed.count(Kind.CLOSE) == 1
        with pytest.raises(InvalidSpec, match="closed"):
            env.step(np.array([1]))


def test_seeds_are_all_or_none():
    with (
        EnvServer([Count, Count], mem_address()) as server,
        RemoteVectorEnv(server.address) as env,
    ):
        with pytest.raises(InvalidSpec, match=r"seed\[1\]: give a seed to every lane"):
            env.reset(seed=[1, None])
        assert env.reset(seed=[None, None])[0][:, 1].tolist() == [-1.0, -1.0]


def test_another_width_is_refused():
    with (
        EnvServer([Count, Count], mem_address()) as server,
        pytest.raises(InvalidSpec, match="num_envs: is 3"),
    ):
        RemoteVectorEnv(server.address, num_envs=3)


def test_it_copies_by_address_and_is_good_for_evaluate():
    with (
        EnvServer(lambda: make(AutoresetMode.DISABLED, (2, 2)), mem_address()) as server,
        RemoteVectorEnv(server.address) as env,
        copy.deepcopy(env) as other,
    ):
        assert other.reset(seed=1)[0].tolist() == env.reset(seed=1)[0].tolist()
        result = rollmesh.evaluate("random", env, episodes=4)
        assert [e.steps for e in result.episodes] == [2] * 4


def test_infos_are_merged_as_gymnasium_does_and_odd_ones_kept():
    rows = {
        0: {"n": 1, "f": 0.5, "b": True, "big": 2**70, "a": np.ones(2), "d": {"x": 1}, "m": 1},
        2: {"n": 2, "a": np.zeros(3), "d": {"y": "z"}, "m": "text"},
    }
    merged = merge_infos(rows, 3)
    assert merged["n"].tolist() == [1, 0, 2]
    assert merged["_n"].tolist() == [True, False, True]
    assert merged["f"].dtype == np.float64
    assert merged["b"].dtype == np.bool_
    assert merged["big"].tolist() == [2**70, None, None]
    assert merged["a"].dtype == object
    assert merged["a"][2].shape == (3,)
    assert merged["d"]["x"].tolist() == [1, 0, 0]
    assert merged["d"]["_y"].tolist() == [False, False, True]
    assert merged["m"].tolist() == [1, None, "text"]


class Drawn(Fresh):
    """Renders its own count of steps."""

    render_mode = "rgb_array"

    def render(self):
        return np.full((2, 3, 3), self.t, np.uint8)


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_lanes_that_are_envs_of_their_own_are_rendered_each_as_gymnasium_does(transport):
    lanes = [Drawn(length=9, lane=lane) for lane in range(2)]
    options = client_options(transport=transport, environ={})
    with (
        EnvServer(lanes, "127.0.0.1:0") as server,
        RemoteVectorEnv(server.address, options=options) as env,
    ):
        env.reset(seed=0)
        env.step(ACTIONS)
        frames = env.render()
        assert isinstance(frames, tuple)
        assert [frame.shape for frame in frames] == [(2, 3, 3)] * 2
        assert [frame.max() for frame in frames] == [1, 1]
        env.step(ACTIONS)


def test_an_env_that_is_one_renders_as_it_does():
    envs = SyncVectorEnv([lambda: Drawn(length=9), lambda: Drawn(length=9)])
    with EnvServer(envs, mem_address()) as server, RemoteVectorEnv(server.address) as env:
        env.reset(seed=0)
        same(env.render(), envs.render())
        env.close()
        with pytest.raises(InvalidSpec, match="closed"):
            env.render()
