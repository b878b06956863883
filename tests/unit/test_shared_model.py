"""A served model that several groups ask at once: bounded, told of losses, and left behind."""

from __future__ import annotations

import threading

import pytest

from rollmesh.endpoint.clients.model_client import connect_model
from rollmesh.endpoint.clients.model_route import MOST_UNDER_WAY
from rollmesh.endpoint.clients.shared_model import SharedModelPort
from rollmesh.errors import EndpointFault, SessionLost
from rollmesh.ports import ResetAdapterRequest
from rollmesh.wire.messages import Kind
from tests.unit.model_toys import OPTIONS, EchoPort, action, ask, release, route
from tests.unit.session_toys import ToyServer, until


@pytest.fixture
def server():
    with ToyServer(EchoPort(), service="model") as running:
        yield running


def shared(server):
    port = connect_model(server.address, route(is_shared=True), OPTIONS)
    assert isinstance(port, SharedModelPort)
    return port


def test_requests_of_several_groups_are_under_way_together(server):
    port = shared(server)
    held = []
    server.plan(Kind.PREDICT, *[lambda c, m: held.append((c, m))] * 3)
    answers = []
    for value in (0, 1, 2):
        port.submit("predict", ask(value, f"e{value}"), answers.append, ())
    until(lambda: len(held) == 3)
    for connection, message in reversed(held):
        connection.send(server._execute(message))
    until(lambda: len(answers) == 3)
    assert [action(reply) for reply in answers] == [2, 1, 0]
    assert server.requests.count(Kind.RESOLVE) == 1
    port.release_adapter(release())
    assert server.closed == ["done"]


def test_a_server_gets_no_more_requests_than_it_takes(server):
    port = shared(server)
    held, answers = [], []
    count = MOST_UNDER_WAY + 3
    server.plan(Kind.PREDICT, *[lambda c, m: held.append((c, m))] * MOST_UNDER_WAY)
    for value in range(count):
        port.submit("predict", ask(value % 3, f"e{value}"), answers.append, ())
    until(lambda: len(held) == MOST_UNDER_WAY)
    assert server.requests.count(Kind.PREDICT) == MOST_UNDER_WAY
    for connection, message in held:
        connection.send(server._execute(message))
    until(lambda: len(answers) == count)
    port.release_adapter(release())


def test_a_loss_is_told_to_everybody_who_waits(server):
    port = shared(server)
    port.predict(ask(1))
    server.plan(Kind.PREDICT, *["silent"] * MOST_UNDER_WAY)
    answers = []
    for number in range(2000):
        port.submit("predict", ask(1, f"e{number}"), answers.append, ())
    until(lambda: server.requests.count(Kind.PREDICT) == MOST_UNDER_WAY + 1)
    server.session_id = None
    server.drop_connections()
    until(lambda: len(answers) == 2000)
    assert all(isinstance(answer, SessionLost) for answer in answers)


def test_requests_under_way_are_asked_again_after_a_drop(server):
    port = shared(server)
    port.predict(ask(1))
    server.plan(Kind.PREDICT, "drop_after")
    assert action(port.predict(ask(2, "e1"))) == 2
    assert server.port.asked == [["e0"], ["e1"]]
    port.release_adapter(release())


def test_a_lost_shared_session_is_opened_anew(server):
    port = shared(server)
    port.predict(ask(1))
    server.session_id = None
    server.drop_connections()
    with pytest.raises(SessionLost):
        port.predict(ask(1))
    assert action(port.predict(ask(2))) == 2
    port.release_adapter(release())


def test_r49_an_abandoned_model_calls_nothing_back(server):
    port = shared(server)
    port.predict(ask(1))
    server.plan(Kind.PREDICT, "silent")
    called = []
    port.submit("predict", ask(1), called.append, ())
    until(lambda: server.requests.count(Kind.PREDICT) == 2)
    port.abandon()
    until(lambda: Kind.CLOSE in server.requests)
    assert called == []


def test_r49_an_abandoned_model_opens_no_session_for_a_request_that_comes_after(server):
    port = shared(server)
    port.predict(ask(1))
    port.abandon()
    answers = []
    port.submit("predict", ask(1), answers.append, ())
    assert len(answers) == 1
    answer = answers[0]  # refused at once: nobody is asked
    assert isinstance(answer, EndpointFault)
    assert (answer.outcome, port._session.generation) == ("not_done", 1)
    port.submit("reset_adapter", ResetAdapterRequest(ask(1).context, ("e0",)), answers.append, ())
    port.submit("release_adapter", release(), answers.append, ())
    assert answers[1:] == [None, None]
    assert port._session.generation == 1


def test_r49_a_model_abandoned_while_a_request_opens_the_session_anew_opens_none(server):
    port = shared(server)
    port.predict(ask(1))
    server.plan(Kind.PREDICT, "silent")
    answers = []
    port.submit("predict", ask(1), answers.append, ())
    until(lambda: server.requests.count(Kind.PREDICT) == 2)
    server.session_id = None
    server.drop_connections()
    until(lambda: answers and port._session.is_lost)
    start_reopen, called = port._session.start_reopen, []

    def abandoned_just_then(*arguments, **options):
        port.abandon()  # another thread's, after the request has seen that the session is lost
        start_reopen(*arguments, **options)

    port._session.start_reopen = abandoned_just_then
    hellos = len(server.hellos)
    port.submit("predict", ask(1), called.append, ())
    name = f"rollmesh model {server.address}"
    until(lambda: all([one.name != name for one in threading.enumerate()]))  # the old one ends
    assert (port._session.generation, len(server.hellos)) == (1, hellos)
    assert called == []  # it was handed over before the model was abandoned
