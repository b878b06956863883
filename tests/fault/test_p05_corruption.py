"""P5: corruption is never silent: what is read is an exact prefix, or a named error."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from collections import Counter

import pytest

from rollmesh.errors import RunDamaged
from rollmesh.runs.journal import Journal
from rollmesh.runs.moving import retry_errored
from rollmesh.runs.reading import list_runs, read_run
from tests.fault.journal_process import IDENTITY, episode_at

EPISODES = 40
FLIPS = 2000
STORE, LOG = "run.sqlite", "run.sqlite-wal"


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A store at rest, and one whose driver was killed: its last commits are in its log."""
    root = tmp_path_factory.mktemp("p5")
    with Journal.open(root / "rest", identity=IDENTITY, facts={"note": "a fact"}) as journal:
        for index in range(EPISODES):
            journal.record(episode_at(index))
            if index == EPISODES // 2:
                journal.flush()
                with contextlib.closing(sqlite3.connect(root / "rest" / STORE)) as other:
                    other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if index % 4 == 3:
                journal.flush()
        journal.flush()
        shutil.copytree(root / "rest", root / "killed")
    (root / "killed" / f"{STORE}-shm").unlink()
    assert {p.name for p in (root / "rest").iterdir()} == {STORE, "run.lock"}
    assert {p.name for p in (root / "killed").iterdir()} == {STORE, LOG, "run.lock"}
    return root


def read_or_name(folder):
    """Return the run, or None where its damage was named; any other error is a failure."""
    try:
        return read_run(folder)
    except RunDamaged as error:
        if STORE in str(error) and "--new" in str(error):
            return None
        raise


@pytest.fixture
def trial(stores, tmp_path):
    """Return what puts other bytes into a copy of a store, and judges what is read of it."""
    tally: Counter[str] = Counter()

    def judge(which, name, data):
        folder = tmp_path / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(stores / which, folder)
        (folder / name).write_bytes(data)
        run = read_or_name(folder)
        if run is None:
            tally["named"] += 1
            return
        episodes = run.result.episodes
        expected = tuple(episode_at(index) for index in range(len(episodes)))
        assert repr(episodes) == repr(expected), "a wrong row"
        assert run.identity == IDENTITY
        tally["whole" if len(episodes) == EPISODES else "prefix"] += 1

    yield judge
    print(dict(tally))
    assert tally["named"] + tally["prefix"] > 0


def lengths(size, step):
    return [*range(0, size, step), *range(max(0, size - 2 * step), size)]


def flipped(data, chance):
    bit = chance.randrange(len(data) * 8)
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def check_lengths(stores, trial, which, step):
    which, name = which
    data = (stores / which / name).read_bytes()
    for length in lengths(len(data), step):
        trial(which, name, data[:length])


def check_flips(stores, trial, which, count):
    which, name = which
    data = (stores / which / name).read_bytes()
    chance = random.Random(f"{which}/{name}")
    for _ in range(count):
        trial(which, name, flipped(data, chance))


places = pytest.mark.parametrize("which", [("rest", STORE), ("killed", STORE), ("killed", LOG)])


@pytest.mark.fault
@places
def test_p5_some_truncation_lengths(stores, trial, which):
    check_lengths(stores, trial, which, 331)


@pytest.mark.fault_full
@pytest.mark.timeout(1800)
@places
def test_p5_every_truncation_length(stores, trial, which):
    check_lengths(stores, trial, which, 1)


@pytest.mark.fault
@places
def test_p5_400_bit_flips(stores, trial, which):
    check_flips(stores, trial, which, FLIPS // 5 // 3 + 1)


@pytest.mark.fault_full
@pytest.mark.timeout(600)
@places
def test_p5_2_000_bit_flips(stores, trial, which):
    check_flips(stores, trial, which, FLIPS // 3 + 1)


def test_p5_a_damaged_store_is_not_driven_and_new_keeps_it(stores, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stores / "rest", folder)
    path = folder / STORE
    data = path.read_bytes()
    at = data.index(b"episode-000000000007")
    damaged = data[: at + 19] + b"8" + data[at + 20 :]
    path.write_bytes(damaged)
    for use in (
        lambda: Journal.open(folder, identity=IDENTITY, facts={}),
        lambda: retry_errored(folder),
        lambda: read_run(folder),
    ):
        with pytest.raises(RunDamaged, match=r"episode 8 of 40 does not match its checksum"):
            use()
        assert path.read_bytes() == damaged
    with Journal.open(folder, identity=IDENTITY, facts={}, new=True) as journal:
        assert journal.finished == {}
    assert (folder / "run-1.sqlite").read_bytes() == damaged


@pytest.mark.parametrize("size", [0, 1, 99, 4096])
def test_p5_a_store_cut_short_is_named_by_all_who_open_it(stores, tmp_path, size):
    folder = tmp_path / "run"
    shutil.copytree(stores / "rest", folder)
    (folder / STORE).write_bytes((folder / STORE).read_bytes()[:size])
    for use in (
        lambda: Journal.open(folder, identity=IDENTITY, facts={}),
        lambda: retry_errored(folder),
        lambda: read_run(folder),
    ):
        with pytest.raises(RunDamaged, match=r"run.sqlite is damaged"):
            use()
    (glance,) = list_runs(tmp_path)
    assert glance.problem
    assert glance.status is None


def test_p5_a_log_without_its_store_is_named(stores, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stores / "killed", folder)
    (folder / STORE).unlink()
    with pytest.raises(RunDamaged, match=r"it is gone, and its run.sqlite-wal is still there"):
        Journal.open(folder, identity=IDENTITY, facts={})
    with Journal.open(folder, identity=IDENTITY, facts={}, new=True) as journal:
        assert journal.finished == {}
    assert (folder / "run-1.sqlite-wal").exists()


def test_p5_a_deleted_row_is_missed(stores, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stores / "rest", folder)
    with contextlib.closing(sqlite3.connect(folder / STORE)) as connection:
        connection.execute("DELETE FROM episodes WHERE plan_index = 39")
        connection.commit()
    with pytest.raises(RunDamaged, match="holds 39 episodes, and its head says 40"):
        read_run(folder)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE episodes SET success = 1 WHERE plan_index = 5", "episode 6 of 40"),
        ("UPDATE episodes SET sequence = 50 WHERE plan_index = 39", "episode 40 of 40"),
        ("UPDATE run SET value = '\"Other\"' WHERE name = 'model'", "episode 1 of 40"),
        ("UPDATE starts SET facts = '{}'", "row 1 of starts"),
        ("DELETE FROM starts", "starts holds 0 rows"),
        ("DELETE FROM head", "head has 0 rows"),
        ("DROP TABLE retried", "no such table"),
        ("PRAGMA user_version = 3", "its format is 3"),
        ("PRAGMA application_id = 7", "application id is 0x7"),
    ],
)
def test_p5_what_another_program_changed_is_noticed(stores, tmp_path, statement, words):
    folder = tmp_path / "run"
    shutil.copytree(stores / "rest", folder)
    with contextlib.closing(sqlite3.connect(folder / STORE)) as connection:
        connection.execute(statement)
        connection.commit()
    with pytest.raises(RunDamaged, match=words):
        read_run(folder)


def test_p5_commits_lost_with_a_damaged_log_are_told(stores, tmp_path, caplog):
    folder = tmp_path / "run"
    shutil.copytree(stores / "killed", folder)
    log = bytearray((folder / LOG).read_bytes())
    log[len(log) // 2] ^= 1
    (folder / LOG).write_bytes(log)
    with Journal.open(folder, identity=IDENTITY, facts={}) as journal:
        assert 0 < len(journal.finished) < EPISODES
    (record,) = [r for r in caplog.records if "log_damaged" in r.message]
    assert "lost_commits=" in record.message
    assert "will be run again" in record.message


def test_p5_a_log_that_a_crash_tore_is_not_called_damaged(stores, tmp_path, caplog):
    folder = tmp_path / "run"
    shutil.copytree(stores / "killed", folder)
    log = (folder / LOG).read_bytes()
    (folder / LOG).write_bytes(log[:-100])
    with Journal.open(folder, identity=IDENTITY, facts={}) as journal:
        assert len(journal.finished) < EPISODES
    assert not caplog.records
