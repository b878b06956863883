"""A scalar env as a port: values copied, forms accepted or refused by name."""

from __future__ import annotations

import gc
import math
import sys
import types
import weakref

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollmesh.endpoint.envs.gym_env import GymEnvPort
from rollmesh.endpoint.reporting import OnceReporter
from rollmesh.errors import EndpointFault, InvalidSpec
from rollmesh.ports import NO_INFO, AutoresetMode
from rollmesh.spaces.conformance import Checker
from tests.unit.env_toys import Count, observations, reset_request, step_request


class Says(Count):
    """Returns what it is told to."""

    def __init__(self, step=None, reset=None, **kw):
        super().__init__(**kw)
        self.says_step, self.says_reset = step, reset

    def reset(self, *, seed=None, options=None):
        good = super().reset(seed=seed, options=options)
        return good if self.says_reset is None else self.says_reset(*good)

    def step(self, action):
        good = super().step(action)
        return good if self.says_step is None else self.says_step(*good)


def opened(env, **kw):
    reports = []
    port = GymEnvPort(env, reporter=OnceReporter(lambda p, d: reports.append((p, d))), **kw)
    port.reset(reset_request())
    return port, reports


def fault_of(port, action=0):
    with pytest.raises(EndpointFault) as info:
        port.step(step_request(port, action))
    return info.value


def test_real_cartpole_runs_an_episode():
    env = gym.make("CartPole-v1")
    port = GymEnvPort(env)
    assert port.contract.id == "CartPole-v1"
    assert port.contract.num_envs == 1
    assert port.contract.autoreset_mode is AutoresetMode.DISABLED
    assert port.capabilities == frozenset()
    reply = port.reset(reset_request(seeds=(7,)))
    bare = gym.make("CartPole-v1")
    want, _ = bare.reset(seed=7)
    assert observations(port, reply) == [want.tolist()]
    steps = 0
    while not (reply.completions if steps else ()):
        reply = port.step(step_request(port, 1))
        want, reward, terminated, truncated, _ = bare.step(1)
        assert observations(port, reply) == [want.tolist()]
        assert reply.rewards == (reward,)
        steps += 1
    (end,) = reply.completions
    assert (end.env_index, end.terminated, end.truncated) == (0, terminated, truncated)
    assert end.final_observation is None
    port.close(1.0)


def test_bytes_are_the_sum_of_leaf_lengths():
    port, _ = opened(Count())
    reply = port.step(step_request(port, 0))
    assert (reply.request_bytes, reply.response_bytes) == (8, 8)
    assert port.reset(reset_request()).response_bytes == 8
    assert reply.endpoint_total_ns is None


def test_observations_are_copies_of_a_reused_buffer():
    port, _ = opened(Count())
    first = port.reset(reset_request(seeds=(5,)))
    port.step(step_request(port, 0))
    assert observations(port, first) == [[0.0, 5.0]]


class Frames(Count):
    """Shows the same large buffer again and again."""

    def __init__(self, **kw):
        super().__init__(**kw)
        self.observation_space = gym.spaces.Box(0, 255, (256, 256), np.uint8)
        self.frame = np.zeros((256, 256), np.uint8)

    def reset(self, *, seed=None, options=None):
        return self.frame, super().reset(seed=seed, options=options)[1]

    def step(self, action):
        self.frame += 1
        return self.frame, *super().step(action)[1:]


def test_observations_of_steps_are_lent_only_to_whoever_asks():
    env = Frames(length=50)
    port, _ = opened(env)
    copied = port.step(step_request(port, 0)).observation[0]
    port.lend_observations()
    lent = port.step(step_request(port, 0)).observation[0]
    again = port.reset(reset_request()).observation[0]
    assert np.shares_memory(lent, env.frame)
    assert not lent.flags.writeable
    assert not np.shares_memory(copied, env.frame)
    assert not np.shares_memory(again, env.frame)
    assert copied.max() == 1


def test_infos_are_copies():
    shared = {"frame": np.zeros(2), "deep": {"list": [1]}}
    port, _ = opened(Says(step=lambda o, r, te, tr, i: (o, r, te, tr, shared)))
    reply = port.step(step_request(port, 0))
    shared["frame"][:] = 9
    shared["deep"]["list"].append(2)
    assert reply.infos[0]["frame"].tolist() == [0, 0]
    assert reply.infos[0]["deep"] == {"list": [1]}


def test_an_action_is_a_fresh_writable_array():
    class Writes(Count):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Box(-1, 1, (2,), np.float32)

        def step(self, action):
            action *= 2
            return super().step(action)

    env = Writes()
    port, _ = opened(env)
    request = step_request(port, np.array([0.25, -0.25], np.float32))
    port.step(request)
    port.step(request)
    assert [a.tolist() for a in env.actions] == [[0.5, -0.5]] * 2


def test_c39_a_discrete_action_is_a_scalar_the_space_contains():
    env = Count()
    port, _ = opened(env)
    port.step(step_request(port, 2))
    assert env.action_space.contains(env.actions[0])
    assert np.ndim(env.actions[0]) == 0


@pytest.mark.parametrize("seed", [0, 2**31, 2**63, 2**100])
def test_c41_a_seed_arrives_as_the_exact_int(seed):
    env = Count()
    env.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    port, _ = opened(env)
    port.reset(reset_request(seeds=(seed,)))
    assert type(env.seed) is int
    assert env.seed == seed


def test_options_arrive_as_a_copy_or_none():
    env = Count()
    port, _ = opened(env)
    assert env.options is None
    given = {"level": 3}
    port.reset(reset_request(options=(given,)))
    assert env.options == given
    assert env.options is not given
    port.reset(reset_request(options=(None,)))
    assert env.options is None


def test_what_an_env_does_to_its_options_reaches_no_other_episode():
    class Consumes(Count):
        def reset(self, *, seed=None, options=None):
            self.goal = options["goal"].pop(), options["at"][0]["x"]
            options["at"][0]["x"] += 1
            return super().reset(seed=seed, options=options)

    handle = object()
    given = {"goal": [1, 2, 3], "at": ({"x": np.zeros(2)},), "handle": handle}
    env = Consumes()
    port = GymEnvPort(env)
    for _ in range(2):
        port.reset(reset_request(options=(given,)))
        assert env.goal[0] == 3
        assert env.options["handle"] is handle
    assert given["goal"] == [1, 2, 3]
    assert given["at"][0]["x"].tolist() == [0, 0]


def test_completion_carries_the_info_of_that_step_and_nothing_resets():
    env = Count(length=2, end="both")
    port, _ = opened(env, env_index=4)
    assert port.step(step_request(port, 0)).completions == ()
    reply = port.step(step_request(port, 0))
    (end,) = reply.completions
    assert (end.env_index, end.terminated, end.truncated) == (4, True, True)
    assert end.final_info == reply.infos[0] == {"t": 2, "is_success": True}
    assert env.t == 2


@pytest.mark.parametrize(
    "form",
    [
        lambda r, d: (np.float32(r), np.bool_(d), np.bool_(False)),
        lambda r, d: (np.array(r), np.array(d), np.array(False)),
        lambda r, d: (int(r), int(d), 0),
        lambda r, d: (bool(r), d, False),
        lambda r, d: (np.int64(r), np.uint8(d), np.bool_(0)),
        lambda r, d: (np.array([r]), d, False),
    ],
)
def test_c23_forms_of_reward_and_flags(form):
    port, _ = opened(Says(step=lambda o, r, te, tr, i: (o, *form(r, te), i), length=1))
    reply = port.step(step_request(port, 0))
    assert reply.rewards == (1.0,)
    assert type(reply.rewards[0]) is float
    (end,) = reply.completions
    assert end.terminated is True
    assert end.truncated is False


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        (np.array([True, False]), "ndarray"),
        ("done", "str 'done'"),
        (None, "NoneType None"),
        (2, "int 2"),
        (1.0, "float 1.0"),
        (float("nan"), "float nan"),
    ],
)
@pytest.mark.parametrize("field", ["terminated", "truncated"])
def test_c23_any_other_flag_is_one_clear_error(bad, shown, field):
    def says(o, r, te, tr, i):
        return (o, r, bad, tr, i) if field == "terminated" else (o, r, te, bad, i)

    fault = fault_of(opened(Says(step=says), env_index=2)[0])
    assert fault.detail.startswith(f"{field}: wants a bool")
    assert shown in fault.detail
    assert fault.env_index == 2
    assert fault.outcome == "done"


@pytest.mark.parametrize("reward", [-1, 0.25, 2**60, 1e308, 5e-324, -0.0, True, np.float64(0.1)])
def test_c25_a_reward_is_exactly_its_float(reward):
    port, _ = opened(Says(step=lambda o, r, te, tr, i: (o, reward, te, tr, i)))
    (got,) = port.step(step_request(port, 0)).rewards
    assert type(got) is float
    assert got == float(reward)
    assert math.copysign(1, got) == math.copysign(1, float(reward))


@pytest.mark.parametrize("reward", [None, "1.0", [1.0], np.zeros(2), 1j, 2**1100])
def test_c25_what_is_no_float_is_one_clear_error(reward):
    port, _ = opened(Says(step=lambda o, r, te, tr, i: (o, reward, te, tr, i)))
    assert fault_of(port).detail.startswith("reward: ")


def test_c34_a_nan_reward_is_kept_and_reported_once():
    port, reports = opened(Says(step=lambda o, r, te, tr, i: (o, np.nan, te, tr, i)))
    for _ in range(2):
        assert math.isnan(port.step(step_request(port, 0)).rewards[0])
    assert [path for path, _ in reports] == ["reward"]


def test_a_missing_info_is_empty_and_reported_once():
    port, reports = opened(
        Says(step=lambda o, r, te, tr, i: (o, r, te, tr, None), reset=lambda o, i: (o, None))
    )
    assert port.step(step_request(port, 0)).infos == (NO_INFO,)
    assert [path for path, _ in reports] == ["info"]


def test_an_info_that_is_no_dict_is_refused():
    port, _ = opened(Says(step=lambda o, r, te, tr, i: (o, r, te, tr, [1])))
    assert fault_of(port).detail == "info: wants a dict, got list [1]"


def test_c36_an_odd_info_value_never_ends_the_episode():
    port, reports = opened(Says(step=lambda o, r, te, tr, i: (o, r, te, tr, {"f": lambda: 0})))
    for _ in range(2):
        assert "lambda" in port.step(step_request(port, 0)).infos[0]["f"]
    assert len(reports) == 1
    assert "'f'" in reports[0][0]


def test_the_old_step_api_is_named():
    port, _ = opened(Says(step=lambda o, r, te, tr, i: (o, r, te, i)))
    detail = fault_of(port).detail
    assert "a tuple of 4 (ndarray, float, bool, dict)" in detail
    assert "split `done` into terminated and truncated" in detail


@pytest.mark.parametrize("result", [None, 5, (1, 2, 3, 4, 5, 6), []])
def test_a_step_without_five_values_is_named(result):
    fault = fault_of(opened(Says(step=lambda *a: result))[0])
    assert fault.detail.startswith("env.step: wants (observation, reward, terminated,")


@pytest.mark.parametrize("result", [None, np.zeros(2, np.float32), (1, 2, 3)])
def test_the_old_reset_api_is_named(result):
    port = GymEnvPort(Says(reset=lambda o, i: result))
    with pytest.raises(EndpointFault, match=r"env\.reset: wants .observation, info., got"):
        port.reset(reset_request())


def test_an_observation_of_the_wrong_shape_names_its_path():
    env = Says(step=lambda o, r, te, tr, i: (np.zeros(3), r, te, tr, i))
    port = GymEnvPort(env, checker=Checker("observation"))
    port.reset(reset_request())
    fault = fault_of(port)
    assert fault.detail.startswith("observation")
    assert fault.error_class == "InvalidValue"
    assert fault.outcome == "done"
    assert fault.is_recoverable


def test_conformance_warns_once_or_refuses():
    seen = []
    checker = Checker("observation", report=lambda p, d: seen.append(p))
    port = GymEnvPort(Count(length=9, high=1.0), checker=checker)
    port.reset(reset_request())
    replies = [port.step(step_request(port, 0)) for _ in range(3)]
    assert observations(port, replies[2]) == [[3.0, -1.0]]
    assert len(seen) == 1
    strict = GymEnvPort(Count(length=9, high=1.0), checker=Checker("observation", "strict"))
    strict.reset(reset_request())
    strict.step(step_request(strict, 0))
    assert fault_of(strict).error_class == "InvalidValue"


def test_c44_an_exception_keeps_class_message_and_traceback():
    def boom(*_):
        raise ValueError("boom", 2)

    fault = fault_of(opened(Says(step=boom), env_index=1)[0])
    assert (fault.error_class, fault.detail) == ("ValueError", "('boom', 2)")
    assert "in boom" in fault.traceback_text
    assert "endpoint" not in fault.traceback_text
    assert fault.is_recoverable
    assert fault.outcome == "unknown"
    assert isinstance(fault.__cause__, ValueError)


def test_c47_sys_exit_is_a_fault_and_ctrl_c_is_not():
    fault = fault_of(opened(Says(step=lambda *_: sys.exit(0)))[0])
    assert fault.detail == "called sys.exit(0) in env.step"

    def interrupt(*_):
        raise KeyboardInterrupt

    port, _ = opened(Says(step=interrupt))
    with pytest.raises(KeyboardInterrupt):
        port.step(step_request(port, 0))


def test_a_failing_reset_and_close_are_faults():
    class Bad(Count):
        def reset(self, **kw):
            raise RuntimeError("no reset")

        def close(self):
            raise RuntimeError("no close")

    port = GymEnvPort(Bad())
    with pytest.raises(EndpointFault, match="no reset"):
        port.reset(reset_request())
    with pytest.raises(EndpointFault, match="no close"):
        port.close(1.0)


def test_the_shape_of_an_env_is_enough():
    inner = Count()
    bare = types.SimpleNamespace(
        observation_space=inner.observation_space,
        action_space=inner.action_space,
        reset=lambda *, seed=None, options=None: inner.reset(seed=seed, options=options),
        step=inner.step,
    )
    port, _ = opened(bare)
    assert port.contract.id == "SimpleNamespace"
    assert port.step(step_request(port, 0)).rewards == (1.0,)
    port.close(None)


def test_a_missing_or_foreign_space_is_refused():
    env = Count()
    env.action_space = None
    with pytest.raises(InvalidSpec, match=r"env\.action_space: Count has none"):
        GymEnvPort(env)
    env.action_space = object()
    with pytest.raises(InvalidSpec, match=r"env\.action_space"):
        GymEnvPort(env)


def test_contract_carries_render_mode_and_metadata():
    contract = GymEnvPort(gym.make("CartPole-v1", render_mode="rgb_array")).contract
    assert contract.render_mode == "rgb_array"
    assert contract.metadata["render_fps"] == 50


def test_nothing_of_an_episode_is_kept():
    port, _ = opened(Count(length=50))
    reply = port.step(step_request(port, 0))
    leaf = weakref.ref(reply.observation[0])
    del reply
    gc.collect()
    assert leaf() is None
