"""What is said at a server's door: who is refused, in which order, and who comes in."""

from __future__ import annotations

import pytest

from rollmesh.endpoint.servers.reception import DRAINING, Reception, one_line
from rollmesh.transport.memory import MemoryConnection, memory_pair
from rollmesh.transport.security import Peer, Token
from rollmesh.wire.messages import GENERATION, ErrorBody, Hello, Kind, Message

LIMIT_S = 10.0
SECRET = "0123456789abcdef" * 2


def hello(**given):
    return Hello(**{"generation": GENERATION, "service": "env", "token": SECRET, **given})


class Desk:
    """A reception that notes who came in."""

    def __init__(self, *, draining=False, refused=None):
        self.came = []
        self.refused = refused
        self.reception = Reception(
            "env", Token(SECRET), is_draining=lambda: draining, enter=self.enter
        )

    def enter(self, arrival, said):
        self.came.append((arrival, said))
        return self.refused


def greeted(desk, message):
    """Return what a client hears that says this, or None where it came in."""
    ours, theirs = memory_pair()
    with ours, theirs:
        theirs.send(message)
        desk.reception.greet(ours, Peer.SAME_USER)
        if ours.is_open:
            return None
        return theirs.receive(LIMIT_S)


@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        ({"token": "", "generation": "other", "service": "model"}, "unauthenticated", "token"),
        ({"generation": "other", "service": "model"}, "incompatible", "generation"),
        ({"service": "model"}, "incompatible", "serves an env, the client wants a model"),
    ],
)
def test_the_token_comes_first_then_generation_and_service(said, code, text):
    body = Desk(draining=True).reception.check(hello(**said))
    assert (body.code, body.is_recoverable, body.outcome) == (code, False, "not_done")
    assert text in body.message


def test_whoever_is_right_is_told_that_the_server_ends_and_else_nothing():
    assert Desk(draining=True).reception.check(hello()) is DRAINING
    assert Desk().reception.check(hello()) is None


def test_who_was_checked_comes_in_with_a_name_for_logs():
    desk = Desk()
    said = hello(peer={"host": "a\nb", "process": "7"})
    assert greeted(desk, Message(Kind.HELLO, 5, said)) is None
    [(arrival, got)] = desk.came
    assert (got, arrival.request_id, arrival.peer) == (said, 5, Peer.SAME_USER)
    assert arrival.name.endswith("a?b:7")


def test_who_is_refused_hears_why_and_never_enters():
    desk = Desk()
    reply = greeted(desk, Message(Kind.HELLO, 5, hello(token="wrong")))
    assert (reply.kind, reply.request_id, reply.body.code) == (Kind.ERROR, 5, "unauthenticated")
    assert desk.came == []


def test_anything_but_a_hello_is_refused():
    desk = Desk()
    assert greeted(desk, Message(Kind.PING, 3)).body.code == "unauthenticated"
    assert desk.came == []


def test_who_finds_no_place_is_told_by_the_one_who_knows():
    busy = ErrorBody(code="busy", message="come back later")
    assert greeted(Desk(refused=busy), Message(Kind.HELLO, 5, hello())).body == busy


def test_a_welcome_says_who_serves_and_what_else_is_given():
    welcome = Desk().reception.welcome("s-1", position=3)
    assert (welcome.session_id, welcome.position, welcome.generation) == ("s-1", 3, GENERATION)
    assert welcome.peer["component"] == "rollmesh-env"


def test_one_line_stays_one_line():
    assert one_line("a\nb\x1b[0m") == "a?b?[0m"


@pytest.mark.parametrize(
    ("text", "processes"),
    [(None, 2), ("3", 3), ("12", 12), ("", 2), ("-3", 2), ("many", 2), ("9" * 5000, 2), ("³", 2)],
)
def test_a_connection_is_told_how_many_processes_take_turns(monkeypatch, text, processes):
    told = []
    monkeypatch.setattr(MemoryConnection, "share", lambda _, count: told.append(count))
    facts = {} if text is None else {"processes": text}
    assert greeted(Desk(), Message(Kind.HELLO, 5, hello(peer=facts))) is None
    assert told == [processes]


def test_whoever_means_another_server_is_told_so_after_the_token():
    desk = Desk()
    assert desk.reception.check(hello(peer={"server": desk.reception.id})) is None
    other = {"server": Desk().reception.id}
    assert desk.reception.check(hello(peer=other, service="model")).code == "other_server"
    assert desk.reception.check(hello(peer=other, token="")).code == "unauthenticated"
