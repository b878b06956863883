"""A Join driven by its own thread: what happens at the very moment that it ends."""

from __future__ import annotations

import threading
from collections import deque

import pytest

from rollmesh.transport.grpc_stream import DirectStream, StreamEnded

LIMIT_S = 10.0


class Event:
    def __init__(self, tag, operation=None):
        self.tag = tag
        self.batch_operations = (operation,)


class Status:
    def code(self):
        return 14

    def details(self):
        return b"Socket closed"

    def trailing_metadata(self):
        return ()


class Nothing:
    def message(self):
        return None


class Call:
    """Stands for grpc's own: events are due for what was begun, and none once the last was taken.

    `at_last` is called when the last event has been taken and nobody knows of it yet.
    """

    def __init__(self):
        self.due = deque([Event(5), Event(4), Event(3, Status())])
        self.at_last = lambda: None

    def operate(self, operations, tag):
        if not self.due:
            return False
        self.due.appendleft(Event(tag, Nothing()))
        return True

    def next_event(self):
        event = self.due.popleft()  # IndexError where grpc would wait for ever
        if not self.due:
            self.at_last()
        return event

    def cancel(self, *_):
        self.due.clear()


class Channel:
    def __init__(self):
        self.call = Call()
        self._channel = self

    def segregated_call(self, *_):
        return self.call


@pytest.fixture
def stream():
    return DirectStream(Channel(), "/service/Join", ())


def test_a_call_that_ends_tells_its_status_and_waits_for_nothing(stream):
    with pytest.raises(StreamEnded, match="Socket closed"):
        stream.receive()
    with pytest.raises(StreamEnded, match="Socket closed"):
        stream.send(b"late")


def test_a_send_at_the_moment_of_the_end_is_refused_and_the_receiver_knows_why(stream):
    refusals = []

    def send():
        try:
            stream.send(b"at the last moment")
        except StreamEnded as end:
            refusals.append(end)

    def at_last():
        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        thread.join(LIMIT_S)

    stream._call.at_last = at_last
    with pytest.raises(StreamEnded, match="Socket closed"):
        stream.receive()
    assert len(refusals) == 1
    assert stream._outstanding <= 0
