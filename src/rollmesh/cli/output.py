"""The command line's own way out: two streams that user code cannot disturb (layer 9).

Envs print, replace `sys.stdout`, and write to file descriptor 1 from C. So the command keeps
duplicates of both descriptors from the start, and while it runs whatever else is written to
descriptor 1 goes to descriptor 2: standard output carries results and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Generator

STDOUT, STDERR = 1, 2


@dataclass(frozen=True)
class Output:
    """Where a command writes.

    Attributes:
        results: Results, on the real standard output.
        notes: Progress, warnings and errors, on the real standard error.
    """

    results: TextIO
    notes: TextIO

    def result(self, text: str) -> None:
        """Write a result and flush it; a reader that went away is no error of ours."""
        _write(self.results, text)

    def note(self, text: str) -> None:
        """Write a line for people."""
        _write(self.notes, text)


@contextlib.contextmanager
def own_output() -> Generator[Output]:
    """Take over the two descriptors while a command runs, and give them back."""
    stdout, stderr = sys.stdout, sys.stderr
    _flush(stdout, stderr)
    with contextlib.ExitStack() as stack:
        results = stack.enter_context(_duplicate(STDOUT))
        notes = stack.enter_context(_duplicate(STDERR))
        sent = _send_to(STDOUT, STDERR)
        sys.stdout = sys.stderr
        try:
            yield Output(results, notes)
        finally:
            _flush(sys.stdout, sys.stderr, stdout, stderr)  # before descriptor 1 is ours again
            sys.stdout, sys.stderr = stdout, stderr
            if sent:
                os.dup2(results.fileno(), STDOUT)


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
    with contextlib.suppress(OSError, ValueError):
        stream.write(text + "\n")
        stream.flush()
