"""The learned wait against every fixed one, in virtual time: fleets of several shapes.

A simulated fleet has lanes that think (step, and between episodes reset) and one model. Its clock
is a number, its chance is seeded per lane, so that every policy meets the same lanes, and a run is
the same every time. What counts is rows a second.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from rollmesh.endpoint.models.batch_wait import FixedWait, LearnedWait

MS = 1_000_000
SECOND = 1_000 * MS
RUN_NS = 9 * SECOND
WARM_UP_NS = 1 * SECOND
SWEEP_MS = (0, 1, 2, 3, 5.5, 7, 10, 15, 20, 30)
BRIEF_NS = 3 * SECOND
JITTER_NS = MS // 3
WITHIN = 0.95

Think = Callable[[int, random.Random, int], float]
"""Milliseconds that a lane thinks, for its number, its chance, and the time."""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Lanes and a model; times in milliseconds."""

    think: Think
    lanes: int = 16
    fixed: float = 20.0
    row: float = 0.5
    episode_steps: int | None = None
    reset: float = 300.0
    max_batch: int = 64
    bucket_sizes: tuple[int, ...] = ()


class SinceOldest(FixedWait):
    """A fixed wait that begins with the oldest row, be the model free or not."""

    def pause(self, rows, oldest_ns, at_ns):
        self._free_ns = oldest_ns
        return super().pause(rows, oldest_ns, at_ns)


class Lane:
    """One lane: when it asks next, and under which episode id."""

    def __init__(self, fleet, number):
        self.fleet = fleet
        self.number = number
        self.chance = random.Random(number)
        self.episode = 0
        self.left = fleet.episode_steps and self.chance.randint(1, fleet.episode_steps)

    @property
    def episode_id(self):
        return f"{self.number}/{self.episode}"

    def answered(self, at_ns) -> Iterator[tuple[int, str]]:
        """Give what follows an answer: the end of an episode maybe, and the next request."""
        think = self.fleet.think(self.number, self.chance, at_ns) * MS
        at_ns += int(think) + self.chance.randrange(JITTER_NS)
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                yield at_ns, "end"
                self.left = self.fleet.episode_steps
                at_ns += int(self.fleet.reset * MS)
        yield at_ns, "ask"


def throughput(fleet, policy, *, counted_from=WARM_UP_NS, until=RUN_NS):
    """Return the rows a second that the model answers."""
    lanes = [Lane(fleet, number) for number in range(fleet.lanes)]
    coming = [(1 + lane.chance.randrange(5 * MS), lane.number, "ask") for lane in lanes]
    heapq.heapify(coming)
    waiting, now, rows = [], 1, 0

    def arrive(by_ns):
        while coming and coming[0][0] <= by_ns:
            at_ns, number, what = heapq.heappop(coming)
            lane = lanes[number]
            if what == "end":
                policy.ended("route", [lane.episode_id], at_ns)
                lane.episode += 1
            else:
                policy.asked("route", [lane.episode_id], at_ns)
                waiting.append((at_ns, number))

    while now < until:
        arrive(now)
        if not waiting:
            now = coming[0][0]
            continue
        if len(waiting) < fleet.max_batch:
            pause = policy.pause(len(waiting), waiting[0][0], now)
            if pause is not None:
                ends = now + pause.ns
                while len(waiting) < pause.rows and coming and coming[0][0] <= ends:
                    now = coming[0][0]
                    arrive(now)
                now = ends if len(waiting) < pause.rows else now
                continue
        batch = [number for _, number in waiting[: fleet.max_batch]]
        del waiting[: fleet.max_batch]
        started = now
        filled = next((size for size in fleet.bucket_sizes if size >= len(batch)), len(batch))
        now += int((fleet.fixed + fleet.row * filled) * MS)
        arrive(now)
        policy.answered([lanes[number].episode_id for number in batch], now)
        policy.took(len(batch), now - started)
        rows += len(batch) if started >= counted_from else 0
        for number in batch:
            for at_ns, what in lanes[number].answered(now):
                heapq.heappush(coming, (at_ns, number, what))
    return rows / ((now - counted_from) / SECOND)


def learned(fleet, **given):
    return throughput(fleet, LearnedWait(fleet.max_batch, fleet.bucket_sizes), **given)


def best_fixed(fleet, **given):
    """Return the best throughput of a sweep of fixed waits, of both kinds."""
    return max(
        throughput(fleet, kind(int(wait_ms * MS)), **given)
        for kind in (FixedWait, SinceOldest)
        for wait_ms in SWEEP_MS
    )


def constant(ms):
    return lambda _lane, _chance, _at: ms


def lognormal(mean_ms, sigma=1.0):
    def think(_lane, chance, _at):
        return mean_ms * chance.lognormvariate(-sigma * sigma / 2, sigma)

    return think


def pareto(mean_ms, shape=1.5):
    return lambda _lane, chance, _at: mean_ms * (shape - 1) / shape * chance.paretovariate(shape)


def one_in_ten_slow(_lane, chance, _at):
    return 30.0 if chance.random() < 0.1 else 2.2


FLEETS = {
    "constant": Fleet(think=constant(5)),
    "lognormal": Fleet(think=lognormal(5)),
    "lognormal, heavier": Fleet(think=lognormal(5, 1.5)),
    "pareto": Fleet(think=pareto(5)),
    "one step in ten is slow": Fleet(think=one_in_ten_slow),
    "2 fast, 14 slow": Fleet(think=lambda lane, _c, _at: 2.0 if lane < 2 else 30.0),
    "2 slow, 14 fast": Fleet(think=lambda lane, _c, _at: 50.0 if lane < 2 else 5.0),
    "half at 2 ms, half at 200 ms": Fleet(think=lambda lane, _c, _at: 2.0 if lane < 8 else 200.0),
    "a model of 2 ms and 2 ms a row": Fleet(think=lognormal(5), fixed=2, row=2),
    "a model that is nearly free": Fleet(think=lognormal(5), fixed=0.3, row=0.02),
    "all cost is per row": Fleet(think=constant(5), fixed=0, row=2),
    "resets of 300 ms": Fleet(think=constant(5), episode_steps=40),
    "resets of 300 ms, lognormal": Fleet(think=lognormal(5), episode_steps=40),
    "slow envs": Fleet(think=lambda _l, chance, _at: chance.uniform(80, 120)),
    "batches filled up": Fleet(think=lognormal(5), bucket_sizes=(1, 2, 4, 8, 16)),
    "batches smaller than the fleet": Fleet(think=lognormal(5), max_batch=6),
}


@pytest.mark.parametrize("name", FLEETS)
def test_the_learned_wait_is_within_5_percent_of_the_best_fixed_one(name):
    fleet = FLEETS[name]
    given = {"until": BRIEF_NS} if fleet.fixed < 1 else {}  # many batches a second
    ours, best = learned(fleet, **given), best_fixed(fleet, **given)
    assert ours >= WITHIN * best


@pytest.mark.parametrize("think", [constant(5), lognormal(5)], ids=["constant", "lognormal"])
def test_with_64_lanes_too(think):
    fleet = Fleet(think=think, lanes=64)
    given = {"until": 6 * SECOND}
    assert learned(fleet, **given) >= WITHIN * best_fixed(fleet, **given)


def test_constant_steps_reach_what_lock_step_would():
    limit = 16 / (5 + JITTER_NS / MS + 20 + 0.5 * 16) * 1000
    assert learned(Fleet(think=constant(5))) >= 0.97 * limit


def test_think_times_that_are_spread_evenly_cost_no_more():
    fleet = Fleet(think=lambda _l, chance, _at: chance.uniform(0, 20))
    assert learned(fleet) >= WITHIN * best_fixed(fleet)


@pytest.mark.parametrize(("before", "after"), [(2.0, 15.0), (15.0, 2.0)])
def test_it_follows_when_steps_become_slower_or_faster(before, after):
    changes = 5 * SECOND
    fleet = Fleet(think=lambda _l, _c, at_ns: before if at_ns < changes else after)
    given = {"counted_from": changes + SECOND}
    assert learned(fleet, **given) >= WITHIN * best_fixed(fleet, **given)


def test_where_waiting_cannot_pay_it_is_as_good_as_none():
    for name in ("all cost is per row", "a model that is nearly free"):
        fleet = FLEETS[name]
        none = throughput(fleet, FixedWait(0), until=BRIEF_NS)
        assert learned(fleet, until=BRIEF_NS) >= 0.99 * none


def test_a_run_is_the_same_every_time():
    fleet = FLEETS["resets of 300 ms, lognormal"]
    assert learned(fleet) == learned(fleet)
