"""`RemoteEnv`: a served env as a `gymnasium.Env` (layer 6).

Importing this module imports Gymnasium; `rollmesh.RemoteEnv` does so when it is first used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium

from rollmesh.endpoint.clients.client_options import ClientOptions, Connecting
from rollmesh.endpoint.clients.env_client import RemoteEnvPort
from rollmesh.endpoint.clients.env_face import (
    EnvFace,
    check_options,
    check_render_mode,
    check_seed,
)
from rollmesh.endpoint.clients.remote_calls import not_reset
from rollmesh.errors import InvalidSpec
from rollmesh.ids import MINT
from rollmesh.limits import Limits
from rollmesh.ports import EnvContract, ResetRequest, StepRequest
from rollmesh.spaces.gymnasium import to_gymnasium

if TYPE_CHECKING:
    from typing_extensions import Unpack


class RemoteEnv(EnvFace, gymnasium.Env[Any, Any]):  # pyright: ignore[reportIncompatibleVariableOverride] - spec
    """A served env, used like a local one; a context manager.

    ```python
    with RemoteEnv("rollmesh+tcp://sim-host:5000") as env:
        observation, info = env.reset(seed=7)
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    ```

    For one thread at a time. After a short outage it goes on where it was; where the session is
    lost, the call under way raises `EnvFailed` and the next `reset` connects again.

    A pickle of it holds the address and the options, but no token: who unpickles it connects
    anew, with the token of its environment.

    Args:
        address: Where the env is served.
        options: How to connect, as a whole.
        limits: How long connecting, a reset, a step, and closing may take.
        render_mode: What the caller expects the server to render; checked.
        port: A connection to that address to take over.
        connecting: How to connect, one by one as in `rollmesh.connect`: `token`, `token_file`,
            `tls`, `transport`, `resume_grace_s`, `insecure_plaintext`.

    Attributes:
        port: What the runtime drives.
        address: Where it is served.

    Raises:
        InvalidSpec: That is no address, the options do not go with it, or the env has several
            lanes or another render mode.
        EndpointFault: Nobody answered in time, or the server refused.

    Guarantees: observations are the caller's own, and may be written into.
    """

    def __init__(
        self,
        address: str = "",  # gymnasium.make prints all values where Python misses one
        *,
        options: ClientOptions | None = None,
        limits: Limits | None = None,
        render_mode: str | None = None,
        port: RemoteEnvPort | None = None,
        **connecting: Unpack[Connecting],
    ) -> None:
        self._connect(address, options, connecting, limits=limits, port=port)
        contract = self.contract
        try:
            _check_width(contract)
            check_render_mode(render_mode, contract)
        except BaseException:
            self.close()
            raise
        self.observation_space = to_gymnasium(contract.observation_space)
        self.action_space = to_gymnasium(contract.action_space)
        self.metadata = dict(contract.metadata)
        self.render_mode = contract.render_mode
        self._episode_ids: tuple[str, ...] = ()

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; connects again where the session was lost.

        Raises:
            InvalidSpec: The seed is no int from 0 to 2**63 - 1, the options are no mapping, or the
                env is closed.
            EnvFailed: The env failed, or cannot be reached.
            OperationTimeout: It did not come back in time.
        """
        self._check_open("reset")
        check_seed("seed", seed)
        check_options(options)
        super().reset(seed=None if seed is None else int(seed))
        self._episode_ids = ()
        limit_s = self._limits.env_reset_s
        return self._calls.do("reset", self._reset, seed, options, limit_s=limit_s)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply one action.

        Raises:
            InvalidSpec: No episode is under way, or the env is closed.
            InvalidValue: The action does not fit its space; nothing was sent.
            EnvFailed: The env failed, or its session is lost.
            OperationTimeout: It did not come back in time.
        """
        if not self._episode_ids:
            self._check_open("step")
            raise not_reset("step")
        leaves = self._actions.encode(action, self._checker)
        request = StepRequest(
            action=leaves, episode_ids=self._episode_ids, timeout_ms=self._step_ms
        )
        try:
            reply = self._calls.do("step", self.port.step, request, limit_s=self._limits.env_step_s)
        except BaseException:
            if self.port.session.is_lost:
                self._episode_ids = ()
            raise
        terminated = truncated = False
        if reply.completions:
            terminated, truncated = reply.completions[0].terminated, reply.completions[0].truncated
        observation = self._observations.decode(reply.observation)
        return observation, reply.rewards[0], terminated, truncated, dict(reply.infos[0])

    def close(self) -> None:
        """End the session; closing again does nothing."""
        self._episode_ids = ()
        self._end()

    def __str__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"

    # ------------------------------------------------------------------------------- inside

    def _reset(
        self, seed: int | None, options: Mapping[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        port = self.port
        port.forget_interrupt()
        if port.session.is_lost:
            port.rebuild(())
        ids = (MINT.mint(),)
        request = ResetRequest(
            episode_ids=ids,
            seeds=() if seed is None else (int(seed),),
            options=() if options is None else (options,),
            timeout_ms=self._reset_ms,
        )
        reply = port.reset(request)
        self._episode_ids = ids
        return self._observations.decode(reply.observation), dict(reply.infos[0])


def _check_width(contract: EnvContract) -> None:
    if contract.num_envs != 1:
        raise InvalidSpec(
            "address",
            f"{contract.id} has {contract.num_envs} lanes; use RemoteVectorEnv",
        )


def remote_env(*args: Any, **kwargs: Any) -> RemoteEnv:
    """Return a `RemoteEnv`; what `gymnasium.make` calls.

    A class says beforehand how it can render, and Gymnasium warns of any other mode. Here only the
    served env knows, and it is compared once connected.
    """
    return RemoteEnv(*args, **kwargs)
