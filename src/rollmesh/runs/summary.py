"""What a stored run comes to, as plain values: by task, errors by cause, slow phases (layer 7).

Pure: takes a `StoredRun`, knows no file and no terminal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from rollmesh.events import MetricRow
from rollmesh.results.result import EvalResult
from rollmesh.runs.reading import StoredRun

_EPISODE_ID = re.compile(r",? ?(?:episode )?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_DURATION = "duration"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Errors that say the same but for their numbers.

    Attributes:
        text: The first of them, its first line.
        count: How many there are.
        episodes: The plan indices concerned, in order.
    """

    text: str
    count: int
    episodes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """How long one kind of call took, in all starts that say so; a killed one does not.

    Attributes:
        operation: `env.step`, `model.predict`, …
        count: How many calls.
        total_s: All of them together, in seconds.
        p50_ms: Median in the start with the most of them, in milliseconds.
        p99_ms: 99th percentile there, in milliseconds.
        max_ms: The longest, in milliseconds.
    """

    operation: str
    count: int
    total_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float


def errors_by_cause(run: StoredRun) -> tuple[Cause, ...]:
    """Group what errored episodes say, the most frequent first."""
    return _grouped((e.error, e.index) for e in run.result.episodes if e.error is not None)


def retries_by_cause(run: StoredRun) -> tuple[Cause, ...]:
    """Group why attempts came to nothing and were made again, the most frequent first."""
    return _grouped((cause, e.index) for e in run.result.episodes for cause in e.causes)


def slowest_phases(run: StoredRun) -> tuple[Phase, ...]:
    """Return the durations of calls, those first that took most time altogether."""
    phases: dict[tuple[str, str, str], Phase] = {}
    most: dict[tuple[str, str, str], MetricRow] = {}  # quantiles of several cannot be put together
    for start in run.starts:
        for row in () if start.telemetry is None else start.telemetry.rows:
            if row.kind != _DURATION or row.metric.startswith("endpoint"):
                continue
            key = (row.operation, row.component, row.metric)
            before = phases.get(key)
            typical = max(most.get(key, row), row, key=lambda one: one.count)
            most[key] = typical
            phases[key] = Phase(
                operation=row.operation,
                count=row.count + (before.count if before else 0),
                total_s=row.count * row.mean / 1e3 + (before.total_s if before else 0.0),
                p50_ms=typical.p50,
                p99_ms=typical.p99,
                max_ms=max(row.max, before.max_ms if before else 0.0),
            )
    return tuple(sorted(phases.values(), key=lambda phase: -phase.total_s))


def starts_with_phases(run: StoredRun) -> int:
    """Return how many starts say how long their calls took."""
    return sum(1 for start in run.starts if start.telemetry is not None and start.telemetry.rows)


def to_dict(run: StoredRun) -> dict[str, Any]:
    """Return everything known of a run as values that JSON can carry."""
    return {
        "folder": str(run.folder),
        "status": run.status,
        "created_at": iso_time(run.created_at),
        "last_at": iso_time(run.last_at),
        "plan_hash": run.identity.plan_hash,
        "settings": _without_constants(dict(run.identity.settings)),
        "starts": [_start_values(start) for start in run.starts],
        "tasks": {task: _numbers(result) for task, result in run.result.tasks.items()},
        "errors": [asdict(cause) for cause in errors_by_cause(run)],
        "retries": [asdict(cause) for cause in retries_by_cause(run)],
        "failed_attempts": [asdict(attempt) for attempt in run.failed_attempts],
        "retried": [e.index for e in run.retried],
        "result": run.result.to_dict(),
    }


def iso_time(seconds: float) -> str:
    """Return a time, in seconds since 1970, in the spelling of ISO 8601, in UTC."""
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _start_values(start: Any) -> dict[str, Any]:
    return {
        "started_at": iso_time(start.started_at),
        "ended_at": None if start.ended_at is None else iso_time(start.ended_at),
        "stopped": start.stopped,
        "elapsed_s": start.elapsed_s,
        "facts": _without_constants(start.facts),
    }


def _without_constants(value: Any) -> Any:
    """Return JSON values with a text for each number that JSON has no word for."""
    return json.loads(json.dumps(value), parse_constant=str)


def _numbers(result: EvalResult) -> Mapping[str, Any]:
    """Return the figures of one task, without its episodes."""
    values = result.to_dict()
    names = (
        "success_rate", "success_counts", "success_interval", "success_bounds",
        "success_rate_of_all", "success_counts_of_all", "mean_return", "return_interval",
        "mean_length", "num_errors",
    )  # fmt: skip
    return {"num_episodes": len(result.episodes), **{name: values[name] for name in names}}


def _grouped(said: Iterable[tuple[str, int]]) -> tuple[Cause, ...]:
    first: dict[str, str] = {}
    where: dict[str, list[int]] = {}
    for text, index in said:
        line = _EPISODE_ID.sub("", text.strip().partition("\n")[0]) or "no message"
        key = _NUMBER.sub("#", line)
        first.setdefault(key, line)
        where.setdefault(key, []).append(index)
    causes = [
        Cause(text=first[key], count=len(indices), episodes=tuple(dict.fromkeys(indices)))
        for key, indices in where.items()
    ]
    return tuple(sorted(causes, key=lambda cause: -cause.count))
