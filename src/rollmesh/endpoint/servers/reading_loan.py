"""Loans: the thread of a model reads for its only client (layer 6).

A request that is read on one thread and carried out on another costs a handover, which takes longer
than a small model does. So where a model has one session, and that one has a single predict under
way, the model's thread is lent the reading: it carries out the predict, answers it, and receives
the next one itself.

The reading thread gets it back when something else than a predict came, when nothing came for a
moment, when the connection broke, or when a predict takes long: a slow model keeps nobody from
being heard.

It knows no sessions or models.
"""

from __future__ import annotations

import threading

from rollmesh.wire.messages import Message

READ_S = 0.005
"""How long a model's thread waits for the next request, before it is there for others again."""
PATIENCE_S = 0.05
"""How long a predict may take before the reading is taken back; it may take twice as long."""


class Loan:
    """One loan: `wait` is for the thread that reads, the rest for the one that it is lent to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._back = threading.Lock()
        self._back.acquire()
        self._is_reading = False
        self._calls = 0
        self._is_over = False
        self._outcome: Message | Exception | None = None

    def wait(self) -> Message | None:
        """Wait for the reading to come back; return what was received and not carried out.

        Raises:
            Exception: What receiving raised.
        """
        calls = self._calls
        while not self._back.acquire(timeout=PATIENCE_S):
            with self._lock:
                if self._is_over:
                    continue  # it is just coming back
                if self._calls == calls and not self._is_reading:
                    self._is_over = True
                    return None
                calls = self._calls
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def begin_reading(self) -> bool:
        """Begin to receive, unless the reading was taken back: then return False."""
        with self._lock:
            self._is_reading = not self._is_over
            return self._is_reading

    def end_reading(self) -> None:
        """Take note that the model is called now, which may take long."""
        self._calls += 1
        self._is_reading = False

    def give_back(self, outcome: Message | Exception | None) -> None:
        """Give the reading back with what came last; does nothing where it was taken back."""
        with self._lock:
            if not self._is_over:
                self._is_over = True
                self._outcome = outcome
                self._back.release()
