"""The store: one transaction a change, whole or not at all."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from rollmesh.errors import RunDamaged
from rollmesh.runs import store
from rollmesh.runs.checking import name_error, read_contents
from rollmesh.runs.rows import episode_of, episode_row
from rollmesh.runs.schema import STORE_FILE
from rollmesh.runs.store import Outcome, Store
from rollmesh.spaces.conformance import OddObservations
from tests.unit.runs_toys import episode, identity


@pytest.fixture
def path(tmp_path):
    store.create(tmp_path, identity(), 12.5)
    return tmp_path / STORE_FILE


@contextlib.contextmanager
def opened(path):
    connection = store.open_to_write(path)
    with contextlib.closing(connection):
        yield Store(connection, read_contents(connection, path))


def contents_of(path):
    with contextlib.closing(store.open_to_read(path)) as connection:
        return read_contents(connection, path)


def row(index, **changes):
    return episode_row(episode(index, **changes), float(index))


def test_a_new_store_holds_what_the_run_is(path):
    contents = contents_of(path)
    assert contents.identity == identity()
    assert contents.created_at == 12.5
    assert contents.results() == []
    assert contents.starts == contents.failed_attempts == ()


def test_rows_are_numbered_on_over_all_openings(path):
    for group in ([3, 1], [], [2]):
        with opened(path) as writing:
            writing.keep([row(index) for index in group])
    contents = contents_of(path)
    assert [(r[0], r[1]) for r in contents.episodes] == [(1, 3), (2, 1), (3, 2)]


@pytest.mark.parametrize("count", [1, 49, 50, 51, 100, 117])
def test_groups_of_any_size_are_kept(path, count):
    with opened(path) as writing:
        writing.keep([row(index) for index in range(count)])
    contents = contents_of(path)
    assert contents.results() == [episode(index) for index in range(count)]


def test_a_group_is_kept_whole_or_not_at_all(path):
    with opened(path) as writing:
        writing.keep([row(0)])
        with pytest.raises(sqlite3.IntegrityError):
            writing.keep([row(1), row(0)])
        writing.keep([row(2)])
    assert [e.index for e in contents_of(path).results()] == [0, 2]


def test_starts_are_numbered_and_the_last_outcome_counts(path):
    for number in range(2):
        with opened(path) as writing:
            writing.begin_start(float(number), {"number": number})
            writing.keep((), outcome=Outcome(stopped="first"))
            writing.keep((), outcome=Outcome(ended_at=number + 0.5))
    assert [(s.started_at, s.ended_at, s.stopped, s.facts) for s in contents_of(path).starts] == [
        (0.0, 0.5, None, {"number": 0}),
        (1.0, 1.5, None, {"number": 1}),
    ]


def test_errored_rows_set_aside_stay_part_of_the_chain(path):
    with opened(path) as writing:
        writing.keep([row(0), row(1, error="boom"), row(2)])
        writing.set_errored_aside()
    with opened(path) as writing:
        writing.keep([row(1)])
        writing.set_errored_aside()
    contents = contents_of(path)
    assert [e.index for e in contents.results()] == [0, 2, 1]
    assert [episode_of(r).error for r in contents.retried] == ["boom"]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM retried")
        connection.commit()
    with pytest.raises(RunDamaged, match="holds 3 episodes, and its head says 4"):
        contents_of(path)


def test_a_store_of_the_first_format_is_read_and_brought_up(path):
    """It has no column for odd observations; its checksums stay those that it was given."""
    with opened(path) as writing:
        writing.begin_start(1.0, {})
        writing.keep([row(0), row(1, error="boom")])
        writing.set_errored_aside()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for table in ("episodes", "retried"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN odd_observations")
        connection.execute("PRAGMA user_version = 1")
    before = path.read_bytes()
    assert [e.odd_observations for e in contents_of(path).results()] == [()]
    assert contents_of(path).num_unwatched() == 1
    assert path.read_bytes() == before
    odd = (OddObservations(kind="nan", path="observation", count=3),)
    with opened(path) as writing:
        writing.begin_start(2.0, {})
        writing.keep([row(1, odd_observations=odd)])
    contents = contents_of(path)
    assert [(e.index, e.odd_observations) for e in contents.results()] == [(0, ()), (1, odd)]
    assert [episode_of(r).odd_observations for r in contents.retried] == [()]
    assert contents.num_unwatched() == 1
    with opened(path) as writing:
        writing.begin_start(3.0, {})
        writing.keep([row(2)])
    assert contents_of(path).num_unwatched() == 1


def test_a_changed_count_of_odd_observations_is_damage(path):
    odd = (OddObservations(kind="nan", path="observation", count=3),)
    with opened(path) as writing:
        writing.keep([row(0, odd_observations=odd)])
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE episodes SET odd_observations = NULL")
        connection.commit()
    with pytest.raises(RunDamaged, match="does not match its checksum"):
        contents_of(path)


def test_a_log_is_folded_into_the_file(path):
    with opened(path) as writing:
        assert writing.use_log(ahead=True)
        writing.keep([row(0)])
        assert writing.fold_log() > 0
        assert writing.use_log(ahead=False)
        assert writing.fold_log() < 0
    assert [p.name for p in path.parent.iterdir()] == [STORE_FILE]


def test_reading_changes_nothing(path):
    before = path.read_bytes()
    with (
        contextlib.closing(store.open_to_read(path)) as connection,
        pytest.raises(sqlite3.OperationalError, match="readonly"),
    ):
        connection.execute("DELETE FROM head")
    assert path.read_bytes() == before


def test_a_folder_with_odd_characters_is_no_trouble(tmp_path):
    folder = tmp_path / "50 % of #1? ü"
    folder.mkdir()
    store.create(folder, identity(), 1.0)
    assert contents_of(folder / STORE_FILE).identity == identity()


def test_what_is_wrong_with_the_content_is_damage_and_the_rest_trouble(tmp_path):
    assert isinstance(name_error(tmp_path, sqlite3.DatabaseError("malformed")), RunDamaged)
    assert not isinstance(name_error(tmp_path, sqlite3.OperationalError("I/O")), RunDamaged)
    assert not isinstance(name_error(tmp_path, OSError(5, "x")), RunDamaged)
