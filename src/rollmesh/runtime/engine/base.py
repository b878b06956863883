"""What all engines share: calling a port, and telling apart the ways a call can end.

An engine drives group loops: it performs the operations they yield and sends back what came of
them. It knows deadlines and cancel, and nothing of episodes, hooks or telemetry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from rollmesh.clock import Clock
from rollmesh.errors import OperationTimeout, PortTimeout, RouteCancelled, RouteError
from rollmesh.ports import EnvPort, ModelPort, ResetRequest
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.operations import GroupLoop, Operation

T = TypeVar("T")

logger = logging.getLogger(__name__)

CANCEL_GRACE_S = 0.2
"""After a cancel, an operation under way elsewhere gets this long to come back before its thread is
left behind: a simulator's step ends, and its env can still be closed."""

SLOW_S = 30.0
"""An operation that takes longer is named in a warning, once: a run never hangs without a word."""

LOOK_AGAIN_S = 1.0
"""No wait on the calling thread is longer: a signal that comes in the moment before a wait does not
interrupt it (CPython), and Ctrl-C is to be heard all the same."""

NOT_MEASURED = ("reset_adapter", "release_adapter", "close", "rebuild", "prepare")
"""Methods whose replies are not stamped: they return nothing."""


@dataclass(slots=True)
class Task:
    """A loop to drive, and how its failures are told.

    Attributes:
        loop: The generator.
        explain: Turns what a port raised into the error of this route.
    """

    loop: GroupLoop
    explain: Callable[[Operation, BaseException], RouteError]


@dataclass(frozen=True, kw_only=True)
class EngineParts:
    """What an engine is given.

    Attributes:
        env: The env port.
        model: The model port.
        cancel: Stops the run.
        clock: Stamps replies.
        env_id: The route, for messages.
        env_component: Name of the env endpoint.
        model_component: Name of the model endpoint.
        close_s: How long operations under way may take to come back once another one failed.
        shortest_limit_s: The smallest limit of any operation: nothing new expires sooner.
    """

    env: EnvPort
    model: ModelPort
    cancel: CancelToken
    clock: Clock
    env_id: str
    env_component: str
    model_component: str
    close_s: float | None
    shortest_limit_s: float | None

    def component(self, operation: Operation) -> str:
        """Return the name of the endpoint that an operation calls."""
        return self.env_component if operation.target == "env" else self.model_component

    def port(self, operation: Operation) -> Any:
        """Return the port that an operation calls."""
        return self.env if operation.target == "env" else self.model

    def told(self, task: Task, operation: Operation, exc: BaseException) -> RouteError:
        """Return what an exception of a port comes to."""
        if not isinstance(exc, PortTimeout):
            return task.explain(operation, exc)
        error = self.timed_out(operation, abandoned=False, told=str(exc))
        error.__cause__ = exc
        return error

    def timed_out(
        self, operation: Operation, *, abandoned: bool, told: str = ""
    ) -> OperationTimeout:
        """Return the error of an operation that did not come back in time (rule R16).

        Args:
            operation: What did not.
            abandoned: Whether its endpoint is left behind.
            told: What the port says of it; where it is silent, the address of a served one.
        """
        address = self._address(operation)
        more = told or (f"served at {address}" if address else "")
        limit = operation.timeout_s or 0.0
        component = self.component(operation)
        is_reset = isinstance(operation.request, ResetRequest)  # which belongs to no step
        where = "" if is_reset else f" at step {operation.step}"
        error = OperationTimeout(
            f"{component}: {operation.name} timed out: it did not come back within {limit:g} s"
            f"{where}; look at what the {operation.target} does there, or raise the limit"
            + (f" ({more})" if more else ""),
            timeout_s=limit,
            route=self.env_id,
            component=component,
            operation=operation.name,
            step=operation.step,
        )
        error.abandoned = abandoned
        return error

    def _address(self, operation: Operation) -> str:
        """Return where the endpoint of an operation is served; nothing for one in this process."""
        port = self.port(operation)
        address_of = getattr(port, "address_of", None)
        if address_of is not None:
            return address_of(operation.env_indices)
        return str(getattr(port, "address", "") or "")

    def cancelled(self, operation: Operation) -> RouteCancelled:
        """Return the error of an operation that a cancel interrupted or prevented (rule R15)."""
        return RouteCancelled(
            self.cancel.reason or "cancelled by caller",
            route=self.env_id,
            operation=operation.name,
            step=operation.step,
        )


class LeftBehind:
    """Which endpoints were abandoned: the model, and lanes of the env (rule R49)."""

    def __init__(self, num_envs: int) -> None:
        self._all_lanes = frozenset(range(num_envs))
        self._lanes: set[int] = set()
        self._model = False

    def add(self, operation: Operation) -> None:
        """Note that the endpoint of this operation was left behind."""
        if operation.target == "model":
            self._model = True
        else:
            self._lanes.update(operation.env_indices or self._all_lanes)

    def rebuilt(self, operation: Operation) -> None:
        """Note that lanes were built anew."""
        self._lanes.difference_update(operation.env_indices or self._all_lanes)

    def is_whole(self, target: str) -> bool:
        """Tell whether nothing of an endpoint is left to call."""
        return self._model if target == "model" else self._lanes >= self._all_lanes


class Engine(Protocol):
    """Drives loops to their end."""

    def run(self, tasks: Sequence[Task], *, shutdown: bool = False) -> None:
        """Drive all tasks; the first error that a loop does not handle is raised.

        With `shutdown` a cancel changes nothing (rule R15) and abandoned endpoints are skipped.
        """
        ...

    def is_abandoned(self, target: str) -> bool:
        """Tell whether the `env` or `model` endpoint was left behind as a whole."""
        ...

    def overdue(self) -> None:
        """Log an operation on the calling thread that is past its limit; called from the ticker."""
        ...


class SlowNotice:
    """Names an operation that has been under way for `SLOW_S`, once; called from the ticker."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._told: Operation | None = None

    def look(self, operation: Operation, started_ns: int) -> None:
        """Look at an operation under way."""
        taken_s = (self._parts.clock.monotonic_ns() - started_ns) / 1e9
        if taken_s < SLOW_S or operation is self._told:
            return
        self._told = operation
        limit = operation.timeout_s
        logger.warning(
            "%s: %s has been under way for %.0f s at step %d (%s)",
            self._parts.component(operation),
            operation.name,
            taken_s,
            operation.step,
            "no limit" if limit is None else f"limit {limit:g} s",
        )


def log_unawaited(operation: Operation, error: BaseException) -> None:
    """Log what became of an operation that nobody waits for (rule R24)."""
    logger.warning("unawaited_operation_failed operation=%s error=%s", operation.name, error)


def take(inbox: SimpleQueue[T], timeout_s: float) -> T | None:
    """Return the next item of an inbox, or None when none came within `timeout_s` seconds.

    Threads and signal handlers may `put` at any time, also in the middle of a `take`. A Ctrl-C that
    comes while it waits is raised in here.
    """
    try:
        return inbox.get(timeout=max(0.0, timeout_s))
    except Empty:  # the last look is also where CPython hears a signal that came before the wait
        return None if inbox.empty() else inbox.get()
