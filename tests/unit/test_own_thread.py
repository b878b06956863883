"""OwnThread: order, one thread, abandon, stop (rule R49)."""

from __future__ import annotations

import gc
import os
import queue
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

import rollmesh
from rollmesh.endpoint.own_thread import OwnThread

WAIT_S = 5.0


@pytest.fixture
def thread():
    own = OwnThread("test")
    yield own
    own.stop()
    assert own.abandoned or own.join(WAIT_S)


def results_of(own, *calls):
    box = queue.SimpleQueue()
    for call in calls:
        own.submit(call, box.put)
    return [box.get(timeout=WAIT_S) for _ in calls]


def test_r49_runs_every_call_on_one_daemon_thread_in_order(thread):
    got = results_of(thread, *[threading.current_thread] * 3, lambda: 7)
    assert got[0] is got[1] is got[2]
    assert got[3] == 7
    assert got[0].daemon
    assert got[0] is not threading.current_thread()


def test_starts_lazily():
    before = threading.active_count()
    own = OwnThread("lazy")
    assert threading.active_count() == before
    own.stop()
    own.join(WAIT_S)
    assert threading.active_count() == before


def test_passes_arguments(thread):
    box = queue.SimpleQueue()
    thread.submit(pow, box.put, 2, 5)
    assert box.get(timeout=WAIT_S) == 32


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_r49_gives_the_callback_what_was_raised_and_lives_on(thread, kind):
    def fail():
        raise kind("why")

    first, second = results_of(thread, fail, lambda: 1)
    assert type(first) is kind
    assert first.args == ("why",)
    assert second == 1


def test_logs_a_callback_that_raises_and_lives_on(thread, caplog):
    def bad(result):
        raise RuntimeError("callback")

    thread.submit(int, bad)
    assert results_of(thread, lambda: 3) == [3]
    assert "callback_failed" in caplog.text


def test_many_writers_lose_nothing(thread):
    box = queue.SimpleQueue()

    def write(start):
        for number in range(start, start + 200):
            thread.submit(lambda n=number: n, box.put)

    writers = [threading.Thread(target=write, args=(start,)) for start in (0, 200, 400)]
    for writer in writers:
        writer.start()
    got = sorted(box.get(timeout=WAIT_S) for _ in range(600))
    for writer in writers:
        writer.join()
    assert got == list(range(600))


def test_call_returns_raises_and_times_out(thread):
    assert thread.call(lambda: 4, None, "four") == 4
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 // 0, 1.0, "nought")
    hold = threading.Event()
    with pytest.raises(TimeoutError, match=r"building it did not come back within 0\.01 s"):
        thread.call(hold.wait, 0.01, "building it")
    hold.set()
    assert thread.call(lambda: 5, WAIT_S, "five") == 5


def test_call_from_its_own_thread_runs_at_once(thread):
    assert thread.call(lambda: thread.call(thread.is_current, 1.0, "inner"), 1.0, "outer")
    assert not thread.is_current()


def test_r49_abandon_lets_nothing_further_begin():
    own = OwnThread("abandoned")
    hold, began, ran = threading.Event(), threading.Event(), []

    def hang():
        began.set()
        hold.wait(WAIT_S)
        return "late"

    own.submit(hang, ran.append)
    own.submit(lambda: ran.append("second"), ran.append)
    assert began.wait(WAIT_S)
    own.abandon()
    assert own.abandoned
    with pytest.raises(RuntimeError, match="was abandoned"):
        own.submit(int, ran.append)
    hold.set()
    assert own.join(WAIT_S)
    assert ran == []


def test_stop_finishes_what_was_submitted_and_refuses_the_rest():
    own = OwnThread("stopped")
    box = queue.SimpleQueue()
    own.submit(lambda: 1, box.put)
    own.stop()
    own.stop()
    assert box.get(timeout=WAIT_S) == 1
    assert own.join(WAIT_S)
    with pytest.raises(RuntimeError, match="was stopped"):
        own.submit(int, box.put)


def test_an_idle_thread_holds_no_result(thread):
    class Big:
        pass

    box = queue.SimpleQueue()
    thread.submit(Big, box.put)
    gone = weakref.ref(box.get(timeout=WAIT_S))
    results_of(thread, int)
    gc.collect()
    assert gone() is None


def test_r49_the_process_exits_though_a_call_hangs():
    code = (
        "import threading\n"
        "from rollmesh.endpoint.own_thread import OwnThread\n"
        "own, began = OwnThread('hung'), threading.Event()\n"
        "own.submit(lambda: (began.set(), threading.Event().wait()), print)\n"
        "began.wait(); own.abandon(); print('out')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(rollmesh.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "out"
