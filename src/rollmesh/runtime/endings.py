"""Ends: which episodes ended with a step, by the env's word or a cap (R22, R23, R25, R27)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from rollmesh.errors import ProtocolError
from rollmesh.ports import AutoresetMode, Completion, StepReply
from rollmesh.runtime.lanes import Ending, Group, Lane, Roster
from rollmesh.runtime.spec import SessionSpec

logger = logging.getLogger(__name__)


class EndReader:
    """Reads the ends of one route's steps."""

    def __init__(self, spec: SessionSpec, warn: Callable[[str], None]) -> None:
        self._spec = spec
        self._warn = warn
        self._same_step = spec.autoreset_mode is AutoresetMode.SAME_STEP
        self._told_count = False
        self.caps = (
            spec.max_episode_steps is not None
            or spec.max_episode_seconds is not None
            or any([start.max_steps is not None for start in spec.starts or ()])
        )

    def read(self, group: Group, roster: Roster, reply: StepReply) -> dict[int, Ending]:
        """Return the ends of a step by row of the group, at most one a lane.

        Raises:
            ProtocolError: The env broke the contract of an end.
        """
        endings: dict[int, Ending] = {}
        for completion in reply.completions:
            lane = self._lane(group, completion)
            if lane is None or lane.row in endings:
                continue
            if lane.moves:  # an unscored lane is not counted here
                self._compare_count(lane, completion)
            endings[lane.row] = self._ending(group, lane, completion, reply)
        if self.caps:
            self._apply_caps(roster, reply, endings)
        return endings

    def _lane(self, group: Group, completion: Completion) -> Lane | None:
        """Return the lane that an end concerns; None where it is stale or a repetition."""
        lane = group.by_index.get(completion.env_index)
        if lane is None:
            raise self._error(
                f"reported an end of lane {completion.env_index}, but the step was of lanes "
                f"{[one.env_index for one in group.lanes]}",
                group,
            )
        current = lane.next or lane.episode
        if current is None:
            return None
        if completion.episode_id and completion.episode_id != current.id:
            logger.debug(
                "stale_completion env_index=%d episode_id=%s", lane.env_index, completion.episode_id
            )
            return None
        if lane.next is not None:
            raise self._error(
                f"reported an end of lane {lane.env_index} on the step that resets it; the first "
                "step of an episode cannot end it under NEXT_STEP",
                group,
            )
        return lane

    def _ending(self, group: Group, lane: Lane, completion: Completion, reply: StepReply) -> Ending:
        info, observation = completion.final_info, completion.final_observation
        if self._same_step and (info is None or observation is None):
            raise self._error(
                f"ended the episode of lane {lane.env_index} under SAME_STEP without "
                "final_observation and final_info; the step's own ones belong to the next episode",
                group,
            )
        return Ending(
            lane=lane,
            terminated=completion.terminated,
            truncated=completion.truncated,
            final_info=reply.infos[lane.row] if info is None else info,
            final_observation=observation,
        )

    def _compare_count(self, lane: Lane, completion: Completion) -> None:
        steps, reward = completion.step_count, completion.cumulative_reward
        total = lane.total_reward
        differs = (steps is not None and steps != lane.steps) or (
            reward is not None
            and reward != total
            and not (math.isnan(reward) and math.isnan(total))
        )
        if differs and not self._told_count:
            self._told_count = True
            self._warn(
                f"{self._spec.env_component} counted {steps} steps and reward {reward} on lane "
                f"{lane.env_index}, the runtime {lane.steps} and {total}; the runtime's "
                "are reported"
            )

    def _apply_caps(self, roster: Roster, reply: StepReply, endings: dict[int, Ending]) -> None:
        steps, seconds = self._spec.max_episode_steps, self._spec.max_episode_seconds
        for lane in roster.lanes:
            if lane.row in endings:
                continue
            late = seconds is not None and (reply.ended_ns - lane.started_ns) / 1e9 >= seconds
            own = lane.episode.max_steps if lane.episode is not None else None
            most = steps if own is None else own
            if late or (most is not None and lane.steps >= most):
                endings[lane.row] = Ending(
                    lane=lane, terminated=False, truncated=True, final_info=reply.infos[lane.row]
                )

    def _error(self, what: str, group: Group) -> ProtocolError:
        return ProtocolError(
            f"{self._spec.env_component} {what}",
            route=self._spec.env_id,
            component=self._spec.env_component,
            operation="env.step",
            step=group.step,
        )
