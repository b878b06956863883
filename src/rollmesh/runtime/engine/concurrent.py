"""The concurrent engine: many groups, one inbox (rule R45).

Ports with `submit` work elsewhere and call back; the others are called right here, between two
items of the inbox. Deadlines and cancel are the inbox's time-outs and wake-ups, so that nothing is
polled. An operation that is late, or under way when the route is cancelled, is left behind: its
port is told to `abandon` those lanes, and what comes back after all is dropped. A port that can
make up for what hangs (`KeepsLimits`) answers late predicts itself.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import get_ident
from typing import Any

from rollmesh.errors import ProtocolError, RouteCancelled, RouteError
from rollmesh.ports import KeepsLimits, ReadByWaiter
from rollmesh.runtime.engine.base import (
    CANCEL_GRACE_S,
    LOOK_AGAIN_S,
    NOT_MEASURED,
    EngineParts,
    LeftBehind,
    SlowNotice,
    Task,
    log_unawaited,
    take,
)
from rollmesh.runtime.engine.blocking import BlockingEngine
from rollmesh.runtime.operations import Operation

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Flight:
    """An operation under way.

    Attributes:
        task: Whose it is; None where nobody waits for it.
        operation: What was asked.
        started_ns: When it was submitted.
        result: Its reply, or the exception it raised, once landed.
        ended_ns: When it landed.
        is_limited: Whether the engine sees to its limit; a port may do so itself.
        limit_s: How long it may take, in seconds; None where that is not for the engine to see to.
        expires_ns: When it is late; None where it has no limit.
    """

    task: Task | None
    operation: Operation
    started_ns: int
    result: Any = None
    ended_ns: int = 0
    is_limited: bool = True
    limit_s: float | None = field(init=False)
    expires_ns: int | None = field(init=False)

    def __post_init__(self) -> None:
        limit = self.limit_s = self.operation.timeout_s if self.is_limited else None
        self.expires_ns = None if limit is None else self.started_ns + int(limit * 1e9)


@dataclass
class Deadlines:
    """Flights under way, by time-out: the oldest of each class is the first to expire."""

    _classes: dict[float | None, OrderedDict[int, Flight]] = field(
        default_factory=dict[float | None, OrderedDict[int, Flight]]
    )

    def add(self, flight: Flight) -> None:
        self._classes.setdefault(flight.limit_s, OrderedDict())[id(flight)] = flight

    def remove(self, flight: Flight) -> bool:
        """Take a landed flight out; False where it was left behind before."""
        flights = self._classes.get(flight.limit_s)
        return flights is not None and flights.pop(id(flight), None) is not None

    def all(self) -> list[Flight]:
        return [f for flights in self._classes.values() for f in flights.values()]

    def oldest(self) -> list[Flight]:
        return [next(iter(flights.values())) for flights in self._classes.values() if flights]

    def next_expiry_ns(self) -> int | None:
        first = None
        for flights in self._classes.values():
            for flight in flights.values():
                expires_ns = flight.expires_ns
                if expires_ns is not None and (first is None or expires_ns < first):
                    first = expires_ns
                break  # the oldest
        return first


def _first(flights: Sequence[Flight]) -> int | None:
    """Return when the first of these flights expires; None where none has a limit."""
    return min([f.expires_ns for f in flights if f.expires_ns is not None], default=None)


class ConcurrentEngine:
    """Drives many loops on one thread."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._now = parts.clock.monotonic_ns
        self._inline = BlockingEngine(parts)
        self._slow = SlowNotice(parts)
        self._inbox: SimpleQueue[Flight | None] = SimpleQueue()
        self._reader = parts.env if isinstance(parts.env, ReadByWaiter) else None
        self._reading = 0
        self._flights = Deadlines()
        self._submits = {
            target: callable(getattr(port, "submit", None))
            for target, port in (("env", parts.env), ("model", parts.model))
        }
        self._keeps_predict_limit = isinstance(parts.model, KeepsLimits)
        self._left = LeftBehind(parts.env.contract.num_envs)
        self._running = 0
        self._shutdown = False
        self._many = False

    def run(self, tasks: Sequence[Task], *, shutdown: bool = False) -> None:
        """Drive all tasks; after an unhandled error the other operations are awaited or left."""
        self._shutdown = shutdown
        self._many = len(tasks) > 1
        self._running = len(tasks)
        unsubscribe = self._parts.cancel.subscribe(self._wake)
        try:
            while shutdown and self._flights.all():  # evictions: the release waits for them (R24)
                self._wait()
            for task in tasks:
                self._advance(task, None)
            while self._running:
                self._wait()
        except KeyboardInterrupt:
            self._parts.cancel.cancel("interrupted")
            self._settle_flights(CANCEL_GRACE_S)
            raise
        except RouteCancelled:
            self._settle_flights(CANCEL_GRACE_S)
            raise
        except BaseException:
            self._settle_flights(self._parts.close_s)
            raise
        finally:
            unsubscribe()

    def is_abandoned(self, target: str) -> bool:
        """Tell whether an endpoint was left behind as a whole."""
        return self._left.is_whole(target)

    def overdue(self) -> None:
        """Log an inline operation that is past its limit, and the slowest of the others."""
        self._inline.overdue()
        with contextlib.suppress(RuntimeError, StopIteration):  # the engine's thread changes them
            for flight in self._flights.oldest():
                self._slow.look(flight.operation, flight.started_ns)

    def _wake(self) -> None:
        """Have the engine see a cancel; runs on the thread that cancels."""
        self._inbox.put(None)
        if self._reader is not None:
            self._reader.wake()
        self._inline.interrupt()

    def _put(self, flight: Flight) -> None:
        """Put an answer into the inbox. Any thread may."""
        self._inbox.put(flight)
        if self._reading and self._reading != get_ident() and self._reader is not None:
            self._reading = 0  # answers that come before it is awake need no wake-up of their own
            self._reader.wake()

    def _take(self, timeout_s: float) -> Flight | None:
        """Return the next item of the inbox, or None when none came within `timeout_s` seconds.

        A port whose answers are read by whoever waits for them is waited on.
        """
        reader, inbox = self._reader, self._inbox
        if reader is None:
            return take(inbox, timeout_s)
        if inbox.empty():
            self._reading = get_ident()
            try:
                if inbox.empty():  # nothing came before others could know that we read
                    reader.wait(max(0.0, timeout_s))
            finally:
                self._reading = 0
        return None if inbox.empty() else inbox.get()

    # -------------------------------------------------------------------- driving

    def _advance(self, task: Task, reply: Any) -> None:
        """Give a loop its reply, or throw its error in, and start what it asks for next."""
        try:
            while True:
                if isinstance(reply, RouteError):
                    operation = task.loop.throw(reply)
                else:
                    operation = task.loop.send(reply)
                if self._submits[operation.target]:
                    if operation.waits:
                        self._submit(task, operation)
                        return
                    self._submit(None, operation)
                    reply = None
                elif self._many and operation.waits:
                    self._land_inline(task, operation)
                    return
                else:
                    reply = self._call(task, operation)
        except StopIteration:
            self._running -= 1

    def _call(self, task: Task, operation: Operation) -> Any:
        try:
            return self._inline.perform(task, operation, shutdown=self._shutdown)
        except RouteError as error:
            return error

    def _land_inline(self, task: Task, operation: Operation) -> None:
        """Call a port here, and queue its answer behind those of the other groups."""
        flight = Flight(task, operation, self._now())
        flight.result = self._call(task, operation)
        self._flights.add(flight)
        self._inbox.put(flight)

    def _submit(self, task: Task | None, operation: Operation) -> None:
        is_limited = not (self._keeps_predict_limit and operation.method == "predict")
        flight = Flight(task, operation, self._now(), is_limited=is_limited)
        put, now = self._put, self._now

        def land(result: Any) -> None:
            if not flight.ended_ns:  # a second answer is dropped
                flight.result = result
                flight.ended_ns = now()
                put(flight)

        port = self._parts.port(operation)
        try:
            port.submit(operation.method, operation.request, land, operation.env_indices)
        except Exception as exc:  # noqa: BLE001 - a port that cannot even start is a fault of its endpoint
            land(exc)
        self._flights.add(flight)  # after a Ctrl-C in the submit nobody waits for its answer

    def _wait(self) -> None:
        expiry_ns = self._flights.next_expiry_ns()
        if expiry_ns is None and not self._flights.all():
            raise ProtocolError(
                f"the route cannot go on: {self._running} groups wait and nothing is under way",
                route=self._parts.env_id,
            )
        left_s = self._left_s(expiry_ns)
        try:
            flight = self._take(left_s)
        except KeyboardInterrupt:
            if self._shutdown:
                raise
            self._parts.cancel.cancel("interrupted")  # which puts a None into the inbox
            return
        if flight is not None:
            self._land(flight)
            if left_s <= 0:  # a busy route must not keep what is late waiting
                self._expire()
        elif self._parts.cancel.reason is not None and not self._shutdown:
            self._cancel()
        else:
            self._expire()

    def _left_s(self, end_ns: int | None) -> float:
        """Return how long to wait for something that ends then, at most `LOOK_AGAIN_S`."""
        return LOOK_AGAIN_S if end_ns is None else min((end_ns - self._now()) / 1e9, LOOK_AGAIN_S)

    def _land(self, flight: Flight) -> None:
        if not self._flights.remove(flight):
            return  # it was left behind
        task, operation, result = flight.task, flight.operation, flight.result
        if task is None:
            if isinstance(result, BaseException):
                log_unawaited(operation, result)
            return
        if self._parts.cancel.reason is not None and not self._shutdown:
            result = self._parts.cancelled(operation)
        elif isinstance(result, RouteError):
            pass
        elif isinstance(result, KeyboardInterrupt):
            self._parts.cancel.cancel("interrupted")
            result = self._parts.cancelled(operation)
        elif isinstance(result, BaseException):
            result = self._parts.told(task, operation, result)
        elif self._is_late(flight):
            result = self._parts.timed_out(operation, abandoned=False)
        elif operation.method in ("rebuild", "prepare"):
            self._left.rebuilt(operation)
        elif flight.ended_ns and operation.method not in NOT_MEASURED:
            result.started_ns = flight.started_ns
            result.ended_ns = flight.ended_ns
        self._advance(task, result)

    def _is_late(self, flight: Flight) -> bool:
        """Whether an answer came after its deadline; nobody knows when one came that we read."""
        if flight.expires_ns is None or flight.ended_ns <= flight.expires_ns:
            return False
        return self._reader is None or flight.operation.target != "env"

    # ------------------------------------------------------------ cancel, deadlines

    def _cancel(self) -> None:
        for flight in self._awaited()[:1]:
            if flight.task is not None:
                self._advance(flight.task, self._parts.cancelled(flight.operation))

    def _expire(self) -> None:
        if self._reader is not None:  # what has come while we were elsewhere is not late
            self._reader.wait(0.0)
        now_ns = self._now()
        for flight in self._flights.all():
            if flight.ended_ns:  # it is in the inbox, or a Ctrl-C came as it was taken out
                self._land(flight)
                continue
            expires_ns = flight.expires_ns
            if expires_ns is None or expires_ns > now_ns:
                continue
            self._flights.remove(flight)
            error = self._parts.timed_out(
                flight.operation, abandoned=self._submits[flight.operation.target]
            )
            if flight.task is None:
                log_unawaited(flight.operation, error)
                continue
            self._leave(flight)
            self._advance(flight.task, error)

    def _leave(self, flight: Flight) -> None:
        """Leave an operation and its endpoint behind."""
        operation = flight.operation
        if not self._submits[operation.target]:
            return
        logger.log(
            logging.DEBUG if self._shutdown else logging.ERROR,  # a shutdown warns by itself (R28)
            "operation_abandoned operation=%s component=%s step=%d lanes=%s",
            operation.name,
            self._parts.component(operation),
            operation.step,
            operation.env_indices or "all",
        )
        self._parts.port(operation).abandon(operation.env_indices)
        self._left.add(operation)
        if operation.target == "model":  # what waited behind it never comes back
            for other in self._flights.all():
                if other.operation.target == "model":
                    self._flights.remove(other)

    def _settle_flights(self, grace_s: float | None) -> None:
        """Give the operations still under way a moment to come back; leave the others behind.

        They get `grace_s` seconds (None: until the first of them is late), and less once somebody
        cancels.
        """
        end_ns = None if grace_s is None else self._now() + int(grace_s * 1e9)
        try:
            while awaited := self._awaited():
                if self._parts.cancel.reason is not None and grace_s != CANCEL_GRACE_S:
                    grace_s = CANCEL_GRACE_S
                    end_ns = self._now() + int(grace_s * 1e9)
                left_s = self._left_s(_first(awaited) if end_ns is None else end_ns)
                if (flight := self._take(left_s)) is not None:
                    self._flights.remove(flight)
                elif left_s <= 0:
                    break
        finally:
            while awaited := self._awaited():
                self._flights.remove(awaited[0])
                self._leave(awaited[0])

    def _awaited(self) -> list[Flight]:
        return [flight for flight in self._flights.all() if flight.task is not None]
