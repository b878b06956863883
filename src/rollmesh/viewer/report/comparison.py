"""What several runs say about each other: the section of a report that compares them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollmesh.errors import InvalidSpec
from rollmesh.results.compare import compare
from rollmesh.viewer.report.charts import IntervalRow, forest
from rollmesh.viewer.report.sections import SERIES, reach, section
from rollmesh.viewer.report.svg import esc, number
from rollmesh.viewer.report.tables import Cell, count, numeric, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollmesh.results.comparison import Comparison
    from rollmesh.viewer.report.data import ReportData

_CLASSES = {"better": "good", "worse": "bad"}


def comparison_section(runs: Sequence[ReportData]) -> str:
    """Return how each run compares with the first; nothing of one run."""
    parts: list[str] = []
    rows: list[IntervalRow] = []
    for place, run in enumerate(runs[1:], start=1):
        try:
            found = compare(runs[0].result, run.result)
        except InvalidSpec as error:
            why = str(error).removeprefix("compare: ")
            parts.append(f'<h3>{esc(run.name)}</h3><p class="note">{esc(why)}</p>')
            continue
        parts.append(_verdict(found, runs[0], run, several=len(runs) > 2))  # noqa: PLR2004
        if found.difference is not None and (not rows or _same_metric(runs, found)):
            rows.append(
                IntervalRow(
                    label=run.name,
                    series=place % SERIES,
                    value=found.difference,
                    low=None if found.interval is None else found.interval.low,
                    high=None if found.interval is None else found.interval.high,
                )
            )
    if rows:
        title = f"Difference from {runs[0].name}, with its interval"
        svg = forest(rows, title, mark=0.0)
        parts.append(
            f'<figure><figcaption>{esc(title)}</figcaption><div class="scroll">{svg}</div></figure>'
        )
    return section("Comparison", "".join(parts))


def _same_metric(runs: Sequence[ReportData], found: Comparison) -> bool:
    says = all(run.result.success_rate is not None for run in runs)
    return says == (found.metric == "success")


def _verdict(found: Comparison, first: ReportData, other: ReportData, *, several: bool) -> str:
    kind = _CLASSES.get(found.verdict, "")
    heading = f"<h3>{esc(other.name)} against {esc(first.name)}</h3>" if several else ""
    what = "success rate" if found.metric == "success" else "mean return"
    words = f"{other.name} is {found.verdict} in {what}"
    if found.verdict == "underpowered":
        words = f"Underpowered: these episodes cannot tell them apart in {what}"
    difference = "" if found.difference is None else f" ({_signed(found.difference)}"
    if difference:
        difference += f" {reach(found.interval)})" if found.interval else ")"
    return (
        f'{heading}<p class="verdict {kind}">{esc(words)}{esc(difference)}</p>'
        f'<p class="note">A is {esc(first.name)}, B is {esc(other.name)}. '
        f"{esc(found.explanation)}</p>{_by_task(found)}"
    )


def _by_task(found: Comparison) -> str:
    if not found.by_task:
        return ""
    rows = [
        (
            Cell(task.task),
            count(task.pairs),
            numeric(task.a_value),
            numeric(task.b_value),
            Cell(_signed(task.difference), sort=task.difference, is_number=True),
        )
        for task in found.by_task
    ]
    return table(
        ["task", "pairs", "A", "B", "difference"],
        rows,
        caption="By task, without a verdict: with many tasks some differ by chance.",
    )


def _signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value)
