"""The local pool: workers start, what they say and how they end is told, nothing is left."""

from __future__ import annotations

import logging
import queue
import signal

import pytest

from rollmesh.fleet import guard
from rollmesh.fleet.pool import LOG_MARK, LocalPool
from rollmesh.fleet.worker_spec import WorkerSpec, worker_environment
from rollmesh.testing.faults import take_stock
from rollmesh.testing.faults.stock import left_behind

LIMIT_S = 20.0


@pytest.fixture
def pool():
    before = take_stock()
    made = LocalPool()
    yield made
    made.close()
    assert not left_behind(before)


def spec(worker=0, address="rollmesh+unix:///nowhere/at/all.sock", **given):
    environment = {**worker_environment(1), **given.pop("environment", {})}
    return WorkerSpec(
        worker=worker,
        start=1,
        address=address,
        token="t",
        lanes=(0,),
        environment=environment,
        **given,
    )


def start(pool, *specs):
    ends = queue.SimpleQueue()
    return [pool.start(one, ends.put) for one in specs], ends


def test_one_that_finds_no_driver_ends_and_its_last_lines_are_kept(pool, tmp_path):
    (process,), ends = start(pool, spec(cwd=str(tmp_path)))
    how = ends.get(timeout=LIMIT_S)
    assert how.code == 1
    assert how.cause == "exit code 1"
    assert "nowhere/at/all.sock" in how.last_lines[-1]
    assert process.pid is not None
    process.kill()


def test_one_that_is_killed_has_died_of_it(pool):
    listening = spec(environment={"PYTHONSTARTUP": ""})
    (process, other), ends = start(pool, listening, spec(worker=1))
    process.kill()
    process.kill()
    codes = {ends.get(timeout=LIMIT_S).code for _ in range(2)}
    assert codes <= {-signal.SIGKILL, None, 1}
    assert process.is_unwanted
    assert not other.is_unwanted


def test_one_that_is_killed_before_it_is_started_never_starts(pool):
    blocked = queue.SimpleQueue()
    pool._starter.submit(lambda: blocked.get(timeout=LIMIT_S), lambda _: None)
    (process,), ends = start(pool, spec())
    process.kill()
    blocked.put(None)
    how = ends.get(timeout=LIMIT_S)
    assert how.code is None
    assert process.pid is None


def test_one_that_cannot_be_started_is_told_as_ended(pool):
    _, ends = start(pool, spec(cwd="/nowhere/at/all"))
    how = ends.get(timeout=LIMIT_S)
    assert how.code is None
    assert "could not be started" in how.detail


def test_a_closed_pool_starts_nothing(pool):
    pool.close()
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        start(pool, spec())


def test_closing_ends_those_that_are_left(pool):
    _, ends = start(pool, *[spec(worker=number) for number in range(3)])
    pool.close()
    assert {ends.get(timeout=LIMIT_S).code for _ in range(3)} <= {-signal.SIGKILL, None, 1}
    assert not guard.marked(pool._mark)


def written(pool, lines):
    """Return what came of lines that a worker wrote: read by the thread that watches."""
    watch = pool._watch
    process = type("Process", (), {"worker": 0})()
    watched = type("Watched", (), {"lines": [], "process": process})()
    for line in lines:
        watch._line(watched, line.encode())
    return watched.lines


def test_log_records_of_workers_are_logged_here_once_and_are_no_last_lines(pool, caplog):
    start(pool, spec())
    caplog.set_level(logging.INFO)
    record = f"{LOG_MARK}\tWARNING\trollmesh.spaces\tvalue_odd path=obs\twith a tab"
    lines = written(pool, [record, record, "plain", "", f"{LOG_MARK}\tcut", "x" * 9000])
    assert lines == ["plain", "x" * 500]
    told = [one for one in caplog.records if one.name == "rollmesh.spaces"]
    assert [one.levelno for one in told] == [logging.WARNING]
    assert told[0].getMessage() == "value_odd path=obs\twith a tab"


def test_of_a_line_that_was_written_over_what_a_terminal_shows_is_kept(pool):
    start(pool, spec())
    bar = "".join(f"\rloading {share} % {'#' * share}" for share in range(100))
    assert written(pool, [bar, f"{bar}\r", "one\r\r", "\r"]) == [
        f"loading 99 % {'#' * 99}",
        f"loading 99 % {'#' * 99}",
        "one",
    ]
