"""The guard: what carries a mark is ended, in a session of its own or not, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from rollmesh.fleet import guard

pytestmark = pytest.mark.skipif(not guard.can_sweep(), reason="no /proc here")
LIMIT_S = 10.0


@pytest.fixture
def sleeper():
    """Start processes that do nothing, with a mark, in sessions of their own."""
    started = []

    def start(mark):
        process = subprocess.Popen(
            ["sleep", "60"], env={**os.environ, guard.VARIABLE: mark}, start_new_session=True
        )
        started.append(process)
        while process.pid not in guard.marked(mark.split()[-1]):
            time.sleep(0.001)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def run_guard(*arguments):
    return subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, *arguments], stdin=subprocess.PIPE
    )


def test_a_mark_is_found_whole_or_before_a_dot(sleeper):
    one, other = sleeper("aa.3.1"), sleeper("aab.3.1")
    assert guard.marked("aa") == [one.pid]
    assert guard.marked("aa.3.1") == [one.pid]
    assert guard.marked("aab") == [other.pid]
    assert guard.marked("a") == guard.marked("aa.3.11") == guard.marked("3") == []


def test_a_fleet_in_a_worker_of_another_fleet_carries_both_marks(sleeper):
    inner = sleeper("outer.0.1 inner.5.2")
    assert guard.marked("outer") == guard.marked("inner.5.2") == [inner.pid]


def test_a_sweep_kills_what_carries_the_mark_and_nothing_else(sleeper):
    one, two, other = sleeper("bb.0.1"), sleeper("bb.1.1"), sleeper("cc.0.1")
    assert guard.sweep("bb") == 2
    assert one.wait(LIMIT_S) < 0
    assert two.wait(LIMIT_S) < 0
    assert other.poll() is None
    assert guard.sweep("bb") == 0


def test_a_guard_sweeps_when_its_input_ends(sleeper):
    left = sleeper("dd.0.1")
    process = run_guard(str(os.getpid()), "dd")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    process.stdin.close()
    assert process.wait(LIMIT_S) == 0
    assert left.wait(LIMIT_S) < 0


def test_a_guard_sweeps_when_its_driver_was_gone_before_it_looked(sleeper):
    left, gone = sleeper("ee.0.1"), subprocess.Popen(["true"])
    gone.wait()
    process = run_guard(str(gone.pid), "ee")
    assert process.wait(LIMIT_S) == 0
    assert left.wait(LIMIT_S) < 0
    process.stdin.close()
