"""Ids (R43): UUIDv7, time-ordered within a process, unique across processes, whatever the clock."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid

from rollmesh.ids import MINT, Uuid7Mint

NOON_NS = 1_700_000_000_000_000_000


class SteppingClock:
    """Wall time that goes through a list, then stands still."""

    def __init__(self, *times_ns):
        self.times_ns = list(times_ns)

    def wall_ns(self):
        return self.times_ns.pop(0) if len(self.times_ns) > 1 else self.times_ns[0]

    def monotonic_ns(self):
        return 0


def mint_many(count, *times_ns):
    mint = Uuid7Mint(SteppingClock(*times_ns))
    return [mint.mint() for _ in range(count)]


def millis_of(text):
    return uuid.UUID(text).int >> 80


def test_r43_an_id_is_a_uuid_of_version_7_in_its_usual_spelling():
    for text in mint_many(50, NOON_NS):
        parsed = uuid.UUID(text)
        assert str(parsed) == text
        assert parsed.version == 7
        assert parsed.variant == uuid.RFC_4122


def test_r43_an_id_begins_with_the_milliseconds_of_its_time():
    (text,) = mint_many(1, NOON_NS + 999_999)
    assert millis_of(text) == NOON_NS // 1_000_000


def test_r43_the_fraction_of_the_millisecond_orders_ids():
    texts = mint_many(4, NOON_NS, NOON_NS + 1_000, NOON_NS + 500_000, NOON_NS + 999_999)
    assert texts == sorted(texts)
    assert {millis_of(text) for text in texts} == {NOON_NS // 1_000_000}


def test_r43_ids_stay_ordered_while_the_clock_stands_still():
    texts = mint_many(10_000, NOON_NS)
    assert texts == sorted(set(texts))
    assert len(texts) == 10_000


def test_r43_ids_stay_ordered_when_the_clock_steps_back():
    hour_ns = 3_600_000_000_000
    texts = mint_many(6, NOON_NS, NOON_NS + 1, NOON_NS - hour_ns, 0, NOON_NS, NOON_NS + hour_ns)
    assert texts == sorted(set(texts))
    assert millis_of(texts[-1]) == (NOON_NS + hour_ns) // 1_000_000


def test_r43_a_clock_before_the_epoch_still_gives_ids():
    texts = mint_many(3, -NOON_NS)
    assert texts == sorted(set(texts))
    assert all(uuid.UUID(text).version == 7 for text in texts)


def test_r43_two_mints_at_the_same_moment_differ():
    ours, theirs = mint_many(1000, NOON_NS), mint_many(1000, NOON_NS)
    assert not set(ours) & set(theirs)


def test_r43_ids_of_two_processes_differ():
    code = "from rollmesh.ids import MINT; print(*[MINT.mint() for _ in range(500)])"
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"]
    outputs = [
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=50).stdout
        for _ in range(2)
    ]
    ids = [text for output in outputs for text in output.split()]
    assert len(set(ids)) == len(ids) == 1000


def test_r43_threads_share_a_mint_and_each_sees_its_own_ids_in_order():
    per_thread: list[list[str]] = [[] for _ in range(4)]

    def mint(texts):
        for _ in range(2000):
            texts.append(MINT.mint())

    threads = [threading.Thread(target=mint, args=(texts,)) for texts in per_thread]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert all(texts == sorted(texts) for texts in per_thread)
    assert len({text for texts in per_thread for text in texts}) == 8000
