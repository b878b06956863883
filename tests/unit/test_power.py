"""Planned sample sizes: published values, exact enumeration, simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from rollmesh.results.paired import mcnemar_p
from rollmesh.results.power import (
    disagreement,
    episodes_for_equivalence,
    episodes_for_return,
    episodes_for_width,
    episodes_paired,
    episodes_unpaired,
    mcnemar_power,
    smallest_detectable,
)
from rollmesh.results.stats import wilson_interval


@pytest.mark.parametrize(("rate", "width"), [(0.5, 0.05), (0.5, 0.2), (0.8, 0.1), (0.0, 0.04)])
def test_so_many_episodes_give_so_narrow_a_wilson_interval(rate: float, width: float) -> None:
    n = episodes_for_width(rate, width)
    enough = wilson_interval(round(rate * n), n)
    assert enough is not None
    assert enough.high - enough.low <= width * 1.001
    before = wilson_interval(round(rate * (n - 2)), n - 2)
    assert before is not None
    assert before.high - before.low > width * 0.999


def test_unpaired_count_agrees_with_the_formula_by_hand() -> None:
    # By hand: (1.95996 sqrt(2 x 0.65 x 0.35) + 0.84162 sqrt(0.24 + 0.21))^2 / 0.01 = 355.9
    assert episodes_unpaired(0.6, 0.1) == 356
    assert episodes_unpaired(0.7, -0.1) == 356


def test_exact_power_is_that_of_enumeration() -> None:
    pairs, difference, differing = 25, 0.2, 0.4
    p_won, p_lost = (differing + difference) / 2, (differing - difference) / 2
    expected = sum(
        scipy_stats.multinomial.pmf(
            [won, lost, pairs - won - lost], pairs, [p_won, p_lost, 1 - differing]
        )
        for won in range(pairs + 1)
        for lost in range(pairs + 1 - won)
        if mcnemar_p(won, lost) <= 0.05
    )
    assert mcnemar_power(pairs, difference, differing) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("difference", "differing"), [(0.1, 0.48), (0.1, 0.2), (-0.3, 0.3), (0.05, 0.1)]
)
def test_paired_count_reaches_the_power_and_is_near_connors(
    difference: float, differing: float
) -> None:
    n = episodes_paired(difference, differing)
    assert mcnemar_power(n, difference, differing) >= 0.8
    assert mcnemar_power(n - 1, difference, differing) < 0.8
    z_error, z_power = scipy_stats.norm.ppf([0.975, 0.8])
    spread = z_error * math.sqrt(differing) + z_power * math.sqrt(differing - difference**2)
    formula = (spread / difference) ** 2
    assert formula <= n <= 1.25 * formula + 10


@pytest.mark.parametrize(("difference", "differing"), [(0.02, 0.3), (0.03, 0.5), (0.004, 0.02)])
def test_many_pairs_come_from_the_formula_and_reach_the_power(
    difference: float, differing: float
) -> None:
    n = episodes_paired(difference, differing)
    assert n > 2000
    assert 0.799 <= mcnemar_power(n, difference, differing) <= 0.805


def test_pairs_that_agree_more_need_fewer_episodes() -> None:
    unrelated = disagreement(0.6, 0.1)
    assert unrelated == pytest.approx(0.6 * 0.3 + 0.7 * 0.4)
    alike = disagreement(0.6, 0.1, agreement=0.85)
    assert alike == pytest.approx(0.15)
    assert episodes_paired(0.1, alike) < episodes_paired(0.1, unrelated) / 2


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"rate": 0.95, "difference": 0.1}, "detect"),
        ({"rate": 0.5, "difference": 0.0}, "detect"),
        ({"rate": 1.5, "difference": 0.1}, "rate"),
        ({"rate": 0.6, "difference": 0.1, "agreement": 0.95}, "paired_agreement"),
        ({"rate": 0.6, "difference": 0.1, "agreement": 0.1}, "paired_agreement"),
    ],
)
def test_impossible_rates_are_refused_in_words(arguments: dict[str, float], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        disagreement(**arguments)


def test_return_count_agrees_with_the_noncentral_t() -> None:
    for ratio in (0.2, 0.5, 1.0):
        n = episodes_for_return(ratio, 1.0)
        power = [_t_power(count, ratio) for count in (n - 1, n + 1)]
        assert power[0] < 0.805
        assert power[1] > 0.795
    # G*Power 3.1: a paired effect of 0.5 takes 34 pairs.
    assert episodes_for_return(0.5, 1.0) == 34


def _t_power(n: int, ratio: float) -> float:
    reach = scipy_stats.t.ppf(0.975, n - 1)
    shift = ratio * math.sqrt(n)
    return float(
        scipy_stats.nct.sf(reach, n - 1, shift) + scipy_stats.nct.cdf(-reach, n - 1, shift)
    )


@pytest.mark.parametrize("difference", [0.0, 0.02])
def test_so_many_pairs_put_the_interval_inside_the_margin(difference: float) -> None:
    margin, sd = 0.1, 0.5
    n = episodes_for_equivalence(margin, sd, difference=difference)
    assert n is not None
    rng = np.random.default_rng(1)
    centers = rng.normal(difference, sd / math.sqrt(n), size=20_000)
    inside = np.abs(centers) + 1.96 * sd / math.sqrt(n) <= margin
    assert inside.mean() == pytest.approx(0.8, abs=0.015)


def test_no_count_puts_a_difference_outside_the_margin_inside() -> None:
    assert episodes_for_equivalence(0.1, 0.5, difference=0.1) is None
    assert episodes_for_equivalence(0.1, 0.0) == 1


def test_smallest_detectable_is_the_inverse_of_the_count() -> None:
    difference = smallest_detectable(400, 2.0)
    assert episodes_for_return(difference, 2.0) == pytest.approx(400, abs=3)


def test_absurd_questions_end() -> None:
    assert episodes_for_return(1e-300, 1.0) == 1_000_000_000
    assert episodes_for_width(0.5, 1e-12) == 1_000_000_000
    assert episodes_paired(1e-300, 0.5) == 1_000_000_000
    assert episodes_unpaired(0.5, 1e-300) == 1_000_000_000
    assert episodes_unpaired(0.5, 1e-9) == 1_000_000_000


@pytest.mark.parametrize(
    "ask",
    [
        lambda: episodes_for_width(0.5, 0.0),
        lambda: episodes_for_width(0.5, 0.1, confidence=1.0),
        lambda: episodes_paired(0.0, 0.5),
        lambda: episodes_paired(0.3, 0.2),
        lambda: episodes_paired(0.1, 0.2, power=1.0),
        lambda: episodes_unpaired(0.5, 0.6),
        lambda: episodes_for_return(0.0, 1.0),
        lambda: episodes_for_return(1.0, 0.0),
        lambda: episodes_for_return(1.0, math.nan),
        lambda: episodes_for_equivalence(0.0, 1.0),
        lambda: smallest_detectable(0, 1.0),
    ],
)
def test_questions_without_sense_are_refused(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(ValueError, match="wants"):
        ask()
