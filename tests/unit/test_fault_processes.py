"""Child processes that are stopped, killed and waited for; and what is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from rollmesh.testing.faults import Child, take_stock
from rollmesh.testing.faults.processes import ChildFailed
from rollmesh.testing.faults.stock import descendants, left_behind, session_members

LIMIT_S = 20.0
HERE = "tests.unit.test_fault_processes"


# ------------------------------------------------------------------- what runs in the children


def echo(tell, *, lines):
    for line in lines:
        tell(line)
    print("printed")
    return 5


def tick(tell):
    """Tell a line every few milliseconds."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    while True:
        tell("tick")
        time.sleep(0.005)


def fail(tell):
    raise ValueError("no luck")


def start_another(tell):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    tell(str(other.pid))
    other.wait()


def parent(tell):
    """Start a child and be killed before closing it."""
    child = Child(f"{HERE}:tick")
    tell(str(child.pid))
    time.sleep(600)


# --------------------------------------------------------------------------------- the child


def read_for_ever(child, timeout_s):
    while True:
        child.read_line(timeout_s)


def test_a_child_tells_lines_prints_and_returns_a_code():
    with Child(f"{HERE}:echo", lines=["ready at 5", "two\nlines", "three"]) as child:
        assert child.ready == "ready at 5"
        assert child.read_line(LIMIT_S) == "two lines"
        assert child.read_line(LIMIT_S) == "three"
        assert child.wait(LIMIT_S) == 5
        assert not child.is_running
        assert child.output() == "printed\n"


def test_a_child_that_fails_says_what_it_printed():
    with pytest.raises(ChildFailed, match=r"ended with code 1 (.|\n)*ValueError: no luck"):
        Child(f"{HERE}:fail")


def test_a_child_that_says_nothing_is_given_up():
    with Child(f"{HERE}:start_another", ready_s=None) as child:
        child.read_line(LIMIT_S)
        with pytest.raises(ChildFailed, match=r"told nothing within 0.05 s"):
            child.read_line(0.05)
        with pytest.raises(ChildFailed, match=r"still running after 0.05 s"):
            child.wait(0.05)


def test_stop_freezes_and_resume_goes_on():
    with Child(f"{HERE}:tick") as child:
        child.stop()
        with pytest.raises(ChildFailed, match="told nothing"):
            read_for_ever(child, 0.1)
        child.resume()
        assert child.read_line(LIMIT_S) == "tick"
        child.stop()  # a second time, and killed while frozen
        child.kill()
        assert child.wait(0) == -signal.SIGKILL
        with pytest.raises(ChildFailed, match="has ended"):
            child.stop()


def test_terminate_lets_it_end_by_itself():
    with Child(f"{HERE}:tick") as child:
        child.terminate()
        assert child.wait(LIMIT_S) == 7


def test_close_ends_what_the_child_started():
    before = take_stock()
    child = Child(f"{HERE}:start_another")
    other = int(child.ready)
    assert other in descendants(os.getpid())
    assert session_members(child.pid) == sorted([child.pid, other])
    child.kill()
    assert session_members(child.pid) == [other]
    child.close()
    child.close()
    assert not left_behind(before)
    assert not session_members(child.pid)


def test_a_child_ends_with_its_parent():
    with Child(f"{HERE}:parent") as child:
        grandchild = int(child.ready)
        child.kill()
        expiry = time.monotonic() + LIMIT_S
        while session_members(grandchild) and time.monotonic() < expiry:
            time.sleep(0.01)
        assert not session_members(grandchild)


# --------------------------------------------------------------------------------- the stock


def test_stock_names_what_was_left_behind(tmp_path):
    before = take_stock(folders=[tmp_path])
    assert not left_behind(before, folders=[tmp_path])
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="left-over", daemon=True)
    sock = socket.socket(socket.AF_UNIX)
    memory = os.memfd_create("left-over") if hasattr(os, "memfd_create") else -1
    try:
        thread.start()
        sock.bind(str(tmp_path / "left.sock"))
        left = "\n".join(left_behind(before, folders=[tmp_path], patience_s=0.0))
    finally:
        stop.set()
        thread.join()
        sock.close()
        if memory >= 0:
            os.close(memory)
    assert "threads: left-over" in left
    assert f"sockets: {tmp_path}/left.sock" in left
    if sys.platform == "linux":
        assert "socket:[" in left
        assert "memfd:left-over" in left
    (tmp_path / "left.sock").unlink()
    assert not left_behind(before, folders=[tmp_path])


def test_stock_ignores_what_it_is_told_to():
    before = take_stock()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="known-helper", daemon=True)
    thread.start()
    try:
        assert not left_behind(before, ignored=["known-helper"], patience_s=0.0)
        assert left_behind(before, patience_s=0.0)
    finally:
        stop.set()
        thread.join()
