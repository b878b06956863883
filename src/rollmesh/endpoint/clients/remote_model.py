"""`RemoteModel`: a served model that is asked by hand (layer 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollmesh.endpoint.clients.client_options import (
    ClientOptions,
    Connecting,
    client_options,
    connect_again,
    given_options,
    portable,
)
from rollmesh.endpoint.clients.model_client import HasModelAddress, connect_model
from rollmesh.endpoint.clients.model_route import ModelRoute
from rollmesh.endpoint.clients.remote_calls import Calls, is_closed
from rollmesh.endpoint.envs.contracts import difference
from rollmesh.errors import InvalidSpec
from rollmesh.ids import MINT
from rollmesh.limits import Limits, timeout_ms
from rollmesh.ports import (
    AdapterContext,
    EnvContract,
    EpisodeInfo,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
)
from rollmesh.spaces.conformance import Checker
from rollmesh.spaces.gymnasium import from_gymnasium
from rollmesh.spaces.space import Space
from rollmesh.transport.address import parse_address

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["RemoteModel"]


class RemoteModel(HasModelAddress):
    """A served model: give it to `evaluate`, or ask it by hand; a context manager.

    ```python
    with RemoteModel("rollmesh+tcp://gpu-host:6000") as model:
        model.configure(env.observation_space, env.action_space)
        model.reset(seed=7)
        action = model.predict(observation)
    ```

    Asked by hand it plays one episode at a time: `reset` begins one, and has the last one
    forgotten. A chunk is executed action by action before the model is asked again. For one thread
    at a time. `evaluate` and `Session` connect on their own, with this one's address and options.

    A pickle of it holds the address and the options, but no token.

    Args:
        address: Where the model is served.
        options: How to connect, as a whole.
        limits: How long connecting, a predict, and closing may take.
        connecting: How to connect, one by one as in `rollmesh.connect`: `token`, `token_file`,
            `tls`, `transport`, `resume_grace_s`, `insecure_plaintext`.

    Raises:
        InvalidSpec: That is no address, or the options do not go with it.
    """

    def __init__(
        self,
        address: str,
        *,
        options: ClientOptions | None = None,
        limits: Limits | None = None,
        **connecting: Unpack[Connecting],
    ) -> None:
        parse_address(address)
        self.address = address
        self._given = given_options(options, connecting)
        self.options = self._given or client_options()
        self._limits = limits or Limits()
        self._calls = Calls(f"model at {address}", "model")
        self._checker = Checker("observation", "warn")
        self._port: Any = None
        self._contract: EnvContract | None = None
        self._is_closed = False
        self._session_id, self._env_id = MINT.mint(), MINT.mint()
        self._horizon: int | None = None
        self._count = 0
        self._episode: EpisodeInfo | None = None
        self._frames: list[Any] = []
        self._is_answered = False

    def configure(
        self,
        observation_space: Any,
        action_space: Any,
        *,
        execution_horizon: int | None = None,
    ) -> None:
        """Connect, and tell the model which env it is asked for; again does nothing.

        Args:
            observation_space: Space of one observation, Gymnasium's or ours.
            action_space: Space of one action.
            execution_horizon: How many actions of a chunk are executed; None is all of them.

        Raises:
            InvalidSpec: It was configured for other spaces, is closed, or declares other ones.
            ModelFailed: The model failed, or cannot be reached.
        """
        if self._is_closed:
            raise is_closed("configure", "model")
        contract = EnvContract(
            id="by-hand",
            observation_space=_space(observation_space, "observation_space"),
            action_space=_space(action_space, "action_space"),
        )
        if self._contract is not None:
            _check_same(self._contract, contract)
            return
        route = ModelRoute(
            contract=contract,
            session_id=self._session_id,
            env_id=self._env_id,
            execution_horizon=execution_horizon,
        )
        self._horizon = execution_horizon
        self._port = self._calls.do(
            "connect", self._connect, route, limit_s=self._limits.model_connect_s
        )
        self._contract = contract

    def reset(self, *, seed: int | None = None) -> None:
        """Begin an episode; the last one is forgotten.

        Raises:
            InvalidSpec: It was not configured, or is closed.
            ModelFailed: The model failed, or cannot be reached.
        """
        self._ready("reset")
        self._forget()
        self._episode = EpisodeInfo(MINT.mint(), None if seed is None else int(seed))

    def predict(self, observation: Any) -> Any:
        """Return the action for an observation: the next one of a chunk, or of a new one.

        Raises:
            InvalidSpec: It was not configured, or is closed.
            InvalidValue: The observation does not fit its space; nothing was sent.
            ModelFailed: The model failed, or cannot be reached.
            OperationTimeout: It did not come back in time.
        """
        contract = self._ready("predict")
        if not self._frames:
            self._frames = list(self.predict_chunk(observation))[: self._horizon]
            self._frames.reverse()
        frame = self._frames.pop()
        return contract.action_space.codec.decode(frame, 0, copy=True)

    def predict_chunk(self, observation: Any) -> Sequence[Any]:
        """Return the frames of one predict, as leaves of one row each; see `predict`."""
        contract = self._ready("predict")
        if self._episode is None:
            self._episode = EpisodeInfo(MINT.mint())
        limit_s = self._limits.predict_s(is_first=not self._is_answered)
        request = PredictRequest(
            context=self._context("predict"),
            observation=contract.observation_space.codec.encode(observation, self._checker),
            episode_info=(self._episode,),
            timeout_ms=timeout_ms(limit_s),
            execution_horizon=self._horizon,
        )
        reply = self._calls.do("predict", self._port.predict, request, limit_s=limit_s)
        self._is_answered = True
        return reply.frames

    def close(self) -> None:
        """Have everything forgotten and end the session; closing again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        port, self._port = self._port, None
        if port is not None:
            close_s = self._limits.close_s
            request = ReleaseAdapterRequest(self._context("release"), "closed by caller", close_s)
            self._calls.do("close", port.release_adapter, request, limit_s=close_s)

    def __enter__(self) -> Self:
        """Return the model itself."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return connect_again, (type(self), self.address, portable(self._given), self._limits)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    # ------------------------------------------------------------------------------- inside

    def _connect(self, route: ModelRoute) -> Any:
        return connect_model(self.address, route, self.options, limits=self._limits)

    def _ready(self, call: str) -> EnvContract:
        if self._is_closed:
            raise is_closed(call, "model")
        if self._contract is None:
            raise InvalidSpec(call, "call configure(observation_space, action_space) first")
        return self._contract

    def _forget(self) -> None:
        episode, self._episode = self._episode, None
        self._frames = []
        if episode is not None:
            request = ResetAdapterRequest(self._context("reset_adapter"), (episode.episode_id,))
            limit_s = self._limits.close_s
            self._calls.do("reset", self._port.reset_adapter, request, limit_s=limit_s)

    def _context(self, phase: str) -> AdapterContext:
        self._count += 1
        return AdapterContext(
            self._session_id, self._env_id, f"{self._env_id}:{phase}:{self._count:06d}"
        )


def _space(space: Any, field: str) -> Space:
    if isinstance(space, Space):
        return space
    return from_gymnasium(space, field)


def _check_same(ours: EnvContract, theirs: EnvContract) -> None:
    pairs: Mapping[str, tuple[Space, Space]] = {
        "observation_space": (ours.observation_space, theirs.observation_space),
        "action_space": (ours.action_space, theirs.action_space),
    }
    for field, (one, other) in pairs.items():
        if one != other:
            raise InvalidSpec(
                field,
                f"it was configured for another one ({difference(one, other, field)}); make a "
                "RemoteModel per env",
            )
