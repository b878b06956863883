"""Intervals: published values, degenerate samples, and what they promise."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from rollmesh.results.stats import (
    METHOD_NAMES,
    Interval,
    bootstrap_interval,
    clopper_pearson_interval,
    cluster_interval,
    mean,
    stratified_interval,
    wilson_interval,
)

# B. Efron & R. Tibshirani, "An Introduction to the Bootstrap" (1993), table 14.1, spatial test A.
SPATIAL_A = [
    48, 36, 20, 29, 42, 42, 20, 42, 22, 41, 45, 14, 6,
    0, 33, 28, 34, 4, 32, 24, 47, 41, 24, 26, 30, 41,
]  # fmt: skip


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # R. G. Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_agrees_with_newcombe_table_1(
    successes: int, n: int, low: float, high: float
) -> None:
    interval = wilson_interval(successes, n)
    assert interval is not None
    assert tuple(interval) == pytest.approx((low, high), abs=5e-5)
    assert interval.method == "wilson"


def test_wilson_stays_inside_0_and_1_at_the_edges() -> None:
    none, every = wilson_interval(0, 10), wilson_interval(10, 10)
    assert none is not None
    assert every is not None
    assert none.low == 0.0
    assert 0.0 < none.high < 1.0
    assert every.high == 1.0
    assert every.low == pytest.approx(1.0 - none.high)


def test_wilson_of_nothing_is_none() -> None:
    assert wilson_interval(0, 0) is None


@pytest.mark.parametrize(("successes", "n"), [(-1, 3), (4, 3)])
def test_wilson_refuses_counts_that_do_not_fit(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="successes"):
        wilson_interval(successes, n)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5, math.nan])
def test_confidence_must_lie_between_0_and_1(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence"):
        wilson_interval(1, 2, confidence)
    with pytest.raises(ValueError, match="confidence"):
        bootstrap_interval([1.0, 2.0], confidence)


def test_bca_agrees_with_efron_and_tibshirani_section_14_2() -> None:
    # The published interval for the plug-in variance (171.5) is (115.8, 259.6), from 2,000 draws.
    interval = bootstrap_interval(SPATIAL_A, 0.90, statistic=np.var)
    assert interval is not None
    assert np.var(SPATIAL_A) == pytest.approx(171.5, abs=0.05)
    assert interval.low == pytest.approx(115.8, abs=4.0)
    assert interval.high == pytest.approx(259.6, abs=5.0)
    assert interval.method == "bca"


def test_bootstrap_is_deterministic_and_blind_to_order() -> None:
    values = [float(v) for v in SPATIAL_A]
    assert bootstrap_interval(values) == bootstrap_interval(values[::-1])


@pytest.mark.parametrize("values", [[], [3.0], [1.0, math.nan], [1.0, math.inf, 2.0]])
def test_bootstrap_has_no_answer_without_a_finite_spread(values: list[float]) -> None:
    assert bootstrap_interval(values) is None


def test_equal_values_give_that_value_and_say_so() -> None:
    assert bootstrap_interval([500.0] * 40) == Interval(500.0, 500.0, 0.95, "constant")


@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_a_few_values_get_the_wide_interval_that_they_deserve(n: int) -> None:
    rng = np.random.default_rng(n)
    intervals = [bootstrap_interval(rng.normal(size=n).tolist()) for _ in range(400)]
    assert all(interval is not None and interval.method == "t" for interval in intervals)
    covered = sum(i.low <= 0.0 <= i.high for i in intervals if i is not None) / 400
    assert 0.92 <= covered <= 0.98  # a bootstrap covers 0.5 of them for n = 2, 0.8 for n = 5


@pytest.mark.parametrize("values", [[0.0] * 9 + [1.0], [0.0] * 19 + [1.0], [1.0] * 12 + [2.0]])
def test_small_skewed_samples_get_an_ordered_finite_interval(values: list[float]) -> None:
    interval = bootstrap_interval(values)
    assert interval is not None
    assert min(values) <= interval.low <= interval.high <= max(values)
    assert interval.low < interval.high


def test_huge_values_do_not_overflow() -> None:
    values = [1.0, 1.5, 0.5, 1.25] * 3
    small = bootstrap_interval(values)
    huge = bootstrap_interval([v * 2.0**1023 for v in values])
    assert small is not None
    assert huge is not None
    assert huge.low == small.low * 2.0**1023


def test_many_values_use_student_t_and_agree_with_the_bootstrap() -> None:
    values = np.random.default_rng(1).exponential(size=2500)
    large, part = bootstrap_interval(values.tolist()), bootstrap_interval(values[:2000].tolist())
    assert large is not None
    assert part is not None
    assert large.method == "t"
    assert part.method == "bca"
    assert tuple(large) == pytest.approx(tuple(part), abs=0.03)


def test_mean_is_exact_and_survives_overflow() -> None:
    assert mean([]) is None
    assert mean([0.1] * 10) == 0.1
    assert mean([1e308, 1e308]) == 1e308
    assert mean([1.0, math.inf]) == math.inf
    assert math.isnan(mean([math.inf, -math.inf]) or 0.0)
    assert math.isnan(mean([1.0, math.nan]) or 0.0)


def test_importing_the_statistics_loads_no_scipy() -> None:
    code = "import sys, rollmesh.results; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # R. G. Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 5.
        (81, 263, 0.2527, 0.3676),
        (15, 148, 0.0578, 0.1617),
        (0, 20, 0.0000, 0.1684),
        (1, 29, 0.0009, 0.1776),
    ],
)
def test_clopper_pearson_agrees_with_newcombe_table_1(
    successes: int, n: int, low: float, high: float
) -> None:
    interval = clopper_pearson_interval(successes, n)
    assert interval is not None
    assert tuple(interval) == pytest.approx((low, high), abs=5e-5)
    assert interval.method == "clopper-pearson"


@pytest.mark.parametrize("n", [1, 7, 40])
def test_clopper_pearson_ends_leave_half_the_error_rate_in_each_tail(n: int) -> None:
    def tail(p: float, counts: range) -> float:
        return sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in counts)

    for successes in range(n + 1):
        interval = clopper_pearson_interval(successes, n, 0.9)
        assert interval is not None
        if successes:
            assert tail(interval.low, range(successes, n + 1)) == pytest.approx(0.05)
        else:
            assert interval.low == 0.0
        if successes < n:
            assert tail(interval.high, range(successes + 1)) == pytest.approx(0.05)
        else:
            assert interval.high == 1.0


def test_clopper_pearson_of_nothing_is_none_and_refuses_nonsense() -> None:
    assert clopper_pearson_interval(0, 0) is None
    with pytest.raises(ValueError, match="successes"):
        clopper_pearson_interval(3, 2)
    with pytest.raises(ValueError, match="confidence"):
        clopper_pearson_interval(1, 2, 1.0)


def _tasks(rng: np.random.Generator, sizes: list[int], means: list[float]) -> list[list[float]]:
    return [rng.normal(m, 1.0, size=n).tolist() for n, m in zip(sizes, means, strict=True)]


def _slow_bootstrap(
    groups: list[list[float]], rng: np.random.Generator, *, clustered: bool
) -> tuple[float, float]:
    """A plain percentile bootstrap of the mean, one resample at a time."""
    found = []
    for _ in range(3000):
        chosen = groups
        if clustered:
            chosen = [groups[i] for i in rng.integers(len(groups), size=len(groups))]
        values = [group[i] for group in chosen for i in rng.integers(len(group), size=len(group))]
        found.append(sum(values) / len(values))
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def test_stratified_interval_agrees_with_a_plain_oracle() -> None:
    groups = _tasks(np.random.default_rng(3), [20, 30, 25], [0.0, 50.0, -20.0])
    interval = stratified_interval(groups)
    assert interval is not None
    assert interval.method == "bca"
    expected = _slow_bootstrap(groups, np.random.default_rng(4), clustered=False)
    assert tuple(interval) == pytest.approx(expected, abs=0.06)


def test_how_tasks_differ_widens_only_the_clustered_interval() -> None:
    groups = _tasks(np.random.default_rng(5), [30] * 12, [10.0 * i for i in range(12)])
    inside, across = stratified_interval(groups), cluster_interval(groups)
    pooled = bootstrap_interval([value for group in groups for value in group])
    assert inside is not None
    assert across is not None
    assert pooled is not None
    assert inside.high - inside.low < 0.3
    assert pooled.high - pooled.low > 5
    assert across.high - across.low > 20
    expected = _slow_bootstrap(groups, np.random.default_rng(6), clustered=True)
    assert tuple(across) == pytest.approx(expected, abs=2.0)
    assert across.method == "cluster"


@pytest.mark.parametrize("interval_of", [stratified_interval, cluster_interval])
def test_intervals_of_tasks_are_blind_to_order_and_to_empty_tasks(interval_of: Any) -> None:
    groups = _tasks(np.random.default_rng(7), [12, 9, 14], [0.0, 1.0, 2.0])
    again = [group[::-1] for group in groups[::-1]] + [[]]
    assert interval_of(groups) == interval_of(again)


def test_a_task_of_few_values_is_not_resampled_alone() -> None:
    groups = [[0.0, 1.0] * 10, [50.0, 51.0]]
    interval = stratified_interval(groups)
    assert interval == bootstrap_interval(groups[0] + groups[1])


@pytest.mark.parametrize("sds", [[1.0] * 30, [50.0] + [1.0] * 9], ids=["alike", "one wide"])
def test_few_values_a_task_get_an_interval_that_covers_what_it_says(sds: list[float]) -> None:
    rng = np.random.default_rng(12)
    runs, missed = 800, 0
    for _ in range(runs):
        groups = [rng.normal(place, sd, size=5).tolist() for place, sd in enumerate(sds)]
        interval = stratified_interval(groups)
        assert interval is not None
        assert interval.method == "t"
        missed += not interval.low <= (len(sds) - 1) / 2 <= interval.high
    assert 0.03 <= missed / runs <= 0.07  # a bootstrap misses 0.08 and 0.16


@pytest.mark.parametrize(("fewest", "method"), [(5, "t"), (14, "t"), (15, "bca")])
def test_the_smallest_task_decides_how_the_mean_is_judged(fewest: int, method: str) -> None:
    groups = _tasks(np.random.default_rng(13), [fewest, 40], [0.0, 50.0])
    interval = stratified_interval(groups)
    assert interval is not None
    assert interval.method == method
    other = stratified_interval(groups, statistic=np.median)
    assert other is not None
    assert other.method == "bca"


def test_tasks_whose_values_are_all_equal_are_not_known_for_certain() -> None:
    groups = [[1.0] * 20, [3.0] * 20]
    assert stratified_interval(groups) == bootstrap_interval(groups[0] + groups[1])


def test_a_spread_too_small_to_square_is_no_failure() -> None:
    interval = stratified_interval([[0.0, 1e-200] * 5, [1.0] * 10])
    assert interval is not None
    assert tuple(interval) == (0.5, 0.5)


def test_one_task_is_a_plain_bootstrap() -> None:
    values = [float(v) for v in SPATIAL_A]
    assert stratified_interval([values]) == bootstrap_interval(values)
    assert cluster_interval([values]) is None


def test_many_values_of_tasks_use_student_t_and_agree_with_the_bootstrap() -> None:
    groups = _tasks(np.random.default_rng(8), [1100, 1100], [0.0, 30.0])
    large, part = stratified_interval(groups), stratified_interval([g[:1000] for g in groups])
    assert large is not None
    assert part is not None
    assert (large.method, part.method) == ("t", "bca")
    assert large.high - large.low == pytest.approx(part.high - part.low, rel=0.1)


@pytest.mark.parametrize("groups", [[], [[]], [[1.0]], [[1.0, math.nan], [2.0] * 20]])
def test_intervals_of_tasks_without_a_finite_spread_are_none(groups: list[list[float]]) -> None:
    assert stratified_interval(groups) is None
    assert cluster_interval(groups) is None


def test_equal_values_in_all_tasks_say_so() -> None:
    groups = [[7.0] * 10, [7.0] * 10]
    assert stratified_interval(groups) == Interval(7.0, 7.0, 0.95, "constant")
    assert cluster_interval(groups) == Interval(7.0, 7.0, 0.95, "constant")


@pytest.mark.parametrize("interval_of", [stratified_interval, cluster_interval])
def test_intervals_of_tasks_check_the_confidence(interval_of: Any) -> None:
    with pytest.raises(ValueError, match="confidence"):
        interval_of([[1.0, 2.0] * 10, [3.0, 4.0] * 10], 2.0)


def test_every_method_has_a_name_for_tables() -> None:
    seen = [
        wilson_interval(1, 3),
        clopper_pearson_interval(1, 3),
        bootstrap_interval([1.0, 2.0, 4.0]),
        bootstrap_interval([1.0, 2.0, 4.0] * 5),
        cluster_interval([[1.0, 2.0], [3.0, 4.0]]),
    ]
    assert all(interval is not None and interval.method in METHOD_NAMES for interval in seen)
