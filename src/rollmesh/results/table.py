"""The table of a result: what `EvalResult` says of itself in lines and words (layer 7).

Takes a result and gives cells of text; knows no terminal.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from rollmesh.results.odd import odd_lines, printable
from rollmesh.results.stats import METHOD_NAMES, Interval

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollmesh.results.result import EvalResult


class SummaryRow(NamedTuple):
    """One line of the result table; empty cells are `""`."""

    label: str
    value: str
    interval: str
    note: str


def table_rows(result: EvalResult) -> Iterable[SummaryRow]:
    """Yield the lines of the result table."""
    yield from _success_rows(result)
    yield from _return_rows(result)
    if result.num_errors:
        yield SummaryRow("errored", str(result.num_errors), "", _first_error(result))
    watched = len(result.episodes) - result.num_unwatched
    before = f"; {result.num_unwatched} of an older version not looked at"
    for label, number, place in odd_lines(result.odd_observations, episodes=watched):
        note = f"{place}{before if result.num_unwatched else ''}"
        yield SummaryRow(printable(label), number, "", printable(note))
    speed = result.steps_per_s
    if speed is not None:
        note = f"{result.total_steps:,} steps{_predicts(result)} in {result.elapsed_s:.2f} s"
        yield SummaryRow("steps/s", f"{speed:,.0f}", "", note)
    if result.plan_seed is not None:
        yield SummaryRow("plan seed", str(result.plan_seed), "", "")
    if result.run_dir is not None:
        yield SummaryRow("kept in", result.run_dir, "", _earlier(result.resumed))


def _earlier(resumed: int) -> str:
    if not resumed:
        return ""
    return f"{resumed} {'episode' if resumed == 1 else 'episodes'} in earlier starts"


def _success_rows(result: EvalResult) -> Iterable[SummaryRow]:
    rate, bounds, counts = result.success_rate, result.success_bounds, result.success_counts
    if rate is None or bounds is None or counts is None:
        if result.episodes:
            is_silent = result.num_errors < len(result.episodes)
            note = "the env does not say" if is_silent else "no episode finished"
            yield SummaryRow("success rate", "-", "", note)
        return
    note = f"{counts[0]} of {counts[1]}"
    if result.decision is not None:
        note += f" episodes, decided by {result.decision.rule}"
    silent = sum(1 for e in result.episodes if e.error is None and e.success is None)
    if silent:
        note += f"; {silent} do not say"
    if bounds[0] != bounds[1]:
        note += f"; {bounds[0]:.3f} to {bounds[1]:.3f} with the errored ones"
    yield SummaryRow("success rate", f"{rate:.3f}", _interval_text(result.success_interval), note)
    if (more := more_played(result)) is not None:
        yield SummaryRow("all played", f"{result.success_rate_of_all:.3f}", "", more)


def more_played(result: EvalResult) -> str | None:
    """Say how many episodes say something beyond those that a rule was decided on, if any."""
    counts = result.success_counts_of_all
    if result.decision is None or counts is None or counts[1] <= result.decision.n:
        return None
    more = counts[1] - result.decision.n
    return f"{counts[0]} of {counts[1]}; {more} {'was' if more == 1 else 'were'} played beyond"


def _return_rows(result: EvalResult) -> Iterable[SummaryRow]:
    average, length = result.mean_return, result.mean_length
    if average is None or length is None:
        return
    odd = result.num_non_finite_returns
    note = f"{odd} of {len(result.episodes) - result.num_errors} returns not finite" if odd else ""
    interval = _interval_text(result.return_interval)
    yield SummaryRow("mean return", _number(average), interval, note)
    yield SummaryRow("mean length", _number(length), "", "")


def _predicts(result: EvalResult) -> str:
    """Say how often the model was asked where it answered with chunks: nobody chunks unawares."""
    rows = () if result.telemetry is None or result.resumed else result.telemetry.rows
    asked = sum(
        round(row.count * row.mean)
        for row in rows
        if row.operation == "model.predict" and row.metric == "group.size"
    )
    return f" from {asked:,} predicted chunks" if 0 < asked < result.total_steps else ""


def _first_error(result: EvalResult) -> str:
    first = brief(next(e.error for e in result.episodes if e.error is not None))
    if result.stopped is not None and brief(result.stopped) == first:
        return "it stopped the run"
    return f"first: {first}"


def brief(error: str) -> str:
    """Return the first line of an error, without the id that is in the episode's own entry."""
    line = error.strip().partition("\n")[0].strip() or "no message"
    line = _EPISODE_ID.sub("", printable(line))
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 2]} …"


_EPISODE_ID = re.compile(r", episode [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LONGEST_LINE = 240


def _interval_text(interval: Interval | None) -> str:
    if interval is None:
        return ""
    if interval.method == "constant":
        return "(all equal)"
    ends = f"[{_number(interval.low)}, {_number(interval.high)}]"
    return f"{ends} {interval.confidence * 100:g} % {METHOD_NAMES[interval.method]}"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    size = abs(value)
    if size and not 1e-3 <= size < 1e7:  # noqa: PLR2004 - where plain digits stop being readable
        return f"{value:.4g}"
    return f"{value:,.3f}" if size < 10 else f"{value:,.1f}"  # noqa: PLR2004
