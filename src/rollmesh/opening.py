"""Opens the two endpoints of a route, and closes those it built if the route never ran (layer 8).

What was built here is closed here or by the route's terminal shutdown; an instance the caller gave
stays open.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollmesh import events
from rollmesh.endpoint.clients.env_client import HasEnvPort
from rollmesh.endpoint.clients.model_client import HasModelAddress, ModelRoute
from rollmesh.endpoint.envs.contracts import is_env
from rollmesh.endpoint.envs.env_loading import open_env
from rollmesh.endpoint.models.model_loading import open_model
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.endpoint.targets import is_address
from rollmesh.errors import EndpointFault, EnvFailed, ModelFailed
from rollmesh.ids import MINT
from rollmesh.limits import Limits
from rollmesh.ports import (
    SUBSET_STEP,
    AdapterContext,
    EnvPort,
    ModelPort,
    ReleaseAdapterRequest,
)
from rollmesh.runtime.hooks import Dispatcher
from rollmesh.spaces.conformance import Policy

if TYPE_CHECKING:
    from typing_extensions import Self

_logger = logging.getLogger(__name__)


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
    """

    num_envs: int | None
    env_kwargs: Mapping[str, Any] | None
    model_kwargs: Mapping[str, Any] | None
    env_conformance: Policy
    model_conformance: Policy
    limits: Limits
    share_thread: bool


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
        self.env_component = name_of(env)
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
        if self._thread is not None:
            self._thread.stop()

    # ----------------------------------------------------------------------------- opening

    def _open(self) -> None:
        options = self._options
        if options.share_thread and self.owns_env and options.num_envs in (None, 1):
            self._thread = OwnThread("rollmesh-route")
        try:
            env = open_env(
                self._env,
                num_envs=options.num_envs,
                env_kwargs=options.env_kwargs,
                conformance=options.env_conformance,
                report=None,
                limits=options.limits,
                thread=self._thread,
            )
        except EndpointFault as fault:
            raise self._failed(EnvFailed, fault, self.env_component, "env.connect") from fault
        self._env_port = env
        self.env_component = env.contract.id or self.env_component
        route = events.Route(self._ids.env_id, self.env_component, self.model_component)
        if self._dispatcher.env_connected is not None:
            self._dispatcher.env_connected(
                events.EnvConnected(session_id=self._ids.session_id, route=route)
            )
        try:
            self._model_port = open_model(
                self._model,
                observation_space=env.contract.observation_space,
                action_space=env.contract.action_space,
                conformance=options.model_conformance,
                report=None,
                limits=options.limits,
                thread=self._thread,
                model_kwargs=options.model_kwargs,
                route=self._model_route(env),
            )
        except EndpointFault as fault:
            raise self._failed(ModelFailed, fault, self.model_component, "model.connect") from fault
        if self._dispatcher.model_connected is not None:
            self._dispatcher.model_connected(
                events.ModelConnected(session_id=self._ids.session_id, route=route)
            )

    def _model_route(self, env: EnvPort) -> ModelRoute:
        contract = env.contract
        return ModelRoute(
            contract=contract,
            session_id=self._ids.session_id,
            env_id=self._ids.env_id,
            is_shared=contract.num_envs > 1 and SUBSET_STEP in env.capabilities,
        )

    def _failed(
        self,
        kind: type[EnvFailed | ModelFailed],
        fault: EndpointFault,
        component: str,
        operation: str,
    ) -> EnvFailed | ModelFailed:
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
        return any(is_served(one) for one in target)
    return is_address(target) or isinstance(target, (HasEnvPort, HasModelAddress))


def is_given_env(env: object) -> bool:
    """Return whether an env argument is an instance that stays its owner's.

    A list is not: its lanes' threads are made here and ended here (instances in it stay open).
    """
    return not isinstance(env, (list, tuple)) and is_env(env)


def name_of(target: object) -> str:
    """Return what errors and results call an env or a model."""
    if isinstance(target, str):
        return target
    if isinstance(target, HasModelAddress):
        return target.address
    if isinstance(target, (list, tuple)) and target:
        return name_of(target[0])
    spec = getattr(target, "spec", None)
    for name in (getattr(spec, "id", None), getattr(target, "__qualname__", None)):
        if isinstance(name, str) and name:
            return name
    return type(target).__name__
