"""The token that stops a route from outside (layer 3, rule R15).

A `CancelToken` is given to whoever runs a route and kept by whoever may want to stop it. The loop
reads `reason` at the top of each iteration; engines subscribe to be woken while an operation waits.

Cancelling takes no lock: a signal handler runs between two bytecodes of the main thread, which may
be the very thread that reads, waits or subscribes, and a lock held there would never be given back.
What must happen once (the first reason, each callback) is claimed by one atomic operation of a dict
or list.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_logger = logging.getLogger(__name__)

DEFAULT_REASON = "cancelled by caller"
DRAINED = "asked to start no new episode"


class CancelToken:
    """Says whether, and why, a route is to stop.

    Guarantees: `cancel` may be called from any thread and from a signal handler, any number of
    times; the first reason wins; each subscriber is called exactly once.

    Attributes:
        reason: The first caller's words, or None while nobody has cancelled. Read it, never set it.
        draining: Whether somebody asked that no new episode starts. Read it, never set it.
        drain_reason: The words of the first who did, or None. Read it, never set it.
    """

    __slots__ = ("_first", "_followers", "_subscribers", "drain_reason", "draining", "reason")

    def __init__(self) -> None:
        self.reason: str | None = None
        self.draining = False
        self.drain_reason: str | None = None
        self._first: dict[str, str] = {}
        self._subscribers: list[_Subscriber] = []
        self._followers: list[CancelToken] = []

    @property
    def cancelled(self) -> bool:
        """Whether somebody has cancelled."""
        return self.reason is not None

    def cancel(self, reason: str = DEFAULT_REASON) -> None:
        """Ask the route to stop, and wake everybody who subscribed.

        Args:
            reason: Why, in the caller's words; ignored where somebody cancelled before.
        """
        self.reason = self._first.setdefault("reason", reason)
        self._call_subscribers()

    def drain(self, reason: str = DRAINED) -> None:
        """Ask for no new episodes: those that run may end, and so does the route then.

        Args:
            reason: Why, as the run's end is told; ignored where somebody asked before.
        """
        self.drain_reason = self._first.setdefault("drain", reason)
        self.draining = True
        for follower in tuple(self._followers):
            follower.drain(reason)

    @contextlib.contextmanager
    def follower(self) -> Generator[CancelToken, None, None]:
        """Give a token that is stopped with this one, and by itself without this one."""
        own = CancelToken()
        self._followers.append(own)
        unsubscribe = self.subscribe(lambda: own.cancel(self.reason or DEFAULT_REASON))
        if self.drain_reason is not None:
            own.drain(self.drain_reason)
        try:
            yield own
        finally:
            unsubscribe()
            self._followers.remove(own)

    def subscribe(self, fn: Callable[[], object]) -> Callable[[], None]:
        """Call `fn()` once on cancel, at once if that has happened; return what takes it back.

        `fn` runs on the thread that cancels, perhaps in a signal handler: it should wake something
        and return. What it raises is logged. The returned function may be called at any time, more
        than once; a call of `fn` that has begun is not undone.
        """
        subscriber = _Subscriber(fn)
        self._subscribers.append(subscriber)
        if self.reason is not None:
            self._call_subscribers()

        def unsubscribe() -> None:
            try:
                self._subscribers.remove(subscriber)
            except ValueError:
                _logger.debug("cancel.unsubscribe: already called or taken back")

        return unsubscribe

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a cancel, at most `timeout_s` (None: no limit); return whether it came."""
        if self.reason is None:
            gate = threading.Lock()  # opened by its one subscriber: never contended, signal-safe
            gate.acquire()
            unsubscribe = self.subscribe(gate.release)
            try:
                gate.acquire(timeout=_lock_timeout(timeout_s))
            finally:
                unsubscribe()
        return self.reason is not None

    def _call_subscribers(self) -> None:
        """Call everybody still on the list; taking one off the list claims the call."""
        while True:
            try:
                subscriber = self._subscribers.pop(0)
            except IndexError:
                return
            try:
                subscriber.fn()
            except Exception:
                _logger.exception("cancel.subscriber_failed fn=%r", subscriber.fn)

    def __repr__(self) -> str:
        return f"CancelToken(reason={self.reason!r})"


class _Subscriber:
    """One subscription, compared by identity so that equal functions are kept apart."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[], object]) -> None:
        self.fn = fn


def _lock_timeout(timeout_s: float | None) -> float:
    """Return a timeout as `Lock.acquire` takes it: -1 waits without limit."""
    if timeout_s is None:
        return -1
    return min(max(timeout_s, 0.0), threading.TIMEOUT_MAX)
