"""Upgrade: from a gRPC address to the fastest path that reaches the same server (layer 5).

A server of ours tells in its gRPC handshake, in facts about itself that a foreign peer passes over,
where its native listeners are and which machine it runs on. A client that was given the gRPC
address takes, in this order, what it can reach:

| path | when |
|---|---|
| `unix`: native frames over a socket file, shared memory for large payloads | same machine |
| `tcp`: native frames over TCP, with the same TLS and token | anywhere |
| `grpc`: the connection that the handshake was made over | always |

Everything said here is said once, when a client connects: `Path.reason` says why.

An address may mean another server where the client is: a port that a container publishes under
another number, a socket file in another container's folder. So the server also tells its id, and
the client repeats it in its hello there; whoever is not that server refuses it.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
import stat
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

from rollmesh.errors import (
    ConnectFailed,
    InvalidSpec,
    TransportError,
    TransportTimeout,
    WireError,
)
from rollmesh.transport.address import Address, is_loopback, parse_address
from rollmesh.transport.connect_errors import HandshakeRefused, NoPath
from rollmesh.transport.connection import DEFAULT_OPTIONS, Connection, ConnectionOptions
from rollmesh.transport.dialing import CONNECT_S, dial
from rollmesh.transport.security import TlsClient, Token, client_wrap
from rollmesh.wire.messages import Cancel, ErrorBody, Kind, Message

if TYPE_CHECKING:
    from rollmesh.transport.grpc_client import GrpcConnection
    from rollmesh.wire.handshake import Offer

_logger = logging.getLogger(__name__)

Service: TypeAlias = Literal["env", "model"]
Choice: TypeAlias = Literal["auto", "native", "grpc"]
"""Which path to take: the fastest one, a native one or none, gRPC itself."""

MACHINE_FACT = "rollmesh.machine"
UNIX_FACT = "rollmesh.native.unix"
TCP_FACT = "rollmesh.native.tcp"
SERVER_FACT = "rollmesh.server"
ELSEWHERE = frozenset({"other_server", "unauthenticated", "incompatible"})
"""Refusals of a hello that do not come from the server which answered the handshake."""
_ANY_HOST = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - nothing is bound here
_NOTHING: Mapping[str, str] = MappingProxyType({})
_NATIVE_S = 2.0
"""How long one native address is tried before the next."""


@dataclass(frozen=True, kw_only=True)
class Path:
    """The way to a server that was chosen.

    Attributes:
        connection: The connection, before its hello.
        kind: `unix`, `tcp`, `grpc` or `memory`.
        address: Where it goes.
        reason: Why this one, in a sentence.
        server: The id of the server that named this address, which may lead to another one; empty
            where it is the address that was asked for.
    """

    connection: Connection
    kind: str
    address: str
    reason: str
    server: str = ""


@functools.cache
def machine_id() -> str:
    """Return what tells this machine, as it was started last, from every other one."""
    try:
        boot = FilePath("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        boot = f"{uuid.getnode():012x}"
    return f"{boot}/{platform.node()}"


def native_facts(addresses: Iterable[str], server: str) -> dict[str, str]:
    """Return what the handshake of a server says of itself.

    Args:
        addresses: Where it listens.
        server: Its id.
    """
    facts = {MACHINE_FACT: machine_id(), SERVER_FACT: server}
    for text in addresses:
        address = parse_address(text, "bind")
        if address.protocol == "native":
            facts.setdefault(UNIX_FACT if address.family == "unix" else TCP_FACT, text)
    return facts if TCP_FACT in facts or UNIX_FACT in facts else {}


def choose_path(
    address: Address,
    service: Service,
    *,
    transport: Choice = "auto",
    options: ConnectionOptions = DEFAULT_OPTIONS,
    token: Token | None = None,
    tls: TlsClient | None = None,
    timeout_s: float = CONNECT_S,
    avoid: Mapping[str, str] = _NOTHING,
) -> Path:
    """Connect to a server over the fastest path that it offers; one attempt.

    Args:
        address: Where it was said to be. Anything but a gRPC address is the path.
        service: What is expected there.
        transport: Which path to take.
        options: How to move messages.
        token: The secret.
        tls: How to talk TLS.
        timeout_s: How long it may take altogether.
        avoid: Native addresses that lead elsewhere, each with what was found there.

    Raises:
        ConnectFailed: Nobody answered in time, or not over the path that was forced; `NoPath`
            where there is no such path, `HandshakeRefused` where we are not told of one.
        InvalidSpec: The transport and the address contradict each other.
    """
    if address.protocol != "grpc":
        if transport == "grpc":
            raise InvalidSpec("transport", f"is grpc, but {address} is no gRPC address")
        wrap = client_wrap(tls, address.host) if address.family == "tcp" else None
        connection = dial(address, options, timeout_s=timeout_s, wrap=wrap)
        return _path(connection, address, "it is the address that was given")
    from rollmesh.transport.grpc_client import dial_grpc

    expiry = time.monotonic() + timeout_s
    grpc = dial_grpc(address, options, timeout_s=timeout_s, tls=tls)
    try:
        if transport == "grpc":
            return _path(grpc, address, "gRPC was asked for")
        said = _describe(grpc, address, service, expiry, token)
        native, reason = _native(said, address, expiry, options=options, tls=tls, avoid=avoid)
    except BaseException:
        grpc.close()
        raise
    if native is None and transport != "native":
        return _path(grpc, address, reason)
    grpc.close()
    if native is None:
        raise _no_path(said, address, reason)
    return native


def speaks_frames(address: Address, *, tls: TlsClient | None, timeout_s: float) -> bool:
    """Tell whether a server of ours listens at a gRPC address for its own frames.

    No place is taken there, and no token sent: the answer to what is no hello is enough.
    """
    native = replace(address, protocol="native")
    try:
        wrap = client_wrap(tls, native.host) if native.family == "tcp" else None
        with dial(native, timeout_s=timeout_s, wrap=wrap) as connection:
            connection.call(Message(Kind.CANCEL, 1, Cancel(reason="knocked")), timeout_s)
    except (TransportError, TransportTimeout, WireError):
        return False
    return True


def _describe(
    grpc: GrpcConnection, address: Address, service: Service, expiry: float, token: Token | None
) -> Offer | ErrorBody:
    secret = "" if token is None else token.secret
    limit_s = max(0.001, expiry - time.monotonic())
    try:
        return grpc.describe(service, token=secret, timeout_s=limit_s)
    except (TransportError, TransportTimeout, WireError) as error:
        raise ConnectFailed(str(address), f"the handshake failed: {error}") from error


def _no_path(said: Offer | ErrorBody, address: Address, reason: str) -> ConnectFailed:
    """Return why there is no native path."""
    if isinstance(said, ErrorBody):
        return HandshakeRefused(str(address), said)
    kind = ConnectFailed if _names_native(said) else NoPath
    return kind(str(address), f"no native path to the server: {reason}")


def _names_native(said: Offer) -> bool:
    return UNIX_FACT in said.peer.extra or TCP_FACT in said.peer.extra


def _native(
    said: Offer | ErrorBody,
    address: Address,
    expiry: float,
    *,
    options: ConnectionOptions,
    tls: TlsClient | None,
    avoid: Mapping[str, str],
) -> tuple[Path | None, str]:
    """Return the native path, if there is one, and else why not."""
    if isinstance(said, ErrorBody):
        return None, f"the server refuses us ({said.code})"
    if not _names_native(said):
        return None, "the server names no native address"
    facts = said.peer.extra
    reasons: list[str] = []
    for candidate, why in _candidates(facts, address):
        if isinstance(candidate, str):
            reasons.append(candidate)
            continue
        if (found := avoid.get(str(candidate))) is not None:
            reasons.append(f"{candidate}: {found}")
            continue
        wrap = client_wrap(tls, candidate.host) if candidate.family == "tcp" else None
        left_s = max(0.001, min(_NATIVE_S, expiry - time.monotonic()))
        try:
            connection = dial(candidate, options, timeout_s=left_s, wrap=wrap)
        except ConnectFailed as error:
            reasons.append(str(error))
            continue
        _logger.info("path_chosen asked=%s taken=%s reason=%s", address, candidate, why)
        return _path(connection, candidate, why, facts.get(SERVER_FACT, "")), ""
    reason = "; ".join(reasons)
    _logger.info("path_chosen asked=%s taken=%s reason=%s", address, address, reason)
    return None, reason


def _candidates(facts: Mapping[str, str], address: Address) -> Iterable[tuple[Address | str, str]]:
    """Yield native addresses, best first, each with why; or why one is out of the question."""
    is_here = facts.get(MACHINE_FACT) == machine_id()
    text = facts.get(UNIX_FACT)
    if text is not None:
        if is_here:
            yield _socket_file(text), "the server is on this machine: its socket file"
        else:
            yield "the server is on another machine", ""
    text = facts.get(TCP_FACT)
    if text is not None:
        yield _tcp(text, address, is_here=is_here), "the server's native TCP address"


def _socket_file(text: str) -> Address | str:
    """Return the address of a socket file, if it is this user's own."""
    found = _parsed(text)
    if isinstance(found, str):
        return found
    try:
        facts = os.lstat(found.path)
    except OSError as error:
        return f"{text}: {error.strerror}"
    if not stat.S_ISSOCK(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        return f"{text} is no socket of this user alone"
    return found


def _tcp(text: str, address: Address, *, is_here: bool) -> Address | str:
    """Return a native TCP address at the host that was dialled: a peer names a port, no host."""
    found = _parsed(text)
    if isinstance(found, str):
        return found
    host = address.host or "127.0.0.1"
    if address.family == "unix" and not is_here:
        return "the server is on another machine"
    is_same = found.host == host or (_is_loopback(found.host) and _is_loopback(host))
    if found.host not in _ANY_HOST and not is_same:
        return f"{text} is not at {host}"
    return Address(protocol="native", family="tcp", host=host, port=found.port)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or is_loopback(host)


def _parsed(text: str) -> Address | str:
    try:
        address = parse_address(text)
    except InvalidSpec as error:
        return str(error)
    return address if address.protocol == "native" else f"{text} is no native address"


def _path(connection: Connection, address: Address, reason: str, server: str = "") -> Path:
    kind = {"grpc": "grpc", "memory": "memory"}.get(address.protocol, address.family)
    where = str(address)
    return Path(connection=connection, kind=kind, address=where, reason=reason, server=server)
