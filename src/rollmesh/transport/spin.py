"""Spinning: looking again for a moment instead of sleeping, where that pays (layer 5).

A wake-up from another core costs tens of microseconds; a peer that answers sooner than that is
better waited for awake. That is only so where a core is free for it, and nobody can know that, so a
`Spinner` measures. It stops for a while when fewer than half of its last spins saw the answer come,
or when its thread was kept from running for a good part of the time: then somebody else wants the
core, and no other spinner of this process begins meanwhile. The pause is short at first, as the
first waits of a connection (a handshake, a reset) say little, and doubles each time that spinning
does not pay after it. The next spinner of the same place goes on where the last one was: runs that
connect anew every moment do not learn it anew.

Where a loop asks several servers in turn, one of them works at a time, and the loop is always the
one that waits for it. With more processes than cores the servers are told (`share`), and leave
spinning to the loop: else all of them would spin, and keep the one that works from its core.

It knows no sockets: whoever waits spins for `budget_ns` if `resume_ns` has passed, and then tells
`note()` how it went.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Literal, TypeAlias

Spin: TypeAlias = Literal["auto", "always", "never"]

BUDGET_NS = 200_000
"""How long one spin may take: a peer that is asleep itself answers within this, too, where its own
work is small. Were it shorter, two ends that both sleep would never learn that neither has to."""
NEVER_NS = 2**63
_WINDOW = 32
"""Spins that are looked at together."""
_FIRST_WINDOW = 8
"""The same after a pause: so many are lost where it does not pay."""
_SHORTEST_PAUSE_NS = 4_000_000
_LONGEST_PAUSE_NS = 1_000_000_000
_HORIZON_NS = 10_000_000
_STOLEN_NS = 2_000_000
"""The core is wanted by others when they had it for so long in the first of these times, or less:
they hold it for milliseconds once they have it."""
_COARSE_S = 0.001
_MOST_PLACES = 256


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
        place: Who is waited for; what was learnt there is kept for the next one. Empty for nobody
            in particular.
    """

    def __init__(
        self,
        mode: Spin = "auto",
        *,
        processes: int = 2,
        budget_ns: int = BUDGET_NS,
        place: str = "",
    ) -> None:
        self.budget_ns = budget_ns
        self.resume_ns = 0
        self._is_measured = mode == "auto"
        self._spins = 0
        self._hits = 0
        self._window = _FIRST_WINDOW
        self._pause_ns = _SHORTEST_PAUSE_NS
        if self._is_measured:
            now_ns = time.perf_counter_ns()
            self.resume_ns, self._pause_ns = _crowd.beginning(now_ns)
            resume_ns, pause_ns = _places.get(place, (0, 0))
            self.resume_ns = max(self.resume_ns, resume_ns)
            self._pause_ns = max(self._pause_ns, pause_ns)
        self._place = place
        self._begun_ns = 0
        self._ran_ns = 0
        self._slept_ns = 0
        self._thread = 0
        if mode == "never":
            self.resume_ns = NEVER_NS
        self.share(processes)

    def share(self, processes: int) -> None:
        """Take note that so many processes take part; with more than cores it never spins again."""
        if self._is_measured and processes > usable_cores():
            self.resume_ns = NEVER_NS

    def note(self, waited_ns: int, *, hit: bool) -> None:
        """Take note of a wait that began with a spin.

        Args:
            waited_ns: How long it took from the start.
            hit: Whether the answer came while spinning.
        """
        self._spins += 1
        if hit:
            self._hits += 1
        else:
            self._slept_ns += waited_ns - self.budget_ns
        if self._spins >= self._window:
            self._judge()

    def _judge(self) -> None:
        is_poor = 2 * self._hits < self._spins
        self._window = _WINDOW
        self._spins = self._hits = 0
        if not self._is_measured:
            return
        now_ns = time.perf_counter_ns()
        if not is_poor:
            is_poor = self._is_crowded(now_ns)
            if is_poor:
                _crowd.note(now_ns, self._pause_ns)
        if not is_poor:
            _places.pop(self._place, None)
        else:
            self.resume_ns = now_ns + self._pause_ns
            self._pause_ns = min(2 * self._pause_ns, _LONGEST_PAUSE_NS)
            self._remember()
            self._window = _FIRST_WINDOW
            self._begun_ns = 0

    def _remember(self) -> None:
        """Keep what was learnt for the next spinner of this place."""
        if self._place:
            if len(_places) >= _MOST_PLACES:
                _places.clear()
            _places[self._place] = self.resume_ns, self._pause_ns

    def _is_crowded(self, now_ns: int) -> bool:
        """Return whether others had the core meanwhile; where they did not, look afresh."""
        ran_ns, thread = time.thread_time_ns(), threading.get_ident()
        if self._begun_ns and thread == self._thread:
            took_ns = now_ns - self._begun_ns
            if took_ns - (ran_ns - self._ran_ns) - self._slept_ns > _STOLEN_NS:
                return _can_tell()
            if took_ns < _HORIZON_NS:
                return False
            self._pause_ns = _SHORTEST_PAUSE_NS
        self._begun_ns, self._ran_ns, self._slept_ns = now_ns, ran_ns, 0
        self._thread = thread
        return False


class _Crowd:
    """What the spinners of a process know of each other: until when the cores are wanted."""

    def __init__(self) -> None:
        self._until_ns = 0
        self._pause_ns = 0

    def note(self, now_ns: int, pause_ns: int) -> None:
        """Take note that a spinner pauses because of others."""
        self._until_ns = now_ns + pause_ns
        self._pause_ns = pause_ns

    def beginning(self, now_ns: int) -> tuple[int, int]:
        """Return when a new spinner may begin, and how long it pauses if it does not pay then."""
        if now_ns >= self._until_ns + self._pause_ns:
            return 0, _SHORTEST_PAUSE_NS
        return self._until_ns, min(2 * self._pause_ns, _LONGEST_PAUSE_NS)


_crowd = _Crowd()
_places: dict[str, tuple[int, int]] = {}
"""Where spinning did not pay the last time: when to try again, and how long to pause then."""


def _can_tell() -> bool:
    """Return whether the platform counts the time of a thread finely enough."""
    return time.get_clock_info("thread_time").resolution <= _COARSE_S
