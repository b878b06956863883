"""Reading a store and checking every word of it (layer 7).

The rows of episodes are chained: each checksum covers the row before it, the first one covers what
the run is, and `head` holds their number and the last checksum. So a store holds exactly the rows
of one of its commits, or it shows. Knows no lock and no journal; the connection is given.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from rollmesh.errors import RunDamaged, RunError
from rollmesh.events import TelemetrySnapshot
from rollmesh.results.result import EpisodeResult
from rollmesh.runs import schema
from rollmesh.runs.disk import name_trouble
from rollmesh.runs.identity import RunIdentity
from rollmesh.runs.rows import (
    FailedAttempt,
    Row,
    attempt_of,
    checksum,
    episode_checksum,
    episode_of,
)


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of a run.

    Attributes:
        started_at: When, in seconds since 1970.
        facts: What it ran on, as `gather_facts` gives it, and what the caller added.
        ended_at: When it was closed; None where its process was killed, or is still at it.
        stopped: Why it ended before the plan was done, or None.
        elapsed_s: Time it ran, in seconds; None where that was not noted.
        telemetry: Durations and sizes of its calls, or None.
    """

    started_at: float
    facts: Mapping[str, Any]
    ended_at: float | None = None
    stopped: str | None = None
    elapsed_s: float | None = None
    telemetry: TelemetrySnapshot | None = None


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Everything a store holds, checked.

    Attributes:
        identity: What the run is.
        created_at: When it was begun, in seconds since 1970.
        starts: Its starts, in order.
        episodes: Rows of finished episodes, in the order they were kept.
        retried: Rows of errored episodes that were set aside to be run again.
        failed_attempts: In the order they were kept.
        head: The checksum of the last row, or of what the run is where there is none.
        is_first_format: Whether it knows nothing of odd observations.
    """

    identity: RunIdentity
    created_at: float
    starts: tuple[Start, ...]
    episodes: list[Row]
    retried: list[Row]
    failed_attempts: tuple[FailedAttempt, ...]
    head: bytes
    is_first_format: bool = False

    def results(self) -> list[EpisodeResult]:
        """Return the finished episodes, in the order they were kept."""
        return [episode_of(row) for row in self.episodes]

    def env_facts(self) -> dict[str, Any]:
        """Return what the last start knows of env and lanes; empty where none was opened yet."""
        facts: Mapping[str, Any] = self.starts[-1].facts if self.starts else {}
        return {name: facts[name] for name in schema.ENV_FACTS if name in facts}

    def num_unwatched(self) -> int:
        """Return of how many finished episodes nobody counted the odd observations."""
        if self.is_first_format:
            return len(self.episodes)
        last = max([s.facts.get(schema.UNWATCHED_FACT, 0) for s in self.starts], default=0)
        return sum(1 for row in self.episodes if row[0] <= last) if last else 0

    def elapsed_s(self) -> float:
        """Return how long all starts ran, in seconds; a killed one until its last episode."""
        ended = [row[-2] for row in self.episodes]
        begins = [start.started_at for start in self.starts]
        total = 0.0
        untils = [*begins[1:], math.inf] if begins else []
        for start, until in zip(self.starts, untils, strict=True):
            if start.elapsed_s is not None:
                total += start.elapsed_s
            else:
                own = [at for at in ended if start.started_at <= at < until]
                total += max(own) - start.started_at if own else 0.0
        return total


def read_contents(connection: sqlite3.Connection, path: Path) -> Contents:
    """Read everything in a store and check it, in one read transaction.

    Raises:
        RunDamaged: Something is not what was written.
        sqlite3.OperationalError: It cannot be read, which need not mean damage.
    """
    try:
        connection.execute("BEGIN")
        try:
            return _read(connection, path)
        finally:
            with contextlib.suppress(sqlite3.Error):  # an error may have ended it
                connection.execute("ROLLBACK")
    except (sqlite3.Error, ValueError, TypeError, OverflowError, KeyError) as error:
        if isinstance(error, sqlite3.OperationalError) and not _means_damage(error):
            raise
        # The others are what an overwritten text, number or JSON value turns into.
        raise damaged(path, f"it cannot be understood ({error})") from error


def damaged(path: Path, detail: str) -> RunDamaged:
    """Return the error that names a damaged store."""
    return RunDamaged(str(path.parent), path.name, detail)


def name_error(folder: Path, error: sqlite3.Error | OSError) -> RunError:
    """Return the error that says why a store cannot be opened: it is damaged, or out of reach."""
    is_about_content = isinstance(error, sqlite3.DatabaseError) and not isinstance(
        error, sqlite3.OperationalError
    )
    if is_about_content:
        return damaged(folder / schema.STORE_FILE, f"SQLite says {error}")
    return name_trouble(folder, error)


def origin(facts: Sequence[tuple[str, str]]) -> bytes:
    """Return what the chain of episodes starts from: the checksum of what the run is."""
    return checksum(tuple(text for fact in facts for text in fact))


def _read(connection: sqlite3.Connection, path: Path) -> Contents:
    form = _check_header(connection, path)
    heads = connection.execute(schema.ALL_HEADS).fetchall()
    if len(heads) != 1:
        raise damaged(path, f"its table head has {len(heads)} rows, expected 1")
    num_episodes, num_starts, num_attempts, head = heads[0]
    facts: list[tuple[str, str]] = connection.execute(schema.ALL_FACTS).fetchall()
    is_first = form == schema.FIRST_FORMAT
    episodes, retried = (
        connection.execute(schema.FIRST_EPISODES if is_first else schema.ALL_EPISODES).fetchall(),
        connection.execute(schema.FIRST_RETRIED if is_first else schema.ALL_RETRIED).fetchall(),
    )
    kept = sorted([*episodes, *retried], key=_sequence_of) if retried else episodes
    if len(kept) != num_episodes:
        raise damaged(path, f"it holds {len(kept)} episodes, and its head says {num_episodes}")
    if _end_of_chain(kept, origin(facts), path) != head:
        raise damaged(path, "what it says of the run does not match the checksum in its head")
    starts = connection.execute(schema.ALL_STARTS).fetchall()
    attempts = connection.execute(schema.ALL_ATTEMPTS).fetchall()
    _check_rows("starts", starts, num_starts, path)
    _check_rows("failed_attempts", attempts, num_attempts, path)
    values: dict[str, Any] = {name: json.loads(text) for name, text in facts}
    return Contents(
        created_at=values.pop("created_at"),
        identity=RunIdentity(**values),
        starts=tuple(_start_of(row[1:-1]) for row in starts),
        episodes=episodes,
        retried=retried,
        failed_attempts=tuple(attempt_of(row[1:-1]) for row in attempts),
        head=head,
        is_first_format=is_first,
    )


def _check_header(connection: sqlite3.Connection, path: Path) -> int:
    """Check what the file is, and return its format."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != schema.APPLICATION:
        raise damaged(path, f"its application id is {application:#x}: it is no run, or overwritten")
    (form,) = connection.execute("PRAGMA user_version").fetchone()
    if form not in (schema.FIRST_FORMAT, schema.FORMAT):
        raise damaged(path, f"its format is {form}, and this rollmesh knows {schema.FORMAT}")
    verdict = connection.execute("PRAGMA quick_check(1)").fetchall()
    if verdict != [("ok",)]:
        raise damaged(path, f"SQLite's check says {' '.join(str(verdict[0][0]).split())}")
    return form


def _end_of_chain(kept: Sequence[Row], start: bytes, path: Path) -> bytes:
    """Check the chain of episodes, in the order they were kept, and return its last checksum."""
    last = start
    for number, row in enumerate(kept, 1):
        last = episode_checksum(row[:-1], last)
        if row[0] != number or row[-1] != last:
            raise damaged(path, f"episode {number} of {len(kept)} does not match its checksum")
    return last


def _sequence_of(row: Row) -> int:
    return row[0]


def _check_rows(table: str, rows: Sequence[Row], expected: int, path: Path) -> None:
    """Check rows that carry their number first and their own checksum last."""
    if len(rows) != expected:
        raise damaged(path, f"{table} holds {len(rows)} rows, and its head says {expected}")
    for number, row in enumerate(rows, 1):
        if row[0] != number or row[-1] != checksum(row[:-1]):
            raise damaged(path, f"row {number} of {table} does not match its checksum")


def _start_of(row: Row) -> Start:
    started_at, ended_at, stopped, elapsed_s, facts, telemetry = row
    return Start(
        started_at=started_at,
        ended_at=ended_at,
        stopped=stopped,
        elapsed_s=elapsed_s,
        facts=json.loads(facts),
        telemetry=None if telemetry is None else _snapshot_of(telemetry),
    )


def _snapshot_of(text: str) -> TelemetrySnapshot | None:
    try:
        return msgspec.convert(json.loads(text), TelemetrySnapshot)
    except msgspec.ValidationError:  # of another version of rollmesh
        return None


def _means_damage(error: sqlite3.OperationalError) -> bool:
    """Return whether it is about what the file says, not about reaching it."""
    words = str(error)
    return any(hint in words for hint in ("no such", "malformed", "Could not decode", "schema"))
