"""The driver: one session of a route, from validation to the report (rules R6, R26 to R31, R39).

Order of a good run: `session_started` → groups → terminal shutdown → `session_ended` → final
telemetry → report. Order of a failed one: final telemetry → terminal shutdown → `session_failed` →
the error, with the partial report.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, NoReturn

from rollmesh import events
from rollmesh.clock import SYSTEM_CLOCK, Clock
from rollmesh.errors import RouteCancelled, RouteError
from rollmesh.ids import MINT, MintsIds
from rollmesh.ports import SUBSET_STEP, EnvPort, ModelPort
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.engine.base import Engine, EngineParts, Task
from rollmesh.runtime.engine.blocking import BlockingEngine
from rollmesh.runtime.engine.concurrent import ConcurrentEngine
from rollmesh.runtime.engine.hosted import HostedEngine, HostThread
from rollmesh.runtime.failures import explain
from rollmesh.runtime.group import group_loop
from rollmesh.runtime.hooks import Dispatcher
from rollmesh.runtime.lanes import Group
from rollmesh.runtime.operations import GroupLoop, Operation
from rollmesh.runtime.report import EpisodeSummary, LostAttempt, RouteReport
from rollmesh.runtime.route import Route
from rollmesh.runtime.spec import SessionSpec
from rollmesh.runtime.telemetry import Telemetry
from rollmesh.runtime.ticker import Ticker

logger = logging.getLogger(__name__)

COMPLETED = "completed requested episodes"

MakesEngine = Callable[[EngineParts], Engine]


class RouteDriver:
    """Drives one route once.

    `tell` takes each episode as it ends, and then the report holds none of them; `tell_lost` takes
    each attempt that came to nothing and is made again. Both are called on the engine's thread.

    Guarantees: a bad spec touches nothing; exactly one final telemetry snapshot on every other way
    out; the report's snapshot is that object; no event comes after the last one.
    """

    def __init__(
        self,
        spec: SessionSpec,
        env: EnvPort,
        model: ModelPort,
        *,
        hooks: Sequence[object] = (),
        make_engine: MakesEngine | None = None,
        tell: Callable[[EpisodeSummary], None] | None = None,
        tell_lost: Callable[[LostAttempt], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        mint: MintsIds = MINT,
    ) -> None:
        self._spec = spec
        self._env = env
        self._model = model
        self._dispatcher = Dispatcher(hooks)
        self._make_engine = make_engine
        self._tell = tell
        self._tell_lost = tell_lost
        self._clock = clock
        self._mint = mint
        self._ran = False
        self._pushing = threading.Lock()
        self._final: events.TelemetrySnapshot | None = None

    def run(self, cancel: CancelToken | None = None) -> RouteReport:
        """Run the session and return its report.

        Raises:
            InvalidSpec: The endpoint cannot do what the spec asks; nothing was touched.
            RouteError: The route failed or was cancelled; `report` holds what had ended.
            RuntimeError: This driver has run before.
        """
        if self._ran:
            raise RuntimeError("a driver runs once; make a new one for another session")
        self._ran = True
        spec = self._spec
        capabilities = frozenset(self._env.capabilities)
        spec.check_capabilities(capabilities)
        cancel = cancel or CancelToken()
        telemetry = Telemetry(spec.env_component, spec.model_component, self._clock)
        route = Route(
            spec,
            capabilities,
            dispatcher=self._dispatcher,
            telemetry=telemetry,
            cancel=cancel,
            mint=self._mint,
            tell=self._tell,
            tell_lost=self._tell_lost,
        )
        groups = make_groups(spec.width, capabilities)
        route.groups_left = len(groups)
        engine = self._engine(cancel, len(groups))
        ticker = Ticker(
            spec.limits.telemetry_window_s,
            lambda: self._push_window(route),
            engine.overdue,
            self._clock,
        )
        logger.info(
            "route session_id=%s env_id=%s num_envs=%d", spec.session_id, spec.env_id, spec.width
        )
        try:
            self._start(ticker, cancel)
            route.announcer.session_started()
            self._refuse_cancelled(cancel)
            engine.run([self._task(route, group) for group in groups])
            reason = (self._short(route) and cancel.drain_reason) or COMPLETED
            self._shut_down(route, engine, reason)
        except KeyboardInterrupt:
            cancel.cancel("interrupted")
            step = next((group.step for group in groups if group.busy), 0)
            error = RouteCancelled("interrupted", route=spec.env_id, step=step)
            error.__suppress_context__ = True  # a Ctrl-C prints one traceback, not two
            self._fail(route, engine, ticker, error)
        except BaseException as error:  # noqa: BLE001 - raised again once all is shut down
            self._fail(route, engine, ticker, error)
        return self._succeed(route, ticker, reason)

    # ------------------------------------------------------------------ beginning

    def _engine(self, cancel: CancelToken, groups: int) -> Engine:
        spec = self._spec
        limits = spec.limits
        timeouts = [
            limits.env_reset_s,
            limits.env_step_s,
            limits.model_predict_s,
            limits.predict_s(is_first=True),
            limits.close_s,
        ]
        parts = EngineParts(
            env=self._env,
            model=self._model,
            cancel=cancel,
            clock=self._clock,
            env_id=spec.env_id,
            env_component=spec.env_component,
            model_component=spec.model_component,
            close_s=limits.close_s,
            shortest_limit_s=min([t for t in timeouts if t is not None], default=None),
        )
        if self._make_engine is not None:
            return self._make_engine(parts)
        elsewhere = [hasattr(port, "submit") for port in (self._env, self._model)]
        if groups == 1 and not any(elsewhere):
            return BlockingEngine(parts)
        thread: HostThread | None = getattr(self._env, "thread", None)
        is_shared = thread is getattr(self._model, "thread", None)
        if thread is None or not is_shared or groups > 1 or spec.on_error == "continue":
            return ConcurrentEngine(parts)
        return HostedEngine(parts, thread)

    def _task(self, route: Route, group: Group) -> Task:
        return Task(group_loop(route, group), lambda op, exc: explain(self._spec, group, op, exc))

    @staticmethod
    def _start(ticker: Ticker, cancel: CancelToken) -> None:
        """Start ticking; a Ctrl-C meanwhile is a cancel before the start."""
        try:
            ticker.start()
        except KeyboardInterrupt:
            cancel.cancel("interrupted")

    def _refuse_cancelled(self, cancel: CancelToken) -> None:
        if cancel.reason is not None:
            raise RouteCancelled(
                cancel.reason, route=self._spec.env_id, operation="env.reset", step=0
            )

    # --------------------------------------------------------------------- ending

    @staticmethod
    def _short(route: Route) -> bool:
        wanted = route.spec.max_episodes
        return wanted is None or route.total_episodes < wanted

    def _succeed(self, route: Route, ticker: Ticker, reason: str) -> RouteReport:
        spec = self._spec
        self._dispatcher.is_over = True
        close_s = spec.limits.close_s
        is_quiet = ticker.stop(close_s)
        route.announcer.session_ended(reason, route.total_steps, route.total_episodes)
        return route.report(self._final_telemetry(route, close_s if is_quiet else 0.0))

    def _fail(self, route: Route, engine: Engine, ticker: Ticker, error: BaseException) -> NoReturn:
        spec = self._spec
        self._dispatcher.is_over = True
        ticker.pause()
        reason = str(error) or type(error).__name__
        snapshot = self._final_telemetry(route, spec.limits.close_s)
        self._shut_down(route, engine, reason)
        ticker.stop(spec.limits.close_s)
        route.announcer.session_failed(reason)
        if isinstance(error, RouteError):
            error.report = route.report(snapshot)
        raise error

    def _shut_down(self, route: Route, engine: Engine, reason: str) -> None:
        """Release the adapter and close the env, together, each bounded; raise nothing (R28)."""
        self._dispatcher.is_over = True
        tasks: list[Task] = []
        if engine.is_abandoned("model"):
            route.announcer.log(
                "warning", f"{self._spec.model_component} was left behind: not released"
            )
        else:
            tasks.append(self._shutdown_task(route, route.requests.release(reason)))
        if not self._spec.close_env_on_end:
            logger.debug("env_not_closed env_id=%s: it is not ours to close", self._spec.env_id)
        elif engine.is_abandoned("env"):
            route.announcer.log(
                "warning", f"{self._spec.env_component} was left behind: not closed"
            )
        else:
            close_s = self._spec.limits.close_s
            close = Operation("env", "close", close_s, "env.close", 0, close_s)
            tasks.append(self._shutdown_task(route, [close]))
        try:
            engine.run(tasks, shutdown=True)
        except (Exception, KeyboardInterrupt) as exc:  # noqa: BLE001 - a shutdown never raises
            route.announcer.log("warning", f"terminal shutdown was cut short: {exc!r}")

    def _shutdown_task(self, route: Route, operations: Sequence[Operation]) -> Task:
        def loop() -> GroupLoop:
            for operation in operations:
                yield from self._tolerate(route, operation)

        return Task(loop(), lambda op, exc: explain(self._spec, None, op, exc))

    @staticmethod
    def _tolerate(route: Route, operation: Operation) -> Generator[Operation, Any, None]:
        try:
            yield operation
        except RouteError as error:
            route.announcer.log("warning", f"terminal shutdown: {error}")

    # ------------------------------------------------------------------ telemetry

    def _push_window(self, route: Route) -> None:
        """Push a window snapshot, unless the final one has been given (called by the ticker)."""
        with self._pushing:
            if self._final is None and (snapshot := route.telemetry.window()) is not None:
                route.announcer.telemetry(snapshot)

    def _final_telemetry(self, route: Route, patience_s: float | None) -> events.TelemetrySnapshot:
        """Give the final snapshot, once a push under way has ended or had its time (rule R39).

        A Ctrl-C ends the wait, and nothing else.
        """
        held = False
        with contextlib.suppress(KeyboardInterrupt):
            held = self._pushing.acquire(timeout=-1 if patience_s is None else patience_s)
        final = self._final = route.telemetry.session()
        if held:
            self._pushing.release()
        route.announcer.telemetry(final)
        return final


def make_groups(width: int, capabilities: frozenset[str]) -> list[Group]:
    """Return a group per lane where lanes can step on their own, else one of all (rule R45)."""
    if SUBSET_STEP in capabilities and width > 1:
        return [Group([i], is_whole_env=False) for i in range(width)]
    return [Group(range(width), is_whole_env=True)]
