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
from typing import Any, Literal, TypeAlias, TypedDict, cast, get_args

from rollmesh.errors import InvalidSpec
from rollmesh.limits import check_duration
from rollmesh.transport.connection import ConnectionOptions
from rollmesh.transport.security import (
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    TlsClient,
    Token,
    client_tls,
    load_token,
    read_switch,
)

Transport: TypeAlias = Literal["auto", "native", "grpc"]
"""`auto` takes the fastest path that the server offers; the others force one."""

TRANSPORTS: tuple[str, ...] = get_args(Transport)
TRANSPORT_VARIABLE = "ROLLMESH_TRANSPORT"
PLAINTEXT_VARIABLE = "ROLLMESH_INSECURE_PLAINTEXT"

_ADDED = " with kwargs ("
"""What Gymnasium puts between an error of ours and the values of all arguments."""

_ARGUMENTS = ("address", "options", "limits")
"""What everything that connects can be given beside `Connecting`."""

_GIVE = (
    "give the server's: --token-file on the command line, token= or token_file= in Python, "
    f"{TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE} in the environment"
)

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
    if tls is not None and not isinstance(cast("object", tls), TlsClient):
        raise InvalidSpec("tls", f"wants TlsClient(ca=…) or None, got {type(tls).__name__}")
    given = {name: value for name, value in options.items() if value is not None}
    given.setdefault("transport", variables.get(TRANSPORT_VARIABLE) or "auto")
    given.setdefault("insecure_plaintext", read_switch(PLAINTEXT_VARIABLE, variables))
    return ClientOptions(
        token=load_token(token, file=token_file, side="client", environ=variables),
        tls=client_tls(environ=variables) if tls is None else tls,
        **given,
    )


class Connecting(TypedDict, total=False):
    """How to connect, said one by one; what is left out comes from the environment.

    Attributes:
        token: The secret that the server wants.
        token_file: A file that holds it.
        tls: How to talk TLS.
        transport: Which path to take.
        resume_grace_s: See `ClientOptions`.
        insecure_plaintext: See `ClientOptions`.
    """

    token: str | Token | None
    token_file: str | os.PathLike[str] | None
    tls: TlsClient | None
    transport: Transport | None
    resume_grace_s: float | None
    insecure_plaintext: bool | None


class WrongArgument(InvalidSpec, TypeError):  # noqa: N818 - as its family
    """An argument that what is served cannot be made with.

    A `TypeError` too, and made from its text alone: `gymnasium.make` makes it again with the values
    of all arguments added. They are left out here, since a token may be among them.
    """

    def __init__(self, text: str) -> None:
        field, _, detail = text.partition(_ADDED)[0].partition(": ")
        super().__init__(field, detail)


def given_options(options: ClientOptions | None, given: Connecting) -> ClientOptions | None:
    """Return how to connect, said as a whole or one by one; None where nothing was said.

    Raises:
        WrongArgument: There is no such argument.
        InvalidSpec: It was said both ways, or one of them is wrong.
    """
    for name in given:
        if name not in Connecting.__annotations__:
            raise WrongArgument(f"{name}: is no argument here{_meant(name)}")
    said = [name for name, value in given.items() if value is not None]
    if not said:
        return options
    if options is not None:
        raise InvalidSpec("options", f"give options or {', '.join(said)}, not both")
    return client_options(**given)


def _meant(name: str) -> str:
    """Return what else there is, and what a name that there is not may have meant."""
    import difflib

    ways = ", ".join(Connecting.__annotations__)
    known = (*_ARGUMENTS, *Connecting.__annotations__)
    close = difflib.get_close_matches(name, known, n=1)
    guess = f", did you mean {close[0]}?" if close else ""
    return f"{guess}; there are {', '.join(_ARGUMENTS)}, and to say how to connect {ways}"


def refusal_hint(token: Token | None) -> str:
    """Return what to do about a server that wants another token than it got."""
    what = "no token was given" if token is None else "the token given was refused"
    return f"{what}; {_GIVE}"


def silence_hint(token: Token | None) -> str:
    """Return what to say of our token where a server hung up without a word."""
    if token is None:
        return f"No token was given; if it wants one, {_GIVE}"
    return "A token was given; is it the server's?"


def in_turn(options: ClientOptions, servers: int) -> ClientOptions:
    """Return options for a loop that asks so many servers in turn."""
    return replace(options, connection=replace(options.connection, servers=servers))


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
