"""Serves an env to clients, one env and one thread per session (layer 6).

    EnvServer("CartPole-v1", "rollmesh+unix:///run/env.sock").serve()

    with EnvServer(make_env, "rollmesh+tcp://127.0.0.1:0") as server:
        print(server.address)
        server.wait()

A factory (an id, a callable, `module:callable`) gives each session an env of its own, up to
`max_sessions`. An instance, a list of envs or an env port is given to one session at a time.
Whoever finds no place waits in a queue and is told its position.

The first env is built at the start, for the contract: with `serve()` on the calling thread, which
also reads its sessions' connections and steps and closes it (OpenGL contexts, pygame); other envs,
and all of them with `start()`, on threads of their own.

An env is used again by the next session, which must reset it first; it is built anew where a
session's request was late, or its client asked to close the env.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rollmesh.endpoint.error_bodies import Refused, error, error_body
from rollmesh.endpoint.servers.env_place import EnvPlace
from rollmesh.endpoint.servers.env_session import EnvSession
from rollmesh.endpoint.servers.env_supply import EnvSupply
from rollmesh.endpoint.servers.reception import DRAINING, Service
from rollmesh.endpoint.servers.server_options import ENV_SESSIONS, ServerOptions
from rollmesh.endpoint.servers.serving import WELCOME_S, Server, true_capabilities
from rollmesh.endpoint.servers.sessions import Arrival
from rollmesh.endpoint.servers.watchdog import now_ns
from rollmesh.errors import ConnectionLost, InvalidSpec, RollmeshError, WireError
from rollmesh.ports import EnvContract
from rollmesh.transport.address import Address
from rollmesh.transport.connection import Connection
from rollmesh.wire.contract import decode_contract, encode_contract
from rollmesh.wire.messages import ErrorBody, Kind, Message

_logger = logging.getLogger(__name__)

_LOOK_NS = 100_000_000
_KILL_S = 0.1
"""How long the thread of an env may take to end once the process of the env was killed."""
_REAP_S = 1.0
"""How much later an isolated env is given up: its process is killed at the limit, which is told."""
BUILDING = "its env is being built"
"""What a client is told that has a place, and waits for its env."""


class EnvServer(Server):
    """Serves an env; see the module.

    Args:
        env: An env, a factory, what names one, a list of these, or an env port.
        address: Where to listen, or several addresses.
        options: How.

    Raises:
        InvalidSpec: It names no env, or an address is none, or needs TLS and a token.
    """

    service: ClassVar[Service] = "env"

    def __init__(
        self,
        env: Any,
        address: str | Address | Sequence[str | Address] = "rollmesh+unix://",
        options: ServerOptions | None = None,
    ) -> None:
        super().__init__(address, options)
        self._supply = EnvSupply(env, self.options)
        asked = self.options.max_sessions
        if not self._supply.can_build and (asked or 1) > 1:
            raise InvalidSpec(
                "max_sessions", f"is {asked}, but there is one env only; give a factory"
            )
        self._most = asked or (ENV_SESSIONS if self._supply.can_build else 1)
        self._places: list[EnvPlace] = []
        self._queue: deque[EnvSession] = deque()
        self._contract: EnvContract | None = None
        self._contract_bytes = b""
        self._capabilities: dict[str, str] = {}

    @property
    def contract(self) -> EnvContract:
        """What is served; known once it has started."""
        if self._contract is None:
            raise RuntimeError("the server has not started")
        return self._contract

    @property
    def capabilities(self) -> dict[str, str]:
        """What the env can, as clients are told; known once it has started."""
        return self._capabilities

    # ------------------------------------------------------------------------- lifecycle

    def _serve_here(self) -> None:
        place = self._new_place()
        self._build_first(place)
        try:
            self._open_doors()
        except BaseException:
            place.end()
            raise
        place.work()

    def _build_elsewhere(self) -> None:
        place = self._new_place()
        built = threading.Event()
        failure: list[BaseException] = []

        def work() -> None:
            try:
                self._build_first(place)
            except BaseException as exc:  # noqa: BLE001 - raised by the caller, who waits
                failure.append(exc)
                return
            finally:
                built.set()
            place.work()

        threading.Thread(target=work, name="rollmesh-env-0", daemon=True).start()
        built.wait()
        if failure:
            raise failure[0]

    def _build_first(self, place: EnvPlace) -> None:
        try:
            place.build()
            contract = place.port.contract
            self._contract_bytes = _sendable(contract)
            self._capabilities = true_capabilities(place.capabilities)
            self._contract = contract
        except BaseException:
            place.stop()
            place.closed.set()
            raise
        self._signals.install_again()

    def _stop(self) -> None:
        places = list(self._places)
        for place in places:
            place.stop()
        limit_s = self.options.close_timeout_s
        if limit_s is not None and self.options.isolate == "process":
            limit_s += _REAP_S
        late = _not_closed(places, limit_s)
        for place in late:
            _logger.warning(
                "close_overdue place=%d timeout_s=%s detail=its env is left behind",
                place.index,
                self.options.close_timeout_s,
            )
            place.kill()
        self.has_left_behind = bool(_not_closed(late, _KILL_S))

    def _abort(self) -> None:
        for place in self._places:
            place.kill()

    def _is_healthy(self) -> bool:
        places = self._places
        return len(places) < self._most or not all(place.is_hung for place in places)

    # --------------------------------------------------------------------------- entering

    def _enter_anew(self, arrival: Arrival) -> ErrorBody | None:
        session = EnvSession(arrival, self.terms, num_envs=self.contract.num_envs)
        with self._lock:
            if self._draining:
                return DRAINING
            place = self._free_place()
            if place is not None:
                self._seat(session, place)
                return None
            self._evict(now_ns())
            gone = self._take_gone()
            refusal = self._busy() if len(self._queue) >= self.options.queue_size else None
            if refusal is None:
                self._queue.append(session)
            waiting = list(self._queue)
        for one in gone:
            one.end("its client did not wait")
            one.let_go()
        self._watchdog.ring()
        for position, queued in enumerate(waiting, 1):
            if gone or queued is session:
                self._tell_position(queued, position)
        return refusal

    def _take_gone(self) -> list[EnvSession]:
        """Take those out of the queue whose clients did not wait; under the lock."""
        gone = [one for one in self._queue if one.arrival.connection.is_gone()]
        for one in gone:
            self._queue.remove(one)
        return gone

    def _busy(self) -> ErrorBody:
        hung = sum(place.is_hung for place in self._places)
        stuck = f", {hung} of them with an env that does not come back" if hung else ""
        return Refused(
            "busy",
            f"all {self._most} places are taken{stuck}, and {len(self._queue)} clients wait; "
            f"an idle client's place is free after {self.options.idle_timeout_s} s. Try again "
            "then, or start another server",
        ).body

    def _admit(self, connection: Connection) -> None:
        contract = self.contract
        connection.framing.bind(
            contract.observation_space.codec, contract.action_space.codec, contract.num_envs
        )
        super()._admit(connection)

    def _told(self) -> Mapping[str, Any]:
        return {"contract": self._contract_bytes, "capabilities": self._capabilities}

    # ---------------------------------------------------------------------------- places

    def _new_place(self) -> EnvPlace:
        place = EnvPlace(
            len(self._places),
            self._supply,
            freed=self._freed,
            announce=self._announce,
            welcome=self._welcome_session,
            refuse=self._refuse_session,
            close_timeout_s=self.options.close_timeout_s,
        )
        self._places.append(place)
        return place

    def _free_place(self) -> EnvPlace | None:
        """Return a place for a session, built when it is used first; under the lock."""
        for place in self._places:
            if place.session is None:
                return place
        if len(self._places) >= self._most:
            return None
        place = self._new_place()
        threading.Thread(target=place.work, name=f"rollmesh-env-{place.index}", daemon=True).start()
        return place

    def _seat(self, session: EnvSession, place: EnvPlace) -> None:
        self._sessions[session.id] = session
        session.is_seated = True
        place.give(session)

    def _announce(self, session: EnvSession) -> None:
        """Tell a session's client that its env has yet to be built; on the thread of the place.

        A client that heard nothing would take its connection for lost, and come again.

        Raises:
            ConnectionLost: It is gone.
            TransportTimeout: It did not take it in time.
        """
        arrival = session.arrival
        connection = arrival.connection
        if connection.is_gone():
            raise ConnectionLost(connection.address, "it did not wait for a place")
        welcome = self.reception.welcome(session.id, position=1, detail=BUILDING)
        with session.door_lock:
            connection.send(Message(Kind.WELCOME, arrival.request_id, welcome), WELCOME_S)

    def _welcome_session(self, session: EnvSession, place: EnvPlace) -> None:
        """Tell a session's client that it has a place; on the thread of the place."""
        del place
        self._signals.install_again()
        with session.door_lock:
            session.is_welcomed = True
            session.last_ns = now_ns()
            self._welcome(session, session.arrival)
        _logger.info("session_begun session=%s client=%s", session.id, session.name)

    def _refuse_session(self, session: EnvSession, exc: BaseException) -> None:
        """Tell a client that its place has no env, or that its session cannot begin."""
        arrival = session.arrival
        if not isinstance(exc, ConnectionLost):
            body = error_body(exc, where="building the env", is_trusted=session.is_trusted)
            with contextlib.suppress(RollmeshError):
                arrival.connection.send(error(arrival.request_id, body), WELCOME_S)
        session.end(f"it could not begin: {exc}")
        session.let_go()

    def _freed(self, place: EnvPlace) -> None:
        """Give a place to whoever waits longest; on its thread."""
        session = place.session
        if session is not None:
            self._forget(session)
        with self._lock:
            place.session = None
            if self._closing or not self._queue:
                return
            self._seat(self._queue.popleft(), place)
            waiting = list(self._queue)
        for position, queued in enumerate(waiting, 1):
            self._tell_position(queued, position)

    def _tell_position(self, session: EnvSession, position: int) -> None:
        arrival = session.arrival
        welcome = self.reception.welcome(session.id, position=position)
        try:
            with session.door_lock:
                if not session.is_seated:
                    arrival.connection.send(Message(Kind.WELCOME, arrival.request_id, welcome), 0.1)
        except RollmeshError:
            with self._lock, contextlib.suppress(ValueError):
                self._queue.remove(session)
                arrival.connection.close()

    def _refuse_queued(self) -> None:
        with self._lock:
            queued = list(self._queue)
            self._queue.clear()
        for session in queued:
            arrival = session.arrival
            with contextlib.suppress(RollmeshError):
                arrival.connection.send(error(arrival.request_id, DRAINING), 0.1)
            session.end("the server drains")
            session.let_go()

    # --------------------------------------------------------------------------- watching

    def _check(self, at_ns: int) -> int:
        if not self._queue:
            return super()._check(at_ns)
        self._evict(at_ns)
        return at_ns + _LOOK_NS

    def _evict(self, at_ns: int) -> None:
        """End sessions that keep a place which they do not use, and others wait for."""
        options = self.options
        with self._lock:
            sessions = [place.session for place in self._places if place.session is not None]
        for session in sessions:
            if not session.is_welcomed:
                continue
            away_ns = session.detached_ns
            if away_ns:
                if _is_over(at_ns - away_ns, options.contested_grace_s):
                    session.end("its client is away, and another one waits")
            elif session.is_idle and _is_over(at_ns - session.last_ns, options.idle_timeout_s):
                session.end("it was idle, and another client waits")


def _not_closed(places: list[EnvPlace], limit_s: float | None) -> list[EnvPlace]:
    """Return those that do not close within a limit, which is for all of them together."""
    expiry = None if limit_s is None else time.monotonic() + limit_s
    return [
        place
        for place in places
        if not place.closed.wait(None if expiry is None else max(0.0, expiry - time.monotonic()))
    ]


def _is_over(spent_ns: int, limit_s: float | None) -> bool:
    return limit_s is not None and spent_ns >= limit_s * 1e9


def _sendable(contract: EnvContract) -> bytes:
    """Return a contract as clients get it, once it is known that they can read it.

    Raises:
        InvalidSpec: They could not: its spaces are over a limit.
    """
    data = encode_contract(contract)
    try:
        decode_contract(data)
    except WireError as error:
        raise InvalidSpec("env", f"{contract.id} cannot be served: {error}") from error
    return data
