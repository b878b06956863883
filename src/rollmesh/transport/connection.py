"""Connections: two ends that exchange messages (layer 5).

What servers and clients are built on, whatever moves the bytes:

    connection = dial("rollmesh+unix:///run/env.sock")
    reply = connection.call(Message(Kind.HELLO, connection.next_id(), Hello(…)), timeout_s=10)
    connection.admit()  # servers, once the hello is right: larger messages
    connection.framing.bind(observation_codec, action_codec, num_envs)
    reply = connection.call(Message(Kind.STEP, connection.next_id(), StepRequest(…)), timeout_s=9)

Threads. Any thread may `send`; one at a time may `receive` or `call`; any may `shutdown`, which
ends a `receive` under way within microseconds. `close` also lets go of the socket.

Deadlines. A limit is relative, in seconds; None is none. When it is over, `TransportTimeout` says
whether the connection can still be used (`is_usable`): it can where nothing of a message had come.
The late reply may then still come, and is known by its request id.

Leaves of a received message are read-only views of memory of their own (`writable=True` in the
options: not read-only), or, with `views=True`, views into shared memory under a lease.
"""

from __future__ import annotations

import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rollmesh.errors import ConnectionLost, TransportTimeout
from rollmesh.limits import SIZE_LIMITS
from rollmesh.transport.security import Peer
from rollmesh.transport.shared_memory import THRESHOLD_BYTES
from rollmesh.transport.spin import Spin
from rollmesh.wire.framing import Framing
from rollmesh.wire.messages import Kind, Message
from rollmesh.wire.metadata import Report

if TYPE_CHECKING:
    from typing_extensions import Self

_logger = logging.getLogger(__name__)


class Turn(Protocol):
    """A lock, reentrant or not."""

    def acquire(self, *, timeout: float = -1) -> bool:
        """Take it; return whether that came about in time."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionOptions:
    """How a connection moves messages.

    Attributes:
        shared_memory: Whether large payloads may go through shared memory, where both ends can.
        shared_threshold_bytes: From which size on.
        views: Whether payloads in shared memory are received as views under a lease.
        lent: Whether they are received as views that hold their slot for as long as somebody holds
            a leaf. With neither, they are copied.
        writable: Whether received leaves may be written to (not with views).
        spin: Whether to spin before sleeping: see `spin.py`.
        processes: Processes that take part in the exchange: see `spin.Spinner`.
        servers: Servers that this client asks in turn, the one at the other end among them. It is
            told, and on the same machine leaves spinning to the client where there are not cores
            enough for everybody.
        report: Called where something in an info cannot be sent as it is; None logs it once.
    """

    shared_memory: bool = True
    shared_threshold_bytes: int = THRESHOLD_BYTES
    views: bool = False
    lent: bool = False
    writable: bool = False
    spin: Spin = "auto"
    processes: int = 2
    servers: int = 1
    report: Report | None = None


DEFAULT_OPTIONS = ConnectionOptions()
_forsaken: list[Connection] = []
"""Connections of the parent process, in one that was forked."""


class Connection(ABC):
    """One end of a connection.

    Attributes:
        address: The other end, for messages.
        options: How it moves messages.
        framing: Turns messages into bytes; `framing.bind` tells it the spaces.
        most_bytes: How large a received message may be; small until `admit`.
        peer: How close the other end is: another machine, this one, or this user on it.
        is_foreign: Whether the other end is no rollmesh, and knows the released wire alone; for
            clients, once a session is open.
    """

    peer: Peer = Peer.STRANGER
    is_foreign: bool = False

    def __init__(self, address: str, options: ConnectionOptions = DEFAULT_OPTIONS) -> None:
        self.address = address
        self.options = options
        self.framing = Framing(options.report)
        self.most_bytes = SIZE_LIMITS.hello_bytes
        self.next_id: Callable[[], int] = itertools.count(1).__next__
        """Returns a request id that was not used on this connection."""
        self._end_reason: str | None = None

    @property
    def path(self) -> str:
        """Which way messages take, in words."""
        return type(self).__name__

    @property
    def is_open(self) -> bool:
        """Whether it has not been shut down or lost."""
        return self._end_reason is None

    def admit(self) -> None:
        """Accept messages of full size: the peer is who it should be."""
        self.most_bytes = SIZE_LIMITS.message_bytes

    def share(self, processes: int) -> None:  # noqa: B027 - most never spin
        """Take note that so many processes take turns in what goes on here, says the client."""

    def keep_parts(self) -> bool:
        """Let a `receive` that comes to its deadline leave what it has to the next one.

        Returns:
            Whether that can be: else a `receive` with a deadline may be the last one.
        """
        return False

    def is_gone(self) -> bool:
        """Whether the other end has left, as far as one can see without waiting. Any thread may."""
        return not self.is_open

    @abstractmethod
    def send(self, message: Message, timeout_s: float | None = None) -> int:
        """Send a message; return the bytes it took. Any thread may.

        The leaves may be changed again when this returns. The limit counts from here on, also
        while another thread is still sending.

        Raises:
            WireError: The message has no form on the wire; nothing was sent.
            ConnectionLost: The peer is gone, or this end was shut down.
            TransportTimeout: The peer did not take it in time, and the connection is of no more
                use; or, where it is (`is_usable`), others were sending all the time, and nothing
                of it was sent.
        """

    def post(self, message: Message) -> bool:
        """Send a message without waiting for the peer to take it. Any thread may.

        What the peer does not take at once is kept, in order, for `flush`. The leaves may be
        changed again when this returns.

        Returns:
            False where something was left and nobody sees to it: `flush`, on another thread.

        Raises:
            WireError: As `send`.
            ConnectionLost: As `send`.
        """
        self.send(message)  # most never wait
        return True

    def flush(self, timeout_s: float | None = None) -> None:  # noqa: B027 - most keep nothing
        """Send what `post` left. Meanwhile others may `send` and `post`: theirs comes after it.

        Args:
            timeout_s: How long the peer may take nothing at all.

        Raises:
            ConnectionLost: As `send`.
            TransportTimeout: The peer took nothing for so long; the connection is of no more use.
        """

    @abstractmethod
    def receive(self, timeout_s: float | None = None) -> Message:
        """Return the next message. One thread at a time.

        Raises:
            WireError: What came is no message; the connection is of no more use.
            ConnectionLost: The peer is gone, or this end was shut down.
            TransportTimeout: Nothing came in time.
        """

    def call(self, message: Message, timeout_s: float | None = None) -> Message:
        """Send a request and return its reply, which may be an `ERROR`; for clients.

        Replies of earlier requests are dropped, a `PING` is answered.

        Raises:
            WireError: As `send` and `receive`.
            ConnectionLost: As `send` and `receive`.
            TransportTimeout: The reply did not come in time.
        """
        request_id = message.request_id
        if timeout_s is None:
            self.send(message)
            reply = self.receive()
            while reply.request_id != request_id or reply.kind is Kind.PING:
                self._other(reply)
                reply = self.receive()
            return reply
        expiry = time.monotonic() + timeout_s
        self.send(message, timeout_s)
        reply = self.receive(max(0.0, expiry - time.monotonic()))
        while reply.request_id != request_id or reply.kind is Kind.PING:
            self._other(reply)
            left_s = expiry - time.monotonic()
            if left_s <= 0:
                raise self._late("no reply came", timeout_s, is_usable=True)
            reply = self.receive(left_s)
        return reply

    @abstractmethod
    def shutdown(self, reason: str = "shut down here") -> None:
        """End the connection: `receive` and `send`, under way or later, raise `ConnectionLost`.

        Any thread may, any number of times; the first reason counts.
        """

    @abstractmethod
    def close(self) -> None:
        """Shut down and let go of everything. Any thread may, any number of times."""

    def forsake(self) -> None:
        """Let go of it in a forked process: neither the peer nor the parent notices. Never waits.

        Whoever uses it here from now on is told that it is lost.
        """
        self._end_reason = "it is the parent process's"
        _forsaken.append(self)  # what collecting it did might still reach the peer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _other(self, message: Message) -> None:
        """Handle a message that is not the reply one waits for."""
        if message.lease is not None:
            message.lease.release()
        if message.kind is Kind.PING:
            self.send(Message(Kind.PONG, message.request_id))
        else:
            _logger.debug(
                "message_dropped kind=%s request_id=%d", message.kind.name, message.request_id
            )

    def _late(self, detail: str, timeout_s: float | None, *, is_usable: bool) -> TransportTimeout:
        return TransportTimeout(
            self.address, detail, timeout_s=timeout_s or 0.0, is_usable=is_usable
        )

    def _take_turn(self, lock: Turn, timeout_s: float | None) -> float | None:
        """Acquire the lock of those who send; return what is left of the limit.

        Raises:
            TransportTimeout: Others had it all the time; nothing has happened.
        """
        if timeout_s is None:
            lock.acquire()
            return None
        begun = time.monotonic()
        if not lock.acquire(timeout=max(0.0, timeout_s)):
            raise self._late("others are still sending", timeout_s, is_usable=True)
        return max(0.0, timeout_s - (time.monotonic() - begun))

    def _lost(self, detail: str) -> ConnectionLost:
        """Return the error of a connection that is gone; the first reason counts."""
        if self._end_reason is None:
            self._end_reason = detail
        return ConnectionLost(self.address, self._end_reason)
