"""The reception of a server: who comes in, and what is said to them there (layer 6).

A client's first message is HELLO. Token, whom it takes us for, generation and service are looked
at, in this order, and before anything else of it; whoever is refused is told why. What becomes of
the others is the server's business.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from rollmesh.endpoint.error_bodies import Refused, error
from rollmesh.endpoint.identity import SERVER_FACT, processes_of, who_we_are
from rollmesh.endpoint.servers.sessions import Arrival
from rollmesh.errors import RollmeshError
from rollmesh.ids import MINT
from rollmesh.transport.connection import Connection
from rollmesh.transport.security import Peer, Token
from rollmesh.wire.handshake import EDITION, EDITIONS
from rollmesh.wire.messages import GENERATION, ErrorBody, Hello, Kind, Welcome

_logger = logging.getLogger(__name__)

HELLO_S = 10.0
"""How long a client may take to say who it is, or to hear that it is refused."""
DRAINING = Refused("draining", "this server is about to end").body
"""What clients are told that come while the server ends."""

Service: TypeAlias = Literal["env", "model"]
Enter: TypeAlias = Callable[[Arrival, Hello], "ErrorBody | None"]
"""Gives a client that was checked its session; returns why not, or None."""


class Reception:
    """Receives the clients of a server.

    Args:
        service: What is served.
        secret: The token that clients must know, if any.
        is_draining: Whether new clients are turned away.
        enter: What becomes of those that were checked.

    Attributes:
        id: Tells this server from every other one, whatever its address looks like from elsewhere.
    """

    def __init__(
        self,
        service: Service,
        secret: Token | None,
        *,
        is_draining: Callable[[], bool],
        enter: Enter,
    ) -> None:
        self.id = MINT.mint()
        self._service = service
        self._secret = secret
        self._is_draining = is_draining
        self._enter = enter

    def greet(self, connection: Connection, peer: Peer) -> None:
        """Receive the hello of a connection, and let its client in or refuse it.

        Args:
            connection: A new one, which takes small messages only.
            peer: How close the other end is.
        """
        try:
            message = connection.receive(HELLO_S)
            hello = message.body
            if message.kind is not Kind.HELLO or not isinstance(hello, Hello):
                body = ErrorBody(code="unauthenticated", message="the first message must be HELLO")
                refused: ErrorBody | None = body
            else:
                refused = self.check(hello)
            if refused is not None:
                connection.send(error(message.request_id, refused), HELLO_S)
                connection.close()
                return
        except RollmeshError as exc:
            _logger.info("no_hello client=%s error=%s", connection.address, exc)
            connection.close()
            return
        if connection.is_gone():
            _logger.info("no_client client=%s detail=it did not wait", connection.address)
            connection.close()
            return
        connection.share(processes_of(hello.peer))
        name = hello.peer.get("host", "") + ":" + hello.peer.get("process", "")
        arrival = Arrival(
            connection=connection,
            request_id=message.request_id,
            peer=peer,
            name=one_line(f"{connection.address} {name}"[:200]),
        )
        refused = self._enter(arrival, hello)
        if refused is not None:
            with contextlib.suppress(RollmeshError):
                connection.send(error(message.request_id, refused), HELLO_S)
            connection.close()

    def check(self, hello: Hello) -> ErrorBody | None:
        """Return why a client is refused, or None. The token comes first."""
        if self._secret is not None and not self._secret.matches(hello.token):
            return _refusal("unauthenticated", "the token is missing or wrong")
        if hello.peer.get(SERVER_FACT, self.id) != self.id:
            return _refusal("other_server", "the client was sent to another server than this one")
        if hello.generation != GENERATION:
            return _refusal(
                "incompatible",
                f"this server speaks {GENERATION}, the client {hello.generation[:80]!r}; use "
                "versions of both that share a generation",
            )
        if hello.service != self._service:
            return _refusal(
                "incompatible",
                f"this address serves {_a(self._service)}, the client wants "
                f"{_a(hello.service[:80])}; check which address is which",
            )
        return DRAINING if self._is_draining() else None

    def welcome(self, session_id: str, **given: Any) -> Welcome:
        """Return the welcome of a session.

        Args:
            session_id: Its id.
            given: What else the client is told; see `Welcome`.
        """
        return Welcome(
            generation=GENERATION,
            session_id=session_id,
            editions=EDITIONS,
            preferred_edition=EDITION,
            peer=who_we_are(f"rollmesh-{self._service}"),
            **given,
        )


def _refusal(code: str, message: str) -> ErrorBody:
    """Return a refusal that trying again does not cure."""
    return Refused(code, message, is_recoverable=False).body


def one_line(text: str) -> str:
    """Return a peer's words without what could pass for another line of a log."""
    return "".join([letter if letter.isprintable() else "?" for letter in text])


def _a(service: str) -> str:
    return f"an {service}" if service[:1] in "aeiou" else f"a {service}"
