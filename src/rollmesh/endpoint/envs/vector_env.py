"""A vector env as an env port: Gymnasium's, and anything of that shape (layer 6).

All lanes step together. The env's declared autoreset mode decides who resets an ended lane:

- DISABLED: the runtime, by a masked reset where the env takes one.
- NEXT_STEP: the env, on its next step, or the runtime by a masked reset.
- SAME_STEP: the env, within the ending step; `final_obs` and `final_info` tell how the episode
  ended, while that step's observation and infos already belong to the next one.

A masked reset is `env.reset(seed=[…], options={"reset_mask": mask})`, as Gymnasium's Sync and
AsyncVectorEnv take it since 1.1. Another env says so by an attribute `supports_reset_mask = True`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, TypeAlias

import numpy as np

from rollmesh.endpoint.envs.contracts import vector_contract
from rollmesh.endpoint.envs.step_values import (
    bad_step,
    nonsense,
    own_options,
    read_flags,
    read_reset,
    read_rewards,
)
from rollmesh.endpoint.envs.vector_gymnasium import keep_final_observations, takes_reset_mask
from rollmesh.endpoint.envs.vector_infos import split_infos
from rollmesh.endpoint.envs.vector_workers import Workers
from rollmesh.endpoint.reporting import OnceReporter
from rollmesh.errors import EndpointFault, InvalidValue
from rollmesh.ports import (
    NO_INFO,
    PARTIAL_RESET,
    AutoresetMode,
    Completion,
    EnvContract,
    Info,
    OddValue,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.spaces.codec import Codec, Leaves
from rollmesh.spaces.conformance import Checker, Found
from rollmesh.spaces.metadata import carry

_FINAL_OBSERVATION = ("final_obs", "final_observation")
_FINAL_INFO = "final_info"

_Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_Infos: TypeAlias = "Mapping[str, Any] | list[Any] | tuple[Any, ...] | None"


class VectorEnvPort:
    """Drives one vector env; requests without `env_indices` concern all lanes.

    Guarantees: observations and infos are copies; an info holds its own lane's values only.
    """

    def __init__(
        self,
        env: Any,
        *,
        checker: Checker | None = None,
        reporter: OnceReporter | None = None,
    ) -> None:
        """Take over a vector env.

        Raises:
            InvalidSpec: A space is missing or cannot be carried, or the mode is unknown.
        """
        self._reporter = reporter or OnceReporter()
        self.contract: EnvContract = vector_contract(env, self._reporter)
        self.env = env
        self._count = self.contract.num_envs
        self._checker = None if checker is None else checker.keeping()
        found = None if self._checker is None else self._checker.found
        self._found: list[Found] = [] if found is None else found
        self._final_odd: list[OddValue] = []
        self._observations = self.contract.observation_space.codec
        self._step_observations = self._observations
        self._actions = self.contract.action_space.codec
        self._workers = Workers(env)
        self._same_step = self.contract.autoreset_mode is AutoresetMode.SAME_STEP
        if self._same_step:
            keep_final_observations(env)
        self._no_infos: tuple[Info, ...] = (NO_INFO,) * self._count
        self._was_reset = False
        self.capabilities: frozenset[str] = (
            frozenset({PARTIAL_RESET})
            if not self._same_step and takes_reset_mask(env, self.contract.autoreset_mode)
            else frozenset()
        )

    def lend_observations(self) -> None:
        """Have steps return observations that share memory with the env's own.

        For whoever is done with them before the env is called again: a server, which sends them.
        """
        self._step_observations = self._observations.lending

    # ------------------------------------------------------------------------------- reset

    def reset(self, request: ResetRequest) -> ResetReply:
        """Reset all lanes, or the named ones by a masked reset.

        Lanes whose options differ are reset one group after the other, each with its options.

        Raises:
            EndpointFault: The env raised, exited or answered nonsense, or cannot reset the lanes
                this way.
        """
        lanes = request.env_indices or tuple(range(self._count))
        whole = len(lanes) == self._count
        seeds: list[int | None] = [None] * self._count
        for lane, seed in zip(lanes, request.seeds, strict=False):
            seeds[lane] = seed
        groups = _by_options(lanes, request.options)
        if (not whole or len(groups) > 1) and PARTIAL_RESET not in self.capabilities:
            raise self._cannot_mask(whole=whole)
        if len(groups) > 1 and not self._was_reset and groups[0][0] is not None:
            groups.insert(0, (None, ()))  # no lane sees the options of another
        pieces: dict[int, tuple[Leaves, int]] = {}
        infos: dict[int, Info] = {}
        odd: list[OddValue] = []
        for options, members in groups:
            # The very first reset must give every lane an observation.
            masked = not (whole and len(groups) == 1) and self._was_reset
            leaves, rows = self._reset_lanes(
                members if masked else tuple(range(self._count)), seeds, options, masked=masked
            )
            self._was_reset = True
            for lane in members:
                pieces[lane] = (leaves, lane)
                infos[lane] = rows[lane]
            if self._found:
                places = {lane: row for row, lane in enumerate(lanes)}
                odd += self._take_odd({lane: places[lane] for lane in members})
        observation = (
            pieces[0][0]
            if whole and len(groups) == 1
            else self._observations.gather([pieces[lane] for lane in lanes])
        )
        return ResetReply(
            observation=observation,
            infos=tuple(infos[lane] for lane in lanes),
            odd=tuple(odd),
            response_bytes=self._observations.nbytes(observation, len(lanes)),
        )

    def _reset_lanes(
        self,
        lanes: tuple[int, ...],
        seeds: list[int | None],
        options: Info | None,
        *,
        masked: bool,
    ) -> tuple[Leaves, tuple[Info, ...]]:
        """Call the env's reset once; return its whole batch and an info per lane of the env."""
        given = own_options(options)
        if masked:
            mask = np.zeros(self._count, np.bool_)
            mask[list(lanes)] = True
            given = {**(given or {}), "reset_mask": mask}
        chosen: Any = None if all(seed is None for seed in seeds) else seeds
        try:
            result = self.env.reset(seed=chosen, options=given)
        except BaseException as exc:
            raise self._workers.fault_from(exc, "env.reset") from exc
        observation, infos = read_reset(result)
        return self._encode(observation, self._observations), self._infos(infos)

    def _cannot_mask(self, *, whole: bool) -> EndpointFault:
        wanted = "lanes with different options" if whole else "some lanes only"
        return EndpointFault(
            f"{self.contract.id} cannot reset {wanted}: it takes no reset_mask; use "
            "Gymnasium's SyncVectorEnv or AsyncVectorEnv, or independent lanes from a factory",
            error_class="Unsupported",
            is_recoverable=True,
            outcome="not_done",
        )

    # -------------------------------------------------------------------------------- step

    def step(self, request: StepRequest) -> StepReply:
        """Apply one action per lane.

        Raises:
            EndpointFault: The env raised, exited or answered nonsense.
        """
        count = self._count
        try:
            action = self._actions.decode_stacked(request.action, count, copy=True)
            result = self.env.step(action)
        except BaseException as exc:
            raise self._workers.fault_from(exc, "env.step") from exc
        infos: _Infos
        try:
            observation, rewards, terminated, truncated, infos = result
        except (TypeError, ValueError) as exc:
            raise bad_step(result) from exc
        row_rewards = read_rewards(rewards, count)
        if isnan(sum(row_rewards)):  # one of them may be NaN
            self._check_nan(row_rewards)
        ends = read_flags("terminated", terminated, count)
        cuts = read_flags("truncated", truncated, count)
        over: list[int] = []
        if True in ends or True in cuts:
            over = [lane for lane in range(count) if ends[lane] or cuts[lane]]
        finals: Mapping[str, Any] = {}
        if self._same_step and isinstance(infos, (Mapping, list, tuple)):
            finals, infos = _take_finals(infos)
        leaves = self._encode(observation, self._step_observations)
        odd = self._take_odd(range(count)) if self._found else []
        row_infos = self._infos(infos)
        completions = self._completions(over, (ends, cuts), row_infos, finals) if over else ()
        if self._final_odd:
            odd += self._final_odd
            self._final_odd.clear()
        return StepReply(
            observation=leaves,
            rewards=row_rewards,
            infos=row_infos,
            completions=completions,
            odd=tuple(odd),
            request_bytes=self._actions.nbytes(request.action, count),
            response_bytes=self._observations.nbytes(leaves, count),
        )

    def _completions(
        self,
        over: list[int],
        flags: tuple[list[bool], list[bool]],
        infos: tuple[Info, ...],
        finals: Mapping[str, Any],
    ) -> tuple[Completion, ...]:
        final_infos: tuple[Info | None, ...] = infos
        if self._same_step:
            said = finals.get(_FINAL_INFO)
            final_infos = (None,) * self._count if said is None else self._infos(said)
        return tuple(
            Completion(
                env_index=lane,
                terminated=flags[0][lane],
                truncated=flags[1][lane],
                final_info=final_infos[lane],
                final_observation=self._final_observation(finals, lane),
            )
            for lane in over
        )

    def _final_observation(self, finals: Mapping[str, Any], lane: int) -> Leaves | None:
        """Return the ended lane's last observation as a batch of one row, if the env told it."""
        said: _Array | Mapping[str, Any] | tuple[Any, ...] | list[Any] | None
        said = next((finals[key] for key in _FINAL_OBSERVATION if key in finals), None)
        if said is None:
            return None
        try:
            if isinstance(said, list) or (isinstance(said, np.ndarray) and said.dtype == object):
                if said[lane] is None:
                    return None
                leaves = self._observations.encode(said[lane], self._checker)
                odd = self._take_odd(None)
            else:
                batch = self._observations.encode_stacked(said, self._count, self._checker)
                leaves = self._observations.take(batch, (lane,))
                odd = self._take_odd({lane: lane})
        except InvalidValue as exc:
            self._found.clear()
            self._final_odd.clear()
            raise nonsense(f"final {exc}", env_index=lane) from exc
        self._final_odd += [OddValue(lane, one.kind, one.path, is_final=True) for one in odd]
        return leaves

    # ------------------------------------------------------------------------------- close

    def close(self, timeout_s: float | None) -> None:  # noqa: ARG002 - cannot interrupt the env
        """Close the env; workers of a broken AsyncVectorEnv are ended instead.

        Raises:
            EndpointFault: The env raised or exited.
        """
        if self._workers.broken:
            self._workers.tear_down()
            return
        close = getattr(self.env, "close", None)
        if close is None:
            return
        try:
            close()
        except BaseException as exc:
            raise self._workers.fault_from(exc, "env.close") from exc

    # ------------------------------------------------------------------------------ shared

    def _encode(self, observation: Any, codec: Codec) -> Leaves:
        try:
            return codec.encode_stacked(observation, self._count, self._checker)
        except InvalidValue as exc:
            self._found.clear()
            raise nonsense(str(exc)) from exc

    def _take_odd(self, rows: Mapping[int, int] | Sequence[int] | None) -> list[OddValue]:
        """Return what the space does not hold of what was encoded last; each only once.

        Args:
            rows: The row in the reply of a lane; lanes that are missing are left out. None: what
                was encoded was one row.
        """
        kinds: dict[tuple[int, str, str], None] = {}
        for kind, path, lanes in self._found:
            for lane in lanes if rows is not None else (0,):
                if rows is None or lane in rows:
                    kinds[0 if rows is None else rows[lane], kind, path] = None
        self._found.clear()
        return [OddValue(row, kind, path) for row, kind, path in kinds]

    def _infos(self, infos: _Infos) -> tuple[Info, ...]:
        if isinstance(infos, dict) and not infos:
            return self._no_infos
        if infos is None:
            self._reporter("info", "is None where a dict is expected; taken as empty")
            return self._no_infos
        try:
            rows = split_infos(infos, self._count)
        except TypeError as exc:
            raise nonsense(f"info: {exc}") from exc
        report = self._reporter
        return tuple(carry(row, report) if row else NO_INFO for row in rows)

    def _check_nan(self, rewards: tuple[float, ...]) -> None:
        for lane, reward in enumerate(rewards):
            if isnan(reward):
                self._reporter(
                    "reward", f"is NaN (lane {lane} first); kept as NaN for that episode"
                )
                return


def _by_options(
    lanes: tuple[int, ...], options: tuple[Info | None, ...]
) -> list[tuple[Info | None, tuple[int, ...]]]:
    """Group lanes by equal options: first those without any, then in the order they appear."""
    if not options or all(given is None for given in options):
        return [(None, lanes)]
    groups: list[tuple[Info | None, list[int]]] = []
    for lane, given in zip(lanes, options, strict=True):
        for known, members in groups:
            if _same_options(known, given):
                members.append(lane)
                break
        else:
            groups.append((given, [lane]))
    groups.sort(key=lambda group: group[0] is not None)
    return [(given, tuple(members)) for given, members in groups]


def _same_options(one: Info | None, other: Info | None) -> bool:
    if one is other:
        return True
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - arrays have no single truth value
        return False


def _take_finals(
    infos: Mapping[str, Any] | Sequence[Any],
) -> tuple[Mapping[str, Any], Mapping[str, Any] | list[Any]]:
    """Part what belongs to ended episodes from the infos of the step, of either form."""
    keys = (*_FINAL_OBSERVATION, _FINAL_INFO)
    if isinstance(infos, Mapping):
        left_out = {*keys, *[f"_{key}" for key in keys]}
        finals = {key: infos[key] for key in keys if key in infos}
        return finals, {key: value for key, value in infos.items() if key not in left_out}
    finals: dict[str, Any] = {}
    rest: list[Any] = list(infos)
    row: Mapping[str, Any] | str | None
    for lane, row in enumerate(rest):
        if isinstance(row, Mapping):
            for key in keys:
                if key in row:
                    finals.setdefault(key, [None] * len(rest))[lane] = row[key]
            rest[lane] = {key: value for key, value in row.items() if key not in keys}
    return finals, rest
