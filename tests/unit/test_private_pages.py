"""Private pages: what a user may write into, without a copy, and nobody else ever sees."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import numpy as np
import pytest

from rollmesh.transport import shared_memory
from rollmesh.transport.private_pages import Pagemap, PrivatePages, open_pagemap
from rollmesh.transport.shared_memory import MOST_SLOTS
from tests.unit.frame_toys import CAMERA
from tests.unit.test_shared_memory import LIMIT_S, camera, camera_pair, shades

pytestmark = pytest.mark.skipif(open_pagemap() is None, reason="no page map on this platform")
CODEC = CAMERA.codec
PAGE = mmap.PAGESIZE


@pytest.fixture
def file():
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, 4 * PAGE)
    os.pwrite(descriptor, b"file" * PAGE, 0)
    yield descriptor
    os.close(descriptor)


@pytest.fixture(autouse=True)
def _also_for_a_camera(monkeypatch):
    monkeypatch.setattr(shared_memory, "_LEAST_TWIN_BYTES", 2**16)


@pytest.fixture
def pair():
    """Both ends of a connection, the second of which lends what it receives."""
    ours, theirs = camera_pair(lent=True)
    with ours, theirs:
        yield ours, theirs


def taken(connection):
    """Return how many slots of a sender are taken."""
    return sum(connection._ring._states[:MOST_SLOTS])


def received(pair, shade):
    ours, theirs = pair
    ours.send(camera(shade), LIMIT_S)
    return theirs.receive(LIMIT_S)


def own(message):
    return CODEC.decode(message.body.observation, 0, copy=True)


# ------------------------------------------------------------------------------------ pages


def test_what_is_written_stays_out_of_the_file(file):
    pages = PrivatePages(file, 0, 4 * PAGE)
    pages.mapping[PAGE : PAGE + 4] = b"mine"
    assert os.pread(file, 4, PAGE) == b"file"
    assert pages.mapping[PAGE : PAGE + 4] == b"mine"


@pytest.mark.parametrize("page", range(4))
def test_a_written_page_is_found_and_shows_the_file_again(file, page):
    pages, pagemap = PrivatePages(file, 0, 4 * PAGE), Pagemap()
    assert not pages.clean(pagemap)
    pages.mapping[page * PAGE + 7] = 1
    assert pages.clean(pagemap)
    assert pages.mapping[:] == b"file" * PAGE
    assert not pages.clean(pagemap)


def test_the_file_shows_through_where_nothing_was_written(file):
    pages = PrivatePages(file, PAGE, 2 * PAGE)
    os.pwrite(file, b"next", 2 * PAGE)
    assert pages.mapping[PAGE : PAGE + 4] == b"next"


def test_where_nothing_is_told_every_page_counts_as_written(file):
    pages, pagemap = PrivatePages(file, 0, PAGE), Pagemap()
    pages.mapping[0] = 1
    pagemap._process += 1  # as after a fork: the map would be the one of the other process
    assert pages.clean(pagemap)
    assert pages.mapping[:4] == b"file"


_FORK = """
import os
from rollmesh.transport.private_pages import PrivatePages

file = os.memfd_create("test")
os.pwrite(file, b"file" * 4096, 0)
pages = PrivatePages(file, 0, 4 * 4096)
pages.is_given = True
ready, go = os.pipe()
child = os.fork()
if not child:
    os.close(go)
    os.read(ready, 1)
    os._exit(0 if pages.mapping[:] == b"file" * 4096 else 1)
os.pwrite(file, b"next" * 4096, 0)
os.close(go)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), pages.mapping[:4])
"""


def test_a_forked_process_keeps_what_its_parent_was_given():
    done = subprocess.run(
        [sys.executable, "-c", _FORK], capture_output=True, timeout=30, check=True
    )
    assert done.stdout == b"0 b'file'\n"


# ------------------------------------------------------------------------------- connections


def test_an_observation_of_ones_own_holds_the_slot_instead_of_a_copy(pair):
    message = received(pair, 3)
    value = own(message)
    del message
    assert taken(pair[0]) == 1
    assert value.flags.writeable
    assert value.flags.c_contiguous
    assert value.shape == (256, 256, 3)
    part = memoryview(value[5])
    del value
    assert taken(pair[0]) == 1
    del part
    assert taken(pair[0]) == 0


def test_what_a_policy_writes_changes_nothing_for_others(pair):
    message = received(pair, 3)
    value = own(message)
    value[:] = 200
    assert shades(message) == (3, 3)
    assert own(message).max() == 3


def test_each_is_given_once_and_then_copied(pair):
    message = received(pair, 3)
    first, second = own(message), own(message)
    whole = CODEC.decode_stacked(message.body.observation, 1, copy=True)
    first[:] = 1
    second[:] = 2
    whole[:] = 4
    assert (first.max(), second.max(), whole.min(), shades(message)) == (1, 2, 4, (3, 3))


def test_rows_that_were_given_are_not_given_again_with_the_batch():
    ours, theirs = camera_pair(lent=True)
    with ours, theirs:
        for end in (ours, theirs):
            end.framing.bind(CODEC, CODEC, 3)
        message = camera(0)
        image = np.stack([np.full((256, 256, 3), row, np.uint8) for row in range(3)])
        message.body.observation, message.body.rewards = [image], (0.0,) * 3
        message.body.infos = ({},) * 3
        ours.send(message, LIMIT_S)
        leaves = theirs.receive(LIMIT_S).body.observation
        middle = CODEC.decode(leaves, 1, copy=True)
        last = CODEC.decode(leaves, 2, copy=True)
        middle[:] = 100
        last[0] += 50
        batch = CODEC.decode_stacked(leaves, 3, copy=True)
        assert [int(row.max()) for row in batch] == [0, 1, 2]
        assert (int(middle.min()), int(last[0].min()), int(last[1:].max())) == (100, 52, 2)


def test_what_was_written_is_gone_with_the_next_payload_of_the_slot(pair):
    for shade in range(250):
        message = received(pair, shade)
        value = own(message)
        assert (value.min(), value.max()) == (shade, shade)
        assert shades(message) == (shade, shade)
        if shade % 7 == 0:
            value[shade] = 255
        del message, value
    assert len(pair[0]._ring._slots) == 2  # which take turns


def test_whoever_writes_gets_copies_for_a_while(pair):
    own(received(pair, 1))[0] = 9
    own(received(pair, 2))  # here it is found
    message = received(pair, 3)
    value = own(message)
    del message
    assert taken(pair[0]) == 0
    assert value.max() == 3


def test_whoever_keeps_many_gets_copies_so_that_slots_are_left(pair):
    kept = [own(received(pair, shade)) for shade in range(30)]
    assert taken(pair[0]) <= MOST_SLOTS // 2 + 1
    assert [(int(one.min()), int(one.max())) for one in kept] == [(s, s) for s in range(30)]


def test_what_is_kept_outlives_the_connection():
    ours, theirs = camera_pair(lent=True)
    with ours, theirs:
        value = own(received((ours, theirs), 5))
    value[0] = 6
    assert (value[0].min(), value[1:].max()) == (6, 5)


def test_where_the_system_tells_nothing_it_is_a_copy(monkeypatch):
    monkeypatch.setattr(shared_memory, "open_pagemap", lambda: None)
    ours, theirs = camera_pair(lent=True)
    with ours, theirs:
        value = own(received((ours, theirs), 5))
        assert taken(ours) == 0
        assert value.flags.writeable
        assert value.max() == 5


def test_a_payload_that_fits_a_cache_is_a_copy(monkeypatch, pair):
    monkeypatch.setattr(shared_memory, "_LEAST_TWIN_BYTES", 2**20)
    value = own(received(pair, 5))
    assert taken(pair[0]) == 0
    assert value.max() == 5


def test_received_views_stay_read_only(pair):
    leaf = received(pair, 5).body.observation[0]
    with pytest.raises(ValueError, match="read-only"):
        leaf[0] = 1
    assert not CODEC.decode([leaf], 0).flags.writeable
