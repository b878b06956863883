"""Streams: the bytes of one socket, with deadlines (layer 5).

A `Stream` never blocks except in `wait` and `take`, so that every deadline is exact also when
signals come, and `shutdown` from another thread ends every wait at once. `take` has no deadline; it
is one system call where `wait` and `read` are two. `SocketStream` is a plain socket;
`WrappedStream` is one without scatter-gather and flags, such as a TLS socket.

It knows no messages.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

Wrap: TypeAlias = Callable[[socket.socket], socket.socket]
"""Takes a connected TCP socket and returns the one to talk over: where TLS goes. It may block for a
handshake; the socket's timeout is set to what is left for connecting."""

BUFFER_BYTES = 4 * 2**20
_LOW_WATER = 64 * 2**10
_HIGH_WATER = 2**20
"""Bytes that a wait for the rest of a message waits for: what comes in is read while more of it is
on its way, so that the sender's window stays open."""
_MOST_PARTS = 512
"""Buffers given to one system call; Linux takes 1024."""
_JOIN_BELOW = 8192
"""Messages up to this size are joined, which costs less than a list of buffers."""
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
_DONT_WAIT = socket.MSG_DONTWAIT
_SEND_FLAGS = _NO_SIGNAL | _DONT_WAIT
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds of silence, between probes, and probes without an answer; the first two names are one
option on different systems."""
_UNHEARD_MS = 40_000
"""How long what was sent may stay without an answer of the other machine's system. Without it the
system tries for a quarter of an hour: while something is on its way it does not ask whether the
other end is alive, and a router that forgot a connection drops all of it without a word. An end
that reads nothing for so long is given up, too; and where it is set it decides when probes that
nobody answers end a connection, in place of their number."""
_HANG_UP = getattr(select, "POLLRDHUP", 0)
_BUSY = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Stream(Protocol):
    """What a connection reads from and writes to."""

    can_scatter: bool
    """Whether `read_many` is there."""

    def read(self, buffer: Any) -> int:
        """Read what is there; 0 is the end. Raises `BlockingIOError` where nothing is."""
        ...

    def read_many(self, buffers: Sequence[Any]) -> int:
        """Read what is there into several buffers, one after the other."""
        ...

    def take(self, buffer: Any) -> int:
        """Read what is there, or what comes first; 0 is the end."""
        ...

    def take_many(self, buffers: Sequence[Any]) -> int:
        """Do so into several buffers."""
        ...

    def wait(self, timeout_s: float | None, least: int = 1) -> bool:
        """Wait until there is something to read, or the end; False where the time is over.

        Where the platform can tell, it is worth waking up for so many bytes only. There may be
        fewer all the same.
        """
        ...

    def write(self, parts: list[Any], total: int, timeout_s: float | None) -> int:
        """Write all; returns the bytes written, fewer than `total` only where the time is over."""
        ...

    def wait_for_room(self, timeout_s: float) -> None:
        """Wait until more can be written, or the end, or the time is over."""
        ...

    def shutdown(self) -> None:
        """End both directions: every wait, of any thread, returns at once."""
        ...

    def close(self) -> None:
        """Close the socket."""
        ...


class SocketStream:
    """A plain socket."""

    can_scatter = True

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._recv_into = sock.recv_into
        self._recvmsg_into = sock.recvmsg_into
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6)
        self._can_tell = is_tcp and sys.platform == "linux"

    def read(self, buffer: Any) -> int:
        return self._recv_into(buffer, 0, _DONT_WAIT)

    def read_many(self, buffers: Sequence[Any]) -> int:
        return self._recvmsg_into(buffers, 0, _DONT_WAIT)[0]

    def take(self, buffer: Any) -> int:
        return self._recv_into(buffer)

    def take_many(self, buffers: Sequence[Any]) -> int:
        return self._recvmsg_into(buffers)[0]

    def wait(self, timeout_s: float | None, least: int = 1) -> bool:
        limit_ms = None if timeout_s is None else timeout_s * 1000.0
        if least < _LOW_WATER or not self._can_tell:
            return bool(self._readable.poll(limit_ms))
        set_option = self._sock.setsockopt
        set_option(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(least, _HIGH_WATER))
        try:
            return bool(self._readable.poll(limit_ms))
        finally:
            set_option(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def write(self, parts: list[Any], total: int, timeout_s: float | None) -> int:
        sock = self._sock
        try:
            if total <= _JOIN_BELOW or len(parts) > _MOST_PARTS:
                parts = [b"".join(parts)]
                sent = sock.send(parts[0], _SEND_FLAGS)
            else:
                sent = sock.sendmsg(parts, (), _SEND_FLAGS)
        except BlockingIOError:
            sent = 0
        if sent == total:
            return sent
        return sent + _write_rest(sock, remaining(parts, sent), timeout_s, self._send_some)

    def _send_some(self, views: list[memoryview]) -> int:
        return self._sock.sendmsg(views, (), _SEND_FLAGS)

    def wait_for_room(self, timeout_s: float) -> None:
        _wait_for_room(self._sock, timeout_s)

    def shutdown(self) -> None:
        _shutdown(self._sock)

    def close(self) -> None:
        self._sock.close()


class WrappedStream:
    """A socket without scatter-gather and flags, such as a TLS socket.

    One thread may write while another reads, which a TLS socket by itself does not bear: a lock is
    held for each call of it. Calls never wait, so nobody waits long.
    """

    can_scatter = False

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        # reentrant: a signal handler may close what its own thread reads
        self._lock = threading.RLock()
        self._recv_into = sock.recv_into
        self._pending: Callable[[], int] = getattr(sock, "pending", lambda: 0)
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)

    def read(self, buffer: Any) -> int:
        try:
            with self._lock:
                return self._recv_into(buffer)
        except ssl.SSLZeroReturnError:
            return 0
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def read_many(self, buffers: Sequence[Any]) -> int:
        return self.read(buffers[0])

    def take(self, buffer: Any) -> int:
        while True:
            self.wait(None)
            with contextlib.suppress(BlockingIOError):
                return self.read(buffer)

    def take_many(self, buffers: Sequence[Any]) -> int:
        return self.take(buffers[0])

    def wait(self, timeout_s: float | None, least: int = 1) -> bool:
        del least  # what was read ahead counts, too
        with self._lock:
            if self._pending():
                return True
        return bool(self._readable.poll(None if timeout_s is None else timeout_s * 1000.0))

    def write(self, parts: list[Any], total: int, timeout_s: float | None) -> int:
        if total <= _JOIN_BELOW or len(parts) > _MOST_PARTS:
            parts = [b"".join(parts)]
        views = remaining(parts, 0)
        return _write_rest(self._sock, views, timeout_s, self._send_some)

    def _send_some(self, views: list[memoryview]) -> int:
        with self._lock:
            return self._sock.send(views[0])

    def wait_for_room(self, timeout_s: float) -> None:
        _wait_for_room(self._sock, timeout_s)

    def shutdown(self) -> None:
        _shutdown(self._sock)

    def close(self) -> None:
        self._sock.close()


def open_stream(sock: socket.socket) -> Stream:
    """Return the stream of a connected socket, with buffers and delays set."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        # without this, small messages wait 40 ms for an acknowledgement
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(sock)
    else:
        # not of TCP, whose buffers grow as the way needs them until somebody sets them: most
        # systems allow less to be set than that
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            with contextlib.suppress(OSError):  # a system may refuse so large a one
                sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    return WrappedStream(sock) if isinstance(sock, ssl.SSLSocket) else SocketStream(sock)


def _keep_alive(sock: socket.socket) -> None:
    """Have the system notice within a minute that the other machine, or the way there, is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        option = getattr(socket, name, None)
        if option is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
    unheard: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)  # not on macOS
    if unheard is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, unheard, _UNHEARD_MS)


def is_hung_up(sock: socket.socket) -> bool:
    """Return whether the peer of a socket sends no more; what came before may still be unread."""
    try:
        events = select.poll()
        events.register(sock, _HANG_UP)
        if events.poll(0):
            return True
        # of the plain socket: the one of a TLS socket cannot look ahead
        return not _HANG_UP and not socket.socket.recv(sock, 1, socket.MSG_PEEK | _DONT_WAIT)
    except BlockingIOError:
        return False
    except (OSError, ValueError):  # it is closed
        return True


def remaining(parts: Sequence[Any], sent: int) -> list[memoryview]:
    """Return what is left of some buffers when so many of their bytes have been sent."""
    left: list[memoryview] = []
    for part in parts:
        view = memoryview(part)
        size = view.nbytes
        if sent >= size:
            sent -= size
            continue
        left.append(view.cast("B")[sent:] if sent else view.cast("B"))
        sent = 0
    return left


def _write_rest(
    sock: socket.socket,
    views: list[memoryview],
    timeout_s: float | None,
    send: Callable[[list[memoryview]], int],
) -> int:
    """Write what a first attempt left over; returns the bytes written."""
    writable = select.poll()
    writable.register(sock, select.POLLOUT)
    expiry = None if timeout_s is None else time.monotonic() + timeout_s
    total = 0
    while views:
        try:
            sent = send(views[:_MOST_PARTS])
        except _BUSY:
            sent = 0
        total += sent
        views = remaining(views, sent)
        if views and not sent:
            left_s = None if expiry is None else max(0.0, expiry - time.monotonic())
            if not writable.poll(None if left_s is None else left_s * 1000.0):
                break
    return total


def _wait_for_room(sock: socket.socket, timeout_s: float) -> None:
    writable = select.poll()
    with contextlib.suppress(OSError, ValueError):  # closed meanwhile
        writable.register(sock, select.POLLOUT)
        writable.poll(timeout_s * 1000.0)


def _shutdown(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # of the plain socket: the one of a TLS socket would drop its encryption under a reader
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
