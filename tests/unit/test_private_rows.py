"""Rows put together for one call are copied once, and nothing that others hold changes."""

from __future__ import annotations

import numpy as np
import pytest

from rollmesh.endpoint.models.private_rows import SlabMaker, gather_private
from rollmesh.spaces.space import Box, Dict, Text

SPACE = Dict(
    {
        "frame": Box((64, 256, 3), np.uint8),
        "state": Box((2,), np.float32),
        "say": Text(0, 8, frozenset("x")),
    }
)


def value(number):
    return {
        "frame": np.full((64, 256, 3), number, np.uint8),
        "state": np.full(2, number, np.float32),
        "say": "x" * number,
    }


def encoded(count=3):
    return [SPACE.codec.encode(value(number)) for number in range(1, count + 1)]


def test_it_is_what_gather_returns():
    codec, rows = SPACE.codec, encoded()
    pairs = [(leaves, 0) for leaves in rows]
    batch = codec.decode_stacked(gather_private(codec, pairs), 3)
    expected = codec.decode_stacked(codec.gather(pairs), 3)
    for name in ("frame", "state"):
        np.testing.assert_array_equal(batch[name], expected[name])
    assert batch["say"] == expected["say"]


def test_a_model_gets_the_batch_itself_and_may_write_into_it():
    codec, rows = SPACE.codec, encoded()
    leaves = gather_private(codec, [(one, 0) for one in rows])
    given = codec.decode_stacked(leaves, 3, copy=True)["frame"]
    assert given.flags.writeable
    assert given.flags.c_contiguous
    assert any(np.shares_memory(given, leaf) for leaf in leaves if isinstance(leaf, np.ndarray))
    given[:] = 0
    for number, one in enumerate(rows, start=1):
        assert (codec.decode(one)["frame"] == number).all()


def test_it_is_given_away_once():
    codec = SPACE.codec
    leaves = gather_private(codec, [(one, 0) for one in encoded()])
    first = codec.decode_stacked(leaves, 3, copy=True)["frame"]
    second = codec.decode_stacked(leaves, 3, copy=True)["frame"]
    assert not np.shares_memory(first, second)


def test_single_rows_of_it_are_copied():
    codec = SPACE.codec
    leaves = gather_private(codec, [(one, 0) for one in encoded()])
    frames = [codec.decode(leaves, row, copy=True)["frame"] for row in range(3)]
    for number, frame in enumerate(frames, start=1):
        assert (frame == number).all()
        frame[:] = 0


def test_memory_that_a_model_keeps_is_not_used_again():
    codec, kept = SPACE.codec, []
    for number in range(1, 30):
        leaves = codec.encode(value(number % 8))
        batch = gather_private(codec, [(leaves, 0), (leaves, 0)])
        kept.append((number % 8, codec.decode_stacked(batch, 2, copy=True)["frame"]))
        del batch
    for number, frames in kept:
        assert (frames == number).all()


@pytest.mark.parametrize("rows", [[], [0]])
def test_none_or_one_row_is_what_it_was(rows):
    codec, one = SPACE.codec, encoded(1)[0]
    pairs = [(one, row) for row in rows]
    leaves = gather_private(codec, pairs)
    assert len(leaves[0]) == len(rows)
    if rows:
        assert codec.decode(leaves)["say"] == "x"


def copied(maker, slab, rows):
    """Have the slab hold these rows; return the pairs that say so."""
    for leaves in rows:
        slab.copy(leaves, 1, slab.reserve(1))
    return [(leaves, 0) for leaves in rows]


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_slab_is_what_gather_returns(missing):
    codec, rows = SPACE.codec, encoded()
    maker = SlabMaker(codec)
    slab = maker.make(6)
    pairs = copied(maker, slab, rows)
    count = 3 + missing
    batch = codec.decode_stacked(slab.finish(pairs, missing), count)
    expected = codec.decode_stacked(codec.gather(pairs + pairs[-1:] * missing), count)
    for name in ("frame", "state"):
        np.testing.assert_array_equal(batch[name], expected[name])
    assert batch["say"] == expected["say"]


def test_a_slab_is_given_away_as_it_is_and_only_once():
    codec, rows = SPACE.codec, encoded()
    maker = SlabMaker(codec)
    slab = maker.make(4)
    leaves = slab.finish(copied(maker, slab, rows), 0)
    first = codec.decode_stacked(leaves, 3, copy=True)["frame"]
    second = codec.decode_stacked(leaves, 3, copy=True)["frame"]
    assert np.shares_memory(first, leaves[0])
    assert not np.shares_memory(first, second)
    assert first.flags.writeable
    first[:] = 0
    for number, one in enumerate(rows, start=1):
        assert (codec.decode(one)["frame"] == number).all()


def test_a_slab_whose_batch_is_kept_is_not_used_again():
    codec, kept = SPACE.codec, []
    maker = SlabMaker(codec)
    for number in range(1, 30):
        slab = maker.make(2)
        pairs = copied(maker, slab, [codec.encode(value(number % 8))] * 2)
        batch = slab.finish(pairs, 0)
        kept.append((number % 8, codec.decode_stacked(batch, 2, copy=True)["frame"]))
        del batch, slab
    for number, frames in kept:
        assert (frames == number).all()


def test_a_slab_has_room_for_so_many_rows():
    maker = SlabMaker(SPACE.codec)
    slab = maker.make(3)
    assert [slab.reserve(2), slab.reserve(2), slab.reserve(1), slab.reserve(1)] == [
        0,
        None,
        2,
        None,
    ]
    pairs = copied(maker, maker.make(3), encoded(1))
    assert maker.make(3).finish(pairs, 3) is None


def test_rows_that_are_small_are_not_worth_a_slab():
    assert not SlabMaker(Box((4,), np.float32).codec).is_worth_it
    assert SlabMaker(SPACE.codec).is_worth_it


def test_a_slab_of_one_leaf():
    codec = Box((64, 256, 3), np.uint8).codec
    maker = SlabMaker(codec)
    slab = maker.make(2)
    pairs = copied(maker, slab, [codec.encode(np.full((64, 256, 3), n, np.uint8)) for n in (1, 2)])
    batch = codec.decode_stacked(slab.finish(pairs, 0), 2)
    assert batch[:, 0, 0, 0].tolist() == [1, 2]
