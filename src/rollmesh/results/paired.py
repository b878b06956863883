"""Tests and intervals for pairs of outcomes of the same planned episode (layer 7).

Pure functions over plain numbers; they know nothing of episodes. scipy is imported when a test is
first computed, never on import.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from rollmesh.results.stats import DEFAULT_CONFIDENCE, Interval, check_confidence, scipy_stats

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_EXACT = 16
"""Up to so many differences all sign flips are tried: 65,536 of them."""
_FLIPS = 9999
_FEWEST_FLIPS = 999
_MOST_SIGNS = 200_000_000
_SIGNS_AT_ONCE = 4_000_000
_FLIP_SEED = 19350101
_HALVINGS = 60
_TIE = 1e-12


def mcnemar_p(won: int, lost: int) -> float:
    """Return the two-sided p-value of the exact McNemar test.

    Args:
        won: Pairs in which only the second succeeded.
        lost: Pairs in which only the first succeeded.

    Guarantees: 1.0 where no pair differs; the error rate is kept at every sample size.

    Source: Q. McNemar, Psychometrika 12 (1947), in its exact, binomial form; checked against
    Armitage & Berry, "Statistical Methods in Medical Research" (1994), p. 127.
    """
    if won + lost == 0:
        return 1.0
    return float(scipy_stats().binomtest(won, won + lost).pvalue)


def tango_interval(
    won: int, lost: int, n: int, confidence: float = DEFAULT_CONFIDENCE
) -> Interval | None:
    """Return Tango's score interval for the difference of two paired rates; None if `n` is 0.

    Args:
        won: Pairs in which only the second succeeded.
        lost: Pairs in which only the first succeeded.
        n: Number of pairs.
        confidence: Nominal coverage, between 0 and 1.

    Guarantees: lies within -1 and 1, holds the observed difference, and has a width where no pair
    differs (z² / (n + z²) to each side).

    Raises:
        ValueError: The counts do not fit together, or the confidence is not between 0 and 1.

    Source: T. Tango, Statistics in Medicine 17 (1998) 891-908; checked against Fagerland, Lydersen
    & Laake, Statistics in Medicine 33 (2014) 2850-2875, who recommend it.
    """
    check_confidence(confidence)
    if min(won, lost) < 0 or won + lost > n:
        msg = f"wants won + lost <= n, none negative, got won={won!r}, lost={lost!r}, n={n!r}"
        raise ValueError(msg)
    if n == 0:
        return None
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    low = -1.0 if lost == n else _tango_end(won, lost, n, z)
    high = 1.0 if won == n else -_tango_end(lost, won, n, z)
    return Interval(low, high, confidence, "tango")


def _tango_end(won: int, lost: int, n: int, z: float) -> float:
    """Return the difference below the observed one at which the score statistic is `z`."""
    low, high = -1.0, (won - lost) / n
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _tango_score(won, lost, n, middle) > z:
            low = middle
        else:
            high = middle
    return low


def _tango_score(won: int, lost: int, n: int, delta: float) -> float:
    """Return how many standard errors the observed difference lies above `delta`."""
    a = 2 * n
    b = (2 * n - won + lost) * delta - won - lost
    c = -lost * delta * (1 - delta)
    share_lost = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
    variance = n * (2 * share_lost + delta * (1 - delta))
    distance = won - lost - n * delta
    if variance <= 0.0:
        return math.inf if distance > 0 else 0.0
    return distance / math.sqrt(variance)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the sign-flip permutation test of a mean of zero.

    All flips are tried for up to 16 differences that are not zero; above, 9,999 drawn ones (fewer
    where there are more than 20,000 differences), and the observed one counts as one of them.

    Args:
        differences: Finite differences, one a pair.

    Guarantees: 1.0 where all are zero; the same differences give the same p-value, whatever their
    order.

    Source: R. A. Fisher, "The Design of Experiments" (1935), section 21; the + 1 of B. Phipson &
    G. K. Smyth, Statistical Applications in Genetics and Molecular Biology 9 (2010).
    """
    given = np.asarray(differences, dtype=np.float64)
    top = float(np.abs(given).max(initial=0.0))
    if top == 0.0:
        return 1.0
    observed = abs(math.fsum(given / top))
    values = np.sort(np.abs(given[given != 0.0])) / top
    least = observed - _TIE * math.fsum(values)
    if values.size <= _MOST_EXACT:
        return _all_flips(values, least)
    return _drawn_flips(values, least)


def _all_flips(values: np.ndarray, least: float) -> float:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return float(np.mean(np.abs(sums) >= least))


def _drawn_flips(values: np.ndarray, least: float) -> float:
    rng = np.random.default_rng(_FLIP_SEED)
    flips = max(_FEWEST_FLIPS, min(_FLIPS, _MOST_SIGNS // values.size))
    at_once = max(1, _SIGNS_AT_ONCE // values.size)
    total, beyond, left = float(values.sum()), 0, flips
    while left:
        rows = min(at_once, left)
        packed = rng.integers(0, 256, size=(rows, -(-values.size // 8)), dtype=np.uint8)
        kept = np.unpackbits(packed, axis=1, count=values.size)
        sums = 2 * (kept @ values) - total
        beyond += int((np.abs(sums) >= least).sum())
        left -= rows
    return (beyond + 1) / (flips + 1)
