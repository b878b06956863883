"""Independent lanes: a thread each, stepped one by one or together, abandoned and built anew."""

from __future__ import annotations

import queue
import threading
import types

import numpy as np
import pytest
from gymnasium import spaces

from rollmesh.endpoint.envs import hosted_env
from rollmesh.endpoint.envs.env_loading import open_env
from rollmesh.errors import EndpointFault, InvalidSpec
from rollmesh.limits import Limits
from rollmesh.ports import REBUILD, SUBSET_STEP, Rebuilds, SubmitsOperations
from tests.unit.env_toys import Count, observations, reset_request, step_request

WAIT_S = 5.0


class Shop:
    """A factory that remembers what it built, and for which lane."""

    def __init__(self, cls=Count, **kw):
        self.cls, self.kw, self.built = cls, kw, []

    def __call__(self, lane):
        env = self.cls(lane=lane, **self.kw)
        self.built.append(env)
        return env

    def lane(self, index):
        return [env for env in self.built if env.lane == index]


@pytest.fixture
def opened():
    ports = []

    def open_it(*args, **kw):
        ports.append(open_env(*args, **kw))
        return ports[-1]

    yield open_it
    for port in ports:
        port.close(WAIT_S)


def submit(port, method, request, *lanes):
    box = queue.SimpleQueue()
    port.submit(method, request, box.put, lanes)
    return box.get(timeout=WAIT_S)


def test_r45_a_scalar_factory_gives_lanes_that_step_on_their_own(opened):
    shop = Shop()
    port = opened(shop, num_envs=3)
    assert port.capabilities == {SUBSET_STEP, REBUILD}
    assert isinstance(port, SubmitsOperations)
    assert isinstance(port, Rebuilds)
    assert port.contract.num_envs == 3
    assert port.contract.observation_space.codec.row_bytes == 8
    for lane in range(3):
        request = reset_request(env_indices=(lane,), seeds=(10 + lane,))
        reply = submit(port, "reset", request, lane)
        assert observations(port, reply) == [[0, 10 + lane]]
        assert reply.infos == ({"lane": lane},)
    for _ in range(2):
        submit(port, "step", step_request(port, 1, env_indices=(2,)), 2)
    reply = submit(port, "step", step_request(port, 1, env_indices=(2,)), 2)
    (end,) = reply.completions
    assert end.env_index == 2
    assert [env.t for env in sorted(shop.built, key=lambda e: e.lane)] == [0, 0, 3]


def test_c51_a_lane_is_built_stepped_and_closed_on_one_thread():
    shop = Shop()
    port = open_env(shop, num_envs=2)
    port.reset(reset_request(2))
    port.step(step_request(port, 0, 1))
    port.close(WAIT_S)
    homes = [env.threads for env in shop.built]
    assert [len(home) for home in homes] == [1, 1]
    assert homes[0] != homes[1]
    assert threading.get_ident() not in homes[0] | homes[1]
    assert [env.closed for env in shop.built] == [1, 1]


def test_a_request_without_lanes_concerns_all_of_them(opened):
    port = opened(Shop(length=1), num_envs=3)
    reply = port.reset(reset_request(3, seeds=(4, 5, 6), options=(None, {"a": 1}, None)))
    assert observations(port, reply, 3) == [[0, 4], [0, 5], [0, 6]]
    assert reply.response_bytes == 24
    reply = submit(port, "step", step_request(port, 0, 1, 2))
    assert reply.rewards == (1.0,) * 3
    assert [end.env_index for end in reply.completions] == [0, 1, 2]
    assert [info["is_success"] for info in reply.infos] == [True, False, False]
    some = submit(port, "reset", reset_request(2, env_indices=(0, 2), seeds=(7, 8)), 0, 2)
    assert observations(port, some, 2) == [[0, 7], [0, 8]]


def test_actions_reach_their_lane(opened):
    shop = Shop()
    port = opened(shop, num_envs=3)
    port.reset(reset_request(3))
    port.step(step_request(port, 2, 0, 1))
    assert [int(shop.lane(i)[0].actions[0]) for i in range(3)] == [2, 0, 1]


def test_a_list_of_instances_and_factories(opened):
    instance = Count(lane=7)
    port = opened([instance, lambda: Count(lane=1), "CartPole-v1"][:2])
    assert port.capabilities == {SUBSET_STEP}
    port.reset(reset_request(2))
    assert len(instance.threads) == 2
    with pytest.raises(InvalidSpec, match="is an instance and cannot be built anew"):
        port.rebuild((0,))
    port.rebuild((1,))


def test_one_lane_is_a_list_of_one(opened):
    port = opened([Count])
    assert port.contract.num_envs == 1
    assert observations(port, submit(port, "reset", reset_request(seeds=(3,)))) == [[0, 3]]


def test_lanes_are_built_at_the_same_time(opened):
    together = threading.Barrier(3, timeout=WAIT_S)

    class Meets(Count):
        def __init__(self, **kw):
            together.wait()
            super().__init__(**kw)

    assert opened([Meets] * 3).contract.num_envs == 3


def test_a_lane_with_another_space_is_named():
    class Other(Count):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Dict(
                {"a": spaces.Box(-1, 1, (2,)), "b": spaces.Box(-1, 1, (3,))}
            )

    class Another(Other):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Dict(
                {"a": spaces.Box(-1, 1, (2,)), "b": spaces.Box(-1, 1, (4,))}
            )

    match = r"lane 2 differs from lane 0: observation\['b'\]: Box\(\(3,\).*Box\(\(4,\)"
    with pytest.raises(InvalidSpec, match=match):
        open_env([Other, Other, Another])


def test_c44_a_fault_names_its_lane_and_leaves_the_others(opened):
    class Raises(Count):
        def step(self, action):
            if self.lane == 1:
                raise ValueError("lane one")
            return super().step(action)

    port = opened(Shop(Raises), num_envs=2)
    port.reset(reset_request(2))
    fault = submit(port, "step", step_request(port, 0), 1)
    assert isinstance(fault, EndpointFault)
    assert (fault.error_class, fault.detail, fault.env_index) == ("ValueError", "lane one", 1)
    assert submit(port, "step", step_request(port, 0), 0).rewards == (1.0,)
    with pytest.raises(EndpointFault, match="lane one"):
        port.step(step_request(port, 0, 0))


class Hangs(Count):
    """Lane 1 hangs in its first step until released; `hold` and `began` are set by the test."""

    hold = began = None
    first = True

    def step(self, action):
        if self.lane == 1 and Hangs.first:
            Hangs.first = False
            Hangs.began.set()
            Hangs.hold.wait(WAIT_S)
        return super().step(action)


@pytest.fixture
def hung():
    Hangs.hold, Hangs.began, Hangs.first = threading.Event(), threading.Event(), True
    yield Hangs
    Hangs.hold.set()


def test_r49_an_abandoned_lane_gets_no_further_call_and_is_built_anew(opened, hung):
    shop, late = Shop(Hangs, length=9), []
    port = opened(shop, num_envs=3)
    port.reset(reset_request(3))
    port.submit("step", step_request(port, 0), late.append, (1,))
    assert hung.began.wait(WAIT_S)
    port.abandon((1,))
    with pytest.raises(RuntimeError, match="was abandoned"):
        submit(port, "step", step_request(port, 0), 1)
    assert submit(port, "step", step_request(port, 0), 0).rewards == (1.0,)
    assert submit(port, "rebuild", (1,), 1) is None
    hung.hold.set()
    submit(port, "reset", reset_request(seeds=(3,)), 1)
    assert observations(port, submit(port, "step", step_request(port, 0), 1)) == [[1, 3]]
    assert late == []
    old, new = shop.lane(1)
    assert old.closed == 0
    assert old.threads.isdisjoint(new.threads)
    assert len(shop.built) == 4


def test_r29_rebuild_closes_a_lane_that_still_answers(opened):
    shop = Shop()
    port = opened(shop, num_envs=2)
    port.rebuild((0,))
    old, new = shop.lane(0)
    assert old.closed == 1
    assert old.threads == new.threads
    assert len(shop.lane(1)) == 1
    port.rebuild(())
    assert [len(shop.lane(i)) for i in range(2)] == [3, 2]


def test_a_lane_built_anew_must_be_the_same(opened):
    sizes = iter([2, 3])

    class Changes(Count):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Discrete(next(sizes))

    port = opened([Changes])
    with pytest.raises(InvalidSpec, match="built anew differs from before: action"):
        port.rebuild((0,))


def test_close_skips_abandoned_lanes_and_names_those_that_hang(hung):
    class HangsInClose(Hangs):
        def close(self):
            if self.lane == 1:
                Hangs.hold.wait(WAIT_S)
            super().close()

    shop = Shop(HangsInClose)
    port = open_env(shop, num_envs=3)
    port.abandon((2,))
    with pytest.raises(TimeoutError, match=r"env.close of lane 1 did not come back within 0\.05 s"):
        port.close(0.05)
    assert [shop.lane(i)[0].closed for i in (0, 2)] == [1, 0]
    port.close(0.05)


def test_close_raises_the_first_failure_and_closes_the_others():
    class Bad(Count):
        def close(self):
            super().close()
            if self.lane == 0:
                raise RuntimeError("no close")

    shop = Shop(Bad)
    port = open_env(shop, num_envs=2)
    with pytest.raises(EndpointFault, match="no close"):
        port.close(WAIT_S)
    assert [env.closed for env in shop.built] == [1, 1]


def test_a_lane_that_cannot_be_built_closes_the_others():
    shop = Shop()

    def make(lane):
        if lane == 1:
            raise OSError("no display")
        return shop(lane)

    with pytest.raises(EndpointFault, match="no display") as info:
        open_env([make, make, make])
    assert info.value.env_index == 1
    assert info.value.outcome == "not_done"
    for env in shop.built:
        for thread in threading.enumerate():
            if thread.ident in env.threads:
                thread.join(WAIT_S)
    assert [env.closed for env in shop.built] == [1, 1]


def test_ctrl_c_while_lanes_are_built_closes_those_that_are(monkeypatch):
    hold, shop = threading.Event(), Shop()

    class StruckAfterTheFirst(queue.SimpleQueue):
        taken = 0

        def get(self, *args, **kw):
            if self.taken:
                raise KeyboardInterrupt
            self.taken += 1
            return super().get(*args, **kw)

    def make(lane):
        if lane == 1:
            hold.wait(WAIT_S)
        return shop(lane)

    struck = types.SimpleNamespace(SimpleQueue=StruckAfterTheFirst, Empty=queue.Empty)
    monkeypatch.setattr(hosted_env, "queue", struck)
    try:
        with pytest.raises(KeyboardInterrupt):
            open_env([make, make])
    finally:
        hold.set()
    (first,) = shop.lane(0)
    for thread in threading.enumerate():
        if thread.ident in first.threads:
            thread.join(WAIT_S)
    assert first.closed == 1
    assert not any(env.closed for env in shop.lane(1))


def test_a_lane_that_is_not_built_in_time_is_abandoned():
    hold = threading.Event()

    class Slow(Count):
        def __init__(self, lane):
            if lane == 1:
                hold.wait(WAIT_S)
            super().__init__(lane=lane)

    try:
        with pytest.raises(EndpointFault, match=r"Slow\[1\] did not come back within 0\.2 s"):
            open_env([Slow, Slow], limits=Limits(env_connect_s=0.2))
    finally:
        hold.set()


def test_conformance_is_reported_once_for_all_lanes(opened):
    seen = []
    port = opened(Shop(high=0.5), num_envs=3, report=lambda path, detail: seen.append(path))
    port.reset(reset_request(3))
    for _ in range(2):
        port.step(step_request(port, 0, 0, 0))
    assert len(seen) == 1
    assert seen[0].startswith("observation")


def test_no_thread_is_left_behind():
    before = set(threading.enumerate())
    port = open_env(Shop(), num_envs=4)
    mine = set(threading.enumerate()) - before
    assert len(mine) == 4
    port.close(WAIT_S)
    for thread in mine:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in mine)


def test_observations_of_a_lane_are_its_own(opened):
    port = opened(Shop(), num_envs=2)
    first = port.reset(reset_request(2, seeds=(1, 2)))
    port.step(step_request(port, 0, 0))
    assert observations(port, first, 2) == [[0, 1], [0, 2]]
    assert isinstance(first.observation[0], np.ndarray)
