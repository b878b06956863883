"""Hooks: what a user hangs on a route, and how the route calls it (layer 3, rules R33 to R36).

Observers get frozen events and have no way back: what they raise is logged and the route goes on.
The two transforms return the payload to use; whatever goes wrong in one ends the route.

A hooks object is a `Hooks`, or any object that has some of its methods. One object may serve many
routes at once: a `Dispatcher` belongs to one route and keeps nothing in the objects it calls.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

if TYPE_CHECKING:
    from rollmesh.events import (
        ActionReceived,
        EnvConnected,
        EpisodeCompleted,
        EpisodeErrored,
        EpisodesStored,
        EpisodeStarted,
        Log,
        ModelConnected,
        ObservationEmitted,
        Route,
        SessionEnded,
        SessionFailed,
        SessionStarted,
        StepCompleted,
        TelemetryEmitted,
        WorkerChanged,
    )
    from rollmesh.spaces.codec import Leaves
    from rollmesh.spaces.space import Space

_logger = logging.getLogger(__name__)

STEP_EVENTS = ("observation_emitted", "action_received", "step_completed")
"""Events of every step; all others come once an episode, window or session."""
EVENTS = (
    "env_connected",
    "model_connected",
    "session_started",
    "episode_started",
    *STEP_EVENTS,
    "episode_completed",
    "episode_errored",
    "log",
    "session_ended",
    "session_failed",
    "on_telemetry",
    "on_worker_changed",
    "on_episodes_stored",
)
TRANSFORMS = ("transform_observation", "transform_action")

Observer: TypeAlias = Callable[[Any], object]
"""Takes an event."""
Transform: TypeAlias = "Callable[[TransformContext, Leaves, int], Leaves]"
"""Takes context, payload and its number of rows; returns the payload to use."""


class TransformContext(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Where a payload that is to be transformed belongs; per-lane fields are row-aligned.

    Attributes:
        session_id: The session.
        route: The route.
        env_indices: The lane of each row.
        episode_ids: The episode of each row.
        steps: The step of each row.
        space: The space of one row.
    """

    session_id: str
    route: Route
    env_indices: tuple[int, ...]
    episode_ids: tuple[str, ...]
    steps: tuple[int, ...]
    space: Space

    def decode(self, leaves: Leaves, row: int = 0) -> Any:
        """Return one row as plain values: a copy that may be written into."""
        return self.space.codec.decode(leaves, row, copy=True)

    def encode(self, values: Sequence[Any]) -> Leaves:
        """Return a payload made of one plain value per row, in row order.

        Raises:
            InvalidValue: A value does not fit the space.
        """
        return self.space.codec.encode_many(values)


class Hooks:
    """Base class with a method for every event; override the ones you want.

    Observers take one event and return nothing. They are called on the thread of the group
    concerned, in the order of the list of hooks; `on_telemetry` for windows comes from the ticker's
    thread, and other groups' events may come at the same time. A method that is not overridden
    costs nothing.
    """

    def env_connected(self, event: EnvConnected) -> None:
        """Take note that the env endpoint is ready."""

    def model_connected(self, event: ModelConnected) -> None:
        """Take note that the model endpoint is ready."""

    def session_started(self, event: SessionStarted) -> None:
        """Take note that the session begins."""

    def episode_started(self, event: EpisodeStarted) -> None:
        """Take note that a lane's episode begins."""

    def observation_emitted(self, event: ObservationEmitted) -> None:
        """Take note of the observations that this iteration acts on."""

    def action_received(self, event: ActionReceived) -> None:
        """Take note of the actions about to be applied."""

    def step_completed(self, event: StepCompleted) -> None:
        """Take note of what came of a step."""

    def episode_completed(self, event: EpisodeCompleted) -> None:
        """Take note that a lane's episode ended."""

    def episode_errored(self, event: EpisodeErrored) -> None:
        """Take note that a lane's episode was spoiled by a fault."""

    def log(self, event: Log) -> None:
        """Take note of a line of the route's log."""

    def session_ended(self, event: SessionEnded) -> None:
        """Take note that the route did what was asked."""

    def session_failed(self, event: SessionFailed) -> None:
        """Take note that the route failed or was cancelled."""

    def on_telemetry(self, event: TelemetryEmitted) -> None:
        """Take note of a telemetry snapshot."""

    def on_worker_changed(self, event: WorkerChanged) -> None:
        """Take note that a worker process started, got ready, was lost or stopped."""

    def on_episodes_stored(self, event: EpisodesStored) -> None:
        """Take note that episodes are on disk; called from a thread of its own."""

    def transform_observation(self, context: TransformContext, observation: Leaves) -> Leaves:
        """Return the observations to use in place of `observation`, row for row."""
        del context
        return observation

    def transform_action(self, context: TransformContext, action: Leaves) -> Leaves:
        """Return the actions to apply in place of `action`, row for row."""
        del context
        return action


class TransformFault(Exception):  # noqa: N818 - carries facts for HookFailed, never seen outside
    """A transform failed; the route, which knows where it was, turns it into `HookFailed`.

    Attributes:
        hook_name: Class name of the hooks object.
        detail: What it did, expected and got.
        cause: What it raised, or None.
    """

    def __init__(self, hook_name: str, detail: str, cause: BaseException | None = None) -> None:
        super().__init__(f"{hook_name}: {detail}")
        self.hook_name = hook_name
        self.detail = detail
        self.cause = cause


class Dispatcher:
    """Calls the hooks of one route, in their order.

    For each event an attribute of its name holds what emits it, or None where no hook wants it: the
    route then does not build the event.

    Guarantees: what an observer raises is logged and never raised, KeyboardInterrupt excepted while
    the route is not over; what goes wrong in a transform is raised as `TransformFault` and never
    logged.

    Attributes:
        is_over: Set by the route once it has come to its end: a Ctrl-C in an observer then ends
            that observer's call, and nothing else.

    Raises:
        TypeError: An object has none of the hook methods, is a class, or a method is a coroutine or
            generator function.
    """

    def __init__(self, hooks: Sequence[object]) -> None:
        for hook in hooks:
            _refuse_non_hook(hook)
        self.is_over = False
        self.env_connected = self._observer("env_connected", hooks)
        self.model_connected = self._observer("model_connected", hooks)
        self.session_started = self._observer("session_started", hooks)
        self.episode_started = self._observer("episode_started", hooks)
        self.observation_emitted = self._observer("observation_emitted", hooks)
        self.action_received = self._observer("action_received", hooks)
        self.step_completed = self._observer("step_completed", hooks)
        self.episode_completed = self._observer("episode_completed", hooks)
        self.episode_errored = self._observer("episode_errored", hooks)
        self.log = self._observer("log", hooks)
        self.session_ended = self._observer("session_ended", hooks)
        self.session_failed = self._observer("session_failed", hooks)
        self.on_telemetry = self._observer("on_telemetry", hooks)
        self.on_worker_changed = self._observer("on_worker_changed", hooks)
        self.on_episodes_stored = self._observer("on_episodes_stored", hooks)
        self.transform_observation = _transform("transform_observation", hooks)
        self.transform_action = _transform("transform_action", hooks)

    def _observer(self, name: str, hooks: Sequence[object]) -> Observer | None:
        """Return what emits an event to every hook that wants it, or None if none does."""
        calls = [(method, _failure_log(hook, name)) for hook, method in _named_methods(name, hooks)]
        if not calls:
            return None
        first, log_first = calls[0]

        def emit_to_one(event: Any) -> None:
            try:
                first(event)
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                if isinstance(error, KeyboardInterrupt) and not self.is_over:
                    raise
                log_first(error)

        def emit(event: Any) -> None:
            for method, log_failure in calls:
                try:
                    method(event)
                except (Exception, SystemExit, KeyboardInterrupt) as error:
                    if isinstance(error, KeyboardInterrupt) and not self.is_over:
                        raise
                    log_failure(error)

        return emit if len(calls) > 1 else emit_to_one


def gather_hooks(hooks: object) -> tuple[object, ...]:
    """Return the hooks of an argument: None, one hooks object, or a list or tuple of them."""
    if hooks is None:
        return ()
    if isinstance(hooks, (list, tuple)):
        return tuple(cast("Sequence[object]", hooks))
    return (hooks,)


def overridden(hook: object, name: str) -> Callable[..., Any] | None:
    """Return a hooks object's own method of this name, or None where it would do nothing."""
    method = getattr(hook, name, None)
    if not callable(method) or getattr(method, "__func__", None) is getattr(Hooks, name):
        return None
    return method


# -------------------------------------------------------------------------------- building


def _refuse_non_hook(hook: object) -> None:
    if inspect.isclass(hook):
        raise TypeError(
            f"hooks wants objects, got the class {hook.__name__}; pass {hook.__name__}()"
        )
    methods = {name: overridden(hook, name) for name in (*EVENTS, *TRANSFORMS)}
    for name, method in methods.items():
        if inspect.iscoroutinefunction(method):
            raise TypeError(
                f"{type(hook).__name__}.{name} is a coroutine function; hooks are plain functions: "
                f"write `def {name}(...)`"
            )
        if inspect.isgeneratorfunction(method):
            raise TypeError(
                f"{type(hook).__name__}.{name} is a generator function, of which nothing would "
                "run; hooks are plain functions: write it without yield"
            )
    if any(methods.values()) or (isinstance(hook, Hooks) and not _adds_methods(hook)):
        return
    raise TypeError(f"hooks got {hook!r}, which has none of the hook methods: {', '.join(methods)}")


def _adds_methods(hook: Hooks) -> bool:
    """Return whether a user's subclass has methods: without a hook one, it is probably misspelt."""
    mine = [c for c in type(hook).__mro__ if c is not object and not _is_packaged(c)]
    return any(
        callable(value) and not name.startswith("_")
        for c in mine
        for name, value in vars(c).items()
    )


def _is_packaged(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


def _named_methods(name: str, hooks: Sequence[object]) -> list[tuple[str, Callable[..., Any]]]:
    """Return class name and method of every hook that overrides `name`, in order."""
    found: list[tuple[str, Callable[..., Any]]] = []
    for hook in hooks:
        method = overridden(hook, name)
        if method is not None:
            owner = method.__self__ if isinstance(method, MethodType) else hook
            found.append((type(owner).__name__, method))
    return found


def _failure_log(hook_name: str, event_name: str) -> Callable[[BaseException], None]:
    """Return what logs a failing observer; of a step event only the first time above DEBUG."""
    levels = [logging.ERROR]

    def log_failure(error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            _logger.warning(
                "hooks.interrupted hook=%s event=%s (the route is over, and nothing else is lost)",
                hook_name,
                event_name,
            )
            return
        _logger.log(
            levels[0],
            "hooks.failed hook=%s event=%s error=%r (the route goes on)",
            hook_name,
            event_name,
            error,
            exc_info=error,
        )
        if event_name in STEP_EVENTS:
            levels[0] = logging.DEBUG

    return log_failure


def _transform(name: str, hooks: Sequence[object]) -> Transform | None:
    """Return what applies every hook's transform left to right, or None if there is none."""
    calls = _named_methods(name, hooks)
    if not calls:
        return None

    def apply(context: TransformContext, leaves: Leaves, rows: int) -> Leaves:
        verify = context.space.codec.verify
        for hook_name, method in calls:
            try:
                result: Leaves | None = method(context, leaves)
            except (Exception, SystemExit) as error:
                detail = f"{name} raised {type(error).__name__}: {error}"
                raise TransformFault(hook_name, detail, error) from error
            if result is None:
                raise TransformFault(
                    hook_name, f"{name} returned None; return the payload, changed or not"
                )
            try:
                verify(result, rows)
            except Exception as error:
                detail = f"{name} returned a payload that does not fit: {error}"
                raise TransformFault(hook_name, detail, error) from error
            leaves = result
        return leaves

    return apply
