"""The thread that commits: whatever came in meanwhile goes into one group (layer 7).

Knows nothing of episodes or SQLite: it is given what commits a group. The first item after a pause
is committed at once; under load there are at most `COMMITS_HZ` commits a second, so that waiting
for the disk costs next to nothing an item.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

COMMITS_HZ = 20.0
_INTERVAL_S = 1.0 / COMMITS_HZ
_MANY = 500
_TURN_S = 0.001
"""With more items queued than `_MANY`, whoever puts another lets the writer have a turn: a thread
that never waits leaves it so few that the queue grows for as long as the run lasts."""

ItemT = TypeVar("ItemT")


class GroupWriter(Generic[ItemT]):
    """Commits items in groups on a daemon thread of its own.

    Guarantees: items are committed in the order they were put, each in one group; `put` waits for
    no disk, and for a millisecond where the writer is far behind; after the first exception of
    `commit` nothing more is committed.

    Args:
        commit: Writes a group, and returns when it is on disk.
        failed: Told, on the writer's thread, what `commit` raised.
    """

    def __init__(
        self, commit: Callable[[list[ItemT]], None], failed: Callable[[Exception], None]
    ) -> None:
        self._commit = commit
        self._failed = failed
        self._queue: list[ItemT] = []
        self._num_put = 0
        self._num_done = 0
        self._is_idle = False
        self._is_hurried = False
        self._is_closing = False
        self._has_ended = False
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)
        self._done = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run, name="rollmesh-journal", daemon=True)
        self._thread.start()

    def put(self, item: ItemT) -> bool:
        """Queue an item; return False, and take nothing, after a failure or `close`."""
        with self._lock:
            if self._is_closing or self._has_ended:
                return False
            self._queue.append(item)
            self._num_put += 1
            if self._is_idle:
                self._is_idle = False
                self._came.notify()
            is_behind = len(self._queue) > _MANY
        if is_behind:
            time.sleep(_TURN_S)
        return True

    def flush(self, timeout_s: float | None) -> bool:
        """Wait until what was put so far is committed, or the writer failed.

        Returns:
            Whether it is committed.
        """
        if threading.current_thread() is self._thread:
            return False  # it cannot wait for itself
        with self._lock:
            target = self._num_put
            self._is_hurried = True
            self._came.notify()
            self._done.wait_for(lambda: self._num_done >= target or self._has_ended, timeout_s)
            return self._num_done >= target

    def close(self, timeout_s: float | None) -> bool:
        """Commit what is queued, end the thread, and return whether it has ended in time."""
        with self._lock:
            self._is_closing = True
            self._came.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._commit_all()
        finally:  # also where telling of a failure failed: nobody waits for a thread that is gone
            with self._lock:
                self._has_ended = True
                self._queue.clear()
                self._done.notify_all()

    def _commit_all(self) -> None:
        while True:
            group = self._next_group()
            if group is None:
                break
            began = time.monotonic()
            try:
                self._commit(group)
            except Exception as error:  # noqa: BLE001 - told to whoever waits
                self._failed(error)
                break
            with self._lock:
                self._num_done += len(group)
                self._done.notify_all()
                pause_s = began + _INTERVAL_S - time.monotonic()
                if pause_s > 0:
                    self._came.wait_for(lambda: self._is_hurried or self._is_closing, pause_s)
                self._is_hurried = False

    def _next_group(self) -> list[ItemT] | None:
        """Wait for items and take them all; None when there will be no more."""
        with self._lock:
            while not self._queue:
                if self._is_closing:
                    return None
                self._is_idle = True
                self._came.wait()
            self._is_idle = False
            group, self._queue = self._queue, []
            return group
