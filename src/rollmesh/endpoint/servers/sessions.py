"""Sessions of a server: what outlives a connection (layer 6).

A session has an id, the requests under way (`flights`), the replies that may be asked for again,
and the connection it has at the moment. Transport-neutral: whatever can hand over a `Message` calls
`handle(message, respond)`; `respond` is called once per request, maybe later and from another
thread.

Deadlines. A request under way stands in `flights` until it is answered. Whoever takes it out (the
one who did the work, or the watchdog when it is late) answers it; the other one drops what it has.

This module knows no sockets, and no env or model: `env_session.py` and `model_session.py`.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from rollmesh.endpoint.error_bodies import Refused, error, error_body
from rollmesh.endpoint.servers.reply_cache import ReplyCache
from rollmesh.endpoint.servers.responding import responder
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.endpoint.servers.watchdog import Watchdog, now_ns
from rollmesh.errors import (
    ConnectionLost,
    InvalidValue,
    RollmeshError,
    TransportTimeout,
    WireError,
)
from rollmesh.ids import MINT
from rollmesh.transport.connection import Connection
from rollmesh.transport.security import Peer
from rollmesh.wire.dialect import MOST_PER_LANE
from rollmesh.wire.messages import (
    Done,
    ErrorBody,
    Kind,
    Message,
    Probe,
    ProbeReply,
    Shutdown,
    ShutdownReply,
)

_logger = logging.getLogger(__name__)

Respond: TypeAlias = Callable[[Message], object]
"""Sends a reply. What it raises about the connection is the caller's; a reply that has no form on
the wire raises `WireError`."""

NEVER_NS = 2**63
LATE_SEND_S = 0.02
"""How long the watchdog waits for a client to take the news that its request is late."""
_TELL_AGAIN_NS = 250_000_000
MOST_UNDER_WAY = 8
"""Requests that a session may have under way, or one per lane where there are more lanes."""


class SessionOver(Exception):  # noqa: N818 - never leaves a server
    """The session is closed, or its env is in no state to go on."""


@dataclass(frozen=True)
class Left:
    """What a client is told of a late request.

    Attributes:
        message: What happened.
        is_recoverable: Whether a reset is enough to go on.
    """

    message: str
    is_recoverable: bool = False


class LeftBehind(SessionOver):
    """A call came back after its deadline: others have taken over the session."""


class Flight(msgspec.Struct, gc=False):
    """A request under way.

    Attributes:
        kind: What it asks for.
        begun_ns: When it came.
        deadline_ns: When it is late.
        respond: Who gets the reply; the newest connection's.
        lanes: The lanes it is for; empty is all.
        is_unwanted: Whether nobody waits for it any more.
    """

    kind: Kind
    begun_ns: int
    deadline_ns: int
    respond: Respond
    lanes: tuple[int, ...] = ()
    is_unwanted: bool = False


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What all sessions of a server share.

    Attributes:
        options: Of the server.
        watchdog: Looks at deadlines.
        ask_shutdown: Called with a reason where a client may end the server.
    """

    options: ServerOptions
    watchdog: Watchdog
    ask_shutdown: Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A client at the door, known to be one of ours.

    Attributes:
        connection: Its connection, not yet admitted.
        request_id: Of its HELLO; every WELCOME carries it.
        peer: How close it is.
        name: What it calls itself, for logs.
    """

    connection: Connection
    request_id: int
    peer: Peer = Peer.STRANGER
    name: str = ""


class Session:
    """One client's session.

    Attributes:
        id: The session id.
        flights: Requests under way, by id.
        shortest_ns: The shortest time-out so far.
        last_ns: When the last request was answered.
        detached_ns: Since when there is no connection; 0 while there is one.
        is_broken: Whether an operation was left behind: nothing but CLOSE is carried out.
        is_ended: Whether it is over.
    """

    def __init__(self, arrival: Arrival, terms: Terms, *, under_way: int = MOST_UNDER_WAY) -> None:
        self.id = MINT.mint()
        self.terms = terms
        self.options = terms.options
        self.send_timeout_s = terms.options.send_timeout_s
        self.flights: dict[int, Flight] = {}
        self.cache = ReplyCache(under_way)
        self.under_way = under_way
        self.shortest_ns = NEVER_NS
        self.last_ns = now_ns()
        self.detached_ns = 0
        self.served = 0
        self.is_broken = False
        self.is_ended = False
        self.end_reason = ""
        self.name = arrival.name
        self.arrival = arrival
        self.is_trusted = self._trusts(arrival.peer)
        self._answers: set[int] = set()
        self._untold: list[Message] = []
        self._lock = threading.Lock()
        self._connection: Connection | None = arrival.connection
        self._arrivals: queue.SimpleQueue[Connection | None] = queue.SimpleQueue()
        self._arrivals.put(arrival.connection)
        self._operations: dict[Kind, Callable[[Message, Respond], None]] = {
            Kind.PING: self._ping,
            Kind.PROBE: self._probe,
            Kind.SHUTDOWN: self._shutdown,
            Kind.CANCEL: self._cancel,
        }

    def _trusts(self, peer: Peer) -> bool:
        """Return whether a peer may see tracebacks."""
        return self.options.expose_tracebacks or peer is Peer.SAME_USER

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way, nor an answer."""
        return not (self.flights or self._answers)

    # -------------------------------------------------------------------------- requests

    def handle(self, message: Message, respond: Respond) -> None:
        """Carry out a request and answer it, now or later.

        A request that was carried out before is answered again; one that is under way is answered
        over the newest connection.

        Raises:
            SessionOver: The session ends with this request.
            TransportError: What `respond` raised.
        """
        request_id = message.request_id
        if message.kind is not Kind.CANCEL:
            # under way first, then the cache: `finish` fills the cache before it takes it out
            flight = self.flights.get(request_id)
            if flight is not None:
                flight.respond = respond
            known = self.cache.get(request_id)
            if known is not None:
                respond(known)
                self.cache.sent(request_id)
                return
            if flight is not None:
                return
        carry_out = self._operations.get(message.kind)
        if carry_out is None or message.is_reply or not request_id:
            text = f"{message.kind.name} is no request to this end"
            respond(error(request_id, Refused("invalid_request", text).body))
            return
        try:
            carry_out(message, respond)
        except Refused as refusal:
            respond(error(request_id, refusal.body))

    def begin(
        self, message: Message, respond: Respond, timeout_ms: int, lanes: tuple[int, ...] = ()
    ) -> Flight:
        """Take note of a request under way.

        Raises:
            Refused: Too many of them are.
        """
        if len(self.flights) >= self.under_way:
            raise Refused("busy", f"at most {self.under_way} requests may be under way")
        begun_ns = now_ns()
        timeout_ns = timeout_ms * 1_000_000 if timeout_ms else NEVER_NS
        flight = Flight(message.kind, begun_ns, begun_ns + timeout_ns, respond, lanes)
        self.flights[message.request_id] = flight
        if timeout_ns < self.shortest_ns:
            self.shortest_ns = timeout_ns
            self.terms.watchdog.ring()
        return flight

    def widen(self, lanes: int) -> None:
        """Let as many requests be under way as there are lanes, if that is more than so far."""
        self.under_way = max(self.under_way, min(lanes, MOST_PER_LANE))
        self.cache.widen(self.under_way)

    def finish(self, request_id: int, body: Any) -> bool:
        """Answer a request under way; False where somebody else has, because it was late.

        Raises:
            TransportError: What its `respond` raised; the reply is kept.
        """
        answers = self._answers
        answers.add(request_id)
        try:
            flight = self.flights.get(request_id)
            if flight is None:
                return False
            at_ns = self.last_ns = now_ns()
            if type(body) is ErrorBody:
                kind = Kind.ERROR
            else:
                kind = flight.kind
                if kind in _TIMED:
                    body.endpoint_total_ns = at_ns - flight.begun_ns
            reply = Message(kind, request_id, body)
            # kept first: whoever does not find the flight any more finds the reply
            self.cache.keep(reply)
            if self.flights.pop(request_id, None) is None:
                return False
            self.served += 1
            if flight.is_unwanted:
                return True
            try:
                flight.respond(reply)
            except (WireError, InvalidValue) as exc:
                self._cannot_be_sent(reply, flight, exc)
            if not self.cache.keeps_one:
                self.cache.sent(request_id)
            return True
        finally:
            answers.discard(request_id)

    def fail(self, request_id: int, exc: BaseException, where: str) -> bool:
        """Answer a request under way with what was raised; see `finish`."""
        return self.finish(request_id, error_body(exc, where=where, is_trusted=self.is_trusted))

    def _cannot_be_sent(self, reply: Message, flight: Flight, exc: RollmeshError) -> None:
        body = error_body(exc, where=f"sending {reply.kind.name}", is_trusted=self.is_trusted)
        instead = error(reply.request_id, body)
        self.cache.keep(instead)
        flight.respond(instead)

    # ------------------------------------------------------------------------- deadlines

    def check(self, at_ns: int) -> int:
        """Answer requests that are late; see `Watched`."""
        next_ns = at_ns + self.shortest_ns
        untold, self._untold = self._untold, []
        for reply in untold:
            self._tell(reply)
        for request_id, flight in list(self.flights.items()):
            if flight.deadline_ns > at_ns:
                next_ns = min(next_ns, flight.deadline_ns)
            elif self.flights.pop(request_id, None) is not None:
                self._expire(request_id, flight, at_ns)
        return min(next_ns, at_ns + _TELL_AGAIN_NS) if self._untold else next_ns

    def _expire(self, request_id: int, flight: Flight, at_ns: int) -> None:
        limit_s = (flight.deadline_ns - flight.begun_ns) / 1e9
        _logger.warning(
            "operation_late session=%s operation=%s timeout_s=%g",
            self.id,
            flight.kind.name,
            limit_s,
        )
        told = self.left_behind(flight, limit_s)
        body = ErrorBody(
            code="timeout",
            error_class="OperationTimeout",
            message=told.message,
            is_recoverable=told.is_recoverable,
            outcome="unknown",
            env_index=flight.lanes[0] if len(flight.lanes) == 1 else None,
        )
        reply = error(request_id, body)
        self.cache.keep(reply)
        self.last_ns = at_ns
        self._tell(reply)

    def left_behind(self, flight: Flight, limit_s: float) -> Left:
        """Leave a late request behind, and return what the client is told."""
        raise NotImplementedError

    def _tell(self, reply: Message) -> None:
        """Send a reply from a thread that must not wait: soon again, where others are sending."""
        try:
            if (connection := self._connection) is not None:
                connection.send(reply, LATE_SEND_S)
        except TransportTimeout as late:
            if late.is_usable:
                self._untold.append(reply)
        except RollmeshError:
            pass  # whoever reads the connection sees that too; the reply is kept

    # ------------------------------------------------------------------------ connections

    def read_all(self) -> None:
        """Carry out requests until the session is over; on the thread that reads for it.

        Raises:
            LeftBehind: A call came back too late: this thread has nothing to do with it any more.
        """
        self.terms.watchdog.watch(self)
        try:
            while (connection := self.next_connection()) is not None:
                self._read(connection)
        except LeftBehind:
            raise
        except SessionOver as over:
            self.end(str(over))

    def _read(self, connection: Connection) -> None:
        """Carry out what comes over a connection, until it is lost."""
        receive, handle = self.receiving(connection), self.handle
        respond = responder(connection, self.send_timeout_s)
        try:
            while True:
                handle(receive(), respond)
        except (ConnectionLost, TransportTimeout) as lost:
            _logger.info("connection_lost session=%s error=%s", self.id, lost)
        except (WireError, InvalidValue) as exc:
            _logger.warning("bad_message session=%s client=%s error=%s", self.id, self.name, exc)
        self.detach(connection)

    def receiving(self, connection: Connection) -> Callable[[], Message]:
        """Return what receives the next request; called by the thread that reads."""
        return connection.receive

    def next_connection(self) -> Connection | None:
        """Return the connection to read from; waits for one as long as the grace allows.

        None where the session is over.
        """
        grace_s = self.options.resume_grace_s if self.served else 0.0
        while not self.is_ended:
            try:
                connection = self._arrivals.get(timeout=grace_s)
            except queue.Empty:
                if self._connection is None:
                    self.end("its client did not come back")
                continue
            if connection is None:
                continue
            if connection is self._connection:
                return connection
            connection.close()  # another one came before anybody read from it
        return None

    def attach(self, connection: Connection, peer: Peer) -> bool:
        """Go on over another connection; False where the session is over. Any thread may."""
        with self._lock:
            if self.is_ended or self.is_broken:
                return False
            old, self._connection = self._connection, connection
            self.detached_ns = 0
            self.is_trusted = self._trusts(peer)
            self._arrivals.put(connection)
        if old is not None:
            old.shutdown("the session goes on over another connection")
        return True

    def detach(self, connection: Connection) -> None:
        """Let go of a connection that is lost."""
        with self._lock:
            if self._connection is connection:
                self._connection = None
                self.detached_ns = now_ns()
        connection.close()

    def end(self, reason: str) -> None:
        """End the session: its connection is shut down. Any thread may, any number of times."""
        with self._lock:
            if self.is_ended:
                return
            self.is_ended = True
            self.end_reason = reason
            connection = self._connection
            self._arrivals.put(None)
        _logger.info("session_ended session=%s client=%s reason=%s", self.id, self.name, reason)
        if connection is not None:
            connection.shutdown(reason)

    def let_go(self) -> None:
        """Close whatever connections are left; once it has ended."""
        self.terms.watchdog.unwatch(self)
        self.cache.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        with contextlib.suppress(queue.Empty):
            while True:  # those that nobody has come to read from
                waiting = self._arrivals.get_nowait()
                if waiting is not None:
                    waiting.close()

    # ---------------------------------------------------------------- operations of all

    def _ping(self, message: Message, respond: Respond) -> None:
        respond(Message(Kind.PONG, message.request_id))

    def _probe(self, message: Message, respond: Respond) -> None:
        probe: Probe = message.body
        respond(Message(Kind.PROBE, message.request_id, ProbeReply(probe.payload)))

    def _shutdown(self, message: Message, respond: Respond) -> None:
        shutdown: Shutdown = message.body
        allowed = self.options.allow_remote_shutdown
        detail = "" if allowed else "remote shutdown is disabled for this server"
        reply = ShutdownReply(is_accepted=allowed, detail=detail)
        respond(Message(Kind.SHUTDOWN, message.request_id, reply))
        if allowed:
            self.terms.ask_shutdown(f"asked to by a client: {shutdown.reason[:200]}")

    def _cancel(self, message: Message, respond: Respond) -> None:
        del respond
        flight = self.flights.get(message.request_id)
        if flight is not None:
            flight.is_unwanted = True

    def done(self, message: Message, respond: Respond) -> None:
        """Answer a request that returns nothing."""
        reply = Message(message.kind, message.request_id, Done())
        self.cache.keep(reply)
        respond(reply)


_TIMED = frozenset([Kind.RESET, Kind.STEP, Kind.PREDICT])
