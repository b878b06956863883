"""Processes of our own that hold envs, models or workers: how they start and end (layer 6).

A child is started afresh, never forked, and reads what it is to do from one line of JSON on its
standard input. It leads its own process group, so that whatever it starts goes with it, and it ends
when its parent does, however that ended: the kernel kills it (Linux), and the end of its standard
input tells it.

The kernel ties a child to the *thread* that started it: start children on a thread that lives as
long as they may.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

MAIN_NAME = "__rollmesh_main__"
"""What the parent's main script is called in a child."""
_EXIT_S = 2.0
"""How long a process that was heard of for the last time may take to be gone."""
_PR_SET_PDEATHSIG = 1
_FIRST_HIGH_FD = 10


# -------------------------------------------------------------------------------- the parent


def spawn(
    module: str,
    config: Mapping[str, Any],
    *,
    arguments: Sequence[str] = (),
    pass_fds: Sequence[int] = (),
    cwd: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    output: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start `python -m module` and tell it what to do.

    Args:
        module: What to run; it calls `begin` first.
        config: What it is told; plain JSON values.
        arguments: Of its command line.
        pass_fds: Descriptors that it keeps.
        cwd: Its working directory.
        environment: Variables added to its environment.
        output: Where its standard output and error go; None leaves them where ours are.
    """
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(  # noqa: S603 - our own module, by our own interpreter
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        pass_fds=pass_fds,
        cwd=cwd,
        env={**variables, **(environment or {})},
        start_new_session=True,
    )
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    # the pipe stays open: its end tells the child that its parent is gone
    with contextlib.suppress(BrokenPipeError):
        line = {**config, "path": sys.path, "parent": os.getpid()}
        process.stdin.write(json.dumps(line).encode() + b"\n")
        process.stdin.flush()
    return process


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads its own group, and all of that group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def outwait(process: subprocess.Popen[bytes], timeout_s: float | None) -> bool:
    """Wait for a process that was told to end, then kill what is left of its group.

    Args:
        process: From `spawn`.
        timeout_s: For how long to wait, in seconds; None waits for as long as it takes.

    Returns:
        Whether it ended by itself in time.
    """
    in_time = True
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        in_time = False
    kill_group(process)  # and what it started
    process.wait()
    let_go(process)
    return in_time


def let_go(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe to a process that has ended."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def how_it_ended(process: subprocess.Popen[bytes] | None) -> str | None:
    """Return in words how a process ended that went silent; None where it has not ended."""
    if process is None:
        return None
    try:
        code = process.wait(_EXIT_S)
    except subprocess.TimeoutExpired:
        return None
    return f"died of {signal_name(-code)}" if code < 0 else f"exited with code {code}"


def signal_name(number: int) -> str:
    """Return what a signal is called."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# --------------------------------------------------------------------------------- the child


def begin() -> dict[str, Any]:
    """Read what to do, follow the parent from now on, and import what it can import."""
    config: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    die_with_parent(config["parent"], _take_stdin())
    sys.path[:] = config["path"]
    return config


def _take_stdin() -> int:
    """Put standard input where user code does not close it; return the descriptor."""
    import fcntl

    lifeline = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, _FIRST_HIGH_FD)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return lifeline


def die_with_parent(parent: int, lifeline: int) -> None:
    """End this process, and what it started, when its parent is gone."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        _end()
    watch = threading.Thread(
        target=_watch_parent, args=(lifeline,), name="rollmesh-parent", daemon=True
    )
    watch.start()


def _watch_parent(lifeline: int) -> None:
    while os.read(lifeline, 4096):
        pass
    _end()


def _end() -> None:
    os.killpg(0, signal.SIGKILL)


def load_main(path: str) -> None:
    """Load the parent's main script as a module: what is under `if __name__ == …` does not run."""
    if getattr(sys.modules.get(MAIN_NAME), "__file__", None) == path:
        return
    spec = importlib.util.spec_from_file_location(MAIN_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MAIN_NAME] = module
    spec.loader.exec_module(module)
