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
from queue import SimpleQueue
from typing import Any, Protocol

from rollmesh.errors import RouteCancelled, RouteError
from rollmesh.runtime.engine.base import (
    CANCEL_GRACE_S,
    LOOK_AGAIN_S,
    EngineParts,
    SlowNotice,
    Task,
    take,
)
from rollmesh.runtime.engine.blocking import BlockingEngine
from rollmesh.runtime.operations import Operation

logger = logging.getLogger(__name__)


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
    """A blocking engine that can lose its loop between two operations.

    Attributes:
        under_way: The operation that the thread is in, and when it began.
        outcomes: What the loop came to, once it has ended there: an exception, or None.
        bell: Rings when somebody should look: the loop has ended, or the route is cancelled.
    """

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._parts = parts
        self._gate = threading.Lock()
        self._left = False
        self.under_way: tuple[Operation, int] | None = None
        self.outcomes: list[Any] = []
        self.bell: SimpleQueue[None] = SimpleQueue()

    def land(self, outcome: Any) -> None:
        """Take what the loop came to; it stays there, whatever interrupts the one who waits."""
        self.outcomes.append(outcome)
        self.bell.put(None)

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

    def leave(self) -> None:
        """Take the loop away: whatever it asks for next is not called any more."""
        with self._gate:
            self._left = True


class HostedEngine:
    """Runs one loop on the thread that its endpoints share."""

    def __init__(self, parts: EngineParts, thread: HostThread) -> None:
        self._parts = parts
        self._thread = thread
        self._now = parts.clock.monotonic_ns
        self._abandoned = False
        self._slow = SlowNotice(parts)
        self._hosted: _HostedLoop | None = None

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
        """Name a slow operation; late ones are left behind here, not waited for."""
        hosted = self._hosted
        current = None if hosted is None else hosted.under_way
        if current is not None:
            self._slow.look(*current)

    def _run_one(self, task: Task, *, shutdown: bool) -> None:
        hosted = self._hosted = _HostedLoop(self._parts)
        unsubscribe = self._parts.cancel.subscribe(lambda: hosted.bell.put(None))

        def turn() -> None:
            hosted.run([task], shutdown=shutdown)

        try:
            try:
                self._thread.submit(turn, hosted.land)
            except KeyboardInterrupt:  # was it submitted? In either case something lands
                self._interrupted(hosted, shutdown=shutdown)
                stopped = RouteCancelled("interrupted", route=self._parts.env_id)
                self._thread.submit(lambda: stopped, hosted.land)
            while not hosted.outcomes:
                try:
                    take(hosted.bell, self._until_next_look_s(hosted))
                    if not hosted.outcomes and self._take_over(task, hosted, shutdown=shutdown):
                        return
                except KeyboardInterrupt:
                    self._interrupted(hosted, shutdown=shutdown)
        finally:
            unsubscribe()
        if isinstance(hosted.outcomes[0], BaseException):
            raise hosted.outcomes[0]

    def _interrupted(self, hosted: _HostedLoop, *, shutdown: bool) -> None:
        """Take a KeyboardInterrupt of the calling thread as a cancel (rule R49).

        A second one does not wait for what a cancel does not interrupt, such as a hook.
        """
        if shutdown or self._parts.cancel.reason is not None:
            self._abandoned = True
            self._thread.abandon()
            hosted.leave()
            raise KeyboardInterrupt
        self._parts.cancel.cancel("interrupted")

    def _refuse(self, task: Task) -> None:
        """Tell a loop that nothing it asks for can be done any more (rule R28)."""
        try:
            operation = next(task.loop)
        except StopIteration:
            return
        self._end(task, self._not_called(operation))

    def _end(self, task: Task, error: RouteError) -> None:
        """Throw an error into a loop, and refuse whatever it asks for then."""
        try:
            while True:
                error = self._not_called(task.loop.throw(error))
        except StopIteration:
            return

    def _not_called(self, operation: Operation) -> RouteError:
        component = self._parts.component(operation)
        return RouteError(
            f"{operation.name} was not called: {component} was left behind",
            route=self._parts.env_id,
            component=component,
            operation=operation.name,
            step=operation.step,
        )

    def _until_next_look_s(self, hosted: _HostedLoop) -> float:
        """Return how long nothing can expire: to the deadline, or the shortest limit from now."""
        shortest_s = self._parts.shortest_limit_s
        shortest_s = LOOK_AGAIN_S if shortest_s is None else min(shortest_s, LOOK_AGAIN_S)
        current = hosted.under_way
        if current is None or current[0].timeout_s is None:
            return shortest_s
        left_s = current[0].timeout_s - (self._now() - current[1]) / 1e9
        return max(0.001, min(left_s, shortest_s))

    def _take_over(self, task: Task, hosted: _HostedLoop, *, shutdown: bool) -> bool:
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
        if cancelled:
            take(hosted.bell, CANCEL_GRACE_S)
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
            self._parts.cancelled(operation)
            if cancelled
            else self._parts.timed_out(operation, abandoned=True)
        )
        self._end(task, error)
        return True
