"""The journal: acknowledged means on disk, and the same run goes on."""

from __future__ import annotations

import errno
import json
import logging
import sqlite3
import threading

import pytest

from rollmesh.errors import JournalError, RunChanged, RunLocked
from rollmesh.runs import disk
from rollmesh.runs.journal import Journal
from rollmesh.runs.lock import holder_of
from rollmesh.runs.moving import retry_errored
from rollmesh.runs.reading import read_run
from rollmesh.runs.rows import FailedAttempt
from tests.unit.runs_toys import StillClock, episode, identity


def journal_in(folder, **changes):
    return Journal.open(folder, **({"identity": identity(), "facts": {"a": 1}} | changes))


def kept_in(folder):
    """Return the indices that any SQLite tool finds."""
    with sqlite3.connect(folder / "run.sqlite") as connection:
        rows = connection.execute("SELECT plan_index FROM episodes ORDER BY plan_index").fetchall()
    connection.close()
    return [index for (index,) in rows]


def test_a_new_folder_is_made_and_nothing_is_finished(tmp_path):
    folder = tmp_path / "some" / "where"
    with journal_in(folder) as journal:
        assert journal.folder == folder
        assert journal.finished == {}
        assert journal.num_starts == 1
        assert journal.failed_attempts == ()
    assert sorted(p.name for p in folder.iterdir()) == ["run.lock", "run.sqlite"]


def test_an_episode_is_on_disk_when_it_is_acknowledged(tmp_path):
    found: list[tuple[list[int], list[int]]] = []

    def acknowledged(episodes):
        found.append(([e.index for e in episodes], kept_in(tmp_path)))

    with journal_in(tmp_path) as journal:
        journal.subscribe(acknowledged)
        journal.record(episode(3))
        assert journal.flush()
        journal.record(episode(1))
        journal.record(episode(2))
        assert journal.flush()
    assert [index for told, _ in found for index in told] == [3, 1, 2]
    assert all(set(told) <= set(there) for told, there in found)


def test_the_same_run_goes_on(tmp_path):
    with journal_in(tmp_path) as journal:
        for index in (0, 2, 5):
            journal.record(episode(index))
    with journal_in(tmp_path, facts={"a": 2}) as journal:
        assert journal.finished == {index: episode(index) for index in (0, 2, 5)}
        assert journal.num_starts == 2
        journal.record(episode(1))
    with journal_in(tmp_path) as journal:
        assert sorted(journal.finished) == [0, 1, 2, 5]
    assert [start.facts["a"] for start in read_run(tmp_path).starts] == [1, 2, 1]


def test_a_finished_episode_is_not_recorded_again(tmp_path):
    with journal_in(tmp_path) as journal:
        journal.record(episode(0))
    with journal_in(tmp_path) as journal, pytest.raises(ValueError, match="episode 0 is finished"):
        journal.record(episode(0))


def test_an_episode_recorded_twice_in_one_start_ends_the_writing(tmp_path):
    journal = journal_in(tmp_path)
    journal.record(episode(0))
    journal.flush()
    journal.record(episode(0, steps=99))
    with pytest.raises(JournalError, match="UNIQUE"):
        journal.flush()
    journal.close()
    assert read_run(tmp_path).result.episodes == (episode(0),)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "toy:other"}, '\n  model: "toy:policy" -> "toy:other"\n'),
        ({"settings": {"max_episode_steps": 7}}, "\n  settings.max_episode_steps: 100 -> 7\n"),
        ({"plan_hash": "ff"}, "\n  plan: hash 0123456789abcdef -> ff\n"),
    ],
)
def test_another_run_is_refused_with_what_changed(tmp_path, changes, words):
    with journal_in(tmp_path) as journal:
        journal.record(episode(0))
    before = (tmp_path / "run.sqlite").read_bytes()
    with pytest.raises(RunChanged) as caught:
        journal_in(tmp_path, identity=identity(**changes))
    assert words in str(caught.value)
    assert "--new" in str(caught.value)
    assert len(caught.value.changes) == 1
    assert (tmp_path / "run.sqlite").read_bytes() == before
    assert holder_of(tmp_path) is None


def test_a_run_of_which_no_episode_ended_gives_way_and_is_kept(tmp_path):
    journal_in(tmp_path, identity=identity(model="toy:polcy")).close()
    with journal_in(tmp_path) as journal:
        journal.record(episode(0))
    assert kept_in(tmp_path) == [0]
    assert read_run(tmp_path).identity.model == "toy:policy"
    assert (tmp_path / "run-1.sqlite").exists()


def test_a_run_whose_only_episode_waits_to_be_run_again_does_not_give_way(tmp_path):
    with journal_in(tmp_path) as journal:
        journal.record(episode(0, error="EnvFailed: stuck", success=None))
    assert retry_errored(tmp_path) == (0,)
    with pytest.raises(RunChanged):
        journal_in(tmp_path, identity=identity(model="toy:other"))


def test_a_second_driver_is_refused(tmp_path):
    with journal_in(tmp_path) as journal:
        with pytest.raises(RunLocked):
            journal_in(tmp_path)
        with pytest.raises(RunLocked):
            journal_in(tmp_path, new=True)
        with pytest.raises(RunLocked):
            retry_errored(tmp_path)
        journal.record(episode(0))
    assert kept_in(tmp_path) == [0]


def test_new_starts_over_and_keeps_what_was_there(tmp_path):
    for number in range(3):
        with journal_in(tmp_path, new=True, identity=identity(model=f"m{number}")) as journal:
            assert journal.finished == {}
            journal.record(episode(number))
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["run-1.sqlite", "run-2.sqlite", "run.lock", "run.sqlite"]
    assert kept_in(tmp_path) == [2]


def test_errored_episodes_count_as_finished_until_they_are_retried(tmp_path):
    with journal_in(tmp_path) as journal:
        journal.record(episode(0))
        journal.record(episode(1, error="EnvFailed: boom", success=None))
        journal.record(episode(2))
    with journal_in(tmp_path) as journal:
        assert sorted(journal.finished) == [0, 1, 2]
    assert retry_errored(tmp_path) == (1,)
    assert retry_errored(tmp_path) == ()
    with journal_in(tmp_path) as journal:
        assert sorted(journal.finished) == [0, 2]
        journal.record(episode(1))
    run = read_run(tmp_path)
    assert [e.error for e in run.result.episodes] == [None, None, None]
    assert [(e.index, e.error) for e in run.retried] == [(1, "EnvFailed: boom")]


def test_failed_attempts_and_outcomes_are_kept(tmp_path):
    clock = StillClock(100.0)
    attempt = FailedAttempt(index=4, attempt=1, cause="SIGKILL", worker=2, signal=9, stderr="x")
    with journal_in(tmp_path, clock=clock) as journal:
        journal.record_failed_attempt(attempt)
        journal.note_outcome(elapsed_s=1.0)
        journal.note_outcome(stopped="enough \udc80", elapsed_s=2.0)
        clock.wall_s = 107.5
    with journal_in(tmp_path) as journal:
        assert journal.failed_attempts == (attempt,)
    first = read_run(tmp_path).starts[0]
    assert (first.started_at, first.ended_at) == (100.0, 107.5)
    assert (first.stopped, first.elapsed_s) == ("enough \\udc80", 2.0)


def test_facts_that_json_does_not_know_are_kept_as_their_text(tmp_path):
    journal_in(tmp_path, facts={"folder": tmp_path}).close()
    assert read_run(tmp_path).facts == {"folder": repr(tmp_path)}


def test_a_closed_journal_takes_nothing(tmp_path):
    journal = journal_in(tmp_path)
    journal.close()
    journal.close()
    for use in (
        lambda: journal.record(episode(0)),
        lambda: journal.note_outcome(stopped="x"),
        lambda: journal.record_failed_attempt(FailedAttempt(index=0, attempt=1, cause="x")),
    ):
        with pytest.raises(ValueError, match="is closed"):
            use()


def test_close_writes_what_is_queued_and_leaves_one_plain_file(tmp_path):
    journal = journal_in(tmp_path)
    for index in range(20):
        journal.record(episode(index))
    journal.close()
    assert kept_in(tmp_path) == list(range(20))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.lock", "run.sqlite"]


def test_a_reader_at_the_end_does_not_hinder_the_end(tmp_path):
    journal = journal_in(tmp_path)
    journal.record(episode(0))
    journal.flush()
    reader = sqlite3.connect(tmp_path / "run.sqlite")
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM episodes").fetchone()
    journal._store._connection.execute("PRAGMA busy_timeout = 10")
    journal.close()
    reader.close()
    assert [e.index for e in read_run(tmp_path).result.episodes] == [0]
    with journal_in(tmp_path) as journal:
        assert sorted(journal.finished) == [0]


def test_a_ctrl_c_while_the_journal_closes_leaves_the_folder_free(tmp_path, monkeypatch):
    journal = journal_in(tmp_path)
    journal.record(episode(0))
    close = journal._writer.close

    def interrupted(timeout_s):
        monkeypatch.setattr(journal._writer, "close", close)
        raise KeyboardInterrupt

    monkeypatch.setattr(journal._writer, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        journal.close()
    with journal_in(tmp_path) as again:
        assert sorted(again.finished) == [0]


def test_time_of_earlier_starts_is_known_when_a_run_goes_on(tmp_path):
    for elapsed_s in (2.5, 4.0):
        with journal_in(tmp_path) as journal:
            journal.note_outcome(elapsed_s=elapsed_s)
    with journal_in(tmp_path) as journal:
        assert journal.elapsed_before_s == 6.5


def test_a_failing_subscriber_is_logged_and_hinders_nobody(tmp_path, caplog):
    told: list[int] = []
    with journal_in(tmp_path) as journal:
        journal.subscribe(lambda _: 1 / 0)
        journal.subscribe(lambda episodes: told.extend(e.index for e in episodes))
        journal.record(episode(0))
    assert told == [0]
    assert [r.levelname for r in caplog.records] == ["ERROR"]


class Broken:
    """Stands for a store whose disk fails from some commit on."""

    def __init__(self, inner, error):
        self.inner = inner
        self.error = error
        self.is_broken = False

    def keep(self, *args, **kwargs):
        if self.is_broken:
            raise self.error
        self.inner.keep(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def broken_journal(folder, error):
    journal = journal_in(folder)
    journal._store = Broken(journal._store, error)
    journal.record(episode(0))
    journal.flush()
    journal._store.is_broken = True
    return journal


IO_ERROR = sqlite3.OperationalError("disk I/O error")


def test_a_failure_is_told_once_and_everything_after_it_refused(tmp_path):
    journal = broken_journal(tmp_path, IO_ERROR)
    told: list[JournalError] = []
    is_told = threading.Event()
    journal.subscribe(failed=lambda failure: (told.append(failure), is_told.set()))
    journal.record(episode(1))
    assert is_told.wait(10.0)
    assert journal.failure is told[0]
    assert told[0].__cause__ is IO_ERROR
    assert (told[0].acknowledged, told[0].errno) == (1, errno.EIO)
    with pytest.raises(JournalError):
        journal.record(episode(2))
    with pytest.raises(JournalError):
        journal.flush()
    journal.close()
    assert len(told) == 1
    assert kept_in(tmp_path) == [0]


def test_a_failure_that_nobody_was_told_of_is_raised_by_close(tmp_path):
    journal = broken_journal(tmp_path, IO_ERROR)
    journal.record(episode(1))
    with pytest.raises(JournalError, match="1 episode is safely on disk"):
        journal.close()
    assert holder_of(tmp_path) is None


def test_a_failure_raised_inside_is_not_raised_again_at_the_end(tmp_path):
    def use():
        with broken_journal(tmp_path, IO_ERROR) as journal:
            journal.record(episode(1))
            journal.flush()

    with pytest.raises(JournalError) as caught:
        use()
    assert caught.value.__cause__ is IO_ERROR


def test_an_end_that_cannot_be_noted_is_a_warning(tmp_path, caplog):
    journal = broken_journal(tmp_path, IO_ERROR)
    with caplog.at_level(logging.WARNING):
        journal.close()
    assert "end_not_noted" in caplog.text
    assert kept_in(tmp_path) == [0]


def test_on_a_network_file_system_there_is_no_log(tmp_path, monkeypatch):
    monkeypatch.setattr("rollmesh.runs.journal.is_network", lambda _: True)
    with journal_in(tmp_path) as journal:
        journal.record(episode(0))
        journal.flush()
        assert not list(tmp_path.glob("*-wal"))
        assert not list(tmp_path.glob("*-shm"))
        assert kept_in(tmp_path) == [0]
    with journal_in(tmp_path) as journal:
        assert sorted(journal.finished) == [0]


def test_what_a_crash_left_of_a_store_being_made_is_no_obstacle(tmp_path):
    (tmp_path / "run.sqlite.new").write_bytes(b"half")
    (tmp_path / "run.sqlite.new-journal").write_bytes(b"half")
    journal_in(tmp_path).close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.lock", "run.sqlite"]


def test_any_sqlite_tool_reads_it(tmp_path):
    with journal_in(tmp_path) as journal:
        for index in range(6):
            journal.record(episode(index, task="ab"[index % 2]))
    connection = sqlite3.connect(tmp_path / "run.sqlite")
    query = "SELECT task, count(*), avg(success), sum(steps) FROM episodes GROUP BY task"
    assert connection.execute(query).fetchall() == [("a", 3, 0.0, 36), ("b", 3, 1.0, 39)]
    about = dict(connection.execute("SELECT name, value FROM run"))
    assert json.loads(about["model"]) == "toy:policy"
    connection.close()


def test_the_place_of_a_store_is_looked_at_after_each_commit(tmp_path):
    journal = journal_in(tmp_path)
    (tmp_path / "run.sqlite").rename(tmp_path / "elsewhere.sqlite")
    (tmp_path / "run.sqlite").write_bytes(b"another")
    journal.record(episode(0))
    with pytest.raises(JournalError, match="another file is there now") as caught:
        journal.flush()
    assert isinstance(caught.value.__cause__, disk.MovedAway)
    journal.close()
