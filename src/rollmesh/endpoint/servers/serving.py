"""What the servers of envs and models have in common (layer 6).

A server listens at several addresses at once; whoever comes says HELLO, is checked, and enters. Its
life: `start()` or `serve()`, clients come and go, `drain()` (no new clients; sessions may finish),
`close()`. It is a context manager, and can be ended by SIGTERM, SIGINT, or, where the options allow
it, by a client.

Hooks for other transports: `check_hello` says why a client is refused, `enter` gives it a session.
Neither knows a socket.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import platform
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import rollmesh
from rollmesh.endpoint.error_bodies import error
from rollmesh.endpoint.servers.doors import Door, ListenerDoor, no_door, private_addresses
from rollmesh.endpoint.servers.lifecycle import Readiness, Signals
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.endpoint.servers.sessions import Arrival, Session, Terms
from rollmesh.endpoint.servers.watchdog import Watchdog, now_ns
from rollmesh.errors import InvalidSpec, RollmeshError
from rollmesh.transport.address import LONGEST_UNIX_PATH, Address, parse_address
from rollmesh.transport.connection import Connection
from rollmesh.transport.security import Peer, check_bind, server_wrap
from rollmesh.wire.handshake import EDITION, EDITIONS
from rollmesh.wire.messages import GENERATION, ErrorBody, Hello, Kind, Welcome

if TYPE_CHECKING:
    from typing_extensions import Self

_logger = logging.getLogger(__name__)

HELLO_S = 10.0
"""How long a client may take to say who it is."""
_IDLE_S = 1.0
"""A draining server ends sessions that have asked for nothing for so long."""
_LOOK_S = 0.02
_FORCED_EXIT = 1
_RETURN_S = 0.5
"""How long `serve()` may take to return once all is closed."""

Service = Literal["env", "model"]
DOORS: dict[str, Callable[[Server, Address], Door]] = {}
"""Makes the door of a protocol. A transport that is added later adds itself here."""


class Server(ABC):
    """Serves one env or model at one or more addresses.

    Args:
        address: Where to listen, or several of these.
        options: How.

    Attributes:
        options: How.
        readiness: Tells whoever started it that it is ready.
    """

    service: ClassVar[Service]

    def __init__(
        self,
        address: str | Address | Sequence[str | Address],
        options: ServerOptions | None = None,
    ) -> None:
        _check_options(options)
        self.options = (options or ServerOptions()).with_environment()
        given: list[Any] = [address]
        if isinstance(address, Sequence) and not isinstance(address, str):
            given = list(address)
        if not given:
            raise InvalidSpec("address", "wants at least one")
        self._asked = [
            _absolute(one if isinstance(one, Address) else parse_address(one, "bind"))
            for one in given
        ]
        for asked in self._asked:
            check_bind(
                asked,
                token=self.options.secret,
                tls=self.options.tls,
                insecure_plaintext=self.options.insecure_plaintext,
            )
        self.readiness = Readiness(self.options.ready_fd, self.options.ready_file)
        self._doors: list[Door] = []
        self._watchdog = Watchdog(f"rollmesh-{self.service}-watchdog")
        self.terms = Terms(
            options=self.options, watchdog=self._watchdog, ask_shutdown=self.ask_shutdown
        )
        self._lock = threading.RLock()
        self._sessions: dict[str, Session] = {}
        self._begun = False
        self._is_open = False
        self._draining = False
        self._closing = False
        self._done = threading.Event()
        self._idle_since_ns = now_ns()
        self._signals = Signals(self._on_signal)

    # ------------------------------------------------------------------------- addresses

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it listens, read back: with real ports and paths. Known once it has started."""
        return tuple([str(door.address) for door in self._doors])

    @property
    def address(self) -> str:
        """The first address; known once it has started."""
        if not self._doors:
            raise RuntimeError("the server has not started")
        return self.addresses[0]

    # --------------------------------------------------------------------------- health

    @property
    def is_serving(self) -> bool:
        """Whether a new client would be served: what a health check should say."""
        return self._is_open and not self._draining and self._is_healthy()

    @property
    def sessions(self) -> int:
        """Number of sessions."""
        return len(self._sessions)

    @abstractmethod
    def _is_healthy(self) -> bool:
        """Return whether there is an env or model that comes back."""

    # ------------------------------------------------------------------------- lifecycle

    @abstractmethod
    def serve(self) -> None:
        """Serve until somebody ends it; env or model live on the calling thread.

        On the main thread SIGTERM and SIGINT drain and end the server, and this returns; the
        second one ends the process at once.
        """

    @abstractmethod
    def start(self) -> Self:
        """Serve on other threads; returns once clients are served."""

    @abstractmethod
    def _stop(self) -> None:
        """End sessions' places, and close env or model, within the close time-out."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the server has ended; return whether it has."""
        return self._done.wait(timeout_s)

    def ask_shutdown(self, reason: str) -> None:
        """Drain and close on another thread, and return at once."""

        def end() -> None:
            self.drain(reason=reason)
            self.close()

        threading.Thread(target=end, name="rollmesh-shutdown", daemon=True).start()

    def drain(self, timeout_s: float | None = None, *, reason: str = "") -> bool:
        """Take no new clients, and let the sessions there are finish.

        Idle sessions are ended at once.

        Args:
            timeout_s: How long they may take; None is what the options say.
            reason: For the log.

        Returns:
            Whether all sessions ended by themselves or were idle.
        """
        limit_s = self.options.drain_timeout_s if timeout_s is None else timeout_s
        with self._lock:
            self._draining = True
        self.readiness.stopping()
        _logger.info(
            "draining service=%s sessions=%d reason=%s",
            self.service,
            self.sessions,
            _one_line(reason),
        )
        self._refuse_queued()
        expiry = None if limit_s is None else time.monotonic() + limit_s
        while True:
            with self._lock:
                sessions = [
                    session
                    for session in self._sessions.values()
                    if not (session.is_ended and session.is_broken)  # its env hangs
                ]
            at_ns = now_ns()
            for session in sessions:
                if session.is_idle and at_ns - session.last_ns > _IDLE_S * 1e9:
                    session.end("the server drains")
            if not sessions:
                return True
            if expiry is not None and time.monotonic() > expiry:
                return False
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """End sessions, close env or model, and let go of the addresses. Again does nothing.

        Requests under way may finish within the close time-out.
        """
        with self._lock:
            first = not self._closing
            self._closing = self._draining = True
        if not first:
            self._done.wait(self.options.close_timeout_s)
            return
        for door in self._doors:
            door.close()
        self._refuse_queued()
        self._finish_requests()
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.end("the server closes")
        try:
            self._stop()
        finally:
            self._watchdog.close()
            self.readiness.stopped()
            self._done.set()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _finish_requests(self) -> None:
        """Wait for the requests under way, for at most the close time-out."""
        limit_s = self.options.close_timeout_s
        expiry = None if limit_s is None else time.monotonic() + limit_s
        while expiry is None or time.monotonic() < expiry:
            with self._lock:
                if all(session.is_idle for session in self._sessions.values()):
                    return
            time.sleep(_LOOK_S)

    def _refuse_queued(self) -> None:  # noqa: B027 - not every server has a queue
        """Tell clients that wait for a place that there will be none."""

    def _begin(self) -> None:
        """Listen at all addresses, without letting anybody in.

        Raises:
            ListenFailed: One of them is in use or cannot be bound; none is bound then.
            InvalidSpec: No transport of ours listens there, or the word that the server is ready
                could not be passed on.
        """
        with self._lock:
            if self._begun or self._closing:
                raise RuntimeError("a server can be started once")
            self._begun = True
        self.readiness.check()
        try:
            for asked in self._asked:
                self._doors.append(self._door(asked))
            for private in private_addresses(self._asked, native=self.options.native):
                self._try_door(private)
        except BaseException:
            for door in self._doors:
                door.close()
            raise

    def _door(self, address: Address) -> Door:
        if address.protocol == "grpc":
            # adds itself; loads grpc
            import rollmesh.endpoint.servers.grpc_door  # noqa: F401  # pyright: ignore[reportUnusedImport]
        make = DOORS.get(address.protocol)
        if make is not None:
            return make(self, address)
        if address.protocol not in ("native", "memory"):
            raise no_door(address)
        options = self.options
        wrap = None if options.tls is None or address.family != "tcp" else server_wrap(options.tls)
        return ListenerDoor(address, self.greet, options=options.connection, wrap=wrap)

    def _try_door(self, address: Address) -> None:
        """Listen at an address that nobody asked for: a server does without it where it cannot."""
        try:
            self._doors.append(self._door(address))
        except OSError as exc:  # ListenFailed is one
            _logger.warning("no_native_address detail=%s; clients stay with gRPC", exc)

    def _open_doors(self) -> None:
        self._idle_since_ns = now_ns()
        self._watchdog.watch(self)
        for door in self._doors:
            door.open()
        self._is_open = True
        _logger.info("serving service=%s addresses=%s", self.service, ", ".join(self.addresses))
        self.readiness.ready(self.addresses)

    def _on_signal(self, number: int, before: int) -> None:
        name = signal.Signals(number).name
        if before:
            _logger.warning("forced_exit signal=%s", name)
            self._exit_now(128 + number)
        _logger.info("stopping signal=%s", name)
        self.drain(reason=name)
        self.close()
        if not self._left.wait(_RETURN_S):
            _logger.error("close_overdue detail=env or model hangs; the process ends without it")
            self._exit_now(_FORCED_EXIT)

    def _exit_now(self, code: int) -> None:
        """End the process at once; nothing of ours is left behind."""
        for door in self._doors:
            with contextlib.suppress(Exception):
                door.close()
        self.readiness.stopped()
        self._abort()
        os._exit(code)

    def _abort(self) -> None:  # noqa: B027 - not every server has processes
        """Kill what would outlive the process."""

    @functools.cached_property
    def _left(self) -> threading.Event:
        """Set when `serve()` has returned."""
        return threading.Event()

    # -------------------------------------------------------------------------- handshake

    def greet(self, connection: Connection, peer: Peer) -> None:
        """Receive the hello of a connection, and let its client in or refuse it.

        Args:
            connection: A new one, which takes small messages only.
            peer: How close the other end is.
        """
        try:
            message = connection.receive(HELLO_S)
            hello = message.body
            if message.kind is not Kind.HELLO or not isinstance(hello, Hello):
                body = ErrorBody(code="unauthenticated", message="the first message must be HELLO")
                refused: ErrorBody | None = body
            else:
                refused = self.check_hello(hello)
            if refused is not None:
                connection.send(error(message.request_id, refused), HELLO_S)
                connection.close()
                return
        except RollmeshError as exc:
            _logger.info("no_hello client=%s error=%s", connection.address, exc)
            connection.close()
            return
        name = hello.peer.get("host", "") + ":" + hello.peer.get("process", "")
        arrival = Arrival(
            connection=connection,
            request_id=message.request_id,
            peer=peer,
            name=_one_line(f"{connection.address} {name}"[:200]),
        )
        refused = self.enter(arrival, hello)
        if refused is not None:
            with contextlib.suppress(RollmeshError):
                connection.send(error(message.request_id, refused), HELLO_S)
            connection.close()

    def check_hello(self, hello: Hello) -> ErrorBody | None:
        """Return why a client is refused, or None. The token comes first."""
        secret = self.options.secret
        if secret is not None and not secret.matches(hello.token):
            return _refusal("unauthenticated", "the token is missing or wrong")
        if hello.generation != GENERATION:
            return _refusal(
                "incompatible",
                f"this server speaks {GENERATION}, the client {hello.generation[:80]!r}; use "
                "versions of both that share a generation",
            )
        if hello.service != self.service:
            return _refusal(
                "incompatible",
                f"this address serves {_a(self.service)}, the client wants "
                f"{_a(hello.service[:80])}; check which address is which",
            )
        if self._draining:
            return _refusal("draining", "this server is about to end", is_recoverable=True)
        return None

    @abstractmethod
    def enter(self, arrival: Arrival, hello: Hello) -> ErrorBody | None:
        """Give a client that was checked its session, old or new; return why not, or None.

        Everything further, WELCOME included, goes over the arrival's connection.
        """

    def welcome(self, session: Session, **given: Any) -> Welcome:
        """Return the welcome of a session."""
        return Welcome(
            generation=GENERATION,
            session_id=session.id,
            editions=EDITIONS,
            preferred_edition=EDITION,
            peer=_who_we_are(f"rollmesh-{self.service}"),
            **given,
        )

    # --------------------------------------------------------------------------- watching

    def check(self, at_ns: int) -> int:
        """Look for what is due; see `Watched`."""
        next_ns = self._check(at_ns)
        limit_s = self.options.exit_when_idle_s
        if limit_s is None or self._draining:
            return next_ns
        if self._sessions:
            self._idle_since_ns = at_ns
        end_ns = self._idle_since_ns + int(limit_s * 1e9)
        if at_ns >= end_ns:
            self.ask_shutdown(f"no session for {limit_s:g} s")
            return next_ns
        return min(next_ns, end_ns)

    def _check(self, at_ns: int) -> int:
        """Look for what is due; return when to look again."""
        return at_ns + 60_000_000_000

    def _forget(self, session: Session) -> None:
        with self._lock:
            self._sessions.pop(session.id, None)
            self._idle_since_ns = now_ns()
        if not self._sessions:
            self._watchdog.ring()


def _check_options(options: object) -> None:
    if options is not None and not isinstance(options, ServerOptions):
        raise InvalidSpec("options", f"wants ServerOptions or None, got {options!r:.100}")


def _refusal(code: str, message: str, *, is_recoverable: bool = False) -> ErrorBody:
    return ErrorBody(
        code=code,
        error_class=code,
        message=message,
        is_recoverable=is_recoverable,
        outcome="not_done",
    )


def true_capabilities(names: Iterable[str]) -> dict[str, str]:
    """Return capabilities as a WELCOME carries them."""
    return dict.fromkeys(sorted(names), "true")


def _absolute(address: Address) -> Address:
    """Return an address that means the same when an env changes the working directory.

    A path that would be too long for a socket then stays as it was given.
    """
    if address.family != "unix" or not address.path:
        return address
    path = str(Path(address.path).absolute())
    if len(os.fsencode(path)) > LONGEST_UNIX_PATH:
        return address
    return replace(address, path=path)


def _one_line(text: str) -> str:
    """Return a peer's words without what could pass for another line of a log."""
    return "".join([letter if letter.isprintable() else "?" for letter in text])


def _a(service: str) -> str:
    return f"an {service}" if service[:1] in "aeiou" else f"a {service}"


@functools.cache
def _who_we_are(component: str) -> dict[str, str]:
    return {
        "component": component,
        "package_version": rollmesh.__version__,
        "language": "python",
        "language_version": platform.python_version(),
        "host": platform.node(),
        "process": str(os.getpid()),
    }
