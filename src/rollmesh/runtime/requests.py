"""Requests: the operations of a route, made from the state of its lanes (R7, R10, R20 to R24).

Owns the request counter and the ids that the model has seen; makes operations and performs none.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rollmesh.limits import timeout_ms
from rollmesh.ports import (
    AdapterContext,
    AutoresetMode,
    Info,
    PredictRequest,
    PrepareRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
    ResetRequest,
    StepRequest,
)
from rollmesh.runtime.lanes import Episode, Group, Lane, Roster
from rollmesh.runtime.operations import Operation
from rollmesh.runtime.seeds import session_seed
from rollmesh.runtime.spec import SessionSpec
from rollmesh.spaces.codec import Leaves


class Requests:
    """Makes the operations of one route; shared by its groups.

    Attributes:
        is_answered: Whether the model has answered a predict; the first may take longer.
    """

    def __init__(self, spec: SessionSpec) -> None:
        self._spec = spec
        self._take = spec.env_contract.observation_space.codec.take
        self._same_step = spec.autoreset_mode is AutoresetMode.SAME_STEP
        self._sequence = 0
        self._held_by_model: set[str] = set()
        limits = spec.limits
        self._reset_ms = timeout_ms(limits.env_reset_s)
        self._step_ms = timeout_ms(limits.env_step_s)
        self.is_answered = False
        self._first_s = limits.predict_s(is_first=True)
        self._predict_s = limits.model_predict_s
        self._predict_ms = timeout_ms(self._predict_s)

    def reset(self, group: Group, lanes: Sequence[Lane], episodes: Sequence[Episode]) -> Operation:
        """Ask for the first observations of these episodes; all lanes of the env are not named."""
        spec = self._spec
        if spec.base_seed is not None and spec.episode_seeds is None:
            for lane, episode in zip(lanes, episodes, strict=True):
                episode.seed = session_seed(
                    spec.base_seed, spec.session_id, group.generation, lane.env_index
                )
        group.generation += 1
        group.reset_since_predict = True
        indices = group.env_indices
        if len(lanes) < group.width:
            indices = tuple([lane.env_index for lane in lanes])
        options: tuple[Info | None, ...] = tuple([e.options for e in episodes])
        request = ResetRequest(
            episode_ids=tuple([e.id for e in episodes]),
            seeds=tuple([e.seed for e in episodes if e.seed is not None]),
            options=options if any([one is not None for one in options]) else (),
            timeout_ms=self._reset_ms,
            env_indices=indices,
        )
        limit_s = spec.limits.env_reset_s
        return Operation("env", "reset", request, "env.reset", lanes[0].steps, limit_s, indices)

    def predict(self, group: Group, ask: Sequence[Lane], roster: Roster, rows: Leaves) -> Operation:
        """Ask the model for the lanes of `ask`; `rows` has a row per lane of the roster."""
        if len(ask) == len(roster.lanes):
            infos = roster.adapter_infos
            if not roster.known_to_model:
                roster.known_to_model = True
                self._held_by_model.update(roster.episode_ids)
        else:
            asked = {lane.env_index for lane in ask}
            places = [i for i, lane in enumerate(roster.lanes) if lane.env_index in asked]
            rows = self._take(rows, places)
            infos = tuple([lane.adapter_info for lane in ask])
            self._held_by_model.update([info.episode_id for info in infos])
        phase = "reset_observation" if group.reset_since_predict else "step_observation"
        group.reset_since_predict = False
        spec = self._spec
        limit_s, limit_ms = self._predict_s, self._predict_ms
        if not self.is_answered:
            limit_s, limit_ms = self._first_s, timeout_ms(self._first_s)
        request = PredictRequest(
            context=self._context(phase),
            observation=rows,
            episode_info=infos,
            timeout_ms=limit_ms,
            execution_horizon=spec.execution_horizon,
        )
        return Operation("model", "predict", request, "model.predict", ask[0].steps, limit_s)

    def step(self, group: Group, action: Leaves) -> Operation:
        """Apply one action per lane; ids of rolling lanes are already those of the next episode."""
        nexts: tuple[str, ...] = ()
        if self._same_step:
            nexts = tuple([lane.spare_id for lane in group.lanes])
        request = StepRequest(
            action=action,
            episode_ids=group.request_ids(),
            timeout_ms=self._step_ms,
            env_indices=group.env_indices,
            next_episode_ids=nexts,
        )
        limit_s = self._spec.limits.env_step_s
        return Operation(
            "env", "step", request, "env.step", group.step + 1, limit_s, group.env_indices
        )

    def evict(self, episode_ids: Sequence[str]) -> Operation | None:
        """Tell the model to forget ended episodes; None where it never saw one of them (R24)."""
        held = self._held_by_model
        ids = tuple([i for i in dict.fromkeys(episode_ids) if i in held])
        if not ids:
            return None
        held.difference_update(ids)
        request = ResetAdapterRequest(self._context("reset_adapter"), ids)
        close_s = self._spec.limits.close_s
        return Operation(
            "model", "reset_adapter", request, "model.reset_adapter", 0, close_s, waits=False
        )

    def rebuild(self, group: Group) -> Operation:
        """Build the group's lanes anew from their factory (rule R29)."""
        indices = group.env_indices
        limit_s = self._spec.limits.env_connect_s
        return Operation("env", "rebuild", indices, "env.rebuild", group.step, limit_s, indices)

    def prepare(self, lane: Lane, setup: str) -> Operation:
        """Have a lane ready for an episode of this setup."""
        indices = (lane.env_index,)
        request = PrepareRequest(indices, setup)
        # its port bounds starting and building, from when it is the lane's turn
        return Operation("env", "prepare", request, "env.prepare", lane.steps, None, indices)

    def release(self, reason: str) -> list[Operation]:
        """Evict what the model still holds, then release the adapter (rule R28)."""
        close_s = self._spec.limits.close_s
        evict = self.evict(sorted(self._held_by_model))
        request = ReleaseAdapterRequest(self._context("release_adapter"), reason, close_s)
        release = Operation(
            "model", "release_adapter", request, "model.release_adapter", 0, close_s
        )
        if evict is None:
            return [release]
        return [msgspec.structs.replace(evict, waits=True), release]

    def _context(self, phase: str) -> AdapterContext:
        self._sequence += 1
        spec = self._spec
        request_id = f"{spec.env_id}:{phase}:{self._sequence:06d}"
        return AdapterContext(spec.session_id, spec.env_id, request_id)
