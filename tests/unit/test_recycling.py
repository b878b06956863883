"""Large arrays share memory with nothing that somebody still holds, and use it again after that."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from rollmesh.spaces import recycling
from rollmesh.spaces.recycling import Recycler
from rollmesh.spaces.space import Box, Dict

U1 = np.dtype(np.uint8)
SIZE = recycling.WORTH_BYTES

pytestmark = pytest.mark.skipif(not recycling._HAS_GIL, reason="recycles with a GIL only")


def fresh(recycler):
    return recycler.array((SIZE,), U1, SIZE)


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_once_nobody_holds_it():
    recycler = Recycler()
    array = fresh(recycler)
    where = address(array)
    del array
    assert address(fresh(recycler)) == where


@pytest.mark.parametrize(
    "hold",
    [
        lambda array: array,
        lambda array: array[::2],
        lambda array: array.view(np.float32).reshape(2, -1),
        memoryview,
        lambda array: memoryview(array).cast("B")[10:],
        lambda array: np.frombuffer(array, np.uint8),
        np.from_dlpack,
        lambda array: array.base,
    ],
)
def test_memory_in_use_is_never_handed_out(hold):
    recycler = Recycler()
    array = fresh(recycler)
    where = address(array)
    held = hold(array)
    del array
    gc.collect()
    others = [fresh(recycler) for _ in range(10)]
    assert where not in {address(other) for other in others}
    del held


def test_what_is_kept_is_bounded():
    recycler = Recycler()
    held = [fresh(recycler) for _ in range(recycling._KEPT_BUFFERS + 50)]
    assert len(recycler._kept[SIZE]) == recycling._KEPT_BUFFERS
    for doubled in range(1, 10):
        recycler.array((SIZE << doubled,), U1, SIZE << doubled)
    assert len(recycler._kept) == recycling._KEPT_SIZES
    assert len({address(array) for array in held}) == len(held)
    large = recycling.KEPT_BYTES // 4
    for _ in range(9):
        recycler = Recycler()
        held = [recycler.array((large,), U1, large) for _ in range(9)]
        assert len(recycler._kept[large]) == 4


def test_values_kept_by_the_caller_keep_their_content():
    space = Dict({"frame": Box((256, 256, 3), np.uint8)})
    codec, kept = space.codec, []
    for number in range(40):
        frame = np.full((256, 256, 3), number, np.uint8)
        leaves = codec.encode({"frame": frame})
        batch = codec.gather([(leaves, 0), (leaves, 0)])
        stacked = codec.encode_stacked({"frame": np.stack([frame, frame])}, 2)
        if number % 3 == 0:
            part = codec.put(batch, [1], codec.take(stacked, [0]))
            copy = codec.decode(leaves, copy=True)["frame"]
            kept.append((number, [leaves[0], batch[0], stacked[0], part[0], copy, copy[5:]]))
    for number, arrays in kept:
        for array in arrays:
            assert array.min() == number
            assert array.max() == number


def test_a_user_who_changes_the_shape_of_a_copy_changes_nothing_else():
    space = Box((256, 256), np.uint8)
    leaves = space.codec.encode(np.zeros((256, 256), np.uint8))
    copy = space.codec.decode(leaves, copy=True)
    copy.flags.writeable = False
    del copy
    again = space.codec.decode(leaves, copy=True)
    assert again.flags.writeable
    assert again.shape == (256, 256)


def test_threads_never_share_a_buffer():
    recycler, clashes = Recycler(), []

    def work(number):
        for _ in range(300):
            array = fresh(recycler)
            array[:] = number
            if array.min() != number or array.max() != number:
                clashes.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not clashes


def test_the_buffer_used_last_comes_first_and_the_oldest_next():
    recycler = Recycler()
    first, second = fresh(recycler), fresh(recycler)
    where = [address(first), address(second)]
    del first, second
    assert address(fresh(recycler)) == where[1]
    held = fresh(recycler)
    assert address(held) == where[1]
    assert address(fresh(recycler)) == where[0]
