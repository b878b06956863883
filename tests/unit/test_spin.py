"""Spinning: only where it pays, measured by itself."""

from __future__ import annotations

import pytest

from rollmesh.transport import spin
from rollmesh.transport.spin import BUDGET_NS, NEVER_NS, Spinner

MS = 1_000_000
STEP_NS = 50_000


class Clock:
    """The time, and how much of it this thread ran."""

    def __init__(self) -> None:
        self.now_ns = MS
        self.ran_ns = MS

    def run(self, ns: int) -> None:
        self.now_ns += ns
        self.ran_ns += ns


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(spin, "usable_cores", lambda: 2)
    monkeypatch.setattr(spin, "_crowd", spin._Crowd())
    monkeypatch.setattr(spin, "_places", {})


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(spin.time, "perf_counter_ns", lambda: clock.now_ns)
    monkeypatch.setattr(spin.time, "thread_time_ns", lambda: clock.ran_ns)
    return clock


def spin_for(spinner, clock, count, *, hit=True):
    for _ in range(count):
        clock.run(STEP_NS)
        if not hit:
            clock.now_ns += MS  # asleep
        spinner.note(STEP_NS if hit else BUDGET_NS + MS, hit=hit)


def test_it_goes_on_while_answers_come_in_time(clock):
    spinner = Spinner()
    spin_for(spinner, clock, 5000)
    assert spinner.resume_ns == 0


def test_it_stops_when_fewer_than_half_come_in_time(clock):
    spinner = Spinner()
    spin_for(spinner, clock, 8)
    spin_for(spinner, clock, 17, hit=False)
    spin_for(spinner, clock, 14)
    assert spinner.resume_ns == 0
    spin_for(spinner, clock, 1)
    assert spinner.resume_ns == clock.now_ns + 4 * MS


def test_a_pause_doubles_up_to_a_second_while_it_does_not_pay(clock):
    spinner = Spinner()
    pauses = []
    for _ in range(11):
        spin_for(spinner, clock, 7, hit=False)
        assert spinner.resume_ns <= clock.now_ns
        spin_for(spinner, clock, 1, hit=False)
        pauses.append((spinner.resume_ns - clock.now_ns) // MS)
        clock.now_ns = spinner.resume_ns
    assert pauses == [4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000, 1000]


def test_pauses_are_short_again_once_it_has_paid(clock):
    spinner = Spinner()
    for _ in range(5):
        spin_for(spinner, clock, 8, hit=False)
        clock.now_ns = spinner.resume_ns
    spin_for(spinner, clock, 8 + 32 * 20)
    spin_for(spinner, clock, 32, hit=False)
    assert spinner.resume_ns == clock.now_ns + 4 * MS


def test_it_stops_where_others_want_the_core(clock):
    spinner = Spinner()
    for step in range(1000):
        clock.run(STEP_NS)
        if step % 100 == 0:
            clock.now_ns += 3 * MS  # somebody else ran
        spinner.note(STEP_NS, hit=True)
        if spinner.resume_ns:
            break
    assert spinner.resume_ns > clock.now_ns


def crowded(clock):
    """Return a spinner that has found others on its core."""
    spinner = Spinner()
    spin_for(spinner, clock, 8)
    clock.now_ns += 3 * MS
    spin_for(spinner, clock, 32)
    assert spinner.resume_ns == clock.now_ns + 4 * MS
    return spinner


def test_a_new_one_does_not_begin_while_others_want_the_cores(clock):
    first = crowded(clock)
    second = Spinner()
    assert second.resume_ns == first.resume_ns
    clock.now_ns = second.resume_ns
    spin_for(second, clock, 8, hit=False)
    assert second.resume_ns == clock.now_ns + 8 * MS
    assert Spinner("always").resume_ns == 0


def test_a_new_one_begins_once_that_is_long_over(clock):
    crowded(clock)
    clock.now_ns += 9 * MS
    spinner = Spinner()
    assert spinner.resume_ns == 0
    spin_for(spinner, clock, 8, hit=False)
    assert spinner.resume_ns == clock.now_ns + 4 * MS


def test_one_long_sleep_is_not_taken_for_others(clock):
    spinner = Spinner()
    spin_for(spinner, clock, 300)
    clock.now_ns += 60_000 * MS
    spinner.note(60_000 * MS + BUDGET_NS, hit=False)
    spin_for(spinner, clock, 300)
    assert spinner.resume_ns == 0


def test_a_pause_is_not_taken_for_others(clock):
    spinner = Spinner()
    spin_for(spinner, clock, 8, hit=False)
    clock.now_ns = spinner.resume_ns + 500 * MS
    spin_for(spinner, clock, 1000)
    assert spinner.resume_ns < clock.now_ns


def test_another_thread_is_not_taken_for_others(clock, monkeypatch):
    spinner = Spinner()
    spin_for(spinner, clock, 300)
    monkeypatch.setattr(spin.threading, "get_ident", lambda: -1)
    clock.ran_ns = MS  # the other thread has hardly run yet
    spin_for(spinner, clock, 1000)
    assert spinner.resume_ns == 0


def test_a_platform_that_counts_coarsely_is_not_asked(clock, monkeypatch):
    coarse = type("Info", (), {"resolution": 0.0156})
    monkeypatch.setattr(spin.time, "get_clock_info", lambda name: coarse)
    spinner = Spinner()
    for _ in range(1000):
        clock.now_ns += STEP_NS
        spinner.note(STEP_NS, hit=True)
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
    spin_for(spinner, clock, 100, hit=False)
    assert spinner.resume_ns == 0


def poor(clock, place, *, windows=4):
    """Have a spinner of a place learn that it does not pay."""
    spinner = Spinner(place=place)
    clock.now_ns = max(clock.now_ns, spinner.resume_ns)
    for _ in range(windows):
        spin_for(spinner, clock, 8, hit=False)
        clock.now_ns = spinner.resume_ns
    return spinner


def test_the_next_one_of_a_place_goes_on_where_the_last_one_was(clock):
    poor(clock, "there")
    clock.now_ns -= 10 * MS
    following = Spinner(place="there")
    assert following.resume_ns == clock.now_ns + 10 * MS
    clock.now_ns = following.resume_ns
    spin_for(following, clock, 8, hit=False)
    assert following.resume_ns == clock.now_ns + 64 * MS


@pytest.mark.parametrize("place", ["elsewhere", ""])
def test_what_was_learnt_of_one_place_says_nothing_of_another(clock, place):
    poor(clock, "there")
    poor(clock, "")
    clock.now_ns -= 10 * MS
    assert Spinner(place=place).resume_ns == 0


def test_a_place_where_it_pays_again_is_begun_with_at_once(clock):
    spinner = poor(clock, "there")
    spin_for(spinner, clock, 8)
    assert Spinner(place="there").resume_ns == 0


def test_a_place_is_tried_again_later_and_left_for_longer_then(clock):
    poor(clock, "there")
    clock.now_ns += 2000 * MS
    following = Spinner(place="there")
    assert following.resume_ns <= clock.now_ns
    spin_for(following, clock, 8, hit=False)
    assert following.resume_ns == clock.now_ns + 64 * MS


def test_always_and_never_ask_no_place(clock):
    poor(clock, "there")
    assert Spinner("always", place="there").resume_ns == 0


def test_no_more_places_are_remembered_than_a_few_hundred(clock):
    for number in range(1000):
        poor(clock, str(number), windows=1)
    assert len(spin._places) <= 256


@pytest.mark.parametrize(
    ("mode", "processes", "spins"),
    [("auto", 2, True), ("auto", 3, False), ("always", 3, True)],
)
def test_who_is_told_of_more_processes_than_cores_spins_no_more(mode, processes, spins):
    spinner = Spinner(mode)
    spinner.share(processes)
    assert spinner.resume_ns == (0 if spins else NEVER_NS)
