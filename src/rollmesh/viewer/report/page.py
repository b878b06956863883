"""The page of a report: one self-contained HTML file about one run or several."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rollmesh.viewer.report.comparison import comparison_section
from rollmesh.viewer.report.sections import (
    SERIES,
    calls_section,
    episodes_section,
    errors_section,
    facts_section,
    lost_section,
    odd_section,
    reach,
    returns_section,
    section,
    tasks_section,
    timeline_section,
)
from rollmesh.viewer.report.style import SCRIPT, STYLE, policy
from rollmesh.viewer.report.svg import duration, esc, number
from rollmesh.viewer.report.tables import Cell, count, numeric, table, tile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollmesh.viewer.report.data import ReportData


def page(runs: Sequence[ReportData], *, written_s: float | None = None) -> str:
    """Return the report as HTML text.

    Args:
        runs: The runs, the first being what the others are compared with.
        written_s: When the page is written, in seconds since the epoch, for its foot; None leaves
            it out, and the same runs then give the same page.

    Raises:
        ValueError: There is no run.

    Guarantees: the page loads nothing and sends nothing; text of envs, models and errors stays
    text.
    """
    if not runs:
        raise ValueError("a report wants at least one run")
    title = _title(runs)
    body = "".join(
        (
            _header(runs, title),
            _tiles(runs[0]) if len(runs) == 1 else _runs_table(runs),
            comparison_section(runs),
            tasks_section(runs),
            returns_section(runs),
            timeline_section(runs),
            odd_section(runs),
            errors_section(runs),
            lost_section(runs),
            calls_section(runs),
            facts_section(runs),
            episodes_section(runs),
            _footer(written_s),
        )
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{esc(policy())}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{esc(title)}</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head>'
        f"<body><main>{body}</main><script>{SCRIPT}</script></body></html>\n"
    )


def _title(runs: Sequence[ReportData]) -> str:
    if len(runs) > 1:
        return " and ".join(run.name for run in runs) if len(runs) == 2 else f"{len(runs)} runs"  # noqa: PLR2004
    result = runs[0].result
    if result.model and result.env:
        return f"{result.model} in {result.env}"
    return runs[0].name


def _header(runs: Sequence[ReportData], title: str) -> str:
    eyebrow = "rollmesh report"
    lead = ""
    if len(runs) == 1:
        run = runs[0]
        when = min((span.start_s for span in run.spans), default=None)
        parts = [run.name if run.name != title else "", "" if when is None else _date(when)]
        lead = f'<p class="lead">{esc(" · ".join(part for part in parts if part))}</p>'
    warnings = "".join(
        f'<p class="note warn">{esc(f"{run.name}: " if len(runs) > 1 else "")}{esc(text)}</p>'
        for run in runs
        for text in (_short_of(run), _nan_of(run))
        if text
    )
    return (
        f'<header class="top"><p class="eyebrow">{esc(eyebrow)}</p><h1>{esc(title)}</h1>'
        f"{lead}{warnings}</header>"
    )


def _short_of(run: ReportData) -> str:
    """Say what is missing from a run that did not finish its plan."""
    result = run.result
    if result.stopped is None and len(result.episodes) >= result.planned:
        return ""
    text = f"{len(result.episodes)} of {result.planned} planned episodes ended"
    return f"{text}; stopped: {result.stopped}" if result.stopped else f"{text}."


def _nan_of(run: ReportData) -> str:
    """Say that the policy was given NaN."""
    places = [place for place in run.result.odd_observations if place.kind == "nan"]
    if not places:
        return ""
    episodes = len({index for place in places for index in place.episodes})
    return f"Observations of {episodes} of {len(run.result.episodes)} episodes had NaN in them."


def _tiles(run: ReportData) -> str:
    result = run.result
    tiles: list[str] = []
    if run.success is not None and run.success.rate.value is not None:
        rate = run.success.rate
        shares = f"{run.success.successes} of {run.success.episodes}"
        if result.decision is not None:
            shares += f", decided by {result.decision.rule}"
        tiles.append(tile("Success rate", number(rate.value), f"{reach(rate.interval)} · {shares}"))
    if run.returns is not None:
        mean, iqm = run.returns.mean, run.returns.iqm
        tiles.append(tile("Mean return", number(mean.value), reach(mean.interval)))
        if iqm.value is not None:
            tiles.append(tile("Interquartile mean", number(iqm.value), reach(iqm.interval)))
    bounds = result.success_bounds
    errors = f"{result.num_errors} errored" if result.num_errors else "none errored"
    if result.num_errors and bounds is not None:
        errors += f"; success {number(bounds[0])} to {number(bounds[1])} with them"
    tiles.append(tile("Episodes", f"{len(result.episodes):,}", errors))
    speed = result.steps_per_s
    if speed is not None:
        small = f"{result.total_steps:,} steps in {duration(result.elapsed_s)}"
        tiles.append(tile("Steps per second", f"{speed:,.0f}", small))
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _runs_table(runs: Sequence[ReportData]) -> str:
    rows = [
        (
            Cell(run.name, swatch=f"s{place % SERIES}"),
            Cell(run.result.model_called),
            Cell(run.result.env),
            count(len(run.result.episodes)),
            numeric(
                run.success.rate.value if run.success else None,
                reach(run.success.rate.interval) if run.success else "",
            ),
            numeric(
                run.returns.mean.value if run.returns else None,
                reach(run.returns.mean.interval) if run.returns else "",
            ),
            count(run.result.num_errors),
        )
        for place, run in enumerate(runs)
    ]
    heads = ["run", "model", "env", "episodes", "success rate", "mean return", "errored"]
    caption = "Each with its interval."
    return section("Runs", table(heads, rows, caption=caption, numbers_from=3))


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%d %B %Y, %H:%M UTC")


def _footer(written_s: float | None) -> str:
    when = f" on {_date(written_s)}" if written_s is not None else ""
    return (
        f"<footer>Written by rollmesh{esc(when)}. This file is complete: it loads nothing.</footer>"
    )
