"""Children: processes that serve what a benchmark measures (`python -m benchmarks.served …`).

A child prints one line when it can be reached, and is ended by its own process id. Knows no peer.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Subject

READY = "READY "
FOLDER = "{folder}"
_START_S = 60.0
_END_S = 5.0
_MOST_WORDS = 2000
_ROOT = Path(__file__).resolve().parent.parent


class Child:
    """A server in a process of its own, started at once.

    Args:
        arguments: What follows `python -m benchmarks.served`; `{folder}` becomes a folder that
            lives as long as the child.
        module: Another module to run.
    """

    def __init__(self, arguments: Sequence[str], module: str = "benchmarks.served") -> None:
        self._address: str | None = None
        with contextlib.ExitStack() as stack:
            folder = tempfile.TemporaryDirectory(prefix="rollmesh-bench-")
            self._words = Path(stack.enter_context(folder), "words")
            self._arguments = [text.replace(FOLDER, folder.name) for text in arguments]
            with self._words.open("wb") as words:
                self._process: subprocess.Popen[bytes] = subprocess.Popen(
                    [sys.executable, "-m", module, *self._arguments],
                    cwd=_ROOT,
                    env=_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=words,
                )
            self._leftovers = stack.pop_all()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def address(self, timeout_s: float = _START_S) -> str:
        """Return where it can be reached, as soon as it can.

        Raises:
            RuntimeError: It ended, or said nothing in time; the message has its last words.
        """
        if self._address is None:
            self._address = self._read(timeout_s)
        return self._address

    def end(self) -> None:
        """End it; again does nothing."""
        process = self._process
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._leftovers.close()

    def _read(self, timeout_s: float) -> str:
        stdout = self._process.stdout
        assert stdout is not None
        expiry = time.monotonic() + timeout_s
        heard = b""
        while not heard.endswith(b"\n"):
            if not select.select([stdout], [], [], max(0.0, expiry - time.monotonic()))[0]:
                raise self._failed(f"said nothing within {timeout_s:g} s")
            piece = os.read(stdout.fileno(), 4096)
            if not piece:
                raise self._failed(f"ended with {self._process.wait()}")
            heard += piece
        line = heard.decode().strip().splitlines()[-1]
        if not line.startswith(READY):
            raise self._failed(f"said {line!r}")
        return line[len(READY) :]

    def _failed(self, what: str) -> RuntimeError:
        words = self._words.read_text(errors="replace")[-_MOST_WORDS:]
        return RuntimeError(f"the child {' '.join(self._arguments)} {what}:\n{words}")


def _environment() -> dict[str, str]:
    """Return this process's environment with the folders that modules come from."""
    import rollmesh

    sources = str(Path(rollmesh.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (sources, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


@dataclass(frozen=True, kw_only=True)
class Drive:
    """How a subject drives its children, once they can be reached.

    Attributes:
        run: As `Subject.run`.
        close: Lets go of what leads to them.
    """

    run: Callable[[int], int]
    close: Callable[[], Any] = lambda: None


def driven(name: str, servers: Sequence[Sequence[str]], connect: Callable[..., Drive]) -> Subject:
    """Return a subject whose children start at once, all of them side by side.

    Args:
        name: Name of the subject.
        servers: Arguments of one child each.
        connect: Takes an address a child.
    """
    children: list[Child] = []
    drives: list[Drive] = []

    def prepare() -> None:
        drives.append(connect(*[child.address() for child in children]))

    def run(bouts: int) -> int:
        return drives[0].run(bouts)

    def close() -> None:
        with contextlib.ExitStack() as stack:
            for child in children:
                stack.callback(child.end)
            for drive in drives:
                stack.callback(drive.close)

    try:
        children.extend(Child(arguments) for arguments in servers)
    except BaseException:
        close()
        raise
    return Subject(name=name, run=run, close=close, prepare=prepare)
