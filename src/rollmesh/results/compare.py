"""Whether one model is better than another: two evaluations of the same plan, paired by episode.

Layer 7. Works on two `EvalResult`s and knows nothing of how they ran. Episodes are paired where
both evaluations had the same one planned, so that what makes an episode hard falls on both sides
alike.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from rollmesh.errors import InvalidSpec
from rollmesh.results.comparison import Comparison, TaskDifference, Verdict
from rollmesh.results.conditions import differing_conditions
from rollmesh.results.paired import mcnemar_p, sign_flip_p, tango_interval
from rollmesh.results.power import (
    DEFAULT_POWER,
    episodes_for_equivalence,
    episodes_for_return,
    episodes_paired,
)
from rollmesh.results.stats import (
    DEFAULT_CONFIDENCE,
    Interval,
    clopper_pearson_interval,
    cluster_interval,
    stratified_interval,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rollmesh.results.result import EpisodeResult, EvalResult

DEFAULT_SUCCESS_MARGIN = 0.05
DEFAULT_RETURN_MARGIN = 0.05
"""A share of the mean return of A."""

_FEWEST_FOR_A_GUESS = 2
_NAMED_TASKS = 3


def compare(
    a: EvalResult,
    b: EvalResult,
    *,
    margin: float | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
    metric: Literal["auto", "success", "return"] = "auto",
) -> Comparison:
    """Judge `b` against `a`, paired by planned episode.

    Two episodes are a pair if they have the same place in the same plan (equal hashes). Of unequal
    or unknown plans they are a pair if they have the same task and the same seed, or the same place
    where there are no seeds; if a task has a seed several times, they are paired in order.
    Episodes that only one of the two has, and pairs of which one errored or gives no number, are
    left out and counted. Where the conditions of the two differ, as far as both know theirs, the
    comparison says so, and a strict gate is closed.

    Args:
        a: What is compared with.
        b: What is judged.
        margin: What is too small to matter: a difference of success rates, or of mean returns. A
            margin that is given is asked first: a difference surely within it is `equivalent`,
            though it may surely be a difference. If left out it is 0.05 for success and 5 % of A's
            mean return, and `equivalent` is only said of what is neither better nor worse.
        confidence: Of the interval; 1 less the error rate of the test.
        metric: What is compared; `auto` is success where both say it, else the return.

    Returns:
        The verdict, with what it rests on. It is `better` or `worse` only if the interval and the
        test agree.

    Raises:
        InvalidSpec: The two have no planned episode in common, or an argument is out of its range,
            or the name of a run instead of its result.

    Guarantees: the same results give the same comparison, in whatever order the episodes ended.
    """
    _check(margin, confidence, metric)
    _check_results(a, b)
    pairing = _pair(a, b)
    if not pairing.pairs:
        raise InvalidSpec("compare", _nothing_in_common(a, b))
    chosen = _metric(a, b) if metric == "auto" else metric
    _check_margin_of_rates(chosen, margin)
    kept, reasons = _usable(pairing.pairs, chosen)
    seen = _Seen(chosen, kept, confidence)
    return _told(a, b, pairing, reasons=reasons, seen=seen, judged=_judged(seen, margin))


def _told(
    a: EvalResult,
    b: EvalResult,
    pairing: _Pairing,
    *,
    reasons: Mapping[str, int],
    seen: _Seen,
    judged: _Judged,
) -> Comparison:
    """Put together what was found."""
    return Comparison(
        metric=seen.metric,
        verdict=judged.verdict,
        a=a.model_called or "A",
        b=b.model_called or "B",
        a_value=seen.a_value,
        b_value=seen.b_value,
        difference=seen.difference,
        interval=seen.interval,
        clustered=seen.clustered,
        p_value=seen.p_value,
        confidence=seen.confidence,
        margin=judged.margin,
        is_margin_given=judged.is_margin_given,
        pairs=seen.n,
        discordant=seen.won + seen.lost,
        won=seen.won,
        lost=seen.lost,
        only_in_a=pairing.only_in_a,
        only_in_b=pairing.only_in_b,
        left_out=sum(reasons.values()),
        left_out_because=tuple(reasons.items()),
        bounds=_bounds(pairing.pairs) if seen.metric == "success" else None,
        episodes_needed=judged.episodes_needed,
        effect=judged.effect,
        settles_as=judged.settles_as,
        by_task=tuple(seen.by_task()),
        notes=tuple(_notes(a, b, pairing)),
        unfinished=tuple(_unfinished(a, b)),
        is_same_env=a.env == b.env,
        conditions=differing_conditions(a.conditions, b.conditions),
    )


# Pairing.


@dataclass(frozen=True, slots=True)
class _Pairing:
    pairs: list[tuple[EpisodeResult, EpisodeResult]]
    only_in_a: int
    only_in_b: int
    is_by_guess: bool


_Key = tuple[str, str, int, int]
"""Task, what the number is, the number (a seed or a place), and which of several equal ones."""


def _pair(a: EvalResult, b: EvalResult) -> _Pairing:
    is_same_plan = a.plan_hash is not None and a.plan_hash == b.plan_hash
    mine, others = (_keyed(r.episodes, by_place=is_same_plan) for r in (a, b))
    pairs = [(episode, others[key]) for key, episode in mine.items() if key in others]
    return _Pairing(
        pairs,
        only_in_a=len(mine) - len(pairs),
        only_in_b=len(others) - len(pairs),
        is_by_guess=not is_same_plan and any(x.seed is None for x, _ in pairs),
    )


def _keyed(episodes: Iterable[EpisodeResult], *, by_place: bool) -> dict[_Key, EpisodeResult]:
    found: dict[_Key, EpisodeResult] = {}
    counts: dict[tuple[str, str, int], int] = {}
    for e in sorted(episodes, key=lambda e: e.index):
        kind, number = ("seed", e.seed or 0)
        if by_place or e.seed is None:
            kind, number = ("place", e.index)
        nth = counts[e.task, kind, number] = counts.get((e.task, kind, number), 0) + 1
        found[e.task, kind, number, nth] = e
    return found


def _nothing_in_common(a: EvalResult, b: EvalResult) -> str:
    if not a.episodes or not b.episodes:
        return f"no episode of {'A' if not a.episodes else 'B'} has ended, so there is no pair"
    tasks_a, tasks_b = ({e.task for e in r.episodes} for r in (a, b))
    if not tasks_a & tasks_b:
        return f"A and B have no task in common: {_listed(tasks_a)} and {_listed(tasks_b)}"
    seeds = (f"plan seed {r.plan_seed}" for r in (a, b))
    return (
        f"A and B have no planned episode in common ({next(seeds)} and {next(seeds)}), so nothing "
        "can be paired; run both with the same seed or plan"
    )


def _listed(tasks: Iterable[str]) -> str:
    names = sorted(tasks)
    more = f" and {len(names) - _NAMED_TASKS} more" if len(names) > _NAMED_TASKS else ""
    return ", ".join(repr(name) for name in names[:_NAMED_TASKS]) + more


def _metric(a: EvalResult, b: EvalResult) -> Literal["success", "return"]:
    both_say = a.success_rate is not None and b.success_rate is not None
    return "success" if both_say else "return"


def _usable(
    pairs: Sequence[tuple[EpisodeResult, EpisodeResult]], metric: str
) -> tuple[list[tuple[str, float, float]], dict[str, int]]:
    """Return task and both values of each pair that has them, and why the others have not."""
    kept: list[tuple[str, float, float]] = []
    reasons: dict[str, int] = {}
    for x, y in pairs:
        why = _unusable(x, y, metric)
        if why:
            reasons[why] = reasons.get(why, 0) + 1
        elif metric == "success":
            kept.append((x.task, float(bool(x.success)), float(bool(y.success))))
        else:
            kept.append((x.task, x.total_reward, y.total_reward))
    return kept, reasons


def _unusable(x: EpisodeResult, y: EpisodeResult, metric: str) -> str:
    bad = [who for who, e in (("A", x), ("B", y)) if e.error is not None]
    if bad:
        return f"errored in {' and '.join(bad)}"
    if metric == "success":
        bad = [who for who, e in (("A", x), ("B", y)) if e.success is None]
        return f"success not said in {' and '.join(bad)}" if bad else ""
    bad = [who for who, e in (("A", x), ("B", y)) if not math.isfinite(e.total_reward)]
    if bad:
        return f"return not finite in {' and '.join(bad)}"
    return "" if math.isfinite(y.total_reward - x.total_reward) else "difference overflows"


# What the pairs say.


class _Seen:
    """What the pairs say, before anybody judges it."""

    def __init__(
        self,
        metric: Literal["success", "return"],
        kept: Sequence[tuple[str, float, float]],
        confidence: float,
    ) -> None:
        self.metric: Literal["success", "return"] = metric
        self.n = len(kept)
        self.confidence = confidence
        self.differences = [y - x for _, x, y in kept]
        self.won = sum(1 for d in self.differences if d > 0)
        self.lost = sum(1 for d in self.differences if d < 0)
        self.a_value = _mean([x for _, x, _ in kept])
        self.b_value = _mean([y for _, _, y in kept])
        self.difference = _mean(self.differences)
        self._groups = _grouped(kept)
        self._are_equal, self._spread = _spread(kept)
        self.p_value = self._p_value()
        self.interval = self._interval()
        clusters = [[y - x for x, y in pairs] for pairs in self._groups.values()]
        self.clustered = cluster_interval(clusters, confidence)

    def _p_value(self) -> float | None:
        if self.n == 0:
            return None
        if self.metric == "success":
            return mcnemar_p(self.won, self.lost)
        return sign_flip_p(self.differences)

    def _interval(self) -> Interval | None:
        if self.metric == "success":
            return tango_interval(self.won, self.lost, self.n, self.confidence)
        if len(set(self.differences)) == 1:
            return self._if_all_differ_alike()
        sign = -1.0 if (self.difference or 0.0) < 0 else 1.0  # so that (b, a) mirrors (a, b)
        groups = ([sign * (y - x) for x, y in pairs] for pairs in self._groups.values())
        found = stratified_interval(groups, self.confidence)
        if found is None or sign > 0:
            return found
        return Interval(-found.high, -found.low, found.confidence, found.method)

    def _if_all_differ_alike(self) -> Interval | None:
        """Bound the difference where every pair differs by the same, perhaps by nothing.

        A few episodes may still be otherwise: so many that Clopper and Pearson allow it, each by no
        more than the returns seen differ, or are large where all are equal.
        """
        share = clopper_pearson_interval(0, self.n, self.confidence)
        if share is None or self.n < _FEWEST_FOR_A_GUESS or self._spread == 0:
            return None
        middle, reach = self.differences[0] * (1.0 - share.high), share.high * self._spread
        method = "alike" if self.won + self.lost else "identical"
        if self._are_equal:
            method = "constant"
        return Interval(middle - reach, middle + reach, self.confidence, method)

    def sd(self) -> float | None:
        """Return the standard deviation of the differences, never 0 because too few were seen."""
        if self.n < _FEWEST_FOR_A_GUESS or (self.metric == "return" and self._spread == 0):
            return None
        center = self.difference or 0.0
        if self.metric == "success":
            return math.sqrt(max(self.differing() - center * center, 0.0))
        scale = max(abs(d) for d in self.differences) or 1.0
        squares = math.fsum(((d - center) / scale) ** 2 for d in self.differences)
        seen = _finite(scale * math.sqrt(squares / (self.n - 1)))
        return seen if self.won + self.lost else self._spread / math.sqrt(self.n + 2)

    def differing(self) -> float:
        """Return the share of pairs that differ, drawn a little to the middle (Laplace)."""
        return (self.won + self.lost + 1) / (self.n + 2)

    def by_task(self) -> Iterable[TaskDifference]:
        """Yield what each task says; nothing where there is only one."""
        if len(self._groups) < 2:  # noqa: PLR2004
            return
        for task, pairs in self._groups.items():
            a, b = _mean([x for x, _ in pairs]), _mean([y for _, y in pairs])
            difference = _mean([y - x for x, y in pairs])
            if a is not None and b is not None and difference is not None:
                yield TaskDifference(
                    task=task, pairs=len(pairs), a_value=a, b_value=b, difference=difference
                )


def _mean(values: Sequence[float]) -> float | None:
    scale = max((abs(v) for v in values), default=0.0) or 1.0
    return math.fsum(v / scale for v in values) / len(values) * scale if values else None


def _grouped(kept: Iterable[tuple[str, float, float]]) -> Mapping[str, list[tuple[float, float]]]:
    groups: dict[str, list[tuple[float, float]]] = {}
    for task, x, y in kept:
        groups.setdefault(task, []).append((x, y))
    return groups


def _spread(kept: Sequence[tuple[str, float, float]]) -> tuple[bool, float]:
    """Return whether all values are equal, and by how much others may differ from them.

    That is as much as they differ from each other, or as much as they are where all are equal.
    """
    values = [value for _, x, y in kept for value in (x, y)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    return low == high, _finite(high - low or abs(high))


def _finite(size: float) -> float:
    """Return a size that is not negative, or the largest there is where it overflowed."""
    return min(size, sys.float_info.max)


# The verdict.


@dataclass(frozen=True, kw_only=True, slots=True)
class _Judged:
    """What was made of what the pairs say; see the fields of a `Comparison`."""

    verdict: Verdict
    margin: float
    is_margin_given: bool
    episodes_needed: int | None = None
    effect: float | None = None
    settles_as: Verdict | None = None


def _judged(seen: _Seen, margin: float | None) -> _Judged:
    limit = _default_margin(seen.metric, seen) if margin is None else margin
    judged = _Judged(
        verdict=_judge(seen, limit, is_given=margin is not None),
        margin=limit,
        is_margin_given=margin is not None,
    )
    if judged.verdict != "underpowered":
        return judged
    needed, effect, settles_as = _settling(seen, limit)
    return replace(judged, episodes_needed=needed, effect=effect, settles_as=settles_as)


def _default_margin(metric: str, seen: _Seen) -> float:
    if metric == "success":
        return DEFAULT_SUCCESS_MARGIN
    return DEFAULT_RETURN_MARGIN * abs(seen.a_value or 0.0)


def _judge(seen: _Seen, margin: float, *, is_given: bool) -> Verdict:
    if seen.interval is None or seen.p_value is None:
        return "underpowered"
    low, high = seen.interval
    is_within = -margin <= low and high <= margin
    if is_within and is_given:
        return "equivalent"
    if seen.p_value <= 1 - seen.confidence:
        if low > 0:
            return "better"
        if high < 0:
            return "worse"
    return "equivalent" if is_within else "underpowered"


def _settling(seen: _Seen, margin: float) -> tuple[int | None, float | None, Verdict | None]:
    """Return how many pairs would settle it if the difference seen were the true one.

    Either they show the difference, or that it is within the margin; what takes fewer.
    """
    sd, difference = seen.sd(), seen.difference
    if sd is None or difference is None:
        return None, None, None
    options: list[tuple[int, Verdict]] = []
    if difference:
        name: Verdict = "better" if difference > 0 else "worse"
        options.append((_to_show(seen, difference, sd), name))
    if margin > 0:
        within = episodes_for_equivalence(
            margin, sd, difference=difference, confidence=seen.confidence
        )
        if within is not None:
            options.append((within, "equivalent"))
    if not options:
        return None, None, None
    count, settles_as = min(options)
    return max(count, seen.n + 1), difference, settles_as


def _to_show(seen: _Seen, difference: float, sd: float) -> int:
    if seen.metric == "success":
        differing = min(1.0, max(seen.differing(), abs(difference)))
        return episodes_paired(
            difference, differing, power=DEFAULT_POWER, confidence=seen.confidence
        )
    if sd <= 0:
        return 1
    return episodes_for_return(difference, sd, confidence=seen.confidence)


def _bounds(pairs: Sequence[tuple[EpisodeResult, EpisodeResult]]) -> tuple[float, float]:
    """Return the difference had all episodes left out gone for A, and had all gone for B."""
    low = high = 0.0
    for x, y in pairs:
        a_says, b_says = _said(x), _said(y)
        low += (0.0 if b_says is None else b_says) - (1.0 if a_says is None else a_says)
        high += (1.0 if b_says is None else b_says) - (0.0 if a_says is None else a_says)
    return low / len(pairs), high / len(pairs)


def _said(episode: EpisodeResult) -> float | None:
    if episode.error is not None or episode.success is None:
        return None
    return float(episode.success)


def _notes(a: EvalResult, b: EvalResult, pairing: _Pairing) -> Iterable[str]:
    if a.env != b.env:
        yield f"A ran in {a.env or 'an unnamed env'}, B in {b.env or 'an unnamed env'}"
    elif a.conditions is not None and b.conditions is not None:
        mine, other = a.conditions.env, b.conditions.env
        if mine != other:
            yield f"A was started with the env {mine}, B with {other}"
    if pairing.is_by_guess:
        yield "episodes without a seed are paired by their place in the plan"


def _unfinished(a: EvalResult, b: EvalResult) -> Iterable[str]:
    for name, result in (("A", a), ("B", b)):
        if result.num_not_run and result.decision is None:
            ended, planned = len(result.episodes), result.planned
            yield f"{name} is not finished: {ended:,} of {planned:,} planned episodes ended."


def _check_results(*results: Any) -> None:
    for name, result in zip("ab", results, strict=True):
        if isinstance(result, (str, os.PathLike)):
            raise InvalidSpec(
                name,
                f"wants an EvalResult, got {result!r}; of a run folder that is "
                "rollmesh.runs.read_run(folder).result",
            )


def _check(margin: Any, confidence: Any, metric: Any) -> None:
    if margin is not None and not 0 <= margin < math.inf:
        raise InvalidSpec("margin", f"wants a number from 0 on, got {margin!r}")
    if not 0.0 < confidence < 1.0:
        raise InvalidSpec("confidence", f"wants a number between 0 and 1, got {confidence!r}")
    if metric not in {"auto", "success", "return"}:
        raise InvalidSpec("metric", f"wants 'auto', 'success' or 'return', got {metric!r}")


def _check_margin_of_rates(metric: str, margin: float | None) -> None:
    if metric == "success" and margin is not None and margin >= 1:
        raise InvalidSpec(
            "margin",
            f"wants a difference of success rates below 1, such as 0.05, got {margin!r}; any two "
            "models are within that",
        )
