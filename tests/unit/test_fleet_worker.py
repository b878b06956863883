"""What runs in a worker: lanes are built, reset, stepped and closed as told, or it says why not."""

from __future__ import annotations

import logging
import os
import socket
import threading

import numpy as np
import pytest

from rollmesh.fleet.pool import LOG_MARK
from rollmesh.fleet.worker import WorkerLanes, _log_to_driver
from rollmesh.fleet.worker_spec import EnvTarget, WorkerSpec
from rollmesh.ports import ResetRequest
from rollmesh.transport.connection import ConnectionOptions
from rollmesh.transport.native import NativeConnection
from rollmesh.wire.contract import decode_contract
from rollmesh.wire.messages import Close, Configure, Done, ErrorBody, Kind, Message, Welcome
from tests.unit.fleet_toys import QUIT, RAISE, WALKER, step_request

LIMIT_S = 10.0


class Driver:
    """Drives a worker that runs on a thread here."""

    def __init__(self, lanes):
        ours, theirs = socket.socketpair()
        self.connection = NativeConnection(ours, "worker")
        self.connection.admit()
        self.spec = WorkerSpec(worker=0, start=1, address="", token="", lanes=lanes, threads=None)
        worker = NativeConnection(theirs, "driver", ConnectionOptions(spin="never"))
        worker.admit()
        served = WorkerLanes(worker, self.spec)
        self.thread = threading.Thread(target=lambda: (served.serve(), worker.close()))
        self.thread.start()

    def send(self, kind, body):
        request_id = self.connection.next_id()
        self.connection.send(Message(kind, request_id, body))
        return request_id

    def call(self, kind, body):
        return self.connection.call(Message(kind, self.connection.next_id(), body), LIMIT_S).body

    def build(self, lane=0, text=WALKER, known="", **env_kwargs):
        target = EnvTarget(text=text, env_kwargs=env_kwargs)
        settings = {"lane": str(lane), "target": target.to_json(), "contract": known}
        body = self.call(Kind.CONFIGURE, Configure(edition="", settings=settings))
        if isinstance(body, Welcome):
            self.contract = decode_contract(body.contract)
            self.connection.framing.bind(
                self.contract.observation_space.codec,
                self.contract.action_space.codec,
                len(self.spec.lanes),
            )
        return body

    def reset(self, lane=0, seed=3):
        request = ResetRequest(episode_ids=("e",), seeds=(seed,), env_indices=(lane,))
        return self.call(Kind.RESET, request)

    def step(self, action=0, lane=0):
        return self.call(Kind.STEP, step_request(action, lane))

    def observed(self, reply):
        return self.contract.observation_space.codec.decode(reply.observation).tolist()

    def close(self):
        body = self.call(Kind.CLOSE, Close(close_env=True))
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()
        return body


@pytest.fixture
def driver(request):
    made = Driver(getattr(request, "param", (0,)))
    yield made
    made.connection.close()
    made.thread.join(LIMIT_S)
    assert not made.thread.is_alive()


TWO = pytest.mark.parametrize("driver", [(4, 5)], indirect=True)


def test_it_builds_resets_and_steps(driver):
    assert isinstance(driver.build(length=2), Welcome)
    reply = driver.reset()
    assert driver.observed(reply) == [0.0] * 4
    assert reply.infos[0]["seed"] == 3
    assert driver.observed(driver.step()) == [1.0] * 4
    reply = driver.step()
    assert [end.terminated for end in reply.completions] == [True]
    assert reply.endpoint_total_ns > 0
    assert isinstance(driver.close(), Done)


def test_the_same_seed_gives_the_same_rewards(driver):
    driver.build()
    draws = []
    for _ in range(2):
        driver.reset(seed=11)
        draws.append([driver.step().rewards for _ in range(5)])
    assert draws[0] == draws[1]


@pytest.mark.parametrize(("action", "name"), [(RAISE, "ValueError"), (QUIT, "SystemExit")])
def test_what_the_env_raises_is_told_with_its_traceback_and_the_worker_lives(driver, action, name):
    driver.build()
    driver.reset()
    body = driver.step(action)
    assert isinstance(body, ErrorBody)
    assert body.error_class == name
    assert "misbehave" in body.traceback_text
    driver.reset()
    assert driver.observed(driver.step()) == [1.0] * 4


def test_an_env_that_cannot_be_built_is_told_and_another_one_can(driver):
    body = driver.build(text="nowhere_at_all:make")
    assert isinstance(body, ErrorBody)
    assert "nowhere_at_all" in body.message
    assert isinstance(driver.build(), Welcome)


def test_a_lane_without_an_env_says_so(driver):
    body = driver.reset()
    assert isinstance(body, ErrorBody)
    assert "prepared first" in body.message


def test_another_env_takes_the_place_of_the_first(driver):
    driver.build(length=5)
    driver.reset()
    assert isinstance(driver.build(length=1), Welcome)
    driver.reset()
    assert driver.step().completions


@TWO
def test_several_lanes_live_on_threads_of_their_own(driver):
    for lane in (4, 5):
        assert isinstance(driver.build(lane), Welcome)
    names = {thread.name for thread in threading.enumerate()}
    assert {"rollmesh-lane-4", "rollmesh-lane-5"} <= names
    driver.reset(4, seed=1)
    driver.reset(5, seed=2)
    driver.step(lane=4)
    assert driver.observed(driver.step(lane=4)) == [2.0] * 4
    assert driver.observed(driver.step(lane=5)) == [1.0] * 4
    assert isinstance(driver.close(), Done)
    assert not any(thread.name.startswith("rollmesh-lane") for thread in threading.enumerate())


@TWO
def test_what_one_lane_raises_is_no_affair_of_the_other(driver):
    for lane in (4, 5):
        driver.build(lane)
        driver.reset(lane)
    assert isinstance(driver.step(RAISE, 4), ErrorBody)
    assert driver.observed(driver.step(0, 5)) == [1.0] * 4


def test_it_ends_when_its_driver_is_gone(driver):
    driver.build()
    driver.connection.close()
    driver.thread.join(LIMIT_S)
    assert not driver.thread.is_alive()


class Stubborn:
    """Does not want to be closed."""

    def __init__(self):
        import gymnasium

        self.observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def close(self):
        raise RuntimeError("closing failed")


def test_what_closing_raises_is_told_and_it_ends_all_the_same(driver):
    driver.build(text=f"{__name__}:Stubborn")
    body = driver.close()
    assert isinstance(body, ErrorBody)
    assert "closing failed" in body.message


def test_log_records_go_to_the_driver_as_lines(monkeypatch):
    written = []
    monkeypatch.setattr(os, "write", lambda fd, data: written.append((fd, data)))
    logger = logging.getLogger("rollmesh")
    before = (list(logger.handlers), logger.level, logger.propagate)
    try:
        _log_to_driver()
        logging.getLogger("rollmesh.x").warning("odd\nvalue %d", 3)
    finally:
        logger.handlers[:], logger.level, logger.propagate = before
        logger.setLevel(before[1])
    assert written == [(2, f"{LOG_MARK}\tWARNING\trollmesh.x\todd value 3\n".encode())]
