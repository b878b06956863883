"""One run of a plan: its journal, its endpoints, its driver, and the rules that end it (layer 8).

`evaluate` comes here where a run is more than a loop: several worker processes, a folder that it
survives in, a plan of tasks, a rule that stops it. What has ended before is not run again; what
ends now is recorded before it counts.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmesh import events
from rollmesh.arguments import EpisodePlan
from rollmesh.clock import SYSTEM_CLOCK
from rollmesh.endpoint.models.batched import Batching
from rollmesh.endpoint.targets import is_address
from rollmesh.errors import (
    InvalidSpec,
    JournalError,
    ModelFailed,
    OperationTimeout,
    RouteCancelled,
    RouteError,
)
from rollmesh.fleet.plan import Plan
from rollmesh.fleet.settings import FleetSettings
from rollmesh.ledger import Ledger
from rollmesh.opening import (
    Endpoints,
    FleetOpening,
    OpeningOptions,
    RouteIds,
    model_identity,
    name_of,
)
from rollmesh.ports import AutoresetMode
from rollmesh.results.conditions import Conditions, written
from rollmesh.results.result import EvalResult
from rollmesh.run_arguments import RunArguments
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.driver import RouteDriver
from rollmesh.runtime.hooks import Dispatcher
from rollmesh.runtime.report import RouteReport
from rollmesh.runtime.spec import OnError, SessionSpec

if TYPE_CHECKING:
    from rollmesh.results.stopping import StopRule
    from rollmesh.runs.journal import Journal

_logger = logging.getLogger(__name__)

OWNED_RESETS_CURE = (
    "give an id or a factory with num_envs, or a vector env that takes a reset_mask "
    "(gymnasium.make_vec(…, vectorization_mode='sync')) in mode DISABLED or NEXT_STEP"
)
"""What to give in place of a vector env that begins its episodes by itself."""


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Where a run is kept.

    Attributes:
        path: Its folder.
        new: Whether what is there is moved aside.
        accept_changes: Whether it goes on with another model or env of the same name.
        command: The command line that started it, for `rollmesh retry`; None from Python.
    """

    path: Path
    new: bool = False
    accept_changes: bool = False
    command: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One evaluation of a plan whose arguments are good.

    Attributes:
        model: As `evaluate` takes it.
        env: The same; None where every task names its own.
        plan: What is to be run.
        template: The spec, but for what follows from plan and env.
        opening: How endpoints are opened.
        hooks: Told of everything.
        cancel: Stops it.
        folder: Where it is kept, or None.
        stop_when: Ends it early, or None.
        max_errors: More errored episodes than this end it; None: no number does.
        is_seed_drawn: Whether nobody named the plan's seed.
    """

    model: object
    env: object
    plan: Plan
    template: SessionSpec
    opening: OpeningOptions
    hooks: tuple[object, ...] = ()
    cancel: CancelToken = field(default_factory=CancelToken)
    folder: RunFolder | None = None
    stop_when: StopRule | None = None
    max_errors: int | None = None
    is_seed_drawn: bool = False

    def run(self) -> EvalResult:
        """Run what is left of the plan and return the result of all of it.

        Raises:
            RunError: The folder holds another run, is in use, or is damaged.
            JournalError: An episode could not be recorded; `result` holds all that ended.
            RouteError: The run failed or was cancelled; `result` holds what had ended.
        """
        with (
            contextlib.ExitStack() as last,
            self._journal() as journal,
            self.cancel.follower() as cancel,
        ):
            ledger = Ledger(self, journal, cancel)
            last.callback(ledger.close)
            starts = self.plan.starts(ledger.episodes)
            self._say_seed()
            if ledger.episodes:
                self._say(
                    f"resumed: {len(ledger.episodes)} of {len(self.plan.episodes)} episodes had "
                    f"ended, {len(starts)} are left"
                )
            if not starts or ledger.stopped is not None:
                return ledger.noted(ledger.result(None))
            ids = RouteIds(session_id=self.template.session_id, env_id=self.template.env_id)
            endpoints = Endpoints(
                self.model, self.env, ids=ids, options=self._opening_here(), hooks=self.hooks
            )
            ledger.endpoints = endpoints
            try:
                with endpoints:
                    ledger.note_opened(endpoints)
                    report = self._drive(endpoints, replace(self.template, starts=starts), ledger)
            except RouteError as error:
                ledger.note_opened(endpoints)  # also where the model could not be opened
                told = self._told(error, ledger, journal)
                raise told from told.__cause__
            return ledger.noted(ledger.result(report))

    def _told(
        self, error: RouteError, ledger: Ledger, journal: Journal | None
    ) -> RouteError | JournalError:
        """Return what a failed run raises: the journal's own trouble before what followed of it."""
        if journal is not None:
            with contextlib.suppress(JournalError):
                journal.flush()
            if journal.failure is not None:
                failure = journal.failure
                failure.result = ledger.result(error.report, stopped=str(failure))
                return failure
        tell_way_out(error, on_error=self.template.on_error, is_kept=journal is not None)
        if not isinstance(error, InvalidSpec):
            error.result = ledger.noted(ledger.result(error.report, stopped=why_stopped(error)))
        return error

    def _drive(self, endpoints: Endpoints, template: SessionSpec, ledger: Ledger) -> RouteReport:
        port = endpoints.env
        capabilities = frozenset(port.capabilities)
        spec = replace(
            template,
            env_contract=port.contract,
            num_envs=port.contract.num_envs,
            env_component=endpoints.env_component,
            model_component=endpoints.model_component,
            close_env_on_end=endpoints.owns_env,
        )
        if not spec.owns_resets(capabilities) and spec.autoreset_mode is not AutoresetMode.DISABLED:
            raise InvalidSpec(
                "env" if self.folder is None else "run_dir",
                f"needs an env whose episodes rollmesh starts itself, as plans and workers do, but "
                f"this one has autoreset mode {spec.autoreset_mode.name} and resets itself; "
                f"{OWNED_RESETS_CURE}",
            )
        driver = RouteDriver(
            spec,
            port,
            endpoints.model,
            hooks=self.hooks,
            tell=ledger.take,
            tell_lost=ledger.note_lost,
        )
        spec.check_capabilities(capabilities)
        endpoints.hand_over()
        started_ns = SYSTEM_CLOCK.monotonic_ns()
        is_sound = False
        try:
            report = driver.run(ledger.cancel)
            is_sound = True
        finally:
            ledger.elapsed_s = (SYSTEM_CLOCK.monotonic_ns() - started_ns) / 1e9
            ledger.note_moved(is_sound=is_sound)
        return report

    def _opening_here(self) -> OpeningOptions:
        """Return how endpoints are opened: without workers by the arguments of the plan's env."""
        opening, (setup, *_) = self.opening, self.plan.setups.values()
        if opening.fleet is not None or not setup.env_kwargs:
            return opening
        return replace(opening, env_kwargs={**(opening.env_kwargs or {}), **setup.env_kwargs})

    @property
    def route(self) -> events.Route:
        """The route, as events of the run as a whole name it."""
        return events.Route(self.template.env_id, self.env_name, name_of(self.model))

    @property
    def env_name(self) -> str:
        """Name of the env, or of those that the tasks name."""
        envs = [self.env] if self.env is not None else [task.env for task in self.plan.tasks]
        return ", ".join(dict.fromkeys(map(name_of, envs)))

    @property
    def plan_seed(self) -> int | None:
        """The number that seeds follow from; None where the plan names every one."""
        return self.plan.seed if any(task.seeds is None for task in self.plan.tasks) else None

    def _say_seed(self) -> None:
        if self.plan_seed is not None:
            self._say(seed_message(self.plan_seed, is_drawn=self.is_seed_drawn))

    def _say(self, message: str) -> None:
        say(message, self.hooks, session_id=self.template.session_id, route=self.route)

    # ---------------------------------------------------------------------------- the journal

    @contextlib.contextmanager
    def _journal(self) -> Generator[Journal | None]:
        folder = self.folder
        if folder is None:
            yield None
            return
        from rollmesh.runs.facts import gather_facts
        from rollmesh.runs.journal import Journal

        facts = {**gather_facts(command=folder.command), **self._facts()}
        identity = self._identity()
        with Journal.open(
            folder.path,
            identity=identity,
            facts=facts,
            new=folder.new,
            accept_changes=folder.accept_changes,
        ) as journal:
            yield journal

    def _facts(self) -> dict[str, Any]:
        """Return how the run is spread: what a reader may want to know and nothing follows from."""
        fleet = self.opening.fleet
        if fleet is None:
            return {}
        lanes = fleet.settings.lanes_per_worker
        return {"workers": fleet.workers, "lanes_per_worker": lanes}

    @property
    def conditions(self) -> Conditions:
        """What the episodes are played under."""
        return Conditions.of(
            env=self.env_name,
            settings=settings_of(self.template, self.opening),
            tasks=self.plan.to_dict()["tasks"],
        )

    def _identity(self) -> Any:
        from rollmesh.runs.identity import RunIdentity
        from rollmesh.runs.marks import earlier_of, marks_of

        template, opening = self.template, self.opening
        marks = marks_of(self.model, self.env)
        return RunIdentity(
            plan_json=self.plan.to_json(),
            plan_hash=self.plan.hash,
            planned=len(self.plan.episodes),
            env=self.env_name,
            model=model_identity(self.model),
            marks=marks,
            earlier=earlier_of(self.model, self.env, marks),
            settings={
                **settings_of(template, opening),
                "model_kwargs": written(opening.model_kwargs),
                "execution_horizon": template.execution_horizon,
                "replan": template.replan,
            },
        )


def plan_run(
    arguments: RunArguments,
    loose: EpisodePlan | None,
    *,
    model: object,
    env: object,
    template: SessionSpec,
    opening: OpeningOptions,
) -> PlannedRun:
    """Return the run that these arguments describe; `loose` stands for a plan not given in full.

    Raises:
        InvalidSpec: One of them is wrong, or a task needs an env that nobody named.
    """
    plan, is_seed_drawn = arguments.read_plan(loose)
    if arguments.stop_when is not None and len(plan.tasks) > 1:
        raise InvalidSpec(
            "stop_when",
            f"wants a plan of one task, got {len(plan.tasks)}: a run of several that ends early "
            "would have played one task more than another",
        )
    folder = None
    if arguments.run_dir is not None:
        command = None if arguments.command is None else tuple(arguments.command)
        folder = RunFolder(
            path=Path(arguments.run_dir),
            new=arguments.new,
            accept_changes=arguments.accept_changes,
            command=command,
        )
    if env is None and (nameless := [task.name for task in plan.tasks if task.env is None]):
        raise InvalidSpec(
            "env",
            f"is missing: task {nameless[0]!r} of the plan names none, so give one"
            if nameless[0]
            else "is missing: give a Gymnasium id, module:callable or an address",
        )
    is_suite = len(plan.setups) > 1 or any(task.env for task in plan.tasks)
    if arguments.workers is not None or is_suite:
        settings = arguments.fleet or FleetSettings()
        opening = _on_workers(arguments, plan, opening, settings=settings)
        if not is_suite and is_address(env) and (workers := arguments.count_workers()) > 1:
            _logger.warning(
                "workers=%d: no worker is started, as %s is served, and one lane plays there; "
                "leave workers out, and give --num-envs N (num_envs=N) for N sessions",
                workers,
                env,
            )
        template = replace(template, max_attempts=settings.max_attempts, retry_late=True)
    elif opening.num_envs is not None:
        most = max(1, len(plan.episodes))
        opening = replace(opening, num_envs=min(opening.num_envs, most))
    return PlannedRun(
        model=model,
        env=env,
        plan=plan,
        template=template,
        opening=opening,
        folder=folder,
        stop_when=arguments.read_stop_rule(),
        max_errors=arguments.read_max_errors(len(plan.episodes)),
        is_seed_drawn=is_seed_drawn,
    )


def _on_workers(
    arguments: RunArguments, plan: Plan, opening: OpeningOptions, *, settings: FleetSettings
) -> OpeningOptions:
    """Return how the endpoints of a run with workers are opened."""
    if opening.num_envs is not None:
        raise InvalidSpec(
            "num_envs",
            "is for envs in this process, and workers run them here: leave it out, or say "
            "--lanes-per-worker N (fleet=FleetSettings(lanes_per_worker=N))",
        )
    workers = min(arguments.count_workers(), len(plan.episodes))
    return replace(
        opening,
        fleet=FleetOpening(workers=workers, settings=settings, setups=plan.setups),
        batching=Batching(
            max_batch=settings.max_batch,
            max_wait_s=settings.max_wait_s,
            bucket_sizes=settings.bucket_sizes,
        ),
        share_thread=False,
    )


def settings_of(template: SessionSpec, opening: OpeningOptions) -> dict[str, Any]:
    """Return what of a run's arguments are conditions of all its episodes, as plain values."""
    return {
        "env_kwargs": written(opening.env_kwargs),
        "max_episode_steps": template.max_episode_steps,
        "max_episode_seconds": template.max_episode_seconds,
    }


def why_stopped(error: RouteError) -> str:
    """Return in one line why a run stopped."""
    if isinstance(error, RouteCancelled):
        return error.reason
    return str(error).strip().partition("\n")[0] or type(error).__name__


def tell_way_out(error: RouteError, *, on_error: OnError, is_kept: bool) -> None:
    """Have a model's failure say that `continue` is about envs, and how to go on (rule R29).

    Args:
        error: What ended the run; any other one is left as it is.
        on_error: What was asked for.
        is_kept: Whether a folder holds what has ended.
    """
    is_about_model = isinstance(error, (ModelFailed, OperationTimeout))
    if on_error != "continue" or not is_about_model or error.operation != "model.predict":
        return
    again = (
        "mend it and start the same run again with accept_changes=True (--accept-changes), which "
        "goes on with the episodes that are left"
    )
    if not is_kept:
        again = (
            "mend it; a kept run (run_dir=..., as rollmesh eval has of itself) started again with "
            "accept_changes=True (--accept-changes) goes on with the episodes that are left"
        )
    first, gap, rest = str(error).partition("\n")
    hint = f"on_error='continue' is for faults of envs, and a model that fails ends a run: {again}"
    error.args = (f"{first}\n{hint}{gap}{rest}", *error.args[1:])


def seed_message(seed: int, *, is_drawn: bool) -> str:
    """Return what is said of a plan's seed: one that was drawn, with how to use it again."""
    again = f", drawn; base_seed={seed} (--seed {seed}) runs the same plan again"
    return f"plan seed {seed}{again if is_drawn else ''}"


def say(message: str, hooks: Sequence[object], *, session_id: str, route: events.Route) -> None:
    """Log what `evaluate` itself has to say, and tell the hooks."""
    _logger.info("%s session_id=%s", message, session_id)
    if emit := Dispatcher(hooks).log:
        emit(
            events.Log(
                session_id=session_id,
                route=route,
                level="info",
                message=message,
                source="evaluate",
            )
        )
