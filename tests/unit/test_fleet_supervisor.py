"""Supervision, over a pool that a test plays: who starts when, who is given up, what is told."""

from __future__ import annotations

import os
import socket

import pytest

from rollmesh.errors import EndpointFault, LaneLost, WorkerLost
from rollmesh.fleet.exits import WorkerExit
from rollmesh.fleet.hub import Hub
from rollmesh.fleet.supervisor import Setup, Supervisor
from rollmesh.fleet.worker_life import Worker
from rollmesh.fleet.worker_options import WorkerOptions
from rollmesh.fleet.worker_spec import EnvTarget
from rollmesh.ports import EnvContract, ResetReply, ResetRequest, StepReply, StepRequest
from rollmesh.spaces.space import Box, Discrete
from rollmesh.transport.native import NativeConnection
from rollmesh.wire.contract import encode_contract
from rollmesh.wire.messages import GENERATION, Done, ErrorBody, Hello, Kind, Message, Welcome
from tests.unit.fleet_toys import FakePool

LIMIT_S = 10.0
CONTRACT = EnvContract(id="Toy", observation_space=Box((2,)), action_space=Discrete(3))
OTHER = EnvContract(id="Toy", observation_space=Box((3,)), action_space=Discrete(3))
SETUP = Setup(name="", target=EnvTarget(text="toy:make"))
LIFT = Setup(name="lift", target=EnvTarget(text="toy:make", env_kwargs={"task": "lift"}))
PUSH = Setup(name="push", target=EnvTarget(text="toy:make", env_kwargs={"task": "push"}))


class Fleet:
    """A few workers over a pool of no processes."""

    def __init__(self, workers=1, lanes=1, pool=None, **options):
        self.hub = Hub(2)
        self.pool = pool or FakePool()
        self.told = []
        self.shared = Supervisor(
            self.hub,
            self.pool,
            options=WorkerOptions(**options),
            processes=2,
            tell=lambda *one: self.told.append(one),
        )
        self.workers = [
            Worker(number, tuple(range(number * lanes, (number + 1) * lanes)), self.shared)
            for number in range(workers)
        ]
        self.ends = []
        self.results = []

    def prepare(self, worker=0, lane=None, setup=SETUP):
        lane = self.workers[worker].lanes[0] if lane is None else lane
        self.workers[worker].prepare(lane, setup, self.results.append)

    def wait(self, is_so=lambda: True):
        self.hub.wait(0.0)
        while not is_so():
            self.hub.wait(LIMIT_S)

    def arrive(self, place=-1):
        """Have a started worker dial in; return the worker's end."""
        process = self.pool.started[place]
        ours, theirs = socket.socketpair()
        connection = NativeConnection(ours, "worker")
        end = NativeConnection(theirs, "driver")
        self.ends.append(end)
        end.send(Message(Kind.HELLO, 1, Hello(generation=GENERATION, service="worker")))
        connection.receive(LIMIT_S)  # the door does
        connection.admit()
        end.admit()
        self.workers[process.spec.worker].arrived(process.spec.start, connection, ours)
        return end

    def answer(self, end, body, kind=None):
        request = end.receive(LIMIT_S)
        end.send(Message(kind or request.kind, request.request_id, body))
        self.hub.wait(LIMIT_S)
        return request

    def build(self, end, contract=CONTRACT):
        welcome = Welcome(generation=GENERATION, contract=encode_contract(contract))
        return self.answer(end, welcome, Kind.WELCOME)

    def bring_up(self, worker=0):
        self.prepare(worker)
        end = self.arrive()
        self.build(end)
        end.framing.bind(
            CONTRACT.observation_space.codec,
            CONTRACT.action_space.codec,
            len(self.workers[worker].lanes),
        )
        assert self.results.pop() is None
        return end

    def step(self, worker=0, lane=0):
        action = CONTRACT.action_space.codec.encode(0)
        action = [one.reshape(1) for one in action]
        request = StepRequest(action=action, episode_ids=("e",), env_indices=(lane,))
        self.workers[worker].step(lane, request, self.results.append)

    def reset(self, worker=0, lane=0, seed=5):
        request = ResetRequest(episode_ids=("e",), seeds=(seed,), env_indices=(lane,))
        self.workers[worker].reset(lane, request, self.results.append)

    def end(self, place=-1, code=-11, lines=("the end",)):
        """Have a process end."""
        process = self.pool.started[place]
        process.ended(WorkerExit(code=code, last_lines=lines))
        self.hub.wait(LIMIT_S)

    @property
    def states(self):
        return [(worker, state) for worker, state, _, _ in self.told]

    def close(self):
        for worker in self.workers:
            worker.kill()
        for end in self.ends:
            end.close()
        self.shared.close()
        self.hub.close()


@pytest.fixture
def fleet(request):
    made = []

    def make(*args, **kwargs):
        made.append(Fleet(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        for worker in one.workers:
            if worker._link is not None:
                worker._link.close()
        one.close()


def test_a_worker_starts_when_a_lane_is_first_prepared(fleet):
    one = fleet(workers=2, lanes=2)
    assert one.pool.started == []
    one.prepare(worker=1, lane=3)
    (process,) = one.pool.started
    assert (process.spec.worker, process.spec.start, process.spec.lanes) == (1, 1, (2, 3))
    assert one.told == [(1, "starting", "start 1", None)]
    one.prepare(worker=1, lane=2)
    assert len(one.pool.started) == 1


def test_no_more_start_at_once_than_they_may(fleet):
    one = fleet(workers=4, starts_at_once=2)
    for number in range(4):
        one.prepare(number)
    assert [process.spec.worker for process in one.pool.started] == [0, 1]
    one.build(one.arrive(0))
    assert [process.spec.worker for process in one.pool.started] == [0, 1, 2]
    one.end(place=1)
    assert [process.spec.worker for process in one.pool.started] == [0, 1, 2, 3]
    assert one.shared.starts == 4
    assert one.shared.deaths == 1


def test_one_is_ready_once_its_env_is_built_and_prepare_is_cheap_from_then_on(fleet):
    one = fleet()
    one.bring_up()
    assert one.states == [(0, "starting"), (0, "ready")]
    one.prepare()
    assert one.results == [None]
    assert one.shared.contract == CONTRACT


def test_another_setup_is_built_in_the_same_worker_and_the_same_one_again_is_not(fleet):
    one = fleet()
    end = one.bring_up()
    one.prepare(setup=LIFT)
    request = one.build(end)
    assert EnvTarget.from_json(request.body.settings["target"]) == LIFT.target
    assert request.body.settings["contract"]
    one.prepare(setup=LIFT)
    one.prepare(setup=PUSH)
    one.build(end)
    assert one.results == [None, None, None]
    assert len(one.pool.started) == 1


def test_a_forgotten_env_is_built_anew(fleet):
    one = fleet()
    end = one.bring_up()
    one.workers[0].forget_env(0)
    one.prepare()
    assert one.results == []
    one.build(end)
    assert one.results == [None]


def test_an_env_that_cannot_be_built_is_told_and_the_worker_lives_on(fleet):
    one = fleet()
    one.prepare()
    end = one.arrive()
    body = ErrorBody(code="internal", error_class="OSError", message="no scene")
    one.answer(end, body, Kind.ERROR)
    (fault,) = one.results
    assert isinstance(fault, EndpointFault)
    assert not isinstance(fault, WorkerLost)
    assert fault.error_class == "OSError"
    one.prepare()
    one.build(end)
    assert one.results[-1] is None
    assert len(one.pool.started) == 1


def test_an_env_that_differs_from_the_first_one_is_refused(fleet):
    one = fleet(workers=2)
    one.bring_up(0)
    one.prepare(1, setup=LIFT)
    one.build(one.arrive(), OTHER)
    (fault,) = one.results
    assert isinstance(fault, EndpointFault)
    assert "lift" in fault.detail
    assert "one model cannot play both" in fault.detail


def test_a_step_goes_to_the_worker_and_its_answer_comes_back(fleet):
    one = fleet()
    end = one.bring_up()
    observation = CONTRACT.observation_space.codec.encode_many([[0.0, 1.0]])
    one.reset()
    one.answer(end, ResetReply(observation=observation, infos=({},)))
    one.step()
    one.answer(end, StepReply(observation=observation, rewards=(2.0,), infos=({},)))
    assert isinstance(one.results[0], ResetReply)
    assert one.results[1].rewards == (2.0,)


def test_a_death_is_told_with_how_doing_what_and_the_last_lines(fleet):
    one = fleet()
    end = one.bring_up()
    one.reset(seed=17)
    end.receive(LIMIT_S)
    one.end(lines=("no licence",))
    (fault,) = one.results
    assert isinstance(fault, WorkerLost)
    assert (fault.worker, fault.cause, fault.env_index) == (0, "SIGSEGV", 0)
    assert "in env.reset (seed 17)" in fault.detail
    assert fault.last_lines == ("no licence",)
    assert one.states[-1] == (0, "lost")
    assert one.shared.deaths == 1


def test_a_lost_connection_waits_for_the_end_that_says_how(fleet):
    one = fleet()
    end = one.bring_up()
    one.step()
    end.close()
    one.wait(lambda: one.workers[0]._link is None)
    assert one.results == []
    one.end(code=7)
    assert one.results[0].cause == "exit code 7"


def test_all_lanes_of_a_worker_are_told(fleet):
    one = fleet(lanes=3)
    one.bring_up()
    for lane in range(3):
        one.step(lane=lane)
    one.end()
    assert sorted(fault.env_index for fault in one.results) == [0, 1, 2]
    assert all("lane 0" in fault.detail and "lane 2" in fault.detail for fault in one.results)


def test_a_lost_worker_is_started_again_by_the_next_prepare(fleet):
    one = fleet()
    one.bring_up()
    one.end()
    one.step()
    assert isinstance(one.results.pop(), WorkerLost)
    one.prepare()
    assert one.pool.started[-1].spec.start == 2
    assert one.pool.started[-1].spec.token != one.pool.started[0].spec.token
    one.build(one.arrive())
    assert one.results == [None]


def test_a_reset_of_a_lane_that_lost_its_worker_prepares_it(fleet):
    one = fleet()
    one.bring_up()
    one.end()
    one.reset()
    end = one.arrive()
    one.build(end)
    end.framing.bind(CONTRACT.observation_space.codec, CONTRACT.action_space.codec, 1)
    assert end.receive(LIMIT_S).kind is Kind.RESET


def test_what_was_never_prepared_is_not_there(fleet):
    one = fleet()
    one.step()
    one.reset()
    assert [fault.cause for fault in one.results] == ["not prepared"] * 2


def test_a_hang_kills_the_worker_and_the_other_lanes_are_told_too(fleet):
    one = fleet(lanes=2)
    one.bring_up()
    one.step(lane=0)
    one.step(lane=1)
    one.workers[0].abandon(frozenset([0]), "it did not come back in time")
    assert one.pool.started[0].killed
    one.end(code=-9)
    (fault,) = one.results  # nobody waits for lane 0 any more
    assert fault.env_index == 1
    assert fault.cause == "it did not come back in time"


def test_one_that_waits_to_be_started_can_be_left(fleet):
    one = fleet(workers=2, starts_at_once=1)
    one.prepare(0)
    one.prepare(1)
    one.workers[1].abandon(frozenset([1]), "late")
    one.build(one.arrive(0))
    assert [process.spec.worker for process in one.pool.started] == [0]


def test_one_that_does_not_report_is_killed(fleet):
    one = fleet(start_s=0.01)
    one.prepare()
    one.wait(lambda: one.pool.started[0].killed)
    one.end(code=-9, lines=("import torch",))
    (fault,) = one.results
    assert "did not report within 0.01 s" in fault.cause
    assert "raise the limit env_connect_s" in fault.detail
    assert "import torch" in fault.detail


def test_one_that_builds_for_too_long_is_killed(fleet):
    one = fleet(load_s=0.01)
    one.prepare()
    one.arrive()
    one.wait(lambda: one.pool.started[0].killed)
    one.end(code=-9)
    assert "building the env toy:make did not come back within 0.01 s" in one.results[0].cause


def test_a_killed_one_whose_end_nobody_tells_is_taken_for_gone(fleet, monkeypatch):
    monkeypatch.setattr("rollmesh.fleet.worker_life._GONE_S", 0.01)
    one = fleet()
    one.bring_up()
    one.step(lane=0)
    one.workers[0].abandon(frozenset(), "late")
    one.wait(lambda: one.results)
    assert one.results[0].cause == "late"


def test_one_that_fails_to_start_three_times_alike_is_given_up(fleet):
    one = fleet()
    for _ in range(3):
        one.prepare()
        one.end(code=1, lines=("ImportError: no simulator",))
    assert [type(fault) for fault in one.results] == [WorkerLost, WorkerLost, LaneLost]
    fault = one.results[-1]
    assert fault.outcome == "not_done"
    assert "worker 0 is given up: it failed to start 3 times in a row" in fault.detail
    assert "ImportError: no simulator" in fault.detail
    one.prepare()
    assert isinstance(one.results[-1], LaneLost)
    assert len(one.pool.started) == 3


def test_failures_of_different_causes_or_after_a_good_start_give_nobody_up(fleet):
    one = fleet(failed_starts=2)
    for code in (1, 2, 1):
        one.prepare()
        one.end(code=code)
    one.prepare()
    one.build(one.arrive())
    one.end(code=1)
    one.prepare()
    one.end(code=1)
    assert not any(isinstance(fault, LaneLost) for fault in one.results)
    one.prepare()
    one.end(code=1)
    assert isinstance(one.results[-1], LaneLost)


def test_one_that_fails_now_this_way_now_that_is_given_up_after_twice_as_many(fleet):
    one = fleet(failed_starts=2)
    for code in (1, 2, 1, 2):
        one.prepare()
        one.end(code=code)
    assert [type(fault) for fault in one.results] == [WorkerLost] * 3 + [LaneLost]
    assert "it failed to start 4 times in a row" in one.results[-1].detail


def test_a_pool_that_cannot_start_is_told_as_a_loss(fleet):
    one = fleet(pool=FakePool(OSError("no descriptors left")), failed_starts=1)
    one.prepare()
    assert isinstance(one.results[0], LaneLost)
    assert "no descriptors left" in one.results[0].detail


def test_a_stranger_or_an_earlier_start_is_let_go(fleet):
    one = fleet()
    one.bring_up()
    one.end()
    one.prepare()
    late = one.arrive(place=0)
    one.arrive(place=1)
    assert one.results[-1:] != [None]
    with pytest.raises(Exception, match="clos"):
        late.receive(LIMIT_S)


def test_closing_asks_the_envs_and_is_over_once_the_process_has_ended(fleet):
    one = fleet()
    end = one.bring_up()
    one.workers[0].close(one.results.append)
    assert one.answer(end, Done()).kind is Kind.CLOSE
    assert one.results == []
    one.end(code=0)
    assert one.results == [None]
    assert one.states[-1] == (0, "stopped")
    assert one.shared.deaths == 0


@pytest.mark.parametrize("is_read", [True, False], ids=["read before its end", "or not"])
def test_what_closing_raised_is_told_once_the_process_has_ended(fleet, caplog, is_read):
    one = fleet()
    end = one.bring_up()
    one.workers[0].close(one.results.append)
    request = end.receive(LIMIT_S)
    body = ErrorBody(code="internal", error_class="OSError", message="still open")
    end.send(Message(Kind.ERROR, request.request_id, body))
    if is_read:
        one.hub.wait(LIMIT_S)
    assert one.results == []
    one.end(code=0)
    (fault,) = one.results
    assert isinstance(fault, EndpointFault)
    assert fault.error_class == "OSError"
    assert "still open" in str(fault)
    assert caplog.text == ""


def test_closing_one_that_is_not_there_is_over_at_once(fleet):
    one = fleet(workers=2, starts_at_once=1)
    one.prepare(0)
    one.prepare(1)
    one.workers[1].close(one.results.append)
    assert one.results == [None]


def test_closing_one_that_is_starting_kills_it(fleet):
    one = fleet()
    one.prepare()
    one.workers[0].close(one.results.append)
    assert one.pool.started[0].killed
    one.end(code=-9)
    assert one.results == [None]


def test_what_listens_for_states_may_fail(fleet, caplog):
    one = fleet()
    one.told = None  # so that appending to it fails
    one.bring_up()
    assert "callback_failed" in caplog.text


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores have no numbers here")
def test_pinned_workers_get_a_core_each_in_turn(fleet):
    one = fleet(workers=3, pin=True)
    for number in range(3):
        one.prepare(number)
    cores = [process.spec.cpus for process in one.pool.started]
    usable = sorted(os.sched_getaffinity(0))
    assert cores == [(usable[number % len(usable)],) for number in range(3)]
