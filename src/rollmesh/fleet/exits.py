"""How a worker ended, in words that help (layer 7).

Knows exit codes, signals and the machine's own record of memory shortage; starts and ends nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollmesh.endpoint.child_process import signal_name
from rollmesh.errors import WorkerLost

_MOST_SHOWN = 10
_FRAMES_SHOWN = 4
_STACK = "Current thread"
"""Starts a stack as `faulthandler` writes it."""
_MEMORY_EVENTS = Path("/sys/fs/cgroup/memory.events")
_HINTS = {
    signal.SIGSEGV: "native code (the env, or a library it uses) read memory that is not its own; "
    "the stack says where",
    signal.SIGBUS: "native code read memory that is not there, or a disk or /dev/shm is full",
    signal.SIGABRT: "native code gave up (an assertion, or memory it could not get)",
    signal.SIGILL: "native code holds instructions that this processor does not know",
    signal.SIGFPE: "native code divided by zero",
    signal.SIGKILL: "somebody killed it: was memory short? (dmesg tells; fewer workers need less)",
    signal.SIGTERM: "somebody asked it to end",
}


@dataclass(frozen=True, kw_only=True)
class WorkerExit:
    """The end of a worker process.

    Attributes:
        code: Its exit code; below 0 the signal that ended it; None where nobody knows.
        detail: What the pool adds: a node that is gone, a job that was cancelled.
        was_out_of_memory: Whether the kernel ended a process of ours for want of memory meanwhile.
        last_lines: What it wrote last, oldest first.
    """

    code: int | None
    detail: str = ""
    was_out_of_memory: bool = False
    last_lines: tuple[str, ...] = ()

    @property
    def cause(self) -> str:
        """How it ended, in a few words: what repeats is the same cause."""
        if self.was_out_of_memory:
            return "out of memory"
        if self.code is None:
            return self.detail or "gone"
        return signal_name(-self.code) if self.code < 0 else f"exit code {self.code}"

    @property
    def sentence(self) -> str:
        """What became of it, as the end of a sentence."""
        if self.was_out_of_memory:
            return "was killed by the kernel, as memory was short"
        if self.code is None:
            return f"is gone ({self.detail})" if self.detail else "is gone"
        if self.code < 0:
            return f"died of {signal_name(-self.code)}"
        return f"exited with code {self.code}"

    @property
    def hint(self) -> str:
        """What to look at next."""
        if self.was_out_of_memory:
            return "use fewer workers, or give the machine or container more memory"
        if self.code is None:
            return ""
        if self.code < 0:
            number = -self.code
            return _HINTS.get(signal.Signals(number), "") if number in _NUMBERS else ""
        return "the env, or a library it uses, ended the process (os._exit)"


_NUMBERS = frozenset(one.value for one in signal.Signals)


def worker_lost(
    name: str, how: WorkerExit, *, worker: int, doing: str, killed_for: str = ""
) -> WorkerLost:
    """Return the fault of a worker that is gone.

    Args:
        name: What it is called: `worker 3 (pid 4711)`.
        how: Its end.
        worker: Its number.
        doing: What it was doing, as the end of a sentence.
        killed_for: Why it was killed here; "" where it was not.
    """
    if killed_for:
        text = f"{name} was killed here {doing}: {killed_for}"
        cause, hint = killed_for, ""
    else:
        text, cause, hint = f"{name} {how.sentence} {doing}", how.cause, how.hint
    if hint:
        text += f"; {hint}"
    if how.last_lines:
        lines = telling(how.last_lines)
        block = "\n".join(f"  | {line}" for line in lines)
        text += f"; it wrote last: {in_short(lines)}" + (f"\n{block}" if len(lines) > 1 else "")
    return WorkerLost(text, worker=worker, cause=cause, last_lines=how.last_lines)


def telling(lines: Sequence[str]) -> list[str]:
    """Return those of a worker's last lines that tell most.

    Of a stack that `faulthandler` wrote those are its head: the error, and where it happened.
    """
    for place, line in enumerate(lines):
        if line.startswith(_STACK):
            fatal = [one for one in lines[:place] if one.startswith("Fatal Python error")]
            return [*fatal, *lines[place : place + _MOST_SHOWN]]
    return list(lines[-_MOST_SHOWN:])


def in_short(lines: Sequence[str]) -> str:
    """Return telling lines as one: the last of them, or an error and where it happened."""
    for place, line in enumerate(lines):
        if line.startswith(_STACK):
            frames = " < ".join(one.strip() for one in lines[place + 1 : place + 1 + _FRAMES_SHOWN])
            return "; ".join([*lines[:place], frames])
    return lines[-1] if lines else ""


def out_of_memory_kills() -> int:
    """Return how many processes of this container the kernel has ended for want of memory."""
    try:
        lines = _MEMORY_EVENTS.read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    except (OSError, ValueError, IndexError):
        return 0
