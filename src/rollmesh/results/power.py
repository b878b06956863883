"""How many episodes a question needs, before any are run (layer 7).

Pure functions over plain numbers. Every count is of episodes of one model: a comparison runs so
many of each; `MOST_EPISODES` stands for that many or more. scipy is imported when a count is first
computed, never on import.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from rollmesh.results.stats import DEFAULT_CONFIDENCE, check_confidence

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_POWER = 0.8

MOST_EPISODES = 1_000_000_000
_MOST_SUMMED = 2000
"""Above this many pairs the formula, corrected for continuity, is right to half a percent."""
_TAIL_SDS = 8.0
_AHEAD = 40
"""The exact power rises in a saw-tooth: it has to hold for so many next counts too."""


def episodes_for_width(rate: float, width: float, *, confidence: float = DEFAULT_CONFIDENCE) -> int:
    """Return how many episodes make Wilson's interval for a success rate so narrow.

    Args:
        rate: The rate that is expected; 0.5 needs most.
        width: From the lower to the upper end, between 0 and 1.
        confidence: Of the interval.

    Raises:
        ValueError: An argument is out of its range.
    """
    _check_share("rate", rate, closed=True)
    _check_share("width", width)
    check_confidence(confidence)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)

    def is_enough(n: int) -> bool:
        unit = z * z / n
        reach = z / (1 + unit) * math.sqrt(rate * (1 - rate) / n + unit / (4 * n))
        return 2 * reach <= width

    return _smallest(is_enough)


def disagreement(rate: float, difference: float, *, agreement: float | None = None) -> float:
    """Return the share of pairs that differ, which is what a paired comparison lives from.

    Args:
        rate: Success rate of A.
        difference: Success rate of B less that of A, not 0.
        agreement: Share of planned episodes that end the same under both; if left out, that of
            outcomes that have nothing to do with each other. Models that fail at the same episodes
            agree more often, and fewer episodes are needed.

    Raises:
        ValueError: There are no two such rates, or they cannot agree so often or so seldom.
    """
    _check_share("rate", rate, closed=True)
    other = rate + difference
    if difference == 0 or not 0.0 <= other <= 1.0:
        msg = (
            f"detect: wants a difference, not 0, that leaves the other rate between 0 and 1, got "
            f"{difference!r} from a rate of {rate!r}"
        )
        raise ValueError(msg)
    if agreement is None:
        return rate * (1 - other) + other * (1 - rate)
    least, most = abs(difference), min(rate + other, 2 - rate - other)
    share = 1 - agreement
    if not least - 1e-9 <= share <= most + 1e-9:
        msg = (
            f"paired_agreement: rates of {rate:g} and {other:g} agree in {1 - most:.3g} to "
            f"{1 - least:.3g} of the episodes, got {agreement!r}"
        )
        raise ValueError(msg)
    return min(max(share, least), most)


def episodes_paired(
    difference: float,
    differing: float,
    *,
    power: float = DEFAULT_POWER,
    confidence: float = DEFAULT_CONFIDENCE,
) -> int:
    """Return how many pairs show a difference of success rates by the exact McNemar test.

    Connor's formula gives a first count. Up to 2,000 pairs it is then raised until the exact power
    of the exact test is reached; above, 2 / |difference| pairs are added, which comes to the same.

    Args:
        difference: The true difference, not 0.
        differing: Share of pairs that differ, at least the size of the difference.
        power: How probable it is that the test finds it.
        confidence: 1 less the error rate of the test.

    Raises:
        ValueError: An argument is out of its range.

    Source: R. J. Connor, Biometrics 43 (1987) 207-211, after O. S. Miettinen, Biometrics 24 (1968).
    """
    _check_share("power", power)
    check_confidence(confidence)
    size = abs(difference)
    if not 0.0 < size <= differing <= 1.0:
        msg = f"wants 0 < |difference| <= differing <= 1, got {difference!r} and {differing!r}"
        raise ValueError(msg)
    z_error, z_power = _quantiles(power, confidence)
    spread = z_error * math.sqrt(differing) + z_power * math.sqrt(differing - size * size)
    formula = _square(spread / size)
    if formula > _MOST_SUMMED:
        return _whole(formula + 2 / size)
    n = max(1, math.ceil(formula))
    while True:
        shortfall = _last_short(n, size, differing, power=power, confidence=confidence)
        if shortfall is None:
            return n
        n = shortfall + 1


def mcnemar_power(
    pairs: int, difference: float, differing: float, *, confidence: float = DEFAULT_CONFIDENCE
) -> float:
    """Return how probably the exact McNemar test finds a difference in so many pairs.

    Args:
        pairs: Number of pairs.
        difference: The true difference of the rates.
        differing: Share of pairs that differ.
        confidence: 1 less the error rate of the test.
    """
    # paid only when used
    from scipy.special import bdtr, bdtrc, gammaln, xlogy  # pyright: ignore[reportMissingTypeStubs]

    middle = pairs * differing
    reach = _TAIL_SDS * math.sqrt(pairs * differing * (1 - differing)) + 1
    seen = np.arange(max(1, math.floor(middle - reach)), min(pairs, math.ceil(middle + reach)) + 1)
    few = _rejected(seen, (1 - confidence) / 2)
    share = (differing + abs(difference)) / (2 * differing)
    found = np.where(few < 0, 0.0, bdtr(few, seen, share) + bdtrc(seen - few - 1, seen, share))
    log_chance = gammaln(pairs + 1) - gammaln(seen + 1) - gammaln(pairs - seen + 1)
    log_chance += xlogy(seen, differing) + xlogy(pairs - seen, 1 - differing)
    return float(np.sum(np.exp(log_chance) * found))


def episodes_unpaired(
    rate: float,
    difference: float,
    *,
    power: float = DEFAULT_POWER,
    confidence: float = DEFAULT_CONFIDENCE,
) -> int:
    """Return how many episodes of each model show a difference where nothing is paired.

    Raises:
        ValueError: An argument is out of its range.

    Source: J. L. Fleiss, "Statistical Methods for Rates and Proportions", 2nd ed. (1981), formula
    3.14, without the continuity correction.
    """
    _check_share("power", power)
    check_confidence(confidence)
    disagreement(rate, difference)  # checks both
    other = rate + difference
    middle = (rate + other) / 2
    z_error, z_power = _quantiles(power, confidence)
    spread = z_error * math.sqrt(2 * middle * (1 - middle)) + z_power * math.sqrt(
        rate * (1 - rate) + other * (1 - other)
    )
    return max(1, math.ceil(min(_square(spread / difference), MOST_EPISODES)))


def episodes_for_return(
    difference: float,
    sd: float,
    *,
    power: float = DEFAULT_POWER,
    confidence: float = DEFAULT_CONFIDENCE,
) -> int:
    """Return how many pairs show a difference of mean returns.

    Args:
        difference: The true difference, not 0.
        sd: Standard deviation of the differences of the pairs, above 0. Where nothing is paired:
            that of returns times the square root of 2.
        power: How probable it is that a paired t test finds it.
        confidence: 1 less the error rate of the test.

    Raises:
        ValueError: An argument is out of its range.

    Source: W. C. Guenther, The American Statistician 35 (1981) 243-244: the normal formula with
    z² / 2 added for the estimated deviation.
    """
    _check_share("power", power)
    check_confidence(confidence)
    if not math.isfinite(difference) or difference == 0 or not 0 < sd < math.inf:
        msg = f"wants a difference, not 0, and a deviation above 0, got {difference!r} and {sd!r}"
        raise ValueError(msg)
    z_error, z_power = _quantiles(power, confidence)
    root = (z_error + z_power) * (sd / abs(difference))
    return _whole(_square(root) + z_error * z_error / 2)


def episodes_for_equivalence(
    margin: float,
    sd: float,
    *,
    difference: float = 0.0,
    power: float = DEFAULT_POWER,
    confidence: float = DEFAULT_CONFIDENCE,
) -> int | None:
    """Return how many pairs put the interval of a difference inside plus or minus a margin.

    Args:
        margin: What is too small to matter, above 0.
        sd: Standard deviation of the differences of the pairs.
        difference: The true difference.
        power: How probable it is that the interval lies inside.
        confidence: Of the interval, two-sided: each of the two one-sided tests has half the rest
            as its error rate.

    Returns:
        The count, by the normal approximation; None where the difference is not inside the margin.

    Raises:
        ValueError: An argument is out of its range.

    Source: D. J. Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15 (1987) 657-680.
    """
    _check_share("power", power)
    check_confidence(confidence)
    if not 0 < margin < math.inf or not 0 <= sd < math.inf:
        msg = f"wants a margin above 0 and a deviation from 0, got {margin!r} and {sd!r}"
        raise ValueError(msg)
    if abs(difference) >= margin:
        return None
    normal = NormalDist()
    z = normal.inv_cdf(0.5 + confidence / 2)

    def is_enough(n: int) -> bool:
        unit = math.sqrt(n) / sd if sd else math.inf
        above = normal.cdf((margin - difference) * unit - z)
        below = normal.cdf((margin + difference) * unit - z)
        return above + below - 1 >= power

    return _smallest(is_enough)


def smallest_detectable(
    pairs: int,
    sd: float,
    *,
    power: float = DEFAULT_POWER,
    confidence: float = DEFAULT_CONFIDENCE,
) -> float:
    """Return the smallest true difference that so many pairs would probably have shown.

    Raises:
        ValueError: An argument is out of its range.
    """
    _check_share("power", power)
    check_confidence(confidence)
    if pairs < 1:
        msg = f"pairs: wants at least 1, got {pairs!r}"
        raise ValueError(msg)
    return sum(_quantiles(power, confidence)) * sd / math.sqrt(pairs)


def _rejected(seen: np.ndarray, tail: float) -> np.ndarray:
    """Return the largest count of pairs gone one way at which the test rejects; -1 if at none."""
    from scipy.special import bdtr  # pyright: ignore[reportMissingTypeStubs]

    z = NormalDist().inv_cdf(1 - tail)
    few = np.maximum(np.floor((seen - z * np.sqrt(seen)) / 2), -1.0)
    while (is_more := (bdtr(few + 1, seen, 0.5) <= tail)).any():
        few = few + is_more
    while (is_less := (few >= 0) & (bdtr(few, seen, 0.5) > tail)).any():
        few = few - is_less
    return few


def _last_short(
    n: int, size: float, differing: float, *, power: float, confidence: float
) -> int | None:
    """Return the last of the counts from `n` on at which the exact power falls short, or None."""
    for count in range(n + _AHEAD - 1, n - 1, -1):
        if mcnemar_power(count, size, differing, confidence=confidence) < power:
            return count
    return None


def _smallest(is_enough: Callable[[int], bool]) -> int:
    """Return the smallest count that is enough, where every larger one is too."""
    high = 1
    while not is_enough(high):
        if high >= MOST_EPISODES:
            return MOST_EPISODES
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _square(value: float) -> float:
    return value * value  # infinite where ** 2 would raise


def _whole(count: float) -> int:
    return max(2, math.ceil(min(count, MOST_EPISODES)))


def _quantiles(power: float, confidence: float) -> tuple[float, float]:
    normal = NormalDist()
    return normal.inv_cdf(0.5 + confidence / 2), normal.inv_cdf(power)


def _check_share(name: str, value: float, *, closed: bool = False) -> None:
    if not (0.0 <= value <= 1.0 if closed else 0.0 < value < 1.0):
        msg = f"{name}: wants a number between 0 and 1, got {value!r}"
        raise ValueError(msg)
