"""The worker processes of Gymnasium's AsyncVectorEnv: what went wrong in them (layer 6).

Gymnasium reports a worker's exception by its last words only, and a dead worker as a bare
`EOFError`. After either the vector env cannot be used again: its own `close` may wait for ever
for an answer that never comes. So where one died the others are ended at once and the env counts
as closed. Knows AsyncVectorEnv by its public attributes alone.
"""

from __future__ import annotations

import contextlib
import signal
from typing import Any

from rollmesh.endpoint.envs.contracts import unwrapped
from rollmesh.endpoint.faults import fault_from, traceback_text
from rollmesh.errors import EndpointFault

_PIPE_ERRORS = (EOFError, BrokenPipeError, ConnectionError)
_REAP_S = 0.5


class WorkerErrors:
    """Stands in for `error_queue` of an AsyncVectorEnv and remembers what workers said.

    The queue holds `(env_index, class, value, traceback)`; Gymnasium uses only class and value.
    """

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.last: tuple[int, str] | None = None

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Take the next error off the queue, as `Queue.get` does."""
        item: tuple[Any, ...] | None = self._queue.get(*args, **kwargs)
        if isinstance(item, tuple) and len(item) == 4:  # noqa: PLR2004
            self.last = (int(item[0]), str(item[3]))
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class Workers:
    """The workers of one vector env; without any, faults are read like those of other envs."""

    def __init__(self, env: Any) -> None:
        inner = unwrapped(env)
        self._inner = inner if _has_workers(inner) else None
        self._broken = False
        self._errors: WorkerErrors | None = None
        if self._inner is not None and hasattr(self._inner, "error_queue"):
            self._errors = WorkerErrors(self._inner.error_queue)
            self._inner.error_queue = self._errors

    @property
    def broken(self) -> bool:
        """Whether a worker failed: the env must be torn down, not closed."""
        return self._broken

    def fault_from(self, exc: BaseException, where: str) -> EndpointFault:
        """Return the fault behind what a call of the vector env raised.

        Raises:
            KeyboardInterrupt: `exc` is one.
        """
        if self._inner is None or isinstance(exc, KeyboardInterrupt):
            return fault_from(exc, where=where)
        self._broken = True
        if isinstance(exc, _PIPE_ERRORS) and (dead := self._dead()):
            lane, how = dead
            self.tear_down()  # even Gymnasium's own close would raise from here on
            return EndpointFault(
                f"the worker process of lane {lane} {how} during {where}",
                error_class="WorkerDied",
                traceback_text=traceback_text(exc),
                env_index=lane,
            )
        fault = fault_from(exc, where=where)
        fault.is_recoverable = False
        if self._errors is not None and self._errors.last is not None:
            fault.env_index, fault.traceback_text = self._errors.last
        return fault

    def tear_down(self) -> None:
        """End the workers of a broken env without asking them, and mark it closed."""
        if self._inner is None or self._inner.closed:
            return
        for process in self._inner.processes:
            if process.is_alive():
                process.terminate()
        for process in self._inner.processes:
            process.join(_REAP_S)
            if process.is_alive():
                process.kill()
                process.join(_REAP_S)
        for pipe in getattr(self._inner, "parent_pipes", ()):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._inner.closed = True

    def _dead(self) -> tuple[int, str] | None:
        """Return the first dead worker and how it ended, waiting shortly for it to be gone."""
        processes = list(self._inner.processes) if self._inner is not None else []
        for patience_s in (0.0, _REAP_S / max(1, len(processes))):
            for lane, process in enumerate(processes):
                process.join(patience_s)
                if process.exitcode is not None:
                    return lane, _how(process.exitcode)
        return None


def _has_workers(env: Any) -> bool:
    return isinstance(getattr(env, "processes", None), list) and hasattr(env, "parent_pipes")


def _how(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"
