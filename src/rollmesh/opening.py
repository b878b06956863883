"""Opens the two endpoints of a route, and closes those it built if the route never ran (layer 8).

What was built here is closed here or by the route's terminal shutdown; an instance the caller gave
stays open.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rollmesh import events
from rollmesh.arguments import with_order
from rollmesh.endpoint.clients.env_client import HasEnvPort
from rollmesh.endpoint.clients.model_client import HasModelAddress
from rollmesh.endpoint.clients.model_route import ModelRoute
from rollmesh.endpoint.envs.contracts import is_env
from rollmesh.endpoint.envs.env_loading import open_env
from rollmesh.endpoint.envs.hosted_env import end_unwaited, leave
from rollmesh.endpoint.faults import refusal_of
from rollmesh.endpoint.models.batched import Batching, batched
from rollmesh.endpoint.models.batching import BatchingModel
from rollmesh.endpoint.models.model_loading import open_model
from rollmesh.endpoint.models.policy import ThreadedModel
from rollmesh.endpoint.models.replicated import Replicas, is_several
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.endpoint.targets import is_address
from rollmesh.errors import EndpointFault, EnvFailed, InvalidSpec, ModelFailed, RouteCancelled
from rollmesh.fleet.plan import Task
from rollmesh.fleet.settings import FleetSettings
from rollmesh.ids import MINT
from rollmesh.limits import Limits
from rollmesh.ports import (
    SUBSET_STEP,
    AdapterContext,
    EnvContract,
    EnvPort,
    ModelPort,
    ReleaseAdapterRequest,
)
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.hooks import Dispatcher
from rollmesh.spaces.conformance import Policy

if TYPE_CHECKING:
    from typing_extensions import Self

    from rollmesh.fleet.worker_spec import EnvTarget

_logger = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class OpeningOptions:
    """How endpoints are opened.

    Attributes:
        num_envs: Lanes to build from a factory, or None for what the env has.
        env_kwargs: Keyword arguments of the env's factory.
        model_kwargs: Keyword arguments of the model's class or factory.
        env_conformance: What happens to env values outside their space.
        model_conformance: The same for actions.
        limits: Bound building, loading and closing.
        share_thread: Whether an env and a model built here may live on one thread: the loop then
            runs there without a handover a step. Only where an env is never rebuilt.
        fleet: Has worker processes run the env; None runs it here.
        batching: Has the lanes' requests put together, where the model takes several; None asks
            for each alone.
        execution_horizon: How many actions of a chunk are executed, for a served model to know.
        cancel: Ends connecting.
    """

    num_envs: int | None
    env_kwargs: Mapping[str, Any] | None
    model_kwargs: Mapping[str, Any] | None
    env_conformance: Policy
    model_conformance: Policy
    limits: Limits
    share_thread: bool
    fleet: FleetOpening | None = None
    batching: Batching | None = None
    execution_horizon: int | None = None
    cancel: CancelToken | None = None


@dataclass(frozen=True, kw_only=True)
class FleetOpening:
    """An env that is to be run by worker processes.

    Attributes:
        workers: How many.
        settings: How they are run.
        setups: What lanes may have to hold, by name.
    """

    workers: int
    settings: FleetSettings
    setups: Mapping[str, Task]

    def targets(
        self, named: Sequence[Any], env_kwargs: Mapping[str, Any] | None
    ) -> dict[str, EnvTarget]:
        """Return what builds the env of each setup: the task's own, or the run's.

        Raises:
            InvalidSpec: One cannot be found by name from another process, or there are several
                envs and nothing says which is meant.
        """
        from rollmesh.fleet.worker_spec import EnvTarget

        if len(named) > 1:
            raise InvalidSpec(
                "env",
                f"names {len(named)} envs for the workers; name one, or give a plan whose tasks "
                "name their own",
            )
        targets: dict[str, EnvTarget] = {}
        for name, task in self.setups.items():
            env = task.env if task.env is not None else next(iter(named), None)
            if env is not None:
                if is_address(env):
                    raise _served_in_a_task(task)
                kwargs = {**(env_kwargs or {}), **task.env_kwargs}
                targets[name] = EnvTarget.of(env, kwargs)
        return targets


@dataclass(frozen=True, kw_only=True)
class RouteIds:
    """Who meets whom, in events and errors.

    Attributes:
        session_id: The session.
        env_id: The attachment.
    """

    session_id: str = field(default_factory=MINT.mint)
    env_id: str = field(default_factory=MINT.mint)


class Endpoints:
    """An env and a model, opened in that order; a context manager.

    Leaving it closes what was built here unless a route has taken over (`hand_over`), and ends the
    shared thread.
    """

    def __init__(
        self,
        model: object,
        env: object,
        *,
        ids: RouteIds,
        options: OpeningOptions,
        hooks: Sequence[object],
    ) -> None:
        self._model = model
        self._env = env
        self._ids = ids
        self._options = options
        self._dispatcher = Dispatcher(hooks)
        self._thread: OwnThread | None = None
        self._env_port: EnvPort | None = None
        self._model_port: ModelPort | None = None
        self._handed_over = False
        self._batcher: BatchingModel | None = None
        self._batched_on: OwnThread | None = None  # the model's, which the batcher was lent
        self.width = 1
        tasks = [] if options.fleet is None else list(options.fleet.setups.values())
        envs: list[object] = [task.env or env for task in tasks] or [env]
        self._env_names = tuple(dict.fromkeys(map(name_of, envs)))
        self.env_component = ", ".join(self._env_names)
        self.model_component = name_of(model)
        self.owns_env = not is_given_env(env)

    @property
    def env(self) -> EnvPort:
        """The env port."""
        assert self._env_port is not None  # noqa: S101 - set by __enter__
        return self._env_port

    @property
    def model(self) -> ModelPort:
        """The model port."""
        assert self._model_port is not None  # noqa: S101 - set by __enter__
        return self._model_port

    def __enter__(self) -> Self:
        try:
            self._open()
        except InvalidSpec as error:
            self.close("opening failed")
            raise with_order(error, self._model, self._env) from error.__cause__
        except BaseException:
            self.close("opening failed")
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close("done")

    def hand_over(self) -> None:
        """Leave closing to the route, which runs now."""
        self._handed_over = True

    def close(self, reason: str) -> None:
        """Close what was built here and not handed over; never raises."""
        close_s = self._options.limits.close_s
        env, model = self._env_port, self._model_port
        self._env_port = self._model_port = None
        if not self._handed_over:
            if model is not None:
                nobody = AdapterContext(self._ids.session_id, self._ids.env_id, "release")
                request = ReleaseAdapterRequest(nobody, reason, close_s)
                self._quietly("model", lambda: model.release_adapter(request))
            if env is not None and self.owns_env:
                self._quietly("env", lambda: env.close(close_s))
        # a call that was left behind may hold the connection of an endpoint that is served
        leave(model)
        if self.owns_env:
            leave(env)
        if self._batcher is not None:
            self._batcher.close()
        if self._batched_on is not None:
            self._batched_on.stop()
        if self._thread is not None:
            self._thread.stop()

    def let_go(self) -> None:
        """Have what was built here closed on its own thread, and wait for nothing.

        For a session that nobody closed; what lives on its caller's thread gets no call.
        """
        _logger.warning(
            "session_never_closed session_id=%s: what was built for it is closed now; write "
            "`with Session(...) as session`, or call close()",
            self._ids.session_id,
        )
        close_s = self._options.limits.close_s
        nobody = AdapterContext(self._ids.session_id, self._ids.env_id, "release")
        release = ReleaseAdapterRequest(nobody, "never closed", close_s)
        end_unwaited(self._model_port, "release_adapter", release)
        end_unwaited(self._env_port if self.owns_env else None, "close", close_s)

    # ----------------------------------------------------------------------------- opening

    def _open(self) -> None:
        options = self._options
        if options.share_thread and self.owns_env and options.num_envs in (None, 1):
            self._thread = OwnThread("rollmesh-route")
        try:
            env = self._open_env()
        except EndpointFault as fault:
            raise self._failed(EnvFailed, fault, self.env_component, "env.connect") from fault
        self._env_port = env
        self.width = env.contract.num_envs
        if len(self._env_names) == 1:
            self.env_component = env.contract.id or self.env_component
        route = events.Route(self._ids.env_id, self.env_component, self.model_component)
        if self._dispatcher.env_connected is not None:
            self._dispatcher.env_connected(
                events.EnvConnected(session_id=self._ids.session_id, route=route)
            )
        try:
            self._model_port = self._open_model(env)
        except EndpointFault as fault:
            raise self._failed(ModelFailed, fault, self.model_component, "model.connect") from fault
        self._batch(env.contract)
        if self._dispatcher.model_connected is not None:
            self._dispatcher.model_connected(
                events.ModelConnected(session_id=self._ids.session_id, route=route)
            )

    def _open_model(self, env: EnvPort) -> ModelPort:
        options, fleet = self._options, self._options.fleet
        route = self._model_route(env)
        processes = None if fleet is None else fleet.settings.model_workers
        if processes is not None or is_several(self._model):
            return Replicas(
                processes=processes,
                model_kwargs=options.model_kwargs,
                conformance=options.model_conformance,
                batching=options.batching,
                limits=options.limits,
                cancel=options.cancel,
            ).open(self._model, route)
        return open_model(
            self._model,
            observation_space=env.contract.observation_space,
            action_space=env.contract.action_space,
            conformance=options.model_conformance,
            report=None,
            limits=options.limits,
            thread=self._thread,
            model_kwargs=options.model_kwargs,
            route=route,
            cancel=options.cancel,
        )

    def _open_env(self) -> EnvPort:
        options = self._options
        if options.fleet is not None:
            return self._open_fleet(options.fleet)
        return open_env(
            self._env,
            num_envs=options.num_envs,
            env_kwargs=options.env_kwargs,
            conformance=options.env_conformance,
            report=None,
            limits=options.limits,
            thread=self._thread,
            cancel=options.cancel,
            servers=self._servers(),
        )

    def _open_fleet(self, opening: FleetOpening) -> EnvPort:
        from rollmesh.fleet.lanes import FleetEnvs
        from rollmesh.fleet.worker_options import WorkerOptions

        options, settings = self._options, opening.settings
        load_s = options.limits.env_connect_s
        fleet = WorkerOptions(
            start_s=None if load_s is None else max(load_s, WorkerOptions.start_s or load_s),
            load_s=load_s,
            close_s=options.limits.close_s,
            starts_at_once=settings.starts_at_once,
            threads=settings.threads,
            pin=settings.pin,
            conformance=options.env_conformance,
        )
        places = _places(self._env)
        named = [place for place in places if not is_address(place)]
        addresses = [place for place in places if is_address(place)]
        return FleetEnvs.open(
            opening.targets(named, options.env_kwargs),
            workers=0 if addresses and not named else opening.workers,
            lanes_per_worker=settings.lanes_per_worker,
            addresses=addresses,
            options=fleet,
            tell=self._worker_changed,
        )

    def _batch(self, contract: EnvContract) -> None:
        """Put a batcher in front of the model, where it is wanted and does anything."""
        batching, model = self._options.batching, self._model_port
        if batching is None or model is None or contract.num_envs == 1:
            return
        port = batched(
            model,
            batching,
            observation_space=contract.observation_space,
            action_space=contract.action_space,
        )
        if isinstance(port, BatchingModel):
            self._model_port = self._batcher = port
            if isinstance(model, ThreadedModel) and model.thread is not self._thread:
                self._batched_on = model.thread

    def _worker_changed(self, worker: int, state: str, detail: str, pid: int | None) -> None:
        if emit := self._dispatcher.on_worker_changed:
            route = events.Route(self._ids.env_id, self.env_component, self.model_component)
            emit(
                events.WorkerChanged(
                    session_id=self._ids.session_id,
                    route=route,
                    worker=worker,
                    state=state,
                    detail=detail,
                    pid=pid,
                )
            )

    def _model_route(self, env: EnvPort) -> ModelRoute:
        contract = env.contract
        return ModelRoute(
            contract=contract,
            session_id=self._ids.session_id,
            env_id=self._ids.env_id,
            execution_horizon=self._options.execution_horizon,
            is_shared=contract.num_envs > 1 and SUBSET_STEP in env.capabilities,
            servers=self._servers(),
        )

    def _servers(self) -> int:
        """Return how many servers the loop asks in turn; a fleet's envs go on side by side."""
        if self._options.fleet is not None:
            return 1
        served = filter(is_served, (*_places(self._env), self._model))
        return max(1, len({one if isinstance(one, str) else id(one) for one in served}))

    def _failed(
        self,
        kind: type[EnvFailed | ModelFailed],
        fault: EndpointFault,
        component: str,
        operation: str,
    ) -> EnvFailed | ModelFailed | RouteCancelled | InvalidSpec:
        cancel = self._options.cancel
        if cancel is not None and cancel.reason is not None:
            return RouteCancelled(cancel.reason, route=self._ids.env_id, operation=operation)
        if kind is ModelFailed or self._options.fleet is not None:
            # a worker refused what was asked for, or a model the env that it was told of
            refusal = refusal_of(fault, "env" if kind is EnvFailed else "model")
            if refusal is not None:
                return refusal
        if is_served(self._env if kind is EnvFailed else self._model):
            what = "connecting to it"
        else:
            what = "building it" if kind is EnvFailed else "building or loading it"
        message = f"{component}: {what} failed: {fault.error_class}: {fault.detail}"
        if fault.traceback_text:
            message += f"\n\n{fault.traceback_text}"
        return kind(
            message,
            fault=fault,
            route=self._ids.env_id,
            component=component,
            operation=operation,
        )

    @staticmethod
    def _quietly(what: str, close: Any) -> None:
        try:
            close()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - another error is on its way
            _logger.warning("close_failed endpoint=%s error=%r", what, error)


def is_served(target: object) -> bool:
    """Return whether an env or model argument is one that some server has."""
    if isinstance(target, (list, tuple)):
        return any(is_served(one) for one in cast("Sequence[object]", target))
    return is_address(target) or isinstance(target, (HasEnvPort, HasModelAddress))


def _places(env: object) -> list[Any]:
    """Return where a fleet's lanes are to come from: names, factories, addresses."""
    if env is None:
        return []
    return list(cast("Sequence[Any]", env)) if isinstance(env, (list, tuple)) else [env]


def _served_in_a_task(task: Task) -> InvalidSpec:
    return InvalidSpec(
        "env",
        f"of task {task.name!r}: {task.env} is the address of a served env, and the env of a task "
        "is built here; leave it out of the tasks and give the address as the env of the run",
    )


def is_given_env(env: object) -> bool:
    """Return whether an env argument is an instance that stays its owner's.

    A list is not: its lanes' threads are made here and ended here (instances in it stay open).
    """
    return not isinstance(env, (list, tuple)) and is_env(env)


def name_of(target: Any) -> str:
    """Return what errors and results call an env or a model."""
    if isinstance(target, str):
        return target
    if isinstance(target, HasModelAddress):
        return target.address
    if isinstance(target, (list, tuple)) and target:
        return name_of(cast("Sequence[object]", target)[0])
    return _own_name(cast("object", target))


def _own_name(target: object) -> str:
    spec = getattr(target, "spec", None)
    for name in (getattr(spec, "id", None), getattr(target, "__qualname__", None)):
        if isinstance(name, str) and name:
            return name
    return type(target).__name__


def model_identity(model: object) -> str:
    """Return what tells a model from another one: its name, and the content of a file."""
    is_named = isinstance(model, (str, os.PathLike))
    path = Path(cast("str | os.PathLike[str]", model)) if is_named else None
    if path is None or not path.is_file():
        return name_of(model)
    digest = hashlib.blake2b(digest_size=8)
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
    return f"{path.name} ({digest.hexdigest()})"
