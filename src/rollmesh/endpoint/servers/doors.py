"""Doors: where clients of a server come in, one per address (layer 6).

A door accepts connections and has each one greeted on a thread of its own, so that a slow peer, or
a TLS handshake, holds up nobody else. How many are greeted at once is bounded.

A transport of another kind is another `Door`: it hands its connections to the server's
`Reception.greet`.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from rollmesh.errors import ConnectionLost
from rollmesh.transport.address import Address
from rollmesh.transport.connection import Connection, ConnectionOptions
from rollmesh.transport.dialing import listen
from rollmesh.transport.listening import Listener, NativeListener
from rollmesh.transport.security import Peer, TlsServer, peer_of
from rollmesh.transport.stream import Wrap

_logger = logging.getLogger(__name__)

MOST_GREETED = 64
"""Connections that have not said who they are; more are dropped."""
PRIVATE = Address(protocol="native", family="unix")
"""Listens at a socket file of this user in a private folder."""

Greet = Callable[[Connection, Peer], None]


class Door(Protocol):
    """Where clients come in."""

    @property
    def address(self) -> Address:
        """What was bound, read back."""
        ...

    def open(self) -> None:
        """Let clients in; returns at once."""
        ...

    def close(self) -> None:
        """Let no more clients in; those inside stay. Any thread may, any number of times."""
        ...


class ListenerDoor:
    """A door of the native and memory transports; it listens when it is made.

    Args:
        address: Where to listen.
        greet: Called with each connection on a thread of its own.
        options: How connections move messages.
        wrap: TLS of accepted TCP sockets.

    Raises:
        ListenFailed: The address is in use or cannot be bound.
    """

    def __init__(
        self, address: Address, greet: Greet, *, options: ConnectionOptions, wrap: Wrap | None
    ) -> None:
        self._listener: Listener = listen(address, options, wrap=wrap)
        self._greet = greet
        self._greeting = threading.Semaphore(MOST_GREETED)
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> Address:
        return self._listener.address

    def open(self) -> None:
        name = f"rollmesh-door {self.address}"
        self._thread = threading.Thread(target=self._accept, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

    def _accept(self) -> None:
        listener: Any = self._listener
        is_native = isinstance(listener, NativeListener)
        accept: Callable[[], Any] = listener.accept_socket if is_native else listener.accept
        while True:
            try:
                accepted = accept()
            except ConnectionLost:
                return
            if accepted is None:
                continue
            if not self._greeting.acquire(blocking=False):
                _logger.warning("connection_dropped address=%s detail=too many", self.address)
                accepted.close()
                continue
            greeter = threading.Thread(
                target=self._let_in, args=(accepted,), name="rollmesh-greeter", daemon=True
            )
            try:
                greeter.start()
            except RuntimeError:  # no more threads
                self._greeting.release()
                accepted.close()

    def _let_in(self, accepted: Any) -> None:
        try:
            if isinstance(accepted, Connection):
                self._greet(accepted, Peer.SAME_USER)
                return
            peer = peer_of(accepted)
            listener = self._listener
            assert isinstance(listener, NativeListener)  # noqa: S101 - it gave us a socket
            with contextlib.suppress(OSError):  # it failed the TLS handshake
                self._greet(listener.open_connection(accepted), peer)
        except Exception:
            _logger.exception("greeting_failed address=%s", self.address)
        finally:
            self._greeting.release()


def private_addresses(
    asked: Iterable[Address], *, native: bool | None, tls: TlsServer | None = None
) -> list[Address]:
    """Return where a server listens for clients of ours on this machine, beside what was asked for.

    That is a private socket file where all addresses speak gRPC, and nothing where one of them is
    native already, or where this platform has no socket files. Clients that must have a
    certificate could come in there without one, so that it is left out then unless asked for.

    Args:
        asked: Where the server was asked to listen.
        native: Whether it may; None where clients need no certificate.
        tls: TLS of the TCP addresses.
    """
    may = native if native is not None else tls is None or tls.client_ca is None
    is_only_grpc = all(address.protocol == "grpc" for address in asked)
    return [PRIVATE] if may and is_only_grpc and hasattr(socket, "AF_UNIX") else []


def check_tls(asked: Iterable[Address], tls: TlsServer | None) -> None:
    """Read the files of TLS, and warn where no address uses them.

    Args:
        asked: Where a server is about to listen.
        tls: What it was given; None is nothing.

    Raises:
        InvalidSpec: A file cannot be read or does not hold what it should.
    """
    if tls is None:
        return
    tls.context()
    addresses = list(asked)
    if not any(address.family == "tcp" for address in addresses):
        _logger.warning(
            "tls_unused addresses=%s detail=no TCP address is among them, so that TLS protects "
            "nothing here; leave it out, or listen at host:port",
            ", ".join(map(str, addresses)),
        )
