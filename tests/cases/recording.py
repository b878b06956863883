"""What came of a run, in the shape that the cases check.

`r = {"episodes": […], "steps": […], "tape": […]}`, see `files/common.py`. Steps are gathered by a
hook: decoded copies of what the route saw.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rollmesh import EvalResult, RouteError
from rollmesh.results.result import EpisodeResult
from tests.cases.case_run import CaseRun


class Recorder:
    """A hooks object that keeps every step."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._open: dict[str, dict[str, Any]] = {}
        self._indices: dict[str, int] = {}
        self.failed: list[str] = []

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The steps, episode by episode."""
        return sorted(self._rows, key=lambda row: (row["episode"], row["t"]))

    def add(self, **row: Any) -> None:
        """Keep a step that was turned by hand."""
        self._rows.append(row)

    def session_failed(self, event: Any) -> None:
        self.failed.append(event.reason)

    def episode_started(self, event: Any) -> None:
        self._indices[event.episode_id] = event.episode_index

    def observation_emitted(self, event: Any) -> None:
        for row, episode_id in enumerate(event.episode_ids):
            self._open[episode_id] = {
                "episode": self._indices[episode_id],
                "t": event.steps[row],
                "obs": event.decode(row),
            }

    def action_received(self, event: Any) -> None:
        for row, episode_id in enumerate(event.episode_ids):
            self._open[episode_id]["action"] = event.decode(row)

    def step_completed(self, event: Any) -> None:
        for row, episode_id in enumerate(event.episode_ids):
            step = self._open[episode_id]
            step.update(
                reward=event.rewards[row],
                terminated=event.terminated[row],
                truncated=event.truncated[row],
                info=event.infos[row],
                next_obs=event.decode(row),
            )
            self._rows.append(step)

    def episode_completed(self, event: Any) -> None:
        # Under SAME_STEP the step's own row already belongs to the next episode.
        last = self._open.pop(event.episode_id)
        last.update(next_obs=event.decode(), info=event.final_info)


class Quiet:
    """Stands in for a recorder where keeping every step would be too much."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] | None = None
        self.failed: list[str] = []
        self.count = 0

    def add(self, **row: Any) -> None:
        """Count a step that was turned by hand."""
        del row
        self.count += 1

    def step_completed(self, event: Any) -> None:
        self.count += len(event.episode_ids)

    def session_failed(self, event: Any) -> None:
        self.failed.append(event.reason)


@dataclass(kw_only=True)
class Outcome:
    """A run that is over.

    Attributes:
        run: What was run.
        way: The name of the way it was run.
        recorder: What the hooks saw.
        result: What `evaluate` returned, or the partial result of its error.
        error: What it raised, or None.
        tape: What env and model noted.
        lines: Log lines of level WARNING and above.
        elapsed_s: How long it took, in seconds.
        answer: What a case driven by hand returned.
    """

    run: CaseRun
    way: str
    recorder: Recorder | Quiet
    result: EvalResult | None = None
    error: BaseException | None = None
    tape: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0
    answer: Any = None

    @property
    def r(self) -> dict[str, Any]:
        """The result as cases read it."""
        shape: dict[str, Any] = {"episodes": list(self.episodes), "tape": self.tape}
        if self.recorder.steps is not None:
            shape["steps"] = self.recorder.steps
        return shape

    @property
    def episodes(self) -> Iterable[dict[str, Any]]:
        """The episodes that ended."""
        ended: Iterable[Any] = () if self.result is None else self.result.episodes
        return [_episode(one) for one in ended]

    def env_events(self, kind: str) -> list[dict[str, Any]]:
        """Return what envs noted of one kind (`reset`, `step`, …)."""
        return [row for row in self.tape if row["who"] == "env" and row["ev"] == kind]


def partial_result(error: BaseException) -> EvalResult | None:
    """Return the episodes that had ended when an error came."""
    if not isinstance(error, RouteError):
        return None
    if error.result is not None or error.report is None:
        return error.result
    ended = tuple(EpisodeResult.from_summary(one) for one in error.report.episodes)
    return EvalResult(episodes=ended)


def _episode(one: EpisodeResult) -> dict[str, Any]:
    return {
        "seed": one.seed,
        "steps": one.steps,
        "reward": one.total_reward,
        "terminated": one.terminated,
        "truncated": one.truncated,
        "success": one.success,
        "error": one.error,
        "duration_s": one.duration_s,
        "episode_id": one.episode_id,
        "env_index": one.env_index,
    }


@contextmanager
def warnings_of_rollmesh() -> Iterator[list[str]]:
    """Gather what rollmesh logs at WARNING and above, instead of letting it be printed."""
    lines: list[str] = []

    class Gather(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = logging.getLogger("rollmesh")
    handler = Gather(logging.WARNING)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
