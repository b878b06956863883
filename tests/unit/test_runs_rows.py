"""Rows: what is kept of an episode comes back exactly."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from dataclasses import fields

import pytest

from rollmesh.results.result import EpisodeResult
from rollmesh.runs import schema
from rollmesh.runs.rows import (
    FailedAttempt,
    attempt_of,
    attempt_row,
    checksum,
    episode_checksum,
    episode_of,
    episode_row,
)
from rollmesh.spaces.conformance import OddObservations
from tests.unit.runs_toys import episode

NAN = OddObservations(kind="nan", path="observation['wrist'][2]", count=12)
ODD = {
    "odd observations": {"odd_observations": (NAN,)},
    "plain": {},
    "nothing known": {"success": None, "seed": None, "task": "", "error": None},
    "errored": {"error": "EnvFailed: x\nTraceback …\n\0 end", "success": None},
    "retried": {"attempts": 3, "causes": ("SIGKILL", "exit code 1: \N{SNOWMAN}\0")},
    "seed of 64 bits": {"seed": 2**63 - 1},
    "seed of 65 bits": {"seed": 2**64},
    "huge seed": {"seed": 10**30},
    "inf": {"total_reward": math.inf},
    "-inf": {"total_reward": -math.inf},
    "negative zero": {"total_reward": -0.0},
    "smallest": {"total_reward": 5e-324},
    "inexact": {"total_reward": 0.1 + 0.2, "duration_s": 1 / 3},
    "whole number": {"total_reward": 3.0},
    "large": {"total_reward": 1.7976931348623157e308},
}


def through_sqlite(row):
    """Return an episode's row as SQLite gives it back, with its sequence number."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema.SCHEMA)
        numbered = (1, *row)
        connection.execute(schema.ADD_EPISODE, (*numbered, episode_checksum(numbered, b"")))
        (found,) = connection.execute(schema.ALL_EPISODES).fetchall()
    assert found[-1] == episode_checksum(found[:-1], b"")
    return found[:-1]


@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
def test_an_episode_comes_back_exactly(changes):
    before = episode(5, **changes)
    assert repr(episode_of(through_sqlite(episode_row(before, 12.5)))) == repr(before)


def test_nan_comes_back_and_is_null_to_other_tools():
    row = episode_row(episode(5, total_reward=math.nan), 12.5)
    assert None in row
    assert math.isnan(episode_of(through_sqlite(row)).total_reward)


def test_every_field_of_an_episode_is_kept():
    changes = {
        "success": True, "error": "e", "attempts": 2, "causes": ("c",), "task": "t",
        "total_reward": 1.5, "steps": 7, "terminated": False, "truncated": True,
        "odd_observations": (NAN, OddObservations(kind="bounds", path="observation", count=1)),
    }  # fmt: skip
    before = episode(5, **changes)
    after = episode_of(through_sqlite(episode_row(before, 12.5)))
    for one in fields(EpisodeResult):
        assert getattr(after, one.name) == getattr(before, one.name), one.name
        assert type(getattr(after, one.name)) is type(getattr(before, one.name))


def test_half_a_character_is_kept_as_an_escape():
    odd = OddObservations(kind="nan", path="observation['\udc80']", count=1)
    given = episode(5, error="bad \udc80 byte", causes=("\udc80",), odd_observations=(odd,))
    after = episode_of(through_sqlite(episode_row(given, 12.5)))
    assert (after.error, after.causes) == ("bad \\udc80 byte", ("\\udc80",))
    assert after.odd_observations[0].path == "observation['\\udc80']"


@pytest.mark.parametrize("changes", [{"steps": "many"}, {"total_reward": None}, {"index": None}])
def test_what_is_no_number_is_refused_at_once(changes):
    with pytest.raises((TypeError, ValueError)):
        episode_row(episode(5, **changes), 12.5)


def test_a_failed_attempt_comes_back():
    attempt = FailedAttempt(
        index=3, attempt=2, cause="SIGSEGV", worker=1, signal=11, exit_code=None, stderr="a\nb"
    )
    assert attempt_of(attempt_row(attempt, 1.0)) == attempt
    lost = FailedAttempt(index=None, attempt=1, cause="exit code 3", exit_code=3)
    assert attempt_of(attempt_row(lost, 1.0)) == lost


def test_a_checksum_covers_order_values_and_types():
    row = (1, "a", 2.0, None, b"x")
    others = [(2, "a", 2.0, None, b"x"), (1, "a", 2, None, b"x"), (1, "a", 2.0, b"x", None)]
    assert len({checksum(r) for r in (row, *others)}) == 4
    assert checksum(row, b"before") != checksum(row)
    assert checksum(row) == checksum(row)
