"""The handshake and shutdown of both services as bytes (layer 4).

Each service wraps the same messages in a field of its own; what they mean is in `handshake.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from rollmesh.errors import WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.ports import EnvContract
from rollmesh.wire._gen import rlmesh_core_v1_pb2 as core_pb
from rollmesh.wire._gen import rlmesh_env_v1_pb2 as env_pb
from rollmesh.wire._gen import rlmesh_model_v1_pb2 as model_pb
from rollmesh.wire.dialect import Dialect
from rollmesh.wire.handshake import Offer, PeerInfo
from rollmesh.wire.messages import Shutdown, ShutdownReply
from rollmesh.wire.proto_env import decode_contract, encode_contract
from rollmesh.wire.proto_metadata import Report
from rollmesh.wire.proto_values import parse

Service: TypeAlias = Literal["env", "model"]

MISSING_BASE = "handshake request missing base"
"""What a server answers (INVALID_ARGUMENT) to a request without content."""

_MODULES: dict[str, Any] = {"env": env_pb, "model": model_pb}
_MOST_CHARS = 4096
_MOST_EDITIONS = 64
_PEER_TEXTS = (
    "component",
    "package_version",
    "language",
    "language_version",
    "os",
    "os_version",
    "arch",
)


def write_hello(service: Service, said: Offer) -> bytes:
    """Return a client's handshake request."""
    message = _MODULES[service].HandshakeRequest()
    base: core_pb.HandshakeRequest = message.base
    base.protocol_generation = said.generation
    base.session_id = said.session_id
    _write_common(said, base)
    return message.SerializeToString()


def read_hello(service: Service, data: bytes) -> Offer:
    """Return what a client said.

    Raises:
        WireError: It is no request, over a limit, or has no content (`MISSING_BASE`).
    """
    message = parse(_MODULES[service].HandshakeRequest, data, "handshake request")
    if not message.HasField("base"):
        raise WireError(MISSING_BASE)
    base: core_pb.HandshakeRequest = message.base
    return Offer(
        generation=base.protocol_generation,
        peer=_read_peer(base.peer_info),
        capabilities=_read_texts(base.capabilities, "capabilities"),
        editions=_read_editions(base),
        preferred_edition=base.preferred_workflow_edition[:_MOST_CHARS],
        session_id=base.session_id[:_MOST_CHARS],
    )


def write_welcome(
    service: Service,
    said: Offer,
    *,
    contract: EnvContract | None = None,
    dialect: Dialect | None = None,
    report: Report | None = None,
) -> bytes:
    """Return a server's handshake response.

    Args:
        service: Which.
        said: What the server says.
        contract: An env's, where the two can talk.
        dialect: What the client knows; needed with a contract.
        report: Called for each metadata value that has no form on the client's wire.

    Raises:
        WireError: The client's wire cannot say the contract; answer not compatible, with its text.
    """
    message = _MODULES[service].HandshakeResponse()
    base: core_pb.HandshakeResponse = message.base
    base.compatible = said.is_compatible
    base.session_id = said.session_id
    base.position = said.position
    base.is_resumed = said.is_resumed
    if said.error or not said.is_compatible:
        base.error_message = said.error
    _write_common(said, base)
    if contract is not None and dialect is not None:
        encoded = encode_contract(contract, dialect, report or _ignore)
        message.env_contract.CopyFrom(encoded)
    return message.SerializeToString()


def read_welcome(service: Service, data: bytes) -> tuple[Offer, EnvContract | None]:
    """Return what a server said, and the contract of an env where it sent one.

    A server that is compatible may leave the contract out only while the client waits in a queue.

    Raises:
        WireError: It is no response, not valid, or over a limit.
    """
    message = parse(_MODULES[service].HandshakeResponse, data, "handshake response")
    if not message.HasField("base"):
        raise WireError("the server's handshake response has no content")
    base: core_pb.HandshakeResponse = message.base
    said = Offer(
        peer=_read_peer(base.peer_info),
        capabilities=_read_texts(base.capabilities, "capabilities"),
        editions=_read_editions(base),
        preferred_edition=base.preferred_workflow_edition[:_MOST_CHARS],
        session_id=base.session_id[:_MOST_CHARS],
        is_compatible=base.compatible,
        error=base.error_message[:_MOST_CHARS],
        position=base.position,
        is_resumed=base.is_resumed,
    )
    contract = None
    if service == "env" and said.is_compatible:
        if message.HasField("env_contract"):
            contract = decode_contract(message.env_contract)
        elif said.position == 0:
            raise WireError("the server says it is compatible, but sent no env contract")
    return said, contract


def write_shutdown(service: Service, body: Shutdown) -> bytes:
    """Return a shutdown request."""
    message = _MODULES[service].ShutdownRequest()
    message.base.reason = body.reason
    return message.SerializeToString()


def read_shutdown(service: Service, data: bytes) -> Shutdown:
    """Return a shutdown request."""
    message = parse(_MODULES[service].ShutdownRequest, data, "shutdown request")
    return Shutdown(reason=message.base.reason[:_MOST_CHARS])


def write_shutdown_reply(service: Service, body: ShutdownReply) -> bytes:
    """Return the answer to a shutdown request."""
    message = _MODULES[service].ShutdownResponse()
    message.base.accepted = body.is_accepted
    message.base.message = body.detail
    return message.SerializeToString()


def read_shutdown_reply(service: Service, data: bytes) -> ShutdownReply:
    """Return the answer to a shutdown request."""
    message = parse(_MODULES[service].ShutdownResponse, data, "shutdown response")
    base = message.base
    return ShutdownReply(is_accepted=base.accepted, detail=base.message[:_MOST_CHARS])


def _write_common(said: Offer, base: Any) -> None:
    for key, value in said.capabilities.items():
        base.capabilities[key] = value
    base.supported_workflow_editions.extend(said.editions)
    base.preferred_workflow_edition = said.preferred_edition
    peer = base.peer_info
    for name in _PEER_TEXTS:
        setattr(peer, name, getattr(said.peer, name))
    for key, value in said.peer.framework_versions.items():
        peer.framework_versions[key] = value
    for key, value in said.peer.extra.items():
        peer.extra[key] = value


def _read_editions(base: Any) -> tuple[str, ...]:
    editions = base.supported_workflow_editions
    if len(editions) > _MOST_EDITIONS:
        raise WireError(
            f"{len(editions)} workflow editions in a handshake; {_MOST_EDITIONS} at most"
        )
    return tuple([edition[:_MOST_CHARS] for edition in editions])


def _read_peer(peer: core_pb.PeerInfo) -> PeerInfo:
    texts = {name: getattr(peer, name)[:_MOST_CHARS] for name in _PEER_TEXTS}
    return PeerInfo(
        **texts,
        framework_versions=_read_texts(peer.framework_versions, "framework versions"),
        extra=_read_texts(peer.extra, "extra facts"),
    )


def _read_texts(texts: Mapping[str, str], what: str) -> dict[str, str]:
    if len(texts) > SIZE_LIMITS.keys:
        raise WireError(
            f"{len(texts)} {what} in a handshake are more than SIZE_LIMITS.keys allows "
            f"({SIZE_LIMITS.keys})"
        )
    return {key[:_MOST_CHARS]: value[:_MOST_CHARS] for key, value in texts.items()}


def _ignore(path: str, detail: str) -> None:
    del path, detail
