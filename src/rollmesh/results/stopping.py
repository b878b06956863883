"""Rules that end a run early, declared before it starts, and what makes them honest (layer 7).

Pure: they are told outcomes and say when to stop; they run nothing. Two things would spoil a number
that was looked at while it grew, and each has its remedy here:

- *Looking often.* An interval made for one look is wrong more often than it says when it is looked
  at after every episode until it pleases. A rule about the rate takes an interval that holds at all
  looks together (`confidence_interval_at_any_time`); a rule about the width takes an exact one with
  half the error rate, which leaves enough for looking often (docs/statistics.md).
- *Looking at what ended first.* Short episodes end before long ones, and whether an episode is
  short has to do with whether it succeeds. `PlanPrefix` counts only the longest beginning of the
  plan that has ended, so the order in which episodes end cannot matter. For the same reason what
  runs when the rule says stop should be let end, not dropped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from rollmesh.errors import InvalidSpec
from rollmesh.results.stats import (
    DEFAULT_CONFIDENCE,
    METHOD_NAMES,
    Interval,
    check_confidence,
    check_counts,
    clopper_pearson_interval,
    wilson_interval,
)

_HALVINGS = 48
_SPENT, _SPENT_IF_WIDE, _WIDE = 1 / 2, 1 / 3, 0.4
_FORM = re.compile(r"\s*(width|success)\s*([<>])\s*([0-9]*\.?[0-9]+)\s*")


@dataclass(frozen=True, kw_only=True, slots=True)
class StopDecision:
    """That a rule has what it waited for.

    Attributes:
        rule: The rule, as it was declared.
        successes: Number of successes it was decided on.
        n: Number of episodes it was decided on.
        interval: The success rate's interval at that moment; valid although somebody waited for it.
        holds: Whether what the rule says is so: `success>0.8` may end with the rate below 0.8.
        reason: All this in one sentence.
    """

    rule: str
    successes: int
    n: int
    interval: Interval
    holds: bool
    reason: str

    @classmethod
    def from_dict(cls, table: Any) -> StopDecision | None:
        """Build one from the values of its fields, as JSON keeps them; None where it is none."""
        if not isinstance(table, Mapping):
            return None
        try:
            return msgspec.convert(table, cls)
        except msgspec.ValidationError:  # of another version of rollmesh
            return None


@dataclass(frozen=True, kw_only=True, slots=True)
class StopRule:
    """When a run knows enough.

    `width<0.05` stops once the interval of the success rate is narrower than 0.05. `success>0.8`
    and `success<0.8` stop once it is known whether the rate is above or below 0.8, either way.

    Guarantees: whatever the true rate, the interval of the decision misses it with a probability of
    at most 1 - confidence, if the rule was chosen before the run; and so often at most a rule about
    the rate decides wrongly.

    Source: J. Frey, The American Statistician 64 (2010) 242-249 (an interval of fixed width, made
    with a smaller error rate); H. Robbins (1970), see `confidence_interval_at_any_time`.

    Attributes:
        quantity: `width` of the interval, or `success` rate.
        sign: `<` or `>`; a width is only asked to be below.
        threshold: Between 0 and 1.
        confidence: 1 less the error rate, however often it is looked at.
    """

    quantity: Literal["width", "success"]
    sign: Literal["<", ">"]
    threshold: float
    confidence: float = DEFAULT_CONFIDENCE

    def __post_init__(self) -> None:
        if self.quantity == "width" and self.sign == ">":
            raise InvalidSpec("stop_when", "a width is asked to be below: width<0.05")
        if not 0.0 < self.threshold < 1.0:
            raise InvalidSpec(
                "stop_when", f"wants a threshold between 0 and 1, got {self.threshold!r} in {self}"
            )
        if not 0.0 < self.confidence < 1.0:
            raise InvalidSpec(
                "confidence", f"wants a number between 0 and 1, got {self.confidence!r}"
            )

    @classmethod
    def parse(cls, text: str, *, confidence: float = DEFAULT_CONFIDENCE) -> StopRule:
        """Read a rule such as `width<0.05`, `success>0.8` or `success<0.5`.

        Raises:
            InvalidSpec: The text is no rule.
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise InvalidSpec(
                "stop_when", f"wants width<0.05, success>0.8 or success<0.5, got {text!r}"
            )
        quantity: Literal["width", "success"] = "width" if found[1] == "width" else "success"
        sign: Literal["<", ">"] = "<" if found[2] == "<" else ">"
        return cls(quantity=quantity, sign=sign, threshold=float(found[3]), confidence=confidence)

    def update(self, successes: int, n: int) -> StopDecision | None:
        """Return the decision if so many successes in `n` episodes are enough, else None.

        To be called after every episode, or as seldom as one likes; it costs some microseconds.

        Raises:
            ValueError: The counts do not fit together.
        """
        check_counts(successes, n)
        if n == 0:
            return None
        if self.quantity == "width":
            narrow = self._narrow_interval(successes, n)
            return None if narrow is None else self._decide(successes, n, narrow, holds=True)
        evidence = _log_evidence(successes, n, self.threshold)
        if evidence < -math.log1p(-self.confidence):
            return None
        interval = confidence_interval_at_any_time(successes, n, self.confidence)
        is_above = successes > self.threshold * n
        return self._decide(successes, n, interval, holds=is_above == (self.sign == ">"))

    def _narrow_interval(self, successes: int, n: int) -> Interval | None:
        """Return the interval if it is narrow enough.

        Stopping at a width favours no side, so that little is lost by looking often: made with
        half the error rate the interval misses the rate at most 0.9 times as often as it may, by
        exact enumeration; a third takes care of the few episodes of a wide one.
        """
        spent = _SPENT if self.threshold <= _WIDE else _SPENT_IF_WIDE
        strict = 1 - spent * (1 - self.confidence)
        quick = wilson_interval(successes, n, strict)
        if quick is None or quick.high - quick.low >= self.threshold:
            return None
        exact = clopper_pearson_interval(successes, n, strict)
        if exact is None or exact.high - exact.low >= self.threshold:
            return None
        return Interval(exact.low, exact.high, self.confidence, "sequential")

    def _decide(self, successes: int, n: int, interval: Interval, *, holds: bool) -> StopDecision:
        ends = f"{interval.low:.3f} to {interval.high:.3f}"
        reason = (
            f"{self} {'holds' if holds else 'does not hold'}: {successes} of {n} episodes "
            f"succeeded, success rate {ends} ({self.confidence * 100:g} %, "
            f"{METHOD_NAMES[interval.method]})"
        )
        return StopDecision(
            rule=str(self),
            successes=successes,
            n=n,
            interval=interval,
            holds=holds,
            reason=reason,
        )

    def __str__(self) -> str:
        return f"{self.quantity}{self.sign}{self.threshold:g}"


class PlanPrefix:
    """Counts the outcomes of the longest beginning of a plan that has ended, and asks a rule.

    Give it every episode as it ends, in whatever order; finished ones of an earlier start of the
    run too. Not for several threads at once.

    Args:
        rule: Asked whenever the prefix has grown.

    Attributes:
        decision: The rule's decision, once there is one; it does not change any more.
        successes: Number of successes in the prefix.
        n: Number of episodes in the prefix whose env says whether they succeeded.
    """

    def __init__(self, rule: StopRule) -> None:
        self.decision: StopDecision | None = None
        self.successes = 0
        self.n = 0
        self._rule = rule
        self._ended: dict[int, bool | None] = {}
        self._length = 0

    @property
    def length(self) -> int:
        """Number of episodes in the prefix, those that do not say and errored ones included."""
        return self._length

    def record(self, index: int, success: bool | None) -> StopDecision | None:  # noqa: FBT001
        """Take the outcome of one planned episode; return the decision once there is one.

        Args:
            index: Its index in the plan; given twice it counts once.
            success: Whether it succeeded; None where it errored or the env does not say. Such an
                episode lets the prefix go on and is counted neither way.
        """
        if index >= self._length:
            self._ended[index] = success
        while self.decision is None and self._length in self._ended:
            outcome = self._ended.pop(self._length)
            self._length += 1
            if outcome is not None:
                self.n += 1
                self.successes += outcome
            self.decision = self._rule.update(self.successes, self.n)
        return self.decision


def confidence_interval_at_any_time(
    successes: int, n: int, confidence: float = DEFAULT_CONFIDENCE
) -> Interval:
    """Return one interval of a sequence that holds the rate at all `n` together.

    The rates kept are those against which a bet, spread evenly over all other rates, would not yet
    have won 1 / (1 - confidence) times its stake. No matter when one stops looking, the chance
    that the true rate was ever outside is at most 1 - confidence.

    Raises:
        ValueError: The counts do not fit together, or the confidence is not between 0 and 1.

    Source: H. Robbins, Annals of Mathematical Statistics 41 (1970) 1397-1409, the
    binomial case with a uniform prior; J. Ville's inequality (1939). Compare I. Waudby-Smith &
    A. Ramdas, JRSS B 86 (2024).
    """
    check_counts(successes, n)
    check_confidence(confidence)
    if n == 0:
        return Interval(0.0, 1.0, confidence, "beta-binomial")
    enough = -math.log1p(-confidence)
    low = 0.0 if successes == 0 else _lower_end(successes, n, enough)
    high = 1.0 if successes == n else 1.0 - _lower_end(n - successes, n, enough)
    return Interval(low, high, confidence, "beta-binomial")


def _lower_end(successes: int, n: int, enough: float) -> float:
    """Return the rate below the observed one against which the evidence is just enough."""
    good, bad = float(successes), float(n - successes)
    least = _log_mixture(successes, n) - enough
    low, high = 0.0, good / n
    for _ in range(_HALVINGS):
        rate = (low + high) / 2
        if least >= good * math.log(rate) + (bad * math.log1p(-rate) if bad else 0.0):
            low = rate
        else:
            high = rate
    return low


def _log_evidence(successes: int, n: int, rate: float) -> float:
    """Return the logarithm of what a bet against `rate` has won."""
    bad = n - successes
    return _log_mixture(successes, n) - successes * math.log(rate) - bad * math.log1p(-rate)


def _log_mixture(successes: int, n: int) -> float:
    """Return the logarithm of the outcomes' probability, averaged over all rates."""
    return math.lgamma(successes + 1) + math.lgamma(n - successes + 1) - math.lgamma(n + 2)
