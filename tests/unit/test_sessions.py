"""Sessions without a server: what is done once, who answers, how they end."""

from __future__ import annotations

import pytest

from rollmesh.endpoint.error_bodies import Refused, error_body
from rollmesh.endpoint.servers.env_session import EnvSession
from rollmesh.endpoint.servers.responding import responder
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.endpoint.servers.sessions import Arrival, LeftBehind, SessionOver, Terms
from rollmesh.endpoint.servers.watchdog import Watchdog, now_ns
from rollmesh.errors import EndpointFault, TransportTimeout, WireError
from rollmesh.ports import StepReply, StepRequest
from rollmesh.transport.memory import memory_pair
from rollmesh.transport.security import Peer
from rollmesh.wire.messages import Cancel, Close, Done, ErrorBody, Kind, Message, Probe, Shutdown


class Place:
    """Stands for the place of a session."""

    can_kill = False

    def __init__(self, port):
        self.port = port
        self.hung = []
        self.wants_new = False

    def call_of(self, method, request):
        return getattr(self.port, method), request

    def hang(self, session):
        self.hung.append(session)


class Port:
    """An env port that counts its steps."""

    def __init__(self):
        self.steps = 0
        self.during = None

    def step(self, request):
        self.steps += 1
        if self.during is not None:
            self.during()
        return StepReply(observation=[], rewards=(1.0,), infos=({},))


class Rig:
    """A session over one end of a memory connection."""

    def __init__(self, peer=Peer.SAME_USER, **options):
        self.shutdowns = []
        ours, self.theirs = memory_pair()
        terms = Terms(
            options=ServerOptions(**options),
            watchdog=Watchdog("test"),
            ask_shutdown=self.shutdowns.append,
        )
        arrival = Arrival(connection=ours, request_id=1, peer=peer)
        self.session = EnvSession(arrival, terms, num_envs=1)
        self.port = Port()
        self.place = Place(self.port)
        self.session._place = self.place
        self.session._use(self.port)
        self.session._unreset.clear()
        self.replies = []

    def handle(self, kind, request_id, body=None, respond=None):
        self.session.handle(Message(kind, request_id, body), respond or self.replies.append)
        return self.replies[-1] if self.replies else None

    def step(self, request_id, timeout_ms=0, respond=None):
        request = StepRequest(action=[], episode_ids=("e",), timeout_ms=timeout_ms)
        return self.handle(Kind.STEP, request_id, request, respond)


def test_a_request_is_carried_out_once_per_id():
    rig = Rig()
    first = rig.step(5)
    assert rig.step(5) is first
    assert rig.port.steps == 1
    rig.step(6)
    assert rig.port.steps == 2


@pytest.mark.parametrize("moment", ["before", "after"])
def test_p2_a_request_that_comes_again_while_it_is_answered_is_not_carried_out_again(moment):
    rig = Rig()
    again = []

    class Flights(dict):
        """Has the request come again just when its flight is taken out."""

        def pop(self, request_id, default=None):
            if moment == "before":
                rig.step(1, respond=again.append)
            flight = super().pop(request_id, default)
            if moment == "after":
                rig.step(1, respond=again.append)
            return flight

    rig.session.flights = Flights()
    rig.step(1)
    assert rig.port.steps == 1
    assert {reply.request_id for reply in (*rig.replies, *again)} == {1}
    assert again


def test_the_reply_carries_the_time_at_the_endpoint():
    rig = Rig()
    assert rig.step(5).body.endpoint_total_ns > 0
    assert rig.session.flights == {}
    assert rig.session.is_idle


def test_a_request_that_expires_meanwhile_is_answered_by_the_watchdog_only():
    rig = Rig()
    session = rig.session
    rig.port.during = lambda: session.check(now_ns() + 10**9)
    with pytest.raises(LeftBehind):
        rig.step(5, timeout_ms=10)
    assert rig.replies == []
    late = session.cache.get(5)
    assert late.body.code == "timeout"
    assert "0.01 s" in late.body.message
    assert rig.place.hung == [session]
    rig.port.during = None
    assert rig.step(6).body.code == "not_ready"
    assert rig.port.steps == 1
    rig.theirs.close()


def test_the_next_look_is_no_later_than_the_next_deadline():
    rig = Rig()
    session = rig.session
    looks = []
    at = now_ns()
    rig.port.during = lambda: looks.append(session.check(at))
    rig.step(5, timeout_ms=200)
    assert at < looks[0] <= at + 200_000_000
    assert session.check(at) <= at + 200_000_000


def test_a_reply_that_cannot_be_sent_becomes_an_error():
    rig = Rig()
    sent = []

    def respond(message):
        if message.kind is Kind.STEP:
            raise WireError("no form on the wire")
        sent.append(message)

    rig.step(5, respond=respond)
    assert "no form on the wire" in sent[0].body.message
    assert rig.session.cache.get(5) is sent[0]


def test_a_lost_connection_keeps_the_reply():
    rig = Rig()

    def respond(message):
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        rig.step(5, respond=respond)
    assert rig.step(5).body.rewards == (1.0,)
    assert rig.port.steps == 1


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.PONG, Kind.PREDICT, Kind.WELCOME])
def test_what_is_no_request_to_an_env_is_refused(kind):
    assert Rig().handle(kind, 5).body.code == "invalid_request"


def test_request_id_0_is_refused():
    rig = Rig()
    assert rig.handle(Kind.CONFIGURE, 0).body.code == "invalid_request"


def test_a_reply_is_no_request():
    rig = Rig()
    reply = StepReply(observation=[], rewards=(), infos=())
    assert rig.handle(Kind.STEP, 5, reply).body.code == "invalid_request"
    assert rig.port.steps == 0


def test_ping_and_probe():
    rig = Rig()
    assert rig.handle(Kind.PING, 5).kind is Kind.PONG
    assert rig.handle(Kind.PROBE, 6, Probe(b"abc")).body.payload == b"abc"


def test_close_is_answered_and_ends_the_session():
    rig = Rig()
    with pytest.raises(SessionOver, match="because"):
        rig.handle(Kind.CLOSE, 5, Close(reason="because", close_env=True))
    assert isinstance(rig.replies[0].body, Done)
    assert rig.place.wants_new
    assert rig.session.is_ended


@pytest.mark.parametrize("allowed", [True, False])
def test_shutdown_only_where_allowed(allowed):
    rig = Rig(allow_remote_shutdown=allowed)
    assert rig.handle(Kind.SHUTDOWN, 5, Shutdown(reason="x")).body.is_accepted is allowed
    assert bool(rig.shutdowns) is allowed


def test_a_cancel_of_a_request_that_was_answered_is_answered_by_nothing():
    rig = Rig()
    rig.step(5)
    rig.handle(Kind.CANCEL, 5, Cancel(reason="late"))
    assert [reply.kind for reply in rig.replies] == [Kind.STEP]
    assert rig.step(5) is rig.replies[0]


# -------------------------------------------------------------------------------- whose turn


def busy(connection, monkeypatch, times):
    """Let others be sending the first few times that somebody wants to; return the limits asked."""
    send, limits = connection.send, []

    def send_in_turn(message, timeout_s=None):
        limits.append(timeout_s)
        if len(limits) <= times:
            raise TransportTimeout("there", "others send", timeout_s=0.1, is_usable=True)
        return send(message, timeout_s)

    monkeypatch.setattr(connection, "send", send_in_turn)
    return limits


def test_a_reply_waits_for_its_turn_however_long_others_send(monkeypatch):
    rig = Rig()
    limits = busy(rig.theirs, monkeypatch, 3)
    responder(rig.theirs, 2.0)(Message(Kind.PONG, 7))
    assert limits == [2.0] * 4
    assert rig.session.arrival.connection.receive(1.0).request_id == 7


def test_a_reply_that_a_client_does_not_take_is_not_tried_again():
    class Stuck:
        def send(self, message, timeout_s):
            raise TransportTimeout("there", "did not take it", timeout_s=0.1, is_usable=False)

    with pytest.raises(TransportTimeout):
        responder(Stuck(), 2.0)(Message(Kind.PONG, 7))


def test_p1_late_news_that_find_others_sending_are_told_soon_after(monkeypatch):
    rig = Rig()
    limits = busy(rig.session.arrival.connection, monkeypatch, 2)
    at = now_ns()
    request = Message(Kind.STEP, 5, StepRequest(action=[], episode_ids=("e",)))
    rig.session.begin(request, rig.replies.append, 10)
    soon = rig.session.check(at + 10**9)
    assert at < soon - 10**9 <= at + 300_000_000
    rig.session.check(soon)
    assert rig.session.check(soon + 10**9) > soon + 10**9
    assert len(limits) == 3
    assert max(limits) <= 0.02
    assert rig.theirs.receive(1.0).body.code == "timeout"
    rig.session.check(soon + 2 * 10**9)
    assert len(limits) == 3


# ----------------------------------------------------------------------------- connections


def test_attach_replaces_a_connection_and_end_closes_it():
    rig = Rig()
    session = rig.session
    first = session.next_connection()
    ours, _ = memory_pair()
    assert session.attach(ours, Peer.STRANGER)
    assert not first.is_open
    session.detach(first)
    assert session.next_connection() is ours
    assert not session.is_trusted
    session.end("enough")
    assert not ours.is_open
    assert session.next_connection() is None
    assert not session.attach(memory_pair()[0], Peer.STRANGER)
    session.let_go()


def test_a_session_that_did_something_waits_for_its_client():
    rig = Rig(resume_grace_s=0.01)
    session = rig.session
    connection = session.next_connection()
    rig.step(5)
    session.detach(connection)
    assert session.detached_ns
    assert session.next_connection() is None
    assert session.end_reason == "its client did not come back"


# ---------------------------------------------------------------------------------- errors


def test_a_peer_of_the_same_user_sees_tracebacks_others_an_id(caplog):
    fault = EndpointFault("stuck\nand more", error_class="ValueError", traceback_text="Tr…")
    trusted = error_body(fault, where="env.step", is_trusted=True)
    assert (trusted.message, trusted.traceback_text, trusted.error_id) == (
        "stuck\nand more",
        "Tr…",
        "",
    )
    other = error_body(fault, where="env.step", is_trusted=False)
    assert (other.message, other.traceback_text) == ("stuck", "")
    assert other.error_id in caplog.text
    assert "and more" in caplog.text


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (Refused("busy", "later"), "busy"),
        (ValueError("x"), "internal"),
        (KeyboardInterrupt(), "internal"),
        (EndpointFault("x", error_class="EnvProcessDied"), "crashed"),
    ],
)
def test_every_failure_has_a_code(raised, code):
    body = error_body(raised, where="env.step", is_trusted=True)
    assert isinstance(body, ErrorBody)
    assert body.code == code
