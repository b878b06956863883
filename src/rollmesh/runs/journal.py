"""The journal of a run: an episode is acknowledged when it is on disk (layer 7).

    with Journal.open("runs/lift", identity=identity, facts=gather_facts()) as journal:
        todo = [e for e in plan.episodes if e.index not in journal.finished]
        journal.subscribe(acknowledged=show, failed=stop)
        ...
        journal.record(episode)

One folder a run: `run.sqlite`, `run.lock`, and what hooks put beside them. Opening a folder that
holds the same run resumes it. Writing happens on a thread of its own, in groups.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from rollmesh.clock import SYSTEM_CLOCK, Clock
from rollmesh.errors import JournalError, RunChanged
from rollmesh.results.result import EpisodeResult
from rollmesh.runs import store
from rollmesh.runs.checking import Contents, damaged, name_error, read_contents
from rollmesh.runs.disk import check_place, is_network, name_trouble, name_unmade, place_of
from rollmesh.runs.identity import RunIdentity
from rollmesh.runs.lock import RunLock
from rollmesh.runs.marks import changed_marks, marked_by, seen_in
from rollmesh.runs.moving import put_aside
from rollmesh.runs.rows import FailedAttempt, Row, attempt_row, episode_row
from rollmesh.runs.schema import (
    ACCEPTED_FACT,
    EARLIER_FACT,
    LOG_FILE,
    MARKED_BY_FACT,
    MARKS_FACT,
    SIDECARS,
    STORE_FILE,
)
from rollmesh.runs.store import Outcome, Store
from rollmesh.runs.wal import count_lost_commits
from rollmesh.runs.writer import GroupWriter

if TYPE_CHECKING:
    from typing_extensions import Self

    from rollmesh.events import TelemetrySnapshot

_logger = logging.getLogger(__name__)

CLOSE_S = 120.0
"""How long `close` waits for the disk."""

Acknowledged: TypeAlias = Callable[[Sequence[EpisodeResult]], object]
"""Takes the episodes of one commit."""
Failed: TypeAlias = Callable[[JournalError], object]


class _Ended(NamedTuple):
    episode: EpisodeResult
    row: Row


class _Attempt(NamedTuple):
    row: Row


class _Learned(NamedTuple):
    facts: Mapping[str, Any]


_Item: TypeAlias = "_Ended | _Attempt | _Learned | Outcome"


class Journal:
    """The open journal of a run that this process drives; made by `open`.

    Guarantees: an episode that was acknowledged is on disk, and in `finished` whenever the run is
    opened again; each is acknowledged once. `record` waits for no disk. After disk trouble nothing
    more is written, and nothing that was acknowledged is lost.

    Attributes:
        folder: The run's folder, as an absolute path.
        finished: What needs no run, by plan index, as it was when the journal was opened; errored
            episodes are among them until `retry_errored`.
        failed_attempts: What earlier starts noted of attempts that failed.
        num_starts: How often the run was started, this time included.
        elapsed_before_s: How long earlier starts ran, in seconds.
        num_unwatched: Of how many finished ones nobody counted the odd observations.
        env_facts: What the last of them noted of env and lanes; empty where none came so far.
        marks: Hashes of the model and env that this start began with.
        failure: What ended the writing, or None.
    """

    def __init__(
        self, folder: Path, lock: RunLock, opened: Store, contents: Contents, *, clock: Clock
    ) -> None:
        """Take over what `open` prepared, and start the writer."""
        self.folder = folder
        self.finished: Mapping[int, EpisodeResult] = MappingProxyType(
            {episode.index: episode for episode in contents.results()}
        )
        self.failed_attempts = contents.failed_attempts
        self.num_starts = len(contents.starts) + 1
        self.elapsed_before_s = contents.elapsed_s()
        self.num_unwatched = contents.num_unwatched()
        self.env_facts: Mapping[str, Any] = contents.env_facts()
        self.marks: Mapping[str, Mapping[str, str]] = {}
        self.failure: JournalError | None = None
        self._lock = lock
        self._store = opened
        self._clock = clock
        self._num_acknowledged = len(self.finished)
        self._places = {folder / STORE_FILE: place_of(folder / STORE_FILE)}
        self._log_path = folder / LOG_FILE
        self._has_log = not is_network(folder) and opened.use_log(ahead=True)
        if not self._has_log:
            opened.use_log(ahead=False)
        self._outcome = Outcome()
        self._subscribers: list[tuple[Acknowledged | None, Failed | None]] = []
        self._is_told = False
        self._is_closed = False
        self._writer: GroupWriter[_Item] = GroupWriter(self._commit, self._fail)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        identity: RunIdentity,
        facts: Mapping[str, Any],
        new: bool = False,
        accept_changes: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Self:
        """Begin a run in a folder, or go on with the one that is there, and hold its lock.

        Args:
            folder: The run's folder; made if it is not there.
            identity: What the run is.
            facts: What this start runs on: `gather_facts()`, and whatever a reader may want to
                know. `command` is what `rollmesh retry` starts again.
            new: Begin a new run; one that is there is kept under another name.
            accept_changes: Go on where nothing but the marks of model or env have changed, and
                note that.
            clock: Tells the time.

        Raises:
            RunLocked: Another process drives the run.
            RunChanged: The folder holds a run of another identity, or one whose model or env has
                other marks, of which an episode has ended.
            RunDamaged: The store is not what was written.
            JournalError: The folder cannot be made or written.
        """
        path = Path(folder).absolute()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise name_unmade(path, error) from error
        lock: RunLock | None = None
        opened: Store | None = None
        try:
            lock = RunLock.acquire(path)
            if new:
                put_aside(path)
            now = clock.wall_ns() / 1e9
            opened, contents = _open_store(path, identity, now)
            _warn_of_lost_commits(opened, path)
            marks = _mark_facts(path, identity, contents, accept_changes=accept_changes)
            opened.begin_start(now, {**contents.env_facts(), **facts, **marks})
            journal = cls(path, lock, opened, contents, clock=clock)
        except BaseException as error:
            if opened is not None:
                opened.close()
            if lock is not None:
                lock.release()
            if isinstance(error, (sqlite3.Error, OSError)):
                raise name_error(path, error) from error
            raise
        journal.marks = identity.marks
        return journal

    def record(self, episode: EpisodeResult, *, ended_ns: int = 0) -> None:
        """Queue an episode that ended, finished or errored; it is committed within moments.

        Args:
            episode: The episode.
            ended_ns: When its last reply came, on the clock's monotonic time; 0 is now.

        Raises:
            JournalError: Writing has failed earlier.
            ValueError: The episode was finished before the journal was opened, or the journal is
                closed.
        """
        if episode.index in self.finished:
            raise ValueError(f"episode {episode.index} is finished, and was recorded again")
        at_ns = self._clock.wall_ns()
        if ended_ns:
            at_ns -= self._clock.monotonic_ns() - ended_ns
        self._put(_Ended(episode, episode_row(episode, at_ns / 1e9)))

    def record_failed_attempt(self, attempt: FailedAttempt) -> None:
        """Queue an attempt that came to nothing.

        Raises:
            JournalError: Writing has failed earlier.
            ValueError: The journal is closed.
        """
        self._put(_Attempt(attempt_row(attempt, self._clock.wall_ns() / 1e9)))

    def note_facts(self, facts: Mapping[str, Any]) -> None:
        """Queue what became known of this start only now, beside the facts that it began with.

        To be called before `note_outcome`.

        Raises:
            JournalError: Writing has failed earlier.
            ValueError: The journal is closed.
        """
        self._put(_Learned(dict(facts)))

    def note_outcome(
        self,
        *,
        stopped: str | None = None,
        elapsed_s: float | None = None,
        telemetry: TelemetrySnapshot | None = None,
    ) -> None:
        """Queue what this start has come to so far; the last word counts.

        Raises:
            JournalError: Writing has failed earlier.
            ValueError: The journal is closed.
        """
        self._outcome = Outcome(stopped=stopped, elapsed_s=elapsed_s, telemetry=telemetry)
        self._put(self._outcome)

    def subscribe(
        self, acknowledged: Acknowledged | None = None, *, failed: Failed | None = None
    ) -> None:
        """Have somebody told, on the writer's thread.

        Args:
            acknowledged: Called after each commit with the episodes that are now on disk.
            failed: Called once, with what ended the writing.
        """
        self._subscribers.append((acknowledged, failed))

    def flush(self, timeout_s: float | None = CLOSE_S) -> bool:
        """Wait until what was recorded so far is on disk, and return whether it is.

        Raises:
            JournalError: It cannot be written.
        """
        if self._writer.flush(timeout_s):
            return True
        self._raise_failure()
        return False

    def close(self) -> None:
        """Write what is queued, note the end of this start, and give the folder free.

        Raises:
            JournalError: Something recorded is not on disk, and nobody was told yet; or the disk
                does not answer, and the folder stays locked until this process ends.
        """
        if self._is_closed:
            return
        try:
            has_ended = self._writer.close(CLOSE_S)
        except KeyboardInterrupt:  # what was recorded is committed all the same
            if self._writer.close(CLOSE_S):
                self._let_go()
            raise
        if not has_ended:
            raise name_trouble(
                self.folder,
                TimeoutError(None, f"no answer from the disk within {CLOSE_S:g} s"),
                self._num_acknowledged,
            )
        self._let_go()
        if not self._is_told:
            self._raise_failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._is_told |= error is not None and error is self.failure
        self.close()

    # -------------------------------------------------------------------- on the writer's thread

    def _commit(self, group: list[_Item]) -> None:
        ended = [item for item in group if isinstance(item, _Ended)]
        attempts = [item.row for item in group if isinstance(item, _Attempt)]
        outcomes = [item for item in group if isinstance(item, Outcome)]
        for learned in [item for item in group if isinstance(item, _Learned)]:
            self._store.learn(learned.facts)
            outcomes = outcomes or [Outcome()]
        self._store.keep([item.row for item in ended], attempts, outcomes[-1] if outcomes else None)
        self._check_places()
        self._num_acknowledged += len(ended)
        if ended:
            episodes = tuple(item.episode for item in ended)
            for acknowledged, _ in self._subscribers:
                if acknowledged is not None:
                    _tell(acknowledged, episodes)

    def _check_places(self) -> None:
        """Check that what was just written can be found where the next start looks for it."""
        for path, place in self._places.items():
            check_place(path, place)
        if self._has_log and self._log_path not in self._places:
            self._places[self._log_path] = place_of(self._log_path)

    def _fail(self, error: Exception) -> None:
        failure = name_trouble(self.folder, error, self._num_acknowledged)
        failure.__cause__ = error
        self.failure = failure
        self._lock.note_failure(str(failure))
        for _, failed in self._subscribers:
            if failed is not None:
                self._is_told = True
                _tell(failed, failure)

    # ------------------------------------------------------------------------------------ inside

    def _put(self, item: _Item) -> None:
        if not self._writer.put(item):
            self._raise_failure()
            raise ValueError(f"the journal of {self.folder} is closed")

    def _raise_failure(self) -> None:
        if self.failure is not None:
            self._is_told = True
            raise self.failure

    def _let_go(self) -> None:
        """Note the end of this start and give the folder free; the writer has ended."""
        self._is_closed = True
        try:
            if self.failure is None:
                self._end_start()
        finally:
            self._store.close()
            self._lock.release()

    def _end_start(self) -> None:
        """Note when this start ended, and leave one plain file; all episodes are on disk."""
        try:
            self._store.keep(
                (), outcome=replace(self._outcome, ended_at=self._clock.wall_ns() / 1e9)
            )
            self._store.use_log(ahead=False)
        except (sqlite3.Error, OSError) as error:
            _logger.warning(
                "journal.end_not_noted folder=%s error=%r (its episodes are on disk)",
                self.folder,
                error,
            )


def _open_store(folder: Path, identity: RunIdentity, now: float) -> tuple[Store, Contents]:
    path = folder / STORE_FILE
    if not path.exists():
        left = [tail for tail in SIDECARS if (folder / f"{STORE_FILE}{tail}").exists()]
        if left:
            raise damaged(path, f"it is gone, and its {STORE_FILE}{left[0]} is still there")
        store.create(folder, identity, now)
    elif path.stat().st_size == 0:
        raise damaged(path, "it is empty")
    connection = store.open_to_write(path)
    try:
        contents = read_contents(connection, path)
    except BaseException:
        connection.close()
        raise
    changes = identity.changes_since(contents.identity)
    if not changes:
        return Store(connection, contents), contents
    connection.close()
    if contents.episodes or contents.retried:
        raise RunChanged(str(folder), changes)
    put_aside(folder)  # it came to nothing, as where a name was mistyped: another one may begin
    return _open_store(folder, identity, now)


def _mark_facts(
    folder: Path, identity: RunIdentity, contents: Contents, *, accept_changes: bool
) -> dict[str, Any]:
    """Return the facts that tell this start's model and env from others of their names.

    Raises:
        RunChanged: They are others than in earlier starts, whose episodes would be mixed with
            those to come.
    """
    changes: tuple[str, ...] = ()
    if identity.marks:
        seen = seen_in(contents.starts)
        changes = changed_marks(seen, identity.marks, earlier=identity.earlier)
    count = len(contents.episodes)
    if changes and count and not accept_changes:
        raise RunChanged(str(folder), changes, can_be_accepted=True)
    facts: dict[str, Any] = {}
    if identity.marks:
        facts = {MARKS_FACT: identity.marks, MARKED_BY_FACT: marked_by()}
    if identity.earlier:
        facts[EARLIER_FACT] = identity.earlier
    if changes:
        facts[ACCEPTED_FACT] = {"after": count, "changes": list(changes)}
        if count:
            _logger.warning(
                "journal.changes_accepted folder=%s after_episodes=%d changes=%s",
                folder,
                count,
                "; ".join(changes),
            )
    return facts


def _warn_of_lost_commits(opened: Store, folder: Path) -> None:
    lost = count_lost_commits(folder / LOG_FILE, opened.fold_log())
    if lost:
        _logger.warning(
            "journal.log_damaged folder=%s lost_commits=%d (%s does not hold together; what it "
            "kept after the damage is gone, and will be run again)",
            folder,
            lost,
            LOG_FILE,
        )


def _tell(subscriber: Callable[[Any], object], what: object) -> None:
    try:
        subscriber(what)
    except Exception:
        _logger.exception("journal.subscriber_failed (the journal goes on)")
