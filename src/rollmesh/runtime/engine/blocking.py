"""The blocking engine: one group, in the calling thread, with the lowest latency.

User code on the calling thread cannot be interrupted safely (rule R49): a time-out or cancel takes
effect when the call returns, and its result is discarded. Meanwhile `overdue`, called from the
ticker's thread, names the call in one error log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rollmesh.errors import RouteError
from rollmesh.runtime.engine.base import (
    CANCEL_GRACE_S,
    NOT_MEASURED,
    EngineParts,
    SlowNotice,
    Task,
    log_unawaited,
    logger,
)
from rollmesh.runtime.operations import Operation

_CALLED = (
    "it runs on the calling thread and cannot be interrupted; the route ends when it returns. Give "
    "a factory instead of an instance to have hard limits"
)
_SERVED = "it is served elsewhere: its client gives it up by itself, and leaves the session"


class BlockingEngine:
    """Performs every operation right where it is asked for."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._now = parts.clock.monotonic_ns
        self._methods: dict[str, Callable[[Any], Any]] = {}
        self._running: tuple[Operation, int, bool] | None = None
        self._told: Operation | None = None
        self._slow = SlowNotice(parts)

    def run(self, tasks: Sequence[Task], *, shutdown: bool = False) -> None:
        """Drive the tasks one after the other."""
        unsubscribe = self._parts.cancel.subscribe(self.interrupt)
        try:
            for task in tasks:
                self._turn(task, shutdown=shutdown)
        finally:
            unsubscribe()

    def interrupt(self) -> None:
        """Ask the port of the operation under way to give up, where it can (a remote one)."""
        running = self._running
        if running is None or running[2]:
            return
        interrupt = getattr(self._parts.port(running[0]), "interrupt", None)
        if interrupt is not None:
            interrupt()

    def is_abandoned(self, target: str) -> bool:
        """Return False: what runs on the calling thread has always come back."""
        del target
        return False

    def overdue(self) -> None:
        """Name the operation that is past its limit, or outlives a cancel, once (rule R49)."""
        running = self._running
        if running is None or running[0] is self._told:
            return
        operation, started_ns, shutdown = running
        self._slow.look(operation, started_ns)
        taken_s = (self._now() - started_ns) / 1e9
        limit = operation.timeout_s
        is_late = limit is not None and taken_s > limit
        is_cancelled = self._parts.cancel.reason is not None and not shutdown
        if is_late or (is_cancelled and taken_s > CANCEL_GRACE_S):
            self._told = operation
            is_served = hasattr(self._parts.port(operation), "interrupt")
            logger.error(
                "operation_overdue operation=%s component=%s step=%d timeout_s=%s cancelled=%s: %s",
                operation.name,
                self._parts.component(operation),
                operation.step,
                limit,
                is_cancelled,
                _SERVED if is_served else _CALLED,
            )

    def _turn(self, task: Task, *, shutdown: bool) -> None:
        loop, perform = task.loop, self.perform
        try:
            operation = next(loop)
            while True:
                try:
                    reply = perform(task, operation, shutdown=shutdown)
                except RouteError as error:
                    operation = loop.throw(error)
                else:
                    operation = loop.send(reply)
        except StopIteration:
            return

    def perform(self, task: Task, operation: Operation, *, shutdown: bool) -> Any:
        """Call the port and return its stamped reply.

        Raises:
            RouteError: The call failed, was late, or the route is cancelled.
        """
        parts = self._parts
        now = self._now
        method = self._methods.get(operation.name)
        if method is None:
            method = getattr(parts.port(operation), operation.method)
            self._methods[operation.name] = method
        started_ns = now()
        self._running = (operation, started_ns, shutdown)
        if parts.cancel.reason is not None and operation.waits and not shutdown:
            self._running = None
            raise parts.cancelled(operation)
        try:
            reply = method(operation.request)
        except KeyboardInterrupt:
            parts.cancel.cancel("interrupted")
            raise parts.cancelled(operation) from None
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - told as an error of this route
            return self._failed(task, operation, exc, shutdown=shutdown)
        finally:
            self._running = None
        ended_ns = now()
        if not shutdown and parts.cancel.reason is not None and operation.waits:
            raise parts.cancelled(operation)
        limit = operation.timeout_s
        if limit is not None and ended_ns - started_ns > limit * 1e9 and operation.waits:
            raise parts.timed_out(operation, abandoned=False)
        if operation.method not in NOT_MEASURED:
            reply.started_ns = started_ns
            reply.ended_ns = ended_ns
        return reply

    def _failed(
        self, task: Task, operation: Operation, exc: BaseException, *, shutdown: bool
    ) -> None:
        """Raise what an exception of a port comes to; return where nobody waits for it."""
        if not operation.waits:
            log_unawaited(operation, exc)
            return
        if self._parts.cancel.reason is not None and not shutdown:
            raise self._parts.cancelled(operation) from exc
        raise self._parts.told(task, operation, exc)
