"""Reading runs: what is there, what became of it, and who may look."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3

import pytest

from rollmesh.errors import JournalError, RunDamaged, RunError, RunLocked
from rollmesh.events import MetricRow, TelemetrySnapshot
from rollmesh.runs import schema, store
from rollmesh.runs.journal import Journal
from rollmesh.runs.lock import LOCK_FILE
from rollmesh.runs.reading import list_runs, read_run
from rollmesh.runs.rows import checksum
from tests.unit.runs_toys import PLANNED, StillClock, episode, identity

ROW = MetricRow(
    operation="env.step", component="Toy-v0", metric="rpc.total", kind="duration", count=10,
    mean=1.5, p50=1.0, p95=2.0, p99=float("nan"), min=0.5, max=3.0,
)  # fmt: skip


def run_in(folder, count=PLANNED, *, clock=None, outcome=None, **changes):
    clock = clock or StillClock()
    opened = Journal.open(folder, identity=identity(**changes), facts={"num_envs": 4}, clock=clock)
    with opened as journal:
        for index in range(count):
            clock.wall_s += 1.0
            journal.record(episode(index))
        if outcome is not None:
            journal.note_outcome(**outcome)


def killed_in(folder):
    """Leave a run as a kill leaves it: with its log, and no end noted."""
    journal = Journal.open(folder.with_name("live"), identity=identity(), facts={})
    journal.record(episode(0))
    journal.flush()
    shutil.copytree(folder.with_name("live"), folder)
    journal.close()


def test_a_finished_run_is_a_result(tmp_path):
    snapshot = TelemetrySnapshot(horizon="session", rows=(ROW,))
    run_in(tmp_path / "a", outcome={"elapsed_s": 12.5, "telemetry": snapshot})
    run = read_run(tmp_path / "a")
    assert (run.name, run.status) == ("a", "finished")
    assert run.identity == identity()
    assert run.result.episodes == tuple(episode(i) for i in range(PLANNED))
    assert repr(run.result.telemetry) == repr(snapshot)
    assert (run.result.env, run.result.model) == ("Toy-v0", "toy:policy")
    assert (run.result.planned, run.result.plan_seed, run.result.num_envs) == (PLANNED, 7, 4)
    kept = (run.result.plan_hash, run.result.run_dir)
    assert kept == (identity().plan_hash, str(tmp_path / "a"))
    assert run.result.elapsed_s == 12.5
    assert run.result.stopped is None
    assert run.last_at - run.created_at == PLANNED


def test_a_run_that_stopped_says_why(tmp_path):
    run_in(tmp_path, 3, outcome={"stopped": "interrupted"})
    run = read_run(tmp_path)
    assert (run.status, run.result.stopped) == ("stopped", "interrupted")


def test_a_run_without_a_known_size_is_finished_unless_it_stopped(tmp_path):
    run_in(tmp_path / "a", 3, planned=None)
    run_in(tmp_path / "b", 3, planned=None, outcome={"stopped": "interrupted"})
    assert read_run(tmp_path / "a").status == "finished"
    assert read_run(tmp_path / "b").status == "stopped"


def test_a_run_whose_journal_failed_says_so_and_goes_on_later(tmp_path, monkeypatch):
    journal = Journal.open(tmp_path, identity=identity(), facts={})
    journal.record(episode(0))
    journal.flush()
    size = (tmp_path / LOCK_FILE).stat().st_size

    def full(*_, **__):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store.Store, "keep", full)
    journal.record(episode(1))
    with pytest.raises(JournalError):
        journal.flush()
    assert read_run(tmp_path).status == "running"
    with pytest.raises(RunLocked):
        Journal.open(tmp_path, identity=identity(), facts={})
    journal.close()
    monkeypatch.undo()
    run = read_run(tmp_path)
    assert run.status == "stopped"
    assert "the journal failed: " in run.result.stopped
    assert "ENOSPC" in run.result.stopped
    assert list_runs(tmp_path.parent)[0].status == "stopped"
    assert (tmp_path / LOCK_FILE).stat().st_size == size  # a full disk has no room for more
    run_in(tmp_path, 0, outcome={"stopped": "interrupted"})
    assert read_run(tmp_path).result.stopped == "interrupted"


def test_a_killed_run_is_read_with_its_log(tmp_path):
    killed_in(tmp_path / "run")
    before = {p.name for p in (tmp_path / "run").iterdir()}
    run = read_run(tmp_path / "run")
    assert run.status == "killed"
    assert [e.index for e in run.result.episodes] == [0]
    assert {p.name for p in (tmp_path / "run").iterdir()} == before


def test_a_run_is_read_while_it_is_driven(tmp_path):
    with Journal.open(tmp_path, identity=identity(), facts={}) as journal:
        assert read_run(tmp_path).status == "running"
        journal.record(episode(0))
        journal.flush()
        assert len(read_run(tmp_path).result.episodes) == 1
        journal.record(episode(1))
    assert len(read_run(tmp_path).result.episodes) == 2


def test_starts_add_up(tmp_path):
    clock = StillClock()
    run_in(tmp_path, 3, clock=clock, outcome={"elapsed_s": 10.0})
    clock.wall_s += 1000.0
    with Journal.open(tmp_path, identity=identity(), facts={}, clock=clock) as journal:
        clock.wall_s += 5.0
        journal.record(episode(3))
    run = read_run(tmp_path)
    assert len(run.starts) == 2
    assert run.result.elapsed_s == 15.0  # the second noted nothing: until its last episode


def test_a_hot_rollback_journal_is_read_from_a_copy(tmp_path):
    run_in(tmp_path / "run", 3)
    path = tmp_path / "run" / "run.sqlite"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("PRAGMA cache_spill = 1")
    writer.execute("BEGIN EXCLUSIVE")
    writer.execute("UPDATE episodes SET error = hex(zeroblob(20000))")
    crashed = tmp_path / "crashed"
    shutil.copytree(path.parent, crashed)
    writer.execute("ROLLBACK")
    writer.close()
    assert (crashed / "run.sqlite-journal").stat().st_size > 0
    before = {p.name: p.read_bytes() for p in crashed.iterdir()}
    assert read_run(crashed).result.episodes == tuple(episode(i) for i in range(3))
    assert {p.name: p.read_bytes() for p in crashed.iterdir()} == before


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(RunError, match="holds no run"):
        read_run(tmp_path)
    with pytest.raises(RunError, match="holds no run"):
        read_run(tmp_path / "gone")


def test_a_place_that_is_no_folder_holds_no_run(tmp_path):
    (tmp_path / "notes.txt").write_text("a note")
    with pytest.raises(RunError, match=r"notes\.txt: holds no run: run\.sqlite: Not a directory"):
        read_run(tmp_path / "notes.txt")


def test_a_folder_that_may_not_be_looked_into_hides_no_other_run(tmp_path, monkeypatch):
    run_in(tmp_path / "mine")
    run_in(tmp_path / "theirs")
    look = os.stat

    def stat(path, *args, **kwargs):
        if str(path).startswith(str(tmp_path / "theirs" / "run")):
            raise PermissionError(13, "Permission denied", str(path))
        return look(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", stat)
    assert [glance.folder.name for glance in list_runs(tmp_path)] == ["mine"]
    with pytest.raises(RunError, match=r"theirs: cannot read run\.sqlite: Permission denied"):
        read_run(tmp_path / "theirs")


def test_a_file_that_is_no_store_is_damaged(tmp_path):
    (tmp_path / "run.sqlite").write_text("not a database, but long enough to be looked at" * 10)
    with pytest.raises(RunDamaged, match="file is not a database"):
        read_run(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "other.sqlite")) as connection:
        connection.execute("CREATE TABLE episodes (x)")
    (tmp_path / "other.sqlite").replace(tmp_path / "run.sqlite")
    with pytest.raises(RunDamaged, match="it is no run"):
        read_run(tmp_path)


def test_a_store_that_another_program_locks_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("rollmesh.runs.store._BUSY_S", 0.01)
    run_in(tmp_path, 3)
    with contextlib.closing(sqlite3.connect(tmp_path / "run.sqlite")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RunError, match=r"another program has run.sqlite locked"):
            read_run(tmp_path)


@pytest.mark.parametrize("plan_json", ["no JSON", "[1]", '{"seed": "x"}'])
def test_a_plan_that_says_no_seed_gives_none(tmp_path, plan_json):
    run_in(tmp_path, 1, plan_json=plan_json)
    assert read_run(tmp_path).result.plan_seed is None


def test_the_command_of_the_last_start_that_has_one(tmp_path):
    for command in (["eval", "a"], ["eval", "b"], None):
        Journal.open(tmp_path, identity=identity(), facts={"command": command}).close()
    assert read_run(tmp_path).command == ("eval", "b")


def test_runs_are_listed_the_latest_first_and_damaged_ones_too(tmp_path):
    run_in(tmp_path / "old", 3, clock=StillClock(1000.0), outcome={"stopped": "interrupted"})
    run_in(tmp_path / "late", clock=StillClock(2000.0))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.sqlite").write_text("x" * 1000)
    (tmp_path / "something else").mkdir()
    late, old, broken = list_runs(tmp_path)
    assert (late.folder.name, late.status, late.num_episodes) == ("late", "finished", PLANNED)
    assert (late.num_said, late.num_successes, late.planned) == (PLANNED, PLANNED // 2, PLANNED)
    assert (late.env, late.model, late.last_at) == ("Toy-v0", "toy:policy", 2000.0 + PLANNED)
    assert (old.status, old.num_episodes) == ("stopped", 3)
    assert broken.status is None
    assert "file is not a database" in broken.problem
    with pytest.raises(OSError):
        list_runs(tmp_path / "gone")


def test_a_glance_counts_errors_apart(tmp_path):
    with Journal.open(tmp_path / "a", identity=identity(), facts={}) as journal:
        journal.record(episode(0, success=True))
        journal.record(episode(1, success=None))
        journal.record(episode(2, success=True, error="boom"))
        journal.flush()
        (glance,) = list_runs(tmp_path)
    assert glance.status == "running"
    assert (glance.num_episodes, glance.num_errors) == (3, 1)
    assert (glance.num_said, glance.num_successes) == (1, 1)


def test_telemetry_of_another_version_is_left_out(tmp_path):
    run_in(tmp_path, 3)
    path = tmp_path / "run.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        names = ", ".join(("start", *schema.START_COLUMNS))
        (row,) = connection.execute(f"SELECT {names} FROM starts").fetchall()
        changed = (*row[:-1], '{"horizon": "session", "lines": []}')
        connection.execute(schema.PUT_START, (*changed, checksum(changed)))
        connection.commit()
    run = read_run(tmp_path)
    assert run.result.telemetry is None
    assert len(run.result.episodes) == 3


def test_a_run_killed_before_its_first_start_was_noted_is_empty_and_can_be_gone_on_with(tmp_path):
    store.create(tmp_path, identity(), 100.0)
    run = read_run(tmp_path)
    assert (run.status, run.starts, run.result.episodes) == ("killed", (), ())
    assert (run.last_at, run.result.elapsed_s, run.command) == (100.0, 0.0, None)
    (glance,) = [one for one in list_runs(tmp_path.parent) if one.folder == tmp_path]
    assert (glance.status, glance.last_at) == ("killed", 100.0)
    run_in(tmp_path)
    assert read_run(tmp_path).status == "finished"


def test_episodes_of_the_first_format_are_told_as_not_looked_at(tmp_path):
    run_in(tmp_path, 2)
    with contextlib.closing(sqlite3.connect(tmp_path / schema.STORE_FILE)) as connection:
        for table in ("episodes", "retried"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN odd_observations")
        connection.execute("PRAGMA user_version = 1")
    assert read_run(tmp_path).result.num_unwatched == 2
    for _ in range(2):
        with Journal.open(tmp_path, identity=identity(), facts={}) as journal:
            assert journal.num_unwatched == 2
            journal.record(episode(journal.num_starts))
    result = read_run(tmp_path).result
    assert (len(result.episodes), result.num_unwatched) == (4, 2)
