"""Opening the connection of a client: dial, say hello, wait for a place (layer 6).

A server that is still starting, restarting or full is waited for, as long as the caller's patience
lasts, and the log says so at once; what waiting does not cure (a refused token, a wrong service, a
host that nobody knows, no rollmesh server at all) is an error at once. Every failure says where it
was, what the other side did, and what to look at.

Knows no requests and no resuming: `client_session.py`.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import ssl
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal, NoReturn, TypeAlias

from rollmesh.endpoint.clients.client_options import ClientOptions, refusal_hint, silence_hint
from rollmesh.endpoint.identity import PROCESSES_FACT, SERVER_FACT, who_we_are
from rollmesh.errors import (
    ConnectFailed,
    ConnectionLost,
    EndpointFault,
    InvalidSpec,
    TransportTimeout,
    WireError,
)
from rollmesh.transport.address import Address
from rollmesh.transport.connect_errors import (
    HandshakeRefused,
    NoPath,
    TlsFailed,
    Unheard,
    WrongPeer,
)
from rollmesh.transport.connection import Connection
from rollmesh.transport.security import check_dial, client_wrap
from rollmesh.transport.upgrade import (
    ELSEWHERE,
    Path,
    choose_path,
    speaks_frames,
)
from rollmesh.wire.handshake import EDITION, EDITIONS
from rollmesh.wire.messages import GENERATION, ErrorBody, Hello, Kind, Message, Welcome

_logger = logging.getLogger(__name__)

Service: TypeAlias = Literal["env", "model"]

WAITABLE = frozenset({"busy", "draining", "unavailable"})
"""Refusals that time may cure."""

_ATTEMPT_S = 3.0
"""Longest wait for one TCP connection: the next attempt may meet a server that has just started."""
_FIRST_HELLO_S = 2.0
_HELLO_S = 10.0
"""How long a welcome is waited for before another connection is tried: at first, and at most. One
that was cut on the way may not tell, and there is nothing to lose yet.
"""
_KNOCK_S = 0.5
_MOST_TOLD = 200
_ALL_TAKEN = "all its places are taken"
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_UNKNOWN_HOST = frozenset(
    [getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA") if hasattr(socket, name)]
)
"""What the system says of a host name that does not exist; time may cure everything else."""


class ConnectRefused(EndpointFault):
    """The server, or what stands in its place, refused us for good; nothing was done.

    Attributes:
        code: The server's word for it, or `"refused"`.
    """

    def __init__(self, detail: str, *, code: str) -> None:
        super().__init__(detail, outcome="not_done")
        self.code = code


class NoPlace(EndpointFault):
    """The server had no place for us for as long as we waited; nothing was done."""


class Interrupted(Exception):  # noqa: N818 - never leaves the client
    """Somebody asked the wait to end."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A connection whose server has a place for us.

    Attributes:
        connection: The connection, admitted.
        welcome: The server's words.
    """

    connection: Connection
    welcome: Welcome


_waited_for: set[str] = set()
"""Addresses of servers that are being waited for; the log has been told."""


class Dialer:
    """The way to one served endpoint.

    Args:
        address: Where it listens.
        service: What is expected there.
        options: How to connect.

    Raises:
        InvalidSpec: The options do not go with the address.
    """

    def __init__(self, address: Address, service: Service, options: ClientOptions) -> None:
        check_dial(
            address,
            token=options.token,
            tls=options.tls,
            insecure_plaintext=options.insecure_plaintext,
        )
        if options.transport == "grpc" and address.protocol != "grpc":
            raise InvalidSpec("transport", f"{address} speaks {address.protocol}, not grpc")
        self.address = address
        self.service: Service = service
        self.options = options
        client_wrap(options.tls, address.host)  # refuses files that cannot be used
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._dialled: Connection | None = None
        self._avoid: dict[str, str] = {}
        self._silent: set[str] = set()

    # ------------------------------------------------------------------------------ opening

    def open(self, session_id: str, timeout_s: float | None) -> Opened:
        """Return a connection once the server has a place; tried again until the time is over.

        Args:
            session_id: The session to resume, or `""` for a new one.
            timeout_s: How long it may take, in seconds; None is no limit.

        Raises:
            EndpointFault: Nobody answered in time, or the server refused; nothing was done.
            Interrupted: `interrupt` was called.
        """
        begun = time.monotonic()
        expiry = None if timeout_s is None else begun + timeout_s
        pause_s, hello_s = _FIRST_PAUSE_S, _FIRST_HELLO_S
        known: _NotNow | None = None
        has_knocked = False
        self._avoid, self._silent = {}, set()
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    return self._attempt(session_id, expiry, hello_s)
                except _NotNow as failure:
                    now = time.monotonic()
                    is_cut = failure.may_be_cut and expiry is not None and now >= expiry
                    known = known if known is not None and is_cut else failure
                    if expiry is not None and now + pause_s >= expiry:
                        raise self._given_up(known, now - begun) from known.__cause__
                    if not has_knocked and isinstance(failure.__cause__, Unheard):
                        has_knocked = True
                        self._check_scheme(expiry)
                    if pause_s == _FIRST_PAUSE_S:
                        self._check_host()
                        stack.enter_context(self._telling(failure, expiry))
                    if isinstance(failure.__cause__, TransportTimeout):
                        hello_s = min(_HELLO_S, hello_s * 2)
                self._pause(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.5)

    def interrupt(self) -> None:
        """End an `open` under way, or the next one. Any thread may, a signal handler too."""
        self._bell.put(None)
        dialled = self._dialled
        if dialled is not None:
            dialled.shutdown("interrupted")

    def forget_interrupt(self) -> None:
        """Forget an interrupt that came too late to end anything."""
        while not self._bell.empty():
            self._bell.get()

    # ------------------------------------------------------------------------------- inside

    def _check_host(self) -> None:
        """Refuse a host that nobody knows, such as one that was mistyped."""
        address = self.address
        if address.family != "tcp" or address.host in ("", "localhost"):
            return
        try:
            socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno in _UNKNOWN_HOST:
                raise self._refused(
                    f"no host is called {address.host!r}", f"{error}; look at its spelling"
                ) from error

    def _check_scheme(self, expiry: float | None) -> None:
        """Refuse the address of a server's own frames, dialled as if it spoke gRPC."""
        limit_s = _left(expiry, _KNOCK_S) or _KNOCK_S
        if speaks_frames(self.address, tls=self.options.tls, timeout_s=limit_s):
            raise self._refused(
                "what answers there does not speak gRPC",
                "it is a rollmesh server's address for its own frames; write "
                f"rollmesh+{self.address}",
            )

    @contextlib.contextmanager
    def _telling(self, failure: _NotNow, expiry: float | None) -> Generator[None, None, None]:
        """Say what is waited for, once where many lanes wait for the same server."""
        key = str(self.address)
        is_first = key not in _waited_for
        _waited_for.add(key)
        if is_first:
            _logger.warning(
                "waiting_for_server address=%s service=%s left_s=%s detail=%s",
                self.address,
                self.service,
                "unlimited" if expiry is None else f"{max(0.0, expiry - time.monotonic()):.0f}",
                failure.detail,
            )
        try:
            yield
        finally:
            if is_first:
                _waited_for.discard(key)

    def _attempt(self, session_id: str, expiry: float | None, hello_s: float) -> Opened:
        while True:
            path = self._choose(expiry)
            connection = self._dialled = path.connection
            try:
                welcome = self._greet(path, session_id, expiry, hello_s)
            except BaseException as error:
                # shut down at once, over gRPC too
                connection.shutdown("no place was waited for any longer")
                connection.close()
                if not self._leads_astray(path, error):
                    raise
            else:
                return Opened(connection=connection, welcome=welcome)
            finally:
                self._dialled = None

    def _choose(self, expiry: float | None) -> Path:
        try:
            return choose_path(
                self.address,
                self.service,
                transport=self.options.transport,
                options=self.options.connection,
                token=self.options.token,
                tls=self.options.tls,
                timeout_s=_left(expiry, _ATTEMPT_S) or _ATTEMPT_S,
                avoid=self._avoid,
            )
        except HandshakeRefused as error:
            self._raise_refusal(error.refusal)
        except NoPath as error:
            raise self._refused("transport is native", f"{error}; leave it at auto") from error
        except WrongPeer as error:
            raise self._refused("what answers there does not speak gRPC", str(error)) from error
        except ConnectFailed as error:
            if _is_about_tls(error):
                raise self._refused("the TLS handshake failed", str(error)) from error
            raise _NotNow(str(error), may_be_cut=True) from error

    def _leads_astray(self, path: Path, error: BaseException) -> bool:
        """Tell whether to go another way: a server named an address behind which it is not.

        A native address that nobody speaks at may be slow, and is given another chance.
        """
        found = ""
        if isinstance(error, ConnectRefused) and error.code in ELSEWHERE:
            found = "another server is there"
        elif isinstance(error.__cause__, WireError):
            found = "what is there is no server of ours"
        elif isinstance(error, _NotNow) and error.is_silent and self.options.transport == "auto":
            if path.address in self._silent:
                found = "nobody answers there"
            self._silent.add(path.address)
        if not path.server or not found:
            return False
        if self.options.transport == "native":
            raise self._refused(
                f"transport is native, and the server says that it is at {path.address}",
                f"from here, {found}; give the address where its own frames are reached from here, "
                "or leave transport at auto",
            ) from error
        _logger.info(
            "path_avoided address=%s taken=%s detail=%s", self.address, path.address, found
        )
        self._avoid[path.address] = found
        return True

    def _greet(self, path: Path, session_id: str, expiry: float | None, hello_s: float) -> Welcome:
        connection = path.connection
        token, servers = self.options.token, self.options.connection.servers
        peer = who_we_are("rollmesh-client")
        if servers > 1:
            peer[PROCESSES_FACT] = str(servers + 1)
        if path.server:
            peer[SERVER_FACT] = path.server
        hello = Hello(
            generation=GENERATION,
            service=self.service,
            token="" if token is None else token.secret,
            session_id=session_id,
            peer=peer,
            editions=EDITIONS,
            preferred_edition=EDITION,
        )
        request_id = connection.next_id()
        try:
            self._check_interrupt()
            connection.send(Message(Kind.HELLO, request_id, hello), _left(expiry, hello_s))
            return self._wait_for_place(connection, request_id, expiry, hello_s)
        except (ConnectionLost, TransportTimeout) as error:
            self._check_interrupt()
            raise _NotNow(
                f"somebody accepts connections at {self.address} but gives no welcome ({error}); "
                "is it a rollmesh server, is it still starting, has it stopped, and does it want "
                f"{self._may_miss}{self._other_scheme}? {silence_hint(self.options.token)}",
                may_be_cut=isinstance(error, TransportTimeout),
                is_silent=True,
            ) from error
        except WireError as error:
            raise self._refused(
                f"what listens at {self.address} does not speak rollmesh's native protocol",
                f"{error}; look at which server has this address, and whether it wants TLS"
                f"{self._other_scheme}",
            ) from error

    def _wait_for_place(
        self, connection: Connection, request_id: int, expiry: float | None, hello_s: float
    ) -> Welcome:
        limit_s, waits_for = hello_s, ""
        while True:
            try:
                reply = connection.receive(_left(expiry, limit_s))
            except TransportTimeout as error:
                if not waits_for:
                    raise
                raise _NotNow(waits_for, is_full=waits_for.startswith(_ALL_TAKEN)) from error
            if reply.request_id != request_id:
                continue
            body = reply.body
            if isinstance(body, ErrorBody):
                self._raise_refusal(body)
            if not isinstance(body, Welcome):
                raise WireError(f"a {reply.kind.name} message in answer to HELLO")
            if not body.is_compatible or body.generation != GENERATION:
                raise self._refused(
                    "the two cannot talk",
                    body.detail
                    or f"it speaks {body.generation[:80]!r}, this is {GENERATION!r}; "
                    "use versions of rollmesh that share a generation",
                )
            if not body.position:
                return body
            waits_for = self._tell_wait(body, waits_for)
            limit_s = float("inf")

    def _tell_wait(self, body: Welcome, told: str) -> str:
        """Return what we wait for at a server that has heard us; log it where it is news."""
        if body.detail:  # a place is ours, but there is no env yet
            waits_for = f"{body.detail[:_MOST_TOLD]}; limits.env_connect_s says how long we wait"
        else:
            waits_for = f"{_ALL_TAKEN}; we are number {body.position}"
        if waits_for == told:
            return told
        if body.detail:
            _logger.info("waiting address=%s detail=%s", self.address, waits_for)
        else:
            _logger.info("queued address=%s position=%d", self.address, body.position)
        return waits_for

    def _raise_refusal(self, body: ErrorBody) -> NoReturn:
        if body.code in WAITABLE:
            raise _NotNow(f"it is {body.code}: {body.message}", is_full=body.code == "busy")
        detail = body.message
        if body.code == "unauthenticated":
            detail = f"{detail}; {refusal_hint(self.options.token)}"
        raise self._refused(f"it refused us ({body.code})", detail, body.code)

    @property
    def _other_scheme(self) -> str:
        if self.address.protocol != "native":
            return ""
        other = str(self.address).removeprefix("rollmesh+")
        return f", or is it a gRPC server, whose address is {other}"

    @property
    def _may_miss(self) -> str:
        """What a server that hangs up may have missed of us."""
        if self.options.tls is None:
            return "TLS"
        return "a certificate of ours (tls_client_cert), from a CA that it believes"

    def _refused(self, what: str, detail: str, code: str = "refused") -> EndpointFault:
        return ConnectRefused(
            f"connecting to the {self.service} at {self.address}: {what}: {detail}", code=code
        )

    def _given_up(self, failure: _NotNow, waited_s: float) -> EndpointFault:
        kind = NoPlace if failure.is_full else EndpointFault
        return kind(
            f"connecting to the {self.service} at {self.address}: gave up after {waited_s:.1f} s: "
            f"{failure.detail}",
            error_class="ConnectFailed",
            outcome="not_done",
        )

    def _pause(self, pause_s: float) -> None:
        try:
            self._bell.get(timeout=pause_s)
        except queue.Empty:
            return
        raise Interrupted

    def _check_interrupt(self) -> None:
        if not self._bell.empty():
            self._bell.get()
            raise Interrupted


class _NotNow(Exception):  # noqa: N818 - never leaves this module
    """An attempt failed in a way that another one may not.

    Attributes:
        detail: What happened.
        may_be_cut: Whether the end of the time may be all that happened: an attempt that began
            just before it hides what the ones before had found out.
        is_full: Whether the server had no place for us.
        is_silent: Whether somebody took our connection, and nothing was heard.
    """

    def __init__(
        self,
        detail: str,
        *,
        may_be_cut: bool = False,
        is_full: bool = False,
        is_silent: bool = False,
    ) -> None:
        super().__init__(detail)
        self.is_silent = is_silent
        self.is_full = is_full
        self.detail = detail
        self.may_be_cut = may_be_cut


def _left(expiry: float | None, most_s: float) -> float | None:
    left_s = most_s if expiry is None else min(most_s, max(0.001, expiry - time.monotonic()))
    return None if left_s == float("inf") else left_s


def _is_about_tls(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (TlsFailed, ssl.SSLError)):
            return True
        cause = cause.__cause__
    return False
