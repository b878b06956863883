"""Plots: growth curves as text, and as a picture where matplotlib is installed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

_WIDTH = 50

Curve = Sequence[tuple[float, float]]
"""Points (x, y), both above 0."""


def text_plot(curves: Mapping[str, Curve], unit: str) -> str:
    """Return bars on a logarithmic scale, one a point, grouped by x.

    Args:
        curves: Name to points; both axes positive.
        unit: Unit of y.
    """
    values = [y for curve in curves.values() for _, y in curve]
    low, high = math.log10(min(values)), math.log10(max(values))
    decade = max(high - low, 1e-9)
    name_width = max(map(len, curves))
    lines: list[str] = []
    for x in sorted({x for curve in curves.values() for x, _ in curve}):
        for name, curve in curves.items():
            for at, y in curve:
                if at == x:
                    bar = "#" * max(1, round(_WIDTH * (math.log10(y) - low) / decade))
                    lines.append(f"{x:>12,.0f}  {name:<{name_width}}  {bar} {y:,.3g} {unit}")
    return "\n".join(lines)


def picture(
    curves: Mapping[str, Curve], path: Path, *, title: str, x_label: str, y_label: str
) -> str:
    """Write the curves to `path` (SVG or PNG by its suffix) and say what happened."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no picture: matplotlib is not installed (pip install matplotlib)"
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        axes.plot([x for x, _ in curve], [y for _, y in curve], marker="o", label=name)
    axes.set(xscale="log", yscale="log", title=title, xlabel=x_label, ylabel=y_label)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return f"written: {path}"
