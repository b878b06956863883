"""How a server serves: places, patience, security, lifecycle (layer 6).

Checked once, when it is made. Knows no server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from rollmesh.errors import InvalidSpec
from rollmesh.limits import check_duration
from rollmesh.spaces.conformance import POLICIES, Policy
from rollmesh.transport.connection import ConnectionOptions
from rollmesh.transport.security import TlsServer, Token, load_token, server_tls

Isolate: TypeAlias = Literal["process"]
"""`process` runs each env in a process of its own."""

MOST_SESSIONS = 256
MOST_QUEUED = 4096
ENV_SESSIONS = 16
"""Sessions at a time where envs can be built, unless the options say otherwise."""

_DURATIONS = (
    "resume_grace_s",
    "contested_grace_s",
    "idle_timeout_s",
    "exit_when_idle_s",
    "drain_timeout_s",
    "close_timeout_s",
    "build_timeout_s",
    "send_timeout_s",
    "max_wait_s",
)
_ZERO_OK = frozenset(["resume_grace_s", "contested_grace_s", "drain_timeout_s", "max_wait_s"])
_NOT_NONE = frozenset(["send_timeout_s"])


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of `EnvServer` and `ModelServer`. Durations are in seconds; None is no limit.

    Attributes:
        max_sessions: Clients at a time. None: one for an env that cannot be built again, else
            `ENV_SESSIONS`; `MOST_SESSIONS` for a model. With 1, everything runs on the thread that
            called `serve()`.
        queue_size: Clients that may wait for a place; whoever comes then is told "busy".
        resume_grace_s: How long a session waits for a client whose connection dropped.
        contested_grace_s: The same while another client waits for its place.
        idle_timeout_s: After how long without a request a session gives its place to a client that
            waits for one.
        exit_when_idle_s: The server ends when it had no session for so long.
        drain_timeout_s: How long sessions may go on when the server is asked to end.
        close_timeout_s: How long closing the model, or all envs together, may take then.
        build_timeout_s: How long building an env in another process may take.
        send_timeout_s: How long a client may take to accept a reply.
        allow_remote_shutdown: Whether clients may end the server.
        token: The secret that clients must know; None is the environment's (`ROLLMESH_TOKEN`,
            `ROLLMESH_TOKEN_FILE`), and without one there none is asked for.
        tls: TLS of the TCP addresses; its files are checked wherever the server listens. None is
            the environment's (`ROLLMESH_TLS_CERT`, …).
        insecure_plaintext: Allow addresses that strangers can reach without TLS and token.
        native: Whether a server with gRPC addresses only also listens at a private socket file, to
            which rollmesh clients of this user change over; None: unless TLS asks clients for
            certificates (`TlsServer.client_ca`), which nobody needs at that file.
        expose_tracebacks: Tell every client the tracebacks of env and model; else only those of
            the same user on this machine.
        conformance: What happens to values outside their space: `warn`, `strict` or `off`.
        num_envs: Lanes to build from an env factory; None is what the env has.
        env_kwargs: Keyword arguments of the env's factory.
        model_kwargs: Keyword arguments of the model's class or factory.
        closes_env: Whether to close the env at the end; None closes what was built here.
        isolate: `process` runs each env in a process of its own, which can be killed.
        thread_safe: Whether the model may be called from several threads at once.
        max_batch: Rows that a model with a batch corner is given at once; 1 turns batching off.
        max_wait_s: How long a batch may wait for more rows; None learns what pays.
        handle_signals: Whether `serve()` on the main thread handles SIGTERM and SIGINT.
        ready_fd: A descriptor that gets the addresses, one a line, once clients are served; it is
            closed after that.
        ready_file: A file that gets them, and is removed at the end.
        connection: How connections move messages.
    """

    max_sessions: int | None = None
    queue_size: int = 16
    resume_grace_s: float | None = 10.0
    contested_grace_s: float | None = 3.0
    idle_timeout_s: float | None = 300.0
    exit_when_idle_s: float | None = None
    drain_timeout_s: float | None = 10.0
    close_timeout_s: float | None = 5.0
    build_timeout_s: float | None = 60.0
    send_timeout_s: float = 10.0
    allow_remote_shutdown: bool = False
    token: str | Token | None = None
    tls: TlsServer | None = None
    insecure_plaintext: bool = False
    native: bool | None = None
    expose_tracebacks: bool = False
    conformance: Policy = "warn"
    num_envs: int | None = None
    env_kwargs: Mapping[str, Any] | None = None
    model_kwargs: Mapping[str, Any] | None = None
    closes_env: bool | None = None
    isolate: Isolate | None = None
    thread_safe: bool = False
    max_batch: int = 64
    max_wait_s: float | None = None
    handle_signals: bool = True
    ready_fd: int | None = None
    ready_file: str | os.PathLike[str] | None = None
    connection: ConnectionOptions = field(
        default_factory=lambda: ConnectionOptions(lent=True), hash=False
    )

    def __post_init__(self) -> None:
        for name in _DURATIONS:
            value = check_duration(name, getattr(self, name), zero_ok=name in _ZERO_OK)
            if value is None and name in _NOT_NONE:
                raise InvalidSpec(name, "wants a number of seconds")
            object.__setattr__(self, name, value)
        if self.max_sessions is not None:
            _check_count("max_sessions", self.max_sessions, 1, MOST_SESSIONS)
        _check_count("queue_size", self.queue_size, 0, MOST_QUEUED)
        _check_count("max_batch", self.max_batch, 1, 2**16)
        if self.conformance not in POLICIES:
            raise InvalidSpec(
                "conformance", f"wants one of {', '.join(POLICIES)}, got {self.conformance!r}"
            )
        if self.isolate not in (None, "process"):
            raise InvalidSpec("isolate", f"wants 'process' or None, got {self.isolate!r}")
        if isinstance(self.token, str):
            object.__setattr__(self, "token", Token(self.token))

    @property
    def secret(self) -> Token | None:
        """The token, as `transport.security` knows it."""
        token = self.token
        return Token(token) if isinstance(token, str) else token

    def with_environment(self, environ: Mapping[str, str] | None = None) -> ServerOptions:
        """Return these options, with token and TLS of the environment where none were given.

        Args:
            environ: The environment; the process's own if left out.

        Raises:
            InvalidSpec: The environment's token is empty or too short, or its TLS incomplete.
        """
        token = load_token(self.token, environ=environ)
        tls = self.tls or server_tls(environ=environ)
        if token is self.token and tls is self.tls:
            return self
        return replace(self, token=token, tls=tls)


def _check_count(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidSpec(name, f"wants a whole number from {least} to {most}, got {value!r}")
