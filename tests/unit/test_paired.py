"""Tests and intervals for pairs: published values, degenerate tables, plain oracles."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from rollmesh.results.paired import mcnemar_p, sign_flip_p, tango_interval

# C. Darwin's 15 pairs of maize plants, in eighths of an inch (Fisher 1935, section 17).
DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


@pytest.mark.parametrize(
    ("won", "lost", "p"),
    [
        (12, 2, 0.0129),  # Armitage & Berry, "Statistical Methods in Medical Research", p. 127
        (1, 7, 0.0703),  # Fagerland et al., BMC Med. Res. Methodology 13:91 (2013), Bentur's data
        (6, 16, 0.0525),  # the same, Cavo's data
    ],
)
def test_mcnemar_agrees_with_published_examples(won: int, lost: int, p: float) -> None:
    assert mcnemar_p(won, lost) == pytest.approx(p, abs=5e-5)
    assert mcnemar_p(lost, won) == mcnemar_p(won, lost)


def test_mcnemar_is_the_doubled_binomial_tail() -> None:
    for won, lost in itertools.product(range(12), repeat=2):
        n, k = won + lost, min(won, lost)
        tail = sum(math.comb(n, i) for i in range(k + 1)) / 2**n
        assert mcnemar_p(won, lost) == pytest.approx(min(1.0, 2 * tail))


@pytest.mark.parametrize(
    ("won", "lost", "n", "low", "high"),
    [
        # Fagerland, Lydersen & Laake, Statistics in Medicine 33 (2014) 2850-2875.
        (1, 7, 21, -0.5172, -0.0260),
        (6, 16, 161, -0.1240, -0.0054),
    ],
)
def test_tango_agrees_with_published_examples(
    won: int, lost: int, n: int, low: float, high: float
) -> None:
    interval = tango_interval(won, lost, n)
    assert interval is not None
    assert tuple(interval) == pytest.approx((low, high), abs=5e-5)


def test_tango_has_a_width_where_no_pair_differs() -> None:
    z = scipy_stats.norm.ppf(0.975)
    for n in (1, 10, 100):
        interval = tango_interval(0, 0, n)
        assert interval is not None
        assert tuple(interval) == pytest.approx((-(z**2) / (n + z**2), z**2 / (n + z**2)))


def test_tango_mirrors_and_reaches_the_end_where_every_pair_differs() -> None:
    up, down = tango_interval(10, 0, 10), tango_interval(0, 10, 10)
    assert up is not None
    assert down is not None
    assert up.high == 1.0
    assert (-up.high, -up.low) == tuple(down)
    assert 0.0 < up.low < 1.0


def test_tango_covers_the_true_difference_about_as_often_as_it_says() -> None:
    n, p_won, p_lost, covered = 30, 0.15, 0.1, 0.0
    for won in range(n + 1):
        for lost in range(n + 1 - won):
            interval = tango_interval(won, lost, n)
            assert interval is not None
            if interval.low <= p_won - p_lost <= interval.high:
                covered += scipy_stats.multinomial.pmf(
                    [won, lost, n - won - lost], n, [p_won, p_lost, 1 - p_won - p_lost]
                )
    assert 0.94 <= covered <= 0.97


def test_tango_of_nothing_is_none_and_refuses_nonsense() -> None:
    assert tango_interval(0, 0, 0) is None
    with pytest.raises(ValueError, match="won"):
        tango_interval(2, 2, 3)
    with pytest.raises(ValueError, match="confidence"):
        tango_interval(1, 1, 3, 0.0)


def test_sign_flips_agree_with_fisher_on_darwins_maize() -> None:
    # Fisher (1935), section 21: 863 of the 32,768 sums reach the observed 314 on one side.
    assert sum(DARWIN) == 314
    assert sign_flip_p([float(d) for d in DARWIN]) == pytest.approx(2 * 863 / 32768)


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_few_differences_have_every_flip_tried(n: int) -> None:
    values = np.random.default_rng(n).normal(0.5, 1, size=n).tolist()
    sums = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True)))
        for signs in itertools.product((-1, 1), repeat=n)
    ]
    expected = sum(s >= abs(sum(values)) - 1e-12 for s in sums) / len(sums)
    assert sign_flip_p(values) == pytest.approx(expected)


def test_zeros_do_not_count_as_differences() -> None:
    assert sign_flip_p([0.0] * 50) == 1.0
    assert sign_flip_p([]) == 1.0
    assert sign_flip_p([0.0] * 50 + [1.0] * 5) == 2 / 32


def test_many_differences_agree_with_the_t_test_and_never_give_zero() -> None:
    values = np.random.default_rng(3).normal(0.2, 1, size=120)
    expected = scipy_stats.ttest_1samp(values, 0).pvalue
    assert sign_flip_p(values.tolist()) == pytest.approx(expected, abs=0.012)
    assert sign_flip_p([1.0] * 100) == 1 / 10000


def test_flips_are_blind_to_order_sign_and_scale() -> None:
    values = np.random.default_rng(4).normal(0.3, 1, size=40).tolist()
    p = sign_flip_p(values)
    assert sign_flip_p(values[::-1]) == p
    assert sign_flip_p([-v for v in values]) == p
    assert sign_flip_p([v * 2.0**1020 for v in values]) == p


def test_flips_of_many_pairs_are_fewer_and_still_a_p_value() -> None:
    values = np.random.default_rng(5).normal(0.0, 1, size=100_000).tolist()
    p = sign_flip_p(values)
    assert p == pytest.approx(scipy_stats.ttest_1samp(values, 0).pvalue, abs=0.06)
