"""What a policy returned is read as the shape it promised, or refused with got and wanted."""

from __future__ import annotations

import numpy as np
import pytest

from rollmesh.endpoint.models.chunk_shapes import ActionReader
from rollmesh.errors import InvalidValue
from rollmesh.spaces.conformance import Checker
from rollmesh.spaces.space import Box, Dict, Discrete, Sequence, Text, Tuple

BOX = Box((2,), low=-1, high=1)
SCALAR_BOX = Box((), low=-1, high=1)
DISCRETE = Discrete(4)
TEXT = Text(0, 8)
SEQUENCE = Sequence(Discrete(4))
NESTED = Dict({"arm": BOX, "grip": Discrete(2)})
PAIR = Tuple((BOX, TEXT))


def reader(space, policy="warn"):
    return ActionReader(space, Checker("action", policy, "refuse", lambda path, detail: None))


def values(space, frames, row=0):
    return [space.codec.decode(leaves, row) for leaves in frames]


def arm(rows):
    return np.array([[i, -i] for i in range(rows)], np.float32) / 8


# ------------------------------------------------------------------------------- chunks


@pytest.mark.parametrize("count", [1, 3, 16])
def test_a_chunk_becomes_one_frame_per_time_step(count):
    frames = reader(BOX).chunk(arm(count), "predict_chunk")
    assert len(frames) == count
    np.testing.assert_array_equal(values(BOX, frames), arm(count))
    for leaves in frames:
        BOX.codec.verify(leaves, 1)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (np.float32(5), r"shape \(\)"),
        (np.zeros((1, 8, 2), np.float32), r"shape \(1, 8, 2\)"),
        (np.zeros(2, np.float32), r"shape \(2,\)"),
        (np.zeros((4, 3), np.float32), r"shape \(4, 3\)"),
        (None, "None"),
        ("up", "a str"),
        ({"arm": 1}, "a dict with the keys 'arm'"),
        ([[0.0, 0.0], [0.0]], "a list of 2 items of unequal shape"),
        ([np.zeros(2), np.zeros(3)], "a list of 2 items of unequal shape"),
    ],
)
def test_a_chunk_of_another_shape_names_got_and_wanted(value, got):
    sentence = rf"predict_chunk returned {got}.*, wanted \(T, 2\) with T ≥ 1"
    with pytest.raises(InvalidValue, match=sentence):
        reader(BOX).chunk(value, "predict_chunk")


def test_an_empty_chunk_is_refused():
    sentence = r"shape \(0, 2\) with no time steps \(T = 0\); wanted T ≥ 1"
    with pytest.raises(InvalidValue, match=sentence):
        reader(BOX).chunk(np.zeros((0, 2), np.float32), "predict_chunk")


def test_a_list_of_actions_is_a_chunk():
    frames = reader(BOX).chunk([np.zeros(2), [0.5, 0.5]], "predict_chunk")
    np.testing.assert_array_equal(values(BOX, frames), [[0, 0], [0.5, 0.5]])


def test_discrete_and_scalar_chunks():
    assert values(DISCRETE, reader(DISCRETE).chunk([1, 2, 3], "c")) == [1, 2, 3]
    assert values(SCALAR_BOX, reader(SCALAR_BOX).chunk(np.array([0.5]), "c")) == [0.5]
    with pytest.raises(InvalidValue, match=r"returned shape \(\), wanted \(T,\)"):
        reader(DISCRETE).chunk(1, "c")


def test_frames_do_not_follow_a_buffer_that_the_policy_reuses():
    buffer = arm(2)
    frames = reader(BOX).chunk(buffer, "c")
    buffer[:] = 1
    np.testing.assert_array_equal(values(BOX, frames), arm(2))


# ---------------------------------------------------------------- one action or a chunk, by axes


@pytest.mark.parametrize(
    ("space", "value", "count"),
    [
        (BOX, np.zeros(2, np.float32), 1),
        (BOX, [0.0, 0.0], 1),
        (BOX, np.zeros((1, 2), np.float32), 1),
        (BOX, np.zeros((3, 2)), 3),
        (SCALAR_BOX, 0.5, 1),
        (SCALAR_BOX, np.zeros(3), 3),
        (DISCRETE, 1, 1),
        (DISCRETE, np.int32(1), 1),
        (DISCRETE, np.array(1), 1),
        (DISCRETE, True, 1),
        (DISCRETE, 1.0, 1),
        (DISCRETE, np.array([1]), 1),
        (DISCRETE, [1, 2], 2),
        (TEXT, "go", 1),
        (TEXT, ["go", "stop"], 2),
        (TEXT, np.array(["go", "stop", "go"]), 3),
        (SEQUENCE, (1, 2, 3), 1),
        (SEQUENCE, [(1, 2, 3), ()], 2),
        (NESTED, {"arm": np.zeros(2), "grip": 1}, 1),
        (NESTED, {"arm": np.zeros((4, 2)), "grip": np.zeros(4, int)}, 4),
        (NESTED, [{"arm": np.zeros(2), "grip": 1}] * 5, 5),
        (PAIR, (np.zeros(2), "go"), 1),
        (PAIR, (np.zeros((2, 2)), ["go", "stop"]), 2),
        (PAIR, [(np.zeros(2), "go")] * 3, 3),
    ],
)
def test_a_plain_callable_returns_either_told_apart_by_axes(space, value, count):
    frames = reader(space).either(value, "policy")
    assert len(frames) == count
    for leaves in frames:
        space.codec.verify(leaves, 1)


@pytest.mark.parametrize(
    "value", [np.float32(5), np.zeros(3), np.zeros((1, 8, 2)), np.zeros((4, 3))]
)
def test_either_names_both_shapes(value):
    with pytest.raises(InvalidValue) as caught:
        reader(BOX).either(value, "policy")
    assert "(2,)" in str(caught.value)
    assert "(T, 2) with T ≥ 1" in str(caught.value)
    assert f"policy returned shape {np.shape(value)}" in str(caught.value)


@pytest.mark.parametrize(
    ("space", "action"), [(BOX, np.zeros(2, np.float32)), (Discrete(2), np.array(1)), (BOX, None)]
)
def test_an_action_with_no_state_beside_it_says_how_to_return_it_alone(space, action):
    for read in (reader(space).one, reader(space).either, reader(space).chunk):
        with pytest.raises(InvalidValue, match=r"predict returned .* action, _ = model\.predict"):
            read((action, None), "predict")


def test_one_action_of_another_shape_names_got_and_wanted():
    with pytest.raises(InvalidValue, match=r"predict returned shape \(1, 2\), wanted \(2,\)"):
        reader(BOX).one(np.zeros((1, 2)), "predict")
    with pytest.raises(InvalidValue, match=r"predict returned None, wanted \(2,\)"):
        reader(BOX).one(None, "predict")
    with pytest.raises(InvalidValue, match=r"action\['grip'\]: predict returned shape \(2,\)"):
        reader(NESTED).one({"arm": np.zeros(2), "grip": np.zeros(2)}, "predict")
    with pytest.raises(InvalidValue, match="wanted a dict with the keys 'arm', 'grip'"):
        reader(NESTED).one(np.zeros(2), "predict")


def test_content_is_the_codecs_business():
    for bad in (1.5, 7, np.array([1.5])):
        with pytest.raises(InvalidValue, match="action"):
            reader(DISCRETE).either(bad, "policy")
    with pytest.raises(InvalidValue, match="NaN"):
        reader(BOX).chunk(np.full((2, 2), np.nan), "c")
    with pytest.raises(InvalidValue, match="outside"):
        reader(BOX, "strict").chunk(np.full((2, 2), 3, np.float32), "c")


# --------------------------------------------------------------------------------- rows


def test_a_batch_has_a_row_per_row_asked():
    leaves = reader(BOX).batch(arm(3), 3, "predict_batch")
    np.testing.assert_array_equal(BOX.codec.decode_stacked(leaves, 3), arm(3))
    with pytest.raises(InvalidValue, match="predict_batch returned 2 rows for a batch of 3"):
        reader(BOX).batch(arm(2), 3, "predict_batch")
    with pytest.raises(InvalidValue, match=r"returned shape \(2,\), wanted \(B, 2\)"):
        reader(BOX).batch(np.zeros(2), 2, "predict_batch")


def test_batches_of_nested_and_ragged_values():
    nested = {"arm": arm(2), "grip": [0, 1]}
    leaves = reader(NESTED).batch(nested, 2, "b")
    assert NESTED.codec.decode(leaves, 1)["grip"] == 1
    listed = [{"arm": arm(2)[row], "grip": row} for row in range(2)]
    leaves = reader(NESTED).batch(listed, 2, "b")
    assert NESTED.codec.decode(leaves, 1)["grip"] == 1
    leaves = reader(TEXT).batch(("go", "stop"), 2, "b")
    assert TEXT.codec.decode(leaves, 1) == "stop"
    with pytest.raises(InvalidValue, match="returned a str, wanted a tuple of B values"):
        reader(TEXT).batch("go", 2, "b")


def test_a_chunk_per_row_is_cut_on_the_time_axis():
    plan = np.arange(2 * 5 * 2, dtype=np.float32).reshape(2, 5, 2) / 20
    frames = reader(BOX).chunk_batch(plan, 2, "predict_chunk_batch")
    assert len(frames) == 5
    for t, leaves in enumerate(frames):
        BOX.codec.verify(leaves, 2)
        np.testing.assert_array_equal(BOX.codec.decode_stacked(leaves, 2), plan[:, t])


def test_actions_without_elements_keep_their_time_steps():
    space = Box((0, 3))
    frames = reader(space).chunk_batch(np.zeros((2, 4, 0, 3), np.float32), 2, "cb")
    assert len(frames) == 4
    assert space.codec.decode_stacked(frames[0], 2).shape == (2, 0, 3)


def test_a_chunk_per_row_of_nested_and_ragged_values():
    frames = reader(TEXT).chunk_batch([["a", "b"], ["c", "d"]], 2, "cb")
    texts = [[TEXT.codec.decode(f, row) for f in frames] for row in range(2)]
    assert texts == [["a", "b"], ["c", "d"]]
    nested = {"arm": np.zeros((2, 3, 2)), "grip": np.arange(6).reshape(2, 3) % 2}
    frames = reader(NESTED).chunk_batch(nested, 2, "cb")
    assert [NESTED.codec.decode(f, 1)["grip"] for f in frames] == [1, 0, 1]
    rows = [{"arm": np.zeros((3, 2)), "grip": [0, 1, row]} for row in range(2)]
    frames = reader(NESTED).chunk_batch(rows, 2, "cb")
    assert [NESTED.codec.decode(f, 1)["grip"] for f in frames] == [0, 1, 1]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros((5, 2)), r"shape \(5, 2\), wanted \(B, T, 2\)"),
        (np.zeros((3, 5, 2)), "3 rows for a batch of 2"),
        (np.zeros((2, 0, 2)), r"no time steps \(T = 0\)"),
        (np.zeros((0, 5, 2)), r"no rows \(B = 0\)"),
    ],
)
def test_chunks_of_another_shape_per_row_are_refused(value, words):
    with pytest.raises(InvalidValue, match=words):
        reader(BOX).chunk_batch(value, 2, "predict_chunk_batch")


def test_leaves_of_unequal_length_are_refused_naming_both():
    value = {"arm": np.zeros((3, 2)), "grip": [0, 1]}
    sentence = r"action\['grip'\].*T = 2 here but T = 3 at action\['arm'\]"
    with pytest.raises(InvalidValue, match=sentence):
        reader(NESTED).chunk(value, "predict_chunk")
    with pytest.raises(InvalidValue, match="chunks of 2 to 3 time steps"):
        reader(NESTED).chunk_batch(
            [{"arm": np.zeros((n, 2)), "grip": [0] * n} for n in (2, 3)], 2, "cb"
        )


# ----------------------------------------------------------------------------------- tensors


class Tensor:
    """Behaves like a tensor: it must be detached, and moved to the CPU, before NumPy may see it."""

    def __init__(self, data, grad=False, device="cpu"):
        self.data = np.asarray(data, np.float32)
        self.requires_grad, self.device = grad, device
        self.shape, self.dtype = self.data.shape, self.data.dtype

    def detach(self):
        return Tensor(self.data, False, self.device)

    def cpu(self):
        return Tensor(self.data, self.requires_grad, "cpu")

    def __array__(self, dtype=None, copy=None):
        if self.requires_grad or self.device != "cpu":
            raise RuntimeError("call .detach().cpu() first")
        return self.data if dtype is None else self.data.astype(dtype)


@pytest.mark.parametrize("tensor", [{}, {"grad": True}, {"device": "cuda:0"}])
@pytest.mark.parametrize("shape", [(2,), (1, 2), (3, 2)])
def test_tensors_are_read_like_arrays(tensor, shape):
    frames = reader(BOX).either(Tensor(np.full(shape, 0.25), **tensor), "policy")
    assert len(frames) == (shape[0] if len(shape) == 2 else 1)
    np.testing.assert_array_equal(values(BOX, frames)[0], [0.25, 0.25])
    frames = reader(BOX).chunk([Tensor(np.full(2, 0.25), **tensor)] * 3, "c")
    np.testing.assert_array_equal(values(BOX, frames), [[0.25, 0.25]] * 3)
    with pytest.raises(InvalidValue, match=r"shape \(1, 8, 2\)"):
        reader(BOX).either(Tensor(np.zeros((1, 8, 2)), **tensor), "policy")


class Opaque:
    """Something that NumPy takes for one object."""


@pytest.mark.parametrize("space", [BOX, DISCRETE, SCALAR_BOX])
def test_an_object_that_is_no_array_is_named_by_its_type(space):
    with pytest.raises(InvalidValue, match="a Opaque"):
        reader(space).one(Opaque(), "predict")
    with pytest.raises(InvalidValue, match="a Opaque"):
        reader(space).either(Opaque(), "policy")


# ------------------------------------------------------------------------------- scores


@pytest.mark.parametrize(
    ("read", "got"),
    [
        (lambda one: one.one(np.array([0.1, 0.9]), "predict"), r"shape \(2,\), wanted \(\)"),
        (
            lambda one: one.batch(np.array([[0.1, 0.9]]), 1, "predict_batch"),
            r"shape \(1, 2\), wanted \(B,\)",
        ),
        (
            lambda one: one.either(np.array([[0.1, 0.9]]), "policy"),
            r"shape \(1, 2\), wanted \(T,\) with T ≥ 1 or \(\)",
        ),
    ],
)
def test_scores_instead_of_a_discrete_action_are_told_as_such(read, got):
    hint = r"; if these are scores of the actions, return the best one's number, .*argmax\(scores\)"
    with pytest.raises(InvalidValue, match=got + hint):
        read(reader(DISCRETE))


def test_whole_numbers_of_another_shape_are_no_scores():
    with pytest.raises(InvalidValue, match=r"shape \(2,\), wanted \(\)$"):
        reader(DISCRETE).one(np.array([0, 1]), "predict")
    with pytest.raises(InvalidValue, match=r"wanted \(2,\)$"):
        reader(BOX).one(np.array([[0.1, 0.9]]), "predict")
