"""The doors of a server, as one: everything about where it listens (layer 6).

Addresses are checked when the server is made, bound when it starts, and opened to clients once
there is something to serve.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmesh.endpoint.servers.doors import Door, ListenerDoor, check_tls, private_addresses
from rollmesh.errors import InvalidSpec
from rollmesh.transport.address import LONGEST_UNIX_PATH, Address, parse_address
from rollmesh.transport.security import check_bind, server_wrap

if TYPE_CHECKING:
    from rollmesh.endpoint.servers.serving import Server

_logger = logging.getLogger(__name__)


class DoorSet:
    """The doors of one server.

    Args:
        server: Whose; it has its options.
        address: Where to listen, or several of these.

    Raises:
        InvalidSpec: An address is none, or needs TLS and a token.
    """

    def __init__(self, server: Server, address: str | Address | Sequence[str | Address]) -> None:
        self._server = server
        self._options = options = server.options
        given: list[Any] = [address]
        if isinstance(address, Sequence) and not isinstance(address, str):
            given = list(address)
        if not given:
            raise InvalidSpec("address", "wants at least one")
        self._asked = [
            _absolute(one if isinstance(one, Address) else parse_address(one, "bind"))
            for one in given
        ]
        for asked in self._asked:
            check_bind(
                asked,
                token=options.secret,
                tls=options.tls,
                insecure_plaintext=options.insecure_plaintext,
            )
        self._doors: list[Door] = []

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where they are, read back: with real ports and paths; empty until `bind`."""
        return tuple([str(door.address) for door in self._doors])

    def bind(self) -> None:
        """Listen at all addresses, without letting anybody in.

        Raises:
            ListenFailed: One of them is in use or cannot be bound; none is bound then.
            InvalidSpec: A file of TLS cannot be used.
        """
        options = self._options
        check_tls(self._asked, options.tls)
        try:
            for asked in self._asked:
                self._doors.append(self._door(asked))
            for private in private_addresses(self._asked, native=options.native, tls=options.tls):
                self._try_door(private)
        except BaseException:
            self.close()
            raise

    def open(self) -> None:
        """Let clients in; returns at once."""
        for door in self._doors:
            door.open()

    def close(self) -> None:
        """Let no more clients in; those inside stay. Any thread may, any number of times."""
        for door in self._doors:
            try:
                door.close()
            except Exception:
                _logger.exception("door_close_failed address=%s", door.address)

    def _door(self, address: Address) -> Door:
        if address.protocol == "grpc":
            from rollmesh.endpoint.servers.grpc_door import GrpcDoor  # loads grpc

            return GrpcDoor(self._server, address)
        options = self._options
        wrap = None if options.tls is None or address.family != "tcp" else server_wrap(options.tls)
        greet = self._server.reception.greet
        return ListenerDoor(address, greet, options=options.connection, wrap=wrap)

    def _try_door(self, address: Address) -> None:
        """Listen at an address that nobody asked for: a server does without it where it cannot."""
        try:
            self._doors.append(self._door(address))
        except OSError as exc:  # ListenFailed is one
            _logger.warning("no_native_address detail=%s; clients stay with gRPC", exc)


def _absolute(address: Address) -> Address:
    """Return an address that means the same when an env changes the working directory.

    A path that would be too long for a socket then stays as it was given.
    """
    if address.family != "unix" or not address.path:
        return address
    path = str(Path(address.path).absolute())
    if len(os.fsencode(path)) > LONGEST_UNIX_PATH:
        return address
    return replace(address, path=path)
