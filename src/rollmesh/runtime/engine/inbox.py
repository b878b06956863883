"""The one place where an engine waits: items from any thread, in order, with a time-out.

A raw lock is the doorbell of a deque: half the cost of `SimpleQueue` between two threads, and `put`
is safe in a signal handler, which may run in the middle of a `get` of the same thread.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue with one reader and any number of writers."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._bell = threading.Lock()
        self._bell.acquire()

    def put(self, item: T) -> None:
        """Add an item and wake the reader."""
        self._items.append(item)
        try:
            self._bell.release()
        except RuntimeError:  # it rings already; the reader looks at all items when it wakes
            return

    def get(self, timeout_s: float | None) -> T | None:
        """Return the next item, or None when none came within `timeout_s` (None waits for ever)."""
        items = self._items
        if items:
            return items.popleft()
        limit = -1.0 if timeout_s is None else max(0.0, min(timeout_s, threading.TIMEOUT_MAX))
        while self._bell.acquire(timeout=limit):
            if items:
                return items.popleft()
        return items.popleft() if items else None
