"""A fleet as one env port, over real processes: lanes play, die, hang, and are there again."""

from __future__ import annotations

import os
import queue

import pytest

from rollmesh.errors import EndpointFault, InvalidSpec, PortTimeout, WorkerLost
from rollmesh.fleet.lanes import FleetEnvs
from rollmesh.fleet.worker_options import WorkerOptions
from rollmesh.fleet.worker_spec import EnvTarget
from rollmesh.ports import PREPARE, REBUILD, SUBSET_STEP, PrepareRequest, StepReply
from rollmesh.testing.faults import take_stock
from rollmesh.testing.faults.stock import left_behind
from tests.unit.fleet_toys import (
    EXIT,
    HANG,
    LIMIT_S,
    RAISE,
    WALKER,
    FakePool,
    open_fleet,
    prepare,
    reset,
    step,
    step_request,
)


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def fleet(told):
    before = take_stock()
    made = FleetEnvs.open(
        {
            "short": EnvTarget.of(WALKER, {"length": 2}),
            "long": EnvTarget.of(WALKER, {"length": 50}),
        },
        workers=2,
        lanes_per_worker=2,
        tell=lambda *one: told.append(one),
    )
    yield made
    made.close(LIMIT_S)
    made.close(LIMIT_S)
    assert not left_behind(before)


@pytest.fixture
def lanes(fleet):
    prepare(fleet, *range(4), setup="long")
    return fleet


def test_the_contract_is_the_first_envs_and_as_wide_as_there_are_lanes(fleet):
    assert fleet.contract.num_envs == 4
    assert fleet.capabilities == {SUBSET_STEP, REBUILD, PREPARE}


def test_lanes_live_in_their_workers(lanes, told):
    pids = [reset(lanes, lane).infos[0]["pid"] for lane in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert os.getpid() not in pids
    assert {(worker, state) for worker, state, _, _ in told} >= {
        (number, state) for number in range(2) for state in ("starting", "ready")
    }
    assert {pid for _, state, _, pid in told if state == "ready"} >= set(pids)


def test_a_lane_holds_the_setup_that_it_is_prepared_for(lanes):
    prepare(lanes, 1, setup="short")
    reset(lanes, 1)
    step(lanes, lane=1)
    assert step(lanes, lane=1).completions[0].env_index == 1
    prepare(lanes, 1, setup="long")
    reset(lanes, 1)
    step(lanes, lane=1)
    assert not step(lanes, lane=1).completions


def test_steps_of_many_lanes_are_under_way_at_once(lanes):
    for lane in range(4):
        reset(lanes, lane)
    arrived = queue.SimpleQueue()
    for lane in range(4):
        lanes.submit("step", step_request(lane=lane), arrived.put, (lane,))
    while arrived.qsize() < 4:
        lanes.wait(LIMIT_S)
    assert all(isinstance(arrived.get(), StepReply) for _ in range(4))


def test_a_rebuilt_lane_keeps_its_worker(lanes):
    before, starts = reset(lanes, 3).infos[0]["pid"], lanes.starts
    lanes.rebuild((3,))
    prepare(lanes, 3, setup="long")
    assert reset(lanes, 3).infos[0]["pid"] == before
    assert lanes.starts == starts


def test_what_the_env_raises_is_a_fault_of_its_lane_only(lanes):
    reset(lanes, 0)
    reset(lanes, 1)
    with pytest.raises(EndpointFault, match="the door is stuck") as caught:
        step(lanes, RAISE, lane=0)
    assert not isinstance(caught.value, WorkerLost)
    assert caught.value.env_index == 0
    assert isinstance(step(lanes, lane=1), StepReply)


def test_a_dead_worker_is_told_and_its_lanes_are_there_again_once_prepared(lanes, told):
    deaths = lanes.deaths
    reset(lanes, 2, seed=9)
    step(lanes, lane=2)
    with pytest.raises(WorkerLost) as caught:
        step(lanes, EXIT, lane=2)
    fault = caught.value
    assert (fault.worker, fault.cause, fault.env_index) == (1, "exit code 7", 2)
    assert "in env.step 2 (lane 2, task 'long', seed 9)" in fault.detail
    assert fault.last_lines == ("the simulator has lost its licence",)
    assert lanes.deaths == deaths + 1
    assert told[-1][:2] == (1, "lost")
    with pytest.raises(WorkerLost, match="prepare lane 3 first"):
        step(lanes, lane=3)
    prepare(lanes, 2, 3, setup="long")
    reset(lanes, 3)
    assert isinstance(step(lanes, lane=3), StepReply)


def test_a_hung_worker_is_killed_and_replaced(lanes):
    first = reset(lanes, 0).infos[0]["pid"]
    with pytest.raises(PortTimeout):
        step(lanes, HANG, lane=0, limit_s=0.05)
    assert reset(lanes, 0).infos[0]["pid"] != first


@pytest.mark.parametrize("method", ["step", "reset", "prepare"])
def test_several_lanes_in_one_request_are_refused(lanes, method):
    answers = []
    lanes.submit(method, step_request(), answers.append, (0, 1))
    assert isinstance(answers[0], EndpointFault)
    assert answers[0].outcome == "not_done"


def test_an_unknown_setup_or_operation_is_told(lanes):
    answers = []
    lanes.submit("prepare", PrepareRequest((0,), "lift"), answers.append, (0,))
    lanes.submit("dance", None, answers.append, (0,))
    assert isinstance(answers[0], InvalidSpec)
    assert "'short', 'long'" in str(answers[0])
    assert isinstance(answers[1], RuntimeError)


def test_what_building_the_first_env_raises_is_raised_and_nothing_is_left():
    before = take_stock()
    with pytest.raises(EndpointFault, match="nowhere_at_all"):
        FleetEnvs.open({"": EnvTarget(text="nowhere_at_all:make")}, workers=2)
    assert not left_behind(before)


def test_leaving_ends_all_at_once_and_leaves_nothing():
    before = take_stock()
    fleet = open_fleet(workers=2)
    prepare(fleet, 0, 1)
    reset(fleet)
    fleet.submit("step", step_request(HANG), lambda _: None, (0,))
    fleet.leave()
    fleet.leave()
    fleet.close()
    fleet.wake()
    assert not left_behind(before)


def test_what_envs_raise_as_they_are_closed_is_told(caplog):
    before = take_stock()
    target = EnvTarget.of("tests.unit.fleet_toys:Unclosable")
    fleet = FleetEnvs.open({"": target}, workers=2)
    prepare(fleet, 1)
    with pytest.raises(EndpointFault, match="the door is stuck"):
        fleet.close(LIMIT_S)
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert "more=1" in caplog.text
    assert "the door is stuck" in caplog.text
    assert not left_behind(before)


def test_envs_that_do_not_close_in_time_are_killed():
    before = take_stock()
    fleet = open_fleet()
    reset(fleet)
    fleet.submit("step", step_request(HANG), lambda _: None, (0,))
    with pytest.raises(TimeoutError, match=r"within 0.05 s; killed"):
        fleet.close(0.05)
    assert not left_behind(before)


@pytest.mark.parametrize(
    ("setups", "given", "named"),
    [
        ({}, {"workers": 1}, "env"),
        ({"": "a:b"}, {}, "workers"),
        ({"": "a:b"}, {"workers": -1}, "workers"),
        ({"": "a:b"}, {"workers": True}, "workers"),
        ({"": "a:b"}, {"workers": 1, "lanes_per_worker": 0}, "lanes_per_worker"),
        ({"x": "a:b", "y": "c:d"}, {"workers": 1, "addresses": ["unix:///x"]}, "env"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(setups, given, named):
    targets = {name: EnvTarget(text=text) for name, text in setups.items()}
    with pytest.raises(InvalidSpec, match=named):
        FleetEnvs.open(targets, **given)


def test_a_pool_that_fails_is_closed_with_the_fleet():
    pool = FakePool(OSError("no room"))
    with pytest.raises(EndpointFault, match="no room"):
        FleetEnvs.open(
            {"": EnvTarget(text="a:b")},
            workers=1,
            pool=pool,
            options=WorkerOptions(failed_starts=1),
        )
    assert pool.closed == 1
