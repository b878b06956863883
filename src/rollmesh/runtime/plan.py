"""Claims: which episode a lane plays next (rules R26 and R42).

Episodes are assigned, not raced for: each start claims the next planned one, so that N asked means
the N planned, however fast a lane is. Shared by all groups of a route.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from rollmesh.ids import MintsIds
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.lanes import Episode, Lane
from rollmesh.runtime.seeds import episode_seed
from rollmesh.runtime.spec import EpisodeStart, SessionSpec


class EpisodePlan:
    """Hands out episodes in plan order.

    Guarantees: an index is handed out once, and once more each time it is given back; under
    `budget="starts"` never more than `max_episodes` planned episodes in all.
    """

    def __init__(self, spec: SessionSpec, mint: MintsIds, cancel: CancelToken) -> None:
        self._spec = spec
        self._mint = mint
        self._cancel = cancel
        self._limit = spec.max_episodes if spec.budget == "starts" else None
        self.claimed = 0
        self._again: list[Episode] = []
        self._unplanned = 0
        self._queues = None if spec.starts is None else StartQueues(spec.starts)

    @property
    def exhausted(self) -> bool:
        """Whether no planned episode is left to be claimed."""
        if self._cancel.draining:
            return True
        return not self._again and self._limit is not None and self.claimed >= self._limit

    def give_back(self, episode: Episode, cause: str) -> None:
        """Have a planned episode claimed again, as a new attempt, before those not yet claimed."""
        episode.causes = (*episode.causes, cause)
        self._again.append(episode)
        self._again.sort(key=lambda one: one.index)

    def leave(self, episode: Episode) -> None:
        """Have a planned episode claimed again, as the attempt that it was: it did not begin."""
        self._again.append(replace(episode, attempt=episode.attempt - 1))
        self._again.sort(key=lambda one: one.index)

    def claim(self, lanes: Sequence[Lane], *, may_idle: bool) -> list[Episode | None]:
        """Return the next episode for each lane, in order.

        A lane beyond the plan gets None where it may idle, else an unplanned episode.
        """
        return [self._next(lane, may_idle=may_idle) for lane in lanes]

    def _next(self, lane: Lane, *, may_idle: bool) -> Episode | None:
        if not self.exhausted:
            return self._planned(lane)
        return None if may_idle else self._filler(lane.spare_id or self._mint.mint())

    def _planned(self, lane: Lane) -> Episode:
        episode_id = lane.spare_id or self._mint.mint()
        if self._again:
            past = self._again.pop(0)
            return replace(past, id=episode_id, record_id="", attempt=past.attempt + 1)
        index = self.claimed
        self.claimed += 1
        if self._queues is not None:
            start = self._queues.take(lane.setup)
            return Episode(
                id=episode_id,
                index=start.index,
                seed=start.seed,
                options=start.options,
                task=start.task,
                setup=start.setup,
                max_steps=start.max_steps,
            )
        seeds, options = self._spec.episode_seeds, self._spec.episode_options
        return Episode(
            id=episode_id,
            index=index,
            seed=seeds[index] if seeds is not None else None,
            options=options[index] if options is not None else None,
        )

    def _filler(self, episode_id: str) -> Episode:
        seed = None
        if self._spec.episode_seeds is not None or self._queues is not None:
            seed = episode_seed(0, "unscored", self._unplanned)
            self._unplanned += 1
        return Episode(id=episode_id, seed=seed, planned=False)


class StartQueues:
    """Episodes to start, a queue for each setup: a lane stays with its setup while that has any.

    A lane whose setup has none left takes the one that the fewest lanes play and, of these, the one
    with the most episodes left: so that as few envs as possible are built anew. With one setup it
    is plan order. Which lane plays an episode never changes the episode.
    """

    def __init__(self, starts: Sequence[EpisodeStart]) -> None:
        self._queues: dict[str, deque[EpisodeStart]] = {}
        self._players: dict[str, int] = {}
        for start in starts:
            self._queues.setdefault(start.setup, deque()).append(start)
            self._players.setdefault(start.setup, 0)

    def take(self, held: str | None) -> EpisodeStart:
        """Return the next start for a lane that holds this setup (None: none yet)."""
        setup = held
        if setup is None or setup not in self._queues:
            setup = min(
                self._queues, key=lambda name: (self._players[name], -len(self._queues[name]))
            )
            self._players[setup] += 1
        queue = self._queues[setup]
        start = queue.popleft()
        if not queue:
            del self._queues[setup]
        return start
