"""Notices what a replica was asked and has not answered within its limit (layer 6).

Part of `replicas.py`, which says what is late and what comes of it. A request costs no wake-up
here: nothing that is asked from now on can be late sooner than the shortest limit from now, so a
look that often is enough. Knows nothing of requests, replicas or episodes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_logger = logging.getLogger(__name__)

Look = Callable[[int], "int | None"]
"""Deals with what is late at a time, and returns when the next of the others is; in nanoseconds."""

now_ns = time.monotonic_ns


class LateWatch:
    """Looks when something may be late, on a daemon thread that starts with the first limit.

    Args:
        look: Called on that thread; what it raises is logged.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._shortest_ns = 0
        self._is_over = False
        self._thread: threading.Thread | None = None

    def heed(self, limit_ns: int) -> None:
        """Take note of a limit, before something is asked under it."""
        if 0 < self._shortest_ns <= limit_ns:
            return
        with self._lock:
            if self._is_over or 0 < self._shortest_ns <= limit_ns:
                return
            self._shortest_ns = limit_ns
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="rollmesh-replica-watch", daemon=True
                )
                self._thread.start()
        self._bell.set()

    def stop(self) -> None:
        """End the thread; nothing is late from now on."""
        with self._lock:
            self._is_over = True
        self._bell.set()

    def _run(self) -> None:
        while not self._is_over:
            self._bell.clear()
            pause_ns = self._shortest_ns
            try:
                next_ns = self._look(now_ns())
            except Exception:
                _logger.exception("replica_watch_failed (it goes on)")
            else:
                if next_ns is not None:
                    pause_ns = min(pause_ns, next_ns - now_ns())
            if not self._is_over and pause_ns > 0:
                self._bell.wait(pause_ns * 1e-9)
