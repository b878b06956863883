"""One driver a run: a lock that the kernel drops when its process ends (layer 7).

A POSIX record lock on `run.lock`: children of the driver do not inherit it, so a worker that
outlives its driver blocks nobody, and network file systems know it. Such a lock says nothing
between two users of one process, and closing any other descriptor of the file drops it: a table of
this process's own locks answers for both. The file holds who has the lock, for people; and, where
its journal failed, that it did: a full disk takes no other word, so room is kept for this one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmesh.errors import JournalError, RunLocked

if TYPE_CHECKING:
    from typing_extensions import Self

LOCK_FILE = "run.lock"
_PATIENCE_S = 0.25
"""Somebody who looks whether a run is driven holds its lock for an instant."""
_POLL_S = 0.01
_REFUSED = (errno.EACCES, errno.EAGAIN)
_MOST_BYTES = 4096
_ROOM_BYTES = 2048
"""The file is written this long, so that a last word changes bytes that it has."""
_MOST_CHARS = 300

_own: set[tuple[int, int]] = set()
"""Device and inode of the lock files that this process holds."""
_own_guard = threading.Lock()


def _hold_nothing() -> None:
    """Forget what the process holds from which this one was forked."""
    global _own_guard  # noqa: PLW0603 - a thread that is not here may have it
    _own_guard = threading.Lock()
    _own.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_hold_nothing)


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who drives a run; None where the lock file does not say.

    Attributes:
        pid: The process.
        host: Its machine.
    """

    pid: int | None = None
    host: str | None = None


class RunLock:
    """The right to drive the run in a folder; `release` gives it back.

    Guarantees: no other process or journal has it at the same time, as far as the file system
    keeps locks between machines; it ends with the process, however that ends.
    """

    def __init__(self, descriptor: int, key: tuple[int, int]) -> None:
        self._descriptor = descriptor
        self._key = key
        self._is_held = True
        self._has_failed = False
        self._process = os.getpid()

    @classmethod
    def acquire(cls, folder: Path) -> Self:
        """Take the lock of a folder.

        Raises:
            RunLocked: Another process, or this one, drives the run already.
            JournalError: The lock file cannot be written, or the file system keeps no locks.
        """
        path = folder / LOCK_FILE
        try:
            with _own_guard:
                key = _key_of(path)
                if key is not None and key in _own:
                    raise _locked(folder, Holder(pid=os.getpid(), host=socket.gethostname()))
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    key = _take(descriptor, folder)
                except BaseException:
                    os.close(descriptor)
                    raise
                _own.add(key)
        except OSError as error:
            raise JournalError(
                str(folder),
                f"cannot lock {path}: {error.strerror} (errno {error.errno}); name a folder on a "
                "file system that can be written and keeps locks",
                path=str(path),
                errno=error.errno,
                acknowledged=0,
            ) from error
        return cls(descriptor, key)

    def note_failure(self, failure: str) -> None:
        """Leave word of why this start ended, for `last_words`; until the lock is next taken."""
        with _own_guard:
            if self._is_held and self._process == os.getpid():
                with contextlib.suppress(OSError):
                    _write_holder(self._descriptor, failure.partition("\n")[0][:_MOST_CHARS])
                    self._has_failed = True

    def release(self) -> None:
        """Give the lock back; does nothing the second time, and to that of a fork's parent."""
        with _own_guard:
            if not self._is_held:
                return
            self._is_held = False
            if not self._has_failed and self._process == os.getpid():
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, 0)
            _own.discard(self._key)
            os.close(self._descriptor)


def holder_of(folder: Path) -> Holder | None:
    """Return who drives the run in a folder right now, or None."""
    path = folder / LOCK_FILE
    with _own_guard:
        key = _key_of(path)
        if key is None:
            return None
        if key in _own:
            return Holder(pid=os.getpid(), host=socket.gethostname())
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return None if _lock(descriptor, fcntl.LOCK_SH, 0.0) else _read_holder(descriptor)
        except OSError:  # no locks here: then nobody could have taken it
            return None
        finally:
            os.close(descriptor)


def last_words(folder: Path) -> str | None:
    """Return why the journal of the last start failed, where it left word; None while it runs."""
    path = folder / LOCK_FILE
    with _own_guard:
        if _key_of(path) in _own:  # to close another descriptor would drop the lock
            return None
        try:
            said: Any = json.loads(path.read_bytes()[:_MOST_BYTES])
            return str(said["failed"])
        except (OSError, ValueError, TypeError, KeyError):
            return None


def _take(descriptor: int, folder: Path) -> tuple[int, int]:
    """Lock an open lock file, and return its device and inode."""
    if not _lock(descriptor, fcntl.LOCK_EX, _PATIENCE_S):
        raise _locked(folder, _read_holder(descriptor))
    os.ftruncate(descriptor, 0)
    _write_holder(descriptor)
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _locked(folder: Path, holder: Holder) -> RunLocked:
    who = "another process" if holder.pid is None else f"process {holder.pid}"
    where = "" if holder.host is None else f" on {holder.host}"
    return RunLocked(
        str(folder),
        f"{who}{where} drives this run; wait for it to end, end it, or name another folder",
        pid=holder.pid,
        host=holder.host,
    )


def _key_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:  # it is not there, or not ours to look at: opening it says why
        return None
    return status.st_dev, status.st_ino


def _lock(descriptor: int, how: int, patience_s: float) -> bool:
    """Lock a file, and return whether that was granted within `patience_s`."""
    end = time.monotonic() + patience_s
    while True:
        try:
            fcntl.lockf(descriptor, how | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
        else:
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)


def _write_holder(descriptor: int, failure: str | None = None) -> None:
    said: dict[str, Any] = {"pid": os.getpid(), "host": socket.gethostname()}
    if failure is not None:
        said["failed"] = failure
    os.pwrite(descriptor, json.dumps(said).encode().ljust(_ROOM_BYTES - 1) + b"\n", 0)


def _read_holder(descriptor: int) -> Holder:
    try:
        said: Any = json.loads(os.pread(descriptor, _MOST_BYTES, 0))
        return Holder(pid=int(said["pid"]), host=str(said["host"]))
    except (OSError, ValueError, TypeError, KeyError):
        return Holder()
