"""Opens a policy: from whatever a user calls one to a model port (layer 6, rule R49).

Used on the caller's thread, or on the shared one where a name was given and there is a shared one:

- `"random"`: the random policy, seeded per episode;
- a callable, or `module:function`: the policy itself;
- an instance, or `module:instance`: a `Model`, an object with a corner, a torch module, a
  Stable-Baselines3 algorithm.

Built, loaded, used and closed on a thread of its own:

- a path ending in `.zip`: a policy file of Stable-Baselines3;
- a class, or `module:Class`: built with `model_kwargs`;
- a function, or `module:function`, with `model_kwargs` (`{}` counts): a factory, called with them.

Elsewhere: an address, or a `RemoteModel`, which has one: a served model.

What runs on the caller's thread cannot be interrupted, so that `load` has no limit there; hard
limits need a class. A module is always imported on the caller's thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, cast

from rollmesh.endpoint.calling import check_kwargs
from rollmesh.endpoint.clients.model_client import HasModelAddress, RemoteModelPort, connect_model
from rollmesh.endpoint.clients.model_route import ModelRoute
from rollmesh.endpoint.faults import fault_from
from rollmesh.endpoint.models.corners import find_corners
from rollmesh.endpoint.models.declared_spaces import check_declared
from rollmesh.endpoint.models.model import CORNERS, Model, overridden
from rollmesh.endpoint.models.policy import LocalModel, ThreadedModel, derived_policy_seed
from rollmesh.endpoint.models.random_policy import RandomPolicy
from rollmesh.endpoint.models.sb3 import (
    StableBaselinesPolicy,
    check_policy_file,
    is_algorithm,
    load_policy_file,
)
from rollmesh.endpoint.models.torch_policy import TorchPolicy, is_module
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.endpoint.targets import (
    Address,
    ImportTarget,
    load_attribute,
    parse_target,
)
from rollmesh.errors import EndpointFault, InvalidSpec, OperationTimeout, RollmeshError
from rollmesh.limits import Limits
from rollmesh.ports import EnvContract, ModelPort
from rollmesh.runtime.cancel import CancelToken
from rollmesh.spaces.conformance import Checker, Policy, Report
from rollmesh.spaces.space import Space

_logger = logging.getLogger(__name__)

_FIELD = "model"
_LOADED = "_rollmesh_is_loaded"
_WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors")


@dataclass(frozen=True, kw_only=True)
class _Opening:
    """What every way of opening needs."""

    observation_space: Space
    action_space: Space
    conformance: Policy
    report: Report | None
    policy_seed_of: Callable[[int | None], int | None]

    def port(
        self, model: object, *, closes: bool, load: Callable[[LocalModel, object], None]
    ) -> LocalModel:
        """Wrap a policy and load it, on the current thread.

        The spaces that it declares are compared before it is loaded and after: some know theirs
        only then. A policy that is refused is closed, where that is ours.

        Raises:
            EndpointFault: Its `load` raised.
            InvalidSpec: It is no policy, or declares other spaces.
        """
        given = model
        if is_algorithm(model):
            model = StableBaselinesPolicy(model)
        elif is_module(model) and not any(overridden(model, corner) for corner in CORNERS):
            model = TorchPolicy(model, self.action_space)
        corners = find_corners(model)
        port = LocalModel(
            corners,
            observation_space=self.observation_space,
            action_space=self.action_space,
            checker=Checker("action", self.conformance, "refuse", self.report),
            closes=closes,
            policy_seed_of=self.policy_seed_of,
            observes=not isinstance(model, RandomPolicy),
        )
        try:
            self._check(given, corners.name)
            load(port, model)
            self._check(given, corners.name)
        except InvalidSpec:
            with contextlib.suppress(EndpointFault):  # why it is refused matters more
                port.close()
            raise
        return port

    def bare_route(self) -> ModelRoute:
        """Return what a served model is told where nothing but the spaces is known."""
        contract = EnvContract(
            id="env", observation_space=self.observation_space, action_space=self.action_space
        )
        return ModelRoute(contract=contract)

    def _check(self, model: object, name: str) -> None:
        """Refuse a policy that declares other spaces."""
        trained = model.algorithm if isinstance(model, StableBaselinesPolicy) else model
        is_wrapped = is_algorithm(trained) or is_module(trained)
        check_declared(
            trained,
            self.observation_space,
            self.action_space,
            name=type(trained).__name__ if is_wrapped else name,
            turns_images=is_algorithm(trained),
        )


class SharedPolicy:
    """One policy that several routes use, maybe with different spaces; for servers.

    Nothing is built before the first `port`. All methods run on the thread that the policy is to
    live on.

    Args:
        model: As `open_model` takes it.
        model_kwargs: Keyword arguments for the class or factory.
        conformance: `warn`, `strict` or `off`, for actions outside their space.

    Raises:
        InvalidSpec: That is no policy, its target cannot be found, or it does not take
            `model_kwargs`.
    """

    def __init__(
        self, model: object, *, model_kwargs: Mapping[str, Any] | None, conformance: Policy
    ) -> None:
        self._conformance: Policy = conformance
        self._policy: object = None
        self._loaded = False
        self._is_random = _is_random(model)
        if self._is_random:
            _refuse_kwargs(model_kwargs, "the random policy")
            self._build: _Instance | Callable[[], object] = _Instance(None)
        else:
            self._build = _builder(_resolved(model), model_kwargs)
        if isinstance(self._build, _Instance):
            self._policy = self._build.model
            self._check()

    def build(self) -> None:
        """Build the policy, if that is not done yet.

        Raises:
            EndpointFault: Its constructor raised.
            InvalidSpec: It is no policy.
        """
        if self._policy is None and not isinstance(self._build, _Instance):
            self._policy = self._build()
            self._check()

    def _check(self) -> None:
        policy = self._policy
        if not (self._is_random or is_algorithm(policy) or is_module(policy)):
            find_corners(policy)

    def port(self, observation_space: Space, action_space: Space) -> LocalModel:
        """Return a port over the policy, which is loaded by the first one.

        Raises:
            EndpointFault: The policy's constructor or `load` raised.
            InvalidSpec: It is no policy, or declares other spaces.
        """
        self.build()
        policy = RandomPolicy(action_space) if self._is_random else self._policy
        opening = _Opening(
            observation_space=observation_space,
            action_space=action_space,
            conformance=self._conformance,
            report=None,
            policy_seed_of=derived_policy_seed,
        )
        return opening.port(policy, closes=False, load=self._load_first)

    def _load_first(self, port: LocalModel, model: object) -> None:
        """Load the policy, unless a route before did."""
        if not self._loaded:
            _load_once(port, model)
            self._loaded = True

    def close(self) -> None:
        """Close the policy, if it was built here.

        Raises:
            EndpointFault: Its `close` raised.
        """
        policy, self._policy = self._policy, None
        if policy is None or isinstance(self._build, _Instance):
            return
        close = getattr(policy, "close", None)
        if callable(close):
            try:
                close()
            except BaseException as exc:
                raise fault_from(exc, where="model.close") from exc


def open_model(
    model: object,
    *,
    observation_space: Space,
    action_space: Space,
    conformance: Policy = "warn",
    report: Report | None = None,
    limits: Limits | None = None,
    thread: OwnThread | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    policy_seed_of: Callable[[int | None], int | None] = derived_policy_seed,
    route: ModelRoute | None = None,
    cancel: CancelToken | None = None,
) -> ModelPort:
    """Return a loaded policy as a model port; the module docstring lists what a policy may be.

    Args:
        model: The policy, or what names or builds it.
        observation_space: Space of one observation.
        action_space: Space of one action.
        conformance: `warn`, `strict` or `off`, for actions outside the action space. NaN is
            always refused.
        report: Takes path and detail of each finding, once per kind and path; None logs them.
        limits: `model_connect_s` bounds building and loading on an own thread.
        thread: A thread shared with the env: what is built here, or was given by name, lives on it
            instead of on a new one; the caller stops it. Instances stay on the caller's thread.
        model_kwargs: Keyword arguments for the class or factory.
        policy_seed_of: Gives an episode's policy seed for its env seed.
        route: What a served model is told of the env; its spaces only if left out.
        cancel: Ends connecting to a served model.

    Raises:
        InvalidSpec: That is no policy, its target cannot be found, it does not take `model_kwargs`,
            or it declares other spaces.
        EndpointFault: Its constructor or `load` raised, or a served one cannot be reached.
        OperationTimeout: Building and loading took longer than `limits.model_connect_s`.
    """
    opening = _Opening(
        observation_space=observation_space,
        action_space=action_space,
        conformance=conformance,
        report=report,
        policy_seed_of=policy_seed_of,
    )
    limits = limits or Limits()
    resolved = RandomPolicy(action_space) if _is_random(model) else _resolved(model)
    if isinstance(resolved, (Address, HasModelAddress)):
        _refuse_kwargs(model_kwargs, "a served model")
        return _open_served(resolved, route or opening.bare_route(), limits, cancel, thread=thread)
    build = _builder(resolved, model_kwargs)
    if isinstance(build, _Instance):
        is_named = isinstance(model, (str, os.PathLike))
        return _open_instance(opening, build.model, limits, thread=thread if is_named else None)
    return _open_on_thread(
        lambda: opening.port(build(), closes=True, load=_load_once), thread, limits.model_connect_s
    )


def _open_served(
    target: Address | HasModelAddress,
    route: ModelRoute,
    limits: Limits,
    cancel: CancelToken | None,
    *,
    thread: OwnThread | None,
) -> ModelPort:
    """Connect to a served model, for an env that lives on `thread`."""
    if isinstance(target, Address):
        port = connect_model(target.text, route, limits=limits, cancel=cancel)
    else:
        port = connect_model(target.address, route, target.options, limits=limits, cancel=cancel)
    if isinstance(port, RemoteModelPort):
        port.thread = thread
    return port


def _open_instance(
    opening: _Opening, model: object, limits: Limits, *, thread: OwnThread | None
) -> ModelPort:
    """Open a policy that is there already: on `thread`, or else where we are."""
    if thread is None:
        return opening.port(model, closes=False, load=_load_once)
    return _open_on_thread(
        lambda: opening.port(model, closes=False, load=_load_once), thread, limits.model_connect_s
    )


@dataclass(frozen=True)
class _Instance:
    model: object


@dataclass(frozen=True)
class _PolicyFile:
    path: str


def _is_random(model: object) -> bool:
    return isinstance(model, str) and model == "random"


def _resolved(model: object) -> object:
    """Return what a text or path names; anything else is what it is."""
    if isinstance(model, os.PathLike):
        model = os.fspath(cast("os.PathLike[str]", model))
    if not isinstance(model, str):
        return model
    if model.lower().endswith(".zip"):
        return _PolicyFile(model)
    target = parse_target(model, field=_FIELD)
    if isinstance(target, Address):
        return target
    if isinstance(target, ImportTarget):
        return load_attribute(target.text, field=_FIELD)
    raise InvalidSpec(
        _FIELD,
        f"wants 'random', module:attribute, or a policy file ending in .zip, got {model!r}"
        f"{_hint(model)}",
    )


def _hint(name: str) -> str:
    """Return what to do about a file that is no policy by itself."""
    path = PurePath(name)
    if path.suffix == ".py":
        return f"; name what is in it: {path.stem}:attribute"
    if path.suffix in _WEIGHTS:
        return (
            "; a torch file holds weights and no code: write a function or class that builds the "
            "module and loads them, and name it as module:attribute"
        )
    return ""


def _builder(
    model: object, model_kwargs: Mapping[str, Any] | None
) -> _Instance | Callable[[], object]:
    """Return what builds the policy on its own thread, or the instance that there is."""
    if isinstance(model, _PolicyFile):
        _refuse_kwargs(model_kwargs, "a policy file")
        check_policy_file(model.path)
        return lambda: load_policy_file(model.path)
    if isinstance(model, type):
        factory = cast("Callable[..., object]", model)
    elif model_kwargs is None:
        return _Instance(model)
    elif callable(model) and not isinstance(model, Model) and hasattr(model, "__name__"):
        factory = model
    else:
        what = "the random policy" if isinstance(model, RandomPolicy) else "an instance"
        _refuse_kwargs(model_kwargs, what)
        return _Instance(model)
    kwargs = dict(model_kwargs or {})
    check_kwargs(factory, kwargs, field=_FIELD, cure=_cure(factory))

    def build() -> object:
        try:
            return factory(**kwargs)
        except RollmeshError:
            raise
        except BaseException as exc:
            raise fault_from(exc, where="model.connect", outcome="not_done") from exc

    return build


def _cure(factory: object) -> str:
    if isinstance(factory, type):
        return "pass them in model_kwargs"
    return "pass them in model_kwargs (a function that gets some is a factory: it returns a policy)"


def _open_on_thread(
    build: Callable[[], LocalModel], thread: OwnThread | None, limit_s: float | None
) -> ThreadedModel:
    mine = thread is None
    home = thread or OwnThread("rollmesh-model")
    try:
        port = home.call(build, limit_s, "building and loading the model")
    except TimeoutError as exc:
        if isinstance(exc, RollmeshError):
            raise
        home.abandon()
        raise OperationTimeout(
            f"{exc}; raise limits.model_connect_s, or look at what its constructor and load() "
            "wait for",
            timeout_s=limit_s or 0.0,
            component="model",
            operation="model.connect",
        ) from None
    except BaseException:  # it raised, or waiting for it was interrupted
        if mine:
            home.abandon()
        raise
    return ThreadedModel(port, home, owns_thread=mine)


def _load_once(port: LocalModel, model: object) -> None:
    """Load the policy; a `Model` that an earlier evaluation loaded is not loaded again."""
    if not getattr(model, _LOADED, False):
        _tell_of_reset(model)
    if isinstance(model, Model):
        if getattr(model, _LOADED, False):
            return
        port.load()
        object.__setattr__(model, _LOADED, True)  # also where the class lets nobody set any
    else:
        port.load()


def _tell_of_reset(model: object) -> None:
    """Warn of a policy that expects to be reset before an episode, as other packages do."""
    if overridden(model, "reset") is not None and overridden(model, "on_episode_start") is None:
        _logger.warning(
            "policy_reset_not_called: %s has a reset method, which is not called, as several "
            "episodes may be under way; keep what belongs to an episode in context.state, or give "
            "it on_episode_start(context)",
            type(model).__name__,
        )


def _refuse_kwargs(model_kwargs: Mapping[str, Any] | None, what: str) -> None:
    if model_kwargs:
        raise InvalidSpec(
            "model_kwargs", f"{what} takes none; give a class or a factory function for them"
        )
