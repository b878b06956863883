"""The cross-process half of the benchmarks: children, and what is driven through them.

Servers are started for real, for a few steps each; no time is measured.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import (
    __main__ as command,
)
from benchmarks import (
    across_processes,
    bare,
    children,
    harness,
    remote,
    scaling,
    served,
    subjects,
    workloads,
)

FAKE = """
import sys, time
words = sys.argv[1:]
if words[0] == "dies":
    sys.stderr.write("no such env")
    sys.exit(3)
if words[0] == "says":
    print(words[1], flush=True)
time.sleep(60)
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Children are a small program, named by a module of its own."""
    (tmp_path / "fake_server.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda *words: children.Child(words, module="fake_server")


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_child_says_where_it_can_be_reached_and_is_ended(fake):
    child = fake("says", "READY somewhere")
    assert child.address() == "somewhere"
    child.end()
    child.end()
    assert not is_alive(child.pid)


def test_a_child_that_ends_early_is_told_with_its_last_words(fake):
    child = fake("dies")
    with pytest.raises(RuntimeError, match=r"ended with 3:\nno such env"):
        child.address()
    child.end()


def test_a_child_that_says_something_else_is_refused(fake):
    child = fake("says", "hello")
    with pytest.raises(RuntimeError, match="said 'hello'"):
        child.address()
    child.end()


def test_a_child_that_says_nothing_is_not_waited_for_for_ever(fake):
    child = fake("waits")
    with pytest.raises(RuntimeError, match=r"said nothing within 0\.01 s"):
        child.address(0.01)
    child.end()


def test_a_child_has_a_folder_for_as_long_as_it_lives(fake):
    child = fake("says", f"READY {children.FOLDER}/socket")
    folder = Path(child.address()).parent
    assert folder.is_dir()
    child.end()
    assert not folder.exists()


def test_a_driven_subject_connects_once_and_ends_its_children(monkeypatch):
    log = []

    class FakeChild:
        def __init__(self, arguments):
            self.name = arguments[0]
            log.append(f"start {self.name}")

        def address(self):
            return f"at {self.name}"

        def end(self):
            log.append(f"end {self.name}")

    def connect(*addresses):
        log.append(addresses)
        return children.Drive(run=lambda bouts: 7 * bouts, close=lambda: log.append("close"))

    monkeypatch.setattr(children, "Child", FakeChild)
    subject = children.driven("A", [["env"], ["model"]], connect)
    assert log == ["start env", "start model"]
    subject.prepare()
    assert subject.run(3) == 21
    subject.close()
    assert log[2:] == [("at env", "at model"), "close", "end model", "end env"]


def test_children_that_are_there_are_ended_where_another_cannot_start(monkeypatch):
    ended = []

    class FakeChild:
        def __init__(self, arguments):
            if arguments[0] == "bad":
                raise OSError("no room")
            self.name = arguments[0]

        def end(self):
            ended.append(self.name)

    monkeypatch.setattr(children, "Child", FakeChild)
    with pytest.raises(OSError, match="no room"):
        children.driven("A", [["good"], ["bad"]], lambda *_: pytest.fail("connected"))
    assert ended == ["good"]


def test_subjects_are_prepared_before_the_first_one_runs():
    log = []
    clock = iter(range(0, 10**12, 10**6))

    def subject(name):
        return harness.Subject(
            name=name,
            run=lambda bouts: log.append(f"run {name}") or bouts,
            prepare=lambda: log.append(f"prepare {name}"),
        )

    timing = harness.Timing(repetitions=1, burst_s=1e-3, warmup_s=0.0)
    harness.compare([subject("A"), subject("B")], timing, clock_ns=lambda: next(clock))
    assert log[:2] == ["prepare A", "prepare B"]
    assert set(log[2:]) == {"run A", "run B"}


# ----------------------------------------------------------------------------- workloads


@pytest.mark.parametrize(
    "workload",
    [workloads.scalar(7), workloads.frames(7), workloads.robot(7), workloads.payload(9, 7)],
)
def test_another_process_finds_a_workload_by_its_key(workload):
    found = workloads.named(workload.key)
    assert (found.name, found.key) == (workload.name, workload.key)
    assert found.make().observation_space == workload.make().observation_space


@pytest.mark.parametrize("key", ["", "nonsense:3", "robot:x", "scalar:1:2:3"])
def test_a_key_that_names_no_workload_is_refused(key):
    with pytest.raises(ValueError, match="no workload"):
        workloads.named(key)


# ------------------------------------------------------------------------ goals and rows


def test_every_goal_names_subjects_that_its_row_has():
    for workload, goals in (
        (workloads.scalar(7), across_processes.W1_GOALS),
        (workloads.robot(7), across_processes.W3_GOALS),
    ):
        names = [entry.name for entry in across_processes._env_entries(workload)]
        assert len(set(names)) == len(names)
        for goal in goals:
            assert {goal.subject, goal.base} <= set(names)


def test_rows_across_processes_can_be_asked_for():
    for name in ("env-w1", "env-w3", "both", "processes", "bare", "lanes-across"):
        assert name in command.ROWS


def test_growth_is_drawn_against_what_a_process_a_lane_can_still_do(monkeypatch):
    asked = {}

    def measure(row, entries, x, *, timing, base, into):
        asked[x] = [entry.name for entry in entries]
        into.setdefault("any", []).append((x, 1.0 + x))
        return []

    monkeypatch.setattr(scaling, "_measure", measure)
    _, text = scaling.lanes_across_row(harness.Timing(), folder=None, short=False)
    assert subjects.ASYNC in asked[64]
    assert subjects.ASYNC not in asked[256]
    assert text.startswith("across processes: steps/s against lanes")


# ------------------------------------------------------------------- for real, a few steps


def played(entry, bouts=1):
    """Build, run and close a subject; return the units."""
    subject = entry.build()
    try:
        subject.prepare()
        return subject.run(bouts)
    finally:
        subject.close()


@pytest.mark.parametrize(
    "entry",
    [
        remote.ours("unix", workloads.scalar(5)),
        remote.ours("blocking", workloads.scalar(5), spins=False),
        remote.ours("lanes", workloads.scalar(5), num_envs=2),
        remote.ours("grpc", workloads.scalar(5), address=remote.TCP),
        remote.our_env("by hand", workloads.robot(5)),
        remote.ours_both("both", workloads.scalar(5)),
    ],
    ids=lambda entry: entry.name,
)
def test_ours_are_driven_across_processes(entry):
    assert played(entry, 2) >= 10


@pytest.mark.parametrize("workload", [workloads.scalar(5), workloads.robot(5)])
def test_bare_connections_play_ping_pong(workload):
    assert played(bare.native("native", workload, views=True)) == 50
    assert played(bare.grpc_stream("grpc", workload)) == 50


def test_served_wants_a_kind_and_a_workload(capsys):
    with pytest.raises(SystemExit):
        served.main(["nonsense", "--workload", "robot:1"])
    with pytest.raises(SystemExit):
        served.main(["bare", "--workload", "nonsense"])
    assert "nonsense" in capsys.readouterr().err
