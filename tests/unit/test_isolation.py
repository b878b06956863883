"""Isolated envs: what their process does and says comes through."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from rollmesh.endpoint.servers.isolation import IsolatedEnv
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import EndpointFault
from rollmesh.ports import ResetRequest, StepRequest
from tests.unit.serving_toys import Counter

TARGET = "tests.unit.serving_toys:Counter"


def options(**given):
    return ServerOptions(isolate="process", close_timeout_s=5.0, **given)


def test_an_episode_in_another_process():
    env = IsolatedEnv(TARGET, options(env_kwargs={"length": 2}))
    try:
        assert env.contract.observation_space.shape == (4,)
        assert env.reset(ResetRequest(episode_ids=("e",), seeds=(5,))).infos[0] == {"seed": 5}
        step = StepRequest(action=[np.zeros(1, np.int64)], episode_ids=("e",))
        assert env.step(step).completions == ()
        assert env.step(step).completions[0].terminated
        assert env.render(()).shape == (4, 4, 3)
    finally:
        env.close(5.0)
    env.close(5.0)
    with pytest.raises(EndpointFault, match="gone"):
        env.step(step)


class Unhurried(Counter):
    def step(self, action):
        threading.Event().wait(0.3)
        return super().step(action)


def test_deadlines_are_kept_by_the_parent_alone_which_kills_where_one_is_over():
    env = IsolatedEnv(Unhurried, options())
    try:
        env.reset(ResetRequest(episode_ids=("e",)))
        action = [np.zeros(1, np.int64)]
        reply = env.step(StepRequest(action=action, episode_ids=("e",), timeout_ms=20))
        assert reply.observation[0].tolist() == [[1, 1, 0, 0]]
        reply = env.step(StepRequest(action=action, episode_ids=("e",)))
        assert reply.observation[0].tolist() == [[2, 1, 0, 0]]
    finally:
        env.close(5.0)


def test_an_env_that_cannot_be_built_there_tells_why():
    with pytest.raises(EndpointFault, match="takes no"):
        IsolatedEnv(TARGET, options(env_kwargs={"nonsense": 1}))


def test_a_process_that_ends_while_building_is_named():
    with pytest.raises(EndpointFault, match=r"sys.exit|exited with code"):
        IsolatedEnv("sys:exit", options())
