"""The guard: ends what workers started, also when nobody is left to do so (layer 7).

A worker, and whatever it starts, carries a mark in its environment, in a session of its own or not.
`sweep` kills all that carry one. `python guard.py PID MARK` waits until its standard input ends or
the process PID does, and sweeps: so a driver that was killed leaves nothing behind.

It is run as a file, without the package: it must be small, and start at once. Where there is no
`/proc`, workers see to themselves what they can (`child_process`).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

VARIABLE = "ROLLMESH_WORKER"
"""Holds the marks, one for each fleet that a process is part of, separated by spaces."""

_PROCESSES = "/proc"
_MOST_ROUNDS = 50
_READ_BYTES = 2**17


def can_sweep() -> bool:
    """Return whether the system tells which processes carry a mark."""
    return os.access(f"{_PROCESSES}/self/environ", os.R_OK)


def marked(mark: str) -> list[int]:
    """Return the processes that carry a mark, or one that continues it after a dot."""
    if not can_sweep():
        return []
    wanted = mark.encode()
    return [
        int(name)
        for name in os.listdir(_PROCESSES)  # noqa: PTH208 - see the module
        if name.isdigit()
        and any(one == wanted or one.startswith(wanted + b".") for one in _marks(name))
    ]


def sweep(mark: str) -> int:
    """Kill the processes that carry a mark until none is left; return how many there were."""
    killed: set[int] = set()
    for _ in range(_MOST_ROUNDS):  # one that forks may be faster than a single look
        left = [pid for pid in marked(mark) if pid != os.getpid()]
        if not left:
            break
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # it has ended meanwhile
                continue
            killed.add(pid)
    return len(killed)


def main() -> None:
    """Wait until the driver lets go or is gone, and sweep."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends after the driver, whatever asks both
    parent, mark = int(sys.argv[1]), sys.argv[2]
    watched = [0]
    with contextlib.suppress(AttributeError, OSError):  # not on this system, or it has ended
        # others may hold the pipe that is our standard input: forks of the driver
        watched.append(os.pidfd_open(parent))  # pyright: ignore[reportAttributeAccessIssue]
    if os.getppid() == parent:
        select.select(watched, [], [])
    sweep(mark)


def _marks(process: str) -> list[bytes]:
    """Return the marks that a process was started with; none where it has ended or is another's."""
    start = VARIABLE.encode() + b"="
    try:
        descriptor = os.open(f"{_PROCESSES}/{process}/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    data = b""
    try:
        while part := os.read(descriptor, _READ_BYTES):
            data += part
    except OSError:
        return []
    finally:
        os.close(descriptor)
    for entry in data.split(b"\0"):
        if entry.startswith(start):
            return entry[len(start) :].split()
    return []


if __name__ == "__main__":
    main()
