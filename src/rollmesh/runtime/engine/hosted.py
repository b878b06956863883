"""The hosted engine: one group whose endpoints share a thread; the loop itself runs there.

Env and model built by us live on one thread of their own. Handing each operation over to it would
cost more than the operations; so the whole blocking loop is handed over once, and the calling
thread only watches the time and the cancel token. An operation that is late, or under way when the
route is cancelled, is left behind with its thread: the calling thread then takes over the loop,
which stands at a `yield`, and goes on without those endpoints.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rollmesh.errors import RouteCancelled, RouteError
from rollmesh.runtime.engine.base import (
    CANCEL_GRACE_S,
    LOOK_AGAIN_S,
    EngineParts,
    Task,
    logger,
)
from rollmesh.runtime.engine.blocking import BlockingEngine
from rollmesh.runtime.engine.inbox import Inbox
from rollmesh.runtime.operations import Operation


class HostThread(Protocol):
    """The thread that both endpoints live on."""

    def submit(self, call: Callable[..., Any], callback: Callable[[Any], None], *args: Any) -> None:
        """Run `call(*args)` there and give `callback` its result or exception."""
        ...

    def abandon(self) -> None:
        """Leave it behind."""
        ...


class _LeftBehind(BaseException):
    """Raised on the host thread when the calling thread has taken over."""


class _HostedLoop(BlockingEngine):
    """A blocking engine that can lose its loop between two operations."""

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._parts = parts
        self._gate = threading.Lock()
        self._left = False
        self.under_way: tuple[Operation, int] | None = None

    def perform(self, task: Task, operation: Operation, *, shutdown: bool) -> Any:
        """Call the port, unless or until the loop was taken away."""
        with self._gate:
            if self._left:
                raise _LeftBehind
            self.under_way = (operation, self._parts.clock.monotonic_ns())
        try:
            return super().perform(task, operation, shutdown=shutdown)
        finally:
            with self._gate:
                self.under_way = None
                if self._left:
                    raise _LeftBehind

    def take(self, operation: Operation) -> bool:
        """Take the loop away if that operation is still under way."""
        with self._gate:
            current = self.under_way
            if current is None or current[0] is not operation:
                return False
            self._left = True
            return True


class HostedEngine:
    """Runs one loop on the thread that its endpoints share."""

    def __init__(self, parts: EngineParts, thread: HostThread) -> None:
        self._parts = parts
        self._thread = thread
        self._now = parts.clock.monotonic_ns
        self._abandoned = False

    def run(self, tasks: Sequence[Task], *, shutdown: bool = False) -> None:
        """Drive the tasks one after the other; they share the thread."""
        for task in tasks:
            if self._abandoned:
                self._refuse(task)
            else:
                self._run_one(task, shutdown=shutdown)

    def is_abandoned(self, target: str) -> bool:
        """Tell whether the shared thread was left behind."""
        del target
        return self._abandoned

    def overdue(self) -> None:
        """Do nothing: late operations are left behind here, not waited for."""

    def _run_one(self, task: Task, *, shutdown: bool) -> None:
        hosted = _HostedLoop(self._parts)
        inbox: Inbox[tuple[Any] | None] = Inbox()
        cancel = self._parts.cancel
        unsubscribe = cancel.subscribe(lambda: inbox.put(None))

        def turn() -> None:
            hosted.run([task], shutdown=shutdown)

        def land(result: Any) -> None:
            inbox.put((result,))

        try:
            try:
                self._thread.submit(turn, land)
            except KeyboardInterrupt:  # was it submitted? In either case something lands
                self._interrupted(shutdown=shutdown)
                stopped = RouteCancelled("interrupted", route=self._parts.env_id)
                self._thread.submit(lambda: stopped, land)
            landed = None
            while landed is None:
                try:
                    landed = self._watch(task, hosted, inbox, shutdown=shutdown)
                except KeyboardInterrupt:
                    self._interrupted(shutdown=shutdown)
        finally:
            unsubscribe()
        if isinstance(landed[0], BaseException):
            raise landed[0]

    def _interrupted(self, *, shutdown: bool) -> None:
        """Take a KeyboardInterrupt of the calling thread as a cancel (rule R49)."""
        if shutdown:
            self._abandoned = True
            self._thread.abandon()
            raise KeyboardInterrupt
        self._parts.cancel.cancel("interrupted")

    def _watch(
        self, task: Task, hosted: _HostedLoop, inbox: Inbox[tuple[Any] | None], *, shutdown: bool
    ) -> tuple[Any] | None:
        """Wait a while; return what the loop came to, or None while it goes on."""
        landed = inbox.get(self._until_next_look_s(hosted))
        if landed is None and self._take_over(task, hosted, inbox, shutdown=shutdown):
            return (None,)
        return landed

    def _refuse(self, task: Task) -> None:
        """Tell a loop that nothing it asks for can be done any more (rule R28)."""
        try:
            operation = next(task.loop)
            while True:
                component = self._parts.component(operation)
                operation = task.loop.throw(
                    RouteError(
                        f"{operation.name} was not called: {component} was left behind",
                        route=self._parts.env_id,
                        component=component,
                        operation=operation.name,
                        step=operation.step,
                    )
                )
        except StopIteration:
            return

    def _until_next_look_s(self, hosted: _HostedLoop) -> float:
        """Return how long nothing can expire: to the deadline, or the shortest limit from now."""
        shortest_s = self._parts.shortest_limit_s
        shortest_s = LOOK_AGAIN_S if shortest_s is None else min(shortest_s, LOOK_AGAIN_S)
        current = hosted.under_way
        if current is None or current[0].timeout_s is None:
            return shortest_s
        left_s = current[0].timeout_s - (self._now() - current[1]) / 1e9
        return max(0.001, min(left_s, shortest_s))

    def _take_over(
        self, task: Task, hosted: _HostedLoop, inbox: Inbox[tuple[Any] | None], *, shutdown: bool
    ) -> bool:
        """Leave a late or cancelled operation behind; True when the loop has ended here."""
        current = hosted.under_way
        if current is None:
            return False
        operation, started_ns = current
        limit = operation.timeout_s
        late = limit is not None and self._now() - started_ns >= limit * 1e9
        cancelled = self._parts.cancel.reason is not None and not shutdown
        if not (late or cancelled):
            return False
        if cancelled and (landed := inbox.get(CANCEL_GRACE_S)) is not None:
            inbox.put(landed)
            return False
        if not hosted.take(operation):
            return False
        self._abandoned = True
        self._thread.abandon()
        logger.log(
            logging.DEBUG if shutdown else logging.ERROR,  # a shutdown warns by itself (R28)
            "operation_abandoned operation=%s component=%s step=%d",
            operation.name,
            self._parts.component(operation),
            operation.step,
        )
        error: RouteError = (
            self._parts.cancelled(operation) if cancelled else self._parts.timed_out(operation)
        )
        try:
            task.loop.throw(error)
        except StopIteration:
            return True
        raise error  # the loop asks for more, but its endpoints are gone
