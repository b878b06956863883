"""Claims: which episode a lane plays next (rules R26 and R42).

Episodes are assigned, not raced for: each start claims the next planned one, so that N asked means
the N planned, however fast a lane is. Shared by all groups of a route.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollmesh.ids import MintsIds
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.lanes import Episode, Lane
from rollmesh.runtime.seeds import episode_seed
from rollmesh.runtime.spec import SessionSpec


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

    @property
    def exhausted(self) -> bool:
        """Whether no planned episode is left to be claimed."""
        if self._cancel.draining:
            return True
        return not self._again and self._limit is not None and self.claimed >= self._limit

    def give_back(self, episode: Episode) -> None:
        """Have a planned episode claimed again, as a new attempt, before those not yet claimed."""
        self._again.append(episode)
        self._again.sort(key=lambda one: one.index)

    def claim(self, lanes: Sequence[Lane], *, may_idle: bool) -> list[Episode | None]:
        """Return the next episode for each lane, in order.

        A lane beyond the plan gets None where it may idle, else an unplanned episode.
        """
        return [self._next(lane, may_idle=may_idle) for lane in lanes]

    def _next(self, lane: Lane, *, may_idle: bool) -> Episode | None:
        if not self.exhausted:
            return self._planned(lane.spare_id or self._mint.mint())
        return None if may_idle else self._filler(lane.spare_id or self._mint.mint())

    def _planned(self, episode_id: str) -> Episode:
        if self._again:
            past = self._again.pop(0)
            return Episode(
                id=episode_id,
                index=past.index,
                seed=past.seed,
                options=past.options,
                attempt=past.attempt + 1,
            )
        index = self.claimed
        self.claimed += 1
        seeds, options = self._spec.episode_seeds, self._spec.episode_options
        return Episode(
            id=episode_id,
            index=index,
            seed=seeds[index] if seeds is not None else None,
            options=options[index] if options is not None else None,
        )

    def _filler(self, episode_id: str) -> Episode:
        seed = None
        if self._spec.episode_seeds is not None:
            seed = episode_seed(0, "unscored", self._unplanned)
            self._unplanned += 1
        return Episode(id=episode_id, seed=seed, planned=False)
