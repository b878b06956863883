"""Shared memory: slots, leases, recycled buffers, and that nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rollmesh.errors import ConnectionLost, WireError
from rollmesh.ports import StepReply
from rollmesh.transport.connection import ConnectionOptions
from rollmesh.transport.dialing import listen
from rollmesh.transport.native import NativeConnection
from rollmesh.transport.shared_memory import (
    MOST_SLOTS,
    Ring,
    Window,
    create_file,
    is_available,
)
from rollmesh.wire.frames import PAGE_BYTES
from rollmesh.wire.messages import Kind, Message
from tests.unit.frame_toys import ARM, CAMERA, on_thread

pytestmark = pytest.mark.skipif(not is_available(), reason="no memfd on this platform")
LIMIT_S = 10.0
MIB = 2**20


@pytest.fixture
def both():
    """A ring and the window to it."""
    descriptor = create_file()
    ring, window = Ring(descriptor), Window(os.dup(descriptor))
    yield ring, window
    ring.close()
    window.close()


def camera_pair(**options):
    left, right = socket.socketpair()
    chosen = ConnectionOptions(**options)
    ends = NativeConnection(left, "left", chosen), NativeConnection(right, "right", chosen)
    for end in ends:
        end.admit()
        end.framing.bind(CAMERA.codec, ARM.codec, 1)
    # each end hears the other's greeting before the first large payload
    ends[0].send(Message(Kind.PING, 1))
    ends[1].receive(LIMIT_S)
    ends[1].send(Message(Kind.PONG, 1))
    ends[0].receive(LIMIT_S)
    return ends


def camera(shade):
    image = np.full((1, 256, 256, 3), shade, np.uint8)
    body = StepReply(observation=[image], rewards=(0.0,), infos=({},))
    return Message(Kind.STEP, 1, body)


def shades(message):
    leaf = message.body.observation[0]
    return int(leaf.min()), int(leaf.max())


# -------------------------------------------------------------------------------- ring, window


def test_a_slot_is_taken_until_the_other_end_frees_it(both):
    ring, window = both
    first = ring.claim(100_000)
    second = ring.claim(100_000)
    assert first.index != second.index
    window.free(first.index)
    assert ring.claim(50_000) is first


def test_what_one_end_writes_the_other_sees(both):
    ring, window = both
    slot = ring.claim(10)
    slot.view[:10] = b"0123456789"
    assert bytes(window.view(slot.index, slot.page, 10)) == b"0123456789"
    assert not window.view(slot.index, slot.page, 10).flags.writeable


def test_a_ring_is_full_at_some_point(both):
    ring, _ = both
    slots = [ring.claim(100) for _ in range(MOST_SLOTS)]
    assert ring.claim(100) is None
    ring.give_back(slots[3])
    assert ring.claim(100) is slots[3]


def test_slots_grow_with_what_is_sent(both):
    ring, window = both
    for size in (1_000, 70_000, 300_000, 5 * MIB):
        slot = ring.claim(size)
        slot.view[size - 1] = 9
        assert window.view(slot.index, slot.page, size)[-1] == 9
        window.free(slot.index)
    assert slot.index == 0


def test_too_much_is_left_to_the_socket(both):
    ring, _ = both
    assert ring.claim(2**40) is None
    assert ring.claim(1000) is not None


def test_without_memory_the_socket_is_used(both, monkeypatch, caplog):
    ring, _ = both

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert ring.claim(1000) is None
    assert ring.claim(1000) is None
    assert [record.message for record in caplog.records] == [
        "shared_memory_off error=[Errno 28] No space left on device"
    ]


@pytest.mark.parametrize(
    ("slot", "page", "nbytes"),
    [
        (0, 0, 10),
        (0, 1, 2**28),
        (0, 10_000, 10),
        (MOST_SLOTS, 1, 10),
        (0, 2**32 - 1, 10),
        (0, 1, 0),
    ],
)
def test_p12_slots_that_are_not_there_are_refused(both, slot, page, nbytes):
    ring, window = both
    ring.claim(100)
    with pytest.raises(WireError):
        window.view(slot, page, nbytes)


def test_p12_a_file_that_could_shrink_is_refused():
    descriptor = os.memfd_create("x", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, PAGE_BYTES)
    with pytest.raises(WireError, match="not sealed"):
        Window(descriptor)
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_p12_what_is_no_memory_is_refused():
    reader, writer = os.pipe()
    os.close(writer)
    with pytest.raises(WireError, match="no shared memory"):
        Window(reader)


def test_p12_our_file_cannot_be_shrunk():
    descriptor = create_file()
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


def test_a_lease_is_released_once(both):
    ring, window = both
    slot = ring.claim(100)
    with window.lease(slot.index) as lease:
        assert ring._states[slot.index] == 1
    assert ring.claim(100) is not slot  # the one used last has a rest
    assert ring.claim(100) is slot
    lease.release()
    assert ring._states[slot.index] == 1


def test_two_slots_take_turns_and_are_all_it_takes(both):
    ring, window = both
    used = []
    for _ in range(6):
        slot = ring.claim(70_000)
        used.append(slot.index)
        window.free(slot.index)
    assert used == [0, 1, 0, 1, 0, 1]


def test_the_slot_used_last_is_made_larger_where_all_others_are_taken(both):
    ring, window = both
    held = [ring.claim(1000) for _ in range(MOST_SLOTS)]
    window.free(held[-1].index)
    larger = ring.claim(70_000)
    assert (larger.index, larger.room) == (held[-1].index, 2**17)
    assert ring.claim(1000) is None


# --------------------------------------------------------------------------------- connections


def test_large_payloads_leave_the_socket_alone():
    ours, theirs = camera_pair()
    with ours, theirs:
        seen = []
        stream = ours._stream
        write = stream.write
        stream.write = lambda parts, total, timeout_s: (
            seen.append(total) or write(parts, total, timeout_s)
        )
        for shade in range(5):
            ours.send(camera(shade), LIMIT_S)
            assert shades(theirs.receive(LIMIT_S)) == (shade, shade)
        assert seen == [48] * 5


def test_copies_are_the_receivers_own():
    ours, theirs = camera_pair(writable=True)
    with ours, theirs:
        kept = []
        for shade in range(20):
            ours.send(camera(shade), LIMIT_S)
            message = theirs.receive(LIMIT_S)
            assert message.lease is None
            message.body.observation[0][0, 0, 0, 0] += 100
            kept.append(message)
        for shade, message in enumerate(kept):
            assert shades(message) == (shade, shade + 100)


def test_a_view_stays_until_it_is_released_and_then_its_slot_is_used_again():
    ours, theirs = camera_pair(views=True)
    with ours, theirs:
        ours.send(camera(1), LIMIT_S)
        first = theirs.receive(LIMIT_S)
        for shade in range(2, 6):
            ours.send(camera(shade), LIMIT_S)
            with theirs.receive(LIMIT_S).lease:
                pass
        assert shades(first) == (1, 1)
        assert not first.body.observation[0].flags.writeable
        first.lease.release()
        for shade in (8, 9):
            ours.send(camera(shade), LIMIT_S)
            theirs.receive(LIMIT_S).lease.release()
        assert shades(first) != (1, 1)


def test_leases_that_are_kept_only_cost_speed():
    ours, theirs = camera_pair(views=True)
    with ours, theirs:
        kept = []
        for shade in range(MOST_SLOTS + 4):
            ours.send(camera(shade), LIMIT_S)
            kept.append(theirs.receive(LIMIT_S))
        assert [shades(message) for message in kept] == [(s, s) for s in range(MOST_SLOTS + 4)]
        assert [m.lease is not None for m in kept] == [True] * MOST_SLOTS + [False] * 4


def test_a_lent_payload_holds_its_slot_until_the_last_array_over_it_goes():
    ours, theirs = camera_pair(lent=True)
    with ours, theirs:
        ours.send(camera(1), LIMIT_S)
        message = theirs.receive(LIMIT_S)
        assert message.lease is None
        leaf = message.body.observation[0]
        assert not leaf.flags.writeable
        row = memoryview(leaf[0])
        del message, leaf
        for shade in range(2, 6):
            ours.send(camera(shade), LIMIT_S)
            assert shades(theirs.receive(LIMIT_S)) == (shade, shade)
        assert row[0, 0, 0] == 1
        assert len(ours._ring._slots) == 2
        del row
        ours.send(camera(6), LIMIT_S)
        assert sum(ours._ring._states[:MOST_SLOTS]) == 1


def test_lent_payloads_that_are_kept_only_cost_speed():
    ours, theirs = camera_pair(lent=True)
    with ours, theirs:
        kept = []
        for shade in range(MOST_SLOTS + 4):
            ours.send(camera(shade), LIMIT_S)
            kept.append(theirs.receive(LIMIT_S))
        assert [shades(message) for message in kept] == [(s, s) for s in range(MOST_SLOTS + 4)]
    assert [shades(message) for message in kept] == [(s, s) for s in range(MOST_SLOTS + 4)]


def test_views_outlive_their_connection():
    ours, theirs = camera_pair(views=True)
    with ours, theirs:
        ours.send(camera(3), LIMIT_S)
        message = theirs.receive(LIMIT_S)
    assert shades(message) == (3, 3)
    message.lease.release()


@pytest.mark.parametrize("sides", [(True, False), (False, True), (False, False)])
def test_one_end_without_shared_memory_is_enough_to_use_the_socket(sides):
    left, right = socket.socketpair()
    ends = [
        NativeConnection(sock, "x", ConnectionOptions(shared_memory=wanted))
        for sock, wanted in zip((left, right), sides, strict=True)
    ]
    for end in ends:
        end.admit()
        end.framing.bind(CAMERA.codec, ARM.codec, 1)
    with ends[0], ends[1]:
        for sender, receiver in (ends, ends[::-1], ends):
            sender.send(camera(5), LIMIT_S)
            message = receiver.receive(LIMIT_S)
            assert shades(message) == (5, 5)
        assert all(end._receiver.window is None for end in ends)


def test_a_platform_without_it_uses_the_socket(monkeypatch):
    monkeypatch.setattr("rollmesh.transport.greeting.is_available", lambda: False)
    ours, theirs = camera_pair()
    with ours, theirs:
        ours.send(camera(5), LIMIT_S)
        assert shades(theirs.receive(LIMIT_S)) == (5, 5)
        assert ours._ring is None


def test_the_threshold_can_be_set():
    ours, theirs = camera_pair(shared_threshold_bytes=10**9, views=True)
    with ours, theirs:
        ours.send(camera(5), LIMIT_S)
        assert theirs.receive(LIMIT_S).lease is None


# ------------------------------------------------------------------------------ recycled buffers


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("writable", [True, False])
def test_a_buffer_is_used_again_only_when_nobody_holds_it(shared, writable):
    ours, theirs = camera_pair(shared_memory=shared, writable=writable)

    def receive(shade):
        with on_thread(ours.send, camera(shade), LIMIT_S):
            return theirs.receive(LIMIT_S).body.observation[0]

    with ours, theirs:
        row = receive(1)[0, 5]
        others = [receive(shade) for shade in range(2, 12)]
        assert (row == 1).all()
        places = {leaf.ctypes.data for leaf in others}
        assert len(places) == 10
        del others
        for shade in range(12, 20):
            assert receive(shade).ctypes.data in places
        assert (row == 1).all()


# --------------------------------------------------------------------------------------- leaks


def descriptors():
    gc.collect()  # what an earlier test left to it
    return len(list(Path("/proc/self/fd").iterdir()))


def mappings():
    gc.collect()
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:rollmesh")


def test_p11_nothing_is_left_after_many_connections():
    def once():
        ours, theirs = camera_pair()
        with ours, theirs:
            ours.send(camera(5), LIMIT_S)
            theirs.receive(LIMIT_S)

    once()
    before = descriptors(), mappings()
    for _ in range(20):
        once()
    assert (descriptors(), mappings()) == before


CHILD = """
import os, signal, sys
sys.path[:0] = {path!r}
import numpy as np
from tests.unit.test_shared_memory import camera, ARM, CAMERA, LIMIT_S
from rollmesh.transport.dialing import dial
client = dial({address!r})
client.framing.bind(CAMERA.codec, ARM.codec, 1)
client.receive(LIMIT_S)
client.send(camera(4), LIMIT_S)
client.receive(LIMIT_S)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_p11_nothing_is_left_when_the_other_end_is_killed():
    with listen("rollmesh+unix://") as listener:
        before = descriptors(), mappings()
        code = CHILD.format(path=[p for p in sys.path if p], address=str(listener.address))
        child = subprocess.Popen([sys.executable, "-c", code])
        with listener.accept(30) as server:
            server.admit()
            server.framing.bind(CAMERA.codec, ARM.codec, 1)
            server.send(Message(Kind.PING, 1))
            assert shades(server.receive(30)) == (4, 4)
            assert server._receiver.window is not None
            server.send(camera(9), LIMIT_S)
            assert child.wait(30) == -signal.SIGKILL
            with pytest.raises(ConnectionLost):
                server.receive(LIMIT_S)
        del server
        assert (descriptors(), mappings()) == before
