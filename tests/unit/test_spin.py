"""Spinning: only where it pays, measured by itself."""

from __future__ import annotations

import pytest

from rollmesh.transport import spin
from rollmesh.transport.spin import BUDGET_NS, NEVER_NS, Spinner


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(spin, "usable_cores", lambda: 2)


@pytest.fixture
def clock(monkeypatch):
    now = [1_000]
    monkeypatch.setattr(spin.time, "perf_counter_ns", lambda: now[0])
    return now


def feed(spinner, count, *, hit, waited_ns=20_000):
    for _ in range(count):
        spinner.note(waited_ns, hit=hit)


def test_it_goes_on_while_answers_come_in_time(clock):
    spinner = Spinner()
    feed(spinner, 1000, hit=True)
    assert spinner.resume_ns == 0


def test_it_stops_for_a_second_when_fewer_than_half_come_in_time(clock):
    spinner = Spinner()
    feed(spinner, 8, hit=True)
    feed(spinner, 17, hit=False, waited_ns=50_000)
    feed(spinner, 14, hit=True)
    assert spinner.resume_ns == 0
    feed(spinner, 1, hit=True)
    assert spinner.resume_ns == 1_000 + 1_000_000_000


def test_after_a_pause_few_spins_are_lost(clock):
    spinner = Spinner()
    feed(spinner, 8, hit=False)
    assert spinner.resume_ns > clock[0]
    clock[0] += 2_000_000_000
    feed(spinner, 7, hit=False)
    assert spinner.resume_ns < clock[0]
    feed(spinner, 1, hit=False)
    assert spinner.resume_ns > clock[0]


def test_it_stops_when_answers_take_longer_than_it_would_spin(clock):
    spinner = Spinner()
    feed(spinner, 32, hit=True, waited_ns=BUDGET_NS * 3)
    assert spinner.resume_ns > clock[0]


def test_one_long_wait_changes_nothing(clock):
    spinner = Spinner()
    feed(spinner, 8, hit=True)
    spinner.note(60_000_000_000, hit=False)
    feed(spinner, 31, hit=True)
    assert spinner.resume_ns == 0


@pytest.mark.parametrize(
    ("mode", "processes", "spins"),
    [("auto", 2, True), ("auto", 3, False), ("always", 3, True), ("never", 1, False)],
)
def test_never_with_more_processes_than_cores(mode, processes, spins):
    spinner = Spinner(mode, processes=processes)
    assert spinner.resume_ns == (0 if spins else NEVER_NS)


def test_always_means_always(clock):
    spinner = Spinner("always")
    feed(spinner, 100, hit=False)
    assert spinner.resume_ns == 0
