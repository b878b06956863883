"""gRPC: a server's side of one streaming call, as bytes (layer 5).

Two kinds that behave alike; `grpc_engine.py` says which one a server has:

- `DirectCall` has a completion queue of its own, read by the thread that waits for the next
  request: the thread of the env. Between a request and its answer no other thread is woken.
- `PlainCall` is grpc's documented interface: its one polling thread wakes the one that waits.

Knows no messages.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from rollmesh.transport.grpc_limits import Limit
from rollmesh.transport.grpc_loading import grpc

Metadata: TypeAlias = "Mapping[str, str | bytes]"
Trailers: TypeAlias = "Sequence[tuple[str, str]]"

_MOST_DETAILS = 1000
_FLUSH_S = 0.25
"""How long the end of a call waits for what was sent before it."""
_LOOK_S = 0.002
_STUCK_S = 1.0
_DRAIN_S = 2.0


class CallEnded(Exception):  # noqa: N818 - never leaves the transport
    """The client ended the call, or is gone, or this end has ended it."""


class CallLate(Exception):  # noqa: N818 - never leaves the transport
    """Nothing came, or nothing was taken, in time.

    Attributes:
        is_usable: Whether the call goes on.
    """

    def __init__(self, *, is_usable: bool) -> None:
        super().__init__()
        self.is_usable = is_usable


class ServerCall(ABC):
    """A streaming call at a server. Any thread may write and end it, one at a time may read.

    Attributes:
        metadata: What the client sent with it.
        peer: Where the client is, as grpc writes it.
    """

    metadata: Metadata
    peer: str
    can_pause: bool = True
    """Whether a `read` that comes too late leaves the call as it was."""

    @abstractmethod
    def open(self) -> None:
        """Send the headers, which a released client waits for, and take messages."""

    @abstractmethod
    def read(self, timeout_s: float | None = None) -> bytes:
        """Return the next message.

        Raises:
            CallEnded: There is none any more.
            CallLate: None came in time.
        """

    @abstractmethod
    def look(self) -> bool:
        """Take note of what happened, without waiting; return whether the call goes on."""

    @abstractmethod
    def write(self, data: bytes, timeout_s: float | None = None) -> None:
        """Send a message.

        Raises:
            CallEnded: The call is over.
            CallLate: The client does not take what was sent before.
        """

    @abstractmethod
    def finish(self, code: grpc.StatusCode, details: str, trailers: Trailers = ()) -> None:
        """End the call with a status; again does nothing. A read under way ends."""

    @abstractmethod
    def cancel(self) -> None:
        """End the call at once; nothing more reaches the client."""

    @abstractmethod
    def close(self) -> None:
        """Let go of a call that was finished; may wait for a moment."""


# ------------------------------------------------------------------------------------- plain


class PlainCall(ServerCall):
    """A call over grpc's documented interface.

    Args:
        requests: Iterates over what the client sends.
        context: Of the call.
        respond: Sends a message; None ends the call.
    """

    can_pause = False

    def __init__(
        self, requests: Iterator[bytes], context: Any, respond: Callable[[bytes | None], None]
    ) -> None:
        self.metadata = dict(context.invocation_metadata() or ())
        self.peer = context.peer()
        self._requests = requests
        self._context = context
        self._respond = respond
        self._lock = threading.Lock()
        self._is_over = False
        self._is_finished = False
        if not context.add_callback(self._note_over):
            self._is_over = True

    def open(self) -> None:
        with contextlib.suppress(Exception):  # the client may be gone already
            self._context.send_initial_metadata(())

    def read(self, timeout_s: float | None = None) -> bytes:
        limit = None
        if timeout_s is not None:
            limit = Limit(self.cancel)
            limit.arm(time.monotonic() + timeout_s)
        try:
            return next(self._requests)
        except (StopIteration, grpc.RpcError):
            if limit is not None and limit.is_late:
                raise CallLate(is_usable=False) from None
            raise CallEnded from None
        finally:
            if limit is not None:
                limit.disarm()

    def look(self) -> bool:
        return not self._is_over

    def write(self, data: bytes, timeout_s: float | None = None) -> None:
        with self._lock:
            if self._is_over or self._is_finished:
                raise CallEnded
            limit = Limit(self.cancel)
            if timeout_s is not None:
                limit.arm(time.monotonic() + timeout_s)
            try:
                self._respond(data)
            except Exception:  # noqa: BLE001 - grpc raises what it likes on a dead call
                self._is_over = True
            finally:
                limit.disarm()
            if limit.is_late:
                raise CallLate(is_usable=False)
            if self._is_over:
                raise CallEnded

    def finish(self, code: grpc.StatusCode, details: str, trailers: Trailers = ()) -> None:
        if not self._lock.acquire(timeout=_FLUSH_S):  # a send that comes to no end
            self.cancel()
            return
        try:
            if self._is_finished:
                return
            self._is_finished = True
            with contextlib.suppress(Exception):  # the call may be over
                if trailers:
                    self._context.set_trailing_metadata(tuple(trailers))
                if code is not grpc.StatusCode.OK:
                    self._context.set_code(code)
                    self._context.set_details(details[:_MOST_DETAILS])
                self._respond(None)
        finally:
            self._lock.release()

    def cancel(self) -> None:
        self._context.cancel()

    def close(self) -> None:
        self.finish(grpc.StatusCode.OK, "")

    def _note_over(self) -> None:
        self._is_over = True


# ------------------------------------------------------------------------------------ direct

_OPENED, _CLOSED, _RECEIVED, _SENT, _STATUS = range(1, 6)


class DirectCall(ServerCall):
    """A call with a completion queue of its own; see the module.

    Args:
        event: By which grpc told of it.
        events: Its completion queue.
        operations: grpc's own (`cygrpc`).

    Attributes:
        when_closed: Called with it once nothing of grpc is held any more.
    """

    def __init__(self, event: Any, events: Any, operations: Any) -> None:
        self.metadata = dict(tuple(entry) for entry in event.invocation_metadata or ())
        self._call: Any = event.call
        peer = self._call.peer()
        self.peer = peer.decode("utf-8", "replace") if isinstance(peer, bytes) else str(peer)
        self.when_closed: Callable[[DirectCall], object] = bool
        self._poll = events.poll
        self._operations = operations
        self._receive = (operations.ReceiveMessageOperation(0),)
        self._send = operations.SendMessageOperation
        self._is_timeout = operations.CompletionType.queue_timeout
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._messages: deque[bytes] = deque()
        self._waiting: deque[bytes] = deque()
        self._outstanding = 0
        self._limit: Limit | None = None
        """On the end of a call whose client takes nothing."""
        self._is_open = False
        self._is_sending = False
        self._is_receiving = False
        self._has_ended = False
        self._is_gone = False
        self._is_finished = False

    def open(self) -> None:
        operations = self._operations
        with self._lock:
            self._is_open = True
            self._begin((operations.SendInitialMetadataOperation((), 0),), _OPENED)
            self._begin((operations.ReceiveCloseOnServerOperation(0),), _CLOSED)

    def read(self, timeout_s: float | None = None) -> bytes:
        expiry = None if timeout_s is None else time.monotonic() + timeout_s
        with self._reading:
            while not self._messages:
                if self._has_ended or self._is_gone or self._is_finished:
                    raise CallEnded
                if not self._is_receiving:
                    with self._lock:
                        self._begin(self._receive, _RECEIVED)
                        self._is_receiving = True
                if not self._take_event(expiry):
                    raise CallLate(is_usable=True)
            return self._messages.popleft()

    def look(self) -> bool:
        if self._reading.acquire(blocking=False):
            try:
                while self._outstanding and self._take_event(0.0):
                    pass
            finally:
                self._reading.release()
        return not (self._is_gone or self._is_finished)

    def write(self, data: bytes, timeout_s: float | None = None) -> None:
        with self._lock:
            if self._is_gone or self._is_finished:
                raise CallEnded
            if not self._is_sending:
                self._start_send(data)
                return
            self._waiting.append(data)
        self._flush(None if timeout_s is None else time.monotonic() + timeout_s)

    def finish(self, code: grpc.StatusCode, details: str, trailers: Trailers = ()) -> None:
        if self._is_finished:
            return
        self._settle(time.monotonic() + _FLUSH_S)
        with self._lock:
            if self._is_finished:
                return
            self._is_finished = True
            self._limit = Limit(self.cancel)
            self._limit.arm(time.monotonic() + _STUCK_S)
            self._waiting.clear()
            operations = self._operations
            status = operations.SendStatusFromServerOperation(
                tuple(trailers),
                code.value[0],
                details[:_MOST_DETAILS].encode("utf-8", "replace"),
                0,
            )
            if self._is_open:
                self._begin((status,), _STATUS)
                return
            headers = operations.SendInitialMetadataOperation((), 0)
            closed = operations.ReceiveCloseOnServerOperation(0)
            self._begin((headers, closed, status), _STATUS)

    def cancel(self) -> None:
        with contextlib.suppress(Exception):
            self._call.cancel()

    def close(self) -> None:
        self.finish(grpc.StatusCode.OK, "")
        if not self._reading.acquire(timeout=_FLUSH_S):
            return  # who reads takes the events that are left
        try:
            expiry = time.monotonic() + _FLUSH_S
            while self._outstanding > 0 and self._take_event(expiry):
                pass
            if self._outstanding > 0:
                self.cancel()
                expiry = time.monotonic() + _DRAIN_S
                while self._outstanding > 0 and self._take_event(expiry):
                    pass
            self._forget_limit()
            if self._outstanding <= 0:  # keep nothing of grpc: a traceback may keep this for long
                self._call = None
                self._poll = _nothing
                self.when_closed(self)
        finally:
            self._reading.release()

    def _flush(self, expiry: float | None) -> None:
        """Wait until what waits is on its way, taking events if nobody else does."""
        while self._waiting and not self._is_gone:
            if self._reading.acquire(timeout=_LOOK_S):
                try:
                    if self._waiting and not self._take_event(expiry):
                        raise CallLate(is_usable=False)
                finally:
                    self._reading.release()
            elif expiry is not None and time.monotonic() > expiry:
                raise CallLate(is_usable=False)

    def _settle(self, expiry: float) -> None:
        """Wait until what was sent is on its way, or the time is over."""
        while (self._is_sending or self._waiting) and not self._is_gone:
            if self._reading.acquire(timeout=_LOOK_S):
                try:
                    if self._is_sending and not self._take_event(expiry):
                        return
                finally:
                    self._reading.release()
            elif time.monotonic() > expiry:
                return

    def _take_event(self, expiry: float | None) -> bool:
        """Take one event; False where none came in time. Called by the one who reads."""
        if expiry is None:
            event = self._poll()
        else:
            left_s = max(0.0, expiry - time.monotonic())
            event = self._poll(time.time() + left_s)
            if event.completion_type == self._is_timeout:
                return False
        tag = event.tag
        with self._lock:
            self._outstanding -= 1
            if tag == _RECEIVED:
                self._is_receiving = False
                data = event.batch_operations[0].message()
                if data is None:
                    self._has_ended = True
                else:
                    self._messages.append(data)
            elif tag == _SENT:
                self._is_sending = False
                if self._waiting and not self._is_gone:
                    self._start_send(self._waiting.popleft())
            elif tag == _STATUS:
                self._forget_limit()
            elif tag == _CLOSED and event.batch_operations[0].cancelled():
                self._is_gone = True
        return True

    def _forget_limit(self) -> None:
        if self._limit is not None:
            self._limit.disarm()
            self._limit = None  # it holds this call, which holds it

    def _start_send(self, data: bytes) -> None:
        """Begin to send; called with the lock."""
        self._begin((self._send(data, 0),), _SENT)
        self._is_sending = True

    def _begin(self, operations: tuple[Any, ...], tag: int) -> None:
        """Begin a batch of operations; called with the lock."""
        try:
            self._call.start_server_batch(operations, tag)
        except ValueError:  # the call is over
            self._is_gone = True
            return
        self._outstanding += 1


def _nothing(*_: object) -> Any:
    raise CallEnded
