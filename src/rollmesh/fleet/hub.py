"""The hub: all connections to workers, read by the one thread that waits for them (layer 7).

Whoever drives the lanes sends right there and waits here; an answer is read and handed over on that
very thread, so that a step costs no handover between threads. Other threads (the door, a pool, a
served env) leave what they have to say in the hub's post, which the waiting thread carries out:
so nothing of a fleet is touched by two threads at once.

Where cores are free the hub looks again for a moment before it sleeps (`transport.spin`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from rollmesh.transport.spin import Spinner

_logger = logging.getLogger(__name__)

_clock_ns = time.perf_counter_ns


class Readable(Protocol):
    """A connection in the hub."""

    def read(self) -> None:
        """Read what is there and hand it over. On the thread that waits."""
        ...


class Hub:
    """Waits for many connections at once.

    One thread at a time may wait, and add or remove connections; any may `post` and `wake`.

    Args:
        processes: How many processes are busy at once: whether spinning can pay.
    """

    def __init__(self, processes: int) -> None:
        self._poll, self._unit = _poller()
        self._readers: dict[int, Callable[[], None]] = {}
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)
        self._poll.register(self._wake, select.POLLIN)
        self._post: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._timers: dict[object, tuple[float, Callable[[], None]]] = {}
        self._spinner = Spinner("auto", processes=processes)
        self._is_closed = False
        # a late `wake` must not write into what took the number of the pipe; handlers may be inside
        self._closing = threading.RLock()

    def add(self, sock: socket.socket, connection: Readable) -> None:
        """Read a connection from here on."""
        fd = sock.fileno()
        self._readers[fd] = connection.read
        self._poll.register(fd, select.POLLIN)

    def remove(self, sock: socket.socket) -> None:
        """Read it no longer; before it is closed."""
        fd = sock.fileno()
        if self._readers.pop(fd, None) is not None:
            with contextlib.suppress(KeyError, OSError):
                self._poll.unregister(fd)

    def post(self, call: Callable[[], None]) -> None:
        """Have a call made by the thread that waits. Any thread may."""
        self._post.put(call)
        self.wake()

    def wake(self) -> None:
        """End a wait, the one under way or the next. Any thread may, also a signal handler."""
        with self._closing:
            if not self._is_closed:
                with contextlib.suppress(OSError):  # it is full, which is as good
                    os.write(self._waker, b"!")

    def call_after(self, key: object, delay_s: float | None, call: Callable[[], None]) -> None:
        """Make a call in so many seconds, unless `cancel(key)` comes first. None is never."""
        if delay_s is not None:
            self._timers[key] = time.monotonic() + delay_s, call

    def cancel(self, key: object) -> None:
        """Do not make that call."""
        self._timers.pop(key, None)

    def wait(self, timeout_s: float) -> None:
        """Hand over what has come; where nothing has, wait for it, at most so long.

        Guarantees: however busy the post is, each wait looks at all connections and timers.
        """
        if not self._post.empty():
            self._take_post()
            timeout_s = 0.0
        elif self._timers:
            timeout_s = self._until_due(timeout_s)
        for fd, _ in self._ready(timeout_s):
            reader = self._readers.get(fd)
            if reader is not None:
                reader()
            elif fd == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
        if not self._post.empty():
            self._take_post()
        if self._timers:
            self._take_due()

    def close(self) -> None:
        """Let go of everything; the post is not carried out any more."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            self._readers.clear()
            if hasattr(self._poll, "close"):
                self._poll.close()
            os.close(self._wake)
            os.close(self._waker)

    def _ready(self, timeout_s: float) -> list[tuple[int, int]]:
        poll, spinner = self._poll.poll, self._spinner
        if timeout_s <= 0:
            return poll(0)
        begun = _clock_ns()
        if begun < spinner.resume_ns:
            return poll(timeout_s * self._unit)
        stop = begun + min(spinner.budget_ns, int(timeout_s * 1e9))
        hit = True
        ready = poll(0)
        while not ready:
            if _clock_ns() > stop:
                hit = False
                ready = poll(timeout_s * self._unit)
                break
            ready = poll(0)
        spinner.note(_clock_ns() - begun, hit=hit)
        return ready

    def _take_post(self) -> None:
        for _ in range(self._post.qsize()):  # not what comes meanwhile: that may never end
            _make(self._post.get())

    def _until_due(self, timeout_s: float) -> float:
        left_s = min(when for when, _ in self._timers.values()) - time.monotonic()
        return max(0.0, min(timeout_s, left_s))

    def _take_due(self) -> None:
        now = time.monotonic()
        for key, (when, call) in list(self._timers.items()):
            if when <= now and self._timers.pop(key, None) is not None:
                _make(call)


def _make(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        _logger.exception("call_failed")


def _poller() -> tuple[Any, float]:
    """Return what waits for descriptors, and its unit of time in a second."""
    if hasattr(select, "epoll"):
        return select.epoll(), 1.0
    return select.poll(), 1000.0
