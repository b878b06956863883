"""Served endpoints whose call was left behind: no connection stays open for the collector."""

from __future__ import annotations

import threading

import pytest

import rollmesh
from rollmesh.endpoint.clients import env_client, model_client
from rollmesh.endpoint.clients.client_dialing import Dialer
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.shared_session import SharedSession
from rollmesh.endpoint.envs.gym_env import GymEnvPort
from rollmesh.errors import OperationTimeout, SessionLost
from rollmesh.limits import Limits
from rollmesh.transport.address import parse_address
from rollmesh.wire.messages import Done, Kind, Probe, Rebuild
from tests.unit.env_toys import Count
from tests.unit.model_toys import EchoPort
from tests.unit.session_toys import ToyServer, until

LIMITS = Limits(env_step_s=0.1, model_predict_s=0.1, close_s=1.0)
OPTIONS = client_options(resume_grace_s=30.0, environ={})


class Wide(Count):
    def __init__(self, **options):
        super().__init__(high=2**31, **options)


class Policy:
    def predict(self, observation):
        return 1


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Make clients wait long after the deadline, as if the reply came just in time."""
    monkeypatch.setattr(model_client, "MARGIN_S", 30.0)
    monkeypatch.setattr(env_client, "MARGIN_S", 30.0)


def runs_late(*arguments, **options):
    with pytest.raises(OperationTimeout):
        rollmesh.evaluate(*arguments, episodes=1, limits=LIMITS, **options)


def test_the_session_of_a_late_model_is_ended():
    with ToyServer(EchoPort(), service="model") as server:
        server.plan(Kind.PREDICT, "silent")
        runs_late(server.address, Wide)
        until(lambda: server.closed == ["left"])


def test_the_session_of_a_late_env_is_ended():
    with ToyServer(GymEnvPort(Wide())) as server:
        server.plan(Kind.STEP, "silent")
        runs_late(Policy, server.address, model_kwargs={})
        until(lambda: server.closed == ["left"])


def test_the_other_end_of_a_thread_that_was_left_behind_is_ended_too():
    gate = threading.Event()

    class Stuck(Wide):
        def step(self, action):
            gate.wait(30)
            return super().step(action)

    with ToyServer(EchoPort(), service="model") as server:
        runs_late(server.address, Stuck)
        until(lambda: server.closed == ["left"])
        gate.set()


def test_the_sessions_of_late_lanes_are_ended():
    with ToyServer(GymEnvPort(Wide())) as late, ToyServer(GymEnvPort(Wide())) as other:
        late.plan(Kind.STEP, "silent")
        runs_late(Policy(), [late.address, other.address])
        until(lambda: late.closed == ["left"])
        until(lambda: len(other.closed) == 1)


def test_a_session_that_is_left_while_it_resumes_stays_left():
    with ToyServer(GymEnvPort(Wide())) as server:
        door = Dialer(parse_address(server.address), "env", OPTIONS)
        session = SharedSession(door, lambda connection, welcome: None)
        session.open(5.0)

        open_door = door.open

        def open_and_leave(session_id, limit_s):
            opened = open_door(session_id, limit_s)
            session.drop()  # the new connection is there, and nobody knows yet
            return opened

        door.open = open_and_leave
        server.drop_connections()
        until(lambda: server.closed == ["left"])
        answers = []
        session.submit(Kind.PROBE, Probe(b""), answers.append)
        (answer,) = answers
        assert isinstance(answer, SessionLost)


def test_a_session_that_was_left_can_be_opened_again():
    with ToyServer(GymEnvPort(Wide())) as server:
        door = Dialer(parse_address(server.address), "env", OPTIONS)
        session = SharedSession(door, lambda connection, welcome: None)
        session.open(5.0)
        session.drop()
        answers = []
        session.start_reopen(5.0, answers.append)
        until(lambda: answers == [None])
        assert session.generation == 2
        session.start_close("done", 5.0, answers.append)
        until(lambda: server.closed == ["left", "done"])


def test_a_session_that_is_left_and_opened_again_while_it_resumes_has_one_connection():
    with ToyServer(GymEnvPort(Wide())) as server:
        door = Dialer(parse_address(server.address), "env", OPTIONS)
        session = SharedSession(door, lambda connection, welcome: None)
        session.open(5.0)
        open_door, answers = door.open, []

        def open_and_begin_anew(session_id, limit_s):
            opened = open_door(session_id, limit_s)
            if session_id:  # that of resuming: the old session is left, and another one opened
                session.drop()
                session.start_reopen(5.0, answers.append)
                until(lambda: answers == [None])
            return opened

        door.open = open_and_begin_anew
        server.drop_connections()
        until(lambda: server.closed == ["left"])  # by who resumed: nobody else could
        assert session.generation == 2
        assert not session.is_lost
        session.submit(Kind.REBUILD, Rebuild(env_indices=(0,), timeout_ms=0), answers.append)
        until(lambda: len(answers) == 2)
        assert isinstance(answers[1].body, Done)
        session.start_close("done", 5.0, answers.append)
        until(lambda: server.closed == ["left", "done"])


def test_a_thread_that_hears_late_that_its_session_was_left_leaves_the_next_one_alone():
    with ToyServer(GymEnvPort(Wide())) as server:
        door = Dialer(parse_address(server.address), "env", OPTIONS)
        session = SharedSession(door, lambda connection, welcome: None)
        session.open(5.0)
        resumed, answers, gate, taken = session._resumed, [], threading.Event(), []

        def resumed_late(*arguments):
            gate.wait(10)
            session._resumed = resumed
            taken.append(resumed(*arguments))
            return taken[0]

        session._resumed = resumed_late
        session.drop()
        session.start_reopen(5.0, answers.append)
        until(lambda: answers == [None])
        gate.set()
        until(lambda: taken == [None])  # it ends, and connects to nothing
        assert (session.generation, session.is_lost, len(server.hellos)) == (2, False, 2)
        session.submit(Kind.REBUILD, Rebuild(env_indices=(0,), timeout_ms=0), answers.append)
        until(lambda: len(answers) == 2)
        assert isinstance(answers[1].body, Done)
        session.start_close("done", 5.0, answers.append)
        until(lambda: server.closed == ["left", "done"])
