"""Listeners: where servers accept native connections (layer 5)."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from rollmesh.errors import ConnectionLost, ListenFailed
from rollmesh.transport.address import Address
from rollmesh.transport.connection import DEFAULT_OPTIONS, Connection, ConnectionOptions
from rollmesh.transport.native import NativeConnection
from rollmesh.transport.stream import Wrap
from rollmesh.transport.unix_paths import bind_path, own_path, unlink_own

if TYPE_CHECKING:
    from typing_extensions import Self

_BACKLOG = 128
WRAP_S = 10.0
"""How long a wrapper (a TLS handshake) may take on the accepting side."""
_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_FULL_PAUSE_S = 0.05
IN_USE = (
    "address in use: another server listens there; stop it, choose another port, or port 0 for a "
    "free one"
)
"""What is told of a port that is taken."""


class Listener(ABC):
    """Accepts connections at an address.

    Attributes:
        address: What was bound, read back: with the real port and path.
    """

    address: Address

    @abstractmethod
    def accept(self, timeout_s: float | None = None) -> Connection | None:
        """Return the next connection, or None where none came in time.

        The connection takes small messages only until `admit`.

        Raises:
            ConnectionLost: The listener was closed, maybe from another thread while waiting.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop listening; an `accept` under way ends. Connections live on. Any thread may."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NativeListener(Listener):
    """Listens at a unix or TCP socket.

    A wrapper for TCP sockets (TLS) runs within `accept`, for `WRAP_S` at most; a peer that fails
    it is dropped. To keep one slow peer from holding up the others, use `accept_socket` and call
    `open_connection` on a thread of the connection.

    Args:
        address: Of the native protocol. Port 0 and an empty path let us choose.
        options: How its connections move messages.
        wrap: Applied to accepted TCP sockets.

    Raises:
        ListenFailed: The address is in use or cannot be bound.
        InvalidSpec: The path is too long.
    """

    def __init__(
        self,
        address: Address,
        options: ConnectionOptions = DEFAULT_OPTIONS,
        *,
        wrap: Wrap | None = None,
    ) -> None:
        self._options = options
        self._wrap = wrap
        self._identity: tuple[int, int] | None = None
        self._closed = False
        self._lock = threading.RLock()  # a signal handler may close what its thread waits for
        self._sock, self.address = self._bind(address)
        self._sock.setblocking(False)
        self._wake, self._waker = socket.socketpair()
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)

    def accept(self, timeout_s: float | None = None) -> Connection | None:
        expiry = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if expiry is None else max(0.0, expiry - time.monotonic())
            sock = self.accept_socket(left_s)
            if sock is None:
                return None
            with contextlib.suppress(OSError):
                return self.open_connection(sock)

    def accept_socket(self, timeout_s: float | None = None) -> socket.socket | None:
        """Return the next socket as it is, or None where none came in time.

        Raises:
            ConnectionLost: As `accept`.
        """
        with self._lock:
            return self._accept_socket(timeout_s)

    def _accept_socket(self, timeout_s: float | None) -> socket.socket | None:
        expiry = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._closed:
            left_s = None if expiry is None else max(0.0, expiry - time.monotonic())
            if not self._poll.poll(None if left_s is None else left_s * 1000.0):
                return None
            if self._closed:
                break
            try:
                return self._sock.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:
                if error.errno not in _FULL:
                    break
                # out of descriptors: leave the peer in the queue for a moment
                time.sleep(_FULL_PAUSE_S)
        raise ConnectionLost(str(self.address), "the listener is closed")

    def open_connection(self, sock: socket.socket) -> NativeConnection:
        """Return the connection of an accepted socket.

        Raises:
            OSError: The wrapper refused the peer; the socket is closed.
        """
        try:
            if self._wrap is not None and sock.family != getattr(socket, "AF_UNIX", None):
                sock.settimeout(WRAP_S)
                sock = self._wrap(sock)
            name, place = peer_name(sock, self.address), f"at {self.address}"
            return NativeConnection(sock, name, self._options, place=place)
        except BaseException:
            sock.close()
            raise

    def close(self) -> None:
        self._closed = True
        self._waker.close()  # wakes an accept, which lets go of the lock
        with self._lock:
            self._sock.close()
            self._wake.close()
            identity, self._identity = self._identity, None
        if identity is not None:
            unlink_own(self.address.path, identity)

    def _bind(self, address: Address) -> tuple[socket.socket, Address]:
        if address.family == "unix":
            path = address.path or own_path()
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            bound = Address(protocol=address.protocol, family="unix", path=path)
            try:
                self._identity = bind_path(sock, path, str(bound), _BACKLOG)
            except BaseException:
                sock.close()
                raise
            return sock, bound
        sock = _bind_tcp(address)
        host, port = sock.getsockname()[:2]
        if address.host == "localhost":
            host = address.host
        bound = Address(protocol=address.protocol, family="tcp", host=host, port=port)
        return sock, bound


def _bind_tcp(address: Address) -> socket.socket:
    host = "127.0.0.1" if address.host == "localhost" else address.host
    try:
        found = socket.getaddrinfo(
            host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise ListenFailed(str(address), f"the host is not known: {error}") from error
    family, kind, number, _, where = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    sock = socket.socket(family, kind, number)
    try:
        if os.name == "posix":
            # a port whose last connections are still in TIME_WAIT can be used again
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(where)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ListenFailed(str(address), IN_USE) from error
        raise ListenFailed(str(address), str(error)) from error
    return sock


def peer_name(sock: socket.socket, address: Address) -> str:
    """Return the other end of a socket for messages: host and port, or the socket file."""
    if address.family == "unix":
        return str(address)
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return str(address)
    return str(Address(protocol=address.protocol, family="tcp", host=host, port=port))
