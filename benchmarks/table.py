"""Table: the lines that rows give, how they are printed, and the machine they were measured on.

Knows no subject and measures nothing.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness import Spread

MET = "met"
SHORT = "SHORT"
_HEADINGS = ("row", "subject", "figure", "ratio", "target", "")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table.

    Attributes:
        row: What was measured.
        subject: Who did it, or what became of it.
        figure: The figure with its unit.
        ratio: Against whom, median and range.
        target: What the ratio or figure must reach, or empty.
        verdict: `met`, `SHORT`, or empty where there is no target.
        numbers: The same unrounded, for JSON.
    """

    row: str
    subject: str
    figure: str = ""
    ratio: str = ""
    target: str = ""
    verdict: str = ""
    numbers: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where the figures come from.

    Attributes:
        python: Interpreter and version.
        platform: Operating system and processor.
        cpus: Number of processors this process may use.
        load: Load averages of 1, 5, 15 minutes, empty where unknown.
    """

    python: str
    platform: str
    cpus: int
    load: tuple[float, ...]

    @classmethod
    def look(cls) -> Machine:
        """Return the machine as it is now."""
        affinity = getattr(os, "sched_getaffinity", None)
        cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
        return cls(
            python=f"{platform.python_implementation()} {platform.python_version()}",
            platform=platform.platform(),
            cpus=cpus,
            load=os.getloadavg() if hasattr(os, "getloadavg") else (),
        )

    def sentence(self) -> str:
        """Return it in words, with a warning when others are using the machine."""
        text = f"{self.python}, {self.platform}, {self.cpus} cpus"
        if not self.load:
            return text
        text += f", load {self.load[0]:.2f}"
        if self.load[0] > self.cpus * 0.75:
            text += " (LOADED: trust the ratios, not the figures)"
        return text


def rate_text(spread: Spread, unit: str) -> str:
    """Return a rate for people: `61,200 steps/s`."""
    return (
        f"{spread.median:,.0f} {unit}/s"
        if spread.median >= 100
        else f"{spread.median:.3g} {unit}/s"
    )


def time_text(spread: Spread) -> str:
    """Return a duration for people, with its range: `11.9 µs (11.2-13.0)`."""
    scale, unit = next(
        (scale, unit)
        for limit, scale, unit in (
            (1e-6, 1e9, "ns"),
            (1e-3, 1e6, "µs"),
            (1.0, 1e3, "ms"),
            (1e99, 1.0, "s"),
        )
        if abs(spread.median) < limit
    )
    return (
        f"{spread.median * scale:.3g} {unit} ({spread.low * scale:.3g}-{spread.high * scale:.3g})"
    )


def ratio_text(spread: Spread, base: str) -> str:
    """Return a ratio for people, with its range: `14.2 x RLMesh (13.1-15.0)`."""
    median, low, high = map(_ratio, (spread.median, spread.low, spread.high))
    return f"{median} x {base} ({low}-{high})"


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def at_least(value: float, target: float) -> str:
    """Return the verdict on a value that must be no less than its target."""
    return MET if value >= target else SHORT


def at_most(value: float, target: float) -> str:
    """Return the verdict on a value that must be no more than its target."""
    return MET if value <= target else SHORT


def absent(row: str, subject: str, how: str) -> Line:
    """Return the line of a peer that is not installed."""
    return Line(row=row, subject=subject, figure=f"not installed: {how}", numbers={"missing": how})


def render(lines: Sequence[Line]) -> str:
    """Return the lines as one table; a row's name stands on its first line only."""
    cells: list[tuple[str, ...]] = [_HEADINGS]
    last = ""
    for line in lines:
        row = "" if line.row == last else line.row
        last = line.row
        cells.append((row, line.subject, line.figure, line.ratio, line.target, line.verdict))
    widths = [max(len(each[column]) for each in cells) for column in range(len(_HEADINGS))]
    texts = ["  ".join(map(str.ljust, each, widths)).rstrip() for each in cells]
    return "\n".join([texts[0], "-" * len(texts[0]), *texts[1:]])


def as_json(lines: Iterable[Line], machine: Machine) -> dict[str, Any]:
    """Return everything as plain values."""
    return {"machine": asdict(machine), "lines": [asdict(line) for line in lines]}
