"""The thread that commits in groups."""

from __future__ import annotations

import threading

import pytest

from rollmesh.runs.writer import GroupWriter

WAIT_S = 10.0


class Disk:
    """Keeps groups; can be held, and can fail."""

    def __init__(self):
        self.groups: list[list[int]] = []
        self.failures: list[Exception] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_asked = threading.Event()
        self.error: Exception | None = None

    def commit(self, group):
        self.is_asked.set()
        assert self.may_go_on.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        self.groups.append(list(group))

    @property
    def items(self):
        return [item for group in self.groups for item in group]


def writer_of(disk):
    return GroupWriter(disk.commit, disk.failures.append)


def test_items_are_committed_in_order_and_flush_waits_for_them():
    disk = Disk()
    writer = writer_of(disk)
    for item in range(1000):
        assert writer.put(item)
    assert writer.flush(WAIT_S)
    assert disk.items == list(range(1000))
    assert writer.close(WAIT_S)


def test_what_comes_while_the_disk_is_busy_becomes_one_group():
    disk = Disk()
    disk.may_go_on.clear()
    writer = writer_of(disk)
    writer.put(0)
    assert disk.is_asked.wait(WAIT_S)
    for item in range(1, 100):
        writer.put(item)
    assert not writer.flush(0.0)
    disk.may_go_on.set()
    assert writer.flush(WAIT_S)
    assert disk.groups == [[0], list(range(1, 100))]
    writer.close(WAIT_S)


def test_close_commits_what_is_queued_and_then_takes_nothing():
    disk = Disk()
    disk.may_go_on.clear()
    writer = writer_of(disk)
    writer.put(0)
    assert disk.is_asked.wait(WAIT_S)
    writer.put(1)
    assert not writer.close(0.0)
    disk.may_go_on.set()
    assert writer.close(WAIT_S)
    assert disk.items == [0, 1]
    assert not writer.put(2)
    assert writer.close(WAIT_S)


def test_after_a_failure_nothing_more_is_committed_and_nobody_waits():
    disk = Disk()
    disk.error = OSError(28, "full")
    disk.may_go_on.clear()
    writer = writer_of(disk)
    writer.put(0)
    assert disk.is_asked.wait(WAIT_S)
    writer.put(1)
    disk.may_go_on.set()
    assert not writer.flush(WAIT_S)
    assert disk.failures == [disk.error]
    assert disk.groups == []
    assert not writer.put(2)
    assert writer.close(WAIT_S)


def test_flush_of_nothing_returns_at_once():
    writer = writer_of(Disk())
    assert writer.flush(0.0)
    writer.close(WAIT_S)


def test_flush_on_its_own_thread_does_not_wait_for_itself():
    answers: list[bool] = []
    writer = GroupWriter(lambda _: answers.append(writer.flush(None)), answers.append)
    writer.put(0)
    assert writer.close(WAIT_S)
    assert answers == [False]


def test_close_on_its_own_thread_ends_it_after_the_group():
    writer = GroupWriter(lambda _: writer.close(None), lambda _: None)
    writer.put(0)
    assert writer.flush(WAIT_S)
    writer._thread.join(WAIT_S)
    assert not writer._thread.is_alive()


def test_under_load_commits_are_few():
    disk = Disk()
    writer = writer_of(disk)
    stop = threading.Event()
    commits_seen = threading.Semaphore(0)
    commit = disk.commit

    def counted(group):
        commit(group)
        commits_seen.release()
        if len(disk.groups) == 4:
            stop.set()

    writer._commit = counted
    number = 0
    while not stop.is_set():
        writer.put(number)
        number += 1
    writer.close(WAIT_S)
    assert disk.items == list(range(number))
    # Whatever the machine, a commit waits for its turn while items pile up.
    assert number > 10 * len(disk.groups)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_writer_that_could_not_even_tell_of_its_failure():
    disk = Disk()
    disk.error = OSError("full")
    writer = GroupWriter(disk.commit, lambda _: 1 / 0)
    writer.put(1)
    assert not writer.flush(WAIT_S)
    assert not writer.put(2)
    assert writer.close(WAIT_S)


def test_who_puts_lets_a_writer_that_is_far_behind_have_a_turn(monkeypatch):
    turns: list[float] = []
    monkeypatch.setattr("rollmesh.runs.writer.time.sleep", turns.append)
    disk = Disk()
    disk.may_go_on.clear()
    writer = writer_of(disk)
    assert writer.put(0)
    assert disk.is_asked.wait(WAIT_S)  # it has that one, and hangs
    for item in range(1, 501):
        assert writer.put(item)
    assert not turns
    for item in range(501, 511):
        assert writer.put(item)
    assert len(turns) == 10
    disk.may_go_on.set()
    assert writer.close(WAIT_S)
    assert disk.items == list(range(511))
