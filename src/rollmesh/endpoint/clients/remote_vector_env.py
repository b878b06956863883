"""`RemoteVectorEnv`: a served env as a `gymnasium.vector.VectorEnv` (layer 6).

Importing this module imports Gymnasium; `rollmesh.RemoteVectorEnv` does so when it is first used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode as TheirMode
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rollmesh.endpoint.clients.client_options import ClientOptions, Connecting
from rollmesh.endpoint.clients.env_client import RemoteEnvPort
from rollmesh.endpoint.clients.env_face import (
    EnvFace,
    check_options,
    check_render_mode,
    check_seed,
)
from rollmesh.endpoint.clients.remote_calls import not_reset
from rollmesh.endpoint.envs.vector_infos import merge_infos
from rollmesh.errors import InvalidSpec
from rollmesh.ids import MINT
from rollmesh.limits import Limits
from rollmesh.ports import (
    PARTIAL_RESET,
    SUBSET_STEP,
    AutoresetMode,
    EnvContract,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.spaces.codec import Leaves
from rollmesh.spaces.gymnasium import to_gymnasium

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MASK = "reset_mask"


class RemoteVectorEnv(EnvFace, VectorEnv[Any, Any, Any]):  # pyright: ignore[reportIncompatibleVariableOverride] - spec
    """A served env with any number of lanes, used like a local vector env; a context manager.

    Its autoreset mode is the server's (`metadata["autoreset_mode"]`). Where the served env can
    reset single lanes, `reset(options={"reset_mask": mask})` does so, as in Gymnasium.

    Everything else is as in `RemoteEnv`.

    Args:
        address: Where the env is served.
        options: How to connect, as a whole.
        limits: How long connecting, a reset, a step, and closing may take.
        num_envs: How many lanes are expected; checked.
        render_mode: What the caller expects the server to render; checked.
        port: A connection to that address to take over.
        connecting: How to connect, one by one as in `rollmesh.connect`: `token`, `token_file`,
            `tls`, `transport`, `resume_grace_s`, `insecure_plaintext`.

    Attributes:
        port: What the runtime drives.
        address: Where it is served.

    Raises:
        InvalidSpec: That is no address, the options do not go with it, or the env has another
            width or render mode.
        EndpointFault: Nobody answered in time, or the server refused.

    Guarantees: observations are the caller's own, and may be written into.
    """

    def __init__(
        self,
        address: str = "",  # gymnasium.make prints all values where Python misses one
        *,
        options: ClientOptions | None = None,
        limits: Limits | None = None,
        num_envs: int | None = None,
        render_mode: str | None = None,
        port: RemoteEnvPort | None = None,
        **connecting: Unpack[Connecting],
    ) -> None:
        self._connect(address, options, connecting, limits=limits, port=port)
        contract = self.contract
        try:
            _check_width(contract, num_envs)
            check_render_mode(render_mode, contract)
        except BaseException:
            self.close()
            raise
        self.num_envs = contract.num_envs
        single: Any = to_gymnasium(contract.observation_space)
        single_action: Any = to_gymnasium(contract.action_space)
        self.single_observation_space, self.single_action_space = single, single_action
        self.observation_space = batch_space(single, self.num_envs)
        self.action_space = batch_space(single_action, self.num_envs)
        mode = contract.autoreset_mode
        name = mode.name if mode.name in TheirMode.__members__ else "DISABLED"
        self.metadata = {**contract.metadata, "autoreset_mode": TheirMode[name]}
        self.render_mode = contract.render_mode
        self._rolls = mode is AutoresetMode.NEXT_STEP
        self._same_step = mode is AutoresetMode.SAME_STEP
        self._ids: list[str] = []
        self._spare_ids: tuple[str, ...] = ()
        self._ended: list[int] = []
        self._current: Leaves = []

    # ------------------------------------------------------------------------------- gymnasium

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes on all lanes, or on those of `options["reset_mask"]`.

        An int seeds lane i with `seed + i`.

        Raises:
            InvalidSpec: A seed or the mask is wrong, or the env is closed.
            EnvFailed: The env failed, or cannot be reached.
            OperationTimeout: It did not come back in time.
        """
        self._check_open("reset")
        lanes, plain = self._lanes_of(options)
        seeds = self._seeds_of(seed, lanes)
        self._seed_own(seed)
        request_options = () if plain is None else (plain,) * len(lanes)
        limit_s = self._limits.env_reset_s
        return self._calls.do("reset", self._reset, lanes, seeds, request_options, limit_s=limit_s)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Apply an action per lane.

        Raises:
            InvalidSpec: No episode is under way, or the last one of a lane that does not reset
                itself has ended, or the env is closed.
            InvalidValue: The actions do not fit their space; nothing was sent.
            EnvFailed: The env failed, or its session is lost.
            OperationTimeout: It did not come back in time.
        """
        if not self._ids:
            self._check_open("step")
            raise not_reset("step")
        leaves = self._actions.encode_stacked(actions, self.num_envs, self._checker)
        if self._ended:
            self._roll()
        request = StepRequest(
            action=leaves,
            episode_ids=tuple(self._ids),
            timeout_ms=self._step_ms,
            next_episode_ids=self._spare_ids,
        )
        try:
            reply = self._calls.do("step", self.port.step, request, limit_s=self._limits.env_step_s)
        except BaseException:
            if self.port.session.is_lost:
                self._ids = []
            raise
        return self._stepped(reply)

    def render(self) -> Any:
        """Return what the served env renders; a tuple where each lane is an env of its own.

        A foreign server renders the first lane only.

        Raises:
            InvalidSpec: The env is closed.
            EnvFailed: The env failed.
            OperationTimeout: A lane did not come back in time.
        """
        if self.port.is_foreign or SUBSET_STEP not in self.port.capabilities:
            return super().render()
        self._check_open("render")
        limit_s = self._limits.env_step_s
        render, lanes = self.port.render, range(self.num_envs)
        return self._calls.do(
            "render", lambda: tuple([render((lane,), limit_s) for lane in lanes]), limit_s=limit_s
        )

    def close_extras(self, **kwargs: Any) -> None:
        """End the session; called by `close`, which does nothing when called again."""
        del kwargs
        self._ids = []
        self._end()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r}, num_envs={self.num_envs})"

    # ------------------------------------------------------------------------------- inside

    def _reset(
        self,
        lanes: tuple[int, ...],
        seeds: tuple[int, ...],
        options: tuple[Mapping[str, Any], ...],
    ) -> tuple[Any, dict[str, Any]]:
        port = self.port
        port.forget_interrupt()
        is_all = len(lanes) == self.num_envs
        if port.session.is_lost:
            if not is_all:
                raise InvalidSpec(
                    "options['reset_mask']", "the session was lost: reset all lanes first"
                )
            port.rebuild(())
        ids = [MINT.mint() for _ in lanes]
        request = ResetRequest(
            episode_ids=tuple(ids),
            seeds=seeds,
            options=options,
            timeout_ms=self._reset_ms,
            env_indices=() if is_all else lanes,
        )
        reply: ResetReply = port.reset(request)
        if is_all:
            self._ids, self._ended, self._current = ids, [], reply.observation
        else:
            for lane, episode_id in zip(lanes, ids, strict=True):
                self._ids[lane] = episode_id
            self._ended = [lane for lane in self._ended if lane not in lanes]
            self._current = self._observations.put(self._current, lanes, reply.observation)
        if self._same_step:
            self._spare_ids = tuple([MINT.mint() for _ in range(self.num_envs)])
        infos = merge_infos(dict(zip(lanes, reply.infos, strict=True)), self.num_envs)
        return self._decoded(), infos

    def _roll(self) -> None:
        """Let ended lanes begin anew with this step, where the env resets itself."""
        if not self._rolls:
            by_mask = f"reset(options={{{_MASK!r}: terminated | truncated}})"
            cure = by_mask if self._can_reset_lanes else "reset()"
            raise InvalidSpec(
                "step",
                f"the episodes of lanes {sorted(self._ended)} have ended, and the env's autoreset "
                f"mode is DISABLED; call {cure} first",
            )
        for lane in self._ended:
            self._ids[lane] = MINT.mint()
        self._ended = []

    def _stepped(self, reply: StepReply) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        count = self.num_envs
        terminated, truncated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        finals: dict[int, dict[str, Any]] = {}
        self._current = reply.observation
        for end in reply.completions:
            lane = end.env_index
            terminated[lane], truncated[lane] = end.terminated, end.truncated
            if not self._same_step:
                self._ended.append(lane)
            elif end.final_observation is not None:
                final = self._observations.decode(end.final_observation)
                finals[lane] = {"final_obs": final, "final_info": dict(end.final_info or {})}
        if finals:
            spares = list(self._spare_ids)
            for lane in finals:
                self._ids[lane], spares[lane] = spares[lane], MINT.mint()
            self._spare_ids = tuple(spares)
        if not finals and not any(reply.infos):
            infos: dict[str, Any] = {}
        else:
            rows = {i: {**finals.get(i, {}), **info} for i, info in enumerate(reply.infos)}
            infos = merge_infos(rows, count)
        rewards = np.array(reply.rewards, np.float64)
        return self._decoded(), rewards, terminated, truncated, infos

    def _decoded(self) -> Any:
        # lanes that are not reset keep their rows, so that what is given out must be another copy
        keeps = self._can_reset_lanes
        return self._observations.decode_stacked(self._current, self.num_envs, copy=keeps)

    @property
    def _can_reset_lanes(self) -> bool:
        return bool(self.port.capabilities & {PARTIAL_RESET, SUBSET_STEP}) and self.num_envs > 1

    def _lanes_of(
        self, options: Mapping[str, Any] | None
    ) -> tuple[tuple[int, ...], Mapping[str, Any] | None]:
        """Return which lanes to reset, and the options without the mask."""
        everyone = tuple(range(self.num_envs))
        if options is None:
            return everyone, None
        check_options(options)
        if _MASK not in options:
            return everyone, options
        mask: np.ndarray[Any, np.dtype[Any]] | None = options[_MASK]
        field = f"options[{_MASK!r}]"
        if (
            not isinstance(mask, np.ndarray)
            or mask.dtype != np.bool_
            or mask.shape != (self.num_envs,)
            or not mask.any()
        ):
            raise InvalidSpec(
                field, f"wants {self.num_envs} bools in an array, one True at least, got {mask!r}"
            )
        lanes = tuple([int(lane) for lane in np.flatnonzero(mask)])
        if len(lanes) < self.num_envs:
            if not self._can_reset_lanes:
                raise InvalidSpec(field, "the served env cannot reset single lanes; reset all")
            if not self._ids:
                raise InvalidSpec(field, "no episode is under way; reset all lanes first")
        rest = {key: value for key, value in options.items() if key != _MASK}
        return lanes, rest or None

    def _seeds_of(
        self, seed: int | Sequence[int | None] | None, lanes: tuple[int, ...]
    ) -> tuple[int, ...]:
        if seed is None:
            return ()
        if hasattr(seed, "__index__"):
            first = int(seed)  # type: ignore[arg-type]
            seeds: list[int | None] = [first + lane for lane in range(self.num_envs)]
        else:
            seeds = list(seed)  # type: ignore[arg-type]
        if len(seeds) != self.num_envs:
            raise InvalidSpec("seed", f"wants one per lane ({self.num_envs}), got {len(seeds)}")
        chosen = [seeds[lane] for lane in lanes]
        if all(one is None for one in chosen):
            return ()
        for lane, one in zip(lanes, chosen, strict=True):
            if one is None:
                raise InvalidSpec(f"seed[{lane}]", "give a seed to every lane or to none")
            check_seed(f"seed[{lane}]", one)
        return tuple([int(one) for one in chosen if one is not None])

    def _seed_own(self, seed: int | Sequence[int | None] | None) -> None:
        if seed is not None and hasattr(seed, "__index__"):
            self._np_random, self._np_random_seed = gymnasium.utils.seeding.np_random(int(seed))  # type: ignore[arg-type]


def _check_width(contract: EnvContract, num_envs: int | None) -> None:
    served = contract.num_envs
    if num_envs is not None and num_envs != served:
        lanes = "1 lane" if served == 1 else f"{served} lanes"
        cure = "; vectorization_mode='sync' connects once per lane" if served == 1 else ""
        raise InvalidSpec(
            "num_envs",
            f"is {num_envs}, but {contract.id} is served with {lanes}; "
            f"give {served} (make_vec asks for 1 where it is left out){cure}",
        )
