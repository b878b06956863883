"""Hooks that are called on a thread of their own (layer 3, rule R33).

`BackgroundHooks` puts a queue between a route and a slow observer. It is itself a hooks object: the
route calls it like any other, and it hands on what the observer inside wants.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from rollmesh.runtime.hooks import EVENTS, STEP_EVENTS, TRANSFORMS, Dispatcher, Hooks, overridden

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from rollmesh.runtime.hooks import Observer

_logger = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""How long `flush` and `close` wait unless told otherwise."""

_CROWDED = 16
"""A queue this many times as long as its bound is worth a warning."""


class BackgroundHooks(Hooks):
    """Calls another hooks object from a daemon thread, so that its slowness holds no route.

    Events of every step are dropped while the queue is full, and counted. All others are always
    taken: the queue grows by them if the hooks object is slower than they come. Transforms stay
    where they are, on the route's thread. Only what the inner object overrides is handed on.

    Guarantees: events are handed on in the order they came, one at a time; a dropped event is
    counted exactly once; the process can exit at any moment, and what is queued then is lost:
    call `close`, or use it as a context manager, to have everything handed on.

    Raises:
        TypeError: `hooks` is no hooks object.
        ValueError: `max_queue` is less than 1.
    """

    def __init__(self, hooks: object, max_queue: int = 1024) -> None:
        """Wrap a hooks object.

        Args:
            hooks: What to call in the background.
            max_queue: Number of queued events from which on events of every step are dropped.
        """
        if max_queue < 1:
            raise ValueError(f"max_queue wants 1 or more, got {max_queue!r}")
        self._max_queue = max_queue
        self._queue: deque[tuple[Observer, Any]] = deque()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._taken = 0
        self._handed_on = 0
        self._dropped: dict[str, int] = dict.fromkeys(STEP_EVENTS, 0)
        self._is_closing = False
        self._has_warned = False
        self._thread: threading.Thread | None = None
        inner = Dispatcher([hooks])
        for name in EVENTS:
            emit: Observer | None = getattr(inner, name)
            if emit is not None:
                setattr(self, name, self._queued(name, emit))
        for name in TRANSFORMS:
            transform = overridden(hooks, name)
            if transform is not None:
                setattr(self, name, transform)

    @property
    def dropped(self) -> dict[str, int]:
        """How many events were dropped, per event name (a copy)."""
        with self._changed:
            return dict(self._dropped)

    def flush(self, timeout_s: float | None = PATIENCE_S) -> bool:
        """Wait until what was taken so far is handed on; at most `timeout_s`, None is no limit.

        Returns:
            Whether it was; always False on the background thread itself, which cannot wait for
            what it is doing.
        """
        with self._changed:
            if threading.current_thread() is self._thread:
                return False
            target = self._taken
            return self._changed.wait_for(lambda: self._handed_on >= target, timeout_s)

    def close(self, timeout_s: float | None = PATIENCE_S) -> bool:
        """Hand on what is queued and end the thread; wait at most `timeout_s`, None is no limit.

        Where that does not suffice, the rest is still handed on while the process lives.
        May be called again, and the object may be used again: the next event starts a new thread.

        Returns:
            Whether the thread has ended.
        """
        with self._changed:
            if threading.current_thread() is self._thread:
                return False
            self._is_closing = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._thread is None, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self.close():
            with self._changed:
                left = self._taken - self._handed_on
            _logger.warning(
                "background_hooks.close_timed_out timeout_s=%s left=%d (handed on while the "
                "process lives; a hook hangs or is slow)",
                PATIENCE_S,
                left,
            )

    # ------------------------------------------------------------------------------ the queue

    def _queued(self, name: str, emit: Observer) -> Callable[[Any], None]:
        """Return what the route calls for an event."""
        may_drop = name in STEP_EVENTS

        def take(event: Any) -> None:
            with self._lock:  # the lock of `_changed`, taken without its Python-level detour
                length = len(self._queue)
                if may_drop and length >= self._max_queue:
                    self._dropped[name] += 1
                    return
                self._queue.append((emit, event))
                self._taken += 1
                self._is_closing = False
                if self._thread is None:
                    self._start()
                elif length == 0:
                    self._changed.notify_all()
            if length >= _CROWDED * self._max_queue and not self._has_warned:
                self._has_warned = True
                _logger.warning(
                    "background_hooks.crowded queued=%d max_queue=%d (the hooks are slower than "
                    "the episodes; memory grows)",
                    length,
                    self._max_queue,
                )

        return take

    def _start(self) -> None:
        self._thread = threading.Thread(
            target=self._run, name="rollmesh-background-hooks", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        """Hand on events until closed; the inner dispatcher logs what they raise."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closing)
                if not self._queue:
                    self._thread = None
                    self._changed.notify_all()
                    return
                emit, event = self._queue.popleft()
            try:
                emit(event)
            except BaseException:  # nobody else would see it, and the queue must go on
                _logger.exception("background_hooks.failed (the thread goes on)")
            with self._changed:
                self._handed_on += 1
                self._changed.notify_all()
