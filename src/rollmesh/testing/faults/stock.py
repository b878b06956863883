"""What a process holds: taken before and after, to find what was left behind (layer 7).

    before = take_stock(folders=[tmp_path])
    …
    assert not left_behind(before, folders=[tmp_path])

Counted are processes started from here (and theirs), socket files in folders, descriptors, shared
memory by name and by descriptor, and threads. Linux tells all of it; elsewhere what cannot be read
is empty.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

_SHARED = Path("/dev/shm")  # noqa: S108 - only listed
_POLL_S = 0.01


@dataclass(frozen=True, kw_only=True)
class Stock:
    """What there was at one moment; each thing as a text that people can read.

    Attributes:
        processes: Descendants of this process: `pid command`.
        sockets: Socket files in the folders that were asked about.
        descriptors: Open descriptors of this process: `number -> what`.
        shared_memory: Names in `/dev/shm`.
        memory_files: Files in memory that this process has mapped, one entry per mapping.
        threads: Names of this process's threads.
    """

    processes: frozenset[str] = frozenset()
    sockets: frozenset[str] = frozenset()
    descriptors: frozenset[str] = frozenset()
    shared_memory: frozenset[str] = frozenset()
    memory_files: frozenset[str] = frozenset()
    threads: frozenset[str] = frozenset()

    def beyond(self, before: Stock) -> list[str]:
        """Return what is here that was not there before, a sentence each."""
        return [
            f"{kind.name}: {thing}"
            for kind in fields(self)
            for thing in sorted(getattr(self, kind.name) - getattr(before, kind.name))
        ]


def take_stock(
    *,
    folders: Iterable[str | os.PathLike[str]] = (),
    ignored: Sequence[str] = (),
) -> Stock:
    """Return what this process holds right now.

    Args:
        folders: Where to look for socket files, without their subfolders.
        ignored: Whatever contains one of these texts is not counted.
    """

    def kept(things: Iterable[str]) -> frozenset[str]:
        return frozenset([thing for thing in things if not any(text in thing for text in ignored)])

    return Stock(
        processes=kept(_processes()),
        sockets=kept([name for folder in folders for name in _sockets(Path(folder))]),
        descriptors=kept(_descriptors()),
        shared_memory=kept(_names(_SHARED)),
        memory_files=kept(_memory_files()),
        threads=kept([f"{one.name} {one.ident}" for one in threading.enumerate()]),
    )


def left_behind(
    before: Stock,
    *,
    folders: Sequence[str | os.PathLike[str]] = (),
    ignored: Sequence[str] = (),
    patience_s: float = 2.0,
) -> list[str]:
    """Return what is there beyond an earlier stock, once it is nothing or the patience is over."""
    expiry = time.monotonic() + patience_s
    while True:
        left = take_stock(folders=folders, ignored=ignored).beyond(before)
        if not left or time.monotonic() > expiry:
            return left
        time.sleep(_POLL_S)


def descendants(pid: int) -> list[int]:
    """Return the pids of what a process started, and of what those did; the dead are left out."""
    children: dict[int, list[int]] = {}
    for number, (parent, state) in _process_table().items():
        if state != "Z":
            children.setdefault(parent, []).append(number)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        mine = children.get(waiting.pop(), [])
        found += mine
        waiting += mine
    return sorted(found)


def session_members(session: int) -> list[int]:
    """Return the pids of a session, orphans included; a `Child` leads one of its own pid."""
    lines = _stat_lines()
    return sorted(
        [pid for pid, line in lines.items() if int(line[3]) == session and line[0] != "Z"]
    )


# ------------------------------------------------------------------------------------ reading


def _stat_lines() -> dict[int, list[str]]:
    """Return the fields after the command of each process's stat line: state, parent and so on."""
    lines: dict[int, list[str]] = {}
    for name in _names(Path("/proc")):
        if name.isdigit():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{name}/stat").read_text(errors="replace")
                lines[int(name)] = text.rpartition(")")[2].split()
    return lines


def _process_table() -> dict[int, tuple[int, str]]:
    return {pid: (int(values[1]), values[0]) for pid, values in _stat_lines().items()}


def _processes() -> list[str]:
    found: list[str] = []
    for pid in descendants(os.getpid()):
        command = ""
        with contextlib.suppress(OSError):
            raw = Path(f"/proc/{pid}/cmdline").read_bytes()
            command = raw.replace(b"\0", b" ").decode(errors="replace").strip()
        found.append(f"{pid} {command[:200]}")
    return found


def _sockets(folder: Path) -> list[str]:
    found: list[str] = []
    for name in _names(folder):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK((folder / name).lstat().st_mode):
                found.append(str(folder / name))
    return found


def _descriptors() -> list[str]:
    found: list[str] = []
    for name in _names(Path("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the one that lists them is gone already
            found.append(f"{name} -> {Path(f'/proc/self/fd/{name}').readlink()}")
    return found


def _memory_files() -> list[str]:
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if "memfd:" in line]


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []
