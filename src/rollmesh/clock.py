"""Clocks, passed in wherever time is read (layer 1).

Durations come from a monotonic clock; wall time is only ever a label (rule R47).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What tells the time."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds that never go back; the origin means nothing."""
        ...

    def wall_ns(self) -> int:
        """Return nanoseconds since the Unix epoch; may jump either way."""
        ...


class SystemClock:
    """The machine's own clocks."""

    monotonic_ns = staticmethod(time.perf_counter_ns)
    wall_ns = staticmethod(time.time_ns)


SYSTEM_CLOCK = SystemClock()
