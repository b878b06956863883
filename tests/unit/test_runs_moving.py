"""Setting stores aside: nothing is ever deleted, and a log goes with its store."""

from __future__ import annotations

import shutil

import pytest

from rollmesh.errors import JournalError
from rollmesh.runs.journal import Journal
from rollmesh.runs.moving import put_aside, retry_errored
from rollmesh.runs.reading import read_run
from tests.unit.runs_toys import episode, identity


def run_in(folder):
    with Journal.open(folder, identity=identity(), facts={}) as journal:
        journal.record(episode(0))


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_an_empty_folder_has_nothing_to_set_aside(tmp_path):
    assert put_aside(tmp_path) is None
    assert names(tmp_path) == []


def test_stores_and_traces_get_the_next_free_number(tmp_path):
    run_in(tmp_path)
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "steps.parquet").touch()
    (tmp_path / "traces-1").mkdir()
    data = (tmp_path / "run.sqlite").read_bytes()
    assert put_aside(tmp_path) == "run-2.sqlite"
    assert names(tmp_path) == ["run-2.sqlite", "run.lock", "traces-1", "traces-2"]
    assert (tmp_path / "run-2.sqlite").read_bytes() == data


def test_a_folder_for_traces_that_was_just_made_stays(tmp_path):
    (tmp_path / "traces").mkdir()
    assert put_aside(tmp_path) is None
    run_in(tmp_path)
    assert put_aside(tmp_path) == "run-1.sqlite"
    assert names(tmp_path) == ["run-1.sqlite", "run.lock", "traces"]


def test_what_a_crash_left_in_the_log_is_folded_into_the_store(tmp_path):
    journal = Journal.open(tmp_path / "live", identity=identity(), facts={})
    journal.record(episode(0))
    journal.flush()
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "live", killed)
    journal.close()
    assert put_aside(killed) == "run-1.sqlite"
    assert names(killed) == ["run-1.sqlite", "run.lock"]
    (killed / "run-1.sqlite").rename(killed / "run.sqlite")
    assert read_run(killed).result.episodes == (episode(0),)


def test_a_store_that_sqlite_cannot_open_is_moved_as_it_is(tmp_path):
    (tmp_path / "run.sqlite").write_bytes(b"garbage" * 100)
    (tmp_path / "run.sqlite-wal").write_bytes(b"more")
    assert put_aside(tmp_path) == "run-1.sqlite"
    assert (tmp_path / "run-1.sqlite").read_bytes() == b"garbage" * 100
    assert (tmp_path / "run-1.sqlite-wal").read_bytes() == b"more"
    assert not (tmp_path / "run.sqlite").exists()


def test_errored_episodes_of_no_run_are_a_named_error(tmp_path):
    with pytest.raises(JournalError):
        retry_errored(tmp_path)
    assert names(tmp_path) == ["run.lock"]
