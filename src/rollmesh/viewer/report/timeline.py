"""The timeline of a run: what each lane did, when (SVG).

Times come from when an episode ended and how long it took; a reset, and the time in which a worker
builds its env, are no part of it. Long stretches in which nothing ran, as between a crash and the
start that resumed the run, are cut short and marked.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from rollmesh.viewer.report.data import OUTCOMES, Outcome, ReportData, Span
from rollmesh.viewer.report.svg import Scale, duration, esc, figure, ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH = 940.0
_LEFT = 92.0
_AXIS = 30.0
_TALLEST_ROW = 18.0
_LOWEST_ROW = 5.0
_ROOM = 420.0
_SINGLE_BARS_UP_TO = 600
_IDLE_SHARE = 0.08
_IDLE_AT_LEAST_S = 30.0


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which something ran: seconds since the epoch, and where it begins on the page."""

    start_s: float
    end_s: float
    offset_s: float


def timeline(run: ReportData) -> str:
    """Return one row a lane with its episodes as bars; empty where no episode tells its time."""
    spans = run.spans
    if not spans:
        return ""
    stretches = busy_stretches(spans)
    total_s = stretches[-1].offset_s + stretches[-1].end_s - stretches[-1].start_s
    lanes = sorted({span.lane for span in spans})
    row = max(_LOWEST_ROW, min(_TALLEST_ROW, _ROOM / len(lanes)))
    height = row * len(lanes) + _AXIS
    scale = Scale(0.0, max(total_s, 1e-6), _LEFT, _WIDTH - 8)
    parts = _time_axis(scale, height, stretches)
    by_lane: dict[int, list[Span]] = {lane: [] for lane in lanes}
    for span in spans:
        by_lane[span.lane].append(span)
    every = max(1, round(13.0 / row))
    single = len(spans) <= _SINGLE_BARS_UP_TO
    for place, lane in enumerate(lanes):
        y = place * row
        if place % every == 0:
            parts.append(
                f'<text class="tick" x="{_LEFT - 8:g}" y="{y + row / 2 + 4:.1f}" '
                f'text-anchor="end">{esc(lane_name(run, lane))}</text>'
            )
        draw = _single_bars if single else _merged_bars
        parts.append(draw(by_lane[lane], scale, stretches, (y + 1, max(2.0, row - 2))))
    title = f"Timeline of {len(lanes)} lanes over {duration(total_s)}: {busy_words(run)}"
    return figure(_WIDTH, height, title, "".join(parts))


def lane_name(run: ReportData, lane: int) -> str:
    """Return the name of a lane: its worker's where each has one, else worker and lane."""
    per_worker = run.lanes_per_worker
    if per_worker is None:
        return f"lane {lane}"
    if per_worker == 1:
        return f"worker {lane}"
    return f"worker {lane // per_worker}.{lane % per_worker}"


def busy_words(run: ReportData) -> str:
    """Say how much of the time the lanes were in an episode."""
    spans = run.spans
    if not spans:
        return ""
    total_s = sum(s.end_s - s.start_s for s in busy_stretches(spans))
    lanes = len({span.lane for span in spans})
    if total_s <= 0:
        return "too short to tell how busy the lanes were"
    busy = sum(span.end_s - span.start_s for span in spans) / (total_s * lanes)
    return f"lanes in an episode {min(1.0, busy):.0%} of the time"


def busy_stretches(spans: Sequence[Span]) -> list[Stretch]:
    """Return the times in which something ran, in order; long idle times between them are cut."""
    first, last = spans[0].start_s, max(span.end_s for span in spans)
    cut_s = max(_IDLE_AT_LEAST_S, (last - first) * _IDLE_SHARE)
    pieces: list[list[float]] = []
    for span in spans:
        if pieces and span.start_s - pieces[-1][1] <= cut_s:
            pieces[-1][1] = max(pieces[-1][1], span.end_s)
        else:
            pieces.append([span.start_s, span.end_s])
    mark_s = sum(end - start for start, end in pieces) * 0.015
    stretches: list[Stretch] = []
    offset = 0.0
    for start, end in pieces:
        stretches.append(Stretch(start, end, offset))
        offset += end - start + mark_s
    return stretches


def _x(time_s: float, scale: Scale, stretches: Sequence[Stretch]) -> float:
    for stretch in reversed(stretches):
        if time_s >= stretch.start_s:
            return scale.at(stretch.offset_s + min(time_s, stretch.end_s) - stretch.start_s)
    return scale.start


def _time_axis(scale: Scale, height: float, stretches: Sequence[Stretch]) -> list[str]:
    parts: list[str] = []
    bottom = height - _AXIS + 6
    if len(stretches) == 1:
        for value in ticks(scale.low, scale.high, 6):
            x = scale.at(value)
            parts.append(
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom:.1f}"/>'
                f'<text class="tick" x="{x:.1f}" y="{bottom + 15:.1f}" text-anchor="middle">'
                f"{esc(duration(value) if value else '0')}</text>"
            )
        return parts
    for before, after in pairwise(stretches):
        x = scale.at((before.offset_s + before.end_s - before.start_s + after.offset_s) / 2)
        idle = f"nothing ran for {duration(after.start_s - before.end_s)}"
        parts.append(
            f'<g><title>{esc(idle)}</title><line class="cut" x1="{x:.1f}" x2="{x:.1f}" y1="0" '
            f'y2="{bottom:.1f}"/><text class="tick" x="{x:.1f}" y="{bottom + 15:.1f}" '
            f'text-anchor="middle">{esc(duration(after.start_s - before.end_s))} idle</text></g>'
        )
    return parts


def _single_bars(
    spans: Sequence[Span], scale: Scale, stretches: Sequence[Stretch], band: tuple[float, float]
) -> str:
    y, tall = band
    parts: list[str] = []
    for span in spans:
        left, right = _x(span.start_s, scale, stretches), _x(span.end_s, scale, stretches)
        again = f", attempt {span.attempts}" if span.attempts > 1 else ""
        title = (
            f"episode {span.index}: {span.outcome}, {duration(span.end_s - span.start_s)}{again}"
        )
        parts.append(
            f'<rect class="o-{span.outcome}" x="{left:.2f}" y="{y:.1f}" '
            f'width="{max(1.0, right - left - 0.6):.2f}" height="{tall:.1f}" rx="1.5">'
            f"<title>{esc(title)}</title></rect>"
        )
    return "".join(parts)


def _merged_bars(
    spans: Sequence[Span], scale: Scale, stretches: Sequence[Stretch], band: tuple[float, float]
) -> str:
    """Return one path an outcome, bars merged to half a pixel: its size knows a bound."""
    y, tall = band
    pieces: dict[Outcome, list[list[int]]] = {}
    for span in spans:
        left = round(2 * _x(span.start_s, scale, stretches))
        right = max(left + 1, round(2 * _x(span.end_s, scale, stretches)))
        bars = pieces.setdefault(span.outcome, [])
        if bars and left <= bars[-1][1]:
            bars[-1][1] = max(bars[-1][1], right)
        else:
            bars.append([left, right])
    return "".join(
        f'<path class="o-{outcome}" d="'
        + "".join(
            f"M{left / 2:g} {y:.1f}h{(right - left) / 2:g}v{tall:.1f}H{left / 2:g}z"
            for left, right in pieces[outcome]
        )
        + '"/>'
        for outcome in OUTCOMES
        if outcome in pieces
    )
