"""Stopping early: what the rules say, and that looking often does not spoil their error rate."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import numpy as np
import pytest

from rollmesh.errors import InvalidSpec
from rollmesh.results.stats import wilson_interval
from rollmesh.results.stopping import PlanPrefix, StopRule, confidence_interval_at_any_time


@pytest.mark.parametrize(
    ("text", "quantity", "sign", "threshold"),
    [
        ("width<0.05", "width", "<", 0.05),
        (" success > .8 ", "success", ">", 0.8),
        ("success<0.5", "success", "<", 0.5),
    ],
)
def test_rules_are_read(text: str, quantity: str, sign: str, threshold: float) -> None:
    rule = StopRule.parse(text)
    assert (rule.quantity, rule.sign, rule.threshold) == (quantity, sign, threshold)
    assert rule.confidence == 0.95
    assert StopRule.parse(str(rule)) == rule


@pytest.mark.parametrize(
    "text",
    [
        "",
        "width",
        "width>0.1",
        "width<0",
        "width<1.5",
        "success>1",
        "return_width<5",
        "width<0.1.2",
    ],
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match="stop_when"):
        StopRule.parse(text)


def test_a_rule_needs_a_confidence() -> None:
    with pytest.raises(InvalidSpec, match="confidence"):
        StopRule.parse("width<0.1", confidence=1.0)


def test_width_rule_stops_once_the_interval_is_narrow() -> None:
    rule = StopRule.parse("width<0.2")
    counts = [n for n in range(1, 400) if rule.update(n // 2, n) is not None]
    assert counts[0] > 96  # what Wilson needs with one look
    assert counts[0] < 150
    decision = rule.update(counts[0] // 2, counts[0])
    assert decision is not None
    assert decision.holds
    assert decision.interval.high - decision.interval.low < 0.2
    assert decision.n == counts[0]
    assert "width<0.2 holds" in decision.reason


@pytest.mark.parametrize(
    ("text", "successes", "holds"),
    [
        ("success>0.8", 99, True),
        ("success>0.8", 50, False),
        ("success<0.8", 50, True),
        ("success<0.8", 99, False),
    ],
)
def test_rate_rule_stops_either_way(text: str, successes: int, holds: bool) -> None:
    decision = StopRule.parse(text).update(successes, 100)
    assert decision is not None
    assert decision.holds is holds
    assert not decision.interval.low <= 0.8 <= decision.interval.high


def test_nothing_is_decided_on_nothing() -> None:
    for text in ("width<0.9", "success>0.5"):
        assert StopRule.parse(text).update(0, 0) is None
    assert StopRule.parse("success>0.8").update(81, 100) is None
    with pytest.raises(ValueError, match="successes"):
        StopRule.parse("width<0.5").update(3, 2)


def test_rate_rule_decides_exactly_when_its_interval_leaves_the_threshold_out() -> None:
    rule = StopRule.parse("success>0.7")
    for n in (1, 5, 20, 60, 150):
        for successes in range(n + 1):
            interval = confidence_interval_at_any_time(successes, n)
            is_out = not interval.low <= 0.7 <= interval.high
            assert (rule.update(successes, n) is not None) == is_out


def _outcomes(width: float, confidence: float) -> Iterator[tuple[int, int, float, float]]:
    """Yield (successes, n, low, high) wherever a width rule may stop, walking all counts."""
    rule = StopRule(quantity="width", sign="<", threshold=width, confidence=confidence)
    alive = {0}
    for n in itertools.count(1):
        reached = alive | {s + 1 for s in alive}
        alive = set()
        for successes in reached:
            decision = rule.update(successes, n)
            if decision is None:
                alive.add(successes)
            else:
                yield successes, n, *decision.interval
        if not alive:
            return


def _coverage(width: float, confidence: float, rates: np.ndarray) -> np.ndarray:
    """Return with which probability the interval of the decision holds each rate, exactly."""
    stops: dict[int, dict[int, tuple[float, float]]] = {}
    for successes, n, low, high in _outcomes(width, confidence):
        stops.setdefault(n, {})[successes] = (low, high)
    last = max(stops)
    chance = np.zeros((rates.size, last + 2))
    chance[:, 0] = 1.0
    covered = np.zeros(rates.size)
    for n in range(1, last + 1):
        stayed = chance * (1 - rates[:, None])
        stayed[:, 1:] += chance[:, :-1] * rates[:, None]
        chance = stayed
        for successes, (low, high) in stops.get(n, {}).items():
            covered += chance[:, successes] * ((low <= rates) & (rates <= high))
            chance[:, successes] = 0.0
    assert chance.sum() < 1e-9
    return covered


@pytest.mark.parametrize(
    ("width", "confidence"), [(0.5, 0.99), (0.4, 0.95), (0.3, 0.8), (0.2, 0.95), (0.15, 0.95)]
)
def test_width_rule_keeps_its_error_rate_at_every_rate(width: float, confidence: float) -> None:
    rates = np.concatenate([np.geomspace(1e-4, 0.05, 60), np.linspace(0.05, 0.5, 300)])
    assert _coverage(width, confidence, rates).min() >= confidence


@pytest.mark.slow
@pytest.mark.parametrize(("width", "confidence"), [(0.1, 0.99), (0.07, 0.95)])
def test_narrow_width_rules_keep_their_error_rate_too(width: float, confidence: float) -> None:
    rates = np.concatenate([np.geomspace(1e-4, 0.05, 40), np.linspace(0.05, 0.5, 120)])
    assert _coverage(width, confidence, rates).min() >= confidence


@pytest.mark.parametrize("rate", [0.5, 0.8, 0.97])
def test_rate_rule_keeps_its_error_rate_over_2000_runs(rate: float) -> None:
    rule = StopRule(quantity="success", sign=">", threshold=rate)
    rng = np.random.default_rng(int(rate * 100))
    counts = np.cumsum(rng.random((2000, 400)) < rate, axis=1)
    wrong = naive = 0
    looks = sorted({*range(1, 60), *range(60, 400, 7)})
    for row in counts.tolist():
        wrong += any(rule.update(row[n - 1], n) is not None for n in looks)
        naive += any(_leaves_out(row[n - 1], n, rate) for n in looks[::8])
    assert wrong / 2000 <= 0.05  # the rate is at the threshold: every decision is wrong
    assert naive / 2000 > 0.12  # with an interval made for one look


def _leaves_out(successes: int, n: int, rate: float) -> bool:
    interval = wilson_interval(successes, n)
    return interval is not None and not interval.low <= rate <= interval.high


def test_interval_at_any_time_is_where_the_evidence_is_just_enough() -> None:
    for successes, n in ((0, 10), (3, 10), (10, 10), (700, 1000), (1, 5000)):
        interval = confidence_interval_at_any_time(successes, n)
        for end in (interval.low, interval.high):
            if 0.0 < end < 1.0:
                log_beta = (
                    math.lgamma(successes + 1) + math.lgamma(n - successes + 1) - math.lgamma(n + 2)
                )
                likelihood = successes * math.log(end) + (n - successes) * math.log(1 - end)
                assert log_beta - likelihood == pytest.approx(math.log(20), abs=1e-6)
        assert interval.low <= successes / n <= interval.high


def test_interval_at_any_time_knows_nothing_at_first_and_is_wider_than_wilson() -> None:
    assert tuple(confidence_interval_at_any_time(0, 0)) == (0.0, 1.0)
    once, always = wilson_interval(60, 100), confidence_interval_at_any_time(60, 100)
    assert once is not None
    assert always.low < once.low < once.high < always.high
    with pytest.raises(ValueError, match="confidence"):
        confidence_interval_at_any_time(1, 2, 0.0)


# The prefix of the plan.


def test_prefix_waits_for_the_first_episode_that_has_not_ended() -> None:
    prefix = PlanPrefix(StopRule.parse("width<0.01"))
    for index, success in ((2, True), (1, False), (4, True)):
        assert prefix.record(index, success) is None
    assert (prefix.length, prefix.n, prefix.successes) == (0, 0, 0)
    prefix.record(0, True)
    assert (prefix.length, prefix.n, prefix.successes) == (3, 3, 2)


def test_the_order_in_which_episodes_end_cannot_matter() -> None:
    rng = random.Random(1)
    outcomes = [rng.random() < 0.9 for _ in range(300)]
    decisions = []
    for seed in range(4):
        order = list(range(300))
        random.Random(seed).shuffle(order)
        prefix = PlanPrefix(StopRule.parse("success>0.6"))
        for index in order:
            prefix.record(index, outcomes[index])
        decisions.append(prefix.decision)
    assert decisions[0] is not None
    assert decisions[0].n < 300
    assert all(decision == decisions[0] for decision in decisions)


def test_short_episodes_that_end_first_do_not_stop_a_run() -> None:
    rule = StopRule.parse("success<0.5")
    prefix = PlanPrefix(rule)
    failures = [index for index in range(100) if index % 2]  # failing is quick
    assert all(prefix.record(index, False) is None for index in failures)
    assert rule.update(0, len(failures)) is not None


def test_errored_and_silent_episodes_go_by_and_count_neither_way() -> None:
    prefix = PlanPrefix(StopRule.parse("width<0.5"))
    prefix.record(0, None)
    prefix.record(1, True)
    assert (prefix.length, prefix.n) == (2, 1)
    prefix.record(1, True)
    assert (prefix.length, prefix.n) == (2, 1)


def test_a_decision_does_not_change_any_more() -> None:
    prefix = PlanPrefix(StopRule.parse("success>0.2"))
    decided = None
    for index in range(50):
        found = prefix.record(index, True)
        decided = decided or found
        assert found == decided
    assert decided is not None
    assert prefix.n == decided.n < 50
