"""How a client connects: secret, TLS, transport and patience (layer 6).

What is not given comes from the environment, so that programs which only take an address (a
benchmark script, `rollmesh eval`) can reach a protected server:

| variable | stands for |
|---|---|
| `ROLLMESH_TOKEN`, `ROLLMESH_TOKEN_FILE` | the token, or the file that holds it |
| `ROLLMESH_TLS`, `ROLLMESH_TLS_CA`, … | TLS, as `transport.tls.client_tls` says |
| `ROLLMESH_TRANSPORT` | `auto`, `native` or `grpc` |
| `ROLLMESH_INSECURE_PLAINTEXT` | `1`: a token may cross the network in plain text |

Proxy variables (`HTTP_PROXY`, `grpc_proxy` and the like) are never followed.

Knows no session and opens nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

from rollmesh.errors import InvalidSpec
from rollmesh.limits import check_duration
from rollmesh.transport.connection import ConnectionOptions
from rollmesh.transport.security import TlsClient, Token, client_tls, load_token, read_switch

Transport: TypeAlias = Literal["auto", "native", "grpc"]
"""`auto` takes the fastest path that the server offers; the others force one."""

TRANSPORTS: tuple[str, ...] = get_args(Transport)
TRANSPORT_VARIABLE = "ROLLMESH_TRANSPORT"
PLAINTEXT_VARIABLE = "ROLLMESH_INSECURE_PLAINTEXT"

RESUME_GRACE_S = 10.0
"""How long a client tries to get its session back after a drop; servers keep one as long."""


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """How a client connects and what it does when the connection drops.

    Attributes:
        token: The secret that the server wants, or None.
        tls: How to talk TLS, or None for plain text.
        transport: Which path to take.
        resume_grace_s: How long to try to resume a session after a drop, in seconds; None as long
            as the operation may take.
        insecure_plaintext: Whether a token may cross the network in plain text.
        connection: How the transport moves messages.
    """

    token: Token | None = None
    tls: TlsClient | None = None
    transport: Transport = "auto"
    resume_grace_s: float | None = RESUME_GRACE_S
    insecure_plaintext: bool = False
    connection: ConnectionOptions = field(
        default_factory=lambda: ConnectionOptions(writable=True), hash=False
    )

    def __post_init__(self) -> None:
        if self.transport not in TRANSPORTS:
            raise InvalidSpec(
                "transport", f"wants one of {', '.join(TRANSPORTS)}, got {self.transport!r}"
            )
        grace = check_duration("resume_grace_s", self.resume_grace_s, zero_ok=True)
        object.__setattr__(self, "resume_grace_s", grace)


def client_options(
    *,
    token: str | Token | None = None,
    token_file: str | os.PathLike[str] | None = None,
    tls: TlsClient | None = None,
    environ: Mapping[str, str] | None = None,
    **options: Any,
) -> ClientOptions:
    """Return options with what the environment says where nothing is given.

    Args:
        token: The secret.
        token_file: A file that holds it.
        tls: How to talk TLS.
        environ: The environment; the process's own if left out.
        options: Anything else that `ClientOptions` has; None is as good as left out.

    Raises:
        InvalidSpec: One of them is wrong, or two contradict each other.
    """
    variables = os.environ if environ is None else environ
    given = {name: value for name, value in options.items() if value is not None}
    given.setdefault("transport", variables.get(TRANSPORT_VARIABLE) or "auto")
    given.setdefault("insecure_plaintext", read_switch(PLAINTEXT_VARIABLE, variables))
    return ClientOptions(
        token=load_token(token, file=token_file, side="client", environ=variables),
        tls=client_tls(environ=variables) if tls is None else tls,
        **given,
    )


def portable(options: ClientOptions | None) -> ClientOptions | None:
    """Return options that may lie in a file: without the token."""
    if options is None or options.token is None:
        return options
    return replace(options, token=None)


def connect_again(cls: type[Any], address: str, options: ClientOptions | None, limits: Any) -> Any:
    """Return a face that connects anew, with the token of this process's environment."""
    if options is not None:
        options = replace(options, token=client_options().token)
    return cls(address, options=options, limits=limits)
