"""The thread that pushes telemetry windows while a route runs (layer 3, rule R39).

A `Ticker` knows nothing of telemetry or hooks: it calls `push` once per interval and `watch` about
every 50 ms, also while the route is parked in an operation that hangs. What they raise is logged.
"""

from __future__ import annotations

import logging
import math
import threading
from typing import TYPE_CHECKING

from rollmesh.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger(__name__)

SHORTEST_INTERVAL_NS = 1_000_000
WATCH_INTERVAL_NS = 50_000_000


class Beat:
    """When something is due that happens once per interval; reads no clock itself.

    Guarantees: first due one full interval after the start; ticks that were missed are skipped,
    and later ones stay on the grid of the first.
    """

    def __init__(self, interval_ns: int, now_ns: int) -> None:
        self._interval_ns = interval_ns
        self.due_ns = now_ns + interval_ns

    def strikes(self, now_ns: int) -> bool:
        """Return whether it is due, and if so move on to the next moment after `now_ns`."""
        late_ns = now_ns - self.due_ns
        if late_ns < 0:
            return False
        self.due_ns += (late_ns // self._interval_ns + 1) * self._interval_ns
        return True


class Ticker:
    """Calls `push` once per interval on a daemon thread of its own.

    Guarantees: the first push comes after one full interval; no push begins after `pause` or `stop`
    was called; a push that raises is one warning, and ticking goes on; the thread never keeps the
    process alive.
    """

    def __init__(
        self,
        interval_s: float | None,
        push: Callable[[], object],
        watch: Callable[[], object] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Prepare a ticker; `start` starts it.

        Args:
            interval_s: Seconds between pushes; less than 1 ms counts as 1 ms; None, 0 and infinity
                are no pushes.
            push: Called once per interval.
            watch: Called about every 50 ms, whatever the interval, and also after `pause`.
            clock: Tells the time.
        """
        seconds = interval_s or 0.0
        has_pushes = 0 < seconds < math.inf
        self._push = push if has_pushes else None
        self._interval_ns = max(SHORTEST_INTERVAL_NS, int(seconds * 1e9)) if has_pushes else 0
        self._watch = watch
        self._clock = clock
        self._stopping = threading.Event()
        self._is_paused = False
        self._thread: threading.Thread | None = None

    @property
    def is_paused(self) -> bool:
        """Whether no further push will begin; a slow push may ask before it reaches a hook."""
        return self._is_paused

    def start(self) -> None:
        """Start ticking, unless there is nothing to call.

        Raises:
            RuntimeError: The ticker was started before.
        """
        if self._thread is not None:
            raise RuntimeError("this ticker was started before; make a new one")
        self._thread = threading.Thread(target=self._run, name="rollmesh-ticker", daemon=True)
        if self._push or self._watch:
            self._thread.start()

    def pause(self) -> None:
        """Let no further push begin, and return at once; `watch` goes on."""
        self._is_paused = True

    def stop(self, timeout_s: float | None) -> bool:
        """Stop ticking and wait for a call under way, at most `timeout_s` seconds (None: no limit).

        A Ctrl-C ends the wait, and nothing else: the route is over.

        Returns:
            Whether nothing is under way any more.
        """
        self._is_paused = True
        self._stopping.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread() or not thread.is_alive():
            return True
        try:
            thread.join(None if timeout_s is None else max(0.0, timeout_s))
        except KeyboardInterrupt:  # CPython may then take a running thread for an ended one
            return False
        return not thread.is_alive()

    def _run(self) -> None:
        now_ns = self._clock.monotonic_ns
        push, watch = self._push, self._watch
        push_beat = Beat(self._interval_ns, now_ns()) if push else None
        watch_beat = Beat(WATCH_INTERVAL_NS, now_ns()) if watch else None
        beats = [beat for beat in (push_beat, watch_beat) if beat]
        while not self._stopping.wait(_until(beats, now_ns())):
            if watch and watch_beat and watch_beat.strikes(now_ns()):
                _call("watch", watch)
            if push and push_beat and push_beat.strikes(now_ns()) and not self._is_paused:
                _call("push", push)


def _until(beats: list[Beat], now_ns: int) -> float:
    """Return the seconds until the first of them is due, no longer than a wait may be."""
    wait_ns = min(beat.due_ns for beat in beats) - now_ns
    return min(max(0, wait_ns) / 1e9, threading.TIMEOUT_MAX)


def _call(name: str, fn: Callable[[], object]) -> None:
    try:
        fn()
    except (Exception, SystemExit):  # on a thread of our own, SystemExit would end it unseen
        _logger.warning("ticker.%s_failed (ticking goes on)", name, exc_info=True)
