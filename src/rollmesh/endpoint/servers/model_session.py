"""A session with a model: its routes and their requests (layer 6).

One thread reads for a session and never waits for the model, which works on its own thread and
answers from there; so a slow call keeps nobody from being heard. Requests of one route are carried
out in order, and as many may be under way as the envs of its routes have lanes. A thread-safe
model is called by the thread that reads, where its session has nothing else under way, which saves
two handovers a call; for other models the thread of the model reads then (`reading_loan.py`).

Isolation. A route is known by its session and its env id, so that no client can name another one's;
an episode belongs to one route (`model_episodes.py`).

A session speaks about one pair of spaces at a time, those of the env that was resolved last.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

from rollmesh.endpoint.error_bodies import Refused
from rollmesh.endpoint.servers.model_episodes import claim, end_there
from rollmesh.endpoint.servers.model_home import DrivenRoute, ModelHome
from rollmesh.endpoint.servers.reading_loan import READ_S, Loan
from rollmesh.endpoint.servers.sessions import (
    Arrival,
    Flight,
    Left,
    Respond,
    Session,
    SessionOver,
    Terms,
)
from rollmesh.errors import ConnectionLost, EndpointFault, InvalidSpec, TransportTimeout, WireError
from rollmesh.ports import (
    AdapterContext,
    Callback,
    EnvContract,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
)
from rollmesh.transport.connection import Connection
from rollmesh.transport.security import Peer
from rollmesh.wire.contract import decode_contract
from rollmesh.wire.messages import Close, Done, Kind, Message, Resolve, ResolveReply

_logger = logging.getLogger(__name__)

_Way: TypeAlias = Literal["call", "lend", "submit"]
"""How a predict gets to the model: it is called right here; its thread calls it and reads for this
session meanwhile (`reading_loan.py`); or it is asked to answer from wherever it works."""

MOST_ROUTES = 256
_MODEL_SEND_S = 0.25
"""How long the model's thread waits for a client to take its answer."""


class ModelSession(Session):
    """One client's session with a model; see `Session`."""

    def __init__(self, arrival: Arrival, terms: Terms, home: ModelHome) -> None:
        super().__init__(arrival, terms)
        self._home = home
        self._routes: dict[str, DrivenRoute] = {}
        self._lanes: dict[str, int] = {}
        self._contract: EnvContract | None = None
        self._reads_from: Connection | None = None
        self._can_lend = False
        self._loan: Loan | None = None
        self.send_timeout_s = min(_MODEL_SEND_S, self.send_timeout_s)
        self._operations.update(
            {
                Kind.CONFIGURE: self.done,
                Kind.RESOLVE: self._resolve,
                Kind.PREDICT: self._predict,
                Kind.RESET_ADAPTER: self._reset_adapter,
                Kind.RELEASE_ADAPTER: self._release_adapter,
                Kind.CLOSE: self._close,
            }
        )

    def serve(self) -> None:
        """Carry out requests until the session is over; then release its routes."""
        self._home.sessions.add(self)
        try:
            self.read_all()
        finally:
            self._home.sessions.discard(self)
            self.release_all(self.end_reason or "the session ended")
            self.let_go()

    def attach(self, connection: Connection, peer: Peer) -> bool:
        self.bind(connection)
        return super().attach(connection, peer)

    def receiving(self, connection: Connection) -> Callable[[], Message]:
        self._reads_from = connection
        self._can_lend = connection.keep_parts()
        receive = connection.receive

        def next_message() -> Message:
            loan = self._loan
            if loan is not None:
                try:
                    message = loan.wait()
                finally:
                    self._loan = None
                if message is not None:
                    return message
            return receive()

        return next_message

    def bind(self, connection: Connection) -> None:
        """Tell a connection the spaces, once they are known."""
        contract = self._contract
        if contract is not None:
            connection.framing.bind(contract.observation_space.codec, contract.action_space.codec)

    # ------------------------------------------------------------------------- requests

    def _resolve(self, message: Message, respond: Respond) -> None:
        request: Resolve = message.body
        context = request.context
        if not context.env_id or not request.contract:
            raise Refused("invalid_request", "RESOLVE wants an env id and the env's contract")
        if context.env_id not in self._routes and len(self._routes) >= MOST_ROUTES:
            raise Refused("busy", f"a session may have at most {MOST_ROUTES} routes")
        try:
            contract = decode_contract(request.contract)
        except WireError as exc:
            raise Refused("invalid_request", str(exc)) from None
        self._take_spaces(contract)
        self._lanes[context.env_id] = contract.num_envs
        self.widen(sum(self._lanes.values()))
        old = self._routes.pop(context.env_id, None)
        if old is not None:
            self._release(old, "resolved again", None, _told)
        self.begin(message, respond, 0)
        name = AdapterContext(self.id, f"{self.id}/{context.env_id}", context.request_id)

        def opened(result: Any) -> None:
            if isinstance(result, BaseException):
                if isinstance(result, InvalidSpec):  # nothing failed: it is no model for this env
                    result = Refused(
                        "invalid_request",
                        str(result),
                        is_recoverable=False,
                        error_class=InvalidSpec.__name__,
                    )
                self._answer(message.request_id, result, "model.resolve")
                return
            result.is_away = self._is_away
            self._routes[context.env_id] = result
            self._answer(message.request_id, ResolveReply(context=context), "model.resolve")

        self._home.open_route(name, contract, opened)

    def _take_spaces(self, contract: EnvContract) -> None:
        known = self._contract
        spaces = contract.observation_space, contract.action_space
        is_other = known is not None and spaces != (known.observation_space, known.action_space)
        if is_other and (self._routes or self.flights):
            raise Refused(
                "invalid_request",
                "this session has a route with other spaces; release it, or open another "
                "connection",
            )
        self._contract = contract
        connection = self._connection
        if connection is not None:
            self.bind(connection)

    def _route(self, context: AdapterContext) -> DrivenRoute:
        if self.is_broken:
            raise Refused(
                "not_ready",
                "a request of this session was late; open another session",
                is_recoverable=False,
            )
        route = self._routes.get(context.env_id)
        if route is None:
            raise Refused(
                "not_configured", f"env {context.env_id[:80]!r} was not resolved in this session"
            )
        return route

    def _predict(self, message: Message, respond: Respond) -> None:
        if message.body is None:  # its spaces are not known
            raise Refused("not_configured", "no env was resolved in this session")
        request: PredictRequest = message.body
        context = request.context
        route = self._route(context)
        taken_over = claim(self._home.owners, route, request)
        request_id = message.request_id
        self.begin(message, respond, request.timeout_ms)
        mine = msgspec.structs.replace(request, context=route.context)

        def land(result: Any) -> None:
            if isinstance(result, BaseException):
                self._answer(request_id, result, "model.predict")
                return
            result.context = context
            self._answer(request_id, result, "model.predict")

        loan = self._loan
        if loan is not None:  # the model's thread read this; now it is going to do something else
            loan.end_reading()
        if taken_over:
            end_there(taken_over, lambda: self._submit(route, "predict", mine, land))
            return
        way = "call" if loan is not None else self._way(route)
        if way == "call":
            route.call("predict", mine, land)
        elif way == "lend":
            self._lend(lambda: route.call("predict", mine, land), land, respond)
        else:
            self._submit(route, "predict", mine, land)

    def _way(self, route: DrivenRoute) -> _Way:
        """Return the quickest way from here to the model which leaves the order as it is."""
        if not self._is_alone():
            return "submit"  # behind what is under way
        if route.runs_anywhere:
            return "call"
        if route.lends and self._can_lend and self._home.is_free_for(self):
            return "lend"
        return "submit"

    def _reset_adapter(self, message: Message, respond: Respond) -> None:
        request: ResetAdapterRequest = message.body
        route = self._routes.get(request.context.env_id)
        mine = (
            ()
            if route is None
            else tuple([one for one in request.episode_ids if one in route.episodes])
        )
        if route is None or not mine:
            self.done(message, respond)
            return
        self.begin(message, respond, 0)
        self._disown(route, mine)
        request_id = message.request_id
        self._submit(
            route,
            "reset_adapter",
            ResetAdapterRequest(route.context, mine),
            lambda result: self._answer(request_id, result, "model.reset_adapter"),
        )

    def _release_adapter(self, message: Message, respond: Respond) -> None:
        request: ReleaseAdapterRequest = message.body
        route = self._routes.pop(request.context.env_id, None)
        if route is None:
            self.done(message, respond)
            return
        self._lanes.pop(request.context.env_id, None)
        timeout_ms = 0 if request.timeout_s is None else max(1, int(request.timeout_s * 1000))
        self.begin(message, respond, timeout_ms)
        request_id = message.request_id
        self._release(
            route,
            request.reason,
            request.timeout_s,
            lambda result: self._answer(request_id, result, "model.release_adapter"),
        )

    def _close(self, message: Message, respond: Respond) -> None:
        request: Close = message.body
        self.is_ended = True
        self.end_reason = f"closed by its client: {request.reason[:200]}"
        self.done(message, respond)
        raise SessionOver(self.end_reason)

    # ---------------------------------------------------------------------------- inside

    def _submit(self, route: DrivenRoute, method: str, request: Any, callback: Callback) -> None:
        try:
            route.submit(method, request, callback)
        except RuntimeError as exc:  # the model's thread has ended
            callback(EndpointFault(str(exc), outcome="not_done"))

    def _lend(self, predict: Callable[[], None], land: Callback, respond: Respond) -> None:
        """Have the model's thread carry out a predict, and go on reading for this session."""
        connection, loan = self._reads_from, Loan()
        assert connection is not None  # noqa: S101 - the request came over it
        receive, is_free_for = connection.receive, self._home.is_free_for

        def read_on() -> None:
            outcome: Message | Exception | None = None
            try:
                predict()
                while loan.begin_reading() and is_free_for(self):
                    message = receive(READ_S)
                    if message.kind is not Kind.PREDICT:
                        outcome = message
                        break
                    self.handle(message, respond)
            except TransportTimeout as late:
                outcome = None if late.is_usable else late
            except Exception as exc:  # noqa: BLE001 - raised again by the thread that reads
                outcome = exc
            finally:
                loan.give_back(outcome)

        def ended(result: Any) -> None:
            if isinstance(result, BaseException):  # Ctrl-C, on a server's main thread
                raise result

        self._loan = loan
        try:
            self._home.thread.submit(read_on, ended)
        except RuntimeError as exc:  # the model's thread has ended
            self._loan = None
            land(EndpointFault(str(exc), outcome="not_done"))

    def _answer(self, request_id: int, result: Any, where: str) -> None:
        """Answer a request; on the model's thread."""
        self._home.late.discard((self.id, request_id))
        with contextlib.suppress(ConnectionLost, TransportTimeout):
            # whoever reads the connection sees that it is lost; the reply is kept
            if isinstance(result, BaseException):
                self.fail(request_id, result, where)
            else:
                self.finish(request_id, Done() if result is None else result)

    def _is_away(self) -> bool:
        return self.is_ended or self._connection is None

    def _is_alone(self) -> bool:
        """Whether the request at hand is the only thing that this session has to do."""
        return len(self._routes) == 1 and len(self.flights) == 1

    def _disown(self, route: DrivenRoute, episode_ids: tuple[str, ...]) -> None:
        for episode_id in episode_ids:
            route.episodes.discard(episode_id)
            self._home.owners.pop(episode_id, None)

    def _release(
        self, route: DrivenRoute, reason: str, timeout_s: float | None, callback: Callback
    ) -> None:
        self._disown(route, tuple(route.episodes))
        self._submit(
            route,
            "release_adapter",
            ReleaseAdapterRequest(route.context, reason, timeout_s),
            callback,
        )
        route.end()

    def release_all(self, reason: str) -> None:
        """Release the routes that the client has not."""
        routes, self._routes = self._routes, {}
        for route in routes.values():
            self._release(route, reason, None, _told)

    def left_behind(self, flight: Flight, limit_s: float) -> Left:
        self.is_broken = True
        return Left(
            f"model.{flight.kind.name.lower()} did not come back within {limit_s:g} s; this "
            "session takes no further request"
        )

    def _expire(self, request_id: int, flight: Flight, at_ns: int) -> None:
        self._home.late.add((self.id, request_id))
        super()._expire(request_id, flight, at_ns)


def _told(result: Any) -> None:
    if isinstance(result, BaseException):
        _logger.warning("release_failed error=%r", result)
