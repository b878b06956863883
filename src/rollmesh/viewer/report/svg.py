"""Small helpers of the charts: escaping, scales, ticks and numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

MINUS, TIMES, NOTHING = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}", "\N{EN DASH}"


def esc(value: object) -> str:
    """Return text that is safe in HTML and in quoted attributes, without control characters."""
    text = "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in str(value)
    )
    return escape(text, quote=True)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps `low … high` onto pixels `start … end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value; outside ones are held at the ends."""
        wide = self.high - self.low
        share = (value - self.low) / wide if wide else 0.5
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers from `low` to `high`, both inclusive."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def widened(low: float, high: float) -> tuple[float, float]:
    """Return a range with a little room on both sides, never empty."""
    room = (high - low) * 0.06
    if room <= 0 or not math.isfinite(room):
        room = abs(low) * 0.1 or 1.0
    return low - room, high + room


def number(value: float | None, digits: int = 3) -> str:
    """Return a number for people: enough digits, thousands apart, a real minus sign."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else f"{MINUS}∞")
    size = abs(value)
    if size and not 1e-3 <= size < 1e7:  # noqa: PLR2004 - where plain digits stop being readable
        text = f"{value:.{digits}g}"
    elif size >= 1000:  # noqa: PLR2004
        text = f"{value:,.0f}"
    else:
        places = digits if size < 1 else digits - 1 if size < 100 else digits - 2  # noqa: PLR2004
        text = f"{value:.{max(0, places)}f}"
    return text.replace("-", MINUS)


def short(value: float) -> str:
    """Return a tick's number, as short as it can be."""
    return f"{value:,.6g}".replace("-", MINUS) if abs(value) < 1e7 else f"{value:.3g}"  # noqa: PLR2004


def duration(seconds: float) -> str:
    """Return a duration for people."""
    if seconds < 1e-3:  # noqa: PLR2004
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:  # noqa: PLR2004
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def size(count: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":  # noqa: PLR2004
            return f"{count:.3g} {unit}"
        count /= 1000
    return ""


def figure(width: float, height: float, title: str, body: str) -> str:
    """Return an SVG with a name that screen readers read."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{esc(title)}" '
        f'style="max-width:{width:g}px" preserveAspectRatio="xMinYMin meet">'
        f"<title>{esc(title)}</title>{body}</svg>"
    )


def clipped(label: str, longest: int) -> str:
    """Return a label that fits; the whole one belongs into a title."""
    return label if len(label) <= longest else f"{label[: longest - 1]}…"
