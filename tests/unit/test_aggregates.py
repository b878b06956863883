"""What episodes say together: rates, means, interquartile means, profiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from rollmesh.results.aggregates import (
    interquartile_mean,
    performance_profile,
    summarize_returns,
    summarize_success,
    summarize_tasks,
)
from rollmesh.results.result import EvalResult
from rollmesh.results.stats import (
    clopper_pearson_interval,
    stratified_interval,
    wilson_interval,
)
from rollmesh.results.stopping import StopRule
from tests.unit.result_toys import episode, returns, successes

NOTHING = EvalResult(episodes=())


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 11, 100])
def test_interquartile_mean_drops_a_quarter_of_the_values_at_each_end(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n)
    assert interquartile_mean(values) == pytest.approx(scipy_stats.trim_mean(values, 0.25))
    rows = np.random.default_rng(n).normal(size=(3, n, 2))
    expected = scipy_stats.trim_mean(rows, 0.25, axis=1)
    assert interquartile_mean(rows, axis=1) == pytest.approx(expected)


def test_interquartile_mean_is_that_of_rliable() -> None:
    metrics = pytest.importorskip("rliable.metrics")
    scores = np.random.default_rng(1).normal(size=(7, 5))
    assert interquartile_mean(scores.ravel()) == pytest.approx(metrics.aggregate_iqm(scores))


def test_a_freak_episode_moves_the_mean_and_not_the_interquartile_mean() -> None:
    calm = summarize_returns(returns([1.0, 2.0, 3.0, 4.0] * 10))
    freak = summarize_returns(returns([1.0, 2.0, 3.0, 4.0] * 10 + [1e6]))
    assert calm is not None
    assert freak is not None
    assert freak.mean.value is not None
    assert freak.mean.value > 1e4
    assert freak.iqm.value == pytest.approx(calm.iqm.value, abs=0.1)


def test_return_summary_covers_mean_and_iqm_with_intervals() -> None:
    values = np.random.default_rng(2).exponential(10, size=200).tolist()
    found = summarize_returns(returns(values))
    assert found is not None
    for estimate in (found.mean, found.iqm):
        assert estimate.value is not None
        assert estimate.interval is not None
        assert estimate.interval.low < estimate.value < estimate.interval.high
        assert estimate.clustered is None
        assert not estimate.note
    assert (found.episodes, found.tasks) == (200, 1)


def test_iqm_interval_covers_the_true_value_about_as_often_as_it_says() -> None:
    rng, hits = np.random.default_rng(3), 0
    for _ in range(40):
        groups = [rng.normal(mean, 1, size=15).tolist() for mean in (-4.0, 4.0)]
        interval = stratified_interval(groups, 0.9, statistic=interquartile_mean)
        assert interval is not None
        hits += interval.low <= 0.0 <= interval.high
    assert 30 <= hits <= 40


def test_few_tasks_are_said_to_be_few() -> None:
    rng = np.random.default_rng(4)
    tasks = [f"t{i % 3}" for i in range(60)]
    found = summarize_returns(returns(rng.normal(size=60).tolist(), tasks=tasks))
    assert found is not None
    assert found.tasks == 3
    assert found.mean.clustered is not None
    assert "3 tasks say little" in found.mean.note
    many = summarize_returns(
        returns(rng.normal(size=60).tolist(), tasks=[f"t{i % 12}" for i in range(60)])
    )
    assert many is not None
    assert many.mean.clustered is not None
    assert not many.mean.note


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_returns_that_are_not_finite_are_told_and_never_dropped(odd: float) -> None:
    found = summarize_returns(returns([1.0] * 20 + [odd, 2.0]))
    assert found is not None
    assert found.mean.value is not None
    assert not math.isfinite(found.mean.value)
    assert found.mean.interval is None
    assert found.iqm.value is None
    assert found.iqm.interval is None
    assert "1 of 22 returns are not finite" in found.mean.note
    assert "1 of 22 returns are not finite" in found.iqm.note


def test_too_few_episodes_for_an_iqm_interval_are_told() -> None:
    found = summarize_returns(returns([1.0, 2.0, 3.0, 4.0]))
    assert found is not None
    assert found.iqm.value == 2.5
    assert found.iqm.interval is None
    assert "too few" in found.iqm.note
    one = summarize_returns(returns([1.0]))
    assert one is not None
    assert one.mean.interval is None
    assert one.mean.note == "one episode has no spread"


def test_success_summary_has_wilson_and_the_exact_interval() -> None:
    found = summarize_success(successes([True] * 15 + [False] * 5 + [None] * 3))
    assert found is not None
    assert (found.successes, found.episodes) == (15, 20)
    assert found.rate.value == 0.75
    assert found.rate.interval == wilson_interval(15, 20)
    assert found.exact == clopper_pearson_interval(15, 20)


def test_errored_episodes_are_in_no_number() -> None:
    found = summarize_success(successes([True, False, False], errors={1, 2}))
    assert found is not None
    assert (found.successes, found.episodes, found.rate.value) == (1, 1, 1.0)
    spoiled = EvalResult(episodes=(episode(0, error="boom", total_reward=9.0),))
    assert summarize_returns(spoiled) is None


def test_numbers_of_huge_returns_are_finite() -> None:
    found = summarize_returns(returns([1.7e308, -1.0, 1.7e308] * 4))
    assert found is not None
    assert found.iqm.value is not None
    assert 1e308 < found.iqm.value <= 1.7e308
    few = summarize_returns(returns([1.7e308, -1.7e308, 0.0]))
    assert few is not None
    for estimate in (found.mean, few.mean):
        assert estimate.interval is not None
        assert all(map(math.isfinite, estimate.interval))


def test_values_that_are_all_equal_say_nothing_of_other_tasks() -> None:
    tasks = [f"t{i % 12}" for i in range(60)]
    rate = summarize_success(successes([True] * 60, tasks=tasks))
    found = summarize_returns(returns([3.0] * 60, tasks=tasks))
    assert rate is not None
    assert found is not None
    for estimate in (rate.rate, found.mean, found.iqm):
        assert estimate.clustered is None
        assert estimate.note == "all are equal, which says nothing about other tasks"


def test_success_clustered_by_task_is_wider_where_tasks_differ() -> None:
    tasks = [f"t{i // 20:02}" for i in range(240)]
    outcomes = [(i // 20) % 2 == 0 for i in range(240)]
    found = summarize_success(successes(outcomes, tasks=tasks))
    assert found is not None
    assert found.tasks == 12
    assert found.rate.interval is not None
    assert found.rate.clustered is not None
    wide = found.rate.clustered.high - found.rate.clustered.low
    assert wide > 3 * (found.rate.interval.high - found.rate.interval.low)


def test_task_summaries_come_in_plan_order() -> None:
    result = successes([True, False, True, None, True, False], tasks=list("bbaabb"), errors={4})
    first, second = summarize_tasks(result)
    assert (first.task, first.episodes, first.errors, first.successes) == ("b", 4, 1, 1)
    assert first.rate.value == pytest.approx(1 / 3)
    assert (second.task, second.episodes, second.errors, second.rate.value) == ("a", 2, 0, 1.0)
    silent = summarize_tasks(returns([1.0, 2.0]))[0]
    assert silent.rate.value is None
    assert "says" in silent.rate.note
    assert silent.mean_return.value == 1.5
    spoiled = summarize_tasks(successes([True], errors={0}))[0]
    assert spoiled.mean_return.note == "no episode finished"


def test_nothing_comes_of_nothing() -> None:
    assert summarize_success(NOTHING) is None
    assert summarize_returns(NOTHING) is None
    assert summarize_tasks(NOTHING) == ()
    assert performance_profile(NOTHING) is None


def test_profile_is_the_share_above_each_threshold_tasks_weighing_the_same() -> None:
    result = returns([1.0, 3.0, 5.0, 10.0], tasks=["a", "a", "a", "b"])
    profile = performance_profile(result, [0.0, 3.0, 7.0, 10.0])
    assert profile is not None
    assert profile.thresholds == (0.0, 3.0, 7.0, 10.0)
    assert profile.shares == pytest.approx((1.0, (1 / 3 + 1) / 2, 0.5, 0.0))


def test_profile_band_agrees_with_a_plain_stratified_bootstrap() -> None:
    rng = np.random.default_rng(5)
    groups = [rng.normal(0, 1, 20), rng.normal(1, 1, 30)]
    values = np.concatenate(groups).tolist()
    profile = performance_profile(returns(values, tasks=["a"] * 20 + ["b"] * 30), [0.5])
    assert profile is not None
    drawn = [
        np.mean([np.mean(rng.choice(group, size=group.size) > 0.5) for group in groups])
        for _ in range(4000)
    ]
    assert profile.low[0] == pytest.approx(np.quantile(drawn, 0.025), abs=0.02)
    assert profile.high[0] == pytest.approx(np.quantile(drawn, 0.975), abs=0.02)


def test_profile_falls_and_stays_in_its_band() -> None:
    values = np.random.default_rng(6).normal(size=80).tolist()
    profile = performance_profile(returns(values))
    assert profile is not None
    assert len(profile.thresholds) == 101
    assert list(profile.shares) == sorted(profile.shares, reverse=True)
    for low, share, high in zip(profile.low, profile.shares, profile.high, strict=True):
        assert 0.0 <= low <= share <= high <= 1.0


def test_profile_tells_of_nan_and_refuses_such_thresholds() -> None:
    profile = performance_profile(returns([1.0, math.nan, math.inf]), [0.5])
    assert profile is not None
    assert profile.shares == pytest.approx((2 / 3,))
    assert "1 of 3 returns are NaN" in profile.note
    with pytest.raises(ValueError, match="thresholds"):
        performance_profile(returns([1.0]), [math.nan])
    with pytest.raises(ValueError, match="thresholds"):
        performance_profile(returns([1.0]), [])


def test_rate_counts_and_interval_of_a_run_that_a_rule_stopped_are_the_rules() -> None:
    decision = StopRule.parse("width<0.3").update(60, 80)
    assert decision is not None
    result = successes([True] * 65 + [False] * 25, decision=decision)
    found = summarize_success(result)
    assert found is not None
    assert (found.successes, found.episodes, found.rate.value) == (60, 80, 0.75)
    assert (found.rate.interval, found.exact) == (decision.interval, None)
    assert "65 of 90; 10 were played beyond" in found.rate.note
    (task,) = summarize_tasks(result)
    assert (task.rate.value, task.rate.interval) == (0.75, decision.interval)
    other = summarize_success(result, confidence=0.9)
    assert other is not None
    assert (other.successes, other.episodes) == (65, 90)
    assert other.rate.interval == wilson_interval(65, 90, 0.9)
