"""What the episodes of an evaluation say together: rates, returns, and how they are spread.

Layer 7. Functions over an `EvalResult`; they know nothing of envs, models or how they ran. Where a
plan has several tasks, every number comes with two intervals: one about these tasks (episodes
resampled inside each), and one about all tasks of which these are a sample (`clustered`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rollmesh.results.stats import (
    DEFAULT_CONFIDENCE,
    FEWEST_CLUSTERS,
    Interval,
    check_confidence,
    clopper_pearson_interval,
    cluster_interval,
    mean,
    scale_of,
    stratified_interval,
    wilson_interval,
)
from rollmesh.results.table import more_played

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rollmesh.results.result import EpisodeResult, EvalResult
    from rollmesh.results.stopping import StopDecision

_QUARTERS = 4
_FEWEST_FOR_IQM = 10
_PROFILE_RESAMPLES = 2000
_PROFILE_SEED = 20210829
_PROFILE_POINTS = 101


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A number and how well it is known.

    Attributes:
        value: The number; None where the episodes give none.
        interval: Its interval for the tasks that ran; None where there is none.
        clustered: Its interval for all tasks of which these are a sample; None of one task, or
            where all values are equal.
        note: Why something is missing or doubtful, in words; `""` where nothing is.
    """

    value: float | None
    interval: Interval | None
    clustered: Interval | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SuccessSummary:
    """How often episodes succeeded.

    Where a rule ended the run, and its interval is of the confidence that is asked for, all this is
    of the episodes that it was decided on; a note says how many were played beyond.

    Attributes:
        successes: Number of successes.
        episodes: Number of finished episodes whose env says.
        tasks: Number of tasks among these.
        rate: The rate, with Wilson's interval, or with the rule's.
        exact: The interval of Clopper and Pearson, which never covers less than it says; None where
            a rule decided, for it would not hold after somebody waited for it.
    """

    successes: int
    episodes: int
    tasks: int
    rate: Estimate
    exact: Interval | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReturnSummary:
    """How large the returns of finished episodes were.

    Attributes:
        episodes: Number of finished episodes.
        tasks: Number of tasks among these.
        mean: Their mean.
        iqm: Their interquartile mean: the mean of the middle half, which a few freak episodes
            cannot move.
    """

    episodes: int
    tasks: int
    mean: Estimate
    iqm: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSummary:
    """What the episodes of one task came to.

    Attributes:
        task: Its name; `""` in a plan without tasks.
        episodes: Number of episodes that ended.
        errors: Number of these that were spoiled by a fault; in no rate and no mean.
        successes: Number of successes, all of them.
        rate: The rate of successes among those that say, with Wilson's interval; that of the
            decision, with its interval, where a rule ended the run.
        mean_return: The mean return, with its interval.
    """

    task: str
    episodes: int
    errors: int
    successes: int
    rate: Estimate
    mean_return: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class PerformanceProfile:
    """Which share of episodes has a return above each threshold, tasks weighing the same.

    Attributes:
        thresholds: The thresholds, rising.
        shares: The share of episodes above each.
        low: Lower ends of the band, one a threshold.
        high: Upper ends of the band.
        confidence: Nominal coverage of the band at one threshold, not at all of them together.
        episodes: Number of finished episodes.
        note: What is doubtful, in words; `""` where nothing is.
    """

    thresholds: tuple[float, ...]
    shares: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    confidence: float
    episodes: int
    note: str = ""


def interquartile_mean(values: Any, axis: int = -1) -> Any:
    """Return the mean of the middle half: `n // 4` values are cut off at each end.

    The same as `scipy.stats.trim_mean(values, 0.25)`, of which a bootstrap would spend most of its
    time in checks.
    """
    array = np.asarray(values, dtype=np.float64)
    size = array.shape[axis]
    cut = size // _QUARTERS
    middle = np.partition(array, (cut, size - cut - 1), axis=axis)
    return middle.take(range(cut, size - cut), axis=axis).mean(axis=axis)


def summarize_success(
    result: EvalResult, confidence: float = DEFAULT_CONFIDENCE
) -> SuccessSummary | None:
    """Return how often episodes succeeded; None where no finished episode says.

    Raises:
        ValueError: The confidence is not between 0 and 1.
    """
    check_confidence(confidence)
    groups = _by_task(
        (e, float(e.success)) for e in result.episodes if e.error is None and e.success is not None
    )
    n = sum(map(len, groups.values()))
    if n == 0:
        return None
    good = int(sum(map(sum, groups.values())))
    if (decision := _decision(result, confidence)) is not None:
        good, n = decision.successes, decision.n
        rate, exact = _decided_rate(result, decision), None
    else:
        clustered, note = _clustered(list(groups.values()), confidence)
        rate = Estimate(
            value=good / n,
            interval=wilson_interval(good, n, confidence),
            clustered=clustered,
            note=note,
        )
        exact = clopper_pearson_interval(good, n, confidence)
    return SuccessSummary(successes=good, episodes=n, tasks=len(groups), rate=rate, exact=exact)


def summarize_returns(
    result: EvalResult, confidence: float = DEFAULT_CONFIDENCE
) -> ReturnSummary | None:
    """Return how large the returns were; None where no episode finished.

    Returns of tasks with different scales are added as they are: where the mean over tasks is to
    mean something, have the envs give normalised returns.

    Raises:
        ValueError: The confidence is not between 0 and 1.
    """
    check_confidence(confidence)
    groups = _by_task((e, e.total_reward) for e in result.episodes if e.error is None)
    returns = [value for group in groups.values() for value in group]
    if not returns:
        return None
    return ReturnSummary(
        episodes=len(returns),
        tasks=len(groups),
        mean=_mean_estimate(list(groups.values()), confidence),
        iqm=_iqm_estimate(list(groups.values()), confidence),
    )


def summarize_tasks(
    result: EvalResult, confidence: float = DEFAULT_CONFIDENCE
) -> tuple[TaskSummary, ...]:
    """Return what each task came to, in the order of the plan.

    Raises:
        ValueError: The confidence is not between 0 and 1.
    """
    check_confidence(confidence)
    tasks: dict[str, list[EpisodeResult]] = {}
    for episode in result.episodes:
        tasks.setdefault(episode.task, []).append(episode)
    return tuple(_task_summary(result, name, ran, confidence) for name, ran in tasks.items())


def performance_profile(
    result: EvalResult,
    thresholds: Sequence[float] | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
) -> PerformanceProfile | None:
    """Return which share of episodes has a return above each threshold; None of no episode.

    The band is a stratified percentile bootstrap at each threshold. Resampling the episodes of a
    task and counting those above is a binomial draw, so that is what is drawn.

    Args:
        result: What is described.
        thresholds: Finite numbers; 101 evenly from the smallest to the largest return if left out.
        confidence: Nominal coverage of the band at each threshold.

    Raises:
        ValueError: The confidence is not between 0 and 1, or a threshold is not finite.

    Source: Agarwal et al., NeurIPS (2021), section 4.2.
    """
    check_confidence(confidence)
    groups = _by_task((e, e.total_reward) for e in result.episodes if e.error is None)
    if not groups:
        return None
    arrays = [np.asarray(group, dtype=np.float64) for _, group in sorted(groups.items())]
    taus = _thresholds(np.concatenate(arrays), thresholds)
    above = np.stack([(array[:, None] > taus).mean(axis=0) for array in arrays])
    sizes = np.asarray([[array.size] for array in arrays])
    rng = np.random.default_rng(_PROFILE_SEED)
    drawn = np.zeros((_PROFILE_RESAMPLES, taus.size))
    for share, size in zip(above, sizes, strict=True):
        drawn += rng.binomial(size, share, size=drawn.shape) / size
    low, high = np.quantile(drawn / len(arrays), [(1 - confidence) / 2, (1 + confidence) / 2], 0)
    return PerformanceProfile(
        thresholds=tuple(taus.tolist()),
        shares=tuple(above.mean(axis=0).tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        confidence=confidence,
        episodes=int(sizes.sum()),
        note=_about_nan(arrays),
    )


def _by_task(values: Iterable[tuple[EpisodeResult, float]]) -> Mapping[str, list[float]]:
    groups: dict[str, list[float]] = {}
    for episode, value in values:
        groups.setdefault(episode.task, []).append(value)
    return groups


def _mean_estimate(groups: Sequence[Sequence[float]], confidence: float) -> Estimate:
    returns = [value for group in groups for value in group]
    note = _about_odd(returns, "so the mean has no interval")
    if not note and len(returns) == 1:
        note = "one episode has no spread"
    clustered, doubt = _clustered(groups, confidence)
    return Estimate(
        value=mean(returns),
        interval=stratified_interval(groups, confidence),
        clustered=clustered,
        note=note or doubt,
    )


def _iqm_estimate(groups: Sequence[Sequence[float]], confidence: float) -> Estimate:
    returns = [value for group in groups for value in group]
    note = _about_odd(returns, "so there is no interquartile mean")
    if note:
        return Estimate(value=None, interval=None, note=note)
    array = np.asarray(returns)
    scale = scale_of(array)  # a sum may overflow where the mean does not
    value = float(interquartile_mean(array / scale)) * scale
    if len(returns) < _FEWEST_FOR_IQM:
        note = f"{len(returns)} episodes are too few for an interval; {_FEWEST_FOR_IQM} are enough"
        return Estimate(value=value, interval=None, note=note)
    clustered, note = _clustered(groups, confidence, statistic=interquartile_mean)
    return Estimate(
        value=value,
        interval=stratified_interval(groups, confidence, statistic=interquartile_mean),
        clustered=clustered,
        note=note,
    )


def _decision(result: EvalResult, confidence: float) -> StopDecision | None:
    """Return what a rule decided about a run of one task, where its interval is the one wanted."""
    decision = result.decision
    if decision is None or decision.interval.confidence != confidence or len(result.tasks) != 1:
        return None
    return decision


def _decided_rate(result: EvalResult, decision: StopDecision) -> Estimate:
    more = more_played(result)
    note = f"success rate decided by {decision.rule} on {decision.n} episodes"
    return Estimate(
        value=decision.successes / decision.n,
        interval=decision.interval,
        note=note if more is None else f"{note}; of all played {more}",
    )


def _task_summary(
    result: EvalResult, name: str, ran: Sequence[EpisodeResult], confidence: float
) -> TaskSummary:
    finished = [e for e in ran if e.error is None]
    said = [e.success for e in finished if e.success is not None]
    if (decision := _decision(result, confidence)) is not None:
        rate = _decided_rate(result, decision)
    else:
        rate = Estimate(
            value=sum(said) / len(said) if said else None,
            interval=wilson_interval(sum(said), len(said), confidence),
            note="" if said else "no finished episode says whether it succeeded",
        )
    returns = [e.total_reward for e in finished]
    empty = Estimate(value=None, interval=None, note="no episode finished")
    return TaskSummary(
        task=name,
        episodes=len(ran),
        errors=len(ran) - len(finished),
        successes=sum(said),
        rate=rate,
        mean_return=_mean_estimate([returns], confidence) if returns else empty,
    )


def _thresholds(returns: np.ndarray, asked: Sequence[float] | None) -> np.ndarray:
    if asked is None:
        finite = returns[np.isfinite(returns)]
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
        steps = np.linspace(0.0, 1.0, _PROFILE_POINTS)
        return np.unique(low * (1 - steps) + high * steps)  # also where high - low overflows
    taus = np.unique(np.asarray(asked, dtype=np.float64))
    if taus.size == 0 or not bool(np.isfinite(taus).all()):
        msg = f"thresholds: wants finite numbers, got {list(asked)!r}"
        raise ValueError(msg)
    return taus


def _about_odd(returns: Sequence[float], so: str) -> str:
    odd = sum(1 for value in returns if not math.isfinite(value))
    return f"{odd} of {len(returns)} returns are not finite, {so}" if odd else ""


def _about_nan(arrays: Sequence[np.ndarray]) -> str:
    odd = sum(int(np.isnan(array).sum()) for array in arrays)
    size = sum(array.size for array in arrays)
    return f"{odd} of {size} returns are NaN and count as above no threshold" if odd else ""


def _clustered(
    groups: Sequence[Sequence[float]],
    confidence: float,
    *,
    statistic: Callable[..., Any] = np.mean,
) -> tuple[Interval | None, str]:
    """Return the interval for all tasks of which these are a sample, and what is doubtful of it."""
    found = cluster_interval(groups, confidence, statistic=statistic)
    if found is not None and found.method == "constant":
        return None, "all are equal, which says nothing about other tasks"
    if not 1 < len(groups) < FEWEST_CLUSTERS:
        return found, ""
    return found, (
        f"{len(groups)} tasks say little about other tasks: fewer than {FEWEST_CLUSTERS} make the "
        "clustered interval too narrow"
    )
