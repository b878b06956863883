"""gRPC: the client's side of one Join, as bytes (layer 5).

`open_stream` gives one of two streams that behave alike:

- `DirectStream` drives the call from the thread that waits for the reply, over the completion
  queue that grpc's own single-threaded streams use. A small message comes back 1.6 times as fast,
  because no other thread has to be woken. It needs parts of grpc that are not documented; where
  they are missing or have changed, the other one is taken.
- `PlainStream` is grpc's documented call: a thread that takes requests, one that takes responses.

grpc gives a waiting caller no deadline on a stream. A watchdog, one thread for all streams of the
process, wakes whoever waits too long, or cancels the call where it cannot be woken; a wait that
ends in time costs a comparison. On its way it nudges the connection: see `grpc_nudge`.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from rollmesh.transport.grpc_limits import WATCHDOG
from rollmesh.transport.grpc_loading import IS_OLDER_WAY, grpc
from rollmesh.transport.grpc_nudge import FIRST_NUDGE_S, next_pause, nudge

Metadata: TypeAlias = "Sequence[tuple[str, str | bytes]]"

_STUCK_S = 1.0
_now = time.monotonic


class StreamEnded(Exception):  # noqa: N818 - never leaves the transport
    """The call is over.

    Attributes:
        code: Name of the status.
        details: Its text.
        trailers: Metadata that came with it.
    """

    def __init__(self, code: str, details: str, trailers: dict[str, Any] | None = None) -> None:
        super().__init__(f"{code}: {details}" if details else code)
        self.code = code
        self.details = details
        self.trailers = trailers or {}


class StreamLate(Exception):  # noqa: N818 - never leaves the transport
    """Somebody waited too long.

    Attributes:
        is_usable: Whether the call goes on; else it was cancelled.
    """

    def __init__(self, *, is_usable: bool = False) -> None:
        super().__init__()
        self.is_usable = is_usable


class JoinStream(ABC):
    """A Join as bytes. Any thread may send and cancel, one at a time may receive.

    Attributes:
        expiry: When the wait under way is late, on the monotonic clock; infinite where none is.
        look_at: When to nudge the connection; infinite where nothing is waited for.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self.expiry = self.look_at = math.inf
        self._nudged: grpc.Channel | None = channel
        self._pause_s = FIRST_NUDGE_S
        self._is_waiting = False
        self._is_late = False
        self._end: StreamEnded | None = None

    @abstractmethod
    def send(self, data: bytes, expiry: float = math.inf) -> None:
        """Send a message; returns before it is on its way.

        Args:
            data: The message.
            expiry: When to give up where one must wait, on the monotonic clock.

        Raises:
            StreamEnded: The call is over.
            StreamLate: It could not be sent in time; the call is over.
        """

    @abstractmethod
    def post(self, data: bytes) -> bool:
        """Send a message without waiting for anybody.

        Returns:
            Whether it is under way; else it will be once somebody receives.

        Raises:
            StreamEnded: The call is over.
        """

    @abstractmethod
    def receive(self, expiry: float = math.inf) -> bytes:
        """Return the next message.

        Args:
            expiry: When to give up, on the monotonic clock.

        Raises:
            StreamEnded: The call is over.
            StreamLate: Nothing came in time.
        """

    @abstractmethod
    def cancel(self) -> None:
        """End the call; a `receive` under way ends at once."""

    @abstractmethod
    def close(self, limit_s: float) -> bool:
        """Say that nothing more is sent, and wait until the server ends the call.

        Args:
            limit_s: How long to wait.

        Returns:
            Whether the call is over. If not, close again, or cancel first to end it at once.
        """

    def _begin_wait(self, expiry: float) -> None:
        self._is_waiting = True
        self._pause_s = FIRST_NUDGE_S
        self.look_at = _now() + FIRST_NUDGE_S
        WATCHDOG.arm(self, expiry)

    def _end_wait(self) -> None:
        self._is_waiting = False
        self.expiry = self.look_at = math.inf

    def look(self, now: float) -> None:
        """Nudge the connection, unless the wait ended meanwhile.

        It is then looked at again all the same, after longer and longer pauses, until the next wait
        has ended: that one may have begun just now.
        """
        channel = self._nudged
        self._pause_s = next_pause(self._pause_s)
        self.look_at = math.inf if channel is None else now + self._pause_s
        if channel is not None and self._is_waiting:
            nudge(channel)

    def expire(self, expiry: float) -> None:
        """End the call because the wait that was to end by `expiry` did not."""
        if self.expiry == expiry:
            self._is_late = True
            self.cancel()

    def _over(self, end: StreamEnded) -> Exception:
        if self._end is None:
            self._end = end
        return StreamLate() if self._is_late else self._end


# ------------------------------------------------------------------------------------- plain


class PlainStream(JoinStream):
    """A Join over grpc's documented interface."""

    def __init__(self, channel: grpc.Channel, method: str, metadata: Metadata) -> None:
        super().__init__(channel)
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call: Any = channel.stream_stream(method)(
            iter(self._requests.get, None), metadata=tuple(metadata)
        )
        self._next = self._call.__next__
        WATCHDOG.watch(self)

    def send(self, data: bytes, expiry: float = math.inf) -> None:
        del expiry  # the queue has room
        self.post(data)

    def post(self, data: bytes) -> bool:
        if self._end is not None:
            raise self._end
        self._requests.put(data)
        return True

    def receive(self, expiry: float = math.inf) -> bytes:
        self._begin_wait(expiry)
        try:
            return self._next()
        except StopIteration:
            raise self._over(StreamEnded("OK", "the server ended the stream")) from None
        except grpc.RpcError as error:
            raise self._over(_end_of(error)) from None
        finally:
            self._end_wait()

    def cancel(self) -> None:
        self._call.cancel()
        self._requests.put(None)

    def close(self, limit_s: float) -> bool:
        self._requests.put(None)  # the call's thread sends what is before it, then half-closes
        if self._end is not None:
            return True
        over = threading.Event()
        return not self._call.add_callback(over.set) or over.wait(limit_s)


def _end_of(error: Any) -> StreamEnded:
    code = error.code()
    return StreamEnded(
        "UNKNOWN" if code is None else code.name,
        error.details() or "",
        dict(error.trailing_metadata() or ()),
    )


# ------------------------------------------------------------------------------------ direct

_SENT, _RECEIVED, _STATUS, _HEADERS, _OPENED, _HALF_CLOSED, _WAKE = range(1, 8)


class DirectStream(JoinStream):
    """A Join driven by the thread that waits for it; see the module.

    Raises:
        Exception: This version of grpc has other insides.
    """

    def __init__(self, channel: Any, method: str, metadata: Metadata) -> None:
        super().__init__(channel)
        from grpc._cython import cygrpc  # pyright: ignore[reportMissingTypeStubs]

        self._send_operation = cygrpc.SendMessageOperation
        self._half_close = cygrpc.SendCloseFromClientOperation(0)
        self._receive = (cygrpc.ReceiveMessageOperation(0),)
        self._codes = {number.value[0]: number.name for number in grpc.StatusCode}
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._messages: deque[bytes] = deque()
        self._is_sending = False
        self._is_receiving = False
        self._is_half_closed = False
        self._is_patient = False
        """Whether the wait under way can be ended without ending the call."""
        self._is_woken = False
        self._outstanding = 3
        self._status: StreamEnded | None = None
        start = (
            ((cygrpc.SendInitialMetadataOperation(tuple(metadata), 0),), _OPENED),
            ((cygrpc.ReceiveStatusOnClientOperation(0),), _STATUS),
            ((cygrpc.ReceiveInitialMetadataOperation(0),), _HEADERS),
        )
        self._call: Any = channel._channel.segregated_call(  # noqa: SLF001 - see the module
            cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS,
            method.encode(),
            None,
            None,
            tuple(metadata),
            None,
            start,
            None,
        )
        self._operate = self._call.operate
        self._events: deque[Any] = deque()
        # in one go, so that no signal's handler comes between the two
        self._fetch = map(self._events.append, iter(self._call.next_event, None))
        WATCHDOG.watch(self)

    def post(self, data: bytes) -> bool:
        with self._lock:
            if self._status is not None:
                raise self._status
            if not self._is_sending:
                self._start_send(data)
                return True
            self._waiting.append(data)
            return False

    def send(self, data: bytes, expiry: float = math.inf) -> None:
        if self.post(data):
            return
        if self._reading.acquire(blocking=False):  # nobody else takes events
            try:
                self._wait(expiry, lambda: not self._waiting)
            finally:
                self._reading.release()
            if self._status is not None:
                raise self._over(self._status)
            if self._waiting:
                raise StreamLate(is_usable=True)

    def receive(self, expiry: float = math.inf) -> bytes:
        with self._reading:
            messages = self._messages
            if not messages:
                if self._status is not None:
                    raise self._over(self._status)
                if not self._is_receiving:
                    with self._lock:
                        self._start_receive()
                self._wait(expiry, lambda: bool(messages))
                if not messages:
                    if self._status is None:
                        raise StreamLate(is_usable=True)
                    self._drain()
                    raise self._over(self._status)
            return messages.popleft()

    def expire(self, expiry: float) -> None:
        if not self._is_patient:
            super().expire(expiry)
            return
        with self._lock:
            if self.expiry == expiry and self._status is None:
                self._is_woken = True
                self._begin((), _WAKE)  # an event without an operation: whoever waits looks up

    def cancel(self) -> None:
        with contextlib.suppress(Exception):  # a call that is over takes none
            self._call.cancel(_CANCELLED, "cancelled")

    def close(self, limit_s: float) -> bool:
        if not self._reading.acquire(timeout=limit_s):
            self.cancel()  # wakes who is receiving
            if not self._reading.acquire(timeout=_STUCK_S):
                return True  # and takes what is left
        try:
            self._wait(time.monotonic() + limit_s, self._is_said)
            with self._lock:
                if self._status is None and self._is_said() and not self._is_half_closed:
                    self._is_half_closed = True
                    self._begin((self._half_close,), _HALF_CLOSED)
                    if not self._is_receiving:
                        self._start_receive()
            self._wait(time.monotonic() + limit_s, lambda: False)
            if self._status is not None:
                self._drain()
                self._let_go()
        except StreamEnded as end:  # a Ctrl-C took its last event along: no other one will come
            self._status, self._outstanding = end, 0
            self._let_go()
        finally:
            self._reading.release()
        return self._status is not None

    def _let_go(self) -> None:
        """Keep nothing of grpc: an error's traceback may keep this for long."""
        self._call = self._nudged = None
        self._operate = _refuse
        self._fetch = iter(())

    def _is_said(self) -> bool:
        return not self._is_sending

    def _wait(self, expiry: float, is_done: Callable[[], bool]) -> None:
        """Take events until something is done, the call is over, or the time is."""
        if self._status is not None or is_done():
            return
        self._is_woken, self._is_patient = False, True
        self._begin_wait(expiry)
        try:
            while self._status is None and not self._is_woken and not is_done():
                self._take_next()
        finally:
            self._end_wait()
            self._is_patient = False

    def _begin(self, operations: tuple[Any, ...], tag: int) -> None:
        """Begin a batch of operations; with the lock, as its event may be taken at once.

        A call whose last event has been taken, by whoever receives, begins nothing: no event would
        come of it, and waiting for one never ends.
        """
        try:
            if self._operate(operations, tag) is False:
                raise StreamEnded("CANCELLED", "the call is over")
        except ValueError as error:  # the channel is closed
            self._status = StreamEnded("CANCELLED", str(error))
            self._outstanding = 0
            raise self._over(self._status) from None
        self._outstanding += 1

    def _start_receive(self) -> None:
        """Begin to receive; called with the lock."""
        self._begin(self._receive, _RECEIVED)
        self._is_receiving = True

    def _start_send(self, data: bytes) -> None:
        """Begin to send; called with the lock."""
        self._begin((self._send_operation(data, 0),), _SENT)
        self._is_sending = True

    def _take_next(self) -> None:
        """Wait for an event and take note of it.

        Where a Ctrl-C comes meanwhile, nobody knows whether grpc took an event along, or how much
        of one was noted: the call is over, and its session is resumed over another one.
        """
        events = self._events
        try:
            next(self._fetch, None)
            if events:
                self._take(events[0])
                events.clear()
        except BaseException as error:
            if events or not isinstance(error, Exception):
                self.cancel()
                end = StreamEnded("CANCELLED", "interrupted")
                self._status = self._status or (error if isinstance(error, StreamEnded) else end)
                self._outstanding = 0
            raise

    def _take(self, event: Any) -> None:
        """Take note of an event."""
        tag = event.tag
        with self._lock:  # whoever sends counts too
            self._outstanding -= 1
            if tag == _RECEIVED:
                self._is_receiving = False
                data = event.batch_operations[0].message()
                if data is not None:
                    if not self._is_half_closed:
                        self._messages.append(data)
                    elif self._status is None:  # the status comes after the last message
                        self._start_receive()
            elif tag == _SENT:
                self._is_sending = False
                if self._waiting and self._status is None:
                    self._start_send(self._waiting.popleft())
        if tag == _STATUS:
            operation = event.batch_operations[0]
            trailers = {entry[0]: entry[1] for entry in operation.trailing_metadata() or ()}
            with self._lock:
                self._status = StreamEnded(
                    self._codes.get(operation.code(), "UNKNOWN"),
                    _text(operation.details()),
                    trailers,
                )

    def _drain(self) -> None:
        """Take the events that are left, which come at once when a call is over."""
        while self._outstanding > 0:
            self._take_next()


_CANCELLED = 1


def _refuse(*_: object) -> Any:
    raise ValueError("the call is over")


def _text(details: Any) -> str:
    return details.decode("utf-8", "replace") if isinstance(details, bytes) else str(details or "")


def open_stream(
    channel: grpc.Channel, method: str, metadata: Metadata, *, is_large: bool = False
) -> JoinStream:
    """Open a Join.

    Args:
        channel: To the server.
        method: Its path.
        metadata: Sent with it.
        is_large: Whether responses are large: where threads of grpc read the socket, they had
            better take the responses too.
    """
    if IS_OLDER_WAY or not is_large:
        # another version of grpc may have other insides: its own interface still works
        with contextlib.suppress(Exception):
            return DirectStream(channel, method, metadata)
    return PlainStream(channel, method, metadata)
