"""What a screen shows: frozen facts about a run at one moment, and what is new since the last.

Plain data; `tally` makes it, the screens read it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollmesh.results.result import EpisodeResult
    from rollmesh.results.stats import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One kind of call over the last telemetry window.

    Attributes:
        name: `reset`, `predict` or `step`.
        calls: How many came back in the window.
        per_s: Calls per second of the window; None where its length is not known.
        p50_ms: Median duration in ms.
        p99_ms: 99th percentile of the duration in ms.
    """

    name: str
    calls: int
    per_s: float | None
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Batches:
    """How many rows a predict had, over the last telemetry window."""

    mean: float
    p50: float
    largest: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """A worker process of a fleet.

    Attributes:
        number: Its number, from 0.
        state: `starting`, `ready`, `lost` or `stopped`.
        detail: Why, in words.
        pid: Its process, or None.
        losses: How often this place lost its process so far.
    """

    number: int
    state: str
    detail: str = ""
    pid: int | None = None
    losses: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskProgress:
    """How far one task of the plan got; `judged` episodes are those whose env says."""

    task: str
    done: int
    successes: int
    judged: int
    errored: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeErrorLine:
    """An errored episode, in one line."""

    index: int
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A run at one moment.

    Attributes:
        planned: Episodes asked for.
        done: Episodes that ended, errored ones and those of an earlier start included.
        resumed: How many of them an earlier start of the same run had finished.
        errored: How many of them errored.
        retries: Attempts beyond the first of the episodes that ended.
        steps: Env steps of the episodes that ended in this start.
        successes: Episodes that succeeded.
        judged: Episodes whose env says whether they did.
        success_interval: Wilson's 95 % interval for the rate; None where there is none.
        mean_return: Mean of the total rewards so far; None of no finished episode.
        wall_s: The moment, in seconds since the Unix epoch.
        elapsed_s: Since this start began, in seconds.
        eta_s: Seconds left at the recent rate; None where nothing ended yet.
        episodes_per_min: Recent rate; None where nothing ended yet.
        steps_per_s: Recent rate, by the steps of ended episodes; None where nothing ended yet.
        phases: reset, predict and step, as far as a telemetry window told of them.
        batches: Rows of a predict; None before the first window.
        workers: The fleet's workers by number; empty without a fleet.
        tasks: Tasks in plan order; empty where the plan names none.
        errors: The last errored episodes, oldest first.
    """

    planned: int
    done: int
    resumed: int
    errored: int
    retries: int
    steps: int
    successes: int
    judged: int
    success_interval: Interval | None
    mean_return: float | None
    wall_s: float
    elapsed_s: float
    eta_s: float | None
    episodes_per_min: float | None
    steps_per_s: float | None
    phases: tuple[Phase, ...] = ()
    batches: Batches | None = None
    workers: tuple[Worker, ...] = ()
    tasks: tuple[TaskProgress, ...] = ()
    errors: tuple[EpisodeErrorLine, ...] = ()

    @property
    def success_rate(self) -> float | None:
        """Rate of successes among the episodes whose env says; None if none does."""
        return self.successes / self.judged if self.judged else None


@dataclass(frozen=True, kw_only=True, slots=True)
class News:
    """Something that happened since a screen was last painted.

    Attributes:
        wall_s: When, in seconds since the Unix epoch.
        episode: An episode that ended.
        is_stored: Whether `episode` was told by a journal, after it was on disk.
        worker: A worker whose state changed.
        note: A line for people.
        session: `started`, `ended` or `failed`, with `note` as the reason.
    """

    wall_s: float
    episode: EpisodeResult | None = None
    is_stored: bool = False
    worker: Worker | None = None
    note: str | None = None
    session: str | None = None


def clean(text: str) -> str:
    """Return text without anything a terminal would obey: control characters are shown as ``?``."""
    return "".join(c if c.isprintable() or c == "\t" else "?" for c in text)


def first_line(error: str, longest: int = 200) -> str:
    """Return the first line of an error, cleaned, without episode ids, no longer than `longest`."""
    line = _EPISODE_ID.sub("", clean(error.strip().partition("\n")[0].strip())) or "no message"
    return line if len(line) <= longest else f"{line[: longest - 2]} …"


_EPISODE_ID = re.compile(r", episode [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def clock_text(seconds: float) -> str:
    """Return a duration as ``m:ss`` or ``h:mm:ss``."""
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rate_text(per_min: float) -> str:
    """Return episodes a minute, with a decimal where it tells something."""
    return f"{per_min:,.0f}" if per_min >= 100 else f"{per_min:.1f}"  # noqa: PLR2004
