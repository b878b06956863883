"""gRPC: where servers listen (layer 5).

    listener = GrpcListener(parse_address("tcp://127.0.0.1:0", "bind"), host)
    listener.open()          # from here on clients come in: `host.join(connection, peer)`
    listener.close()

Handshake, Shutdown and the standard health service are answered here with what the host says.
The token is compared before anything that a client sent is read.

grpc is imported here.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from rollmesh.errors import ListenFailed, WireError
from rollmesh.transport.address import Address
from rollmesh.transport.connection import DEFAULT_OPTIONS, Connection, ConnectionOptions
from rollmesh.transport.grpc_calls import CallEnded, CallLate, Metadata, ServerCall
from rollmesh.transport.grpc_common import (
    HEALTH_SERVICE,
    SERVER_OPTIONS,
    SERVICES,
    TOKEN_KEY,
    status_of,
    target_of,
)
from rollmesh.transport.grpc_engine import Answer, Begin, CallRefused, make_engine
from rollmesh.transport.grpc_loading import grpc
from rollmesh.transport.grpc_server import GrpcServerConnection, as_text, hello_of, offer_of
from rollmesh.transport.listening import IN_USE
from rollmesh.transport.security import Peer, TlsServer, Token, peer_of_grpc
from rollmesh.transport.unix_paths import bind_path, unlink_own
from rollmesh.wire import protobuf as wire
from rollmesh.wire.contract import decode_contract
from rollmesh.wire.handshake import Offer, check_generation
from rollmesh.wire.messages import (
    GENERATION,
    ErrorBody,
    Hello,
    Shutdown,
    ShutdownReply,
    Welcome,
)
from rollmesh.wire.proto_handshake import Service
from rollmesh.wire.proto_health import read_health_request, write_health

_logger = logging.getLogger(__name__)

_MOST_WATCHERS = 64
_STOP_S = 10.0
_WATCH_S = 0.25
_SEND_S = 2.0
_BACKLOG = 16
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - to know them
_Read = TypeVar("_Read")


class Host(Protocol):
    """Who is served over a listener."""

    service: Service
    token: Token | None

    def describe(self, hello: Hello) -> Welcome | ErrorBody:
        """Return what is served, without opening a session."""
        ...

    def join(self, connection: Connection, peer: Peer) -> None:
        """Take a client's connection; must return soon."""
        ...

    def shutdown(self, request: Shutdown) -> ShutdownReply:
        """End the server, or say why not."""
        ...

    def is_serving(self) -> bool:
        """Whether a new client would be served."""
        ...


class GrpcListener:
    """Listens at a TCP or unix address, from `open` on.

    Args:
        address: Of the protocol `grpc`; port 0 lets the system choose one.
        host: Who is served.
        options: How connections move messages.
        tls: TLS, for TCP addresses.

    Attributes:
        address: What was bound, read back.

    Raises:
        ListenFailed: The address is in use or cannot be bound.
        InvalidSpec: A file of the TLS options cannot be used.
    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        options: ConnectionOptions = DEFAULT_OPTIONS,
        tls: TlsServer | None = None,
    ) -> None:
        self._host = host
        self._options = options
        self._is_closed = False
        self._lock = threading.Lock()
        self._watchers: dict[ServerCall, bytes] = {}
        self._identity: tuple[int, int] | None = None
        service = f"/{SERVICES[host.service]}"
        health = f"/{HEALTH_SERVICE}"
        self._answers: dict[str, Answer] = {
            f"{service}/Handshake": self._handshake,
            f"{service}/Shutdown": self._shutdown,
            f"{health}/Check": self._check,
        }
        self._streams: dict[str, Begin] = {
            f"{service}/Join": self._join,
            f"{health}/Watch": self._watch,
        }
        self._engine = make_engine(self, SERVER_OPTIONS)
        try:
            self.address = self._bind(address, tls)
        except BaseException:
            self._engine.stop(0.0)
            raise

    def open(self) -> None:
        """Let clients in."""
        self._engine.start()

    def close(self) -> None:
        """Let no more clients in; open joins go on. Any thread may, any number of times."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            watchers, self._watchers = self._watchers, {}
            identity, self._identity = self._identity, None
        for call in watchers:
            with contextlib.suppress(CallEnded, CallLate):
                call.write(write_health("not_serving"), _SEND_S)
            call.finish(grpc.StatusCode.OK, "")
        self._engine.stop(_STOP_S)
        if identity is not None:
            unlink_own(self.address.path, identity)

    def find_answer(self, path: str) -> Answer | None:
        """Return what answers a method; see `grpc_engine.Methods`."""
        return self._answers.get(path)

    def find_stream(self, path: str) -> Begin | None:
        """Return what takes calls of a method; see `grpc_engine.Methods`."""
        return self._streams.get(path)

    # ------------------------------------------------------------------------ binding

    def _bind(self, address: Address, tls: TlsServer | None) -> Address:
        if address.family == "unix":
            return self._bind_unix(address)
        host = "127.0.0.1" if address.host == "localhost" else address.host
        target = target_of(Address(protocol="grpc", family="tcp", host=host, port=address.port))
        _check_free(address, host)
        try:
            if tls is None:
                port = self._engine.add_port(target, None)
            else:
                pem = tls.pem()
                credentials = grpc.ssl_server_credentials(
                    [(pem.key or b"", pem.certificate or b"")],
                    pem.ca,
                    require_client_auth=pem.ca is not None,
                )
                port = self._engine.add_port(target, credentials)
        except RuntimeError as error:
            raise ListenFailed(
                str(address),
                "the address is in use, or not of this machine; stop the server that listens "
                "there, choose another port, or port 0 for a free one",
            ) from error
        return Address(protocol="grpc", family="tcp", host=address.host, port=port)

    def _bind_unix(self, address: Address) -> Address:
        path = address.path
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as claim:
            bind_path(claim, path, str(address), _BACKLOG)  # grpc would take it from its owner
            mask = os.umask(0o177)
            try:
                self._engine.add_port(target_of(address), None)
            except RuntimeError as error:
                raise ListenFailed(str(address), str(error)) from error
            finally:
                os.umask(mask)
        found = Path(path).lstat()
        self._identity = (found.st_dev, found.st_ino)
        return address

    # ------------------------------------------------------------------------ calls

    def _join(self, call: ServerCall) -> None:
        try:
            self._admit(call.metadata)
        except CallRefused as refused:
            call.finish(refused.code, refused.details)
            call.close()
            return
        call.open()
        try:
            connection = GrpcServerConnection(self._host.service, call, self._options)
        except WireError as error:
            call.finish(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            call.close()
            return
        try:
            self._host.join(connection, peer_of_grpc(call.peer))
        except Exception:
            _logger.exception("join_failed client=%s", connection.address)
            connection.close()

    def _admit(self, metadata: Metadata) -> None:
        """Refuse a call before anything in it is read.

        Raises:
            CallRefused: The token is wrong, or the server ends.
        """
        token = self._host.token
        if token is not None and not token.matches(metadata.get(TOKEN_KEY, "")):
            raise CallRefused(
                grpc.StatusCode.UNAUTHENTICATED, f"invalid {self._host.service} token"
            )
        if self._is_closed:
            raise CallRefused(grpc.StatusCode.UNAVAILABLE, "this server is about to end")

    def _handshake(self, data: bytes, metadata: Metadata) -> bytes:
        self._admit(metadata)
        service = self._host.service
        said = _read(lambda: wire.read_hello(service, data))
        found = self._host.describe(hello_of(service, said, as_text(metadata.get(TOKEN_KEY, ""))))
        if isinstance(found, ErrorBody):
            if found.code != "incompatible":
                raise CallRefused(status_of(found), found.message)
            found = Welcome(generation=GENERATION, is_compatible=False, detail=found.message)
        answer = offer_of(service, found)
        mismatch = check_generation(said.generation)
        if mismatch or not answer.is_compatible:
            return wire.write_welcome(service, _unsuited(answer, mismatch or answer.error))
        contract = decode_contract(found.contract) if found.contract else None
        try:
            return wire.write_welcome(service, answer, contract=contract, dialect=said.dialect)
        except WireError as error:
            return wire.write_welcome(service, _unsuited(answer, str(error)))

    def _shutdown(self, data: bytes, metadata: Metadata) -> bytes:
        self._admit(metadata)
        service = self._host.service
        request = _read(lambda: wire.read_shutdown(service, data))
        return wire.write_shutdown_reply(service, self._host.shutdown(request))

    # ------------------------------------------------------------------------ health

    def _check(self, data: bytes, metadata: Metadata) -> bytes:
        del metadata
        service = _read(lambda: read_health_request(data))
        if service not in ("", SERVICES[self._host.service]):
            raise CallRefused(grpc.StatusCode.NOT_FOUND, "unknown service")
        return self._health()

    def _health(self) -> bytes:
        is_serving = not self._is_closed and self._host.is_serving()
        return write_health("serving" if is_serving else "not_serving")

    def _watch(self, call: ServerCall) -> None:
        call.open()
        with self._lock:
            is_first = not self._watchers
            is_full = self._is_closed or len(self._watchers) >= _MOST_WATCHERS
            if not is_full:
                self._watchers[call] = b""
        if is_full:
            call.finish(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watchers")
            call.close()
        elif is_first:
            threading.Thread(
                target=self._tell_watchers, name="rollmesh-grpc-health", daemon=True
            ).start()

    def _tell_watchers(self) -> None:
        while True:
            with self._lock:
                watchers = list(self._watchers.items())
            if not watchers:
                return
            health = self._health()
            for call, told in watchers:
                if not self._tell(call, told, health):
                    with self._lock:
                        self._watchers.pop(call, None)
                    call.close()
            time.sleep(_WATCH_S)

    def _tell(self, call: ServerCall, told: bytes, health: bytes) -> bool:
        """Tell a watcher what is new; False where it is gone."""
        if told == health:
            return call.look()
        try:
            call.write(health, _SEND_S)
        except (CallEnded, CallLate):
            return False
        with self._lock:
            if call in self._watchers:
                self._watchers[call] = health
        return True


def _check_free(address: Address, host: str) -> None:
    """Refuse an address that cannot be bound, before grpc tries: it would print a line of its own.

    Somebody may take the port between this and grpc's bind, which is told all the same. The socket
    never listens, so that no client meets it.

    Raises:
        ListenFailed: Nothing that the host stands for can be bound.
    """
    try:
        found = socket.getaddrinfo(
            host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise ListenFailed(str(address), f"the host is not known: {error}") from error
    failures: list[OSError] = []
    for family, kind, number, _, where in found:
        try:
            with socket.socket(family, kind, number) as sock:
                if os.name == "posix":  # as grpc does: a port in TIME_WAIT is free
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(where)
        except OSError as error:
            failures.append(error)
        else:
            return
    taken = [failure for failure in failures if failure.errno == errno.EADDRINUSE]
    if taken:
        raise ListenFailed(str(address), IN_USE) from taken[0]
    if host not in _WILDCARDS:  # there grpc also tries the other family
        raise ListenFailed(str(address), str(failures[-1])) from failures[-1]


def _read(read: Callable[[], _Read]) -> _Read:
    try:
        return read()
    except WireError as error:
        raise CallRefused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None


def _unsuited(said: Offer, reason: str) -> Offer:
    return Offer(
        peer=said.peer,
        capabilities=said.capabilities,
        is_compatible=False,
        error=reason,
    )
