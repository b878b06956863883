"""What the faces of served endpoints share: one thread at a time, errors that say where (layer 6).

`RemoteEnv`, `RemoteVectorEnv` and `RemoteModel` are used by people, so what a port raises is told
here as the runtime would tell it: `EnvFailed`, `ModelFailed`, `OperationTimeout`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from rollmesh.endpoint.clients.client_session import MARGIN_S
from rollmesh.endpoint.faults import refusal_of
from rollmesh.errors import (
    EndpointFault,
    EnvFailed,
    InvalidSpec,
    ModelFailed,
    OperationTimeout,
    PortTimeout,
    SessionLost,
)

_T = TypeVar("_T")


class Calls:
    """Guards the calls of one face.

    Args:
        component: What errors call the endpoint.
        target: `env` or `model`.
    """

    def __init__(self, component: str, target: str) -> None:
        self.component = component
        self._target = target
        self._lock = threading.Lock()
        self._running = ""
        self._steps = 0

    def do(self, call: str, function: Callable[..., _T], *args: Any, limit_s: float | None) -> _T:
        """Call a function of the port.

        Args:
            call: The user's word for it: `reset`, `step`, ….
            function: What to call.
            args: With what.
            limit_s: How long it may take, for the error.

        Raises:
            InvalidSpec: Another thread is in a call, or the other side refused what `connect` told
                it.
            EnvFailed: The env failed, or its session is lost; a model: `ModelFailed`.
            OperationTimeout: It did not come back in time.
        """
        if not self._lock.acquire(blocking=False):
            raise InvalidSpec(
                call,
                f"another thread is in {self._running}() of {self.component}; use it from one "
                "thread at a time, or connect once per thread",
            )
        try:
            self._running = call
            if call == "reset":
                self._steps = 0
            elif call == "step":
                self._steps += 1
            return function(*args)
        except EndpointFault as fault:
            raise self._told(call, fault, limit_s) from fault
        finally:
            self._lock.release()

    def _told(self, call: str, fault: EndpointFault, limit_s: float | None) -> Exception:
        operation = f"{self._target}.{call}"
        where = f"{self.component}: {operation}"
        if call == "connect" and (refusal := refusal_of(fault, self._target)) is not None:
            return refusal
        if isinstance(fault, PortTimeout):
            return OperationTimeout(
                f"{where} timed out at step {self._steps}: {fault.detail}",
                timeout_s=limit_s or MARGIN_S,
                component=self.component,
                operation=operation,
                step=self._steps,
            )
        message = f"{where} failed at step {self._steps}: {fault.error_class}: {fault.detail}"
        if isinstance(fault, SessionLost):
            message += "; reset() connects again"
        if fault.traceback_text:
            message += f"\n\n{self._target}-side traceback:\n{fault.traceback_text}"
        kind = EnvFailed if self._target == "env" else ModelFailed
        return kind(
            message,
            fault=fault,
            component=self.component,
            operation=operation,
            step=self._steps,
        )


def not_reset(call: str) -> InvalidSpec:
    """Return the error of a call that needs an episode."""
    return InvalidSpec(call, "no episode is under way; call reset() first")


def is_closed(call: str, what: str) -> InvalidSpec:
    """Return the error of a call after `close`."""
    return InvalidSpec(call, f"this {what} is closed; connect again")
