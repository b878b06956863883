"""Contests: who is there is built, measured in turn, and printed with the ratios it must reach.

Knows no subject and no workload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import table
from benchmarks.harness import Comparison, Subject, Timing, compare
from benchmarks.subjects import Entry
from benchmarks.table import Line


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A ratio that a subject must reach.

    Attributes:
        subject: Whose rate.
        base: Against whose.
        least: The ratio to reach, or None for information.
    """

    subject: str
    base: str
    least: float | None = None


def build_all(entries: Sequence[Entry]) -> list[Subject]:
    """Build every entry that nothing is missing for; where one fails, close those before it."""
    built: list[Subject] = []
    try:
        built.extend(entry.build() for entry in entries if entry.missing is None)
    except BaseException:
        for subject in built:
            subject.close()
        raise
    return built


def contest(
    row: str, entries: Sequence[Entry], goals: Sequence[Goal], timing: Timing
) -> list[Line]:
    """Measure who is there, in turn, and return a line each, with what is missing said so."""
    comparison = compare(build_all(entries), timing)
    lines: list[Line] = []
    for entry in entries:
        if entry.missing is None:
            lines += lines_of(row, entry.name, goals, comparison)
        else:
            lines.append(table.absent(row, entry.name, entry.missing))
    return lines


def lines_of(row: str, name: str, goals: Sequence[Goal], comparison: Comparison) -> list[Line]:
    """Return a subject's line, and one more per further goal."""
    rate = comparison.rate(name)
    figure = table.rate_text(rate, "steps")
    numbers = {"unit": "steps/s", "median": rate.median, "low": rate.low, "high": rate.high}
    mine = [goal for goal in goals if goal.subject == name and goal.base in comparison.bursts]
    if not mine:
        return [Line(row=row, subject=name, figure=figure, numbers=numbers)]
    lines: list[Line] = []
    for goal in mine:
        ratio = comparison.speedup(name, goal.base)
        lines.append(
            Line(
                row=row,
                subject=name if not lines else "",
                figure=figure if not lines else "",
                ratio=table.ratio_text(ratio, goal.base),
                target="" if goal.least is None else f">= {goal.least:g} x",
                verdict="" if goal.least is None else table.at_least(ratio.median, goal.least),
                numbers={**numbers, "base": goal.base, "ratio": ratio.median, "least": goal.least},
            )
        )
    return lines
