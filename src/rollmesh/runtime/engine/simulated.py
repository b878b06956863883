"""The simulated engine: a virtual clock, a seeded scheduler, and faults at any yield.

For tests of schedules: ten thousand runs with time-outs, cancels and failures take seconds. An
operation gets a latency and perhaps a fault from the weather; it is performed on its port at the
virtual moment it lands, so that what was left behind never happened.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollmesh.errors import EndpointFault, ProtocolError, RouteError, SessionLost
from rollmesh.runtime.engine.base import NOT_MEASURED, EngineParts, LeftBehind, Task, log_unawaited
from rollmesh.runtime.operations import Operation


class VirtualClock:
    """A clock that goes on only when the simulation does."""

    def __init__(self, wall_ns: int = 1_700_000_000_000_000_000) -> None:
        self.now_ns = 0
        self._wall_ns = wall_ns

    def monotonic_ns(self) -> int:
        """Return the virtual time."""
        return self.now_ns

    def wall_ns(self) -> int:
        """Return the virtual time as a date."""
        return self._wall_ns + self.now_ns


@dataclass(frozen=True, kw_only=True)
class Weather:
    """What can happen to operations, as probabilities per operation.

    Attributes:
        latency_ns: Longest latency of a call that comes back.
        fail: An `EndpointFault` instead of the call.
        lose: A `SessionLost` instead of the call.
        crash: A plain exception instead of the call.
        hang: The call never comes back.
        exit: The endpoint calls `sys.exit`.
        cancel_at_ns: When the caller cancels; None is never.
        interrupt: A KeyboardInterrupt in the call.
    """

    latency_ns: int = 1_000_000
    fail: float = 0.0
    lose: float = 0.0
    crash: float = 0.0
    hang: float = 0.0
    exit: float = 0.0
    interrupt: float = 0.0
    cancel_at_ns: int | None = None


@dataclass(eq=False)
class _Flight:
    task: Task | None
    operation: Operation
    started_ns: int
    fault: BaseException | None
    open: bool = True


class SimulatedEngine:
    """Drives loops in virtual time; the same seed and weather give the same run."""

    def __init__(
        self, parts: EngineParts, clock: VirtualClock, weather: Weather, seed: int
    ) -> None:
        self._parts = parts
        self._clock = clock
        self._weather = weather
        self._random = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._heap: list[tuple[int, float, int, str, Any]] = []
        self._count = 0
        self._running = 0
        self._left = LeftBehind(parts.env.contract.num_envs)
        self._shutdown = False
        if weather.cancel_at_ns is not None:
            self._push(weather.cancel_at_ns, "cancel", None)

    def run(self, tasks: Sequence[Task], *, shutdown: bool = False) -> None:
        """Drive all tasks to their end in virtual time."""
        self._shutdown = shutdown
        self._running = len(tasks)
        while shutdown and any(entry[3] != "cancel" and entry[4].open for entry in self._heap):
            self._turn()  # evictions: the release waits for them (R24)
        for task in tasks:
            self._advance(task, None)
        try:
            while self._running:
                self._turn()
        except RouteError:
            self._leave_all()
            raise

    def is_abandoned(self, target: str) -> bool:
        """Tell whether an endpoint was left behind as a whole."""
        return self._left.is_whole(target)

    def overdue(self) -> None:
        """Do nothing: nothing blocks the simulated thread."""

    # --------------------------------------------------------------------- inside

    def _push(self, at_ns: int, kind: str, what: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at_ns, self._random.random(), self._count, kind, what))

    def _turn(self) -> None:
        if not self._heap:
            raise ProtocolError(
                f"the route cannot go on: {self._running} groups wait and nothing is under way",
                route=self._parts.env_id,
            )
        at_ns, _, _, kind, what = heapq.heappop(self._heap)
        self._clock.now_ns = max(self._clock.now_ns, at_ns)
        if kind == "cancel":
            self._parts.cancel.cancel("simulated cancel")
            self._cancel_waiting()
        elif not what.open:
            return
        elif kind == "land":
            self._land(what)
        else:
            self._expire(what)

    def _advance(self, task: Task, reply: Any) -> None:
        try:
            while True:
                if isinstance(reply, RouteError):
                    operation = task.loop.throw(reply)
                else:
                    operation = task.loop.send(reply)
                self._launch(task if operation.waits else None, operation)
                if operation.waits:
                    return
                reply = None
        except StopIteration:
            self._running -= 1

    def _launch(self, task: Task | None, operation: Operation) -> None:
        now_ns = self._clock.now_ns
        fault, hangs = self._draw()
        flight = _Flight(task, operation, now_ns, fault)
        if operation.timeout_s is not None:
            self._push(now_ns + int(operation.timeout_s * 1e9), "expire", flight)
        if not hangs or operation.timeout_s is None:
            self._push(now_ns + self._random.randrange(self._weather.latency_ns), "land", flight)

    def _draw(self) -> tuple[BaseException | None, bool]:
        weather, draw = self._weather, self._random.random()
        for share, fault in (
            (weather.fail, EndpointFault("simulated fault", is_recoverable=True)),
            (weather.lose, SessionLost("simulated loss")),
            (weather.crash, ValueError("simulated crash")),
            (weather.exit, SystemExit(0)),
            (weather.interrupt, KeyboardInterrupt()),
        ):
            if draw < share:
                return fault, False
            draw -= share
        return None, draw < weather.hang

    def _land(self, flight: _Flight) -> None:
        flight.open = False
        operation, task = flight.operation, flight.task
        outcome = self._perform(flight)
        if task is None:
            if isinstance(outcome, BaseException):
                log_unawaited(operation, outcome)
            return
        if isinstance(outcome, KeyboardInterrupt) and not self._shutdown:
            self._parts.cancel.cancel("interrupted")
        if self._parts.cancel.reason is not None and not self._shutdown:
            outcome = self._parts.cancelled(operation)
        elif isinstance(outcome, BaseException) and not isinstance(outcome, RouteError):
            outcome = self._parts.told(task, operation, outcome)
        self._advance(task, outcome)

    def _perform(self, flight: _Flight) -> Any:
        if flight.fault is not None:
            return flight.fault
        operation = flight.operation
        try:
            reply = getattr(self._parts.port(operation), operation.method)(operation.request)
        except Exception as exc:  # noqa: BLE001 - explained by the caller
            return exc
        if operation.method == "rebuild":
            self._left.rebuilt(operation)
        elif operation.method not in NOT_MEASURED:
            reply.started_ns = flight.started_ns
            reply.ended_ns = self._clock.now_ns
        return reply

    def _expire(self, flight: _Flight) -> None:
        flight.open = False
        error = self._parts.timed_out(flight.operation, abandoned=True)
        if flight.task is None:
            log_unawaited(flight.operation, error)
            return
        self._left.add(flight.operation)
        self._advance(flight.task, error)

    def _cancel_waiting(self) -> None:
        if self._shutdown:
            return
        waiting = sorted(
            (entry for entry in self._heap if entry[3] == "land" or entry[3] == "expire"),
            key=lambda entry: entry[2],
        )
        for entry in waiting:
            flight: _Flight = entry[4]
            if flight.open and flight.task is not None:
                flight.open = False
                self._left.add(flight.operation)
                self._advance(flight.task, self._parts.cancelled(flight.operation))
                return

    def _leave_all(self) -> None:
        for _, _, _, kind, what in self._heap:
            if kind != "cancel" and what.open and what.task is not None:
                what.open = False
                self._left.add(what.operation)
