"""An env port that lives on a thread of its own: built, used and closed there (layer 6).

The thread can be abandoned with the call under way, and the env built anew on a fresh one.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Callable, Sequence
from typing import Any

from rollmesh.endpoint.envs.contracts import contract_difference
from rollmesh.endpoint.faults import fault_from
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.errors import EndpointFault, InvalidSpec
from rollmesh.ports import (
    REBUILD,
    Callback,
    EnvContract,
    EnvPort,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
    SubmitsOperations,
)

_logger = logging.getLogger(__name__)

_LAST_WORD_S = 0.2
"""Whatever keeps the same limit by itself, as dialling does, may still say what it waited for."""


class HostedEnv:
    """Hosts the port that `build` returns.

    Guarantees: `build` and every call of the port run on one thread; after `abandon` none begins
    until `rebuild`, which starts on another thread; a build that comes back after it was
    abandoned changes nothing.
    """

    def __init__(
        self,
        build: Callable[[], EnvPort],
        *,
        name: str,
        can_rebuild: bool = True,
        thread: OwnThread | None = None,
        env_index: int | None = None,
    ) -> None:
        """Prepare a host; nothing is built before `build` or `build_all`.

        Args:
            build: Builds the env and returns its port.
            name: Names the env in errors, and its thread.
            can_rebuild: Whether `build` may be called again.
            thread: The thread to live on; its owner stops it. None: a new one, ended by `close`.
            env_index: The lane, named in faults.
        """
        self.name = name
        self.env_index = env_index
        self._build = build
        self._can_rebuild = can_rebuild
        self._owns_thread = thread is None
        self._thread = thread or self._new_thread()
        self._port: EnvPort | None = None
        self._contract: EnvContract | None = None
        self._calls: dict[str, Callable[[Any], Any]] = {}
        self.capabilities: frozenset[str] = frozenset()

    @property
    def contract(self) -> EnvContract:
        """Spaces, width and autoreset mode."""
        if self._contract is None:
            raise RuntimeError(f"env {self.name!r} is not built yet")
        return self._contract

    @property
    def port(self) -> EnvPort | None:
        """The hosted port, to be called on the env's thread only; None while there is none."""
        return self._port

    @property
    def thread(self) -> OwnThread:
        """The thread that the env lives on."""
        return self._thread

    @property
    def can_rebuild(self) -> bool:
        """Whether the env comes from a factory."""
        return self._can_rebuild

    @property
    def abandoned(self) -> bool:
        """Whether the thread was left behind."""
        return self._thread.abandoned

    # ------------------------------------------------------------------------------- build

    def start_build(self, callback: Callback) -> None:
        """Start to build; `callback` gets None, or the exception that building raised."""
        self._thread.submit(self._build_here, callback, self._thread)

    def build(self, timeout_s: float | None) -> None:
        """Build and wait for it; see `build_all`."""
        build_all([self], timeout_s)

    # ----------------------------------------------------------------------------- EnvPort

    def reset(self, request: ResetRequest) -> ResetReply:
        """Reset on the env's thread and wait."""
        return self._thread.call(lambda: self._calls["reset"](request), None, "env.reset")

    def step(self, request: StepRequest) -> StepReply:
        """Step on the env's thread and wait."""
        return self._thread.call(lambda: self._calls["step"](request), None, "env.step")

    def close(self, timeout_s: float | None) -> None:
        """Close on the env's thread and end the thread; an abandoned env is left alone.

        Raises:
            TimeoutError: The env did not come back in time; it is abandoned.
            EndpointFault: The env raised or exited.
        """
        if self._thread.abandoned or self._thread.stopped:
            return
        try:
            self._thread.call(lambda: self._close_here(timeout_s), timeout_s, "env.close")
        except TimeoutError:
            self.abandon()
            raise
        finally:
            self._end_thread()

    def rebuild(self, env_indices: tuple[int, ...]) -> None:  # noqa: ARG002 - it is all lanes
        """Close the env unless abandoned, and build it anew; waits for it.

        Raises:
            EndpointFault: Building raised or exited.
            InvalidSpec: The new env has another contract.
        """
        thread = self._thread_for_rebuild()
        thread.call(lambda: self._rebuild_here(thread), None, "env.rebuild")

    # ------------------------------------------------------------------- SubmitsOperations

    def submit(
        self,
        method: str,
        request: Any,
        callback: Callback,
        env_indices: tuple[int, ...],  # noqa: ARG002 - all lanes
    ) -> None:
        """Start `method(request)` on the env's thread and return at once."""
        call = self._calls.get(method)
        if call is not None:
            self._thread.submit(call, callback, request)
        elif method == "close":
            if self._thread.abandoned or self._thread.stopped:
                callback(None)
                return
            self._thread.submit(self._close_here, callback, request)
            self._end_thread()
        elif method == "rebuild":
            thread = self._thread_for_rebuild()
            thread.submit(self._rebuild_here, callback, thread)
        else:
            raise RuntimeError(f"env {self.name!r} has no operation {method!r} now")

    def abandon(self, env_indices: tuple[int, ...] = ()) -> None:  # noqa: ARG002 - all lanes
        """Leave the call under way behind: the env gets no further call, close included."""
        self._thread.abandon()
        leave(self._port)

    # ------------------------------------------------------------------------ on its thread

    def _build_here(self, thread: OwnThread) -> None:
        try:
            port = self._build()
        except InvalidSpec:
            raise
        except BaseException as exc:
            raise self._build_fault(exc) from exc
        if thread.abandoned or thread is not self._thread:
            leave(port)  # too late: the caller went on without it
            return
        if self._contract is not None and (
            other := contract_difference(self._contract, port.contract)
        ):
            raise InvalidSpec("env", f"{self.name} built anew differs from before: {other}")
        self._port = port
        self._contract = port.contract
        self._calls = {"reset": port.reset, "step": port.step}
        self.capabilities = port.capabilities | ({REBUILD} if self._can_rebuild else frozenset())

    def _close_here(self, timeout_s: float | None) -> None:
        """Close what was built here; an instance the caller gave stays open."""
        port, self._port, self._calls = self._port, None, {}
        if port is not None and self._can_rebuild:
            port.close(timeout_s)

    def _rebuild_here(self, thread: OwnThread) -> None:
        try:
            self._close_here(None)
        except EndpointFault as exc:
            _logger.warning("close_failed env=%s error=%s: %s", self.name, exc.error_class, exc)
        self._build_here(thread)

    def _build_fault(self, exc: BaseException) -> EndpointFault:
        fault = fault_from(
            exc, outcome="not_done", env_index=self.env_index, where=f"building {self.name}"
        )
        if "main thread" not in fault.detail:
            return fault
        return EndpointFault(
            f"{fault.detail} (envs from ids and factories live on a thread of their own; for one "
            "that needs the main thread, build it yourself and give the instance)",
            error_class=fault.error_class,
            traceback_text=fault.traceback_text,
            env_index=fault.env_index,
            outcome=fault.outcome,
        )

    # ----------------------------------------------------------------------------- threads

    def _new_thread(self) -> OwnThread:
        return OwnThread(f"rollmesh {self.name}")

    def _thread_for_rebuild(self) -> OwnThread:
        """Return the thread to build on: another one where the old takes no further call."""
        if not self._can_rebuild:
            raise InvalidSpec(
                "env", f"{self.name} is an instance and cannot be built anew; give its factory"
            )
        if self._thread.abandoned or self._thread.stopped:
            if self._thread.abandoned:
                self._port, self._calls = None, {}  # no further call, close included
            self._thread, self._owns_thread = self._new_thread(), True
        return self._thread

    def _end_thread(self) -> None:
        if self._owns_thread:
            self._thread.stop()


def leave(port: Any) -> None:
    """Have a port that was left behind let go of its connection, if it is a remote one."""
    let_go = getattr(port, "leave", None)
    if let_go is not None:
        let_go()


def end_unwaited(port: Any, method: str, request: Any) -> None:
    """Have a port do the last thing asked of it, on its own thread and without a wait.

    One that is called where its caller is gets no call, and lets go of its connection.
    """
    if not isinstance(port, SubmitsOperations):
        leave(port)
        return
    answers: list[Any] = []
    with contextlib.suppress(RuntimeError):  # it was abandoned
        port.submit(method, request, answers.append, ())


def build_all(hosts: Sequence[HostedEnv], timeout_s: float | None) -> None:
    """Build several envs at once, each on its own thread, and wait for all of them.

    Where one fails, the first failure in lane order is raised and the others are closed, as far as
    they come back in time; those that do not are abandoned. So it is with a Ctrl-C.

    Raises:
        EndpointFault: Building raised, exited, or did not come back within `timeout_s`.
        InvalidSpec: What was built is no env that can be run.
    """
    arrived: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    waiting = dict(enumerate(hosts))
    results: dict[int, Any] = {}
    expiry = None if timeout_s is None else time.monotonic() + timeout_s + _LAST_WORD_S
    try:
        for position, host in waiting.items():
            host.start_build(lambda result, at=position: arrived.put((at, result)))
        while waiting:
            left_s = None if expiry is None else max(0.0, expiry - time.monotonic())
            position, result = arrived.get(timeout=left_s)
            waiting.pop(position)
            results[position] = result
    except queue.Empty:
        for position, host in waiting.items():
            host.abandon()
            results[position] = _build_timeout(host, timeout_s)
    except BaseException:  # Ctrl-C while waiting
        for host in hosts:
            if host.port is None:
                host.abandon()
            discard(host)
        raise
    failures = [results[at] for at in sorted(results) if isinstance(results[at], BaseException)]
    if failures:
        for host in hosts:
            discard(host)
        raise failures[0]


def discard(host: HostedEnv) -> None:
    """Close an env that is not wanted any more, without waiting for it."""

    def tell(result: Any) -> None:
        if isinstance(result, BaseException):
            _logger.warning("close_failed env=%s error=%s", host.name, result)

    host.submit("close", None, tell, ())


def _build_timeout(host: HostedEnv, timeout_s: float | None) -> EndpointFault:
    return EndpointFault(
        f"building {host.name} did not come back within {timeout_s} s; see what its constructor "
        "waits for, or raise limits.env_connect_s",
        error_class="TimeoutError",
        env_index=host.env_index,
    )
