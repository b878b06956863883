"""The announcer: builds the events that a hook wants, and logs a route's lines (R33, R36)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from rollmesh import events
from rollmesh.errors import HookFailed
from rollmesh.ports import Info
from rollmesh.runtime.hooks import Dispatcher, TransformContext, TransformFault
from rollmesh.runtime.lanes import Ending, Episode, Lane, Roster
from rollmesh.runtime.report import EpisodeSummary
from rollmesh.runtime.spec import SessionSpec
from rollmesh.spaces.codec import Leaves

logger = logging.getLogger(__name__)

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Announcer:
    """Tells the hooks of one route what happened.

    Guarantees: an event that no hook overrides is not built; every observation and action event of
    a session carries the same two space objects (rule R5).
    """

    def __init__(self, spec: SessionSpec, hooks: Dispatcher) -> None:
        self.hooks = hooks
        self.route = events.Route(spec.env_id, spec.env_component, spec.model_component)
        self._env_id = spec.env_id
        self._session_id = spec.session_id
        self._num_envs = spec.width
        self._observation_space = spec.env_contract.observation_space
        self._action_space = spec.env_contract.action_space

    def session_started(self) -> None:
        """Say that the session begins."""
        if emit := self.hooks.session_started:
            emit(
                events.SessionStarted(
                    session_id=self._session_id, route=self.route, env_id=self._env_id
                )
            )

    def session_ended(self, reason: str, total_steps: int, total_episodes: int) -> None:
        """Say that the route did what was asked."""
        if emit := self.hooks.session_ended:
            emit(
                events.SessionEnded(
                    session_id=self._session_id,
                    route=self.route,
                    reason=reason,
                    total_steps=total_steps,
                    total_episodes=total_episodes,
                )
            )

    def session_failed(self, reason: str) -> None:
        """Say that the route failed or was cancelled."""
        if emit := self.hooks.session_failed:
            emit(events.SessionFailed(session_id=self._session_id, route=self.route, reason=reason))

    def telemetry(self, snapshot: events.TelemetrySnapshot) -> None:
        """Give a snapshot to the hooks."""
        if emit := self.hooks.on_telemetry:
            emit(
                events.TelemetryEmitted(
                    session_id=self._session_id, route=self.route, snapshot=snapshot
                )
            )

    def log(self, level: str, message: str, source: str = "runtime") -> None:
        """Write a line of the route's own log, and tell the hooks."""
        logger.log(_LEVELS[level], "%s source=%s session_id=%s", message, source, self._session_id)
        if emit := self.hooks.log:
            emit(
                events.Log(
                    session_id=self._session_id,
                    route=self.route,
                    level=level,
                    message=message,
                    source=source,
                )
            )

    def episode_started(self, lane: Lane, episode: Episode, *, auto: bool) -> None:
        """Say that a planned episode begins."""
        if emit := self.hooks.episode_started:
            emit(
                events.EpisodeStarted(
                    session_id=self._session_id,
                    route=self.route,
                    episode_id=episode.id,
                    record_id=episode.record_id,
                    episode_index=episode.index,
                    env_index=lane.env_index,
                    seed=episode.seed,
                    started_from_auto_reset=auto,
                    task=episode.task,
                    attempt=episode.attempt,
                )
            )

    def observation(self, roster: Roster, observation: Leaves) -> Leaves:
        """Transform the roster's rows once, emit the result, and return it (rule R9)."""
        hooks = self.hooks
        if hooks.transform_observation is not None:
            observation = self._transform("observation", roster, observation)
        if hooks.observation_emitted is not None:
            hooks.observation_emitted(
                events.ObservationEmitted(
                    session_id=self._session_id,
                    route=self.route,
                    env_indices=roster.env_indices,
                    episode_ids=roster.episode_ids,
                    record_ids=roster.record_ids,
                    steps=roster.steps(),
                    is_reset=tuple([lane.fresh for lane in roster.lanes]),
                    num_envs=self._num_envs,
                    observation_space=self._observation_space,
                    observation=_read_only(observation),
                )
            )
        return observation

    def action(self, roster: Roster, action: Leaves) -> Leaves:
        """Transform the frame about to be applied, emit the result, and return it (rule R13)."""
        hooks = self.hooks
        if hooks.transform_action is not None:
            action = self._transform("action", roster, action)
        if hooks.action_received is not None:
            hooks.action_received(
                events.ActionReceived(
                    session_id=self._session_id,
                    route=self.route,
                    env_indices=roster.env_indices,
                    episode_ids=roster.episode_ids,
                    record_ids=roster.record_ids,
                    steps=roster.steps(),
                    action_space=self._action_space,
                    action=_read_only(action),
                )
            )
        return action

    def step(self, roster: Roster, reply: Any, rows: Leaves, endings: Mapping[int, Ending]) -> None:
        """Say what came of a step; `rows` are the roster's rows of the raw observation."""
        emit = self.hooks.step_completed
        if emit is None:
            return
        rewards, infos = reply.rewards, reply.infos
        terminated = truncated = (False,) * len(roster.lanes)
        if not roster.whole:
            rewards = tuple([rewards[lane.row] for lane in roster.lanes])
            infos = [infos[lane.row] for lane in roster.lanes]
        if endings:
            ends = [endings.get(lane.row) for lane in roster.lanes]
            terminated = tuple([end is not None and end.terminated for end in ends])
            truncated = tuple([end is not None and end.truncated for end in ends])
        emit(
            events.StepCompleted(
                session_id=self._session_id,
                route=self.route,
                env_indices=roster.env_indices,
                episode_ids=roster.episode_ids,
                record_ids=roster.record_ids,
                steps=roster.steps(),
                rewards=rewards,
                terminated=terminated,
                truncated=truncated,
                infos=tuple([_own_info(info) for info in infos]),
                observation_space=self._observation_space,
                observation=_read_only(rows),
            )
        )

    def episode_completed(
        self, summary: EpisodeSummary, record_id: str, ending: Ending, observation: Leaves
    ) -> None:
        """Say that a planned episode ended; `observation` is its last one, a batch of one row."""
        if emit := self.hooks.episode_completed:
            emit(
                events.EpisodeCompleted(
                    session_id=self._session_id,
                    route=self.route,
                    episode_id=summary.episode_id,
                    record_id=record_id,
                    episode_index=summary.index,
                    env_index=summary.env_index,
                    seed=summary.seed,
                    steps=summary.steps,
                    total_reward=summary.total_reward,
                    terminated=summary.terminated,
                    truncated=summary.truncated,
                    success=summary.success,
                    duration_s=summary.duration_s,
                    final_info=_own_info(ending.final_info),
                    observation_space=self._observation_space,
                    final_observation=_read_only(observation),
                    task=summary.task,
                    attempts=summary.attempts,
                    odd_observations=summary.odd_observations,
                )
            )

    def episode_errored(self, summary: EpisodeSummary, record_id: str) -> None:
        """Say that a planned episode was spoiled."""
        if emit := self.hooks.episode_errored:
            emit(
                events.EpisodeErrored(
                    session_id=self._session_id,
                    route=self.route,
                    episode_id=summary.episode_id,
                    record_id=record_id,
                    episode_index=summary.index,
                    env_index=summary.env_index,
                    seed=summary.seed,
                    steps=summary.steps,
                    total_reward=summary.total_reward,
                    duration_s=summary.duration_s,
                    error=summary.error or "",
                    task=summary.task,
                    attempts=summary.attempts,
                    odd_observations=summary.odd_observations,
                )
            )

    def _transform(self, what: str, roster: Roster, leaves: Leaves) -> Leaves:
        hooks = self.hooks
        is_action = what == "action"
        transform: Any = hooks.transform_action if is_action else hooks.transform_observation
        steps = roster.steps()
        context = TransformContext(
            session_id=self._session_id,
            route=self.route,
            env_indices=roster.env_indices,
            episode_ids=roster.episode_ids,
            steps=steps,
            space=self._action_space if is_action else self._observation_space,
        )
        try:
            return transform(context, leaves, len(roster.lanes))
        except TransformFault as fault:
            raise HookFailed(
                f"transform_{what} of {fault.hook_name} failed at step {steps[0]}: {fault.detail}",
                hook=fault.hook_name,
                route=self._env_id,
                operation=f"transform_{what}",
                step=steps[0],
            ) from fault.cause


def _read_only(leaves: Leaves) -> Leaves:
    """Return the leaves as a list of its own that no observer can write through."""
    return [_frozen(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]


def _frozen(array: Any) -> Any:
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _own_info(info: Info) -> Info:
    """Return a copy of an info map that shares no container with it that can be written to."""
    return {name: _own(value) for name, value in info.items()} if info else {}


def _own(value: Any) -> Any:
    kind = cast("type[Any]", type(value))
    copy = _COPIES.get(kind)
    return value if copy is None else copy(value)


_COPIES: dict[type[Any], Callable[[Any], Any]] = {
    np.ndarray: _frozen,
    dict: lambda value: {key: _own(item) for key, item in value.items()},
    list: lambda value: [_own(item) for item in value],
    tuple: lambda value: tuple([_own(item) for item in value]),
    set: set,
}
