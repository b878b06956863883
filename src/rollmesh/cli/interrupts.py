"""Ctrl-C and SIGTERM: the first stops the run, the second does not wait (layer 9).

The first signal starts no new episode. Running ones get the grace that the command gives them, none
in process, and are then cancelled; closing what was built is then bounded by the close limit. While
the env or model is still being built there is nothing to cancel: the signal interrupts the wait.
The second signal ends the process without waiting for anything, once what had finished was printed.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from rollmesh.cli import exit_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from rollmesh.runtime.cancel import CancelToken

_REASONS: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_DRAINS: dict[int, str] = {
    signal.SIGINT: "interrupted (Ctrl-C)",
    signal.SIGTERM: "terminated (SIGTERM)",
}
_CODES: dict[int, int] = {
    signal.SIGINT: exit_codes.INTERRUPTED,
    signal.SIGTERM: exit_codes.TERMINATED,
}


class Interrupts:
    """What signals came.

    Attributes:
        exit_code: The code the process ends with, or None while no signal came.
        is_running: Set while a route runs and can be cancelled.
        is_printing: Set once the result is on its way out: then signals only change the exit code.
    """

    def __init__(
        self,
        cancel: CancelToken,
        give_up: Callable[[int], None],
        grace_s: float = 0.0,
        *,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._grace_s = grace_s
        self._tell = tell
        self._over = _thread.allocate_lock()  # given back once the run is over
        self._over.acquire()
        self._cancel = cancel
        self._give_up = give_up
        self._process = os.getpid()
        self.exit_code: int | None = None
        self.is_running = False
        self.is_printing = False

    def on_signal(self, number: int, _frame: Any) -> None:
        """Cancel the run; the second time, give up."""
        if os.getpid() != self._process:
            _as_if_unhandled(number)
            return
        code = _CODES[number]
        if self.is_printing:
            self.exit_code = self.exit_code or code
            return
        if self.exit_code is not None:
            self.is_printing = True
            self._give_up(self.exit_code)
            return
        self.exit_code = code
        if self._grace_s > 0 and self.is_running:
            self._cancel.drain(f"{_DRAINS[number]}: started no new episode")
            if self._tell is not None:
                self._tell(
                    f"{_REASONS[number]}: no new episode starts, running ones have "
                    f"{self._grace_s:g} s to end; once more ends the run at once"
                )
            # `threading` takes a lock to start one, which the code interrupted here may hold
            _thread.start_new_thread(self._end_grace, (_REASONS[number],))
            return
        self._cancel.cancel(_REASONS[number])
        if not self.is_running:
            raise KeyboardInterrupt

    def forget(self) -> None:
        """End the grace without a cancel: the run is over."""
        if self._over.locked():
            self._over.release()

    def _end_grace(self, reason: str) -> None:
        """Cancel the run when the grace is over and it is not."""
        if not self._over.acquire(timeout=min(self._grace_s, threading.TIMEOUT_MAX)):
            self._cancel.cancel(reason)

    # ----------------------------------------------------------------- as a hooks object

    def session_started(self, _event: Any) -> None:
        """Take note that there is a route to cancel."""
        self.is_running = True


def _as_if_unhandled(number: int) -> None:
    """Do what a signal does to a process that handles none.

    The workers of a vector env may be forks of this process and inherit its handlers; the run is
    not theirs to cancel, nor the result theirs to print.
    """
    if number == signal.SIGINT:
        signal.signal(number, signal.default_int_handler)
        raise KeyboardInterrupt
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@contextlib.contextmanager
def watch(
    cancel: CancelToken,
    give_up: Callable[[int], None],
    grace_s: float = 0.0,
    *,
    tell: Callable[[str], None] | None = None,
) -> Generator[Interrupts]:
    """Handle SIGINT and SIGTERM while a run is on; elsewhere than on the main thread, do nothing.

    Args:
        cancel: Cancelled by the first signal.
        give_up: Called with the exit code by the second one; it must not return.
        grace_s: How long running episodes may go on after the first one, in seconds.
        tell: Called in the signal handler with a line for people where there is a grace.
    """
    interrupts = Interrupts(cancel, give_up, grace_s, tell=tell)
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = {number: signal.signal(number, interrupts.on_signal) for number in _CODES}
    try:
        yield interrupts
    finally:
        # After a signal the process is on its way out: another one must not change its exit code,
        # not even while the interpreter shuts down, which takes Python's own handlers away.
        interrupts.forget()
        over = interrupts.exit_code is not None
        for number, handler in before.items():
            known = signal.SIG_DFL if handler is None else handler
            signal.signal(number, signal.SIG_IGN if over else known)
