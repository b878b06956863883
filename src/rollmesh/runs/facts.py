"""What a run ran on: versions, machine, source (layer 7).

Everything here is a note for the reader of a run and decides nothing; what cannot be found out is
left out. No variable of the environment is looked at beyond what finding programs takes.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ASKING_S = 5.0
"""How long the programs that are asked may take, all together."""


def gather_facts(*, command: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the facts of this process and machine as JSON values.

    Takes some tens of milliseconds; where there is an NVIDIA driver, as long as that takes to
    answer, and 5 s at most.

    Args:
        command: The arguments after `rollmesh` that start this run again, if there are such.
    """
    folder = _working_folder()
    revision = _ask("git", "rev-parse", "HEAD")
    state = _ask("git", "--no-optional-locks", "status", "--porcelain")
    gpus = _ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    facts: dict[str, Any] = {
        "command": None if command is None else list(command),
        "working_folder": folder,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": _cpus(),
        "memory_bytes": _memory_bytes(),
        "packages": _packages(),
    }
    deadline = time.monotonic() + _ASKING_S
    commit, changed, names = (_answer(asked, deadline) for asked in (revision, state, gpus))
    if commit:
        facts["git"] = {"revision": commit, "dirty": bool(changed) if changed is not None else None}
    if names:
        facts["gpus"] = names.splitlines()
    return {name: value for name, value in facts.items() if value is not None}


def _working_folder() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # it was deleted
        return None


def _cpus() -> int | None:
    """Return how many cpus this process may use."""
    with contextlib.suppress(AttributeError, OSError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _memory_bytes() -> int | None:
    with contextlib.suppress(ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _packages() -> dict[str, str]:
    """Return name and version of what is installed, read from the names of folders alone."""
    found: dict[str, str] = {}
    for entry in sys.path:
        try:
            names = os.listdir(entry or ".")  # noqa: PTH208 - the fastest, and only names are needed
        except OSError:
            continue
        for file_name in names:
            stem, _, kind = file_name.rpartition(".")
            if kind in {"dist-info", "egg-info"}:
                name, _, version = stem.partition("-")
                found.setdefault(name, version.partition("-")[0])
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _ask(*command: str) -> subprocess.Popen[str] | None:
    """Start a program, so that several can answer at the same time."""
    try:
        return subprocess.Popen(  # noqa: S603 - our own words
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="backslashreplace",
        )
    except OSError:  # no such program, or no working folder
        return None


def _answer(process: subprocess.Popen[str] | None, deadline: float) -> str | None:
    """Return what a program said, or None where it is missing, failed or takes too long."""
    if process is None:
        return None
    try:
        said, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    return said.strip() if process.returncode == 0 else None
