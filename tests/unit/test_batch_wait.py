"""How long a batch waits: the cost curve, the clocks of episodes, and the decision."""

from __future__ import annotations

import pytest

from rollmesh.endpoint.models.batch_wait import (
    LIVE_NS,
    OWN,
    CostCurve,
    FixedWait,
    LearnedWait,
    Pause,
)

MS = 1_000_000
SECOND = 1_000 * MS
ROUTE = "route"


def forwards(policy, fixed=20, row=0.5, sizes=(1, 2, 4, 8, 16)):
    for rows in sizes:
        policy.took(rows, int((fixed + row * rows) * MS))


class Bench:
    """A learned wait, and a clock to move by hand; times of the model in milliseconds."""

    def __init__(self, fixed=20, row=0.5, max_batch=64, **given):
        self.policy = LearnedWait(max_batch, **given)
        self.now = SECOND
        forwards(self.policy, fixed, row)

    def think(self, *ids, ms=5.0, times=4, route=ROUTE):
        """Have episodes answered, and ask again `ms` later, so many times; they wait at the end."""
        for _ in range(times):
            self.policy.asked(route, ids, self.now)
            self.now += 30 * MS
            self.policy.answered(ids, self.now)
            self.now += int(ms * MS)
        self.policy.asked(route, ids, self.now)

    def answer(self, *ids):
        self.now += 30 * MS
        self.policy.answered(ids, self.now)

    def ask(self, *ids, after_ms=0.0, route=ROUTE):
        self.now += int(after_ms * MS)
        self.policy.asked(route, ids, self.now)

    def wait_ms(self, rows, after_ms=0.0):
        self.now += int(after_ms * MS)
        pause = self.policy.pause(rows, self.now, self.now)
        return 0 if pause is None else pause.ns / MS


EIGHT = tuple("abcdefgh")
FOUR, OTHERS = EIGHT[:4], EIGHT[4:]


@pytest.fixture
def bench():
    return Bench()


# ------------------------------------------------------------------------------ cost curve


def test_the_line_goes_through_what_forwards_took():
    curve = CostCurve()
    for rows in (1, 3, 8, 20):
        curve.add(rows, 20 * MS + rows * MS // 2)
    fixed, row = curve.line
    assert fixed == pytest.approx(20 * MS)
    assert row == pytest.approx(MS / 2)


def test_one_forward_that_compiled_changes_nothing():
    curve = CostCurve()
    for _ in range(3):
        for rows in (1, 8):
            curve.add(rows, 20 * MS + rows * MS)
    curve.add(8, 60 * SECOND)
    assert curve.line[0] == pytest.approx(20 * MS)


def test_of_one_size_rows_are_hoped_to_be_free():
    curve = CostCurve()
    curve.add(8, 24 * MS)
    assert curve.line == (24 * MS, 0.0)


def test_a_curve_follows_a_model_that_became_slower():
    curve = CostCurve()
    for cost in (10, 30):
        for _ in range(9):
            for rows in (1, 8):
                curve.add(rows, cost * MS)
    assert curve.line == (pytest.approx(30 * MS), pytest.approx(0.0, abs=1.0))


@pytest.mark.parametrize("falls", [True, False])
def test_neither_part_is_below_zero(falls):
    curve = CostCurve()
    curve.add(1, 30 * MS if falls else 1 * MS)
    curve.add(16, 10 * MS if falls else 160 * MS)
    fixed, row = curve.line
    assert fixed >= 0.0
    assert row >= 0.0


# -------------------------------------------------------------------------------- decisions


def test_nothing_known_goes_at_once():
    policy = LearnedWait(64)
    policy.asked(ROUTE, ["a"], 1)
    assert policy.pause(1, 1, 1) is None


def test_a_lone_episode_never_waits(bench):
    bench.think("a", times=20)
    assert bench.wait_ms(1) == 0


def test_it_waits_for_those_who_come_soon(bench):
    bench.think(*EIGHT)
    bench.answer(*EIGHT)
    bench.ask(*FOUR, after_ms=4)
    assert 0.9 <= bench.wait_ms(4) <= 1.5


def test_it_looks_again_once_those_are_there_whom_it_waits_for(bench):
    bench.think(*EIGHT)
    bench.answer(*EIGHT)
    bench.ask(*FOUR, after_ms=4)
    assert bench.policy.pause(4, bench.now, bench.now).rows == 7  # 7.9 of 8 are expected


def test_once_all_are_there_it_goes(bench):
    bench.think(*EIGHT)
    bench.answer(*EIGHT)
    bench.ask(*EIGHT, after_ms=5)
    assert bench.wait_ms(8) == 0


def test_who_thinks_longer_than_ever_is_not_waited_for(bench):
    bench.think(*EIGHT)
    bench.answer(*EIGHT)
    bench.ask(*FOUR, after_ms=4)
    assert bench.wait_ms(4, after_ms=1.1) == 0


def test_who_is_far_away_is_not_waited_for(bench):
    bench.think(*FOUR)
    bench.think(*OTHERS, ms=100, times=OWN)
    bench.answer(*EIGHT)
    bench.ask(*FOUR, after_ms=5)
    assert bench.wait_ms(4) == 0


def test_it_never_waits_longer_than_a_forward_costs_beside_its_rows(bench):
    bench.think(*EIGHT, ms=19.0)
    bench.answer("a")
    bench.answer(*EIGHT[1:])
    bench.ask("a")
    assert 0 < bench.wait_ms(1) <= 20
    assert bench.policy.pause(1, bench.now, bench.now + 20 * MS) is None


def test_the_wait_counts_from_when_the_model_is_free(bench):
    bench.think(*EIGHT)
    bench.policy.answered(EIGHT, bench.now)
    oldest = bench.now - 25 * MS  # it came while the model was busy
    bench.ask("a")
    assert bench.policy.pause(1, oldest, bench.now) is not None


def test_who_would_miss_a_whole_turn_is_waited_for_longer(bench):
    seven, last = EIGHT[:7], EIGHT[7]
    bench.think(*seven, ms=10, times=OWN)
    bench.think(last, ms=13.5, times=OWN)
    bench.answer(*EIGHT)
    bench.ask(*seven, after_ms=10)
    assert 3 <= bench.wait_ms(7) <= 4  # the model has been free for all that time
    bench.policy.answered((), bench.now)  # and now it was busy until this moment
    assert bench.wait_ms(7) == 0


def test_a_full_batch_does_not_wait():
    bench = Bench(max_batch=4)
    bench.think(*EIGHT)
    bench.answer(*EIGHT)
    bench.ask(*FOUR, after_ms=4)
    assert bench.wait_ms(4) == 0
    assert bench.wait_ms(3) > 0


@pytest.mark.parametrize(("fixed", "row"), [(0, 2), (0.1, 0.01)])
def test_where_a_forward_saved_is_worth_nothing_it_does_not_wait(fixed, row):
    bench = Bench()
    for _ in range(10):
        forwards(bench.policy, fixed, row)
    bench.think(*EIGHT)
    bench.answer(*EIGHT)
    bench.ask(*FOUR, after_ms=4)
    assert bench.wait_ms(4) == 0


def test_batches_that_are_filled_up_anyway_wait_for_free_rows():
    plain, filled = Bench(2, 20), Bench(2, 20, sizes=(1, 2, 4, 8, 16))
    for bench in (plain, filled):
        bench.think(*EIGHT, ms=1.7)
        bench.answer(*EIGHT)
        bench.ask(*EIGHT[:5], after_ms=0.2)
    assert plain.wait_ms(5) == 0
    assert filled.wait_ms(5) > 0


# --------------------------------------------------------------------------------- episodes


def test_an_episode_that_was_released_is_not_waited_for(bench):
    bench.think(*EIGHT)
    bench.answer(*EIGHT)
    bench.ask(*FOUR, after_ms=4)
    bench.policy.released(ROUTE, OTHERS)
    assert bench.wait_ms(4) == 0


def test_the_successor_of_an_ended_episode_is_waited_for(bench):
    bench.think("a", "b0")
    for number in range(4):  # what it takes to reset is learned: 3 ms
        bench.answer("a", f"b{number}")
        bench.policy.ended(ROUTE, [f"b{number}"], bench.now)
        bench.ask(f"b{number + 1}", after_ms=3)
        bench.ask("a", after_ms=2)
    bench.answer("a", "b4")
    bench.ask("a", after_ms=4)
    bench.policy.ended(ROUTE, ["b4"], bench.now)
    assert 2.5 <= bench.wait_ms(1) <= 3.7
    assert bench.wait_ms(1, after_ms=4) == 0  # at the end of a plan nobody follows


def test_the_first_successor_of_all_is_waited_for_like_a_step(bench):
    bench.think(*EIGHT)
    bench.answer(*EIGHT)
    bench.policy.ended(ROUTE, OTHERS, bench.now)
    bench.ask(*FOUR, after_ms=4)
    assert 0.9 <= bench.wait_ms(4) <= 1.5
    assert bench.wait_ms(4, after_ms=1.1) == 0


def test_a_successor_on_another_route_is_somebody_else(bench):
    bench.think("a")
    bench.answer("a")
    bench.policy.ended(ROUTE, ["a"], bench.now)
    bench.ask("b", after_ms=3, route="other")
    bench.answer("b")
    bench.ask("b", after_ms=5, route="other")
    bench.policy.released("other", ["b"])
    bench.ask("c", after_ms=1)
    assert bench.wait_ms(1) == 0


def test_episodes_idle_for_ever_are_neither_waited_for_nor_kept_once_released(bench):
    idle = [f"idle{number}" for number in range(500)]
    bench.policy.asked(ROUTE, idle, bench.now)
    bench.answer(*idle)
    bench.now += 100 * SECOND
    bench.think(*EIGHT)
    bench.answer(*EIGHT)
    bench.ask(*FOUR, after_ms=4)
    assert 0.5 <= bench.wait_ms(4) <= 1.5
    assert bench.wait_ms(4, after_ms=1.5) == 0
    bench.policy.released(ROUTE, [*idle, *EIGHT])
    assert bench.policy.clocks == 0


def test_clocks_are_used_again(bench):
    for number in range(5000):
        bench.policy.asked(ROUTE, [f"e{number}"], bench.now)
        bench.answer(f"e{number}")
        bench.policy.ended(ROUTE, [f"e{number}"], bench.now)
    assert bench.policy.clocks == 1


def test_what_it_does_not_know_is_passed_over(bench):
    bench.policy.answered(["nobody"], bench.now)
    bench.policy.ended(ROUTE, ["nobody"], bench.now)
    bench.policy.released("nowhere", ["nobody"])
    assert bench.policy.clocks == 0


# ------------------------------------------------------------------------------- fixed wait


def answered(*ids):
    """Return a fixed wait, and have these episodes asked and answered."""
    policy = FixedWait(10 * MS)
    policy.asked(ROUTE, ids, SECOND - 5 * MS)
    policy.answered(ids, SECOND)
    return policy


def test_a_fixed_wait_ends_when_all_live_episodes_are_there():
    policy = answered("a", "b")
    assert policy.pause(1, SECOND, SECOND) == Pause(10 * MS, 2)
    assert policy.pause(2, SECOND, SECOND) is None
    policy.ended(ROUTE, ["b"], SECOND)
    assert policy.pause(1, SECOND, SECOND) is None


def test_a_fixed_wait_counts_from_when_the_model_is_free_and_a_row_is_there():
    policy = answered("a", "b")
    assert policy.pause(1, SECOND - 50 * MS, SECOND + 4 * MS) == Pause(6 * MS, 2)
    assert policy.pause(1, SECOND + 3 * MS, SECOND + 4 * MS) == Pause(9 * MS, 2)
    assert policy.pause(1, SECOND, SECOND + 10 * MS) is None


def test_a_fixed_wait_forgets_who_was_not_seen_for_a_second():
    policy = answered("a", "b")
    later = SECOND + LIVE_NS + 1
    assert policy.pause(1, later, later) is None


@pytest.mark.parametrize("leave", ["released", "ended"])
def test_a_fixed_wait_forgets_who_left_while_the_model_was_at_work(leave):
    policy = answered("a")
    policy.asked(ROUTE, ["a", "b"], SECOND)
    if leave == "released":
        policy.released(ROUTE, ["b"])
    else:
        policy.ended(ROUTE, ["b"], SECOND + MS)
    policy.answered(["a", "b"], SECOND + 5 * MS)
    assert policy.pause(1, SECOND + 6 * MS, SECOND + 6 * MS) is None


def test_a_fixed_wait_waits_for_nobody_who_was_never_answered():
    policy = FixedWait(10 * MS)
    policy.asked(ROUTE, ["a"], 1)
    policy.asked(ROUTE, ["b"], 2)
    assert policy.pause(1, 2, 2) is None
