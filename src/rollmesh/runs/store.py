"""Writing a run's store: one SQLite file, one transaction a change (layer 7).

When a method returns, what it wrote is on disk. Knows no thread and no lock: one connection, one
user at a time. What SQLite raises goes through as it is; the journal gives it its name.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from rollmesh.events import TelemetrySnapshot
from rollmesh.runs import schema
from rollmesh.runs.checking import Contents, origin
from rollmesh.runs.identity import RunIdentity
from rollmesh.runs.rows import Row, checksum, clean_text, episode_checksum

_BUSY_S = 60.0
"""How long a statement waits for another program that has the store locked."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a start has come to so far.

    Attributes:
        ended_at: When, in seconds since 1970; None while it goes on.
        stopped: Why it ended before the plan was done, or None.
        elapsed_s: Time it ran, in seconds, or None.
        telemetry: Durations and sizes of its calls, or None.
    """

    ended_at: float | None = None
    stopped: str | None = None
    elapsed_s: float | None = None
    telemetry: TelemetrySnapshot | None = None


def create(folder: Path, identity: RunIdentity, created_at: float) -> None:
    """Make a new store; it appears under its name only when it is whole and on disk.

    Raises:
        sqlite3.Error, OSError: It cannot be written.
    """
    draft = folder / f"{schema.STORE_FILE}.new"
    for tail in ("", *schema.SIDECARS):
        (folder / f"{draft.name}{tail}").unlink(missing_ok=True)
    values = {**identity.to_dict(), "created_at": created_at}
    facts = sorted((name, json.dumps(value)) for name, value in values.items())
    with contextlib.closing(_connect(draft, "rwc")) as connection:
        _settle(connection)
        connection.executescript(f"BEGIN;{schema.SCHEMA}")  # one commit: each waits for the disk
        connection.executemany(schema.ADD_FACT, facts)
        connection.execute(schema.PUT_HEAD, (0, 0, 0, origin(facts)))
        connection.execute("COMMIT")
    draft.rename(folder / schema.STORE_FILE)
    sync_folder(folder)


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a store that exists, and change nothing in it.

    Raises:
        sqlite3.Error: It cannot be opened.
    """
    return _connect(path, "ro")


def open_to_write(path: Path) -> sqlite3.Connection:
    """Open a store that exists.

    Raises:
        sqlite3.Error: It cannot be opened.
    """
    connection = _connect(path, "rw")
    try:
        _settle(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=_BUSY_S,
        isolation_level=None,
        check_same_thread=False,
    )


def _settle(connection: sqlite3.Connection) -> None:
    """Make a commit mean that the disk has it (the last two matter on macOS alone)."""
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")


class Store:
    """A store that is being written.

    Args:
        connection: From `open_to_write`; closed by `close`.
        contents: What is in it.

    Attributes:
        num_episodes: How many episodes were kept, retried ones included.
    """

    def __init__(self, connection: sqlite3.Connection, contents: Contents) -> None:
        self._connection = connection
        self._head = contents.head
        self._num_starts = len(contents.starts)
        self._num_attempts = len(contents.failed_attempts)
        self._begun: Row = ()
        self.num_episodes = len(contents.episodes) + len(contents.retried)

    def use_log(self, *, ahead: bool) -> bool:
        """Change to a write-ahead log, or to a rollback journal, and return whether it did.

        A store with a rollback journal is one plain file when it is at rest.
        """
        mode = "WAL" if ahead else "DELETE"
        (found,) = self._connection.execute(f"PRAGMA journal_mode = {mode}").fetchone()
        return found.upper() == mode

    def fold_log(self) -> int:
        """Move what the log holds into the file, and return how many frames that were."""
        _, num_frames, _ = self._connection.execute("PRAGMA wal_checkpoint").fetchone()
        return num_frames

    def begin_start(self, started_at: float, facts: Mapping[str, Any]) -> None:
        """Note that the run was started; a store of the first format becomes one of this."""
        if self._bring_up():
            facts = {**facts, schema.UNWATCHED_FACT: self.num_episodes}
        self._num_starts += 1
        self._begun = (started_at, json.dumps(facts, default=repr))
        self.keep((), outcome=Outcome())

    def learn(self, facts: Mapping[str, Any]) -> None:
        """Add to what is known of this start; the next outcome that is kept carries it."""
        started_at, known = self._begun
        merged = {**json.loads(known), **facts}
        self._begun = (started_at, json.dumps(merged, default=repr))

    def keep(
        self,
        episodes: Sequence[Row],
        attempts: Sequence[Row] = (),
        outcome: Outcome | None = None,
    ) -> None:
        """Commit what came in.

        Args:
            episodes: Rows as `episode_row` makes them.
            attempts: Rows as `attempt_row` makes them.
            outcome: What the start has come to, where that is to be noted.

        Raises:
            sqlite3.Error: It could not be written, and nothing of it counts.
        """
        head = self._head
        chained: list[Row] = []
        for sequence, row in enumerate(episodes, self.num_episodes + 1):
            numbered = (sequence, *row)
            head = episode_checksum(numbered, head)
            chained.append((*numbered, head))
        num_episodes = self.num_episodes + len(episodes)
        num_attempts = self._num_attempts + len(attempts)
        with self._transaction() as connection:
            for first in range(0, len(chained), schema.MOST_AT_ONCE):
                part = chained[first : first + schema.MOST_AT_ONCE]
                connection.execute(schema.add_episodes(len(part)), [*chain.from_iterable(part)])
            for number, row in enumerate(attempts, self._num_attempts + 1):
                connection.execute(schema.ADD_ATTEMPT, _checked((number, *row)))
            if outcome is not None:
                connection.execute(schema.PUT_START, self._start_row(outcome))
            connection.execute(
                schema.PUT_HEAD, (num_episodes, self._num_starts, num_attempts, head)
            )
        self._head, self.num_episodes, self._num_attempts = head, num_episodes, num_attempts

    def set_errored_aside(self) -> None:
        """Move errored episodes to the table of retried ones: they count as not run."""
        with self._transaction() as connection:
            for statement in schema.SET_ASIDE:
                connection.execute(statement)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _bring_up(self) -> bool:
        """Make a store of the first format, whose contents were checked, one of this.

        Returns:
            Whether it was one.
        """
        (form,) = self._connection.execute("PRAGMA user_version").fetchone()
        if form != schema.FIRST_FORMAT:
            return False
        with self._transaction() as connection:
            for statement in schema.BRING_UP:
                connection.execute(statement)
        return True

    def _start_row(self, outcome: Outcome) -> Row:
        started_at, facts = self._begun
        telemetry = outcome.telemetry
        return _checked(
            (
                self._num_starts,
                started_at,
                outcome.ended_at,
                None if outcome.stopped is None else clean_text(outcome.stopped),
                outcome.elapsed_s,
                facts,
                None if telemetry is None else json.dumps(msgspec.to_builtins(telemetry)),
            )
        )

    @contextlib.contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection, None, None]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise


def _checked(row: Row) -> Row:
    return (*row, checksum(row))
