"""The driver's door: where workers dial in and say who they are (layer 7).

It stands at a socket file in a folder of this user's own, or at a TCP port for workers on other
machines. A worker's first message is a `Hello` with its name and the secret of its start; whoever
says anything else is turned away. Once admitted, the connection belongs to whoever waits for it.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import threading
from collections.abc import Callable
from typing import TypeAlias

from rollmesh.errors import ConnectionLost, RollmeshError
from rollmesh.transport.address import parse_address
from rollmesh.transport.connection import ConnectionOptions
from rollmesh.transport.listening import NativeListener
from rollmesh.transport.native import NativeConnection
from rollmesh.wire.messages import GENERATION, Hello, Kind

_logger = logging.getLogger(__name__)

SERVICE = "worker"
_HELLO_S = 10.0

Arrived: TypeAlias = Callable[[NativeConnection, socket.socket], None]
"""Takes the connection of a worker and the socket under it; called on a thread of the door."""


class WorkerDoor:
    """Listens for workers.

    Args:
        address: Where; a socket file of our own by default.
        options: How its connections move messages.

    Raises:
        ListenFailed: It cannot listen there.
    """

    def __init__(
        self, address: str = "rollmesh+unix://", options: ConnectionOptions | None = None
    ) -> None:
        self._listener = NativeListener(
            parse_address(address, "bind"), options or ConnectionOptions()
        )
        self.address = str(self._listener.address)
        self._expected: dict[str, tuple[str, Arrived]] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="rollmesh-door", daemon=True)
        self._thread.start()

    def expect(self, name: str, arrived: Arrived) -> str:
        """Wait for a worker of that name; return the secret that it must say."""
        token = secrets.token_hex(16)
        with self._lock:
            self._expected[name] = token, arrived
        return token

    def forget(self, name: str) -> None:
        """Wait for it no longer."""
        with self._lock:
            self._expected.pop(name, None)

    def close(self) -> None:
        """Stop listening. Connections live on. Any number of times."""
        self._listener.close()
        self._thread.join()

    # ----------------------------------------------------------------------- its own threads

    def _run(self) -> None:
        with contextlib.suppress(ConnectionLost):
            while (sock := self._listener.accept_socket()) is not None:
                # on a thread of its own: one that says nothing does not hold up the others
                greet = threading.Thread(
                    target=self._greet, args=(sock,), name="rollmesh-greeting", daemon=True
                )
                greet.start()

    def _greet(self, sock: socket.socket) -> None:
        try:
            connection = self._listener.open_connection(sock)
        except OSError:
            return
        arrived = None
        try:
            arrived = self._admit(connection)
        except RollmeshError as error:
            _logger.warning("worker_refused address=%s error=%s", self.address, error)
        if arrived is None:
            connection.close()
            return
        connection.admit()
        arrived(connection, sock)

    def _admit(self, connection: NativeConnection) -> Arrived | None:
        """Read who it is; return who waits for it."""
        message = connection.receive(_HELLO_S)
        hello = message.body
        if message.kind is not Kind.HELLO or not isinstance(hello, Hello):
            return None
        name = hello.peer.get("worker", "")
        with self._lock:
            token, arrived = self._expected.get(name, ("", None))
            is_right = bool(token) and hmac.compare_digest(
                token.encode(), hello.token.encode("utf-8", "surrogatepass")
            )
            if not is_right or hello.generation != GENERATION or hello.service != SERVICE:
                _logger.warning("worker_refused address=%s detail=it is not expected", self.address)
                return None
            del self._expected[name]
        return arrived
