"""A scalar env as an env port: anything with the shape of `gymnasium.Env` (layer 6).

Calls the env on whatever thread calls the port. The env resets only when asked to: an ended
episode is left alone (autoreset DISABLED).
"""

from __future__ import annotations

from typing import Any

from rollmesh.endpoint.envs.contracts import scalar_contract
from rollmesh.endpoint.envs.step_values import (
    bad_step,
    own_options,
    read_flag,
    read_info,
    read_reset,
    read_reward,
)
from rollmesh.endpoint.faults import fault_from
from rollmesh.endpoint.reporting import OnceReporter
from rollmesh.errors import EndpointFault, InvalidValue
from rollmesh.ports import (
    NO_INFO,
    Completion,
    EnvContract,
    OddValue,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.spaces.conformance import Checker, Found


class GymEnvPort:
    """Drives one scalar env.

    Guarantees: observations and infos are copies, so the env may reuse its buffers; actions are
    fresh arrays, so the env may write into them; seeds arrive as the exact Python int; rewards
    are exactly `float(reward)`.
    """

    capabilities: frozenset[str] = frozenset()

    def __init__(
        self,
        env: Any,
        *,
        env_index: int = 0,
        checker: Checker | None = None,
        reporter: OnceReporter | None = None,
    ) -> None:
        """Take over an env; `env_index` is its lane in errors and completions.

        Raises:
            InvalidSpec: A space is missing or cannot be carried.
        """
        self._reporter = reporter or OnceReporter()
        self.contract: EnvContract = scalar_contract(env, self._reporter)
        self.env = env
        self._env_index = env_index
        self._checker = None if checker is None else checker.keeping()
        found = None if self._checker is None else self._checker.found
        self._found: list[Found] = [] if found is None else found
        self._observations = self.contract.observation_space.codec
        self._actions = self.contract.action_space.codec
        # None where the size varies from row to row
        self._observation_bytes = self._observations.row_bytes
        self._action_bytes = self._actions.row_bytes
        # bound once: the step path is hot
        self._encode = self._observations.encode
        self._encode_step = self._encode
        self._decode = self._actions.decode
        self._env_step = env.step

    def lend_observations(self) -> None:
        """Have steps return observations that share memory with the env's own.

        For whoever is done with them before the env is called again: a server, which sends them.
        """
        self._encode_step = self._observations.lending.encode

    def reset(self, request: ResetRequest) -> ResetReply:
        """Reset the env with the request's seed and options.

        Raises:
            EndpointFault: The env raised, exited or answered nonsense.
        """
        seed = request.seeds[0] if request.seeds else None
        options = request.options[0] if request.options else None
        lane = self._env_index
        try:
            result = self.env.reset(seed=seed, options=own_options(options))
        except BaseException as exc:
            raise fault_from(exc, env_index=lane, where="env.reset") from exc
        observation, info = read_reset(result)
        try:
            leaves = self._encode(observation, self._checker)
        except InvalidValue as exc:
            self._found.clear()
            raise _unfit(exc, lane) from exc
        return ResetReply(
            observation=leaves,
            infos=(read_info(info, self._reporter, lane),),
            odd=self._take_odd() if self._found else (),
            response_bytes=self._observations.nbytes(leaves, 1),
        )

    def step(self, request: StepRequest) -> StepReply:
        """Apply one action.

        Raises:
            EndpointFault: The env raised, exited or answered nonsense.
        """
        lane = self._env_index
        try:
            result = self._env_step(self._decode(request.action, 0, copy=True))
        except BaseException as exc:
            raise fault_from(exc, env_index=lane) from exc
        info: dict[str, Any] | list[Any] | None
        try:
            observation, reward, terminated, truncated, info = result
        except (TypeError, ValueError) as exc:
            raise bad_step(result) from exc
        if type(reward) is not float:
            reward = read_reward(reward, lane)
        if reward != reward:  # noqa: PLR0124 - NaN
            self._reporter("reward", "is NaN; kept as NaN for this episode")
        if terminated is not False and terminated is not True:
            terminated = read_flag("terminated", terminated, lane)
        if truncated is not False and truncated is not True:
            truncated = read_flag("truncated", truncated, lane)
        try:
            leaves = self._encode_step(observation, self._checker)
        except InvalidValue as exc:
            self._found.clear()
            raise _unfit(exc, lane) from exc
        # an empty dict is the common case and needs no copy
        if type(info) is dict and not info:
            infos = NO_INFO
        else:
            infos = read_info(info, self._reporter, lane)
        sent, got = self._action_bytes, self._observation_bytes
        reply = StepReply(
            observation=leaves,
            rewards=(reward,),
            infos=(infos,),
            completions=(
                (
                    Completion(
                        env_index=lane,
                        terminated=terminated,
                        truncated=truncated,
                        final_info=infos,
                    ),
                )
                if terminated or truncated
                else ()
            ),
            request_bytes=self._actions.nbytes(request.action, 1) if sent is None else sent,
            response_bytes=self._observations.nbytes(leaves, 1) if got is None else got,
        )
        if self._found:
            reply.odd = self._take_odd()
        return reply

    def _take_odd(self) -> tuple[OddValue, ...]:
        """Return what the space does not hold of the last observation, each kind and path once."""
        kinds = dict.fromkeys([(kind, path) for kind, path, _ in self._found])
        self._found.clear()
        return tuple([OddValue(0, kind, path) for kind, path in kinds])

    def close(self, timeout_s: float | None) -> None:  # noqa: ARG002 - cannot interrupt the env
        """Close the env, if it can be closed.

        Raises:
            EndpointFault: The env raised or exited.
        """
        close = getattr(self.env, "close", None)
        if close is None:
            return
        try:
            close()
        except BaseException as exc:
            raise fault_from(exc, env_index=self._env_index, where="env.close") from exc


def _unfit(exc: InvalidValue, lane: int) -> EndpointFault:
    """Turn an observation that does not fit its space into the fault of the env."""
    fault = fault_from(exc, outcome="done", env_index=lane)
    fault.is_recoverable = True
    return fault
