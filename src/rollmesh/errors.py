"""The error tree: everything rollmesh raises on purpose.

    RollmeshError
    ├── InvalidValue            a value does not fit its space (path, expected, got, what to do)
    ├── EndpointFault           what a port raises when its endpoint failed; the runtime turns it
    │                           into EnvFailed or ModelFailed, which know the route and the step
    │   ├── PortTimeout         it gave up at the request's own deadline
    │   ├── SessionLost         its session with a served endpoint is gone for good
    │   │   └── WorkerLost      the worker process that the env lived in is gone
    │   └── LaneLost            this lane cannot be used any more; other lanes can
    ├── WireError               bytes of a peer are no message of ours, or a message cannot be sent
    ├── ListenFailed            a server cannot listen at an address
    ├── TransportError          a connection failed (address)
    │   ├── ConnectFailed       nobody answered at an address (`transport/connect_errors.py`)
    │   └── ConnectionLost      the peer went away, or somebody shut the connection down
    ├── TransportTimeout        nothing came, or nothing could be sent, before a deadline
    ├── RunError                a run folder cannot be used (folder)
    │   ├── RunLocked           another process drives the run
    │   ├── RunChanged          the folder holds a run of another plan, env, model or setting
    │   ├── RunDamaged          what is in the folder is not what was written there
    │   └── JournalError        the disk or file system refused; what was acknowledged is safe
    └── RouteError              one route, one cause
        ├── InvalidSpec         refused before anything was touched
        ├── OperationTimeout    a reset, predict or step did not come back in time
        ├── RouteCancelled      somebody asked the route to stop
        ├── EnvFailed           the env raised, exited or answered nonsense
        ├── ModelFailed         the model raised, exited or answered nonsense
        ├── ModelRouteMismatch  the model answered another request
        ├── ProtocolError       an endpoint broke the contract of the runtime
        └── HookFailed          a transform hook failed (observers never raise)

Layer 1: imports nothing of the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rollmesh.results.result import EvalResult
    from rollmesh.runtime.report import RouteReport

Outcome = Literal["not_done", "unknown", "done"]
"""Whether a failed operation happened: only `not_done` may ever be sent again."""


def _blank(cls: type[RollmeshError]) -> RollmeshError:
    return cls.__new__(cls)


class RollmeshError(Exception):
    """Base of every error that rollmesh raises on purpose.

    Guarantees: a copy, also one that came from another process, has the same message and
    attributes (as everywhere in Python, not the same traceback and cause).
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls __init__ with `args`, which are not the arguments of ours.
        return _blank, (type(self),), {**self.__dict__, "args": self.args}


class InvalidValue(RollmeshError, ValueError):  # noqa: N818 - the family is named for what is wrong
    """A value does not fit its space.

    Attributes:
        path: Where, as in `observation['wrist'][2]`.
        detail: Expected, got, and what to do next, in one sentence.
    """

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path
        self.detail = detail


class EndpointFault(RollmeshError):  # noqa: N818
    """What a port raises when the endpoint behind it failed.

    Attributes:
        error_class: Class name of the original error (`"ValueError"`).
        detail: Its message.
        traceback_text: The endpoint-side traceback, or `""`.
        env_index: The lane it happened on, where known.
        is_recoverable: Whether the endpoint says it may be reset and used again.
        outcome: Whether the operation happened.
    """

    def __init__(
        self,
        detail: str,
        *,
        error_class: str = "",
        traceback_text: str = "",
        env_index: int | None = None,
        is_recoverable: bool = False,
        outcome: Outcome = "unknown",
    ) -> None:
        super().__init__(detail)
        self.error_class = error_class or type(self).__name__
        self.detail = detail
        self.traceback_text = traceback_text
        self.env_index = env_index
        self.is_recoverable = is_recoverable
        self.outcome: Outcome = outcome


class PortTimeout(EndpointFault):
    """What a port raises that gave up at the request's own deadline: an `OperationTimeout`."""


class SessionLost(EndpointFault):
    """What a port raises whose session with a served endpoint is gone for good.

    Whether the operation happened is not known; the episode can be started again from its seed.
    """


class WorkerLost(SessionLost):
    """What a fleet raises whose worker process died, or was killed because it hung.

    Attributes:
        worker: Its number.
        cause: How it ended, in a few words: `SIGSEGV`, `exit code 3`.
        last_lines: What it wrote last.
    """

    def __init__(
        self,
        detail: str,
        *,
        worker: int,
        cause: str,
        last_lines: tuple[str, ...] = (),
        env_index: int | None = None,
    ) -> None:
        super().__init__(detail, env_index=env_index)
        self.worker = worker
        self.cause = cause
        self.last_lines = last_lines


class LaneLost(EndpointFault):
    """What a fleet raises that gave up a lane; nothing was done, and other lanes may do it."""


class WireError(RollmeshError):
    """Bytes of a peer are no message of ours, or a message of ours cannot be sent.

    A connection that gave such bytes cannot be used any more: nobody knows where its next message
    starts.
    """


class ListenFailed(RollmeshError, OSError):  # noqa: N818
    """A server cannot listen at an address.

    Attributes:
        address: The address, as it was asked for.
    """

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(f"cannot listen at {address}: {detail}")
        self.address = address


class TransportError(RollmeshError, ConnectionError):
    """A connection failed.

    Attributes:
        address: The address of the other end.
    """

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(f"{address}: {detail}")
        self.address = address


class ConnectFailed(TransportError):  # noqa: N818
    """Nobody answered at an address; it may be tried again."""


class ConnectionLost(TransportError):  # noqa: N818
    """The peer closed the connection or died, or this end was shut down."""


class TransportTimeout(RollmeshError, TimeoutError):  # noqa: N818
    """Nothing came, or nothing could be sent, before a deadline.

    Attributes:
        address: The address of the other end.
        timeout_s: The limit, in seconds.
        is_usable: Whether the connection can still be used: False where a message was cut.
    """

    def __init__(self, address: str, detail: str, *, timeout_s: float, is_usable: bool) -> None:
        super().__init__(f"{address}: {detail} within {timeout_s:g} s")
        self.address = address
        self.timeout_s = timeout_s
        self.is_usable = is_usable


class RunError(RollmeshError):
    """A run folder cannot be used.

    Attributes:
        folder: The run's folder.
    """

    def __init__(self, folder: str, detail: str) -> None:
        super().__init__(f"{folder}: {detail}")
        self.folder = folder


class RunLocked(RunError):  # noqa: N818
    """Another process drives the run.

    Attributes:
        pid: Its process id, where known.
        host: The machine it runs on, where known.
    """

    def __init__(self, folder: str, detail: str, *, pid: int | None, host: str | None) -> None:
        super().__init__(folder, detail)
        self.pid = pid
        self.host = host


class RunChanged(RunError):  # noqa: N818
    """The folder holds a run of another plan, env, model or setting.

    Attributes:
        changes: What differs, each as `name: old -> new`, or in words.
        can_be_accepted: Whether `accept_changes` goes on all the same: names, plan and settings
            are those of the run, and what is behind a name has changed.
    """

    def __init__(
        self, folder: str, changes: tuple[str, ...], *, can_be_accepted: bool = False
    ) -> None:
        listed = "".join(f"\n  {change}" for change in changes)
        header = "" if can_be_accepted else " (was -> is now)"
        accept = (
            ". Where it is the same policy mended, or something that merely moved while it "
            "played, say --accept-changes (accept_changes=True), which goes on and notes it"
            if can_be_accepted
            else ""
        )
        super().__init__(
            folder,
            f"holds another run, which this one cannot continue{header}:{listed}\n"
            "Start it as it was begun, name another folder, or start over with --new (new=True), "
            f"which keeps the old run under another name{accept}",
        )
        self.changes = changes
        self.can_be_accepted = can_be_accepted


class RunDamaged(RunError):  # noqa: N818
    """What is in a run folder is not what was written there; nothing of it was used.

    Attributes:
        path: The damaged file.
        detail: What does not fit.
    """

    def __init__(self, folder: str, path: str, detail: str) -> None:
        super().__init__(
            folder,
            f"{path} is damaged: {detail}. Nothing of it was used. Put a copy of the folder in its "
            "place, or start over with --new (new=True), which keeps the damaged file under "
            "another name",
        )
        self.path = path
        self.detail = detail


class JournalError(RunError):
    """The disk or the file system refused to keep a run.

    Attributes:
        path: The file it happened to.
        errno: The system's error number, where it could be found out.
        acknowledged: How many episodes are safely on disk.
        result: What the run came to until then, where `evaluate` raised this.
    """

    def __init__(
        self, folder: str, detail: str, *, path: str, errno: int | None, acknowledged: int
    ) -> None:
        super().__init__(folder, detail)
        self.path = path
        self.errno = errno
        self.acknowledged = acknowledged
        self.result: EvalResult | None = None


class RouteError(RollmeshError):
    """One route ended badly.

    Attributes:
        route: The env id of the route, or `""` before there is one.
        component: The component id of the endpoint concerned, or `"runner"`.
        operation: `env.reset`, `env.step`, `model.predict`, …, or `""`.
        step: The step of that operation (rule R16).
        report: The partial report of the route: the episodes that had ended (rule R29).
        cause: The error that led to this one, or None.
        result: The same as a result, where `evaluate` ran the route.
        is_recoverable: Whether the endpoint may be reset and used again.
        outcome: Whether the operation happened, where that is known.
    """

    is_recoverable: bool = False
    outcome: Outcome | None = None
    result: EvalResult | None = None

    def __init__(
        self,
        message: str,
        *,
        route: str = "",
        component: str = "runner",
        operation: str = "",
        step: int = 0,
        report: RouteReport | None = None,
    ) -> None:
        super().__init__(message)
        self.route = route
        self.component = component
        self.operation = operation
        self.step = step
        self.report = report

    @property
    def cause(self) -> BaseException | None:
        """The error that led to this one (`__cause__`), or None."""
        return self.__cause__


class InvalidSpec(RouteError, ValueError):  # noqa: N818
    """A session or call was refused before anything was touched.

    Attributes:
        field: The field that is wrong.
    """

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}", operation="validate")
        self.field = field


class OperationTimeout(RouteError, TimeoutError):  # noqa: N818
    """A reset, predict or step did not come back within its limit.

    Attributes:
        timeout_s: The limit, in seconds.
        abandoned: True where the endpoint is left behind and will get no further call.
    """

    def __init__(
        self,
        message: str,
        *,
        timeout_s: float,
        route: str = "",
        component: str = "runner",
        operation: str = "",
        step: int = 0,
    ) -> None:
        super().__init__(message, route=route, component=component, operation=operation, step=step)
        self.timeout_s = timeout_s
        self.abandoned = True
        self.outcome = "unknown"


class RouteCancelled(RouteError):  # noqa: N818
    """The route was cancelled by its caller, a signal or a KeyboardInterrupt.

    Attributes:
        reason: The caller's words.
    """

    def __init__(self, reason: str, *, route: str = "", operation: str = "", step: int = 0) -> None:
        where = f" during {operation}" if operation else ""
        super().__init__(
            f"route {route or '?'} cancelled{where} at step {step}: {reason}",
            route=route,
            operation=operation,
            step=step,
        )
        self.reason = reason


class EndpointFailed(RouteError):  # noqa: N818
    """Common part of `EnvFailed` and `ModelFailed`.

    Attributes:
        error_class: Class name of the original error.
        traceback_text: The endpoint-side traceback, or `""`.
        env_index: The lane it happened on, where known.
        episode_id: The episode running there, where known.
        seed: That episode's seed, where known.
        is_session_lost: Whether the session with a served endpoint is gone (`SessionLost`).
        is_lane_lost: Whether a fleet gave this lane up (`LaneLost`).
    """

    def __init__(
        self,
        message: str,
        *,
        fault: EndpointFault,
        route: str = "",
        component: str = "runner",
        operation: str = "",
        step: int = 0,
        episode_id: str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(message, route=route, component=component, operation=operation, step=step)
        self.error_class = fault.error_class
        self.traceback_text = fault.traceback_text
        self.env_index = fault.env_index
        self.episode_id = episode_id
        self.seed = seed
        self.is_recoverable = fault.is_recoverable
        self.is_session_lost = isinstance(fault, SessionLost)
        self.is_lane_lost = isinstance(fault, LaneLost)
        self.outcome = fault.outcome


class EnvFailed(EndpointFailed):
    """The env raised, exited or answered nonsense."""


class ModelFailed(EndpointFailed):
    """The model raised, exited or answered nonsense."""


class ModelRouteMismatch(RouteError):  # noqa: N818
    """The model's answer carries the context of another request.

    Attributes:
        request_id: The id of the request that was sent.
    """

    def __init__(
        self, message: str, *, request_id: str, route: str, component: str, step: int
    ) -> None:
        super().__init__(
            message, route=route, component=component, operation="model.predict", step=step
        )
        self.request_id = request_id


class ProtocolError(RouteError):
    """An endpoint broke the contract of the runtime."""


class HookFailed(RouteError):  # noqa: N818
    """A transform hook raised, returned None, or changed the number of leaves or rows.

    Attributes:
        hook: The hook's class name.
    """

    def __init__(self, message: str, *, hook: str, route: str, operation: str, step: int) -> None:
        super().__init__(message, route=route, operation=operation, step=step)
        self.hook = hook
