"""gRPC: what both ends of the gRPC transport agree on (layer 5).

Channel settings, method paths, metadata keys, and how a refusal of the session layer looks as a
gRPC status. `grpc_client.py` and `grpc_server.py` are the two ends.

A Join between two rollmesh ends carries the client's hello as metadata, which a foreign server
passes over; the server's welcomes (several while the client queues) are the first messages of its
side of the stream. Towards a foreign peer there is neither: its Join is its hello.

Knows no sessions. Importing this module imports grpc; `import rollmesh` does not.
"""

from __future__ import annotations

import re
from typing import Any

from rollmesh.errors import ConnectFailed
from rollmesh.limits import SIZE_LIMITS
from rollmesh.ports import EnvContract
from rollmesh.spaces.codec import Codec
from rollmesh.spaces.space import Space
from rollmesh.transport.address import Address
from rollmesh.transport.connect_errors import TlsFailed, Unheard, WrongPeer
from rollmesh.transport.grpc_loading import grpc
from rollmesh.transport.tls import certificate_refused
from rollmesh.wire.framing import Framing
from rollmesh.wire.messages import ErrorBody
from rollmesh.wire.metadata import Report
from rollmesh.wire.protobuf import ENV_SERVICE, MODEL_SERVICE

HELLO_KEY = "rollmesh-hello-bin"
"""Metadata of a Join: the client's handshake request, where both ends are rollmesh."""
ERROR_KEY = "rollmesh-error"
"""Trailing metadata of a refused Join: the code of its `ErrorBody`."""
TOKEN_KEY = "authorization"  # noqa: S105 - the name of a field
SERVICES = {"env": ENV_SERVICE, "model": MODEL_SERVICE}
HEALTH_SERVICE = "grpc.health.v1.Health"
BUSY = "environment already has an active Join session; only one client may be connected at a time"
"""A released server's words to a second client."""

KEEPALIVE_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000
_SERVER_KEEPALIVE_MS = 5_000
_SERVER_KEEPALIVE_TIMEOUT_MS = KEEPALIVE_MS + KEEPALIVE_TIMEOUT_MS - _SERVER_KEEPALIVE_MS
"""A frozen client is noticed as late as a frozen server; one whose end was lost (see `grpc_nudge`),
at the next ping. No client takes more pings amiss."""
_LEAST_PING_INTERVAL_MS = 5_000
_RECONNECT_MS = 100

_SHARED = (
    ("grpc.max_receive_message_length", SIZE_LIMITS.message_bytes),
    ("grpc.max_send_message_length", SIZE_LIMITS.message_bytes),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_inflight_pings", 4),  # one that measures keeps none that looks
)
CLIENT_OPTIONS = (
    *_SHARED,
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of our own, however many there are
    ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MS),
    ("grpc.min_reconnect_backoff_ms", _RECONNECT_MS),
)
SERVER_OPTIONS = (
    *_SHARED,
    ("grpc.keepalive_time_ms", _SERVER_KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _SERVER_KEEPALIVE_TIMEOUT_MS),
    ("grpc.so_reuseport", 0),  # a port that is taken is taken
    ("grpc.http2.min_recv_ping_interval_without_data_ms", _LEAST_PING_INTERVAL_MS),
    ("grpc.http2.max_ping_strikes", 0),
)

_STATUS_OF = {
    "unauthenticated": grpc.StatusCode.UNAUTHENTICATED,
    "busy": grpc.StatusCode.FAILED_PRECONDITION,
    "incompatible": grpc.StatusCode.FAILED_PRECONDITION,
    "draining": grpc.StatusCode.UNAVAILABLE,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "invalid_request": grpc.StatusCode.INVALID_ARGUMENT,
}
_CODE_OF = {
    "UNAUTHENTICATED": "unauthenticated",
    "PERMISSION_DENIED": "unauthenticated",
    "FAILED_PRECONDITION": "busy",
    "RESOURCE_EXHAUSTED": "busy",
    "UNIMPLEMENTED": "incompatible",
    "INVALID_ARGUMENT": "invalid_request",
}
_NOT_BELIEVED = re.compile(r"CERTIFICATE_VERIFY_FAILED: ([^:;]+)")
_OTHER_NAME = "Hostname Verification Check failed"
_NO_TLS = "WRONG_VERSION_NUMBER"
_HUNG_UP = re.compile("Secure read failed|Socket closed|reset by peer", re.IGNORECASE)
"""Said of a server that ended the connection, which one does that misses a certificate: in TLS 1.3
after the client's side of the handshake is done. Which of them is a matter of moments."""
_NO_HTTP2 = "Expected SETTINGS frame as the first frame"
_UNHEARD = re.compile(f"{_HUNG_UP.pattern}|before receiving SETTINGS", re.IGNORECASE)
"""Said of a server that takes connections, and then no word of gRPC."""
_UNREACHED = frozenset({"UNAVAILABLE", "CANCELLED", "UNKNOWN", "INTERNAL", "ABORTED"})


def status_of(error: ErrorBody) -> grpc.StatusCode:
    """Return the status by which a refusal of a session is told."""
    return _STATUS_OF.get(error.code, grpc.StatusCode.INTERNAL)


def refusal_of(code: str, details: str, named: str = "") -> ErrorBody | None:
    """Return what a server meant by a status; None where nobody answered at all.

    Args:
        code: Name of the status.
        details: Its text.
        named: What `ERROR_KEY` said, or nothing.
    """
    if named:
        return ErrorBody(code=named, message=details, outcome="not_done")
    if code in _UNREACHED:
        return None
    return ErrorBody(
        code=_CODE_OF.get(code, "internal"), message=f"{code}: {details}", outcome="not_done"
    )


def unreached(address: str, details: str, *, with_tls: bool) -> ConnectFailed:
    """Return why there was no way to a server, in words that do not leave TLS to guessing.

    Args:
        address: Where it was looked for.
        details: What the library says.
        with_tls: Whether it was asked in TLS.
    """
    refused = _NOT_BELIEVED.search(details)
    if refused is not None or _OTHER_NAME in details:
        reason = "Hostname mismatch" if refused is None else refused[1].strip()
        return TlsFailed(address, certificate_refused(reason))
    if with_tls and _NO_TLS in details:
        return TlsFailed(address, "what answers there is no TLS; does the server use TLS?")
    if not with_tls:
        hint = "does it want TLS?"
    elif _HUNG_UP.search(details):
        hint = "does it want a certificate of ours (tls_client_cert), from a CA that it believes?"
    else:
        hint = "does it use TLS?"
    frames = f"If it speaks rollmesh's own frames, its address is rollmesh+{address}"
    if _NO_HTTP2 in details:
        return WrongPeer(address, f"{details}; does it speak gRPC, {hint} {frames}")
    detail = f"{details}; is the server running, does it speak gRPC, {hint}"
    if _UNHEARD.search(details):
        return Unheard(address, f"{detail} {frames}")
    return ConnectFailed(address, detail)


def target_of(address: Address) -> str:
    """Return an address as grpc wants it."""
    if address.family == "unix":
        return f"unix:{address.path}"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}"


class BoundFraming(Framing):
    """Stands where other transports have their framing: keeps the spaces that are bound.

    Attributes:
        contract: The bound spaces as a contract, or None before `bind`.
    """

    def __init__(self, report: Report | None = None) -> None:
        super().__init__(report)
        self.contract: EnvContract | None = None

    def bind(self, observation: Codec, action: Codec, num_envs: int | None = None) -> None:
        self.contract = EnvContract(
            id="",
            observation_space=_space_of(observation),
            action_space=_space_of(action),
            num_envs=num_envs or 1,
        )


def _space_of(codec: Any) -> Space:
    return codec.space
