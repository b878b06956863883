"""Rows put together for one call are copied once, and nothing that others hold changes."""

from __future__ import annotations

import numpy as np
import pytest

from rollmesh.endpoint.models.private_rows import gather_private
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
