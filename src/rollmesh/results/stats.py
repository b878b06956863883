"""Intervals for the numbers an evaluation reports (layer 7).

Pure functions over plain numbers; they know nothing of episodes, envs or models. scipy is imported
when a bootstrap is first computed, never on import.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

DEFAULT_CONFIDENCE = 0.95

_RESAMPLES = 9999
_BOOTSTRAP_SEED = 20240229
_MOST_RESAMPLED = 2000
"""Above this many values the bootstrap costs seconds and Student's t gives the same interval."""
_FEWEST_RESAMPLED = 10
"""Below this many values the bootstrap is far too narrow: of 2 values its "95 %" is 50 %."""
_BATCH = 256


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided confidence interval; `low, high = interval` unpacks its ends.

    Attributes:
        low: Lower end.
        high: Upper end.
        confidence: Its nominal coverage, between 0 and 1.
        method: `wilson`, `bca`, `percentile`, `t`, or `constant` (all values were equal, so the
            data say nothing about their spread).
    """

    low: float
    high: float
    confidence: float
    method: str

    def __iter__(self) -> Iterator[float]:
        """Yield the lower and the upper end."""
        yield self.low
        yield self.high


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, exactly rounded where it is finite; None of no values, NaN if any is NaN.

    Guarantees: finite values have a finite mean, also where their sum overflows.
    """
    n = len(values)
    if n == 0:
        return None
    try:
        return math.fsum(values) / n
    except OverflowError:
        return math.fsum(value / n for value in values)
    except ValueError:  # infinities of both signs
        return math.nan


def wilson_interval(
    successes: int, n: int, confidence: float = DEFAULT_CONFIDENCE
) -> Interval | None:
    """Return Wilson's score interval for a rate of `successes` in `n`; None if `n` is 0.

    Raises:
        ValueError: The counts do not fit together, or the confidence is not between 0 and 1.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
    JASA 22 (1927); checked against Newcombe, Statistics in Medicine 17 (1998), table I.
    """
    if not 0 <= successes <= n:
        msg = f"wants 0 <= successes <= n, got successes={successes!r}, n={n!r}"
        raise ValueError(msg)
    _check_confidence(confidence)
    if n == 0:
        return None
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate, unit = successes / n, z * z / n
    center = (rate + unit / 2) / (1 + unit)
    reach = z / (1 + unit) * math.sqrt(rate * (1 - rate) / n + unit / (4 * n))
    low = 0.0 if successes == 0 else center - reach
    high = 1.0 if successes == n else center + reach
    return Interval(low, high, confidence, "wilson")


def bootstrap_interval(
    values: Sequence[float],
    confidence: float = DEFAULT_CONFIDENCE,
    *,
    statistic: Callable[..., Any] = np.mean,
) -> Interval | None:
    """Return a bias-corrected and accelerated (BCa) bootstrap interval for a statistic.

    For the mean of fewer than 10 values, and of more than 2,000, Student's t interval is given.

    Args:
        values: The sample.
        confidence: Nominal coverage, between 0 and 1.
        statistic: A numpy reduction that takes `axis`.

    Returns:
        The interval; None for fewer than two values, or where one is not finite. All values equal
        give that value twice. Where BCa has no answer (a very small, very skewed sample) the plain
        percentile interval is given.

    Raises:
        ValueError: The confidence is not between 0 and 1.

    Guarantees: the same values give the same interval, whatever their order.

    Source: B. Efron, "Better bootstrap confidence intervals", JASA 82 (1987), as implemented in
    `scipy.stats.bootstrap`.
    """
    _check_confidence(confidence)
    sample = np.sort(np.asarray(values, dtype=np.float64))
    if sample.size < 2 or not bool(np.isfinite(sample).all()):  # noqa: PLR2004 - a spread needs two
        return None
    if sample[0] == sample[-1]:
        only = float(statistic(sample, axis=-1))
        return Interval(only, only, confidence, "constant")
    is_mean = statistic is np.mean
    scale = _scale(sample) if is_mean else 1.0
    sample = sample / scale
    if is_mean and not _FEWEST_RESAMPLED <= sample.size <= _MOST_RESAMPLED:
        return _scaled(_student_t(sample, confidence), scale)
    for method in ("BCa", "percentile"):
        interval = _bootstrap(sample, confidence, statistic, method)
        if math.isfinite(interval.low) and math.isfinite(interval.high):
            return _scaled(interval, scale)
    return None


def _scale(sample: np.ndarray) -> float:
    """Return a power of two near the largest value: dividing by it is exact and tames squares."""
    return math.ldexp(1.0, math.frexp(float(np.abs(sample).max()))[1] - 1)


def _bootstrap(
    sample: np.ndarray, confidence: float, statistic: Callable[..., Any], method: str
) -> Interval:
    from scipy import stats as scipy_stats  # half a second, paid only when used

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # degenerate samples: seen in the NaN they return
        ci = scipy_stats.bootstrap(
            (sample,),
            statistic,
            confidence_level=confidence,
            n_resamples=_RESAMPLES,
            batch=_BATCH,
            method=method,
            rng=np.random.default_rng(_BOOTSTRAP_SEED),
        ).confidence_interval
    return Interval(float(ci.low), float(ci.high), confidence, method.lower())


def _student_t(sample: np.ndarray, confidence: float) -> Interval:
    from scipy import stats as scipy_stats  # half a second, paid only when used

    center = float(sample.mean())
    error = float(sample.std(ddof=1)) / math.sqrt(sample.size)
    reach = error * float(scipy_stats.t.ppf(0.5 + confidence / 2, sample.size - 1))
    return Interval(center - reach, center + reach, confidence, "t")


def _scaled(interval: Interval, scale: float) -> Interval:
    return Interval(
        interval.low * scale, interval.high * scale, interval.confidence, interval.method
    )


def _check_confidence(confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        msg = f"confidence: wants a number between 0 and 1, got {confidence!r}"
        raise ValueError(msg)
