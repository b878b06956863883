"""Waiting for bytes: the deadline, the end, and when one looks again before sleeping."""

from __future__ import annotations

import time

import pytest

from rollmesh.transport.patience import Late, PatientReader
from rollmesh.transport.spin import Spinner


class Script:
    """A stream whose reads and waits follow a script; None is a read that finds nothing."""

    can_scatter = False

    def __init__(self, *reads, waits=()):
        self.reads = list(reads)
        self.waits = list(waits)
        self.waited = []
        self.taken = 0

    def read(self, buffer):
        count = self.reads.pop(0)
        if count is None:
            raise BlockingIOError
        return count

    def take(self, buffer):
        self.taken += 1
        return self.read(buffer)

    def wait(self, timeout_s, least=1):
        self.waited.append((timeout_s, least))
        return self.waits.pop(0)


def reader_of(stream, spin="never"):
    return PatientReader(stream, Spinner(spin))


def first(stream, expiry, spin="never"):
    return reader_of(stream, spin).first(stream.read, stream.take, bytearray(8), expiry)


def soon():
    return time.monotonic() + 10.0


def test_without_a_deadline_the_first_bytes_are_taken_in_one_call():
    stream = Script(5)
    assert first(stream, None) == 5
    assert (stream.taken, stream.waited) == (1, [])


def test_with_a_deadline_one_waits_and_reads_again_where_nothing_was_there_after_all():
    stream = Script(None, 3, waits=[True, True])
    assert first(stream, soon()) == 3
    assert len(stream.waited) == 2


@pytest.mark.parametrize("spin", ["never", "always"])
def test_a_deadline_that_is_over_still_looks_once(spin):
    stream = Script(*[None] * 10**5, waits=[False])
    with pytest.raises(Late):
        first(stream, time.monotonic() - 1.0, spin)
    assert [timeout_s for timeout_s, _ in stream.waited] == [0.0]


def test_a_spin_that_sees_the_bytes_never_sleeps():
    stream = Script(None, None, 4)
    assert first(stream, soon(), "always") == 4
    assert stream.waited == []


@pytest.mark.parametrize("expiry", [None, 10.0**9])
def test_the_end_is_told_apart_from_nothing(expiry):
    with pytest.raises(EOFError, match=r"closed the connection$"):
        first(Script(0, waits=[True]), expiry)
    with pytest.raises(EOFError, match="in the middle of a message"):
        reader_of(Script(0)).rest(memoryview(bytearray(8)), expiry)


def test_the_rest_sleeps_until_as_much_as_is_to_come():
    stream = Script(None, 8, waits=[True])
    assert reader_of(stream).rest(memoryview(bytearray(8)), None, 8) == 8
    assert stream.waited == [(None, 8)]


def test_the_rest_of_a_message_is_late_like_its_beginning():
    with pytest.raises(Late):
        reader_of(Script(None, waits=[False])).rest(memoryview(bytearray(8)), soon())
