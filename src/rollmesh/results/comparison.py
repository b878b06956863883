"""What a comparison of two evaluations found, in numbers and in words (layer 7).

Knows nothing of how it was computed: `compare` fills it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from rollmesh.results.power import MOST_EPISODES
from rollmesh.results.stats import FEWEST_CLUSTERS, METHOD_NAMES, Interval

if TYPE_CHECKING:
    from collections.abc import Iterable

Verdict = Literal["better", "worse", "equivalent", "underpowered"]

_TINY_P = 1e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskDifference:
    """What one task says; without a verdict, for with many tasks some differ by chance.

    Attributes:
        task: Its name.
        pairs: Number of pairs.
        a_value: Success rate or mean return of A.
        b_value: That of B.
        difference: That of B less that of A.
    """

    task: str
    pairs: int
    a_value: float
    b_value: float
    difference: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """Whether B may pass, and why.

    Attributes:
        is_open: Whether it may.
        reasons: Sentences.
    """

    is_open: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How B did against A, over planned episodes that both ended.

    Attributes:
        metric: `success` (rates) or `return` (means).
        verdict: `better`, `worse` or `equivalent` is what B is; `underpowered` says that these
            episodes cannot tell.
        a: Name of A's model, with its keyword arguments.
        b: That of B's.
        a_value: Success rate or mean return of A over the pairs; None without pairs.
        b_value: That of B.
        difference: That of B less that of A.
        interval: Interval of the difference, for these tasks; None where there is none.
        clustered: Interval for all tasks of which these are a sample; None of one task.
        p_value: Of the exact McNemar test, or of the sign-flip permutation test.
        confidence: Of the intervals; a test decides at 1 less this.
        margin: What is too small to matter.
        is_margin_given: Whether the caller named it.
        pairs: Number of pairs compared.
        discordant: Number of pairs that differ.
        won: Number of pairs in which B did better.
        lost: Number of pairs in which A did better.
        only_in_a: Number of episodes that ended in A and have no match in B.
        only_in_b: Number of episodes that ended in B and have no match in A.
        left_out: Number of pairs that could not be compared.
        left_out_because: Why, with how many; such as `("errored in B", 3)`.
        bounds: For success: the difference had all episodes left out gone for A, and for B.
        episodes_needed: If underpowered: the number of pairs that would probably (80 %) settle it,
            those there are included; None where that cannot be guessed.
        effect: The true difference that this number is for: the one seen.
        settles_as: The verdict they would then give.
        by_task: One entry a task, in plan order; empty where there is one task.
        notes: What else to know, in sentences.
        unfinished: Which of the two has not played its plan to the end, in sentences; not one that
            a rule ended which was declared before.
        is_same_env: Whether both ran in an env of the same name.
        conditions: Where the conditions of their episodes differ, as far as anybody knows them:
            `name: that of A and that of B`.
    """

    metric: Literal["success", "return"]
    verdict: Verdict
    a: str
    b: str
    a_value: float | None
    b_value: float | None
    difference: float | None
    interval: Interval | None
    clustered: Interval | None
    p_value: float | None
    confidence: float
    margin: float
    is_margin_given: bool
    pairs: int
    discordant: int
    won: int
    lost: int
    only_in_a: int
    only_in_b: int
    left_out: int
    left_out_because: tuple[tuple[str, int], ...]
    bounds: tuple[float, float] | None
    episodes_needed: int | None
    effect: float | None
    settles_as: Verdict | None
    by_task: tuple[TaskDifference, ...]
    notes: tuple[str, ...]
    unfinished: tuple[str, ...] = ()
    is_same_env: bool = True
    conditions: tuple[str, ...] = ()

    @property
    def is_not_worse(self) -> bool:
        """Whether the interval rules out that B is worse by more than the margin."""
        if self.verdict == "worse" or self.interval is None:
            return False
        return self.verdict == "better" or self.interval.low >= -self.margin

    @property
    def test(self) -> str:
        """The name of the test that gave `p_value`."""
        return "exact McNemar" if self.metric == "success" else "sign-flip permutation"

    @property
    def explanation(self) -> str:
        """The verdict and its reasons in a few plain sentences."""
        return " ".join([_verdict_sentence(self), *_evidence(self), *_caveats(self)])

    def gate(self, *, strict: bool = False) -> Gate:
        """Say whether B may pass.

        B does not pass if it is worse, if one of the two is not finished, or if more pairs were
        left out than could be compared.

        Args:
            strict: If so, B passes only if it is also surely not worse by more than the margin,
                would be had every episode left out gone against it, and ran in the same env under
                the same conditions.
        """
        shut = tuple(_why_shut(self))
        gate = _strict_gate(self) if strict else _plain_gate(self)
        return Gate(is_open=gate.is_open and not shut, reasons=(*gate.reasons, *shut))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can carry, keys named as the fields."""
        table = asdict(self)
        table["left_out_because"] = dict(self.left_out_because)
        return {**table, "test": self.test, "explanation": self.explanation}

    def to_json(self, *, indent: int | None = None) -> str:
        """Return `to_dict()` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def __repr__(self) -> str:
        rows = list(_rows(self))
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"Comparison  {_verdict_sentence(self)}"]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, wide, strict=True))
            lines.append(("  " + "  ".join(cells)).rstrip())
        lines += [f"  {sentence}" for sentence in _caveats(self)]
        return "\n".join(lines)


# Words.


def _verdict_sentence(c: Comparison) -> str:
    what = "success rate" if c.metric == "success" else "mean return"
    margin = f"{_number(c, c.margin)}{'' if c.is_margin_given else ', the default margin'}"
    if c.pairs == 0:
        return "UNDERPOWERED: no pair could be compared."
    if c.verdict == "underpowered":
        pairs = _plural(c.pairs, "pair")
        return f"UNDERPOWERED: {pairs} cannot tell B from A in {what}{_settle_clause(c)}."
    if c.verdict == "equivalent":
        return f"B is EQUIVALENT to A: their {what}s differ by no more than {margin}."
    return f"B is {c.verdict.upper()} than A in {what}."


def _settle_clause(c: Comparison) -> str:
    if c.episodes_needed is None or c.effect is None:
        return ""
    more = c.episodes_needed - c.pairs
    count = f"{c.episodes_needed:,}{' or more' if c.episodes_needed >= MOST_EPISODES else ''}"
    truth = (
        f"the true difference is the {_signed(c, c.effect)} seen"
        if c.effect
        else "there is no difference"
    )
    relation = f"{c.settles_as} than A"
    if c.settles_as == "equivalent":
        relation = f"equivalent to A within {_number(c, c.margin)}"
    return (
        f"; if {truth}, {count} episodes ({more:,} more) would probably show that B is {relation}"
    )


def _evidence(c: Comparison) -> Iterable[str]:
    if c.a_value is None or c.b_value is None or c.difference is None:
        return
    yield (
        f"B has {_number(c, c.b_value)} against {_number(c, c.a_value)} of A over "
        f"{_plural(c.pairs, 'paired episode')}, a difference of {_signed(c, c.difference)}"
        f"{_with_interval(c, c.interval)}."
    )
    if not c.discordant:
        yield "No pair differs."
    elif c.p_value is not None:
        verb = "differs" if c.discordant == 1 else "differ"
        yield (
            f"{_plural(c.discordant, 'pair')} {verb}: B did better in {c.won}, A in {c.lost} "
            f"({c.test}, p {_p_text(c.p_value)})."
        )
    yield from _how_sure(c)


def _how_sure(c: Comparison) -> Iterable[str]:
    if c.interval is None or c.p_value is None:
        return
    is_clear = c.interval.low > 0 or c.interval.high < 0
    is_rare = c.p_value <= 1 - c.confidence
    if c.verdict == "equivalent" and is_clear and is_rare:
        yield "They do differ, but by less than the margin."
    elif c.verdict == "underpowered" and is_clear:
        yield "The interval leaves out 0, but the test does not rule out chance."
    elif c.verdict == "underpowered" and is_rare:
        yield "The test rules out chance, but the interval does not leave out 0."


def _with_interval(c: Comparison, interval: Interval | None) -> str:
    if interval is None:
        return ""
    low, high = _ends(c, interval)
    name = METHOD_NAMES[interval.method]
    return f", between {low} and {high} ({interval.confidence * 100:g} %, {name})"


def _caveats(c: Comparison) -> Iterable[str]:
    yield from c.unfinished
    if c.conditions:
        yield f"A and B were not played alike: {'; '.join(c.conditions)}."
    if c.left_out:
        reasons = ", ".join(f"{count} {why}" for why, count in c.left_out_because)
        yield f"{_plural(c.left_out, 'pair')} left out: {reasons}.{_bounds_clause(c)}"
    if c.only_in_a or c.only_in_b:
        yield (
            f"The plans overlap in part: {_plural(c.only_in_a, 'episode')} only in A, "
            f"{c.only_in_b} only in B, not compared."
        )
    if c.clustered is not None:
        yield _other_tasks(c, c.clustered)
    if c.metric == "return" and not c.discordant:
        yield from _suppositions(c)
    for note in c.notes:
        yield f"Note: {note}."


def _other_tasks(c: Comparison, interval: Interval) -> str:
    """Say what is known of tasks of which these are a sample."""
    tasks = f"For other tasks like these {len(c.by_task)}"
    if interval.method == "constant":  # values that do not differ say nothing of a spread
        which = "all pairs differ alike" if c.discordant else "no pair differs"
        return f"{tasks} nothing is known: {which}."
    low, high = _ends(c, interval)
    doubt = "; with so few tasks that is too narrow" if len(c.by_task) < FEWEST_CLUSTERS else ""
    return f"{tasks}: between {low} and {high}{doubt}."


def _suppositions(c: Comparison) -> Iterable[str]:
    """Yield what the interval of returns of which no pair differs rests on."""
    if c.interval is not None and c.interval.method == "constant":
        yield (
            "The interval supposes that episodes not seen differ by no more than the returns seen "
            "are large."
        )
    elif c.interval is not None:
        yield "The interval supposes that episodes not seen differ by no more than those seen."
    elif c.pairs > 1 and c.a_value == 0:
        yield "All returns are 0, so nothing is known of how large others may be."


def _bounds_clause(c: Comparison) -> str:
    if c.bounds is None:
        return ""
    low, high = (_signed(c, end) for end in c.bounds)
    return f" Had all of them gone for A the difference would be {low}, for B {high}."


def _rows(c: Comparison) -> Iterable[tuple[str, str, str]]:
    if c.a_value is None or c.b_value is None or c.difference is None:
        yield "pairs", "0", "nothing to compare"
        return
    what = "success" if c.metric == "success" else "return"
    yield f"{what} of A", _number(c, c.a_value), c.a
    yield f"{what} of B", _number(c, c.b_value), c.b
    ends = ""
    if c.interval is not None:
        low, high = _ends(c, c.interval)
        name = METHOD_NAMES[c.interval.method]
        ends = f"[{low}, {high}] {c.confidence * 100:g} % {name}"
    yield "difference", _signed(c, c.difference), ends
    yield (
        "pairs",
        f"{c.pairs:,}",
        f"{c.discordant:,} differ: B better in {c.won:,}, A in {c.lost:,}",
    )
    if c.p_value is not None:
        yield "p", _p_text(c.p_value).removeprefix("= "), c.test
    yield "margin", _number(c, c.margin), "" if c.is_margin_given else "the default"
    for task in c.by_task:
        values = f"{_number(c, task.a_value)} to {_number(c, task.b_value)} in {task.pairs:,} pairs"
        yield f"  {task.task or '(no task)'}", _signed(c, task.difference), values


# Gates.


def _plain_gate(c: Comparison) -> Gate:
    if c.pairs == 0:
        return Gate(is_open=False, reasons=("No pair could be compared.", *_caveats(c)))
    return Gate(is_open=c.verdict != "worse", reasons=(c.explanation,))


def _why_shut(c: Comparison) -> Iterable[str]:
    """Yield why B may not pass whatever the verdict: too little of it can be judged."""
    if c.unfinished:
        yield "Start what is not finished again by the same command: it goes on from there."
    if c.left_out > c.pairs > 0:
        yield f"More pairs were left out ({c.left_out:,}) than could be compared ({c.pairs:,})."


def _strict_gate(c: Comparison) -> Gate:
    reasons = [c.explanation] if c.pairs else ["No pair could be compared.", *_caveats(c)]
    is_open = c.is_not_worse
    if c.pairs and not is_open and c.verdict != "worse":
        reasons.append(f"That B is worse by more than {_number(c, c.margin)} is not ruled out.")
    if not c.is_same_env:
        is_open = False
        reasons.append("They ran in envs of different names.")
    if c.conditions:
        is_open = False
        reasons.append("Their episodes were not played under the same conditions.")
    if c.bounds is None and c.left_out:
        is_open = False
        reasons.append("What the pairs left out would have said is not known.")
    elif c.bounds is not None and c.bounds[0] < -c.margin and c.left_out:
        is_open = False
        reasons.append("Had the pairs left out gone for A, B would be worse by more than that.")
    return Gate(is_open=is_open, reasons=tuple(reasons))


# Numbers.


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _p_text(p: float) -> str:
    return "< 0.0001" if p < _TINY_P else f"= {p:.2g}" if p < 0.1 else f"= {p:.2f}"  # noqa: PLR2004


def _signed(c: Comparison, value: float) -> str:
    return f"{'+' if value > 0 else ''}{_number(c, value)}"


def _ends(c: Comparison, interval: Interval) -> tuple[str, str]:
    return _signed(c, interval.low), _signed(c, interval.high)


def _number(c: Comparison, value: float) -> str:
    if c.metric == "success":
        return f"{value:.3f}"
    size = abs(value)
    if size and not 1e-3 <= size < 1e7:  # noqa: PLR2004 - where plain digits stop being readable
        return f"{value:.3g}"
    return f"{value:,.3f}" if size < 10 else f"{value:,.1f}"  # noqa: PLR2004
