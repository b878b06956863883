"""How many workers, and how large a batch: measured before a run, not guessed (layer 8).

    tuned = tune("policy:Policy", "sim:make", options=TuningOptions(settings=FleetSettings()))
    print(tuned.table())
    evaluate("policy:Policy", "sim:make", workers=tuned.workers, fleet=tuned.settings, ...)

Two curves are measured, one after the other: steps/s of 1, 2, 4, … workers that act at random
without the model, and what a call of the model costs with 1, 2, 4, … rows. From these
`fleet.sizing.choose` predicts what each combination would give, and takes the smallest that gives
nearly the most.

A model that is built here is built again for the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from rollmesh.endpoint.clients.model_route import ModelRoute
from rollmesh.endpoint.models.model_loading import open_model
from rollmesh.endpoint.models.random_policy import sampler
from rollmesh.endpoint.targets import is_address
from rollmesh.errors import EndpointFault, InvalidSpec, PortTimeout
from rollmesh.fleet.lanes import FleetEnvs
from rollmesh.fleet.machine import WORKER_BYTES, available_bytes
from rollmesh.fleet.plan import Task
from rollmesh.fleet.settings import FleetSettings
from rollmesh.fleet.sizing import CallPoint, Choice, SupplyPoint, choose
from rollmesh.fleet.worker_options import WorkerOptions
from rollmesh.fleet.worker_spec import EnvTarget
from rollmesh.ids import MINT
from rollmesh.limits import Limits
from rollmesh.ports import (
    AdapterContext,
    EnvContract,
    EpisodeInfo,
    ModelPort,
    PredictReply,
    PredictRequest,
    PrepareRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
    ResetRequest,
    StepRequest,
)
from rollmesh.spaces.codec import Leaves

_logger = logging.getLogger(__name__)

BUDGET_S = 60.0
"""How long all measurements may take together."""
MOST_WORKERS = 64
_GROWS = 1.1
"""Doubling the workers must give so much more for the doubling to be tried once more."""
POINT_S = 2.0
"""How long each point of a curve is measured, at most."""
_LEAST_CALLS, _MOST_CALLS = 3, 50
_SAMPLES = 64
_STALL_S = 30.0
_WAIT_S = 0.05


@dataclass(frozen=True, kw_only=True)
class TuningOptions:
    """What is measured, and for how long.

    Attributes:
        settings: The fleet's; `max_batch` is the most rows that are tried.
        task: The task whose env is measured; None is the run's env.
        most_workers: Workers tried at most; None: what the memory holds, and 64.
        env_kwargs: Keyword arguments of the env's factory.
        model_kwargs: Keyword arguments of the model's class or factory.
        limits: Bound building and loading.
        execution_horizon: How many actions of a chunk are executed; None is all.
        budget_s: How long all measurements may take together, in seconds.
        point_s: How long each point of a curve is measured, at most.
    """

    settings: FleetSettings = field(default_factory=FleetSettings)
    task: Task | None = None
    most_workers: int | None = None
    env_kwargs: Mapping[str, Any] | None = None
    model_kwargs: Mapping[str, Any] | None = None
    limits: Limits = field(default_factory=Limits)
    execution_horizon: int | None = None
    budget_s: float = BUDGET_S
    point_s: float = POINT_S


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What was measured and chosen.

    Attributes:
        supply: Env steps per second, by workers.
        calls: Costs of a call of the model, by rows.
        choice: What to run with.
        settings: The fleet's settings with the batch size chosen.
    """

    supply: tuple[SupplyPoint, ...]
    calls: tuple[CallPoint, ...]
    choice: Choice
    settings: FleetSettings

    @property
    def workers(self) -> int:
        """How many workers to run with."""
        return self.choice.workers

    def table(self) -> str:
        """Return both curves and the choice as text for people."""
        first = self.supply[0]
        lines = ["  workers   env steps/s   of one"]
        for point in self.supply:
            share = point.steps_per_s * first.workers / first.steps_per_s
            mark = "  <" if point.workers == self.choice.workers else ""
            lines.append(f"{point.workers:9d}{point.steps_per_s:14,.0f}{share:8.1f}x{mark}")
        lines += ["", "     rows   ms a call    rows/s"]
        for call in self.calls:
            mark = "  <" if call.rows == self.choice.max_batch else ""
            lines.append(f"{call.rows:9d}{call.call_s * 1e3:12.2f}{call.rows_per_s:10,.0f}{mark}")
        return "\n".join([*lines, "", self.choice.reason])


def tune(model: object, env: object, *, options: TuningOptions) -> Tuning:
    """Measure workers and model, and choose how many and how large.

    Args:
        model: As `evaluate` takes it.
        env: What workers build: an id, `module:callable`, a factory at the top of a module; None
            where the task of the options names its own.
        options: What is measured, and for how long.

    Raises:
        InvalidSpec: The env is none that workers could build, or an argument is wrong.
        EndpointFault: Building, loading, a step or a call failed.
        PortTimeout: Something did not come back.
    """
    target = _target(env, options)
    ends_s = time.monotonic() + options.budget_s
    settings = options.settings
    fleet = FleetEnvs.open(
        {"": target},
        workers=options.most_workers or _most_workers(),
        lanes_per_worker=settings.lanes_per_worker,
        options=WorkerOptions(
            load_s=options.limits.env_connect_s,
            close_s=options.limits.close_s,
            starts_at_once=settings.starts_at_once,
            threads=settings.threads,
            pin=settings.pin,
        ),
    )
    try:
        meter = SupplyMeter(fleet, settings.lanes_per_worker)
        half_s = time.monotonic() + (ends_s - time.monotonic()) / 2
        supply = measure_supply(meter, half_s, options.point_s)
    finally:
        _close(fleet, options.limits.close_s)
    contract = replace(fleet.contract, num_envs=1)
    calls, frames = _measure_model(model, contract, meter.samples, options, ends_s)
    choice = choose(supply, calls, lanes_per_worker=settings.lanes_per_worker, frames=frames)
    return Tuning(
        supply=supply,
        calls=calls,
        choice=choice,
        settings=replace(settings, max_batch=choice.max_batch),
    )


def _close(fleet: FleetEnvs, limit_s: float | None) -> None:
    """Close a fleet; an env that raises then has spoiled nothing."""
    try:
        fleet.close(limit_s)
    except EndpointFault as fault:
        _logger.warning("close_failed error=%s", fault)


# ------------------------------------------------------------------------------ the envs' side


class SupplyMeter:
    """Steps the first lanes of a fleet at random as fast as they answer, and counts.

    Attributes:
        samples: A few of the observations that came, each a batch of one row.
    """

    def __init__(self, fleet: FleetEnvs, lanes_per_worker: int) -> None:
        self.samples: list[Leaves] = []
        self.most_workers = fleet.contract.num_envs // lanes_per_worker
        self._fleet = fleet
        self._lanes_per_worker = lanes_per_worker
        self._codec = fleet.contract.observation_space.codec
        action_space = fleet.contract.action_space
        sample, generator = sampler(action_space), np.random.default_rng(0)
        self._actions = [action_space.codec.encode(sample(generator)) for _ in range(_SAMPLES)]
        self._is_ready = [False] * fleet.contract.num_envs
        self._steps = 0
        self._busy = 0
        self._seed = 0
        self._is_stopping = False
        self._fault: BaseException | None = None

    def rate(self, workers: int, seconds: float) -> float:
        """Return the steps per second of so many workers.

        Raises:
            EndpointFault: One of them failed.
            PortTimeout: One of them did not come back.
        """
        lanes = range(workers * self._lanes_per_worker)
        self._each([lane for lane in lanes if not self._is_ready[lane]], self._prepare)
        self._is_stopping = False
        for lane in lanes:
            self._busy += 1
            self._reset(lane)
        self._turn(seconds * 0.2)  # all have been reset, and caches are warm
        self._steps, begun_s = 0, time.monotonic()
        self._turn(seconds)
        rate = self._steps / (time.monotonic() - begun_s)
        self._is_stopping = True
        self._settle()
        return rate

    def _each(self, lanes: Sequence[int], begin: Callable[[int], None]) -> None:
        self._busy += len(lanes)
        for lane in lanes:
            begin(lane)
        self._settle(patience_s=None)  # the fleet bounds starting and building itself

    def _prepare(self, lane: int) -> None:
        def done() -> None:
            self._is_ready[lane] = True
            self._busy -= 1

        self._ask("prepare", PrepareRequest((lane,), ""), lane, lambda _: done())

    def _reset(self, lane: int) -> None:
        self._seed += 1
        request = ResetRequest(episode_ids=(MINT.mint(),), seeds=(self._seed,), env_indices=(lane,))
        episode_id = request.episode_ids[0]
        self._ask("reset", request, lane, lambda reply: self._step(lane, episode_id, reply))

    def _step(self, lane: int, episode_id: str, reply: Any) -> None:
        if len(self.samples) < _SAMPLES:
            copied = self._codec.to_buffers(reply.observation)
            self.samples.append(self._codec.from_buffers([bytes(one) for one in copied], 1))
        if self._is_stopping:
            self._busy -= 1
            return
        action = self._actions[(self._steps + lane) % len(self._actions)]
        request = StepRequest(action=action, episode_ids=(episode_id,), env_indices=(lane,))
        self._ask("step", request, lane, lambda reply: self._stepped(lane, episode_id, reply))

    def _stepped(self, lane: int, episode_id: str, reply: Any) -> None:
        self._steps += 1
        if reply.completions and not self._is_stopping:
            self._reset(lane)
        else:
            self._step(lane, episode_id, reply)

    def _ask(self, method: str, request: Any, lane: int, then: Callable[[Any], None]) -> None:
        def landed(result: Any) -> None:
            if isinstance(result, BaseException):
                self._fault = self._fault or result
                self._busy -= 1
            else:
                then(result)

        self._fleet.submit(method, request, landed, (lane,))

    def _turn(self, seconds: float) -> None:
        """Let the lanes step for so long."""
        ends_s = time.monotonic() + seconds
        while (left_s := ends_s - time.monotonic()) > 0:
            self._fleet.wait(min(left_s, _WAIT_S))
            if self._fault is not None:
                raise self._fault

    def _settle(self, patience_s: float | None = _STALL_S) -> None:
        """Wait until nothing is under way."""
        ends_s = None if patience_s is None else time.monotonic() + patience_s
        while self._busy:
            if self._fault is not None:
                raise self._fault
            if ends_s is not None and time.monotonic() > ends_s:
                raise PortTimeout(
                    f"a step did not come back within {patience_s:g} s, and cannot be measured; "
                    "run without --tune, and give workers and max_batch"
                )
            self._fleet.wait(_WAIT_S)
        if self._fault is not None:
            raise self._fault


def measure_supply(meter: SupplyMeter, ends_s: float, point_s: float) -> tuple[SupplyPoint, ...]:
    """Return the steps per second of 1, 2, 4, … workers while that grows and there is time."""
    points: list[SupplyPoint] = []
    workers = 1
    while True:
        begun_s = time.monotonic()
        left_s = max(0.1, ends_s - begun_s)
        rate = meter.rate(workers, min(point_s, left_s / 3))
        points.append(SupplyPoint(workers=workers, steps_per_s=rate))
        took_s = time.monotonic() - begun_s
        if workers >= meter.most_workers or time.monotonic() + 2 * took_s > ends_s:
            break
        if len(points) > 1 and rate < _GROWS * points[-2].steps_per_s:
            break
        workers = min(2 * workers, meter.most_workers)
    return tuple(points)


def _most_workers() -> int:
    """Return how many workers the memory holds: envs that wait may be more than there are cores."""
    free = available_bytes()
    return MOST_WORKERS if free is None else max(1, min(MOST_WORKERS, free // WORKER_BYTES))


def _target(env: object, options: TuningOptions) -> EnvTarget:
    task = options.task
    named: Any = env if task is None or task.env is None else task.env
    places = list(cast("Sequence[Any]", named)) if isinstance(named, (list, tuple)) else [named]
    if len(places) != 1 or places[0] is None or is_address(places[0]):
        raise InvalidSpec(
            "tune", "measures an env that workers build: give one id, module:callable or factory"
        )
    own: Mapping[str, Any] = {} if task is None else task.env_kwargs
    return EnvTarget.of(places[0], {**(options.env_kwargs or {}), **own})


# ----------------------------------------------------------------------------- the model's side


def _measure_model(
    model: object,
    contract: EnvContract,
    samples: Sequence[Leaves],
    options: TuningOptions,
    ends_s: float,
) -> tuple[tuple[CallPoint, ...], int]:
    """Return what calls cost, and how many actions of one are executed."""
    route = ModelRoute(contract=contract, session_id=MINT.mint(), env_id=MINT.mint())
    port = open_model(
        model,
        observation_space=contract.observation_space,
        action_space=contract.action_space,
        limits=options.limits,
        model_kwargs=options.model_kwargs,
        route=route,
    )
    meter = CallMeter(port, contract, samples, route)
    try:
        points = measure_calls(meter, options, ends_s)
    finally:
        meter.release(options.limits.close_s)
    frames = min(meter.frames, options.execution_horizon or meter.frames)
    return points, frames


class CallMeter:
    """Calls a model with batches of observations, and times it.

    Attributes:
        frames: Actions a call gives.
    """

    def __init__(
        self,
        port: ModelPort,
        contract: EnvContract,
        samples: Sequence[Leaves],
        route: ModelRoute,
    ) -> None:
        self.frames = 1
        self._port = port
        self._codec = contract.observation_space.codec
        self._samples = samples
        self._route = route
        self._ids: list[str] = []
        self._calls = 0

    def call_s(self, rows: int, ends_s: float) -> float:
        """Return the median time of calls with so many rows, after one that does not count."""
        while len(self._ids) < rows:
            self._ids.append(MINT.mint())
        infos = tuple([EpisodeInfo(one, k) for k, one in enumerate(self._ids[:rows])])
        samples = self._samples
        batch = self._codec.gather([(samples[k % len(samples)], 0) for k in range(rows)])
        self._call(batch, infos)
        times: list[float] = []
        while len(times) < _LEAST_CALLS or (len(times) < _MOST_CALLS and time.monotonic() < ends_s):
            begun_s = time.perf_counter()
            self._call(batch, infos)
            times.append(time.perf_counter() - begun_s)
        return float(np.median(times))

    def release(self, timeout_s: float | None) -> None:
        """Have the model forget all of it."""
        if self._ids:
            self._port.reset_adapter(ResetAdapterRequest(self._context(), tuple(self._ids)))
        self._port.release_adapter(ReleaseAdapterRequest(self._context(), "measured", timeout_s))

    def _call(self, batch: Leaves, infos: tuple[EpisodeInfo, ...]) -> None:
        request = PredictRequest(context=self._context(), observation=batch, episode_info=infos)
        reply: PredictReply = self._port.predict(request)
        self.frames = len(reply.frames)

    def _context(self) -> AdapterContext:
        self._calls += 1
        route = self._route
        request_id = f"{route.env_id}:tune:{self._calls:06d}"
        return AdapterContext(route.session_id, route.env_id, request_id)


def measure_calls(meter: CallMeter, options: TuningOptions, ends_s: float) -> tuple[CallPoint, ...]:
    """Return the costs of calls with 1, 2, 4, … rows, as many sizes as there is time for."""
    points: list[CallPoint] = []
    rows, max_batch = 1, options.settings.max_batch
    while True:
        call_s = meter.call_s(rows, min(ends_s, time.monotonic() + options.point_s / 2))
        points.append(CallPoint(rows=rows, call_s=max(call_s, 1e-9)))
        another_s = 2 * call_s * (_LEAST_CALLS + 1)
        if rows >= max_batch or time.monotonic() + another_s > ends_s:
            return tuple(points)
        rows = min(2 * rows, max_batch)
