"""Worker processes of AsyncVectorEnv: what went wrong in them, and their end."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rollmesh.endpoint.envs.vector_env import VectorEnvPort
from rollmesh.errors import EndpointFault
from tests.unit.env_toys import Count, reset_request, step_request

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork"),
    # Python 3.12 and later warn of fork where other threads are alive; the workers touch none.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@pytest.fixture
def async_envs():
    made = []

    def make(*lengths, cls=Count):
        makers = [lambda i=i, n=n: cls(n, lane=i) for i, n in enumerate(lengths)]
        made.append(AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED, context="fork"))
        return made[-1]

    yield make
    for env in made:
        if not env.closed:
            env.close(terminate=True)


def step(port, n=2):
    return port.step(step_request(port, *[1] * n))


class Dies(Count):
    """Lane 1 ends its process on its first step."""

    how = "exit"

    def step(self, action):
        if self.lane == 1:
            if self.how == "exit":
                os._exit(3)
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("worker said no")
        return super().step(action)


class Killed(Dies):
    how = "kill"


class Raises(Dies):
    how = "raise"


@pytest.mark.parametrize(
    ("cls", "words"), [(Dies, "exited with code 3"), (Killed, "was killed by SIGKILL")]
)
def test_c48_a_dead_worker_is_named_and_close_does_not_hang(async_envs, cls, words):
    env = async_envs(5, 5, 5, cls=cls)
    port = VectorEnvPort(env)
    port.reset(reset_request(3))
    with pytest.raises(EndpointFault) as info:
        step(port, 3)
    fault = info.value
    assert fault.detail == f"the worker process of lane 1 {words} during env.step"
    assert (fault.error_class, fault.env_index) == ("WorkerDied", 1)
    assert not fault.is_recoverable
    assert env.closed
    env.close()
    port.close(1.0)
    assert all(process.exitcode is not None for process in env.processes)


@pytest.mark.filterwarnings("ignore:.*ERROR")
def test_c44_a_workers_exception_keeps_its_lane_and_traceback(async_envs):
    env = async_envs(5, 5, cls=Raises)
    port = VectorEnvPort(env)
    port.reset(reset_request(2))
    with pytest.raises(EndpointFault, match="worker said no") as info:
        step(port)
    assert info.value.error_class == "RuntimeError"
    assert info.value.env_index == 1
    assert "in step" in info.value.traceback_text
    assert not info.value.is_recoverable
    port.close(1.0)
    assert all(process.exitcode is not None for process in env.processes)


def test_c44_an_exception_in_a_sync_lane_is_recoverable():
    makers = [lambda i=i: Raises(5, lane=i) for i in range(2)]
    env = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)
    port = VectorEnvPort(env)
    port.reset(reset_request(2))
    with pytest.raises(EndpointFault, match="worker said no") as info:
        step(port)
    assert info.value.is_recoverable
    port.close(1.0)
    assert env.closed
    assert [e.closed for e in env.envs] == [1, 1]


class ExitsInReset(Count):
    def reset(self, **kw):
        if self.lane == 0:
            sys.exit(0)
        return super().reset(**kw)


def test_c47_a_worker_that_exits_in_reset_is_named(async_envs):
    port = VectorEnvPort(async_envs(5, 5, cls=ExitsInReset))
    with pytest.raises(EndpointFault, match="worker process of lane 0 exited with code 0 during"):
        port.reset(reset_request(2))
    port.close(1.0)


def test_an_env_that_ran_well_is_closed_by_its_own_close(async_envs):
    env = async_envs(5, 5)
    port = VectorEnvPort(env)
    port.reset(reset_request(2))
    port.close(1.0)
    assert env.closed
    assert [process.exitcode for process in env.processes] == [0, 0]
