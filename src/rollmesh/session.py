"""`Session`: an evaluation turned by hand, one lane, with the same loop and codec (layer 8)."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rollmesh.arguments import (
    check_sendable,
    optional_count,
    read_cancel,
    read_conformance,
    read_hooks,
    read_kwargs,
    read_limits,
    read_seed,
)
from rollmesh.errors import InvalidSpec
from rollmesh.limits import Limits
from rollmesh.opening import Endpoints, OpeningOptions, RouteIds, is_served
from rollmesh.ports import EnvContract, Info
from rollmesh.results.result import EpisodeResult
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.manual import ManualDriver, Turned
from rollmesh.runtime.spec import SessionSpec
from rollmesh.spaces.codec import Leaves
from rollmesh.spaces.conformance import Checker, Policy

if TYPE_CHECKING:
    from typing_extensions import Self

_logger = logging.getLogger(__name__)


class StepResult(NamedTuple):
    """What a step came to; unpacks as a Gymnasium step does.

    Attributes:
        observation: The env's answer, a copy; of an episode that ended, its last one.
        reward: Of this step.
        terminated: Whether the env ended the episode.
        truncated: Whether a limit cut it short.
        info: The env's info for this step.
    """

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Session:
    """A model in an env, turned by hand; a context manager.

    ```python
    with Session(model, "CartPole-v1") as session:
        observation, info = session.reset(seed=7)
        while not session.done:
            action = session.predict()
            result = session.step()
    ```

    `step()` takes the predicted action; `step(action)` takes yours in its place and drops what is
    left of the model's chunk. Rules, hooks, limits and errors are those of `evaluate`. One call at
    a time: another one meanwhile, from a second thread or a hook, is refused. What was built for a
    session that nobody closes is closed once nobody holds it, with a warning.

    Args:
        model: As in `evaluate`.
        env: As in `evaluate`, with one lane.
        execution_horizon: How many actions of a chunk are executed; None is all of them.
        max_episode_steps: Truncates an episode after so many steps.
        hooks: A `Hooks` object, or a list of them.
        limits: How long each operation may take.
        conformance: What happens to values outside their space.
        cancel: A token that stops the session from another thread.
        env_kwargs: Keyword arguments for the env's id or factory.
        model_kwargs: Keyword arguments for the model's class or factory.

    Raises:
        InvalidSpec: An argument is wrong, or the env has more than one lane.
        EnvFailed: Building the env failed.
        ModelFailed: Building or loading the model failed.
    """

    def __init__(
        self,
        model: object,
        env: object,
        *,
        execution_horizon: int | None = None,
        max_episode_steps: int | None = None,
        hooks: object = (),
        limits: Limits | None = None,
        conformance: Policy | Mapping[str, Policy] = "warn",
        cancel: CancelToken | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        policies = read_conformance(conformance)
        opening = OpeningOptions(
            num_envs=None,
            env_kwargs=read_kwargs("env_kwargs", env_kwargs),
            model_kwargs=read_kwargs("model_kwargs", model_kwargs),
            env_conformance=policies[0],
            model_conformance=policies[1],
            limits=read_limits(limits),
            share_thread=False,
            execution_horizon=optional_count("execution_horizon", execution_horizon),
            cancel=read_cancel(cancel),
        )
        cap = optional_count("max_episode_steps", max_episode_steps)
        self._under_way: dict[str, object] = {}
        self._checker = Checker("action", policies[1], "refuse")
        self._is_served = is_served(env) or is_served(model)
        self._driver: ManualDriver | None = None
        self._driver = self._begin(model, env, opening=opening, cap=cap, hooks=read_hooks(hooks))
        self._observations = self._contract.observation_space.codec
        self._actions = self._contract.action_space.codec

    def _begin(
        self,
        model: object,
        env: object,
        *,
        opening: OpeningOptions,
        cap: int | None,
        hooks: tuple[object, ...],
    ) -> ManualDriver:
        """Open the endpoints and start the session; close what was opened where that fails."""
        ids = RouteIds()
        self._endpoints = Endpoints(model, env, ids=ids, options=opening, hooks=hooks)
        with contextlib.ExitStack() as undo:
            endpoints = undo.enter_context(self._endpoints)
            self._contract = endpoints.env.contract
            if self._contract.num_envs != 1:
                raise InvalidSpec(
                    "env",
                    f"has {self._contract.num_envs} lanes, a session turns one; use evaluate, or "
                    "give one env",
                )
            spec = SessionSpec(
                session_id=ids.session_id,
                env_id=ids.env_id,
                env_contract=self._contract,
                env_component=endpoints.env_component,
                model_component=endpoints.model_component,
                execution_horizon=opening.execution_horizon,
                max_episode_steps=cap,
                close_env_on_end=endpoints.owns_env,
                limits=opening.limits,
            )
            driver = ManualDriver(spec, endpoints.env, endpoints.model, hooks=hooks)
            spec.check_capabilities(frozenset(endpoints.env.capabilities))
            endpoints.hand_over()
            driver.begin(
                opening.cancel or CancelToken(),
                is_forgotten=partial(_is_forgotten, weakref.ref(self), endpoints),
            )
            undo.pop_all()
        return driver

    # ------------------------------------------------------------------------------ turning

    def reset(
        self, seed: int | None = None, options: Info | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode and return its first observation and info.

        An episode under way is marked `interrupted`: it is in `episodes` with that error, and in no
        rate or mean.

        Raises:
            InvalidSpec: The seed is no int of 0 or more, the options are no mapping, or the session
                is over.
            RouteError: The reset failed; the session is over.
        """
        if seed is not None:
            seed = read_seed("seed", seed)
            if self._is_served:
                check_sendable((seed,))
        if options is not None and not isinstance(cast("object", options), Mapping):
            raise InvalidSpec("options", f"wants a mapping or None, got {options!r}")
        with self._one_call("reset"):
            turned = self._open_driver("reset").reset(seed=seed, options=options)
        return self._decoded(turned), dict(turned.info)

    def predict(self) -> Any:
        """Return the action to come: the model is asked unless actions of its chunk are left.

        Asking again before the step gives the same action. What `transform_action` hooks make of
        it is seen by the env, not here.

        Raises:
            InvalidSpec: No episode is under way.
            RouteError: The model failed; the session is over.
        """
        with self._one_call("predict"):
            frame = self._running_driver("predict").predict()
        return self._actions.decode(frame.frame, frame.row, copy=True)

    def step(self, action: Any = None) -> StepResult:
        """Apply the action to come, or `action` in its place, and return what came of it.

        Raises:
            InvalidSpec: No episode is under way.
            InvalidValue: The action does not fit its space; nothing was applied.
            RouteError: The env or the model failed; the session is over.
        """
        with self._one_call("step"):
            driver = self._running_driver("step")
            leaves: Leaves | None = None
            if action is not None:
                leaves = self._actions.encode(action, self._checker)
            turned = driver.step(leaves)
        return StepResult(
            observation=self._decoded(turned),
            reward=turned.reward,
            terminated=turned.terminated,
            truncated=turned.truncated,
            info=dict(turned.info),
        )

    @property
    def done(self) -> bool:
        """Whether no episode is under way: before the first reset, and after an end."""
        return self._driver is None or not self._driver.is_running

    @property
    def episodes(self) -> tuple[EpisodeResult, ...]:
        """The episodes that ended so far, in order; an interrupted one has that error."""
        if self._driver is None:
            return ()
        return tuple([EpisodeResult.from_summary(one) for one in self._driver.summaries])

    @property
    def contract(self) -> EnvContract:
        """The env's spaces and what else is known of it."""
        return self._contract

    # ------------------------------------------------------------------------------ closing

    def close(self) -> None:
        """End the session; what was built for it is closed. Closing again does nothing.

        Raises:
            InvalidSpec: Another call is under way; nothing was closed.
        """
        with self._one_call("close"):
            driver = self._driver
            try:
                if driver is not None and not driver.is_over:
                    driver.finish()
            finally:
                self._endpoints.close("closed by caller")

    def __enter__(self) -> Self:
        """Return the session itself."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        try:
            self.close()
        except InvalidSpec as refused:
            if error is None:
                raise
            _logger.warning("session_not_closed: %s", refused)

    # ------------------------------------------------------------------------------- inside

    @contextlib.contextmanager
    def _one_call(self, name: str) -> Generator[None, None, None]:
        """Keep other calls out; no lock, which a Ctrl-C at the wrong moment would leave held."""
        mine = object()
        try:
            if self._under_way.setdefault("call", mine) is not mine:
                raise InvalidSpec(
                    name,
                    "another call of this session is under way: turn it from one thread at a time, "
                    "and not from its own hooks; a CancelToken stops it from elsewhere",
                )
            yield
        finally:
            if self._under_way.get("call") is mine:
                del self._under_way["call"]

    def _decoded(self, turned: Turned) -> Any:
        return self._observations.decode(turned.observation, 0, copy=True)

    def _open_driver(self, call: str) -> ManualDriver:
        driver = self._driver
        if driver is None or driver.is_over:
            raise InvalidSpec(call, "the session is over; open another one")
        return driver

    def _running_driver(self, call: str) -> ManualDriver:
        driver = self._open_driver(call)
        if not driver.is_running:
            raise InvalidSpec(call, "no episode is under way; call reset() first")
        return driver


def _is_forgotten(session: weakref.ref[Session], endpoints: Endpoints) -> bool:
    """Return whether nobody holds the session any more; then its endpoints are let go."""
    if session() is not None:
        return False
    try:
        endpoints.let_go()
    except Exception:  # once is enough
        _logger.exception("session_not_let_go")
    return True
