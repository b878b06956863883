"""Scaling rows: steps per second in process, against lanes and against observation size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import plot, subjects, table, workloads
from benchmarks.harness import Comparison, Timing, compare
from benchmarks.table import Line

_LANES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_KB = 1 << 10
_PAYLOADS = tuple(_KB << shift for shift in range(0, 17, 2))  # 1 kB … 64 MB
_FEW = 4  # every how many points a short run takes
_SHORT_PAYLOADS = _PAYLOADS[:-1:_FEW]  # without the largest, which take seconds to set up

Points = dict[str, list[tuple[float, float]]]


def lanes_row(timing: Timing, *, folder: Path | None, short: bool) -> tuple[list[Line], str]:
    """Return W1 from 1 to 256 lanes: lines, and a plot with a word on the picture."""
    workload = workloads.scalar(500)
    points: Points = {}
    lines: list[Line] = []
    for num_envs in _LANES[::_FEW] if short else _LANES:
        entries = [
            subjects.sync_vector(workload, num_envs),
            subjects.ours_vector(workload, num_envs),
            subjects.ours_batched(workload, num_envs),
        ]
        lines += _measure(f"scaling N={num_envs}", entries, num_envs, timing=timing, points=points)
    return lines, _draw(points, folder, name="lanes", x_label="lanes")


def payload_row(timing: Timing, *, folder: Path | None, short: bool) -> tuple[list[Line], str]:
    """Return one lane with observations from 1 kB to 64 MB: lines, and a plot."""
    points: Points = {}
    lines: list[Line] = []
    for nbytes in _SHORT_PAYLOADS if short else _PAYLOADS:
        workload = workloads.payload(nbytes, max(5, min(500, (64 << 20) // nbytes)))
        entries = [subjects.sync_vector(workload), subjects.ours(workload)]
        lines += _measure(
            f"scaling {nbytes // _KB} kB", entries, nbytes, timing=timing, points=points
        )
    return lines, _draw(points, folder, name="payload", x_label="bytes of an observation")


def _measure(
    row: str, entries: Sequence[subjects.Entry], x: float, *, timing: Timing, points: Points
) -> list[Line]:
    comparison = compare([entry.build() for entry in entries], timing)
    lines: list[Line] = []
    for entry in entries:
        rate = comparison.rate(entry.name)
        points.setdefault(entry.name, []).append((x, rate.median))
        lines.append(
            Line(
                row=row,
                subject=entry.name,
                figure=table.rate_text(rate, "steps"),
                ratio=_against_sync(entry.name, comparison),
                numbers={"unit": "steps/s", "median": rate.median, "x": x},
            )
        )
    return lines


def _against_sync(name: str, comparison: Comparison) -> str:
    if name == subjects.SYNC:
        return ""
    return table.ratio_text(comparison.speedup(name, subjects.SYNC), subjects.SYNC)


def _draw(
    points: Mapping[str, Sequence[tuple[float, float]]],
    folder: Path | None,
    *,
    name: str,
    x_label: str,
) -> str:
    text = f"steps/s against {x_label} (logarithmic)\n{plot.text_plot(points, 'steps/s')}"
    if folder is None:
        return text
    word = plot.picture(
        points,
        folder / f"scaling_{name}.svg",
        title="in process",
        x_label=x_label,
        y_label="steps/s",
    )
    return f"{text}\n{word}"
