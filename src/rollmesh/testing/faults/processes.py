"""Child processes to be stopped, killed and waited for (layer 7).

    # in servers.py
    def serve(tell, *, address):
        server = EnvServer("CartPole-v1", address)
        server.start()
        tell(str(server.address))          # the readiness line
        server.wait()

    # in a test
    with Child("servers:serve", address="rollmesh+unix://") as child:
        address = child.ready              # what it told first
        child.stop()                       # SIGSTOP: it is there, and does nothing
        child.resume()
        child.terminate()                  # SIGTERM
        assert child.wait(5.0) == 0

Lines travel on a pipe of their own, so that what the child prints is only output. A child ends when
its parent ends, and `close` kills it with everything it started. Signals go to its own pid, never
to a name.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmesh.errors import RollmeshError
from rollmesh.testing.faults.child import LINE_BYTES

if TYPE_CHECKING:
    from typing_extensions import Self

READY_S = 60.0
"""How long a child may take until its first line: imports are slow on a busy machine."""
_STATE_S = 5.0
_POLL_S = 0.002
OUTPUT_BYTES = 8192
"""As much of what a child printed is shown in errors."""


class ChildFailed(RollmeshError):  # noqa: N818 - the family is named for what happened
    """A child ended, or said nothing in time, where it should not have."""


class Child:
    """A function running in a process of its own.

    Args:
        target: `module:function`; it is called as `function(tell, **kwargs)`, and what it returns,
            if it is an int, is the exit code. `tell(text)` writes a line to the parent.
        paths: Folders added to the child's import path, in front.
        environment: Variables added to the child's environment.
        ready_s: How long to wait for the first line; None does not wait for one.
        **kwargs: Keyword arguments of the function, as JSON can carry them.

    Attributes:
        pid: The process id.
        ready: The first line it told, or `""` where it is not waited for.

    Raises:
        ChildFailed: It ended, or told nothing in time; the message holds its output.
    """

    def __init__(
        self,
        target: str,
        *,
        paths: Sequence[str | os.PathLike[str]] = (),
        environment: Mapping[str, str] | None = None,
        ready_s: float | None = READY_S,
        **kwargs: Any,
    ) -> None:
        self._target = target
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._lines, tell = os.pipe()
        watched, self._lifeline = os.pipe()
        self._read = b""
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module, arguments of the caller
                [
                    *(sys.executable, "-m", "rollmesh.testing.faults.child"),
                    *(target, json.dumps(kwargs), str(tell), str(watched)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=(tell, watched),
                env=_environment(paths, environment or {}),
                start_new_session=True,
            )
        except BaseException:
            self._close_files()
            raise
        finally:
            os.close(tell)
            os.close(watched)
        self.pid = self._process.pid
        self.ready = ""
        if ready_s is not None:
            try:
                self.ready = self.read_line(ready_s)
            except BaseException:
                self.close()
                raise

    # --------------------------------------------------------------------------- talking

    def read_line(self, timeout_s: float) -> str:
        """Return the next line that it told.

        Raises:
            ChildFailed: It ended, or told nothing in time.
        """
        expiry = time.monotonic() + timeout_s
        readable = select.poll()
        readable.register(self._lines, select.POLLIN)
        while b"\n" not in self._read:
            left_s = max(0.0, expiry - time.monotonic())
            if not readable.poll(left_s * 1000.0):
                raise self._failed(f"told nothing within {timeout_s:g} s")
            data = os.read(self._lines, LINE_BYTES)
            if not data:
                code = self._process.wait(_STATE_S)
                raise self._failed(f"ended with code {code} before it told anything")
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line.decode(errors="replace")

    def output(self, most_bytes: int = OUTPUT_BYTES) -> str:
        """Return the end of what it printed so far."""
        size = self._output.seek(0, os.SEEK_END)
        start = max(0, size - most_bytes)
        return os.pread(self._output.fileno(), most_bytes, start).decode(errors="replace")

    # --------------------------------------------------------------------------- signals

    def stop(self) -> None:
        """Freeze it (SIGSTOP); it has stopped when this returns."""
        self._signal(signal.SIGSTOP)
        self._wait_for_state(os.WSTOPPED)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL) and reap it; what it started lives on until `close`."""
        self._signal(signal.SIGKILL)
        self._process.wait(_STATE_S)

    def wait(self, timeout_s: float) -> int:
        """Return its exit code; below 0 the signal that ended it.

        Raises:
            ChildFailed: It is still there; it is left as it is.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self._failed(f"is still running after {timeout_s:g} s") from None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended; a frozen one runs."""
        return self._process.poll() is None

    # ------------------------------------------------------------------------- lifecycle

    def close(self) -> None:
        """Kill it and everything it started, reap it and let go of it. Any number of times."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # the group of its own session; it exists while any member of it does
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(_STATE_S)
        self._close_files()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------------------- inside

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is not None:
            raise self._failed(f"has ended with code {self._process.returncode} already")
        os.kill(self.pid, number)

    def _wait_for_state(self, state: int) -> None:
        if not hasattr(os, "waitid"):
            time.sleep(_POLL_S)
            return
        expiry = time.monotonic() + _STATE_S
        options = state | os.WEXITED | os.WNOHANG | os.WNOWAIT
        while os.waitid(os.P_PID, self.pid, options) is None:
            if time.monotonic() > expiry:
                raise self._failed("did not stop")
            time.sleep(_POLL_S)

    def _failed(self, detail: str) -> ChildFailed:
        printed = self.output().strip()
        shown = f"; it printed:\n{printed}" if printed else "; it printed nothing"
        return ChildFailed(f"child {self._target} (pid {self.pid}) {detail}{shown}")

    def _close_files(self) -> None:
        self._output.close()
        for name in ("_lines", "_lifeline"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)


def _environment(
    paths: Sequence[str | os.PathLike[str]], added: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a child: it imports what this process can import."""
    here = str(Path.cwd())
    folders = [*(os.fspath(path) for path in paths), *(path or here for path in sys.path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), **added}
