"""Spinning: looking again for a moment instead of sleeping, where that pays (layer 5).

A wake-up from another core costs tens of microseconds; a peer that answers sooner than that is
better waited for awake. That is only so where a core is free for it, and nobody can know that, so a
`Spinner` measures: it counts how many of its spins saw the answer come, and stops for a second when
fewer than half of the last 32 did, or when answers have lately taken longer than it would spin.

It knows no sockets: whoever waits spins for `budget_ns` if `resume_ns` has passed, and then tells
`note()` how it went.
"""

from __future__ import annotations

import os
import time
from typing import Literal, TypeAlias

Spin: TypeAlias = Literal["auto", "always", "never"]

BUDGET_NS = 80_000
"""How long one spin may take."""
NEVER_NS = 2**63
_WINDOW = 32
_FIRST_WINDOW = 8
"""Spins that are looked at first, and after a pause: so many are lost where it does not pay."""
_PAUSE_NS = 1_000_000_000


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every platform
        return os.cpu_count() or 1


class Spinner:
    """Decides, wait by wait, whether to spin. For one thread at a time.

    Attributes:
        resume_ns: No spinning before this time of `time.perf_counter_ns()`.
        budget_ns: How long one spin may take.

    Args:
        mode: `auto` measures as the module says, `never` never spins, `always` always (for
            measurements).
        processes: How many processes take part in this exchange at once: the two ends, and whatever
            else of ours is busy meanwhile. With more of them than cores it never spins.
        budget_ns: How long one spin may take.
    """

    def __init__(
        self, mode: Spin = "auto", *, processes: int = 2, budget_ns: int = BUDGET_NS
    ) -> None:
        self.budget_ns = budget_ns
        self.resume_ns = 0
        self._is_measured = mode == "auto"
        self._spins = 0
        self._hits = 0
        self._wait_ns = 0
        self._window = _FIRST_WINDOW
        if mode == "never" or (mode == "auto" and processes > usable_cores()):
            self.resume_ns = NEVER_NS

    def note(self, waited_ns: int, *, hit: bool) -> None:
        """Take note of a wait that began with a spin.

        Args:
            waited_ns: How long it took from the start.
            hit: Whether the answer came while spinning.
        """
        # a moving average that a single long wait (a reset, a pause) does not spoil for long
        self._wait_ns += (min(waited_ns, 4 * self.budget_ns) - self._wait_ns) >> 3
        self._spins += 1
        self._hits += hit
        if self._spins < self._window:
            return
        is_poor = 2 * self._hits < self._spins or self._wait_ns > self.budget_ns
        self._window = _WINDOW
        if is_poor and self._is_measured:
            self.resume_ns = time.perf_counter_ns() + _PAUSE_NS
            self._window = _FIRST_WINDOW
        self._spins = self._hits = 0
