"""The link: requests go out, answers call back, and a lost connection is told once."""

from __future__ import annotations

import socket
import sys
import threading

import numpy as np
import pytest

from rollmesh.errors import EndpointFault
from rollmesh.fleet import link
from rollmesh.fleet.hub import Hub
from rollmesh.fleet.link import Link
from rollmesh.ports import ResetReply, ResetRequest, StepReply, StepRequest
from rollmesh.spaces.space import Box, Dict, Discrete, Text
from rollmesh.transport.native import NativeConnection
from rollmesh.wire.messages import Configure, ErrorBody, Kind, Message

LIMIT_S = 10.0
OBSERVATIONS, ACTIONS = Box((2,)).codec, Discrete(3).codec


class Ends:
    """A link, and the worker's end of its connection."""

    def __init__(self, observations=OBSERVATIONS, hub=None):
        self.hub = hub or Hub(2)
        ours, theirs = socket.socketpair()
        connection = NativeConnection(ours, "worker 0")
        connection.admit()
        self.worker = NativeConnection(theirs, "driver")
        self.worker.admit()
        self.worker.framing.bind(observations, ACTIONS, 1)
        self.broken = []
        self.link = Link(connection, ours, self.hub, self.broken.append)
        self.link.bind(observations, ACTIONS, 1)
        self.results = []

    def ask(self, kind, body, lane=0):
        self.link.ask(kind, body, lane, self.results.append)

    def step(self, lane=0):
        self.ask(
            Kind.STEP,
            StepRequest(action=[np.zeros(1, np.int64)], episode_ids=("e",), env_indices=(lane,)),
            lane,
        )

    def wait(self):
        self.hub.wait(LIMIT_S)

    def answer(self, body, kind=None):
        request = self.worker.receive(LIMIT_S)
        self.worker.send(Message(kind or request.kind, request.request_id, body))
        return request

    def close(self):
        self.link.close()
        self.worker.close()
        self.hub.close()


@pytest.fixture
def ends():
    made = Ends()
    yield made
    made.close()


def observation(value):
    return OBSERVATIONS.encode_many([np.full(2, value, np.float32)])


def step_reply(value=0.0):
    return StepReply(observation=observation(value), rewards=(1.0,), infos=({},))


def test_an_answer_comes_to_whoever_asked(ends):
    ends.step()
    assert len(ends.link.pending) == 1
    ends.answer(step_reply(7.0))
    ends.wait()
    (reply,) = ends.results
    assert OBSERVATIONS.decode(reply.observation).tolist() == [7.0, 7.0]
    assert reply.request_bytes == 8
    assert reply.response_bytes > 8
    assert not ends.link.pending


def test_a_reset_is_measured_too(ends):
    ends.ask(Kind.RESET, ResetRequest(episode_ids=("e",), env_indices=(0,)))
    ends.answer(ResetReply(observation=observation(0.0), infos=({},)))
    ends.wait()
    assert ends.results[0].response_bytes > 8


def test_answers_in_another_order_find_their_own(ends):
    ends.step(0)
    ends.step(1)
    first, second = ends.worker.receive(LIMIT_S), ends.worker.receive(LIMIT_S)
    ends.worker.send(Message(Kind.STEP, second.request_id, step_reply(2.0)))
    ends.worker.send(Message(Kind.STEP, first.request_id, step_reply(1.0)))
    while len(ends.results) < 2:
        ends.wait()
    values = [OBSERVATIONS.decode(one.observation)[0] for one in ends.results]
    assert values == [2.0, 1.0]


def test_an_error_is_a_fault(ends):
    ends.step()
    ends.answer(
        ErrorBody(code="internal", error_class="ValueError", message="the door is stuck"),
        Kind.ERROR,
    )
    ends.wait()
    (fault,) = ends.results
    assert isinstance(fault, EndpointFault)
    assert fault.error_class == "ValueError"


def test_an_answer_that_nobody_waits_for_is_dropped(ends):
    ends.step()
    others = ends.link.forget(frozenset([0]))
    assert others == []
    ends.answer(step_reply())
    ends.wait()
    assert ends.results == []
    assert ends.broken == []


def test_of_the_lanes_that_are_left_the_others_are_returned(ends):
    ends.step(0)
    ends.step(1)
    others = ends.link.forget(frozenset([0]))
    assert [lane for lane, _ in others] == [1]
    assert not ends.link.pending


def test_what_has_no_form_on_the_wire_was_not_done(ends):
    ends.ask(Kind.CONFIGURE, Configure(edition="", settings={"x": "\ud800"}))
    (fault,) = ends.results
    assert isinstance(fault, EndpointFault)
    assert fault.outcome == "not_done"
    assert "cannot be sent" in fault.detail
    assert not ends.link.pending
    ends.step()
    ends.answer(step_reply())
    ends.wait()
    assert isinstance(ends.results[-1], StepReply)


def test_the_end_of_the_connection_is_told_once_and_leaves_who_waits(ends):
    ends.step()
    ends.worker.close()
    ends.wait()
    ends.link.read()
    assert len(ends.broken) == 1
    assert ends.results == []
    assert len(ends.link.pending) == 1  # its owner tells them, once it knows more


def test_a_request_to_one_that_is_gone_breaks_the_link(ends):
    ends.worker.close()
    while not ends.broken:
        ends.step()
    assert len(ends.broken) == 1


def test_noise_breaks_the_link(ends):
    ends.step()
    ends.worker.receive(LIMIT_S)
    ends.worker._stream.write([b"\xff" * 200], 200, LIMIT_S)
    ends.wait()
    assert len(ends.broken) == 1


def test_a_message_cut_in_the_middle_breaks_it_when_its_sender_ends(ends):
    ends.step()
    request = ends.worker.receive(LIMIT_S)
    data = ends.worker.framing.encode(Message(Kind.STEP, request.request_id, step_reply()))
    head = data.header()
    ends.worker._stream.write([head], len(head), LIMIT_S)
    ends.worker.close()
    ends.wait()
    assert len(ends.broken) == 1


def bulky(value):
    reply = step_reply(value)
    reply.infos = ({"huge": bytes(2**20)},)
    return reply


def answer_later(ends, body):
    """Have the worker answer from a thread: it waits until somebody reads."""
    thread = threading.Thread(target=ends.answer, args=(body,))
    thread.start()
    return thread


def test_a_worker_whose_answers_are_bulky_is_read_apart_and_nobody_waits_for_it(ends):
    for number in range(3):
        ends.step()
        thread = answer_later(ends, bulky(2.0 * number))
        while len(ends.results) < 2 * number + 1:
            ends.wait()
        thread.join(LIMIT_S)
        assert ends.link._reader is not None
        ends.step()
        ends.answer(step_reply(2.0 * number + 1))
        while len(ends.results) < 2 * number + 2:
            ends.wait()
    values = [OBSERVATIONS.decode(one.observation)[0] for one in ends.results]
    assert values == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert len(ends.results[0].infos[0]["huge"]) == 2**20


def test_what_bulky_answers_are_read_into_is_kept_for_the_next_one_and_then_given_back(ends):
    sizes = []
    for reply in (bulky(0.0), bulky(1.0), step_reply(), step_reply()):
        ends.step()
        thread = answer_later(ends, reply)
        count = len(ends.results) + 1
        while len(ends.results) < count:
            ends.wait()
        thread.join(LIMIT_S)
        sizes.append(len(ends.link.connection._receiver.inbox))
    assert sizes[0] > 2**20
    assert sizes[1] == sizes[0]
    assert sizes[3] < 2**20


def test_one_that_is_read_apart_can_be_lost_and_closed(ends):
    ends.step()
    thread = answer_later(ends, bulky(1.0))
    while not ends.results:
        ends.wait()
    thread.join(LIMIT_S)
    ends.step()
    ends.worker.close()
    while not ends.broken:
        ends.wait()
    assert len(ends.broken) == 1
    ends.link.close()
    assert ends.link._reader.join(LIMIT_S)


# ------------------------------------------------------------------------ slow workers


class Slow(Ends):
    """A worker whose end is a bare socket, in the hub of another one."""

    def __init__(self, other):
        super().__init__(hub=other.hub)
        self.raw = self.worker._sock

    def frame(self, body):
        """Return the bytes that answer the next request."""
        request = self.worker.receive(LIMIT_S)
        frame = self.worker.framing.encode(Message(request.kind, request.request_id, body))
        return b"".join([bytes(part) for part in (frame.header(), *frame.parts, frame.section)])

    def close(self):
        self.link.close()
        self.worker.close()


@pytest.fixture
def slow(ends):
    made = Slow(ends)
    yield made
    made.close()


@pytest.mark.parametrize("body", ["bulky", "small"])
@pytest.mark.parametrize("cut", [1, 63, 64, 100, -1])
def test_a_worker_that_stops_in_the_middle_of_its_answer_holds_up_nobody(ends, slow, cut, body):
    slow.step()
    data = slow.frame(bulky(3.0) if body == "bulky" else step_reply(3.0))
    slow.raw.sendall(data[: min(cut % len(data), 2**17)])
    for number in range(3):
        ends.step()
        ends.answer(step_reply(number))
        while len(ends.results) == number:
            ends.wait()
    assert slow.results == []
    assert slow.broken == ends.broken == []
    rest = threading.Thread(target=slow.raw.sendall, args=(data[min(cut % len(data), 2**17) :],))
    rest.start()
    while not slow.results:
        slow.wait()
    rest.join(LIMIT_S)
    assert OBSERVATIONS.decode(slow.results[0].observation)[0] == 3.0
    slow.step()
    slow.answer(step_reply(4.0))
    while len(slow.results) == 1:
        slow.wait()
    assert slow.broken == []


def test_a_message_that_has_begun_behind_a_whole_one_holds_up_nobody(ends, slow):
    slow.step(0)
    slow.step(1)
    first, second = slow.frame(step_reply(1.0)), slow.frame(step_reply(2.0))
    slow.raw.sendall(first + second[:30])
    while not slow.results:
        slow.wait()
    ends.step()
    ends.answer(step_reply())
    while not ends.results:
        ends.wait()
    slow.raw.sendall(second[30:])
    while len(slow.results) == 1:
        slow.wait()
    values = [OBSERVATIONS.decode(one.observation)[0] for one in slow.results]
    assert values == [1.0, 2.0]


def test_the_rest_of_an_answer_is_waited_for_only_so_long(ends, slow, monkeypatch):
    monkeypatch.setattr(link, "_REST_S", 0.1)
    slow.step()
    data = slow.frame(step_reply())
    slow.raw.sendall(data[:50])
    while not slow.broken:
        slow.wait()
    assert slow.broken == ["the rest of a message did not come within 0.1 s"]
    assert ends.broken == []


def test_an_answer_that_came_in_time_after_all_is_not_held_against_the_next_one(
    ends, slow, monkeypatch
):
    monkeypatch.setattr(link, "_REST_S", 0.1)
    for number in range(2):
        slow.step()
        data = slow.frame(step_reply(number))
        slow.raw.sendall(data[:50])
        ends.hub.wait(0.0)
        slow.raw.sendall(data[50:])
        while len(slow.results) == number:
            slow.wait()
    assert not ends.hub._timers
    assert slow.broken == []


def test_nothing_there_although_it_was_said_to_be_breaks_nothing(ends):
    ends.step()
    ends.answer(step_reply())
    ends.wait()
    ends.link.read()
    assert ends.broken == []
    assert not ends.hub._timers


def test_an_answer_costs_no_call_more_than_reading_it(ends):
    def calls(function):
        names = []
        sys.setprofile(
            lambda frame, event, _: event == "call" and names.append(frame.f_code.co_name)
        )
        try:
            function()
        finally:
            sys.setprofile(None)
        return names

    for _ in range(3):  # once like one before
        ends.step()
        ends.answer(step_reply())
        ends.wait()
    ends.step()
    ends.answer(step_reply())
    link_calls = calls(ends.link.read)
    ends.worker.send(Message(Kind.STEP, 99, step_reply()))
    bare = calls(lambda: ends.link.connection.receive(0.0))[1:]
    assert len(ends.results) == 4
    assert sorted(link_calls) == sorted([*bare, "read", "_deliver", "_result", "has_more"])


def test_an_observation_that_comes_through_shared_memory_is_not_bulky():
    codec = Dict({"image": Box((1024, 1024)), "say": Text(0, 9)}).codec
    ends = Ends(codec)
    try:
        for number in range(3):
            ends.step()
            value = {"image": np.full((1024, 1024), number, np.float32), "say": "go"}
            reply = StepReply(observation=codec.encode_many([value]), rewards=(1.0,), infos=({},))
            ends.answer(reply)
            ends.wait()
        assert len(ends.results) == 3
        assert ends.link._reader is None
    finally:
        ends.close()


def test_a_closed_link_reads_nothing(ends):
    ends.step()
    ends.answer(step_reply())
    ends.link.close()
    ends.link.close()
    ends.hub.wait(0.01)
    assert ends.results == []
    assert ends.broken == []
