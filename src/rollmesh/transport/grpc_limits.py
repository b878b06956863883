"""gRPC: deadlines of waits that grpc gives none (layer 5).

One thread looks after all of them in the process. Beginning a wait takes no lock unless its
deadline comes before every other; ending one in time costs nothing. A wait that lasts is also
looked at on the way to its deadline (`look_at`).

Knows no streams.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol


class Watched(Protocol):
    """What may wait too long.

    Attributes:
        expiry: When the wait is late, on the monotonic clock; infinite where nothing waits.
        look_at: When to look at it before that; infinite for never.
    """

    expiry: float
    look_at: float

    def look(self, now: float) -> None:
        """Look at a wait that lasts, and set `look_at` anew."""
        ...

    def expire(self, expiry: float) -> None:
        """End the wait that was to end by `expiry`."""
        ...


class Watchdog:
    """Looks after deadlines; its thread starts with the first of them."""

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._condition = threading.Condition(threading.Lock())
        self._next = math.inf
        self._hurried = math.inf
        self._thread: threading.Thread | None = None

    def watch(self, stream: Watched) -> None:
        """Look after a stream from now on."""
        with self._condition:
            self._streams.add(stream)
            if self._thread is None or not self._thread.is_alive():
                self._next = self._hurried = math.inf
                self._thread = threading.Thread(
                    target=self._run, name="rollmesh gRPC deadlines", daemon=True
                )
                self._thread.start()

    def arm(self, stream: Watched, expiry: float) -> None:
        """Begin a wait. No lock is taken unless this deadline comes before every other."""
        stream.expiry = expiry
        look_at = stream.look_at
        due = min(look_at, expiry)
        if due < self._next:
            with self._condition:
                self._hurried = min(self._hurried, due)
                self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._next = math.inf  # from here on, whoever begins a wait says so
                streams = list(self._streams)
            now, earliest = time.monotonic(), math.inf
            for stream in streams:
                expiry = stream.expiry
                if expiry <= now:
                    with contextlib.suppress(Exception):
                        stream.expire(expiry)
                    continue
                if stream.look_at <= now:
                    with contextlib.suppress(Exception):
                        stream.look(now)
                earliest = min(earliest, expiry, stream.look_at)
            del streams
            stream = None
            with self._condition:
                self._next = min(earliest, self._hurried)
                self._hurried = math.inf
                left_s = self._next - time.monotonic()
                if left_s > 0:
                    self._condition.wait(None if math.isinf(left_s) else min(left_s, 3600.0))


WATCHDOG = Watchdog()
"""The one of this process."""


class Limit:
    """A limit on something else than a stream's receive: `arm`, do it, `disarm`.

    Args:
        cut: Ends what is under way; called from another thread.

    Attributes:
        expiry: When it is late, on the monotonic clock; infinite where nothing is under way.
        is_late: Whether it was cut.
    """

    def __init__(self, cut: Callable[[], None]) -> None:
        self.expiry = self.look_at = math.inf
        self.is_late = False
        self._cut = cut
        WATCHDOG.watch(self)

    def arm(self, expiry: float) -> None:
        """Begin."""
        WATCHDOG.arm(self, expiry)

    def disarm(self) -> None:
        """It is over."""
        self.expiry = math.inf

    def look(self, now: float) -> None:
        """Nothing is there to be looked at."""

    def expire(self, expiry: float) -> None:
        """Cut what was to end by `expiry`."""
        if self.expiry == expiry:
            self.is_late = True
            self._cut()
