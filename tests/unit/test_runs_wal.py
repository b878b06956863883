"""Commits behind the damage in a write-ahead log."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3

import pytest

from rollmesh.runs.wal import count_lost_commits


@pytest.fixture
def log(tmp_path):
    """A log of five commits of one frame each."""
    with contextlib.closing(sqlite3.connect(tmp_path / "a", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("PRAGMA journal_mode = WAL")
        for number in range(5):
            connection.execute("INSERT INTO t VALUES (?)", (number,))
        shutil.copy(tmp_path / "a-wal", tmp_path / "log")
    return tmp_path / "log"


@pytest.mark.parametrize(("taken", "lost"), [(5, 0), (3, 2), (0, 5), (-1, 5)])
def test_commits_behind_the_frames_that_were_taken_are_lost(log, taken, lost):
    assert count_lost_commits(log, taken) == lost


def test_a_torn_last_frame_is_none(log):
    log.write_bytes(log.read_bytes()[:-1])
    assert count_lost_commits(log, 4) == 0


def test_frames_of_an_earlier_round_are_not_counted(log):
    data = bytearray(log.read_bytes())
    frame = 32 + 4 * (24 + 4096)
    data[frame + 8] ^= 1  # its salt is another one
    log.write_bytes(data)
    assert count_lost_commits(log, 4) == 0


def test_no_log_or_an_empty_one_has_lost_nothing(tmp_path):
    assert count_lost_commits(tmp_path / "none", 0) == 0
    (tmp_path / "empty").write_bytes(b"")
    assert count_lost_commits(tmp_path / "empty", 0) == 0
