"""`evaluate`: the place where an env, a model, a plan and the runtime meet (layer 8)."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollmesh import events
from rollmesh.arguments import (
    EpisodePlan,
    check_sendable,
    derived_seeds,
    optional_count,
    read_cancel,
    read_conformance,
    read_hooks,
    read_kwargs,
    read_limits,
    read_plan,
)
from rollmesh.clock import SYSTEM_CLOCK
from rollmesh.errors import InvalidSpec, RouteError
from rollmesh.fleet.plan import Plan, Task
from rollmesh.fleet.settings import FleetSettings
from rollmesh.limits import Limits
from rollmesh.opening import Endpoints, OpeningOptions, RouteIds, is_served, name_of
from rollmesh.ports import AutoresetMode, EnvContract, Info
from rollmesh.results.conditions import Conditions, written
from rollmesh.results.result import EpisodeResult, EvalResult
from rollmesh.run_arguments import DRAWN_SEEDS, PathArgument, PlanArgument, RunArguments, Workers
from rollmesh.running import (
    OWNED_RESETS_CURE,
    plan_run,
    say,
    seed_message,
    settings_of,
    tell_way_out,
    why_stopped,
)
from rollmesh.runtime.cancel import DRAINED, CancelToken
from rollmesh.runtime.driver import RouteDriver
from rollmesh.runtime.report import RouteReport
from rollmesh.runtime.spec import OnError, Replan, SessionSpec
from rollmesh.spaces.conformance import Policy
from rollmesh.spaces.space import Discrete

_logger = logging.getLogger(__name__)

_NO_ENV = EnvContract(
    id="-", observation_space=Discrete(n=1), action_space=Discrete(n=1), num_envs=1
)
"""Stands for the env's contract while everything else in a spec is checked."""


def evaluate(
    model: object,
    env: object = None,
    *,
    episodes: int | None = None,
    seeds: Iterable[int] | None = None,
    base_seed: int | None = None,
    options: Info | Sequence[Info | None] | None = None,
    num_envs: int | None = None,
    plan: PlanArgument = None,
    workers: Workers = None,
    run_dir: PathArgument = None,
    new: bool = False,
    accept_changes: bool = False,
    stop_when: str | None = None,
    max_errors: float | None = None,
    fleet: FleetSettings | None = None,
    execution_horizon: int | None = None,
    max_episode_steps: int | None = None,
    max_episode_seconds: float | None = None,
    hooks: object = (),
    limits: Limits | None = None,
    replan: Replan = "lane",
    on_error: OnError | None = None,
    conformance: Policy | Mapping[str, Policy] = "warn",
    cancel: CancelToken | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    command: Sequence[str] | None = None,
) -> EvalResult:
    """Run a model in an env for a number of episodes and return what came of it.

    Args:
        model: A callable `observation -> action`, a `Model`, a class of one, `"module:attribute"`,
            `"random"`, a Stable-Baselines3 file, the address of a served one, or a `RemoteModel`.
        env: A Gymnasium id, `"module:callable"`, a factory, an env, a vector env, the address of a
            served one, a `RemoteEnv`, or a list of these. What is built or connected here is closed
            here; an instance stays open. Left out where every task of a plan names its own.
        episodes: How many; `seeds` fixes it as well.
        seeds: One env seed an episode, in plan order: any ints of 0 or more, below 2**63 where env
            or model are served.
        base_seed: The number that episode seeds follow from, the same on every machine and for any
            `num_envs`. With neither, one is drawn and told as `result.plan_seed`.
        options: Reset options: one mapping for all episodes, or a list with one (or None) each.
        num_envs: How many envs to build from a factory and run side by side; never more than there
            are episodes.
        plan: A `Plan`, or the file of one (JSON, TOML, YAML, Python), in place of `episodes`,
            `seeds`, `base_seed` and `options`.
        workers: How many env processes, or `"auto"` for what the machine holds. The env is then
            named (an id, `module:callable`, a factory at the top of a module), or a list of such
            and of addresses. The model is asked for many lanes at once where it can be, on a
            thread of its own. A worker that dies or hangs is replaced, and its episode started
            again from its seed.
        run_dir: A folder to keep the run in: every episode is on disk before it counts, and the
            same call again runs only what is left.
        new: Moves what is in `run_dir` aside and starts over.
        accept_changes: Goes on with the run in `run_dir` though code, parameters or attributes of
            the model or env are others than in its earlier starts, which is refused else; noted in
            the folder. For a policy that was mended; plan, names and settings must be the same.
        stop_when: Ends the run once a question is answered, such as `"width<0.05"`; the rules, and
            why they do not fool you, are told in docs/statistics.md.
        max_errors: Ends the run once more episodes errored: a number, or a share of the planned
            ones below 1. None: no number does.
        fleet: How workers are run, beyond their number.
        execution_horizon: How many actions of a chunk are executed; None is all of them.
        max_episode_steps: Truncates an episode after so many steps.
        max_episode_seconds: Truncates an episode after so many seconds.
        hooks: A `Hooks` object, or a list of them.
        limits: How long each operation may take.
        replan: Whose queued actions an episode's end drops: `"lane"` or `"batch"`.
        on_error: `"raise"` ends the run at the first fault. `"continue"` is for faults of an env
            (it raises, exits, answers nonsense, or a reset or step hangs past its limit): the
            episodes that ran there are errored, and the env is built anew from its factory; an
            instance cannot be, so its fault ends the run. None is `"continue"` with workers, else
            `"raise"`. A model that raises or hangs ends the run under both, with workers too; what
            had ended is on the error, and a kept run (`run_dir`) goes on when started again.
        conformance: What happens to a value outside its space: `"warn"`, `"strict"`, `"off"`, or a
            mapping with one for `"env"` and one for `"model"`. Under `"warn"` each is told once,
            and the result counts such observations (`odd_observations`).
        cancel: A token that stops the run from another thread.
        env_kwargs: Keyword arguments for the env's id or factory.
        model_kwargs: Keyword arguments for the model's class or factory.
        command: The command line that this call stands for; kept in `run_dir`.

    Returns:
        The result; empty, with nothing built or called, for 0 episodes.

    Raises:
        InvalidSpec: An argument is wrong, or the env cannot do what is asked.
        RouteError: The run failed or was cancelled. `error.result` holds the episodes that had
            ended.
        RunError: `run_dir` holds another run, is in use by another process, or is damaged.
        JournalError: An episode could not be written down; what counted is on disk.

    Guarantees: N episodes asked means the N planned ones, in plan order in the result, whatever the
    width and however fast a lane is.
    """
    run_arguments = RunArguments(
        plan=plan,
        workers=workers,
        run_dir=run_dir,
        new=new,
        accept_changes=accept_changes,
        stop_when=stop_when,
        max_errors=max_errors,
        fleet=fleet,
        command=command,
    )
    described = {"episodes": episodes, "seeds": seeds, "base_seed": base_seed, "options": options}
    loose = _read_loose(plan, described, is_sent=is_served(env) or is_served(model))
    if on_error is None:
        on_error = "raise" if workers is None else "continue"
    width = optional_count("num_envs", num_envs)
    checked_limits = read_limits(limits)
    env_policy, model_policy = read_conformance(conformance)
    token = read_cancel(cancel)
    template = SessionSpec(
        env_contract=_NO_ENV,
        execution_horizon=optional_count("execution_horizon", execution_horizon),
        max_episode_steps=optional_count("max_episode_steps", max_episode_steps),
        max_episode_seconds=max_episode_seconds,
        replan=replan,
        on_error=on_error,
        limits=checked_limits,
    )
    opening = OpeningOptions(
        num_envs=width if width is None or loose is None else min(width, loose.count),
        env_kwargs=read_kwargs("env_kwargs", env_kwargs),
        model_kwargs=read_kwargs("model_kwargs", model_kwargs),
        env_conformance=env_policy,
        model_conformance=model_policy,
        limits=checked_limits,
        share_thread=on_error == "raise",
        execution_horizon=template.execution_horizon,
        cancel=token,
    )
    given_hooks = read_hooks(hooks)
    if loose is not None and loose.count == 0:
        return EvalResult(episodes=())
    if loose is None or run_arguments.is_wanted:
        run = plan_run(
            run_arguments, loose, model=model, env=env, template=template, opening=opening
        )
        return replace(run, hooks=given_hooks, cancel=token).run()
    run = _Run(
        plan=loose,
        template=template,
        hooks=given_hooks,
        cancel=token,
        conditions=_conditions(loose, env, settings_of(template, opening)),
        model_kwargs=written(opening.model_kwargs),
    )
    ids = RouteIds(session_id=template.session_id, env_id=template.env_id)
    return run.over(Endpoints(model, env, ids=ids, options=opening, hooks=given_hooks))


def _read_loose(
    plan: PlanArgument, described: Mapping[str, Any], *, is_sent: bool
) -> EpisodePlan | None:
    """Return the episodes that arguments describe, or None where there is a plan in their place.

    Args:
        plan: The plan, or None.
        described: `episodes`, `seeds`, `base_seed` and `options`, as they were given.
        is_sent: Whether seeds go to a server.
    """
    if plan is None:
        loose = read_plan(**described)
        if is_sent:
            check_sendable(loose.seeds)
        return loose
    for name, value in described.items():
        if value is not None:
            raise InvalidSpec(name, "contradicts plan, which says which episodes there are")
    return None


def _conditions(loose: EpisodePlan, env: object, settings: dict[str, Any]) -> Conditions:
    """Return what episodes are played under; without options where these have no JSON form."""
    tasks: list[dict[str, Any]] = []
    if loose.options is None:
        tasks = [{"name": ""}]
    else:
        with contextlib.suppress(InvalidSpec, RecursionError):  # of one that holds itself
            plan = Plan(tasks=(Task(episodes=loose.count, options=loose.options),))
            tasks = plan.to_dict()["tasks"]
    return Conditions.of(env=name_of(env), settings=settings, tasks=tasks)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One evaluation whose arguments are good."""

    plan: EpisodePlan
    template: SessionSpec
    hooks: tuple[object, ...]
    cancel: CancelToken
    conditions: Conditions | None
    model_kwargs: Mapping[str, str]

    def over(self, endpoints: Endpoints) -> EvalResult:
        """Open the endpoints, drive the route, and return the result."""
        try:
            with endpoints:
                return self._drive(endpoints)
        except RouteError as error:
            if error.result is None and not isinstance(error, InvalidSpec):
                error.result = self._result(None, endpoints, stopped=why_stopped(error))
            raise

    def _drive(self, endpoints: Endpoints) -> EvalResult:
        port = endpoints.env
        spec = replace(
            self.template,
            env_contract=port.contract,
            num_envs=port.contract.num_envs,
            env_component=endpoints.env_component,
            model_component=endpoints.model_component,
            close_env_on_end=endpoints.owns_env,
            max_episodes=self.plan.count,
            episode_options=self.plan.options,
        )
        spec, plan_seed = self._with_seeds(spec, frozenset(port.capabilities))
        driver = RouteDriver(spec, port, endpoints.model, hooks=self.hooks)
        spec.check_capabilities(frozenset(port.capabilities))
        self._tell_plan_seed(spec, plan_seed)
        endpoints.hand_over()
        started_ns = SYSTEM_CLOCK.monotonic_ns()
        try:
            report = driver.run(self.cancel)
        except RouteError as error:
            tell_way_out(error, on_error=spec.on_error, is_kept=False)
            error.result = self._result(
                error.report,
                endpoints,
                plan_seed=plan_seed,
                width=spec.width,
                elapsed_s=(SYSTEM_CLOCK.monotonic_ns() - started_ns) / 1e9,
                stopped=why_stopped(error),
            )
            raise
        short = report.total_episodes < self.plan.count
        return self._result(
            report,
            endpoints,
            plan_seed=plan_seed,
            width=spec.width,
            elapsed_s=(SYSTEM_CLOCK.monotonic_ns() - started_ns) / 1e9,
            stopped=(self.cancel.drain_reason or DRAINED) if short else None,
        )

    def _with_seeds(
        self, spec: SessionSpec, capabilities: frozenset[str]
    ) -> tuple[SessionSpec, int | None]:
        """Return the spec with the plan's seeds, and the number they follow from, if any."""
        plan = self.plan
        if plan.seeds is not None:
            spec = replace(spec, episode_seeds=plan.seeds)
            self._refuse_unowned(spec, capabilities)
            return spec, None
        plan_seed = plan.base_seed
        if plan_seed is None:
            plan_seed = secrets.randbelow(DRAWN_SEEDS)
        seeded = replace(spec, episode_seeds=derived_seeds(plan_seed, plan.count))
        if seeded.owns_resets(capabilities):
            return seeded, plan_seed
        self._refuse_unowned(spec, capabilities)
        _logger.warning(
            "no_seeds_sent env=%s: a %s env resets itself, so its episodes are not seeded and the "
            "result cannot be repeated; %s",
            spec.env_component,
            spec.autoreset_mode.name,
            OWNED_RESETS_CURE,
        )
        return spec, None

    def _refuse_unowned(self, spec: SessionSpec, capabilities: frozenset[str]) -> None:
        """Refuse a plan that only holds where the runtime owns resets, by its argument's name."""
        if spec.owns_resets(capabilities) or spec.autoreset_mode is AutoresetMode.DISABLED:
            return
        asked = {
            "seeds": self.plan.seeds,
            "base_seed": self.plan.base_seed,
            "options": self.plan.options,
            "max_episode_steps": spec.max_episode_steps,
            "max_episode_seconds": spec.max_episode_seconds,
        }
        for name, value in asked.items():
            if value is not None:
                raise InvalidSpec(
                    name,
                    f"needs an env whose episodes rollmesh starts itself, but this one has "
                    f"autoreset mode {spec.autoreset_mode.name} and resets itself; "
                    f"{OWNED_RESETS_CURE}",
                )

    def _tell_plan_seed(self, spec: SessionSpec, plan_seed: int | None) -> None:
        if plan_seed is not None:
            message = seed_message(plan_seed, is_drawn=self.plan.base_seed is None)
            route = events.Route(spec.env_id, spec.env_component, spec.model_component)
            say(message, self.hooks, session_id=spec.session_id, route=route)

    def _result(
        self,
        report: RouteReport | None,
        endpoints: Endpoints,
        *,
        stopped: str | None,
        plan_seed: int | None = None,
        width: int = 1,
        elapsed_s: float = 0.0,
    ) -> EvalResult:
        ended = () if report is None else report.episodes
        return EvalResult(
            episodes=tuple([EpisodeResult.from_summary(one) for one in ended]),
            telemetry=None if report is None else report.telemetry,
            plan_seed=plan_seed,
            env=endpoints.env_component,
            model=endpoints.model_component,
            num_envs=width,
            planned=self.plan.count,
            elapsed_s=elapsed_s,
            stopped=stopped,
            conditions=self.conditions,
            model_kwargs=self.model_kwargs,
        )
