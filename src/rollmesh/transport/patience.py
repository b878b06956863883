"""Patience: reading from a stream by a deadline, awake for a moment where that pays (layer 5).

There are two waits. The first bytes of a message come when the peer has something to say, maybe in
an hour: a spin that measures itself (`spin.py`), then sleep. The rest of a message is on its way
already. Either way what is there is read at once, and the deadline is exact.

It knows bytes, and nothing of what they mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rollmesh.transport.spin import Spinner
from rollmesh.transport.stream import Stream

_PROMPT_NS = 8_000
"""A wait that took no longer was none: the next message may be there at once, too."""
_clock_ns = time.perf_counter_ns
_clock = time.monotonic


class Late(Exception):  # noqa: N818 - never leaves a connection
    """The deadline is over."""


class PatientReader:
    """Reads what comes over a stream. For one thread at a time.

    A deadline (`expiry`) is a time of `time.monotonic()`; None is none.

    Args:
        stream: What to read from.
        spinner: Decides whether to look again for a moment before sleeping.
    """

    def __init__(self, stream: Stream, spinner: Spinner) -> None:
        self._stream = stream
        self._spinner = spinner
        self._is_prompt = False

    def first(
        self,
        read: Callable[[Any], int],
        take: Callable[[Any], int],
        target: Any,
        expiry: float | None,
    ) -> int:
        """Read the first bytes of a message: spin where that pays, then wait.

        Args:
            read: Reads what is there into the target: `Stream.read` or `Stream.read_many`.
            take: The same, and waits for it: `Stream.take` or `Stream.take_many`.
            target: One buffer, or several.
            expiry: The deadline.

        Returns:
            How many bytes came, one at least.

        Raises:
            Late: The deadline is over.
            EOFError: The peer closed the connection.
            OSError: The connection broke.
        """
        begun = _clock_ns()
        if begun >= self._spinner.resume_ns:
            count = self._spin(read, target, begun, expiry)
        elif expiry is None:
            count = take(target)
        else:
            count = self._wait_first(read, target, expiry)
        if not count:
            raise EOFError("the peer closed the connection")
        return count

    def rest(self, target: memoryview, expiry: float | None, least: int = 1) -> int:
        """Read more of a message, which the peer is sending now.

        Args:
            target: Where to.
            expiry: The deadline.
            least: So much is to come at least.

        Returns:
            How many bytes came, one at least, and fewer than `least` where more follow.

        Raises:
            Late: The deadline is over.
            EOFError: The peer closed the connection.
            OSError: The connection broke.
        """
        read, spinner = self._stream.read, self._spinner
        stop = 0
        while True:
            try:
                count = read(target)
                break
            except BlockingIOError:
                now = _clock_ns()
                stop = stop or now + spinner.budget_ns
                if now < spinner.resume_ns or now > stop:
                    self.wait(expiry, least)
        if not count:
            raise EOFError("the peer closed the connection in the middle of a message")
        return count

    def wait(self, expiry: float | None, least: int = 1) -> None:
        """Sleep until there is something to read, or the end; see `Stream.wait`.

        Raises:
            Late: The deadline is over.
        """
        left_s = None if expiry is None else max(0.0, expiry - _clock())
        if not self._stream.wait(left_s, least):
            raise Late

    def _wait_first(self, read: Callable[[Any], int], target: Any, expiry: float) -> int:
        """Read the first bytes, sleeping until they come."""
        if self._is_prompt:
            try:
                return read(target)
            except BlockingIOError:
                self._is_prompt = False
        wait, left_s = self._stream.wait, expiry - _clock()
        begun = _clock_ns()
        while True:
            if not wait(left_s if left_s > 0 else 0.0):
                raise Late
            self._is_prompt = _clock_ns() - begun < _PROMPT_NS
            try:
                return read(target)
            except BlockingIOError:  # said to be there, and is not
                left_s = expiry - _clock()

    def _spin(
        self, read: Callable[[Any], int], target: Any, begun: int, expiry: float | None
    ) -> int:
        """Read the first bytes, looking again and again before sleeping."""
        spinner = self._spinner
        stop = begun + spinner.budget_ns
        hit = True
        while True:
            try:
                count = read(target)
                break
            except BlockingIOError:
                if not hit or _clock_ns() > stop:
                    hit = False
                    self.wait(expiry)
        spinner.note(_clock_ns() - begun, hit=hit)
        return count
