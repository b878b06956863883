"""One session of many callers, with a server that does not take what it is sent."""

from __future__ import annotations

import threading

import pytest

from rollmesh.endpoint.clients import shared_session
from rollmesh.endpoint.clients.client_dialing import Dialer
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.shared_session import SharedSession
from rollmesh.transport.address import parse_address
from rollmesh.wire.messages import Kind, Message, Probe, ProbeReply
from tests.unit.frame_toys import on_thread
from tests.unit.model_toys import EchoPort
from tests.unit.session_toys import ToyServer, until

LIMIT_S = 10.0
OPTIONS = client_options(resume_grace_s=LIMIT_S, environ={})
BIG = bytes(50_000_000)


class DeafServer(ToyServer):
    """Reads nothing after the hello, until it is let to; answers probes in order."""

    def __init__(self, address):
        self.reads = threading.Event()
        self.asked = []
        super().__init__(EchoPort(), address, service="model")

    def _welcome(self, connection, hello):
        return super()._welcome(connection, hello) and self.reads.wait(30)

    def _answer(self, connection, message):
        self.asked.append((message.kind, message.request_id))
        if message.kind is Kind.PROBE:
            connection.send(Message(Kind.PROBE, message.request_id, ProbeReply(b"")))
        return message.kind is not Kind.CLOSE


@pytest.fixture(params=["rollmesh+tcp://127.0.0.1:0", "rollmesh+unix://"])
def server(request):
    with DeafServer(request.param) as running:
        yield running
        running.reads.set()


def opened(server):
    session = SharedSession(
        Dialer(parse_address(server.address), "model", OPTIONS), lambda *_: None
    )
    session.open(LIMIT_S)
    return session


def threads_of(session):
    return [one for one in threading.enumerate() if one.name.endswith(str(session.dialer.address))]


def test_p1_whoever_asks_does_not_wait_for_a_server_that_takes_nothing(server):
    session, answers = opened(server), []

    def ask():
        for _ in range(3):
            session.submit(Kind.PROBE, Probe(BIG), answers.append)
        session.forget([3])

    with on_thread(ask) as asking:
        asking.join(LIMIT_S)
        assert not asking.is_alive()
    assert len(threads_of(session)) == 2  # one receives, and one sends what is left
    assert (answers, server.asked) == ([], [])
    server.reads.set()
    until(lambda: len(answers) == 2 and len(server.asked) == 4)
    assert [kind for kind, _ in server.asked] == [*[Kind.PROBE] * 3, Kind.CANCEL]
    assert [answer.request_id for answer in answers] == [1, 2]
    until(lambda: len(threads_of(session)) == 1)  # nothing is left to send
    session.drop()


def test_a_session_that_is_left_keeps_nothing_that_sends(server):
    session = opened(server)
    session.submit(Kind.PROBE, Probe(BIG), lambda _: None)
    with on_thread(session.drop):
        pass
    until(lambda: not threads_of(session))


def test_a_server_that_takes_nothing_for_long_is_asked_again_over_another_connection(
    server, monkeypatch
):
    monkeypatch.setattr(shared_session, "_SEND_S", 0.05)
    session, answers = opened(server), []
    session.submit(Kind.PROBE, Probe(BIG), answers.append)
    until(lambda: len(server.hellos) >= 2)
    monkeypatch.setattr(shared_session, "_SEND_S", LIMIT_S)
    server.reads.set()
    until(lambda: len(answers) == 1)
    assert answers[0].kind is Kind.PROBE
    assert server.hellos[-1].session_id == "s1"
    session.drop()
