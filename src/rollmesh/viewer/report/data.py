"""What a report is made of: plain facts that a stored run and an `EvalResult` can both give."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rollmesh.results.aggregates import (
    ReturnSummary,
    SuccessSummary,
    TaskSummary,
    summarize_returns,
    summarize_success,
    summarize_tasks,
)
from rollmesh.results.result import EpisodeResult, EvalResult

if TYPE_CHECKING:
    from rollmesh.runs.reading import StoredRun

Outcome: TypeAlias = Literal["success", "failure", "unjudged", "errored"]
OUTCOMES: tuple[Outcome, ...] = ("success", "failure", "unjudged", "errored")


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """One run.

    Attributes:
        name: What tells it apart from other runs on the page.
        result: What it came to.
        facts: What else is known: plan hash, versions, git revision, hardware. Values are plain.
        lanes_per_worker: Lanes of one worker process; None where lanes have no processes.
        lost: Attempts that came to nothing and were made again, or were the last.
        ended_at: When episodes ended, by their place in the plan, in seconds since 1970.
    """

    name: str
    result: EvalResult
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    lanes_per_worker: int | None = None
    lost: tuple[LostAttempt, ...] = ()
    ended_at: Mapping[int, float] = field(default_factory=dict[int, float])

    @classmethod
    def from_run(cls, run: StoredRun, name: str | None = None) -> ReportData:
        """Take a stored run; it is named as its folder unless told otherwise."""
        facts: dict[str, Any] = {"plan_hash": run.identity.plan_hash, "status": run.status}
        facts |= {n: v for n, v in run.identity.settings.items() if v is not None}
        facts |= {"starts": len(run.starts), **run.facts}
        per_worker = facts.get("lanes_per_worker")
        return cls(
            name=name or run.name,
            result=run.result,
            facts=facts,
            lanes_per_worker=per_worker if isinstance(per_worker, int) and per_worker else None,
            lost=tuple(
                LostAttempt(
                    episode=attempt.index,
                    attempt=attempt.attempt,
                    worker=attempt.worker,
                    cause=attempt.cause,
                    last_lines=attempt.stderr,
                )
                for attempt in run.failed_attempts
            ),
            ended_at=run.ended_at,
        )

    @cached_property
    def tasks(self) -> tuple[TaskSummary, ...]:
        """What each task came to, in plan order; one nameless one where the plan has none."""
        return summarize_tasks(self.result)

    @cached_property
    def success(self) -> SuccessSummary | None:
        """How often episodes succeeded; None where no finished episode says."""
        return summarize_success(self.result)

    @cached_property
    def returns(self) -> ReturnSummary | None:
        """How large the returns were; None where no episode finished."""
        return summarize_returns(self.result)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """When each episode ran, by start; episodes that tell no time are left out."""
        spans = (span_of(one, self.ended_at.get(one.index)) for one in self.result.episodes)
        return tuple(sorted((s for s in spans if s is not None), key=lambda s: s.start_s))

    @cached_property
    def causes(self) -> tuple[Cause, ...]:
        """The errors, grouped by what caused them; the most frequent first."""
        groups: dict[str, list[EpisodeResult]] = {}
        for episode in self.result.episodes:
            if episode.error is not None:
                groups.setdefault(cause_of(episode.error), []).append(episode)
        causes = [
            Cause(
                cause=cause,
                episodes=tuple(e.index for e in episodes),
                tasks=tuple(Counter(e.task for e in episodes)),
                example=episodes[0].error or "",
            )
            for cause, episodes in groups.items()
        ]
        return tuple(sorted(causes, key=lambda c: (-len(c.episodes), c.episodes)))


@dataclass(frozen=True, kw_only=True, slots=True)
class LostAttempt:
    """One try at an episode that came to nothing.

    Attributes:
        episode: Plan index; None where a worker was lost without an episode.
        attempt: Which try it was, from 1.
        worker: The worker process, or None.
        cause: Why, in one line.
        last_lines: The last lines the worker wrote to standard error.
    """

    episode: int | None
    attempt: int
    worker: int | None
    cause: str
    last_lines: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """An episode on the clock: start and end in seconds since the Unix epoch."""

    lane: int
    index: int
    start_s: float
    end_s: float
    outcome: Outcome
    attempts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Errors with one cause.

    Attributes:
        cause: The first line, without what differs from episode to episode.
        episodes: Plan indices.
        tasks: Tasks concerned.
        example: The whole text of the first.
    """

    cause: str
    episodes: tuple[int, ...]
    tasks: tuple[str, ...]
    example: str


def outcome_of(episode: EpisodeResult) -> Outcome:
    """Return what an episode came to, in one word."""
    if episode.error is not None:
        return "errored"
    if episode.success is None:
        return "unjudged"
    return "success" if episode.success else "failure"


def span_of(episode: EpisodeResult, ended_at: float | None = None) -> Span | None:
    """Return when an episode ran, from its reset's reply to its last one; None where unknown.

    Where its end was not kept it began when its id (UUIDv7) was minted, which is when a lane took
    it, before the reset.
    """
    digits = episode.episode_id.replace("-", "")
    if ended_at is not None:
        start_s = ended_at - max(0.0, episode.duration_s)
    elif _UUID7.fullmatch(digits):
        start_s = (int(digits[:12], 16) + int(digits[13:16], 16) / 4096) / 1000
    else:
        return None
    return Span(
        lane=episode.env_index,
        index=episode.index,
        start_s=start_s,
        end_s=start_s + max(0.0, episode.duration_s),
        outcome=outcome_of(episode),
        attempts=episode.attempts,
    )


_UUID7 = re.compile(r"[0-9a-f]{12}7[0-9a-f]{19}")


def cause_of(error: str) -> str:
    """Return the first line of an error without ids, seeds, steps, lanes and addresses."""
    line = error.strip().partition("\n")[0].strip() or "no message"
    for pattern, stand_in in _PARTICULARS:
        line = pattern.sub(stand_in, line)
    return line if len(line) <= _LONGEST_CAUSE else f"{line[: _LONGEST_CAUSE - 2]} …"


_LONGEST_CAUSE = 300
_PARTICULARS = (
    (re.compile(r",? ?episode [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), ""),
    (re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "…"),
    (re.compile(r"0x[0-9a-fA-F]+"), "0x…"),
    (re.compile(r"\b(seed|lane|step|process|pid|worker|port) \d+"), r"\1 …"),
)
