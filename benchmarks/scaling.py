"""Scaling rows: steps per second against lanes and against observation size.

In process, and with the env in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks import plot, remote, subjects, table, workloads
from benchmarks.contest import build_all
from benchmarks.harness import Comparison, Timing, compare
from benchmarks.table import Line

_LANES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MOST_WORKERS = 64
"""Lanes up to which a process a lane is measured."""
_KB = 1 << 10
_PAYLOADS = tuple(_KB << shift for shift in range(0, 17, 2))  # 1 kB … 64 MB
_FEW = 4  # every how many points a short run takes
_SHORT_PAYLOADS = _PAYLOADS[:-1:_FEW]  # without the largest, which take seconds to set up
_BURST_BYTES = 64 << 20

Points = dict[str, list[tuple[float, float]]]
Entries = Callable[[int], Sequence[subjects.Entry]]
"""Takes a number of lanes, or the bytes of an observation."""


def lanes_row(timing: Timing, *, folder: Path | None, short: bool) -> tuple[list[Line], str]:
    """Return W1 from 1 to 256 lanes in process: lines, and a plot with a word on the picture."""
    workload = workloads.scalar(500)

    def entries(num_envs: int) -> Sequence[subjects.Entry]:
        return [
            subjects.sync_vector(workload, num_envs),
            subjects.ours_vector(workload, num_envs),
            subjects.ours_batched(workload, num_envs),
        ]

    title = "in process"
    return _lanes(entries, timing, base=subjects.SYNC, title=title, folder=folder, short=short)


def lanes_across_row(timing: Timing, *, folder: Path | None, short: bool) -> tuple[list[Line], str]:
    """Return W1 from 1 to 256 lanes in another process, as `lanes_row`."""
    workload = workloads.scalar(500)

    def entries(num_envs: int) -> Sequence[subjects.Entry]:
        fits = num_envs <= _MOST_WORKERS
        return [
            *([subjects.async_vector(workload, num_envs)] if fits else []),
            remote.ours(remote.OURS_UNIX, workload, num_envs=num_envs),
            remote.ours(remote.OURS_TCP, workload, address=remote.NATIVE_TCP, num_envs=num_envs),
        ]

    title = "across processes"
    return _lanes(entries, timing, base=subjects.ASYNC, title=title, folder=folder, short=short)


def payload_row(timing: Timing, *, folder: Path | None, short: bool) -> tuple[list[Line], str]:
    """Return one lane with observations from 1 kB to 64 MB in process: lines, and a plot."""

    def entries(nbytes: int) -> Sequence[subjects.Entry]:
        workload = _payload(nbytes)
        return [subjects.sync_vector(workload), subjects.ours(workload)]

    title = "in process"
    return _payloads(entries, timing, base=subjects.SYNC, title=title, folder=folder, short=short)


def payload_across_row(
    timing: Timing, *, folder: Path | None, short: bool
) -> tuple[list[Line], str]:
    """Return the same with the env in another process."""

    def entries(nbytes: int) -> Sequence[subjects.Entry]:
        workload = _payload(nbytes)
        return [
            subjects.async_vector(workload),
            remote.ours(remote.OURS_UNIX, workload),
            remote.ours(remote.OURS_TCP, workload, address=remote.NATIVE_TCP),
            remote.ours(remote.OURS_GRPC, workload, address=remote.TCP),
        ]

    title = "across processes"
    return _payloads(entries, timing, base=subjects.ASYNC, title=title, folder=folder, short=short)


def _payload(nbytes: int) -> workloads.Workload:
    return workloads.payload(nbytes, max(5, min(500, _BURST_BYTES // nbytes)))


def _lanes(
    entries: Entries, timing: Timing, *, base: str, title: str, folder: Path | None, short: bool
) -> tuple[list[Line], str]:
    points: Points = {}
    lines: list[Line] = []
    for num_envs in _LANES[::_FEW] if short else _LANES:
        row = f"scaling {title} N={num_envs}"
        lines += _measure(row, entries(num_envs), num_envs, timing=timing, base=base, into=points)
    return lines, _draw(points, folder, title=title, kind="lanes", x_label="lanes")


def _payloads(
    entries: Entries, timing: Timing, *, base: str, title: str, folder: Path | None, short: bool
) -> tuple[list[Line], str]:
    points: Points = {}
    lines: list[Line] = []
    for nbytes in _SHORT_PAYLOADS if short else _PAYLOADS:
        row = f"scaling {title} {nbytes // _KB} kB"
        lines += _measure(row, entries(nbytes), nbytes, timing=timing, base=base, into=points)
    x_label = "bytes of an observation"
    return lines, _draw(points, folder, title=title, kind="payload", x_label=x_label)


def _measure(
    row: str,
    entries: Sequence[subjects.Entry],
    x: float,
    *,
    timing: Timing,
    base: str,
    into: Points,
) -> list[Line]:
    comparison = compare(build_all(entries), timing)
    lines: list[Line] = []
    for entry in entries:
        rate = comparison.rate(entry.name)
        into.setdefault(entry.name, []).append((x, rate.median))
        lines.append(
            Line(
                row=row,
                subject=entry.name,
                figure=table.rate_text(rate, "steps"),
                ratio=_against(base, entry.name, comparison),
                numbers={"unit": "steps/s", "median": rate.median, "x": x},
            )
        )
    return lines


def _against(base: str, name: str, comparison: Comparison) -> str:
    if name == base or base not in comparison.bursts:
        return ""
    return table.ratio_text(comparison.speedup(name, base), base)


def _draw(
    points: Mapping[str, Sequence[tuple[float, float]]],
    folder: Path | None,
    *,
    title: str,
    kind: str,
    x_label: str,
) -> str:
    text = f"{title}: steps/s against {x_label} (logarithmic)\n{plot.text_plot(points, 'steps/s')}"
    if folder is None:
        return text
    path = folder / f"scaling_{title.replace(' ', '_')}_{kind}.svg"
    word = plot.picture(points, path, title=title, x_label=x_label, y_label="steps/s")
    return f"{text}\n{word}"
