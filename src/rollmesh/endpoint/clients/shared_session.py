"""One session with a served endpoint, used by many callers at once (layer 6).

A thread receives and calls back; whoever asks only sends, and waits for nobody: what a server does
not take at once is sent by a thread that is there for as long as something is left. For env lanes
that go their own ways, and for models that several groups share. Resuming is that of
`client_session.py`: after a drop, what was not answered is sent again under its own id.

Deadlines are the caller's: it forgets (`forget`) what it does not wait for any more.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any

from rollmesh.endpoint.clients.client_dialing import Dialer, Interrupted, Opened
from rollmesh.endpoint.clients.client_session import (
    LOST_CODES,
    Bind,
    ClientSession,
    answer_other,
    begins_anew,
    deadline_s,
    fault_of,
    say_farewell,
)
from rollmesh.errors import (
    EndpointFault,
    PortTimeout,
    RollmeshError,
    SessionLost,
    TransportError,
    TransportTimeout,
    WireError,
)
from rollmesh.limits import timeout_ms
from rollmesh.ports import Callback
from rollmesh.transport.connection import Connection
from rollmesh.wire.messages import Cancel, Close, ErrorBody, Kind, Message, Welcome

_logger = logging.getLogger(__name__)

_SEND_S = 30.0
"""A peer that takes nothing for so long counts as gone."""


class SharedSession:
    """A session; see the module.

    Args:
        dialer: The way to the endpoint.
        bind: Called with every new connection.

    Attributes:
        dialer: The way to the endpoint.
        generation: Counts the sessions opened here.
    """

    def __init__(self, dialer: Dialer, bind: Bind) -> None:
        self.dialer = dialer
        self._bind = bind
        self._next_id = itertools.count(1).__next__
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[Message, Callback]] = {}
        self._waiting: list[Callback] = []
        self._connection: Connection | None = None
        self._session_id = ""
        self._lost: str | None = "it is not open"
        self._closed = False
        self._left = False
        self._drops = 0
        self.generation = 0

    @property
    def is_lost(self) -> bool:
        """Whether the session is gone for good, so that only `start_reopen` helps."""
        return self._lost is not None

    # ------------------------------------------------------------------------------ opening

    def open(self, timeout_s: float | None) -> Welcome:
        """Connect, start the thread, and return the server's welcome.

        Raises:
            EndpointFault: Nobody answered in time, or the server refused.
        """
        opened = self._open(timeout_s)
        self._start(lambda: self._run(opened.connection))
        return opened.welcome

    @classmethod
    def taking_over(cls, session: ClientSession) -> SharedSession:
        """Return a shared session that goes on with the one of a client."""
        shared = cls(session.dialer, session.bind)
        opened = session.hand_over()
        if opened is not None:
            shared._adopt(opened)
            shared._start(lambda: shared._run(opened.connection))
        return shared

    def start_reopen(
        self, timeout_s: float | None, callback: Callback, *, after_drop: bool = True
    ) -> None:
        """Open another session after a loss; `callback` gets None or the exception.

        Args:
            timeout_s: How long that may take.
            callback: Gets None or the exception.
            after_drop: Whether to do so where the session was left (`drop`) too; where not, it
                stays left, whoever was first.
        """
        is_first = False
        with self._lock:
            is_open = self._lost is None
            is_refused = self._left and not after_drop
            if not (is_open or is_refused):
                is_first = not self._waiting
                if self._left:
                    self._left = False
                    self.dialer.forget_interrupt()
                self._waiting.append(callback)
        if is_refused:
            callback(self._closed_fault())
        elif is_open:
            callback(None)
        elif is_first:
            self._start(lambda: self._reopen(timeout_s))

    def _reopen(self, timeout_s: float | None) -> None:
        result: BaseException | None = None
        connection = None
        try:
            connection = self._open(timeout_s).connection
        except BaseException as error:  # noqa: BLE001 - given to the callbacks
            result = error
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback(result)
        if connection is not None:
            self._run(connection)

    def _open(self, timeout_s: float | None) -> Opened:
        try:
            opened = self.dialer.open("", timeout_s)
            self._bind_to(opened)
            self._adopt(opened)
        except Interrupted:
            raise self._closed_fault() from None
        return opened

    def _adopt(
        self, opened: Opened, *, is_new: bool = True, drops: int | None = None
    ) -> list[Message]:
        """Go on with a connection; return the requests that wait for an answer.

        Args:
            opened: The connection.
            is_new: Whether it has another session.
            drops: How often the session had been left when connecting began; None where it may
                have been left and opened again since.

        Raises:
            Interrupted: The session was left meanwhile; the connection is closed.
        """
        with self._lock:
            is_left = self._left or drops not in (None, self._drops)
            if not is_left:
                self._connection = opened.connection
                if is_new:
                    self.generation += 1
                    self._session_id = opened.welcome.session_id
                    self._lost = None
                    self._closed = False
            requests = [self._pending[request_id][0] for request_id in sorted(self._pending)]
        if is_left:
            say_farewell(opened.connection, 0, self._next_id())
            raise Interrupted
        return requests

    def _bind_to(self, opened: Opened) -> None:
        try:
            self._bind(opened.connection, opened.welcome)
        except BaseException:
            opened.connection.close()
            raise

    def _start(self, run: Callable[[], None]) -> None:
        name = f"rollmesh {self.dialer.service} {self.dialer.address}"
        threading.Thread(target=run, name=name, daemon=True).start()

    # -------------------------------------------------------------------------------- calls

    def submit(self, kind: Kind, body: Any, callback: Callback) -> int:
        """Send a request and return its id; `callback` gets the reply's message or an exception."""
        request = Message(kind, self._next_id(), body)
        with self._lock:
            lost, connection = self._lost, self._connection
            if lost is None:
                self._pending[request.request_id] = (request, callback)
        if lost is not None:
            callback(self._session_lost(lost))
        elif connection is not None:  # else the thread sends it once the session is resumed
            self._send(connection, request)
        return request.request_id

    def forget(self, request_ids: Iterable[int]) -> None:
        """Wait no longer for these requests: their callbacks are not called any more."""
        connection = self._connection
        for request_id in request_ids:
            with self._lock:
                is_under_way = self._pending.pop(request_id, None) is not None
            if is_under_way and connection is not None:
                with contextlib.suppress(RollmeshError):
                    self._post(connection, Message(Kind.CANCEL, request_id, Cancel(reason="late")))

    def start_close(self, reason: str, timeout_s: float | None, callback: Callback) -> None:
        """End the session; `callback` gets None, or what ending it raised on the other side."""

        def ended(result: Any) -> None:
            self._closed = True
            connection = self._connection
            if connection is not None:
                connection.shutdown("closed here")  # the thread lets go of it
            is_fault = isinstance(result, EndpointFault) and not isinstance(result, SessionLost)
            callback(result if is_fault else None)

        if self._lost is not None or self._closed:
            ended(None)
            return
        close = Close(reason=reason, timeout_ms=timeout_ms(timeout_s))
        self.submit(Kind.CLOSE, close, ended)

    def drop(self) -> None:
        """Leave the session without waiting; nothing is called back any more."""
        with self._lock:
            self._closed = self._left = True
            self._drops += 1
            self._lost = self._lost or "it was left"
            self._pending.clear()
            connection, self._connection = self._connection, None
        self.dialer.interrupt()
        if connection is not None:
            say_farewell(connection, 0, self._next_id())

    def _send(self, connection: Connection, request: Message) -> None:
        try:
            self._post(connection, request)
        except WireError as error:
            pending = self._take_out(request.request_id)
            if pending is not None:
                pending(
                    EndpointFault(
                        f"{request.kind.name} cannot be sent to {self.dialer.address}: {error}",
                        error_class=type(error).__name__,
                        outcome="not_done",
                        is_recoverable=True,
                    )
                )
        except (TransportError, TransportTimeout):
            connection.shutdown()  # the thread resumes, and sends it again

    def _post(self, connection: Connection, message: Message) -> None:
        """Send what the server takes at once, and have a thread send the rest."""
        if connection.post(message):
            return
        try:
            self._start(lambda: self._flush(connection))
        except BaseException:  # nobody is there to send it: the thread that receives resumes
            connection.shutdown("interrupted while sending")
            raise

    def _flush(self, connection: Connection) -> None:
        try:
            connection.flush(_SEND_S)
        except (TransportError, TransportTimeout) as error:
            connection.shutdown(str(error))  # the thread that receives resumes

    def _take_out(self, request_id: int) -> Callback | None:
        with self._lock:
            pending = self._pending.pop(request_id, None)
        return None if pending is None else pending[1]

    # --------------------------------------------------------------------------- the thread

    def _run(self, begun: Connection) -> None:
        """Receive from a connection, and from those that take its place."""
        connection: Connection | None = begun
        while connection is not None:
            try:
                message = connection.receive()
                callback = None
                if message.kind is not Kind.PING:
                    callback = self._take_out(message.request_id)
                if callback is None:
                    self._answer_other(connection, message)
                    continue
            except Exception as error:  # whatever it is, somebody waits for a reply
                if not isinstance(error, (TransportError, TransportTimeout, WireError)):
                    _logger.exception("receive_failed address=%s", self.dialer.address)
                connection.close()
                connection = self._resumed(connection, error)
                continue
            callback(self._result(message))
            del message, callback  # what came is the caller's alone while we wait

    def _answer_other(self, connection: Connection, message: Message) -> None:
        if message.kind is Kind.PING:
            self._post(connection, Message(Kind.PONG, message.request_id))
        else:
            answer_other(connection, message)

    def _result(self, message: Message) -> Any:
        body = message.body
        if message.kind is not Kind.ERROR or not isinstance(body, ErrorBody):
            return message
        if body.code in LOST_CODES:
            return self._session_lost(body.message)
        return fault_of(body, str(self.dialer.address))

    def _resumed(self, connection: Connection, error: Exception) -> Connection | None:
        """Return a new connection of the same session; None where there is none any more.

        A connection that is not the session's any more was left, and maybe another session opened
        since: that one is nothing to who hears of it late.
        """
        with self._lock:
            if self._connection is not connection:
                return None
            self._connection, drops = None, self._drops
            pending = self._end("it was closed") if self._closed else []
            is_over = self._closed
        if not is_over:
            _logger.warning("resuming address=%s error=%s", self.dialer.address, error)
            try:
                return self._resume(drops)
            except Interrupted:
                reason = "it was left"
            except EndpointFault as failure:
                reason = f"{failure.detail} ({error})"
            with self._lock:
                if drops == self._drops:
                    pending = self._end(reason)
        for callback in pending:
            callback(self._session_lost(self._lost or ""))
        return None

    def _resume(self, drops: int) -> Connection:
        opened = self.dialer.open(self._session_id, self.dialer.options.resume_grace_s)
        with self._lock:
            requests = [self._pending[request_id][0] for request_id in sorted(self._pending)]
        if not opened.welcome.is_resumed and not all([begins_anew(one) for one in requests]):
            say_farewell(opened.connection, 0, self._next_id())
            raise EndpointFault(
                "the server has no such session any more: it was started again, or we were away, "
                "or idle while others waited, for too long"
            )
        self._bind_to(opened)
        requests = self._adopt(opened, is_new=not opened.welcome.is_resumed, drops=drops)
        _logger.warning("resumed address=%s requests=%d", self.dialer.address, len(requests))
        for request in requests:
            self._send(opened.connection, request)
        return opened.connection

    def _end(self, reason: str) -> list[Callback]:
        """Mark the session as lost; return who waits. Called with the lock."""
        self._lost = self._lost or reason
        pending = [callback for _, callback in self._pending.values()]
        self._pending.clear()
        return pending

    def _session_lost(self, detail: str) -> SessionLost:
        return SessionLost(f"the session with {self.dialer.address} is lost: {detail}")

    def _closed_fault(self) -> EndpointFault:
        return EndpointFault(f"the session with {self.dialer.address} was left", outcome="not_done")


def wait_for(
    port: Any, method: str, request: Any, limit_ms: int, env_indices: tuple[int, ...] = ()
) -> Any:
    """Have a port that calls back do an operation, and return its reply.

    Raises:
        EndpointFault: It failed, or did not come back in time.
    """
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    port.submit(method, request, arrived.put, env_indices)
    limit_s = deadline_s(limit_ms)
    try:
        result = arrived.get(timeout=limit_s)
    except queue.Empty:
        raise PortTimeout(
            f"{method} got no answer from {port.address} within {limit_s:g} s"
        ) from None
    if isinstance(result, BaseException):
        raise result
    return result


def nothing(result: Any) -> BaseException | None:
    """Return what an operation without a reply came to: None, or its exception."""
    return result if isinstance(result, BaseException) else None
