"""The charts of a report, as SVG: intervals, return distributions and the timeline of lanes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollmesh.viewer.report.data import OUTCOMES, Outcome, ReportData, outcome_of
from rollmesh.viewer.report.svg import (
    Scale,
    clipped,
    esc,
    figure,
    number,
    short,
    ticks,
    widened,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH = 940.0
_ROW = 26.0
_AXIS = 30.0
_LABEL = 240.0
_VALUE = 170.0


@dataclass(frozen=True, kw_only=True, slots=True)
class IntervalRow:
    """One estimate of a forest plot.

    Attributes:
        label: What it is about; `""` for the same as the row above.
        series: The number of its run's colour.
        value: The estimate.
        low: Lower end of its interval, or None.
        high: Upper end of its interval, or None.
        run: Name of its run, where there are several.
        starts_group: Whether some room is left above it.
    """

    label: str
    series: int
    value: float
    low: float | None
    high: float | None
    run: str = ""
    starts_group: bool = False


def forest(
    rows: Sequence[IntervalRow],
    title: str,
    *,
    domain: tuple[float, float] | None = None,
    mark: float | None = None,
) -> str:
    """Return estimates with their intervals, one a row, over a common axis.

    Args:
        rows: The estimates.
        title: What they are.
        domain: The axis; None takes what the rows need.
        mark: A value of the axis that is marked, such as 0 of differences.
    """
    told = [v for r in rows for v in (r.low, r.value, r.high)] + [mark]
    ends = [v for v in told if v is not None and math.isfinite(v)]
    low, high = domain or (widened(min(ends), max(ends)) if ends else (0.0, 1.0))
    scale = Scale(low, high, _LABEL + 8, _WIDTH - _VALUE - 8)
    gap = 8.0
    height = sum(_ROW + (gap if row.starts_group else 0.0) for row in rows) + _AXIS
    parts = _axis(scale, height)
    if mark is not None:
        x = scale.at(mark)
        parts.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - _AXIS + 6:.1f}"/>'
        )
    y = _ROW / 2
    for place, row in enumerate(rows):
        if row.starts_group and place:
            y += gap
        parts.append(_forest_row(row, scale, y))
        y += _ROW
    return figure(_WIDTH, height, title, "".join(parts))


def _forest_row(row: IntervalRow, scale: Scale, y: float) -> str:
    ends = ""
    line = ""
    if row.low is not None and row.high is not None:
        ends = f" [{number(row.low)}, {number(row.high)}]"
        left, right = scale.at(row.low), scale.at(row.high)
        line = (
            f'<line class="reach s{row.series}" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" '
            f'y2="{y:.1f}"/>'
        )
    text = f"{number(row.value)}{ends}"
    point = ""
    if math.isfinite(row.value):
        x = scale.at(row.value)
        point = f'<circle class="point s{row.series}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
    return (
        f"<g><title>{esc(' '.join(filter(None, (row.label, row.run))))}: {esc(text)}</title>"
        f'<text class="label" x="{_LABEL - 4:g}" y="{y + 4:.1f}" text-anchor="end">'
        f"{esc(clipped(row.label, 34))}</text>{line}{point}"
        f'<text class="value" x="{_WIDTH:g}" y="{y + 4:.1f}" text-anchor="end">'
        f"{esc(text)}</text></g>"
    )


def _axis(scale: Scale, height: float) -> list[str]:
    """Return grid lines and tick labels along the bottom."""
    parts: list[str] = []
    bottom = height - _AXIS + 6
    for value in ticks(scale.low, scale.high):
        x = scale.at(value)
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom:.1f}"/>'
            f'<text class="tick" x="{x:.1f}" y="{bottom + 15:.1f}" text-anchor="middle">'
            f"{esc(short(value))}</text>"
        )
    return parts


# --------------------------------------------------------------------------- distribution

_DOTS_UP_TO = 80
_PLOT_HEIGHT = 110.0
_HEAD = 24.0


def distribution(runs: Sequence[ReportData]) -> str:
    """Return how the returns of each run are spread, one plot a run over a common axis.

    Few episodes are dots, many are a histogram; colours tell outcomes apart.
    """
    values = [v for run in runs for v, _ in _returns(run)]
    if not values:
        return ""
    low, high = widened(min(values), max(values))
    scale = Scale(low, high, 12.0, _WIDTH - 12.0)
    parts: list[str] = []
    y = 0.0
    for run in runs:
        returns = _returns(run)
        parts.append(
            f'<text class="label strong" x="12" y="{y + 15:.1f}">'
            f"{esc(clipped(run.name, 60))}</text>"
        )
        base = y + _HEAD + _PLOT_HEIGHT
        parts.append(
            f'<line class="base" x1="12" x2="{_WIDTH - 12:g}" y1="{base:.1f}" y2="{base:.1f}"/>'
        )
        if returns:
            draw = _dots if len(returns) <= _DOTS_UP_TO else _bars
            band, line = _mean_mark(run, scale, base)
            parts.extend((band, draw(returns, scale, base), line))
        y = base + 12
    height = y + _AXIS
    title = "Returns of finished episodes: " + "; ".join(
        f"{run.name}: {len(_returns(run))} episodes, mean {number(run.result.mean_return)}"
        for run in runs
    )
    return figure(_WIDTH, height, title, "".join([*_axis(scale, height), *parts]))


def _returns(run: ReportData) -> list[tuple[float, Outcome]]:
    return [
        (e.total_reward, outcome_of(e))
        for e in run.result.episodes
        if e.error is None and math.isfinite(e.total_reward)
    ]


def _binned(
    returns: Sequence[tuple[float, Outcome]], bins: int, scale: Scale
) -> list[Counter[Outcome]]:
    counts: list[Counter[Outcome]] = [Counter() for _ in range(bins)]
    for value, outcome in returns:
        share = (value - scale.low) / (scale.high - scale.low)
        counts[min(bins - 1, int(share * bins))][outcome] += 1
    return counts


def _bars(returns: Sequence[tuple[float, Outcome]], scale: Scale, base: float) -> str:
    bins = max(12, min(64, round(2.2 * math.sqrt(len(returns)))))
    counts = _binned(returns, bins, scale)
    tallest = max(sum(c.values()) for c in counts)
    wide = (scale.end - scale.start) / bins
    parts: list[str] = []
    for place, count in enumerate(counts):
        total, y = sum(count.values()), base
        x = scale.start + place * wide
        shares: list[str] = []
        for outcome in OUTCOMES:
            if count[outcome]:
                tall = count[outcome] / tallest * (_PLOT_HEIGHT - 6)
                y -= tall
                shares.append(
                    f'<rect class="o-{outcome}" x="{x + 0.75:.1f}" y="{y:.1f}" '
                    f'width="{wide - 1.5:.1f}" height="{tall:.1f}"/>'
                )
        if total:
            edge = scale.low + (scale.high - scale.low) * place / bins
            far = scale.low + (scale.high - scale.low) * (place + 1) / bins
            words = ", ".join(f"{count[o]} {o}" for o in OUTCOMES if count[o])
            title = f"{number(edge)} to {number(far)}: {words}"
            parts.append(f"<g><title>{esc(title)}</title>{''.join(shares)}</g>")
    return "".join(parts)


def _dots(returns: Sequence[tuple[float, Outcome]], scale: Scale, base: float) -> str:
    columns = int((scale.end - scale.start) / 9)
    heights: Counter[int] = Counter()
    places: list[tuple[int, int, float, Outcome]] = []
    for value, outcome in sorted(returns, key=lambda r: (OUTCOMES.index(r[1]), r[0])):
        column = round((scale.at(value) - scale.start) / (scale.end - scale.start) * columns)
        places.append((column, heights[column], value, outcome))
        heights[column] += 1
    rise = min(9.0, (_PLOT_HEIGHT - 8) / max(heights.values()))
    return "".join(
        f'<circle class="o-{outcome}" cx="{scale.at(value):.1f}" '
        f'cy="{base - 6 - level * rise:.1f}" r="3.8"><title>{esc(number(value))}: {outcome}</title>'
        "</circle>"
        for _, level, value, outcome in places
    )


def _mean_mark(run: ReportData, scale: Scale, base: float) -> tuple[str, str]:
    """Return the band of the mean's interval, to lie behind, and the mean's line, to lie before."""
    mean = None if run.returns is None else run.returns.mean
    average, interval = (None, None) if mean is None else (mean.value, mean.interval)
    if average is None or not math.isfinite(average):
        return "", ""
    top = base - _PLOT_HEIGHT
    x = scale.at(average)
    band = ""
    words = f"mean {number(average)}"
    if interval is not None:
        left, right = scale.at(interval.low), scale.at(interval.high)
        band = (
            f'<rect class="band" x="{left:.1f}" width="{max(1.0, right - left):.1f}" '
            f'y="{top:.1f}" height="{_PLOT_HEIGHT:g}"/>'
        )
        words += f" [{number(interval.low)}, {number(interval.high)}]"
    anchor = "start" if x < _WIDTH * 0.7 else "end"
    beside = x + 6 if anchor == "start" else x - 6
    return band, (
        f'<g><title>{esc(words)}</title><line class="mean" x1="{x:.1f}" x2="{x:.1f}" '
        f'y1="{top - 6:.1f}" y2="{base:.1f}"/>'
        f'<text class="tick" x="{beside:.1f}" y="{top - 1:.1f}" text-anchor="{anchor}">'
        f"{esc(words)}</text></g>"
    )
