"""gRPC: the client's side of one Join, as bytes (layer 5).

`open_stream` gives one of two streams that behave alike:

- `DirectStream` drives the call from the thread that waits for the reply, over the completion
  queue that grpc's own single-threaded streams use. A small message comes back 1.6 times as fast,
  because no other thread has to be woken. It needs parts of grpc that are not documented; where
  they are missing or have changed, the other one is taken.
- `PlainStream` is grpc's documented call: a thread that takes requests, one that takes responses.

grpc gives a waiting caller no deadline on a stream. A watchdog, one thread for all streams of the
process, cancels the call of whoever waits too long; a wait that ends in time costs a comparison.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from rollmesh.transport.grpc_loading import grpc

Metadata: TypeAlias = "Sequence[tuple[str, str | bytes]]"

_FLUSH_S = 0.05
"""How long closing waits for what was sent last."""
_STUCK_S = 1.0


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
    """The call was cancelled because somebody waited too long."""


class Watched(Protocol):
    """What may wait too long."""

    expiry: float

    def expire(self, expiry: float) -> None:
        """End the wait that was to end by `expiry`."""
        ...


class JoinStream(ABC):
    """A Join as bytes. Any thread may send and cancel, one at a time may receive.

    Attributes:
        expiry: When the wait under way is late, on the monotonic clock; infinite where none is.
    """

    def __init__(self) -> None:
        self.expiry = math.inf
        self._is_late = False
        self._end: StreamEnded | None = None

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send a message; returns before it is on its way.

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
            StreamLate: Nothing came in time; the call is over.
        """

    @abstractmethod
    def cancel(self) -> None:
        """End the call; a `receive` under way ends at once."""

    @abstractmethod
    def close(self) -> None:
        """Let what was sent reach the other side, for a moment, and end the call."""

    def expire(self, expiry: float) -> None:
        """End the call because the wait that was to end by `expiry` did not."""
        if self.expiry == expiry:
            self._is_late = True
            self.cancel()

    def _over(self, end: StreamEnded) -> Exception:
        if self._end is None:
            self._end = end
        return StreamLate() if self._is_late else self._end


class _Watchdog:
    """Looks after deadlines; its thread starts with the first of them."""

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._condition = threading.Condition(threading.Lock())
        self._next = math.inf
        self._hurried = math.inf
        self._thread: threading.Thread | None = None

    def watch(self, stream: Watched) -> None:
        """Look after a stream from now on."""
        with self._condition:
            self._streams.add(stream)
            if self._thread is None or not self._thread.is_alive():
                self._next = self._hurried = math.inf
                self._thread = threading.Thread(
                    target=self._run, name="rollmesh gRPC deadlines", daemon=True
                )
                self._thread.start()

    def arm(self, stream: Watched, expiry: float) -> None:
        """Begin a wait. No lock is taken unless this deadline comes before every other."""
        stream.expiry = expiry
        if expiry < self._next:
            with self._condition:
                self._hurried = min(self._hurried, expiry)
                self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._next = math.inf  # from here on, whoever begins a wait says so
                streams = list(self._streams)
            now, earliest = time.monotonic(), math.inf
            for stream in streams:
                expiry = stream.expiry
                if expiry <= now:
                    with contextlib.suppress(Exception):
                        stream.expire(expiry)
                else:
                    earliest = min(earliest, expiry)
            del streams
            stream = None
            with self._condition:
                self._next = min(earliest, self._hurried)
                self._hurried = math.inf
                left_s = self._next - time.monotonic()
                if left_s > 0:
                    self._condition.wait(None if math.isinf(left_s) else min(left_s, 3600.0))


_watchdog = _Watchdog()


class Limit:
    """A limit on something else than a stream's receive: `arm`, do it, `disarm`.

    Args:
        cut: Ends what is under way; called from another thread.

    Attributes:
        expiry: When it is late, on the monotonic clock; infinite where nothing is under way.
        is_late: Whether it was cut.
    """

    def __init__(self, cut: Callable[[], None]) -> None:
        self.expiry = math.inf
        self.is_late = False
        self._cut = cut
        _watchdog.watch(self)

    def arm(self, expiry: float) -> None:
        """Begin."""
        _watchdog.arm(self, expiry)

    def disarm(self) -> None:
        """It is over."""
        self.expiry = math.inf

    def expire(self, expiry: float) -> None:
        """Cut what was to end by `expiry`."""
        if self.expiry == expiry:
            self.is_late = True
            self._cut()


# ------------------------------------------------------------------------------------- plain


class PlainStream(JoinStream):
    """A Join over grpc's documented interface."""

    def __init__(self, channel: grpc.Channel, method: str, metadata: Metadata) -> None:
        super().__init__()
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call: Any = channel.stream_stream(method)(
            iter(self._requests.get, None), metadata=tuple(metadata)
        )
        self._next = self._call.__next__
        _watchdog.watch(self)

    def send(self, data: bytes) -> None:
        if self._end is not None:
            raise self._end
        self._requests.put(data)

    def receive(self, expiry: float = math.inf) -> bytes:
        _watchdog.arm(self, expiry)
        try:
            return self._next()
        except StopIteration:
            raise self._over(StreamEnded("OK", "the server ended the stream")) from None
        except grpc.RpcError as error:
            raise self._over(_end_of(error)) from None
        finally:
            self.expiry = math.inf

    def cancel(self) -> None:
        self._call.cancel()
        self._requests.put(None)

    def close(self) -> None:
        self._requests.put(None)  # the call's thread sends what is before it, then half-closes
        if self._end is None:
            wait = threading.Event()
            if self._call.add_callback(wait.set):
                wait.wait(_FLUSH_S)
        self._call.cancel()


def _end_of(error: Any) -> StreamEnded:
    code = error.code()
    return StreamEnded(
        "UNKNOWN" if code is None else code.name,
        error.details() or "",
        dict(error.trailing_metadata() or ()),
    )


# ------------------------------------------------------------------------------------ direct

_SENT, _RECEIVED, _STATUS, _HEADERS, _OPENED, _HALF_CLOSED = range(1, 7)


class DirectStream(JoinStream):
    """A Join driven by the thread that waits for it; see the module.

    Raises:
        Exception: This version of grpc has other insides.
    """

    def __init__(self, channel: Any, method: str, metadata: Metadata) -> None:
        super().__init__()
        from grpc._cython import cygrpc

        self._send_operation = cygrpc.SendMessageOperation
        self._half_close = cygrpc.SendCloseFromClientOperation(0)
        self._receive = (cygrpc.ReceiveMessageOperation(0),)
        self._codes = {number.value[0]: number.name for number in grpc.StatusCode}
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._is_sending = False
        self._is_receiving = False
        self._outstanding = 3
        self._status: StreamEnded | None = None
        start = (
            ((cygrpc.SendInitialMetadataOperation(tuple(metadata), 0),), _OPENED),
            ((cygrpc.ReceiveStatusOnClientOperation(0),), _STATUS),
            ((cygrpc.ReceiveInitialMetadataOperation(0),), _HEADERS),
        )
        self._call = channel._channel.segregated_call(  # noqa: SLF001 - see the module
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
        self._next_event = self._call.next_event
        _watchdog.watch(self)

    def send(self, data: bytes) -> None:
        with self._lock:
            if self._status is not None:
                raise self._status
            if self._is_sending:
                self._waiting.append(data)
            else:
                self._start_send(data)
                return
        if self._reading.acquire(blocking=False):  # nobody else takes events
            try:
                while self._waiting and self._status is None:
                    self._take(self._next_event())
            finally:
                self._reading.release()

    def receive(self, expiry: float = math.inf) -> bytes:
        with self._reading:
            if self._status is not None:
                raise self._over(self._status)
            if not self._is_receiving:
                with self._lock:
                    self._begin(self._receive, _RECEIVED)
                    self._is_receiving = True
            _watchdog.arm(self, expiry)
            try:
                while True:
                    data = self._take(self._next_event())
                    if data is not None:
                        return data
                    if self._status is not None:
                        self._drain()
                        raise self._over(self._status)
            finally:
                self.expiry = math.inf

    def cancel(self) -> None:
        with contextlib.suppress(Exception):  # a call that is over takes none
            self._call.cancel(_CANCELLED, "cancelled")

    def close(self) -> None:
        if not self._reading.acquire(timeout=_FLUSH_S):
            self.cancel()  # wakes who is receiving
            if not self._reading.acquire(timeout=_STUCK_S):
                return
        try:
            if self._status is None:
                _watchdog.arm(self, time.monotonic() + _FLUSH_S)
                while self._is_sending and self._status is None:
                    self._take(self._next_event())
                with self._lock:
                    if self._status is None:
                        self._begin((self._half_close,), _HALF_CLOSED)
                while self._status is None:  # the watchdog ends a wait that is in vain
                    self._take(self._next_event())
            self._drain()
        finally:
            self.expiry = math.inf
            self._reading.release()

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

    def _start_send(self, data: bytes) -> None:
        """Begin to send; called with the lock."""
        self._begin((self._send_operation(data, 0),), _SENT)
        self._is_sending = True

    def _take(self, event: Any) -> bytes | None:
        """Take note of an event; return the message that it brought."""
        tag = event.tag
        with self._lock:  # whoever sends counts too
            self._outstanding -= 1
        if tag == _RECEIVED:
            self._is_receiving = False
            return event.batch_operations[0].message()
        if tag == _SENT:
            with self._lock:
                self._is_sending = False
                if self._waiting and self._status is None:
                    self._start_send(self._waiting.popleft())
        elif tag == _STATUS:
            operation = event.batch_operations[0]
            trailers = {entry[0]: entry[1] for entry in operation.trailing_metadata() or ()}
            with self._lock:
                self._status = StreamEnded(
                    self._codes.get(operation.code(), "UNKNOWN"),
                    _text(operation.details()),
                    trailers,
                )
        return None

    def _drain(self) -> None:
        """Take the events that are left, which come at once when a call is over."""
        while self._outstanding > 0:
            self._take(self._next_event())


_CANCELLED = 1


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
        is_large: Whether responses are large: those come sooner over the threads of grpc, whose
            allocations do not return memory to the system after every message.
    """
    if not is_large:
        # another version of grpc may have other insides: its own interface still works
        with contextlib.suppress(Exception):
            return DirectStream(channel, method, metadata)
    return PlainStream(channel, method, metadata)
