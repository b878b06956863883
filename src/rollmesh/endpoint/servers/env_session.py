"""A session with an env: its requests, on the thread of the env's place (layer 6).

An env that is called right here answers one request after the other. A port with `submit` (lanes
on threads of their own) answers in the order of completion.

Order. A session resets a lane before it steps it, whatever an earlier session did. A request that
is late leaves its env behind: nobody knows its state, so nothing but CLOSE is carried out any more.
Where lanes have threads of their own it is only those lanes, until they are rebuilt; an env in a
process of its own is killed, and the session goes on with a reset.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rollmesh.endpoint.error_bodies import PROCESS_DIED, Refused, error
from rollmesh.endpoint.servers.responding import responder
from rollmesh.endpoint.servers.sessions import (
    MOST_UNDER_WAY,
    NEVER_NS,
    Arrival,
    Flight,
    Left,
    LeftBehind,
    Respond,
    Session,
    SessionOver,
    Terms,
)
from rollmesh.endpoint.servers.watchdog import now_ns
from rollmesh.errors import (
    ConnectionLost,
    EndpointFault,
    InvalidValue,
    RollmeshError,
    TransportTimeout,
)
from rollmesh.ports import EnvPort, ResetRequest, StepRequest
from rollmesh.wire.messages import (
    Close,
    Done,
    Kind,
    Message,
    Rebuild,
    Render,
    RenderReply,
)

if TYPE_CHECKING:
    from rollmesh.endpoint.servers.env_place import EnvPlace

_logger = logging.getLogger(__name__)

_STEP = Kind.STEP


class EnvSession(Session):
    """One client's session with an env; see `Session`."""

    def __init__(self, arrival: Arrival, terms: Terms, *, num_envs: int) -> None:
        super().__init__(arrival, terms, under_way=max(MOST_UNDER_WAY, num_envs))
        self.door_lock = threading.Lock()
        """Held while its client is told of its place, so that the last word comes last."""
        self.is_seated = False
        """Whether it has a place, maybe one whose env has yet to be built."""
        self.is_welcomed = False
        self._place: EnvPlace | None = None
        self._num_envs = num_envs
        self._unreset = set(range(num_envs))
        self._lost_lanes: set[int] = set()
        self._known_lanes: set[tuple[int, ...]] = {()}
        self._step: Callable[[StepRequest], Any] | None = None
        self._rows = num_envs
        self._operations.update(
            {
                Kind.CONFIGURE: self.done,
                Kind.RESET: self._reset,
                Kind.STEP: self._step_request,
                Kind.RENDER: self._render,
                Kind.REBUILD: self._rebuild,
                Kind.CLOSE: self._close,
            }
        )

    # ------------------------------------------------------------------ the place's thread

    def serve(self, place: EnvPlace) -> None:
        """Carry out requests until the session is over; on the thread of its place."""
        self._place = place
        self._use(place.port)
        try:
            self.read_all()
        except LeftBehind:
            return
        finally:
            if not self.is_broken or self._submits:
                self.let_go()

    def _use(self, port: EnvPort) -> None:
        self._submits = callable(getattr(port, "submit", None))
        self._port = port
        self._step = None if self._submits else port.step
        self.cache.keeps_one = not self._submits

    # ---------------------------------------------------------------------------- requests

    def handle(self, message: Message, respond: Respond) -> None:
        # a step of an env that is called here, as nearly all requests are
        step = self._step
        if message.kind is not _STEP or step is None or self._unreset or self.is_broken:
            super().handle(message, respond)
            return
        request_id = message.request_id
        known = self.cache.get(request_id)
        if known is not None or message.is_reply:
            super().handle(message, respond)
            return
        request: StepRequest = message.body
        begun_ns = now_ns()
        timeout_ns = request.timeout_ms * 1_000_000 or NEVER_NS
        self.flights[request_id] = Flight(_STEP, begun_ns, begun_ns + timeout_ns, respond)
        if timeout_ns < self.shortest_ns:
            self.shortest_ns = timeout_ns
            self.terms.watchdog.ring()
        try:
            self._check(request)
            body = step(request)
        except BaseException as exc:  # noqa: BLE001 - told to the client
            if not self._failed(request_id, exc, "env.step", request.env_indices):
                self._came_late()
            return
        if not self.finish(request_id, body):
            self._came_late()

    def _came_late(self) -> None:
        """Stop here where others have taken over; an env that was killed for it may go on."""
        if self.is_broken:
            raise LeftBehind

    def _check(self, request: StepRequest) -> None:
        """Check lanes and rows of a step."""
        lanes = request.env_indices
        if lanes not in self._known_lanes:
            self._check_lanes(lanes)
        rows = len(lanes) or self._num_envs
        action: list[Any] = request.action
        if action and type(action[0]) is not bytes and action[0].shape[0] != rows:
            text = f"an action of {action[0].shape[0]} rows for {rows} lanes"
            raise Refused("invalid_action", text)
        if len(request.episode_ids) not in (0, rows):
            text = f"{len(request.episode_ids)} episode ids for {rows} lanes"
            raise Refused("invalid_action", text)

    def _check_lanes(self, lanes: tuple[int, ...]) -> None:
        if list(lanes) != sorted(set(lanes)) or (
            lanes and not 0 <= lanes[0] <= lanes[-1] < self._num_envs
        ):
            raise Refused(
                "invalid_action",
                f"lanes {lanes[:8]} are not ascending numbers from 0 to {self._num_envs - 1}",
            )
        if len(self._known_lanes) < 4 * self._num_envs + 4:
            self._known_lanes.add(lanes)

    def _lanes(self, lanes: tuple[int, ...]) -> tuple[int, ...]:
        return lanes or tuple(range(self._num_envs))

    def _refuse_lost(self, lanes: tuple[int, ...]) -> None:
        if self.is_broken:
            raise _broken()
        if self._lost_lanes and not self._lost_lanes.isdisjoint(self._lanes(lanes)):
            raise Refused(
                "not_ready",
                f"lane {min(self._lost_lanes)} was left behind at a deadline; rebuild it first",
                is_recoverable=False,
            )

    def _step_request(self, message: Message, respond: Respond) -> None:
        request: StepRequest = message.body
        self._refuse_lost(request.env_indices)
        self._check(request)
        lanes = self._lanes(request.env_indices)
        if self._unreset and not self._unreset.isdisjoint(lanes):
            raise Refused(
                "not_ready",
                f"lane {min(self._unreset.intersection(lanes))} was not reset in this session; "
                "reset it before the first step",
            )
        self._carry_out(message, respond, "step", request.timeout_ms)

    def _reset(self, message: Message, respond: Respond) -> None:
        request: ResetRequest = message.body
        self._refuse_lost(request.env_indices)
        self._check_lanes(request.env_indices)
        rows = len(request.env_indices) or self._num_envs
        for name in ("episode_ids", "seeds", "options"):
            count = len(getattr(request, name))
            if count not in (0, rows):
                raise Refused("invalid_action", f"reset: {count} {name} for {rows} lanes")
        self._carry_out(message, respond, "reset", request.timeout_ms)

    def _render(self, message: Message, respond: Respond) -> None:
        request: Render = message.body
        self._refuse_lost(request.env_indices)
        self._check_lanes(request.env_indices)
        self._carry_out(message, respond, "render", request.timeout_ms)

    def _rebuild(self, message: Message, respond: Respond) -> None:
        request: Rebuild = message.body
        if self.is_broken:
            raise _broken()
        self._check_lanes(request.env_indices)
        self._carry_out(message, respond, "rebuild", request.timeout_ms)

    def _close(self, message: Message, respond: Respond) -> None:
        request: Close = message.body
        if request.close_env and self._place is not None:
            self._place.wants_new = True
        self.is_ended = True
        self.done(message, respond)
        raise SessionOver(f"closed by its client: {request.reason[:200]}")

    # ------------------------------------------------------------------------ carrying out

    def _carry_out(self, message: Message, respond: Respond, method: str, timeout_ms: int) -> None:
        request = message.body
        lanes: tuple[int, ...] = request.env_indices
        self.begin(message, respond, timeout_ms, lanes)
        request_id, where = message.request_id, f"env.{method}"
        assert self._place is not None  # noqa: S101 - set by `serve`
        call, argument = self._place.call_of(method, request)
        if not self._submits:
            try:
                result = call(argument)
            except BaseException as exc:  # noqa: BLE001 - told to the client
                if not self._failed(request_id, exc, where, lanes):
                    self._came_late()
                return
            if not self._landed(request_id, method, lanes, result):
                self._came_late()
            return

        def land(result: Any) -> None:
            try:
                if isinstance(result, BaseException):
                    self._failed(request_id, result, where, lanes)
                else:
                    self._landed(request_id, method, lanes, result)
            except (ConnectionLost, TransportTimeout):
                pass  # whoever reads it sees that too; the reply is kept

        try:
            self._place.submit(method, argument, land, lanes)
        except Exception as exc:  # noqa: BLE001 - a lane that takes no call
            land(exc)

    def _landed(self, request_id: int, method: str, lanes: tuple[int, ...], result: Any) -> bool:
        body = result
        if method == "reset":
            self._unreset.difference_update(self._lanes(lanes))
        elif method == "rebuild":
            body = Done()
            self._unreset.update(self._lanes(lanes))
            self._lost_lanes.difference_update(self._lanes(lanes))
            assert self._place is not None  # noqa: S101 - set by `serve`
            self._use(self._place.port)
        elif method == "render":
            body = RenderReply(frame=result)
        return self.finish(request_id, body)

    def _failed(
        self, request_id: int, exc: BaseException, where: str, lanes: tuple[int, ...]
    ) -> bool:
        is_user = not isinstance(exc, (Refused, InvalidValue))
        goes_on = isinstance(exc, EndpointFault) and exc.is_recoverable
        if is_user and (not goes_on or getattr(exc, "error_class", "") == PROCESS_DIED):
            self._unreset.update(self._lanes(lanes))
        return self.fail(request_id, exc, where)

    # --------------------------------------------------------------------------- too late

    def left_behind(self, flight: Flight, limit_s: float) -> Left:
        what = f"env.{flight.kind.name.lower()} did not come back within {limit_s:g} s"
        place = self._place
        if place is None:
            return Left(what)
        lanes = self._lanes(flight.lanes)
        if self._submits:
            self._lost_lanes.update(lanes)
            self._unreset.update(lanes)
            place.abandon(flight.lanes)
            return Left(f"{what}; lane {lanes[0]} takes no further request until it is rebuilt")
        if place.can_kill:
            self._unreset.update(range(self._num_envs))
            place.kill()
            return Left(f"{what}; its process was killed, the next reset starts another", True)
        self.is_broken = True
        place.hang(self)
        threading.Thread(target=self._stand_in, name="rollmesh-stand-in", daemon=True).start()
        return Left(f"{what}; it is in an unknown state, and this session is over")

    def _stand_in(self) -> None:
        """Read what comes for an env that is hung, instead of the thread that hangs in it."""
        connection = self._connection
        try:
            if connection is not None:
                respond = responder(connection, self.options.send_timeout_s)
                while True:
                    self._answer_broken(connection.receive(), respond)
        except (RollmeshError, SessionOver):
            pass
        self.end("its env was left behind")
        self.let_go()

    def _answer_broken(self, message: Message, respond: Respond) -> None:
        if message.kind in _ALWAYS:
            super().handle(message, respond)
        elif message.kind is Kind.CLOSE:
            self.done(message, respond)
            raise SessionOver
        elif known := self.cache.get(message.request_id):
            respond(known)
        else:
            respond(error(message.request_id, _broken().body))


_ALWAYS = frozenset([Kind.PING, Kind.PROBE, Kind.CANCEL, Kind.SHUTDOWN])


def _broken() -> Refused:
    return Refused(
        "not_ready",
        "a request of this session was late, and its env is in an unknown state; open another "
        "session",
        is_recoverable=False,
    )
