"""One session with a served endpoint, used by one thread at a time (layer 6).

    session = ClientSession(Dialer(address, "env", options), bind)
    session.open(60.0)
    reply = session.call(Kind.STEP, request, 30.0)

A call sends a request and waits for its reply on the calling thread. When the connection drops
meanwhile, the session is resumed over a new one and the same request, under the same id, is sent
again: the server executes it once, whatever was lost on the way. A session that cannot be resumed
is lost for good (`SessionLost`) until `reopen`.

How calls end. A reply; an `EndpointFault` from the other side; `PortTimeout` at the deadline,
after which the connection is dropped, as nobody knows what the endpoint does then; `SessionLost`;
or, from another thread or a signal handler, `interrupt`. In a process that was forked the session
is lost: it is the parent's.

Transport-neutral: it knows connections and messages, no sockets, and nothing of envs or models.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Generator
from typing import Any, NoReturn, TypeAlias

from rollmesh.endpoint.clients.client_dialing import ConnectRefused, Dialer, Interrupted, Opened
from rollmesh.endpoint.clients.forking import tell_forked
from rollmesh.errors import (
    ConnectionLost,
    EndpointFault,
    PortTimeout,
    RollmeshError,
    SessionLost,
    TransportTimeout,
    WireError,
)
from rollmesh.limits import timeout_ms
from rollmesh.runtime.cancel import CancelToken
from rollmesh.transport.connection import Connection
from rollmesh.wire.messages import Cancel, Close, ErrorBody, Kind, Message, Welcome

_logger = logging.getLogger(__name__)

MARGIN_S = 0.1
"""A server answers at the deadline; this long after it a client gives up by itself."""
FAREWELL_S = 0.05
"""Longest wait for a last message to a peer that does not answer."""
LOST_CODES = frozenset({"session_lost", "unknown_session", "no_session"})
"""Errors by which a server says that it does not know the session any more."""

_BEGINNINGS = frozenset({Kind.RESET, Kind.RESOLVE, Kind.CONFIGURE})
_ERROR, _PING, _PONG = Kind.ERROR, Kind.PING, Kind.PONG
_now = time.monotonic

_Failure: TypeAlias = "ConnectionLost | TransportTimeout | WireError"
Bind: TypeAlias = Callable[[Connection, Welcome], None]
"""Tells a fresh connection the spaces of the session."""


class ClientSession:
    """A session; see the module.

    Args:
        dialer: The way to the endpoint.
        bind: Called with every new connection.

    Attributes:
        dialer: The way to the endpoint.
        bind: Called with every new connection.
        generation: Counts the sessions opened here: what was done in an earlier one is gone.
    """

    def __init__(self, dialer: Dialer, bind: Bind) -> None:
        self.dialer = dialer
        self.bind = bind
        self._next_id = itertools.count(1).__next__
        self._connection: Connection | None = None
        self._session_id = ""
        self._welcome: Welcome | None = None
        self._fresh: Opened | None = None
        self._lost: str | None = None
        self._closed = False
        self._interrupted = False
        self._left = False
        self.generation = 0
        tell_forked(self)

    @property
    def is_lost(self) -> bool:
        """Whether the session is gone for good, so that only `reopen` helps."""
        return self._lost is not None

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    # ------------------------------------------------------------------------------ opening

    def open(self, timeout_s: float | None) -> Welcome:
        """Connect and return the server's welcome.

        Raises:
            EndpointFault: Nobody answered in time, or the server refused.
        """
        try:
            opened = self.dialer.open("", timeout_s)
        except Interrupted:
            raise self._was_interrupted() from None
        self._adopt(opened)
        return opened.welcome

    def reopen(self, timeout_s: float | None) -> None:
        """Leave the session, if there is one, and open another.

        Raises:
            EndpointFault: As `open`.
        """
        fresh = self._fresh
        if fresh is not None and fresh.connection.is_open:
            self._fresh = None
            self._adopt(fresh)  # the server has given us a new session already
            return
        self.drop()
        self.open(timeout_s)

    def _adopt(self, opened: Opened) -> None:
        self._bind_to(opened)
        self._connection = opened.connection
        self._welcome = opened.welcome
        self.generation += 1
        self._session_id = opened.welcome.session_id
        self._lost = None
        self._closed = False
        self._drop_if_left()

    def _bind_to(self, opened: Opened) -> None:
        try:
            self.bind(opened.connection, opened.welcome)
        except BaseException:
            opened.connection.close()
            raise

    def hand_over(self) -> Opened | None:
        """Give connection and session away, to a `SharedSession`; None if there is none."""
        connection, self._connection = self._connection, None
        welcome, self._welcome = self._welcome, None
        if connection is None or welcome is None:
            return None
        self._closed = True
        return Opened(connection=connection, welcome=welcome)

    # -------------------------------------------------------------------------------- calls

    def call(self, kind: Kind, body: Any, timeout_s: float | None) -> Message:
        """Do an operation and return the message of its reply.

        Args:
            kind: What to do.
            body: The request.
            timeout_s: How long it may take, in seconds; None is no limit.

        Raises:
            EndpointFault: It failed on the other side, was interrupted, or cannot be sent.
            PortTimeout: It did not come back in time.
            SessionLost: The session is gone; nobody knows whether it was done.
        """
        request = Message(kind, self._next_id(), body)
        connection = self._connection
        expiry = None if timeout_s is None else _now() + timeout_s
        try:
            if connection is None:
                reply = self._recover(request, expiry, timeout_s, None)
            elif expiry is None:
                connection.send(request)
                reply = connection.receive()
                while reply.request_id != request.request_id or reply.kind is _PING:
                    answer_other(connection, reply)
                    reply = connection.receive()
            else:
                connection.send(request, timeout_s)
                reply = connection.receive(max(0.0, expiry - _now()))
                while reply.request_id != request.request_id or reply.kind is _PING:
                    answer_other(connection, reply)
                    reply = connection.receive(max(0.0, expiry - _now()))
        except (ConnectionLost, TransportTimeout, WireError) as error:
            reply = self._recover(request, expiry, timeout_s, error)
        if reply.kind is _ERROR:
            self._raise(reply.body)
        return reply

    def interrupt(self) -> None:
        """End the call under way at once. Any thread may, a signal handler too."""
        self._interrupted = True
        self.dialer.interrupt()
        connection = self._connection
        if connection is not None:
            connection.shutdown("interrupted")

    @contextlib.contextmanager
    def heeding(self, cancel: CancelToken | None) -> Generator[None, None, None]:
        """Let a cancel interrupt what is done meanwhile."""
        if cancel is None:
            yield
            return
        unsubscribe = cancel.subscribe(self.interrupt)
        try:
            yield
        finally:
            unsubscribe()

    def forget_interrupt(self) -> None:
        """Forget an interrupt that nothing was there for; before a session is used again."""
        self._interrupted = False
        self.dialer.forget_interrupt()

    def close(self, reason: str, timeout_s: float | None) -> None:
        """End the session on the server and let go of the connection; again does nothing.

        Raises:
            EndpointFault: Ending it failed on the other side.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._lost is not None or not self._session_id:
                return
            if self._interrupted or self._connection is None:
                # what was interrupted may still run there: do not wait for it
                timeout_s = _INTERRUPTED_CLOSE_S if timeout_s is None else timeout_s
                timeout_s = min(timeout_s, _INTERRUPTED_CLOSE_S)
                self.forget_interrupt()
            body = Close(reason=reason, timeout_ms=timeout_ms(timeout_s))
            try:
                self.call(Kind.CLOSE, body, timeout_s)
            except SessionLost:
                pass  # then it is over already
            except PortTimeout as late:
                if isinstance(late.__cause__, TransportTimeout):
                    raise  # the server is there, and does not answer
        finally:
            self._drop_fresh()
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def leave(self) -> None:
        """Let go of the session for good, whatever its thread does with it. Any thread may."""
        if self._closed and self._connection is None:
            return
        self._left = True
        self.dialer.interrupt()
        self.drop()

    def _drop_if_left(self) -> None:
        """Let go of a connection that came after `leave`."""
        if self._left:
            self.drop()
            raise self._session_lost("it was left")

    def drop(self, request_id: int = 0) -> None:
        """Leave the session without waiting: the server is told, if it listens at all."""
        connection, self._connection = self._connection, None
        self._lost = self._lost or "it was left"
        if connection is not None:
            say_farewell(connection, request_id, self._next_id())
        self._drop_fresh()

    def forked(self) -> None:
        """Leave the session to the parent process: there is none here until `reopen`."""
        connection, self._connection = self._connection, None
        fresh, self._fresh = self._fresh, None
        self._lost = self._lost or "it is that of the process from which this one was forked"
        for one in (connection, fresh and fresh.connection):
            if one is not None:
                one.forsake()

    def _drop_fresh(self) -> None:
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            say_farewell(fresh.connection, 0, self._next_id())

    # ----------------------------------------------------------------------- when it breaks

    def _recover(
        self,
        request: Message,
        expiry: float | None,
        timeout_s: float | None,
        error: _Failure | None,
    ) -> Message:
        """Resume the session and send the request again, until the time or the grace is over."""
        while True:
            if isinstance(error, TransportTimeout):
                self._late(request, timeout_s, error)
            connection = self._connection
            if isinstance(error, WireError) and not self._interrupted:
                self._garbled(request, error)
            self._connection = None
            if connection is not None:
                connection.close()
            if self._interrupted:
                self.forget_interrupt()
                raise self._was_interrupted() from error
            if self._lost is not None:
                raise self._session_lost(self._lost) from error
            if self._closed and request.kind is not Kind.CLOSE:
                raise EndpointFault(
                    f"the session with {self.dialer.address} is closed", outcome="not_done"
                )
            connection = self._resume(request, expiry, error)
            try:
                return connection.call(request, None if expiry is None else _left(expiry))
            except (ConnectionLost, TransportTimeout, WireError) as other:
                error = other

    def _resume(self, request: Message, expiry: float | None, error: _Failure | None) -> Connection:
        """Return a new connection of the same session, or of a new one where that is as good."""
        reason = "" if error is None else f" ({error})"
        _logger.warning("resuming address=%s error=%s", self.dialer.address, error)
        begun = _now()
        opened = self._dial_again(expiry, reason)
        if not (opened.welcome.is_resumed or begins_anew(request)):
            self._fresh = opened
            raise self._lose(
                "the server has no such session any more: it was started again, or we were away, "
                f"or idle while others waited, for too long{reason}"
            ) from error
        try:
            if opened.welcome.is_resumed:
                self._bind_to(opened)
                self._connection = opened.connection
                self._drop_if_left()
            else:
                self._adopt(opened)
        except EndpointFault as failure:
            raise self._lose(f"{failure.detail}{reason}") from failure
        _logger.warning(
            "resumed address=%s seconds=%.3f session_id=%s",
            self.dialer.address,
            _now() - begun,
            self._session_id,
        )
        return opened.connection

    def _dial_again(self, expiry: float | None, reason: str) -> Opened:
        """Open a connection for the session, until the grace or the request's time is over."""
        limit_s = self.dialer.options.resume_grace_s
        is_capped = False
        if expiry is not None:
            left_s = _left(expiry)
            is_capped = limit_s is None or left_s < limit_s
            limit_s = left_s if is_capped else limit_s
        try:
            return self.dialer.open(self._session_id, limit_s)
        except Interrupted:
            self.forget_interrupt()
            raise self._was_interrupted() from None
        except EndpointFault as failure:
            if isinstance(failure, ConnectRefused) or not is_capped:
                raise self._lose(f"{failure.detail}{reason}") from failure
            self._lost = f"it did not come back before a deadline{reason}"
            raise PortTimeout(
                f"the connection to {self.dialer.address} dropped{reason}, and was not back at the "
                f"deadline: {failure.detail}"
            ) from failure

    def _late(self, request: Message, timeout_s: float | None, error: TransportTimeout) -> NoReturn:
        """Drop a connection whose reply is late: the endpoint is in an unknown state."""
        self.drop(request.request_id)
        limit_s = 0.0 if timeout_s is None else timeout_s
        if request.kind is Kind.RESOLVE:
            cure = (
                "a model that is at work for another client, as in a first call that compiles, "
                "takes nobody in meanwhile: raise limits.model_connect_s."
            )
        else:
            cure = "is the server stopped or overloaded, or its machine away?"
        raise PortTimeout(
            f"{request.kind.name} got no answer from {self.dialer.address} within {limit_s:g} s; "
            f"{cure} The session was left"
        ) from error

    def _garbled(self, request: Message, error: WireError) -> NoReturn:
        """Tell a request that has no form on the wire from a reply that is no message."""
        connection = self._connection
        if connection is not None and connection.is_open:
            raise EndpointFault(
                f"{request.kind.name} cannot be sent to {self.dialer.address}: {error}",
                error_class=type(error).__name__,
                outcome="not_done",
                is_recoverable=True,
            ) from error
        self.drop()
        raise self._lose(f"the server sent what is no message: {error}") from error

    def _raise(self, body: ErrorBody) -> NoReturn:
        if body.code in LOST_CODES:
            raise self._lose(body.message or "the server does not know it any more")
        if body.code == "timeout":
            self.drop()  # the endpoint is still at it, or hangs: nothing more can be asked of it
        raise fault_of(body, str(self.dialer.address))

    def _lose(self, detail: str) -> SessionLost:
        """Take note that the session is gone, and return the error that says so."""
        self._lost = detail
        return self._session_lost(detail)

    def _session_lost(self, detail: str) -> SessionLost:
        return SessionLost(f"the session with {self.dialer.address} is lost: {detail}")

    def _was_interrupted(self) -> EndpointFault:
        return EndpointFault(
            f"the call to {self.dialer.address} was interrupted", error_class="Interrupted"
        )


_INTERRUPTED_CLOSE_S = 1.0


def begins_anew(request: Message) -> bool:
    """Tell whether a request means the same in a new session: it needs nothing from before."""
    return request.kind in _BEGINNINGS


def _left(expiry: float) -> float:
    return max(0.0, expiry - _now())


def deadline_s(limit_ms: int) -> float | None:
    """Return how long a client waits for the reply of a request with this limit."""
    return limit_ms * 0.001 + MARGIN_S if limit_ms else None


def answer_other(connection: Connection, message: Message) -> None:
    """Handle a message that is not the reply one waits for: a ping, or a reply that is too late."""
    if message.lease is not None:
        message.lease.release()
    if message.kind is _PING:
        connection.send(Message(_PONG, message.request_id))
    else:
        _logger.debug(
            "message_dropped kind=%s request_id=%d", message.kind.name, message.request_id
        )


def say_farewell(connection: Connection, request_id: int, close_id: int) -> None:
    """Tell a server that nobody waits any more, and close; never raises, hardly waits."""
    try:
        with contextlib.suppress(RollmeshError):
            if request_id:
                connection.send(Message(Kind.CANCEL, request_id, Cancel(reason="late")), FAREWELL_S)
            connection.send(Message(Kind.CLOSE, close_id, Close(reason="left")), FAREWELL_S)
    finally:
        connection.close()


def fault_of(body: ErrorBody, address: str) -> EndpointFault:
    """Return what an error of the other side is here."""
    detail = f"{body.message or body.code} (served at {address}"
    if body.error_id:
        detail += f"; its log has the traceback under error id {body.error_id}"
    detail += ")"
    make = PortTimeout if body.code == "timeout" else EndpointFault
    return make(
        detail,
        error_class=body.error_class or body.code,
        traceback_text=body.traceback_text,
        env_index=body.env_index,
        is_recoverable=body.is_recoverable,
        outcome=body.outcome,
    )
