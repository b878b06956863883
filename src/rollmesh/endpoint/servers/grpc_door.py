"""The gRPC door of a server: for released peers, and for clients of ours that come through it (6).

Its handshake tells clients of ours where the server's native listeners are
(`transport/upgrade.py`), and on which machine. Importing it loads grpc.
"""

from __future__ import annotations

from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import CAPABILITIES
from rollmesh.endpoint.servers.serving import Server
from rollmesh.transport.address import Address
from rollmesh.transport.connection import Connection
from rollmesh.transport.grpc_listener import GrpcListener
from rollmesh.transport.security import Peer, Token
from rollmesh.transport.upgrade import native_facts
from rollmesh.wire.contract import encode_contract
from rollmesh.wire.handshake import EDITION, EDITIONS
from rollmesh.wire.messages import (
    GENERATION,
    ErrorBody,
    Hello,
    Shutdown,
    ShutdownReply,
    Welcome,
)
from rollmesh.wire.proto_handshake import Service


class GrpcDoor:
    """Lets gRPC clients in.

    Args:
        server: Who is served.
        address: Where to listen.

    Raises:
        ListenFailed: The address is in use or cannot be bound.
    """

    def __init__(self, server: Server, address: Address) -> None:
        self._server = server
        self.service: Service = server.service
        self.token: Token | None = server.options.secret
        tls = server.options.tls if address.family == "tcp" else None
        self._listener = GrpcListener(address, self, options=server.options.connection, tls=tls)

    @property
    def address(self) -> Address:
        """What was bound, read back."""
        return self._listener.address

    def open(self) -> None:
        """Let clients in."""
        self._listener.open()

    def close(self) -> None:
        """Let no more clients in; those inside stay."""
        self._listener.close()

    # ------------------------------------------------------------------------ Host

    def describe(self, hello: Hello) -> Welcome | ErrorBody:
        """Return what is served, or why the client is refused."""
        server = self._server
        refused = server.reception.check(hello)
        if refused is not None:
            return refused
        contract, capabilities = _described(server)
        return Welcome(
            generation=GENERATION,
            contract=contract,
            capabilities=capabilities,
            peer=native_facts(server.addresses, server.reception.id),
            editions=EDITIONS,
            preferred_edition=EDITION,
        )

    def join(self, connection: Connection, peer: Peer) -> None:
        """Greet a client."""
        self._server.reception.greet(connection, peer)

    def shutdown(self, request: Shutdown) -> ShutdownReply:
        """End the server where the options allow clients to."""
        server = self._server
        if not server.options.allow_remote_shutdown:
            kind = "environment" if self.service == "env" else "model"
            return ShutdownReply(
                is_accepted=False, detail=f"remote shutdown is disabled for this {kind} endpoint"
            )
        server.ask_shutdown(f"asked to by a client: {request.reason[:200]}")
        return ShutdownReply(is_accepted=True)

    def is_serving(self) -> bool:
        """Whether a new client would be served."""
        return self._server.is_serving


def _described(server: Server) -> tuple[bytes, dict[str, str]]:
    """Return contract and capabilities of what is served."""
    if isinstance(server, EnvServer):
        return encode_contract(server.contract), server.capabilities
    return b"", CAPABILITIES
