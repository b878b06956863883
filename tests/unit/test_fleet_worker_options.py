"""Options of a fleet: checked when they are made."""

from __future__ import annotations

import pytest

from rollmesh.errors import InvalidSpec
from rollmesh.fleet.worker_options import WorkerOptions
from rollmesh.transport.spin import usable_cores


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("start_s", -1),
        ("load_s", float("nan")),
        ("close_s", "5"),
        ("starts_at_once", 0),
        ("failed_starts", 0),
        ("failed_starts", None),
        ("threads", True),
        ("threads", 1.5),
        ("conformance", "lax"),
    ],
)
def test_a_wrong_option_is_named(name, value):
    with pytest.raises(InvalidSpec, match=name):
        WorkerOptions(**{name: value})


def test_none_is_no_limit_where_there_may_be_none():
    options = WorkerOptions(start_s=None, load_s=None, close_s=None, threads=None)
    assert options.load_s is None


def test_as_many_start_at_once_as_there_are_cores_and_at_least_four():
    assert WorkerOptions().most_starting == max(4, usable_cores())
    assert WorkerOptions(starts_at_once=2).most_starting == 2
