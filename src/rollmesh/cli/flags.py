"""Options that several commands share (layer 9)."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from cyclopts import Parameter

from rollmesh.endpoint.clients.client_options import (
    PLAINTEXT_VARIABLE,
    TRANSPORT_VARIABLE,
    ClientOptions,
    client_options,
)
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import InvalidSpec
from rollmesh.transport.security import (
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    client_tls,
    load_token,
    server_tls,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from cyclopts import Token

Policy = Literal["warn", "strict", "off"]


def whole_number(_type: Any, tokens: Sequence[Token]) -> int:
    """Return the int that an option carries: 1.5 is refused, and not made 2 of in silence."""
    try:
        return int(tokens[0].value)
    except ValueError:
        msg = f"wants a whole number, got {tokens[0].value!r}"
        raise ValueError(msg) from None


Whole = Annotated[int, Parameter(converter=whole_number)]


def json_object(option: str, text: str | None) -> dict[str, Any] | None:
    """Return the JSON object that an option carries, or None if it is left out.

    Raises:
        InvalidSpec: The text is not a JSON object.
    """
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidSpec(
            option, f"wants a JSON object such as '{{\"key\": 1}}', got {text!r}: {error}"
        ) from error
    if not isinstance(value, dict):
        raise InvalidSpec(option, f"wants a JSON object, got {text!r}")
    return cast("dict[str, Any]", value)


def whole_or_auto(kind: Any, tokens: Sequence[Token]) -> int | str:
    """Return what an option carries that is a whole number or the word auto."""
    if tokens[0].value == "auto":
        return "auto"
    try:
        return whole_number(kind, tokens)
    except ValueError:
        msg = f"wants a whole number or auto, got {tokens[0].value!r}"
        raise ValueError(msg) from None


def whole_numbers(_type: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    """Return the ints that an option carries, split by commas."""
    try:
        return tuple([int(part) for part in tokens[0].value.split(",")])
    except ValueError:
        msg = f"wants whole numbers, split by commas, got {tokens[0].value!r}"
        raise ValueError(msg) from None


def _flag(text: str) -> Parameter:
    return Parameter(help=text, negative=())


@dataclass(frozen=True, kw_only=True)
class ServeFlags:
    """Options of both `serve` commands; None leaves the server's default."""

    address: Annotated[
        tuple[str, ...],
        Parameter(
            name=["--address", "-a"],
            negative=(),
            help=(
                "Where to listen: host:port or unix:///path (gRPC), rollmesh+tcp://host:port or "
                "rollmesh+unix:///path (our own frames). May be given several times; a private "
                "unix socket if left out."
            ),
            show_default=False,
        ),
    ] = ()
    native: Annotated[
        bool | None,
        Parameter(
            negative="--no-native",
            help=(
                "Beside gRPC addresses, also listen at a private unix socket of our own frames, to "
                "which rollmesh clients of this user change by themselves; done unless clients "
                "must have certificates (--tls-client-ca)."
            ),
            show_default=False,
        ),
    ] = None
    max_sessions: Annotated[Whole | None, _flag("How many clients at a time.")] = None
    queue_size: Annotated[Whole | None, _flag("How many more may wait for a place.")] = None
    idle_timeout: Annotated[
        float | None, _flag("Seconds without a request after which a place goes to who waits.")
    ] = None
    exit_when_idle: Annotated[
        float | None, _flag("End after so many seconds without any client.")
    ] = None
    resume_grace: Annotated[
        float | None, _flag("Seconds that a session waits for a client whose connection dropped.")
    ] = None
    drain_timeout: Annotated[
        float | None, _flag("Seconds that clients may go on once the server is asked to end.")
    ] = None
    close_timeout: Annotated[float | None, _flag("Seconds that closing may take then.")] = None
    token_file: Annotated[
        str | None,
        _flag("File with the token that clients must know (or ROLLMESH_TOKEN, _TOKEN_FILE)."),
    ] = None
    tls_cert: Annotated[str | None, _flag("The server's certificate, a PEM file.")] = None
    tls_key: Annotated[str | None, _flag("Its private key, a PEM file.")] = None
    tls_client_ca: Annotated[
        str | None, _flag("Who issues the certificates that clients must have, a PEM file.")
    ] = None
    insecure_plaintext: Annotated[
        bool, _flag("Listen where other machines can reach us without TLS and token.")
    ] = False
    expose_tracebacks: Annotated[
        bool, _flag("Send tracebacks to every client, not only to this user's.")
    ] = False
    allow_remote_shutdown: Annotated[bool, _flag("Let clients end the server.")] = False
    conformance: Annotated[
        Policy, _flag("What happens to a value outside its space: a warning, an error, nothing.")
    ] = "warn"
    ready_fd: Annotated[
        Whole | None, _flag("Descriptor that gets the addresses, one a line, once we serve.")
    ] = None
    ready_file: Annotated[
        str | None, _flag("File that gets the addresses once we serve; removed at the end.")
    ] = None
    verbose: Annotated[bool, _flag("Show who comes and goes.")] = False
    json: Annotated[bool, _flag("Print one line of JSON once we serve.")] = False

    def addresses(self) -> list[str]:
        """Return where to listen; a private socket file where nothing was asked for."""
        return list(self.address) or ["rollmesh+unix://"]

    def options(self, **more: Any) -> ServerOptions:
        """Return the options of the server.

        Args:
            more: Those of one kind of server; None leaves the default.

        Raises:
            InvalidSpec: One of them is wrong, or a file cannot be used.
        """
        given: dict[str, Any] = {
            "max_sessions": self.max_sessions,
            "queue_size": self.queue_size,
            "idle_timeout_s": self.idle_timeout,
            "exit_when_idle_s": self.exit_when_idle,
            "resume_grace_s": self.resume_grace,
            "drain_timeout_s": self.drain_timeout,
            "close_timeout_s": self.close_timeout,
            "token": load_token(file=self.token_file),
            "tls": server_tls(self.tls_cert, self.tls_key, self.tls_client_ca),
            "insecure_plaintext": self.insecure_plaintext,
            "native": self.native,
            "expose_tracebacks": self.expose_tracebacks,
            "allow_remote_shutdown": self.allow_remote_shutdown,
            "conformance": self.conformance,
            "ready_fd": self.ready_fd,
            "ready_file": self.ready_file,
            **more,
        }
        return ServerOptions(**{key: value for key, value in given.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class ConnectFlags:
    """Options of commands that connect to a server."""

    token_file: Annotated[
        str | None, _flag("File with the server's token (or ROLLMESH_TOKEN, ROLLMESH_TOKEN_FILE).")
    ] = None
    tls: Annotated[bool, _flag("Use TLS and believe whom the system believes.")] = False
    tls_ca: Annotated[
        str | None, _flag("Use TLS; who issues the servers' certificates, a PEM file.")
    ] = None
    tls_client_cert: Annotated[
        str | None, _flag("Our own certificate, where the server wants one, a PEM file.")
    ] = None
    tls_client_key: Annotated[str | None, _flag("Its private key, a PEM file.")] = None
    tls_server_name: Annotated[
        str | None, _flag("The name in the server's certificate, if it is not the address's host.")
    ] = None
    transport: Annotated[
        Literal["auto", "native", "grpc"] | None,
        _flag("Which path to take; auto takes the fastest that both ends have."),
    ] = None
    insecure_plaintext: Annotated[
        bool, _flag("Send the token without TLS, also to another machine.")
    ] = False

    def options(self) -> ClientOptions:
        """Return how to connect.

        Raises:
            InvalidSpec: One of them is wrong, or a file cannot be used.
        """
        tls = client_tls(
            self.tls_ca,
            self.tls_client_cert,
            self.tls_client_key,
            server_name=self.tls_server_name,
            is_on=self.tls,
        )
        return client_options(
            token_file=self.token_file,
            tls=tls,
            transport=self.transport,
            insecure_plaintext=self.insecure_plaintext or None,
        )

    @contextlib.contextmanager
    def in_environment(self) -> Generator[None]:
        """Have whatever connects meanwhile, child processes too, find these options.

        Raises:
            InvalidSpec: One of them is wrong, or a file cannot be used.
        """
        files = {
            TOKEN_FILE_VARIABLE: self.token_file,
            "ROLLMESH_TLS_CA": self.tls_ca,
            "ROLLMESH_TLS_CLIENT_CERT": self.tls_client_cert,
            "ROLLMESH_TLS_CLIENT_KEY": self.tls_client_key,
        }
        given = {
            # an env may change the working directory
            **{name: path and str(Path(path).absolute()) for name, path in files.items()},
            "ROLLMESH_TLS": "1" if self.tls else None,
            "ROLLMESH_TLS_SERVER_NAME": self.tls_server_name,
            TRANSPORT_VARIABLE: self.transport,
            PLAINTEXT_VARIABLE: "1" if self.insecure_plaintext else None,
        }
        values = {name: value for name, value in given.items() if value is not None}
        if values:
            self.options()
        before = dict(os.environ)
        if self.token_file is not None:
            os.environ.pop(TOKEN_VARIABLE, None)  # what is given counts before the environment
        os.environ.update(values)
        try:
            yield
        finally:
            for name in {*values, TOKEN_VARIABLE}:
                if name in before:
                    os.environ[name] = before[name]
                else:
                    os.environ.pop(name, None)
