"""Pools: where worker processes come from (layer 7).

A pool starts what a `WorkerSpec` describes and says when it has ended; nothing else. Workers dial
the driver themselves, so that it makes no difference where they run: `LocalPool` starts processes
here, another pool may ask Ray or Slurm for them.

`LocalPool` watches its processes from one thread: what they write, and when they end. Whatever they
started ends with them, in sessions of its own too (`guard.py`), also when the driver is killed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import selectors
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from rollmesh.endpoint.child_process import kill_group, let_go, spawn
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.fleet import guard
from rollmesh.fleet.exits import WorkerExit, out_of_memory_kills
from rollmesh.fleet.worker_spec import WorkerSpec

_logger = logging.getLogger(__name__)

WORKER_MODULE = "rollmesh.fleet.worker"
LINES_KEPT = 40
LOG_MARK = "rollmesh-log"
"""Starts the lines that are log records of a worker: mark, level, logger, text, split by tabs."""

_LINE_CHARS = 500
_READ_BYTES = 2**16
_LOOK_S = 0.2
"""How often processes are looked at where the system does not tell of their end."""
_MOST_TOLD = 1000
_LOG_PARTS = 4
_MOST_READS = 16
"""So much is read of what an ended process has left in its pipe, which others may still fill."""
_END_S = 10.0

Ended: TypeAlias = Callable[[WorkerExit], None]
"""Called once, from any thread, when a worker is gone."""


class WorkerProcess(Protocol):
    """A worker that was started, as its pool knows it.

    Attributes:
        pid: Its process id, where it runs on this machine and is known by now.
    """

    @property
    def pid(self) -> int | None: ...
    def kill(self) -> None:
        """End it, and whatever it started, at once. Any number of times, from any thread."""
        ...


class Pool(Protocol):
    """Starts workers."""

    def start(self, spec: WorkerSpec, ended: Ended) -> WorkerProcess:
        """Start a worker and return at once; what goes wrong is told by `ended`."""
        ...

    def close(self) -> None:
        """End all workers that are left and let go of everything. Any number of times."""
        ...


class LocalPool:
    """Starts workers as processes of this machine: afresh, never forked."""

    def __init__(self) -> None:
        # the kernel ends a worker with the thread that started it: this one lives as long as we do
        self._starter = OwnThread("rollmesh-workers")
        self._mark = secrets.token_hex(8)
        self._guard: subprocess.Popen[bytes] | None = None
        self._watch: _Watch | None = None
        self._processes: set[LocalProcess] = set()
        self._closed = False

    def start(self, spec: WorkerSpec, ended: Ended) -> LocalProcess:
        """Start a worker; see `Pool`.

        Raises:
            RuntimeError: The pool is closed.
        """
        if self._closed:
            raise RuntimeError("this pool is closed; make another one")
        if self._watch is None:
            self._watch = _Watch()
        process = LocalProcess(spec.worker, f"{self._mark}.{spec.name}")
        self._processes.add(process)

        def over(how: WorkerExit) -> None:
            self._processes.discard(process)
            ended(how)

        def failed(result: Any) -> None:
            if isinstance(result, BaseException):
                over(WorkerExit(code=None, detail=f"it could not be started: {result}"))

        self._starter.submit(self._spawn, failed, spec, process, over)
        return process

    def close(self) -> None:
        """Kill what is left, wait for it, and end the threads."""
        if self._closed:
            return
        self._closed = True
        for process in list(self._processes):
            process.kill()
        self._starter.stop()
        self._starter.join(None)
        if self._watch is not None:
            self._watch.stop()
        if self._guard is not None:
            _let_guard_go(self._guard)

    def _spawn(self, spec: WorkerSpec, process: LocalProcess, over: Ended) -> None:
        """Start a process; on the thread of the pool."""
        if process.is_unwanted:
            over(WorkerExit(code=None, detail="it was not started"))
            return
        watch = self._watch
        assert watch is not None  # noqa: S101 - made by start
        if self._guard is None and guard.can_sweep():
            self._guard = _start_guard(self._mark)
        marks = f"{os.environ.get(guard.VARIABLE, '')} {process.mark}".strip()
        read_end, write_end = os.pipe()
        try:
            popen = spawn(
                WORKER_MODULE,
                {"spec": spec.to_json()},
                cwd=spec.cwd or None,
                environment={**spec.environment, guard.VARIABLE: marks},
                output=write_end,
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        process.set_up(popen)
        watch.add(process, popen, read_end, over)


class LocalProcess:
    """A worker on this machine.

    Attributes:
        worker: Its number.
        mark: What it, and all that it starts, carries in its environment.
        pid: Its process id, once it was started.
        is_unwanted: Whether it was to be killed before it had started.
    """

    def __init__(self, worker: int, mark: str) -> None:
        self.worker = worker
        self.mark = mark
        self.pid: int | None = None
        self.is_unwanted = False
        self._popen: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def kill(self) -> None:
        """Kill it and its group."""
        with self._lock:  # not between its end and the moment its number is free again
            self.is_unwanted = True
            if self._popen is not None:
                kill_group(self._popen)

    def set_up(self, popen: subprocess.Popen[bytes]) -> None:
        """Take over a process that was started."""
        with self._lock:
            self._popen, self.pid = popen, popen.pid
            if self.is_unwanted:
                kill_group(popen)

    def reap(self) -> int | None:
        """Kill what it left behind and return its exit code, once it has ended."""
        with self._lock:
            popen, self._popen = self._popen, None
            if popen is None:
                return None
            kill_group(popen)
            code = popen.wait()
        let_go(popen)
        guard.sweep(self.mark)
        return code


def _start_guard(mark: str) -> subprocess.Popen[bytes]:
    """Start the process that outlives this one, if need be, and ends what carries the mark."""
    return subprocess.Popen(  # noqa: S603 - our own file, by our own interpreter
        [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _let_guard_go(process: subprocess.Popen[bytes]) -> None:
    """Have the guard end whatever is left, and end itself."""
    let_go(process)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class _Watched:
    """What the watching thread knows of a process."""

    def __init__(self, process: LocalProcess, output: int, over: Ended) -> None:
        self.process = process
        self.output = output
        self.over = over
        self.pidfd = -1
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.part = b""
        self.kills = out_of_memory_kills()


class _Watch:
    """The thread that reads what processes write and notices their end."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._added: queue.SimpleQueue[tuple[_Watched, subprocess.Popen[bytes]] | None] = (
            queue.SimpleQueue()
        )
        self._polled: dict[_Watched, subprocess.Popen[bytes]] = {}
        self._watched: set[_Watched] = set()
        self._told: set[str] = set()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="rollmesh-watch", daemon=True)
        self._thread.start()

    def add(
        self, process: LocalProcess, popen: subprocess.Popen[bytes], output: int, over: Ended
    ) -> None:
        """Watch a process. Any thread may."""
        os.set_blocking(output, False)
        self._added.put((_Watched(process, output, over), popen))
        self._ring()

    def stop(self) -> None:
        """End once all processes have ended, and wait for that."""
        self._added.put(None)
        self._ring()
        self._thread.join(_END_S)
        if self._thread.is_alive():
            _logger.warning("workers_left: some processes did not end when they were killed")
            return
        os.close(self._wake)
        os.close(self._waker)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"!")

    # ----------------------------------------------------------------------- its own thread

    def _run(self) -> None:
        while self._watched or not self._is_stopping:
            for key, _ in self._selector.select(_LOOK_S if self._polled else None):
                if key.data is None:
                    os.read(self._wake, _READ_BYTES)
                    self._take_added()
                elif key.data not in self._watched:
                    continue
                elif key.fd == key.data.output:
                    self._read(key.data)
                else:
                    self._ended(key.data)
            for watched, popen in list(self._polled.items()):
                if popen.poll() is not None:
                    self._ended(watched)
        self._selector.close()

    def _take_added(self) -> None:
        while not self._added.empty():
            item = self._added.get()
            if item is None:
                self._is_stopping = True
                continue
            watched, popen = item
            self._watched.add(watched)
            self._selector.register(watched.output, selectors.EVENT_READ, watched)
            try:
                watched.pidfd = os.pidfd_open(popen.pid)  # pyright: ignore[reportAttributeAccessIssue]
            except (AttributeError, OSError):  # not on this system
                self._polled[watched] = popen
            else:
                self._selector.register(watched.pidfd, selectors.EVENT_READ, watched)

    def _read(self, watched: _Watched) -> bool:
        """Read what a process wrote; False where there is nothing more now."""
        try:
            data = os.read(watched.output, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(watched.output)
            os.close(watched.output)
            watched.output = -1
            return False
        *lines, part = (watched.part + data).split(b"\n")
        watched.part = part[-4 * _LINE_CHARS :]
        for line in lines:
            self._line(watched, line)
        return True

    def _line(self, watched: _Watched, data: bytes) -> None:
        shown = data.rstrip().rpartition(b"\r")[2]  # of what was written over, as progress bars do
        text = shown[: 4 * _LINE_CHARS].decode("utf-8", "replace").rstrip()[:_LINE_CHARS]
        if not text:
            return
        if text.startswith(LOG_MARK):
            self._pass_on(text)
            return
        watched.lines.append(text)
        _logger.debug("worker_wrote worker=%d line=%s", watched.process.worker, text)

    def _pass_on(self, text: str) -> None:
        """Log here what a worker logged; what several workers say alike is said once."""
        parts = text.split("\t", _LOG_PARTS - 1)
        if len(parts) != _LOG_PARTS or text in self._told or len(self._told) >= _MOST_TOLD:
            return
        self._told.add(text)
        _, level, name, message = parts
        number: Any = logging.getLevelName(level)  # pyright: ignore[reportDeprecated]
        logging.getLogger(name).log(number if isinstance(number, int) else logging.INFO, message)

    def _ended(self, watched: _Watched) -> None:
        """Take note of the end of a process: reap it, and tell."""
        self._watched.discard(watched)
        self._polled.pop(watched, None)
        if watched.pidfd >= 0:
            self._selector.unregister(watched.pidfd)
            os.close(watched.pidfd)
        code = watched.process.reap()
        for _ in range(_MOST_READS):
            if watched.output < 0 or not self._read(watched):
                break
        if watched.output >= 0:  # somebody it started has left the group and lives on
            self._selector.unregister(watched.output)
            os.close(watched.output)
        if watched.part:
            self._line(watched, watched.part)
        is_memory = code == -signal.SIGKILL and out_of_memory_kills() > watched.kills
        how = WorkerExit(code=code, was_out_of_memory=is_memory, last_lines=tuple(watched.lines))
        try:
            watched.over(how)
        except Exception:
            _logger.exception("callback_failed worker=%d", watched.process.worker)
