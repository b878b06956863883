"""The command line's own way out: two streams that user code cannot disturb (layer 9).

Envs print, replace `sys.stdout`, and write to file descriptor 1 from C. So the command keeps
duplicates of both descriptors from the start, and while it runs whatever else is written to
descriptor 1 goes to descriptor 2: standard output carries results and nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Generator

STDOUT, STDERR = 1, 2


class OutputError(Exception):
    """Standard output took no result, as on a full disk; it has been told."""


@dataclass(frozen=True)
class Output:
    """Where a command writes.

    Attributes:
        results: Results, on the real standard output.
        notes: Progress, warnings and errors, on the real standard error.
    """

    results: TextIO
    notes: TextIO
    _troubles: list[OSError] = field(default_factory=list["OSError"], repr=False)

    @property
    def is_lost(self) -> bool:
        """Whether a result could not be written although somebody may wait for it."""
        return bool(self._troubles)

    def result(self, text: str) -> None:
        """Write a result and flush it; a reader that went away is no error of ours."""
        try:
            _write(self.results, text)
        except OSError as error:
            # also a pipe that nobody reads, or a terminal that was closed
            if isinstance(error, ConnectionError) or error.errno == errno.EIO:
                return
            if not self.is_lost:
                self.note(f"error: standard output cannot be written: {error.strerror}")
            self._troubles.append(error)

    def note(self, text: str) -> None:
        """Write a line for people."""
        with contextlib.suppress(OSError):
            _write(self.notes, text)


@contextlib.contextmanager
def own_output() -> Generator[Output]:
    """Take over the two descriptors while a command runs, and give them back.

    Raises:
        OutputError: A result could not be written.
    """
    stdout, stderr = sys.stdout, sys.stderr
    _flush(stdout, stderr)
    with contextlib.ExitStack() as stack:
        results = stack.enter_context(_duplicate(STDOUT))
        notes = stack.enter_context(_duplicate(STDERR))
        sent = _send_to(STDOUT, STDERR)
        sys.stdout = sys.stderr
        output = Output(results, notes)
        try:
            yield output
        finally:
            _flush(sys.stdout, sys.stderr, stdout, stderr)  # before descriptor 1 is ours again
            sys.stdout, sys.stderr = stdout, stderr
            if sent:
                os.dup2(results.fileno(), STDOUT)
        if output.is_lost:
            raise OutputError


@contextlib.contextmanager
def _duplicate(descriptor: int) -> Generator[TextIO]:
    try:
        number = os.dup(descriptor)
    except OSError:  # closed by whoever started us
        number = os.open(os.devnull, os.O_WRONLY)
    stream = os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace")
    try:
        yield stream
    finally:
        with contextlib.suppress(OSError):
            stream.close()


def _send_to(source: int, target: int) -> bool:
    try:
        os.fstat(source)
        os.dup2(target, source)
    except OSError:
        return False
    return True


def _flush(*streams: TextIO | None) -> None:
    for stream in streams:
        if stream is None:
            continue
        with contextlib.suppress(Exception):  # replaced by user code, or closed
            stream.flush()


def _write(stream: TextIO, text: str) -> None:
    with contextlib.suppress(ValueError):  # it was closed
        stream.write(text + "\n")
        stream.flush()
