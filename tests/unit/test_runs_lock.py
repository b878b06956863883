"""One driver a run."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import warnings

import pytest

from rollmesh.errors import JournalError, RunLocked
from rollmesh.runs import lock
from rollmesh.runs.lock import LOCK_FILE, Holder, RunLock, holder_of

HOLD = """
import sys
from pathlib import Path
from rollmesh.runs.lock import RunLock
held = RunLock.acquire(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """A process that holds the lock of a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_driver_is_refused_and_told_who_has_it(tmp_path, other):
    with pytest.raises(RunLocked, match=f"process {other.pid} on ") as caught:
        RunLock.acquire(tmp_path)
    assert (caught.value.pid, caught.value.host) == (other.pid, socket.gethostname())
    assert caught.value.folder == str(tmp_path)
    assert holder_of(tmp_path) == Holder(pid=other.pid, host=socket.gethostname())


def test_a_lock_ends_with_its_process(tmp_path, other):
    other.kill()
    other.wait()
    assert holder_of(tmp_path) is None
    RunLock.acquire(tmp_path).release()


def test_one_process_cannot_take_it_twice(tmp_path):
    held = RunLock.acquire(tmp_path)
    with pytest.raises(RunLocked, match=f"process {os.getpid()} on "):
        RunLock.acquire(tmp_path)
    assert holder_of(tmp_path) == Holder(pid=os.getpid(), host=socket.gethostname())
    held.release()
    held.release()
    assert holder_of(tmp_path) is None
    RunLock.acquire(tmp_path).release()


def test_looking_who_has_it_does_not_lose_it(tmp_path):
    held = RunLock.acquire(tmp_path)
    holder_of(tmp_path)
    with pytest.raises(RunLocked):
        RunLock.acquire(tmp_path)
    code = "import sys; from pathlib import Path; from rollmesh.runs.lock import holder_of; "
    code += "print(holder_of(Path(sys.argv[1])).pid)"
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert said.stdout == f"{os.getpid()}\n"
    held.release()


def test_a_lock_file_that_says_nothing_is_no_obstacle(tmp_path, other):
    (tmp_path / LOCK_FILE).write_text("{")
    assert holder_of(tmp_path) == Holder()
    with pytest.raises(RunLocked, match="another process drives this run"):
        RunLock.acquire(tmp_path)


def test_a_folder_without_a_lock_file_is_driven_by_nobody(tmp_path):
    assert holder_of(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(JournalError, match="cannot lock") as caught:
        RunLock.acquire(tmp_path / "gone")
    assert caught.value.errno == errno.ENOENT


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def refuse(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "lockf", refuse)
    with pytest.raises(JournalError, match="keeps locks") as caught:
        RunLock.acquire(tmp_path)
    assert caught.value.errno == errno.ENOLCK
    monkeypatch.undo()
    RunLock.acquire(tmp_path).release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_of_the_driver_drives_nothing_and_leaves_the_lock_as_it_is(tmp_path):
    held = RunLock.acquire(tmp_path)
    driver = holder_of(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there may be threads
        child = os.fork()
    if child == 0:
        code = 9
        try:
            signal.alarm(30)
            assert holder_of(tmp_path) == driver
            held.note_failure("of the fork")
            held.release()
            assert holder_of(tmp_path) == driver
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert driver is not None
    assert driver.pid == os.getpid()
    held.release()
    assert holder_of(tmp_path) is None
