"""Whatever names an env becomes a port, or says why not."""

from __future__ import annotations

import importlib
import queue
import signal
import subprocess
import sys
import threading
import types

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollmesh.endpoint.envs.env_factory import find_source
from rollmesh.endpoint.envs.env_loading import build_lane, open_env
from rollmesh.endpoint.envs.gym_env import GymEnvPort
from rollmesh.endpoint.envs.hosted_env import HostedEnv
from rollmesh.endpoint.envs.lane_envs import LaneEnvs
from rollmesh.endpoint.envs.vector_env import VectorEnvPort
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.errors import EndpointFault, InvalidSpec
from rollmesh.limits import Limits
from rollmesh.ports import PARTIAL_RESET, REBUILD
from tests.unit.env_toys import Count, observations, reset_request, step_request

WAIT_S = 5.0


@pytest.fixture
def opened():
    ports = []

    def open_it(*args, **kw):
        ports.append(open_env(*args, **kw))
        return ports[-1]

    yield open_it
    for port in ports:
        port.close(WAIT_S)


def vector(n=2, mode=AutoresetMode.DISABLED):
    return SyncVectorEnv([Count] * n, autoreset_mode=mode)


# ----------------------------------------------------------------------------- instances


def test_r49_an_instance_is_called_on_the_callers_thread():
    env = Count()
    port = open_env(env)
    assert isinstance(port, GymEnvPort)
    assert not hasattr(port, "submit")
    port.reset(reset_request())
    assert env.threads == {threading.get_ident()}


def test_an_instance_is_one_lane():
    assert open_env(Count(), num_envs=1).contract.num_envs == 1
    with pytest.raises(InvalidSpec, match="num_envs: is 2, but one instance of Count is one lane"):
        open_env(Count(), num_envs=2)
    with pytest.raises(InvalidSpec, match="env_kwargs: an env instance takes none"):
        open_env(Count(), env_kwargs={"length": 2})


def test_a_vector_instance_is_one_group():
    port = open_env(vector(3), num_envs=3)
    assert isinstance(port, VectorEnvPort)
    assert not hasattr(port, "submit")
    with pytest.raises(InvalidSpec, match="is 2, but SyncVectorEnv has 3 lanes; leave num_envs"):
        open_env(vector(3), num_envs=2)


def test_a_port_is_returned_as_it_is():
    port = open_env(Count())
    assert open_env(port, num_envs=1) is port
    with pytest.raises(InvalidSpec, match="num_envs: is 2"):
        open_env(port, num_envs=2)


# ----------------------------------------------------------------------------- factories


def test_r49_a_factory_is_built_used_and_closed_on_one_thread_of_its_own():
    built = []
    port = open_env(lambda: built.append(Count()) or built[0])
    assert isinstance(port, HostedEnv)
    assert port.capabilities == {REBUILD}
    box = queue.SimpleQueue()
    port.submit("reset", reset_request(seeds=(2,)), box.put, ())
    assert observations(port, box.get(timeout=WAIT_S)) == [[0, 2]]
    assert port.step(step_request(port, 0)).rewards == (1.0,)
    port.close(WAIT_S)
    port.close(WAIT_S)
    (env,) = built
    assert len(env.threads) == 1
    assert threading.get_ident() not in env.threads
    assert env.closed == 1


def test_close_can_be_submitted():
    env = Count()
    port = open_env([env])
    single = open_env(Count)
    box = queue.SimpleQueue()
    for one in (port, single, single):
        one.submit("close", 1.0, box.put, ())
        assert box.get(timeout=WAIT_S) is None
    assert env.closed == 0, "an instance in a list stays its owner's"
    with pytest.raises(RuntimeError, match="has no operation 'step' now"):
        single.submit("step", None, box.put, ())


def test_a_given_thread_is_used_and_left_to_its_owner():
    thread = OwnThread("mine")
    built = []
    port = open_env(lambda: built.append(Count()) or built[0], thread=thread)
    port.reset(reset_request())
    port.close(WAIT_S)
    assert built[0].threads == {thread.call(threading.get_ident, WAIT_S, "ident")}
    assert not thread.stopped
    thread.stop()


def test_r29_a_hung_env_is_abandoned_and_built_anew(opened):
    hold, began, built = threading.Event(), threading.Event(), []

    class HangsOnce(Count):
        def __init__(self):
            super().__init__()
            built.append(self)

        def step(self, action):
            if len(built) == 1:
                began.set()
                hold.wait(WAIT_S)
            return super().step(action)

    port = opened(HangsOnce)
    port.reset(reset_request())
    late, box = [], queue.SimpleQueue()
    port.submit("step", step_request(port, 0), late.append, ())
    assert began.wait(WAIT_S)
    port.abandon(())
    port.submit("rebuild", (), box.put, ())
    assert box.get(timeout=WAIT_S) is None
    hold.set()
    port.reset(reset_request())
    assert port.step(step_request(port, 0)).rewards == (1.0,)
    assert late == []
    assert [env.closed for env in built] == [0, 0]


def test_a_class_with_keyword_arguments(opened):
    port = opened(Count, env_kwargs={"length": 1})
    port.reset(reset_request())
    assert len(port.step(step_request(port, 0)).completions) == 1


def test_arguments_a_factory_does_not_take_are_named():
    with pytest.raises(InvalidSpec, match="env_kwargs: Count takes no 'size'; it takes: length, l"):
        open_env(Count, env_kwargs={"size": 1})

    def needs(path, *, scale):
        return Count()

    with pytest.raises(InvalidSpec, match="it needs path, scale; pass them in env_kwargs"):
        open_env(needs)
    open_env(needs, env_kwargs={"path": 1, "scale": 2}).close(WAIT_S)

    def takes_any(**kw):
        return Count(**kw)

    open_env(takes_any, env_kwargs={"length": 2}).close(WAIT_S)


class TheirVectors:
    """Has the shape of a vector env of Stable-Baselines3."""

    num_envs = 2
    observation_space = action_space = None

    def reset(self):
        return np.zeros((2, 2))

    def step_async(self, actions):
        pass

    def step_wait(self):
        pass

    def step(self, actions):
        pass


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (TheirVectors(), "env: is a TheirVectors"),
        ([TheirVectors()], r"env\[0\]: is a TheirVectors"),
        (TheirVectors, "env: the factory returned a TheirVectors"),
    ],
)
def test_a_vector_env_of_stable_baselines_is_told_as_what_it_is(given, told):
    with pytest.raises(InvalidSpec, match=f"^{told}, a vector env of Stable-Baselines3.*num_envs"):
        open_env(given)


def test_gymnasiums_vector_envs_are_none_of_these(opened):
    port = opened(gym.vector.SyncVectorEnv([Count]))
    assert port.contract.num_envs == 1


@pytest.mark.parametrize("name", ["lane", "env_index"])
def test_a_factory_learns_its_lane(opened, name):
    got = []
    make = {"lane": lambda lane: got.append(lane) or Count(), "env_index": None}[name] or (
        lambda env_index=9: got.append(env_index) or Count()
    )
    opened(make, num_envs=3)
    assert sorted(got) == [0, 1, 2]
    opened(make, env_kwargs={name: 7})
    assert got[-1] == 7


def test_a_vector_factory_is_one_group_on_its_thread(opened):
    port = opened(lambda: vector(3), num_envs=3)
    assert isinstance(port, HostedEnv)
    assert port.capabilities == {PARTIAL_RESET, REBUILD}
    reply = port.reset(reset_request(3, seeds=(1, 2, 3)))
    assert observations(port, reply, 3) == [[0, 1], [0, 2], [0, 3]]
    assert opened(lambda: vector(2)).contract.num_envs == 2


def test_a_vector_factory_of_another_width_is_refused():
    with pytest.raises(InvalidSpec, match="is 2, but SyncVectorEnv has 3 lanes"):
        open_env(lambda: vector(3), num_envs=2)
    with pytest.raises(InvalidSpec, match="is a vector env; lanes are scalar envs"):
        open_env([vector, vector])
    with pytest.raises(InvalidSpec, match="is a vector env; lanes are scalar envs"):
        open_env([vector(2)])


def test_building_is_bounded_and_its_error_tells_all():
    hold = threading.Event()
    try:
        with pytest.raises(EndpointFault, match=r"did not come back within 0\.05 s") as info:
            open_env(lambda: hold.wait(WAIT_S), limits=Limits(env_connect_s=0.05))
        assert info.value.error_class == "TimeoutError"
    finally:
        hold.set()

    def make_broken():
        raise OSError("no display")

    with pytest.raises(EndpointFault, match="no display") as info:
        open_env(make_broken)
    assert info.value.error_class == "OSError"
    assert "in make_broken" in info.value.traceback_text
    with pytest.raises(EndpointFault, match=r"called sys.exit\(1\) in building"):
        open_env(lambda: sys.exit(1))


def test_c52_an_env_for_the_main_thread_says_to_give_an_instance():
    class TakesSignals(Count):
        def __init__(self):
            super().__init__()
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)

    with pytest.raises(EndpointFault, match=r"main thread.*build it yourself and give the insta"):
        open_env(TakesSignals)


def test_ctrl_c_while_building_is_ctrl_c():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_env(interrupted)
    # a worker's lane has no keyboard: there it is the constructor's own doing
    with pytest.raises(EndpointFault, match="constructor raised KeyboardInterrupt") as caught:
        build_lane(find_source(interrupted, None), 2)
    assert (caught.value.env_index, caught.value.outcome) == (2, "not_done")


def test_a_factory_that_builds_no_env_is_named():
    with pytest.raises(InvalidSpec, match="returned NoneType, which has no reset and step"):
        open_env(lambda: None)


# --------------------------------------------------------------------------------- texts


def test_a_registered_id(opened):
    port = opened("CartPole-v1", env_kwargs={"max_episode_steps": 2})
    assert port.contract.id == "CartPole-v1"
    port.reset(reset_request(seeds=(0,)))
    port.step(step_request(port, 0))
    (end,) = port.step(step_request(port, 1)).completions
    assert end.truncated


def test_a_registered_id_in_lanes(opened):
    port = opened("CartPole-v1", num_envs=2)
    assert isinstance(port, LaneEnvs)
    reply = port.reset(reset_request(2, seeds=(0, 0)))
    first, second = observations(port, reply, 2)
    assert first == second


@pytest.mark.parametrize(
    ("name", "written", "extra"),
    [
        ("ALE/Nothing-v5", "ale_py:ALE/Nothing-v5", "atari"),
        ("dm_control/nothing-v0", "shimmy:dm_control/nothing-v0", "dm"),
    ],
)
def test_an_unknown_id_of_an_extra_names_it(name, written, extra):
    with pytest.raises(InvalidSpec, match=rf"write {written}; .* 'rollmesh\[{extra}\]'"):
        open_env(name)


@pytest.mark.parametrize("name", ["CartPol-v1", "Nowhere/Pong-v5", "CartPole-v99"])
def test_an_unknown_id_says_what_gymnasium_says(name):
    with pytest.raises(InvalidSpec, match="Gymnasium cannot make"):
        open_env(name)


def test_arguments_that_a_registered_env_does_not_take_are_refused():
    with pytest.raises(
        InvalidSpec, match=r"env_kwargs: CartPole-v1 does not take them: .*'gravty'"
    ):
        open_env("CartPole-v1", env_kwargs={"gravty": 3})


def test_a_registered_env_that_lacks_its_library_says_which(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InvalidSpec, match="HalfCheetah-v5 needs what is not installed: MuJoCo"):
        open_env("HalfCheetah-v5")


@pytest.mark.parametrize(
    ("text", "words"), [("grpc://host:1", "unknown scheme"), ("localhost:99999", "wants a port")]
)
def test_what_is_no_good_address_is_refused_before_anybody_is_called(text, words):
    with pytest.raises(InvalidSpec, match=words):
        open_env(text)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    names = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - names:
        if name.startswith("rm_"):
            del sys.modules[name]
    importlib.invalidate_caches()


def test_module_callable_and_module_id(opened, folder):
    (folder / "rm_envs.py").write_text(
        "import gymnasium\n"
        "from tests.unit.env_toys import Count\n"
        "def make(length=3): return Count(length)\n"
        "one = Count(2)\n"
        "gymnasium.register('RmCount-v0', 'tests.unit.env_toys:Count', max_episode_steps=9)\n"
    )
    port = opened("rm_envs:make", env_kwargs={"length": 1})
    port.reset(reset_request())
    assert len(port.step(step_request(port, 0)).completions) == 1
    assert isinstance(open_env("rm_envs:one"), GymEnvPort)
    assert opened("rm_envs:RmCount-v0").contract.id == "RmCount-v0"
    with pytest.raises(InvalidSpec, match="did you mean 'make'"):
        open_env("rm_envs:mak")


@pytest.mark.parametrize("env", [None, 5, {}, []])
def test_what_names_no_env_is_refused(env):
    with pytest.raises(InvalidSpec, match=r"env: (wants an env|is an empty list)"):
        open_env(env)


@pytest.mark.parametrize("num_envs", [0, -1, True, 1.5, "2"])
def test_a_width_is_a_positive_int(num_envs):
    with pytest.raises(InvalidSpec, match="num_envs: wants an int of 1 or more"):
        open_env(Count, num_envs=num_envs)


def test_a_list_has_as_many_lanes_as_entries():
    with pytest.raises(InvalidSpec, match="num_envs: is 3, but the list has 2 envs"):
        open_env([Count, Count], num_envs=3)
    env = Count()
    with pytest.raises(InvalidSpec, match=r"env\[1\]: is the same instance as env\[0\]"):
        open_env([env, env])
    with pytest.raises(InvalidSpec, match=r"env\[1\]: wants an env"):
        open_env([Count, 5])


# -------------------------------------------------------------------------------- dm_env


def make_dm_env(*, seeded=True):
    dm_env = pytest.importorskip("dm_env")
    pytest.importorskip("shimmy")

    class Walk(dm_env.Environment):
        def __init__(self):
            self.t, self.seeds = 0, []

        def reset(self):
            self.t = 0
            return dm_env.restart({"x": np.zeros(2, np.float32)})

        def step(self, action):
            self.t += 1
            observation = {"x": np.full(2, self.t, np.float32)}
            if self.t == 2:
                return dm_env.termination(1.5, observation)
            return dm_env.transition(0.5, observation)

        def observation_spec(self):
            return {"x": dm_env.specs.BoundedArray((2,), np.float32, -9, 9, "x")}

        def action_spec(self):
            return dm_env.specs.DiscreteArray(3)

    if seeded:
        Walk.seed = lambda self, seed: self.seeds.append(seed)
    return Walk()


def test_a_dm_env_goes_through_shimmy():
    env = make_dm_env()
    port = open_env(env)
    assert port.contract.id == "Walk"
    port.reset(reset_request(seeds=(4,)))
    assert env.seeds == [4]
    assert port.step(step_request(port, 1)).rewards == (0.5,)
    reply = port.step(step_request(port, 1))
    (end,) = reply.completions
    assert (end.terminated, end.truncated) == (True, False)
    codec = port.contract.observation_space.codec
    assert codec.decode(reply.observation)["x"].tolist() == [2, 2]
    port.close(1.0)


def test_a_dm_env_without_seed_reports_it_once(opened):
    make_dm_env()  # skips here where Shimmy is missing
    seen = []
    port = opened(lambda: make_dm_env(seeded=False), report=lambda path, detail: seen.append(path))
    for _ in range(2):
        port.reset(reset_request(seeds=(4,)))
    assert seen == ["seed"]
    with pytest.raises(EndpointFault, match="takes no reset options"):
        port.reset(reset_request(options=({"a": 1},)))


def test_a_dm_env_without_shimmy_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "shimmy", None)
    monkeypatch.setitem(sys.modules, "shimmy.utils.dm_env", None)
    bare = types.SimpleNamespace(
        reset=None, step=None, observation_spec=lambda: 0, action_spec=lambda: 0
    )
    bare.reset = bare.step = lambda *a: None
    with pytest.raises(InvalidSpec, match=r"a dm_env env needs Shimmy.*pip install 'rollmesh\[dm"):
        open_env(bare)


def test_loading_this_module_imports_no_gymnasium():
    code = "import sys, rollmesh.endpoint.envs.env_loading as m; print('gymnasium' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout.strip() == "False"


def test_gymnasiums_wrappers_are_left_in_place(opened):
    built = []
    port = opened(lambda: built.append(gym.make("CartPole-v1")) or built[0])
    assert port.port.env is built[0]
    with pytest.raises(EndpointFault, match=r"Cannot call env\.step\(\) before calling"):
        port.step(step_request(port, 0))


def test_an_unknown_conformance_policy_is_refused():
    with pytest.raises(InvalidSpec, match="conformance: wants one of warn, strict, off, got"):
        open_env(Count, conformance="loud")
