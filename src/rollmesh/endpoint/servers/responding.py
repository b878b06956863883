"""Sending replies where several threads answer over one connection (layer 6).

Each sender has a limit of its own, which counts while it waits for others, too. A reply must not
be dropped for that: the client would wait for it, on a connection that is as it should be. So
whoever was not let through asks for its turn again; those before it come to an end, or the
connection does.

It knows no sessions.
"""

from __future__ import annotations

from collections.abc import Callable

from rollmesh.errors import TransportTimeout
from rollmesh.transport.connection import Connection
from rollmesh.wire.messages import Message


def responder(connection: Connection, limit_s: float) -> Callable[[Message], None]:
    """Return what sends replies over a connection.

    What it returns raises what `Connection.send` does, but no `TransportTimeout` after which the
    connection could be used.

    Args:
        connection: The client's.
        limit_s: How long the client may take for each, in seconds.
    """
    send = connection.send

    def respond(reply: Message) -> None:
        while True:
            try:
                send(reply, limit_s)
            except TransportTimeout as late:
                if not late.is_usable:
                    raise
            else:
                return

    return respond
