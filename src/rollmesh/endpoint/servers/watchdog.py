"""The watchdog: one thread per server that looks at deadlines (layer 6).

Whatever is watched says when it wants to be looked at next. A deadline that is set between two
looks is not told to the watchdog, which would cost a wake-up per request: it only has to know the
shortest time-out there is, and looks at least as often. A request with a shorter one than ever
before rings.

It knows no sessions or messages.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

_logger = logging.getLogger(__name__)

LONGEST_LOOK_NS = 60_000_000_000
now_ns = time.perf_counter_ns


class Watched(Protocol):
    """What has deadlines."""

    def check(self, at_ns: int) -> int:
        """Do what is due, and return when to look again; must not block."""
        ...


class Watchdog:
    """Looks at what it is given, on a daemon thread that starts with the first of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._watched: set[Watched] = set()
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, watched: Watched) -> None:
        """Look at this from now on."""
        with self._lock:
            self._watched.add(watched)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._bell.set()

    def unwatch(self, watched: Watched) -> None:
        """Do not look at this any more."""
        with self._lock:
            self._watched.discard(watched)

    def ring(self) -> None:
        """Look now: something has a shorter deadline than before."""
        self._bell.set()

    def close(self) -> None:
        """End the thread, soon."""
        self._closed = True
        self._bell.set()

    def _run(self) -> None:
        while not self._closed:
            self._bell.clear()
            at_ns = now_ns()
            next_ns = at_ns + LONGEST_LOOK_NS
            with self._lock:
                watched = list(self._watched)
            for one in watched:
                try:
                    next_ns = min(next_ns, one.check(at_ns))
                except Exception:
                    _logger.exception("watchdog_failed watched=%r", one)
            watched.clear()
            self._bell.wait(max(0.0, (next_ns - now_ns()) / 1e9))
