"""What the servers of envs and models have in common (layer 6).

A server listens at several addresses at once; whoever comes says HELLO, is checked, and enters. Its
life: `start()` or `serve()`, clients come and go, `drain()` (no new clients; sessions may finish),
`close()`. It is a context manager, and can be ended by SIGTERM, SIGINT, or, where the options allow
it, by a client.

Where it listens is in `door_set.py`, what is said to whoever comes in `reception.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rollmesh.endpoint.servers.door_set import DoorSet
from rollmesh.endpoint.servers.lifecycle import Readiness, Signals
from rollmesh.endpoint.servers.reception import Reception, Service, one_line
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.endpoint.servers.sessions import Arrival, Session, Terms
from rollmesh.endpoint.servers.watchdog import Watchdog, now_ns
from rollmesh.errors import InvalidSpec, RollmeshError
from rollmesh.transport.address import Address
from rollmesh.transport.connection import Connection
from rollmesh.wire.messages import ErrorBody, Hello, Kind, Message

if TYPE_CHECKING:
    from typing_extensions import Self

_logger = logging.getLogger(__name__)

WELCOME_S = 10.0
"""How long a client may take to hear that it is welcome, or why not."""
_IDLE_S = 1.0
"""A draining server ends sessions that have asked for nothing for so long."""
_LOOK_S = 0.02
_FORCED_EXIT = 1
_RETURN_S = 0.5
"""How long `serve()` may take to return once all is closed."""


class Server(ABC):
    """Serves one env or model at one or more addresses.

    Args:
        address: Where to listen, or several of these.
        options: How.

    Attributes:
        options: How.
        readiness: Tells whoever started it that it is ready.
        reception: Receives its clients.
        terms: What its sessions share.
        has_left_behind: Whether an env or model did not close in time at the end, and was left.
    """

    service: ClassVar[Service]

    def __init__(
        self,
        address: str | Address | Sequence[str | Address],
        options: ServerOptions | None = None,
    ) -> None:
        _check_options(options)
        self.options = (options or ServerOptions()).with_environment()
        self._doors = DoorSet(self, address)
        self.readiness = Readiness(self.options.ready_fd, self.options.ready_file)
        self.reception = Reception(
            self.service,
            self.options.secret,
            is_draining=lambda: self._draining,
            enter=self.enter,
        )
        self._watchdog = Watchdog(f"rollmesh-{self.service}-watchdog")
        self.terms = Terms(
            options=self.options, watchdog=self._watchdog, ask_shutdown=self.ask_shutdown
        )
        self._lock = threading.RLock()
        self._sessions: dict[str, Session] = {}
        self.has_left_behind = False
        self._begun = False
        self._is_open = False
        self._draining = False
        self._closing = False
        self._done = threading.Event()
        self._left = threading.Event()  # `serve()` has returned
        self._idle_since_ns = now_ns()
        self._signals = Signals(self._on_signal)

    # ------------------------------------------------------------------------- addresses

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it listens, read back: with real ports and paths. Known once it has started."""
        return self._doors.addresses

    @property
    def address(self) -> str:
        """The first address; known once it has started."""
        addresses = self.addresses
        if not addresses:
            raise RuntimeError("the server has not started")
        return addresses[0]

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

    def serve(self) -> None:
        """Serve until somebody ends it; env or model live on the calling thread.

        On the main thread SIGTERM and SIGINT drain and end the server, and this returns; the
        second one ends the process at once.
        """
        signals = self._signals if self.options.handle_signals else contextlib.nullcontext()
        with self._beginning(), signals:
            self._serve_here()
            self.close()
            self._done.wait(self.options.close_timeout_s)  # where another thread closes it

    def start(self) -> Self:
        """Serve on other threads; returns once clients are served."""
        with self._beginning():
            self._build_elsewhere()
            self._open_doors()
        return self

    @contextlib.contextmanager
    def _beginning(self) -> Generator[None, None, None]:
        """Begin to serve; where that comes to nothing, nothing is left of it."""
        self._begin()
        try:
            yield
        except BaseException:
            self._give_up()
            self.close()
            raise
        finally:
            self._left.set()

    @abstractmethod
    def _serve_here(self) -> None:
        """Build, open the doors and work on the calling thread, until the server is ended."""

    @abstractmethod
    def _build_elsewhere(self) -> None:
        """Build on the thread that is going to work; returns once that is done."""

    def _give_up(self) -> None:  # noqa: B027 - not every server has a thread to leave
        """Leave a thread behind that did not get as far as serving."""

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
            one_line(reason),
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
        self._doors.close()
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
            InvalidSpec: A file of TLS cannot be used, or the word that the server is ready could
                not be passed on.
        """
        with self._lock:
            if self._begun or self._closing:
                raise RuntimeError("a server can be started once")
            self._begun = True
        self.readiness.check()
        self._doors.bind()
        self.readiness.begin()

    def _open_doors(self) -> None:
        """Let clients in, unless the server was ended while it was building."""
        with self._lock:
            if self._draining:
                return
        self._idle_since_ns = now_ns()
        self._watchdog.watch(self)
        self._doors.open()
        self._is_open = True
        _logger.info("serving service=%s addresses=%s", self.service, ", ".join(self.addresses))
        self.readiness.ready(self.addresses)
        if self._done.is_set():  # it was ended meanwhile
            self.readiness.stopped()
            self._doors.close()

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
        self._doors.close()
        self.readiness.stopped()
        self._abort()
        os._exit(code)

    def _abort(self) -> None:  # noqa: B027 - not every server has processes
        """Kill what would outlive the process."""

    # -------------------------------------------------------------------------- entering

    def enter(self, arrival: Arrival, hello: Hello) -> ErrorBody | None:
        """Give a client that was checked its session, old or new; return why not, or None.

        Everything further, WELCOME included, goes over the arrival's connection.
        """
        with self._lock:
            known = self._sessions.get(hello.session_id) if hello.session_id else None
        if known is not None and self._resume(known, arrival):
            return None
        return self._enter_anew(arrival)

    @abstractmethod
    def _enter_anew(self, arrival: Arrival) -> ErrorBody | None:
        """Give a client a new session; return why not, or None."""

    def _resume(self, session: Session, arrival: Arrival) -> bool:
        """Go on with a session over a new connection; False where it is over."""
        if session.is_ended or session.is_broken:
            return False
        connection = arrival.connection
        try:
            self._welcome(session, arrival, is_resumed=True)
        except RollmeshError as exc:
            _logger.info("resume_failed session=%s error=%s", session.id, exc)
            connection.close()
            return True
        if not session.attach(connection, arrival.peer):
            connection.close()
        _logger.info("session_resumed session=%s client=%s", session.id, arrival.name)
        return True

    def _welcome(self, session: Session, arrival: Arrival, *, is_resumed: bool = False) -> None:
        """Tell a client that it has a session, and take its requests.

        Raises:
            ConnectionLost: It is gone.
            TransportTimeout: It did not take it in time.
        """
        self._admit(arrival.connection)
        welcome = self.reception.welcome(session.id, is_resumed=is_resumed, **self._told())
        message = Message(Kind.WELCOME, arrival.request_id, welcome)
        arrival.connection.send(message, WELCOME_S)

    def _admit(self, connection: Connection) -> None:
        """Accept messages of full size."""
        connection.admit()

    @abstractmethod
    def _told(self) -> Mapping[str, Any]:
        """Return what clients are told of what is served: fields of `Welcome`."""

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


def true_capabilities(names: Iterable[str]) -> dict[str, str]:
    """Return capabilities as a WELCOME carries them."""
    return dict.fromkeys(sorted(names), "true")
