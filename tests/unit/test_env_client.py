"""Remote env ports: what the runtime drives in place of a local env."""

from __future__ import annotations

import threading

import gymnasium as gym
import numpy as np
import pytest

import rollmesh
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.env_client import RemoteEnvPort, connect_env
from rollmesh.endpoint.clients.lane_client import RemoteLanesPort
from rollmesh.endpoint.envs.env_loading import open_env
from rollmesh.endpoint.envs.gym_env import GymEnvPort
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.errors import EndpointFault, InvalidSpec, SessionLost
from rollmesh.limits import Limits
from rollmesh.ports import PARTIAL_RESET, REBUILD, SUBSET_STEP, AutoresetMode
from rollmesh.wire.messages import Kind
from tests.unit.env_toys import Count, observations, reset_request, step_request
from tests.unit.session_toys import ToyServer, mem_address, until

OPTIONS = client_options(resume_grace_s=2.0, environ={})
TRANSPORTS = pytest.mark.parametrize("address", ["rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0"])


class Wide(Count):
    """Has a seed-sized observation space, so that nothing is odd."""

    def __init__(self, **options):
        super().__init__(high=2**31, **options)


def steps(result):
    return [(e.index, e.seed, e.steps, e.total_reward, e.success) for e in result.episodes]


@pytest.fixture
def lanes():
    with EnvServer([Wide, Wide, Wide], mem_address()) as server:
        port = connect_env(server.address, OPTIONS)
        yield port
        port.close(2.0)


# ---------------------------------------------------------------------------- one group


def test_contract_and_capabilities_are_the_servers():
    with EnvServer(Count, mem_address()) as server:
        port = connect_env(server.address, OPTIONS)
        assert isinstance(port, RemoteEnvPort)
        assert port.contract == server.contract
        assert port.capabilities == {REBUILD}
        port.close(1.0)


def test_bytes_and_server_time_are_told():
    with EnvServer(Count, "rollmesh+unix://") as server:
        port = connect_env(server.address, OPTIONS)
        port.reset(reset_request(seeds=(1,)))
        reply = port.step(step_request(port, 1))
        assert reply.request_bytes == 8
        assert reply.response_bytes > 8
        assert reply.endpoint_total_ns > 0
        port.close(1.0)


@TRANSPORTS
def test_p8_a_served_env_gives_the_same_episodes(address):
    local = rollmesh.evaluate("random", Wide, episodes=5, base_seed=3)
    with EnvServer(Wide, address) as server:
        assert steps(rollmesh.evaluate("random", server.address, episodes=5, base_seed=3)) == (
            steps(local)
        )
        several = rollmesh.evaluate("random", server.address, episodes=5, base_seed=3, num_envs=2)
    assert [one[:4] for one in steps(several)] == [one[:4] for one in steps(local)]
    assert several.num_envs == 2


def test_a_vector_env_keeps_its_mode():
    def make():
        return gym.vector.SyncVectorEnv(
            [lambda: Count(length=2)] * 2, autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP
        )

    with EnvServer(make, mem_address()) as server:
        port = open_env(server.address)
        assert port.contract.autoreset_mode is AutoresetMode.NEXT_STEP
        assert PARTIAL_RESET in port.capabilities
        port.close(1.0)
        result = rollmesh.evaluate("random", server.address, episodes=4)
    assert [e.steps for e in result.episodes] == [2] * 4


def test_a_rebuild_is_the_servers_where_it_can():
    with ToyServer(GymEnvPort(Count()), capabilities=(REBUILD,)) as server:
        port = connect_env(server.address, OPTIONS)
        port.rebuild(())
        assert server.executed == [Kind.REBUILD]
        port.close(1.0)


def test_a_rebuild_is_a_new_session_where_the_server_cannot():
    with ToyServer(GymEnvPort(Count())) as server:
        port = connect_env(server.address, OPTIONS)
        port.rebuild(())
        assert [hello.session_id for hello in server.hellos] == ["", ""]
        assert server.closed == ["built anew"]
        assert observations(port, port.reset(reset_request(seeds=(4,)))) == [[0.0, 4.0]]
        port.close(1.0)


def test_a_lost_session_starts_the_episode_again_as_a_new_attempt():
    with ToyServer(GymEnvPort(Wide(length=4))) as server:

        def vanish(connection, message):
            server.session_id = None
            connection.shutdown()

        def count_to_two(connection, message):
            connection.send(server._execute(message))
            server.plan(Kind.STEP, vanish)

        server.plan(Kind.STEP, count_to_two)
        result = rollmesh.evaluate("random", server.address, episodes=2, base_seed=1)
    assert [e.attempts for e in result.episodes] == [2, 1]
    assert [e.steps for e in result.episodes] == [4, 4]
    assert [e.error for e in result.episodes] == [None, None]


def test_p3_drops_are_not_seen_by_a_run():
    with ToyServer(GymEnvPort(Wide(length=5))) as server:
        server.plan(Kind.STEP, "drop", None, "drop_after", None, None, "drop")
        server.plan(Kind.RESET, "drop_after")
        result = rollmesh.evaluate("random", server.address, episodes=2, base_seed=1)
        assert server.executed.count(Kind.STEP) == 10
    assert steps(result) == steps(
        rollmesh.evaluate("random", Wide(length=5), episodes=2, base_seed=1)
    )
    assert [e.attempts for e in result.episodes] == [1, 1]


def test_an_env_fault_names_the_other_side():
    class Broken(Count):
        def step(self, action):
            raise ValueError("the arm is stuck")

    with EnvServer(Broken, "rollmesh+unix://") as server:
        with pytest.raises(rollmesh.EnvFailed, match="the arm is stuck") as caught:
            rollmesh.evaluate("random", server.address, episodes=1, base_seed=1)
        message = str(caught.value)
        assert "env.step failed at step 1" in message
        assert server.address in message
        assert "in step\n" in message  # the traceback of the other side


def test_a_cancel_ends_a_step_under_way():
    cancel = rollmesh.CancelToken()
    with ToyServer(GymEnvPort(Count())) as server:
        server.plan(Kind.STEP, lambda *_: cancel.cancel("enough"))
        with pytest.raises(rollmesh.RouteCancelled, match="enough"):
            rollmesh.evaluate("random", server.address, episodes=1, cancel=cancel)
        until(lambda: server.closed)


def test_r16_a_late_step_is_an_operation_timeout_that_names_the_address():
    with ToyServer(GymEnvPort(Count())) as server:
        server.plan(Kind.STEP, "silent")
        with pytest.raises(rollmesh.OperationTimeout, match=r"env.step timed out") as caught:
            rollmesh.evaluate("random", server.address, episodes=1, limits=Limits(env_step_s=0.1))
    assert server.address in str(caught.value)


def test_r16_a_late_lane_names_the_address_of_its_server():
    class Slow(Count):
        def step(self, action):
            threading.Event().wait(0.5)
            return super().step(action)

    limits = Limits(env_step_s=0.1)
    late = pytest.raises(rollmesh.OperationTimeout, match=r"env.step timed out")
    with (
        EnvServer(Count, "rollmesh+unix://") as quick,
        EnvServer(Slow, "rollmesh+unix://") as slow,
        late as caught,
    ):
        lanes = [quick.address, slow.address]
        rollmesh.evaluate("random", lanes, episodes=4, limits=limits)
    assert slow.address in str(caught.value)


# --------------------------------------------------------------------------- arguments


@pytest.mark.parametrize("seed", [2**63, 2**100])
def test_seeds_that_cannot_be_sent_are_refused_before_anything_is_touched(seed):
    for model, env in (("random", "mem://nobody"), ("mem://nobody", Count)):
        with pytest.raises(InvalidSpec, match=r"seeds\[1\].*below 2\*\*63"):
            rollmesh.evaluate(model, env, seeds=[1, seed])


def test_the_largest_seed_that_can_be_sent_is():
    with EnvServer(
        Count,
        mem_address(),
    ) as server:
        port = connect_env(server.address, OPTIONS)
        port.reset(reset_request(seeds=(2**63 - 1,)))
        port.close(1.0)


def test_a_served_env_takes_no_env_kwargs():
    with pytest.raises(InvalidSpec, match="env_kwargs: a served env takes none"):
        rollmesh.evaluate("random", "mem://nobody", episodes=1, env_kwargs={"a": 1})


def test_an_address_that_nobody_serves_says_so():
    with pytest.raises(rollmesh.EnvFailed, match="mem://nobody: connecting to it failed"):
        rollmesh.evaluate("random", "mem://nobody", episodes=1, limits=Limits(env_connect_s=0.1))


def test_a_wrong_width_is_refused(lanes):
    del lanes
    with (
        EnvServer([Count, Count], mem_address()) as server,
        pytest.raises(InvalidSpec, match="has 2 lanes"),
    ):
        rollmesh.evaluate("random", server.address, episodes=3, num_envs=3)


def test_a_list_of_addresses_is_lanes():
    with EnvServer(Wide, mem_address()) as one, EnvServer(Wide, mem_address()) as other:
        result = rollmesh.evaluate("random", [one.address, other.address], episodes=4, base_seed=3)
    assert result.num_envs == 2
    assert {e.env_index for e in result.episodes} == {0, 1}


def test_a_session_turns_a_served_env():
    with (
        EnvServer(Wide, mem_address()) as server,
        rollmesh.Session("random", server.address) as session,
    ):
        observation, info = session.reset(seed=7)
        assert observation.tolist() == [0.0, 7.0]
        assert info == {"lane": 0}
        assert session.step(1).observation.tolist() == [1.0, 7.0]
        with pytest.raises(InvalidSpec, match=r"below 2\*\*63"):
            session.reset(seed=2**63)


# -------------------------------------------------------------------------------- lanes


def test_lanes_go_their_own_ways(lanes):
    assert isinstance(lanes, RemoteLanesPort)
    assert lanes.capabilities >= {SUBSET_STEP, REBUILD}
    lanes.reset(reset_request(3, seeds=(1, 2, 3)))
    answers = {}
    for lane in (2, 0):
        request = step_request(lanes, 1, env_indices=(lane,))
        lanes.submit("step", request, lambda r, at=lane: answers.update({at: r}), (lane,))
    until(lambda: len(answers) == 2)
    assert observations(lanes, answers[2]) == [[1.0, 3.0]]
    assert observations(lanes, answers[0]) == [[1.0, 1.0]]
    reply = lanes.step(step_request(lanes, 1, 1, 1))
    assert observations(lanes, reply, 3) == [[2.0, 1.0], [1.0, 2.0], [2.0, 3.0]]


def test_lanes_give_the_same_episodes():
    local = rollmesh.evaluate("random", [Wide, Wide], episodes=6, base_seed=3)
    with EnvServer([Wide, Wide], "rollmesh+unix://") as server:
        served = rollmesh.evaluate("random", server.address, episodes=6, base_seed=3)
    assert [one[:4] for one in steps(served)] == [one[:4] for one in steps(local)]


def test_lanes_resume_after_a_drop():
    port_of_all = open_env([Wide, Wide])
    with ToyServer(port_of_all, capabilities=(SUBSET_STEP,)) as server:
        port = connect_env(server.address, OPTIONS)
        port.reset(reset_request(2, seeds=(1, 2)))
        for count in range(1, 4):
            server.plan(Kind.STEP, "drop_after")
            reply = port.step(step_request(port, 1, env_indices=(1,)))
            assert observations(port, reply) == [[count, 2.0]]
        assert server.executed.count(Kind.STEP) == 3
        port.close(1.0)
    port_of_all.close(1.0)


def test_lanes_of_a_lost_session_are_rebuilt_by_a_new_one():
    port_of_all = open_env([Wide, Wide])
    with ToyServer(port_of_all, capabilities=(SUBSET_STEP,)) as server:
        port = connect_env(server.address, OPTIONS)
        port.reset(reset_request(2, seeds=(1, 2)))
        server.session_id = None
        server.drop_connections()
        with pytest.raises(SessionLost):
            port.step(step_request(port, 1, env_indices=(1,)))
        port.rebuild((1,))
        # lane 0 was not reset in the new session either
        with pytest.raises(SessionLost, match="opened anew"):
            port.step(step_request(port, 1, env_indices=(0,)))
        port.rebuild((0,))
        assert len([h for h in server.hellos if not h.session_id]) == 2
        port.reset(reset_request(1, seeds=(5,), env_indices=(0,)))
        reply = port.step(step_request(port, 1, env_indices=(0,)))
        assert observations(port, reply) == [[1.0, 5.0]]
        port.close(1.0)
    port_of_all.close(1.0)


def test_r49_an_abandoned_lane_calls_nothing_back():
    port_of_all = open_env([Wide, Wide])
    with ToyServer(port_of_all, capabilities=(SUBSET_STEP,)) as server:
        port = connect_env(server.address, OPTIONS)
        port.reset(reset_request(2, seeds=(1, 2)))
        server.plan(Kind.STEP, "silent")
        called = []
        port.submit("step", step_request(port, 1, env_indices=(0,)), called.append, (0,))
        until(lambda: Kind.STEP in server.requests)
        port.abandon((0,))
        until(lambda: Kind.CANCEL in server.requests)
        reply = port.step(step_request(port, 1, env_indices=(1,)))
        assert observations(port, reply) == [[1.0, 2.0]]
        assert called == []
        port.abandon((1,))
        until(lambda: Kind.CLOSE in server.requests)
    port_of_all.close(1.0)


def test_a_fault_of_one_lane_is_that_lanes():
    class Fragile(Wide):
        def step(self, action):
            if self.seed == 2:
                raise RuntimeError("this one")
            return super().step(action)

    with EnvServer([Fragile, Fragile], mem_address()) as server:
        port = connect_env(server.address, OPTIONS)
        port.reset(reset_request(2, seeds=(1, 2)))
        with pytest.raises(EndpointFault, match="this one") as caught:
            port.step(step_request(port, 1, env_indices=(1,)))
        assert caught.value.env_index == 1
        assert observations(port, port.step(step_request(port, 1, env_indices=(0,)))) == [[1, 1]]
        port.close(1.0)


# -------------------------------------------------------------------------------- cases


def test_c30_multidiscrete_keeps_shape_and_start():
    start = np.array([[0, 1], [-1, 2]])
    nvec = np.array([[2, 3], [4, 5]])
    seen = []

    class Matrix(gym.Env):
        observation_space = gym.spaces.MultiDiscrete(nvec, start=start)
        action_space = gym.spaces.MultiDiscrete(nvec, start=start)

        def reset(self, *, seed=None, options=None):
            return start + nvec - 1, {}

        def step(self, action):
            seen.append((np.shape(action), action.tolist(), self.action_space.contains(action)))
            return start.copy(), 0.0, True, False, {}

    with EnvServer(Matrix, mem_address()) as server:
        rollmesh.evaluate(lambda observation: observation, server.address, episodes=1)
        with rollmesh.RemoteEnv(server.address) as env:
            assert env.observation_space == Matrix.observation_space
            assert env.action_space == Matrix.action_space
    assert seen == [((2, 2), (start + nvec - 1).tolist(), True)]


@pytest.mark.parametrize("nbytes", [16384, 65536, 150528])
def test_c69_no_step_waits_for_a_delayed_acknowledgement(nbytes):
    import time

    class Picture(gym.Env):
        observation_space = gym.spaces.Box(0, 255, (nbytes,), np.uint8)
        action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

        def reset(self, *, seed=None, options=None):
            return np.zeros(nbytes, np.uint8), {}

        def step(self, action):
            return np.zeros(nbytes, np.uint8), 0.0, False, False, {}

    with EnvServer(Picture, "rollmesh+tcp://127.0.0.1:0") as server:
        port = connect_env(server.address, OPTIONS)
        port.reset(reset_request())
        request = step_request(port, np.zeros(2, np.float32))
        taken = []
        for _ in range(50):
            begun = time.perf_counter()
            port.step(request)
            taken.append(time.perf_counter() - begun)
        port.close(1.0)
    assert sorted(taken)[10] < 0.03, "every step takes as long as a delayed acknowledgement"
