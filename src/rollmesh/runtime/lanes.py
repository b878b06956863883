"""Lanes and the episodes on them: the state that a group keeps, and nothing that waits.

A lane is in one of four states, told by two fields:

    episode   next      the lane is
    -------   -------   --------------------------------------------------------------
    None      None      idle: it is in no request (only where it is a group of its own)
    planned   None      moving: it plans, acts and counts
    planned   set       rolling (NEXT_STEP): its episode ended, the next step resets it
    unplanned any       unscored: it is stepped because its group is, and never reported
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from rollmesh.ports import EpisodeInfo, Info
from rollmesh.spaces.codec import Leaves
from rollmesh.spaces.conformance import OddObservations

_MOST_ODD = 32
"""Kinds and paths of odd observations that an episode counts apart."""
_MOST_KIND_CHARS, _MOST_PATH_CHARS = 32, 256


@dataclass(slots=True)
class Episode:
    """One rollout on one lane.

    Attributes:
        id: Its UUIDv7.
        index: Plan index, or start order without a plan; -1 when unplanned.
        seed: The seed sent for it, once one was.
        options: Reset options, or None.
        planned: False for the filler of an unscored lane.
        record_id: `ep-000001`…, in start order; `""` before the start.
        attempt: Which try at the planned episode this is, from 1.
        causes: Why the earlier attempts came to nothing, one line each.
        task: The task it belongs to, a label; `""` without tasks.
        setup: What its lane must hold (`PrepareRequest`).
        max_steps: Truncates this episode after so many moves; None leaves it to the spec.
    """

    id: str
    index: int = -1
    seed: int | None = None
    options: Info | None = None
    planned: bool = True
    record_id: str = ""
    attempt: int = 1
    causes: tuple[str, ...] = ()
    task: str = ""
    setup: str = ""
    max_steps: int | None = None


class QueuedFrame(msgspec.Struct, frozen=True, gc=False):
    """One lane's row of one frame of a chunk, not yet taken out of its batch."""

    frame: Leaves
    row: int
    rows: int


@dataclass(slots=True)
class Lane:
    """What is known of one sub-environment.

    Attributes:
        env_index: Its place in the env endpoint.
        row: Its place in its group's batches.
        episode: The episode on it, or None.
        next: The episode that the next step starts (NEXT_STEP), or None.
        spare_id: The id that its next episode will carry (SAME_STEP).
        steps: Moves of the episode.
        total_reward: Sum of its rewards.
        started_ns: When the reply with its first observation came.
        fresh: True until the first observation of the episode was emitted.
        frames: Queued frames of its last chunk.
        last_frame: The frame applied last: the filler while it does not act.
        adapter_info: The episode as a predict names it.
        setup: What it was prepared for last; None where it must be prepared anew.
        odd: How many observations of the episode its space does not hold, by kind and path; None
            of none.
        odd_next: The same of the first one of the next episode, which is there already.
    """

    env_index: int
    row: int
    episode: Episode | None = None
    next: Episode | None = None
    spare_id: str = ""
    steps: int = 0
    total_reward: float = 0.0
    started_ns: int = 0
    fresh: bool = False
    frames: deque[QueuedFrame] = field(default_factory=deque[QueuedFrame])
    last_frame: QueuedFrame | None = None
    adapter_info: EpisodeInfo = field(default_factory=lambda: EpisodeInfo(""))
    setup: str | None = None
    odd: dict[tuple[str, str], int] | None = None
    odd_next: dict[tuple[str, str], int] | None = None

    @property
    def moves(self) -> bool:
        """Whether the lane plans, acts and counts."""
        return self.episode is not None and self.episode.planned and self.next is None

    @property
    def owes(self) -> bool:
        """Whether a planned episode still has to end on this lane."""
        return self.moves or (self.next is not None and self.next.planned)

    def begin(self, episode: Episode, started_ns: int) -> None:
        """Put a fresh episode on the lane."""
        self.episode = episode
        self.next = None
        self.steps = 0
        self.total_reward = 0.0
        self.started_ns = started_ns
        self.odd, self.odd_next = self.odd_next, None
        self.fresh = True
        self.frames.clear()
        self.adapter_info = EpisodeInfo(episode.id, episode.seed)

    def clear(self) -> None:
        """Take whatever is on the lane off it."""
        self.episode = self.next = self.last_frame = None
        self.steps = 0
        self.total_reward = 0.0
        self.spare_id = ""
        self.odd = self.odd_next = None
        self.frames.clear()

    def count_odd(self, kind: str, path: str, *, is_next: bool) -> None:
        """Count an observation that its space does not hold; of very many paths, together.

        Both may come from a peer: very long ones are cut.
        """
        kind = kind[:_MOST_KIND_CHARS]
        if len(path) > _MOST_PATH_CHARS:
            path = f"{path[: _MOST_PATH_CHARS - 1]}…"
        counts = self.odd_next if is_next else self.odd
        if counts is None:
            counts = {}
            if is_next:
                self.odd_next = counts
            else:
                self.odd = counts
        if (kind, path) not in counts and len(counts) >= _MOST_ODD:
            path = "…"
        counts[kind, path] = counts.get((kind, path), 0) + 1

    def odd_observations(self) -> tuple[OddObservations, ...]:
        """Return what was counted of the episode."""
        odd = self.odd
        if odd is None:
            return ()
        return tuple([OddObservations(kind=k, path=p, count=n) for (k, p), n in odd.items()])


class Roster:
    """The lanes of a group that take part in events, and the tuples that events and requests carry.

    Built anew only when a lane starts, ends or rolls.
    """

    __slots__ = (
        "adapter_infos",
        "env_indices",
        "episode_ids",
        "known_to_model",
        "lanes",
        "record_ids",
        "whole",
    )

    def __init__(self, lanes: Sequence[Lane], width: int) -> None:
        self.lanes = tuple(lanes)
        self.whole = len(self.lanes) == width
        self.known_to_model = False
        self.env_indices = tuple([lane.env_index for lane in self.lanes])
        episodes = [lane.episode for lane in self.lanes if lane.episode is not None]
        self.episode_ids = tuple([episode.id for episode in episodes])
        self.record_ids = tuple([episode.record_id for episode in episodes])
        self.adapter_infos = tuple([lane.adapter_info for lane in self.lanes])

    def steps(self) -> tuple[int, ...]:
        """Return each lane's moves."""
        lanes = self.lanes
        return (lanes[0].steps,) if len(lanes) == 1 else tuple([lane.steps for lane in lanes])


@dataclass(frozen=True, slots=True)
class Ending:
    """An episode that ended with a step, by the env's word or by a cap."""

    lane: Lane
    terminated: bool
    truncated: bool
    final_info: Info
    final_observation: Leaves | None = None


class Group:
    """An ordered set of lanes that step together.

    Attributes:
        lanes: In ascending `env_index`.
        env_indices: What requests name: empty when the group is the whole env.
        may_idle: Whether a lane without a planned episode is simply left alone.
        generation: Reset calls so far (rule R41).
        reset_since_predict: Whether the runtime reset a lane since the last predict (rule R10).
        last_ns: When its last reset or step came back.
        logged_reset: Whether the first reset was logged (rule R8).
    """

    def __init__(self, env_indices: Sequence[int], *, is_whole_env: bool) -> None:
        self.lanes = tuple(Lane(env_index=i, row=row) for row, i in enumerate(env_indices))
        self.by_index = {lane.env_index: lane for lane in self.lanes}
        self.env_indices = () if is_whole_env else tuple(env_indices)
        self.may_idle = len(self.lanes) == 1
        self.generation = 0
        self.last_ns = 0
        self.reset_since_predict = False
        self.logged_reset = False
        self._roster: Roster | None = None
        self._request_ids: tuple[str, ...] | None = None

    @property
    def width(self) -> int:
        """Number of lanes."""
        return len(self.lanes)

    @property
    def busy(self) -> bool:
        """Whether a planned episode still has to end here."""
        return any([lane.owes for lane in self.lanes])

    @property
    def step(self) -> int:
        """The current step: that of the first lane."""
        return self.lanes[0].steps

    def take_over(self, other: Group) -> None:
        """Go on with the lanes of a group that has come to its end, in place of one's own."""
        self.lanes, self.by_index = other.lanes, other.by_index
        self.env_indices, self.may_idle = other.env_indices, other.may_idle
        self.reset_since_predict = True
        self.changed()

    def changed(self) -> None:
        """Forget what was derived from the lanes' episodes."""
        self._roster = None
        self._request_ids = None

    def roster(self) -> Roster:
        """Return the lanes that take part in predicts and events."""
        roster = self._roster
        if roster is None:
            moving = [lane for lane in self.lanes if lane.moves]
            roster = self._roster = Roster(moving, len(self.lanes))
        return roster

    def request_ids(self) -> tuple[str, ...]:
        """Return the ids that a step request carries: the episode to be, where a lane rolls."""
        ids = self._request_ids
        if ids is None:
            episodes = [lane.next or lane.episode for lane in self.lanes]
            ids = self._request_ids = tuple([e.id if e else "" for e in episodes])
        return ids
