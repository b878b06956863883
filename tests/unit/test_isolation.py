"""Isolated envs: found by name, never pickled; what their process says comes through."""

from __future__ import annotations

import functools
import sys
import threading
import types

import numpy as np
import pytest

from rollmesh.endpoint.servers.child_process import MAIN_NAME
from rollmesh.endpoint.servers.isolation import IsolatedEnv, Target, find_target
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import EndpointFault, InvalidSpec
from rollmesh.ports import ResetRequest, StepRequest
from tests.unit.serving_toys import Counter

TARGET = "tests.unit.serving_toys:Counter"


def options(**given):
    return ServerOptions(isolate="process", close_timeout_s=5.0, **given)


def test_a_name_is_taken_as_it_is():
    assert find_target("CartPole-v1") == Target(text="CartPole-v1")


def test_a_factory_is_found_in_its_module():
    assert find_target(Counter) == Target(text=TARGET)


def test_a_factory_of_the_main_script_is_found_in_its_file(monkeypatch, tmp_path):
    script = tmp_path / "run.py"
    script.touch()
    main = types.ModuleType("__main__")
    main.__file__ = str(script)
    main.__spec__ = None
    monkeypatch.setitem(sys.modules, "__main__", main)

    def make_env():
        return None

    make_env.__module__, make_env.__qualname__ = "__main__", "make_env"
    main.make_env = make_env
    assert find_target(make_env) == Target(text=f"{MAIN_NAME}:make_env", main_file=str(script))
    main.__spec__ = types.SimpleNamespace(name="package.run")
    assert find_target(make_env) == Target(text="package.run:make_env")
    main.__spec__ = None
    main.__file__ = "<stdin>"
    with pytest.raises(InvalidSpec, match="typed in by hand"):
        find_target(make_env)
    del main.__file__
    with pytest.raises(InvalidSpec, match="typed in by hand"):
        find_target(make_env)


def test_a_script_that_starts_a_run_when_it_is_loaded_is_told_of_the_guard(monkeypatch):
    module = types.ModuleType(MAIN_NAME)
    monkeypatch.setitem(sys.modules, MAIN_NAME, module)

    def make_env():
        return None

    make_env.__module__, make_env.__qualname__ = MAIN_NAME, "make_env"
    module.make_env = make_env
    with pytest.raises(InvalidSpec, match='if __name__ == "__main__"'):
        find_target(make_env)


@pytest.mark.parametrize("factory", [lambda: None, functools.partial(Counter)])
def test_what_has_no_name_of_its_own_is_refused(factory):
    with pytest.raises(InvalidSpec, match="by name"):
        find_target(factory)


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
