"""Spaces and values of every kind go through the codec bit by bit."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollmesh.errors import InvalidValue
from rollmesh.spaces.conformance import Checker
from rollmesh.spaces.gymnasium import from_gymnasium, to_gymnasium
from tests.property.strategies import batches, boxes, same, spaces, stack, values

quick = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@quick
@given(batches(most=1))
def test_one_value_comes_back_bit_by_bit(case):
    space, (value,) = case
    codec = space.codec
    leaves = codec.encode(value)
    codec.verify(leaves, 1)
    assert same(codec.decode(leaves), value)
    assert same(codec.decode(leaves, copy=True), value)


@quick
@given(batches())
def test_many_values_equal_one_by_one_and_stacked(case):
    space, items = case
    codec, rows = space.codec, len(case[1])
    leaves = codec.encode_many(items)
    codec.verify(leaves, rows)
    assert all(same(codec.decode(leaves, row), item) for row, item in enumerate(items))
    as_bytes = _bytes(codec, leaves)
    assert as_bytes == _bytes(codec, codec.gather([(codec.encode(item), 0) for item in items]))
    stacked = stack(space, items)
    assert as_bytes == _bytes(codec, codec.encode_stacked(stacked, rows))
    assert same(codec.decode_stacked(leaves, rows), stacked)
    assert same(codec.decode_stacked(leaves, rows, copy=True), stacked)


@quick
@given(batches())
def test_decode_stacked_is_what_gymnasium_concatenates(case):
    space, items = case
    theirs = to_gymnasium(space)
    expected = concatenate(theirs, items, create_empty_array(theirs, len(items)))
    leaves = space.codec.encode_many(items)
    assert same(space.codec.decode_stacked(leaves, len(items)), expected)


@quick
@given(batches(), st.data())
def test_rows_are_taken_put_and_gathered(case, data):
    space, items = case
    codec, rows = space.codec, len(items)
    leaves = codec.encode_many(items)
    before = _bytes(codec, leaves)
    picked = data.draw(st.lists(st.integers(0, rows - 1), max_size=5))
    taken = codec.take(leaves, picked)
    codec.verify(taken, len(picked))
    assert all(same(codec.decode(taken, i), items[row]) for i, row in enumerate(picked))
    assert _bytes(codec, codec.gather([(leaves, row) for row in picked])) == _bytes(codec, taken)

    targets = data.draw(st.lists(st.integers(0, rows - 1), unique=True, max_size=rows))
    part = codec.encode_many([items[(row + 1) % rows] for row in targets])
    result = codec.put(leaves, targets, part)
    codec.verify(result, rows)
    for row in range(rows):
        expected = items[(row + 1) % rows] if row in targets else items[row]
        assert same(codec.decode(result, row), expected)
    assert _bytes(codec, leaves) == before


@quick
@given(batches())
def test_buffers_come_back_and_sizes_add_up(case):
    space, items = case
    codec, rows = space.codec, len(items)
    leaves = codec.encode_many(items)
    buffers = codec.to_buffers(leaves)
    assert sum(memoryview(buffer).nbytes for buffer in buffers) == codec.nbytes(leaves, rows)
    for received in (buffers, [bytearray(buffer) for buffer in buffers]):
        again = codec.from_buffers(received, rows)
        codec.verify(again, rows)
        assert _bytes(codec, again) == _bytes(codec, leaves)
        assert all(same(codec.decode(again, row), item) for row, item in enumerate(items))


@quick
@given(batches(), st.data())
def test_damaged_buffers_never_decode_into_a_crash(case, data):
    space, items = case
    codec, rows = space.codec, len(items)
    buffers = [bytes(buffer) for buffer in codec.to_buffers(codec.encode_many(items))]
    which = data.draw(st.integers(0, len(buffers) - 1))
    damaged = bytearray(buffers[which])
    if data.draw(st.booleans()) and damaged:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        damaged = damaged[:-1] if damaged and data.draw(st.booleans()) else damaged + b"\1"
    buffers[which] = bytes(damaged)
    try:
        leaves = codec.from_buffers(buffers, rows)
    except InvalidValue:
        return
    for row in range(rows):
        codec.decode(leaves, row)


@quick
@given(batches(most=1))
def test_decoded_copies_are_writable_and_views_are_not(case):
    space, (value,) = case
    codec = space.codec
    leaves = codec.encode(value)
    for array in _arrays(codec.decode(leaves, copy=True)):
        assert array.flags.writeable
        assert array.flags.c_contiguous
    assert not any(array.flags.writeable for array in _arrays(codec.decode(leaves)))


@quick
@given(spaces())
def test_spaces_survive_gymnasium(space):
    theirs = to_gymnasium(space)
    back = from_gymnasium(theirs)
    assert back == space
    assert hash(back) == hash(space)
    assert to_gymnasium(back) == theirs


@quick
@given(spaces(), st.integers(0, 2**31))
def test_samples_pass_a_strict_checker_and_stay_contained(space, seed):
    theirs = to_gymnasium(space)
    theirs.seed(seed)
    sample = theirs.sample()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium warns about graphs of 0-d nodes
        # it does not contain every sample of its own, such as a stacked sequence of scalars
        if theirs.contains(sample):
            leaves = space.codec.encode(sample, Checker("action", "strict", "refuse"))
            assert theirs.contains(space.codec.decode(leaves, copy=True))
        else:
            space.codec.encode(sample)


@quick
@given(boxes(), st.data())
def test_strict_accepts_what_gymnasium_contains(space, data):
    items = data.draw(st.lists(values(space), min_size=1, max_size=3))
    theirs = to_gymnasium(space)
    contained = [theirs.contains(item) for item in items]
    for item, expected in zip(items, contained, strict=True):
        assert _accepts(lambda checker, item=item: space.codec.encode(item, checker)) == expected
    stacked = stack(space, items)
    assert _accepts(lambda checker: space.codec.encode_many(items, checker)) == all(contained)
    assert _accepts(
        lambda checker: space.codec.encode_stacked(stacked, len(items), checker)
    ) == all(contained)


def _accepts(encode):
    try:
        encode(Checker("observation", "strict"))
    except InvalidValue:
        return False
    return True


def test_a_batch_of_no_rows_is_possible():
    space = from_gymnasium(to_gymnasium_example())
    leaves = space.codec.encode_many([])
    space.codec.verify(leaves, 0)
    assert space.codec.from_buffers(space.codec.to_buffers(leaves), 0) is not None
    with pytest.raises(IndexError):
        space.codec.decode(leaves, 0)


def to_gymnasium_example():
    from gymnasium import spaces as gym_spaces

    box = gym_spaces.Box(0, 1, (2,), np.float32)
    return gym_spaces.Dict({"a": box, "b": gym_spaces.Sequence(box), "c": gym_spaces.Discrete(2)})


def _bytes(codec, leaves):
    return [bytes(buffer) for buffer in codec.to_buffers(leaves)]


def _arrays(value):
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        return [array for item in value.values() for array in _arrays(item)]
    if isinstance(value, tuple):
        return [array for item in value for array in _arrays(item)]
    return []
