"""Ends of workers in words: the cause, what it means, and the lines that tell most."""

from __future__ import annotations

import signal

import pytest

from rollmesh.errors import WorkerLost
from rollmesh.fleet import exits
from rollmesh.fleet.exits import WorkerExit, in_short, out_of_memory_kills, telling, worker_lost

STACK = (
    "loading the scene",
    "Fatal Python error: Segmentation fault",
    "",
    "Current thread 0x1 (most recent call first):",
    *[f'  File "a.py", line {line} in f' for line in range(30)],
)


@pytest.mark.parametrize(
    ("how", "cause", "sentence"),
    [
        (WorkerExit(code=7), "exit code 7", "exited with code 7"),
        (WorkerExit(code=-signal.SIGSEGV), "SIGSEGV", "died of SIGSEGV"),
        (WorkerExit(code=-63), "signal 63", "died of signal 63"),
        (WorkerExit(code=None), "gone", "is gone"),
        (WorkerExit(code=None, detail="no node"), "no node", "is gone (no node)"),
        (
            WorkerExit(code=-signal.SIGKILL, was_out_of_memory=True),
            "out of memory",
            "was killed by the kernel, as memory was short",
        ),
    ],
)
def test_an_end_has_a_cause_and_a_sentence(how, cause, sentence):
    assert (how.cause, how.sentence) == (cause, sentence)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGKILL])
def test_signals_that_env_code_dies_of_have_a_hint(number):
    assert WorkerExit(code=-number).hint


def test_a_signal_that_nobody_knows_has_none():
    assert not WorkerExit(code=-63).hint
    assert not WorkerExit(code=None).hint
    assert "os._exit" in WorkerExit(code=7).hint


def test_a_fault_tells_who_how_doing_what_and_the_last_lines():
    how = WorkerExit(code=7, last_lines=("no licence", "giving up"))
    fault = worker_lost("worker 3 (pid 4711)", how, worker=3, doing="in env.step 5 (seed 8)")
    assert isinstance(fault, WorkerLost)
    assert fault.detail.startswith("worker 3 (pid 4711) exited with code 7 in env.step 5 (seed 8)")
    assert fault.detail.endswith("it wrote last: giving up\n  | no licence\n  | giving up")
    assert (fault.worker, fault.cause) == (3, "exit code 7")
    assert fault.last_lines == ("no licence", "giving up")


def test_one_that_was_killed_here_is_told_by_why_and_not_by_the_signal():
    fault = worker_lost(
        "worker 0",
        WorkerExit(code=-signal.SIGKILL),
        worker=0,
        doing="in env.reset",
        killed_for="it did not come back in time",
    )
    assert fault.cause == "it did not come back in time"
    assert "was killed here in env.reset" in fault.detail
    assert "SIGKILL" not in fault.detail


def test_of_a_stack_its_head_is_told():
    lines = telling(STACK)
    assert lines[0] == STACK[1]
    assert lines[1] == STACK[3]
    assert lines[2].endswith("line 0 in f")
    assert len(lines) < 15


def test_the_first_line_of_a_fault_says_all_that_matters():
    stack = worker_lost("w", WorkerExit(code=-11, last_lines=STACK), worker=0, doing="in env.step")
    first, _, rest = stack.detail.partition("\n")
    assert STACK[1] in first
    assert 'File "a.py", line 0 in f < File "a.py", line 1 in f' in first
    assert rest.count("\n") > 5
    one = worker_lost("w", WorkerExit(code=7, last_lines=("no licence",)), worker=0, doing="")
    assert one.detail.endswith("it wrote last: no licence")
    none = worker_lost("w", WorkerExit(code=7), worker=0, doing="")
    assert "wrote" not in none.detail
    assert in_short([]) == ""


def test_of_other_lines_the_last_ones_are_told():
    assert telling([str(number) for number in range(30)]) == [str(n) for n in range(20, 30)]
    assert telling([]) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [("low 0\noom 3\noom_kill 2\n", 2), ("oom_kill many\n", 0), ("oom_kill \n", 0), ("", 0)],
)
def test_the_kernels_count_of_kills_is_read(tmp_path, monkeypatch, text, count):
    file = tmp_path / "memory.events"
    file.write_text(text)
    monkeypatch.setattr(exits, "_MEMORY_EVENTS", file)
    assert out_of_memory_kills() == count
    file.unlink()
    assert out_of_memory_kills() == 0
