"""Odd inputs: any memory layout, lists, tensors; right values out, or what to call."""

from __future__ import annotations

import numpy as np
import pytest

from rollmesh.errors import InvalidValue
from rollmesh.spaces.space import Box, Discrete

F4 = np.float32
FRAME = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)


class Sub(np.ndarray):
    pass


class Tensor:
    """What a torch tensor looks like to a codec."""

    def __init__(self, data, *, grad=False, device="cpu"):
        self.data, self.requires_grad, self.device = np.asarray(data, F4), grad, device
        self.shape, self.dtype = self.data.shape, self.data.dtype

    def detach(self):
        return Tensor(self.data, device=self.device)

    def cpu(self):
        return Tensor(self.data, grad=self.requires_grad)

    def __array__(self, dtype=None, copy=None):
        if self.requires_grad or self.device != "cpu":
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.data if dtype is None else self.data.astype(dtype)


class OnlyDlpack:
    def __init__(self, data):
        self.data = data

    def __dlpack__(self, **options):
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()


class Stubborn:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("not today")


def once(space, value):
    return space.codec.decode(space.codec.encode(value))


def test_c21_any_memory_layout_becomes_a_plain_array():
    padded = np.pad(FRAME, ((2, 2), (2, 2), (0, 0)))
    layouts = {
        "flip": FRAME[::-1, ::-1],
        "slice": padded[2:-2, 2:-2],
        "fortran": np.asfortranarray(FRAME),
        "moved": np.moveaxis(np.ascontiguousarray(np.moveaxis(FRAME, -1, 0)), 0, -1),
        "subclass": FRAME.view(Sub),
        "broadcast": np.broadcast_to(np.uint8(7), FRAME.shape),
        "list": FRAME.tolist(),
        "dlpack": OnlyDlpack(FRAME.copy()),
        "objects": FRAME.astype(object),
    }
    space = Box(FRAME.shape, np.uint8)
    for name, value in layouts.items():
        expected = FRAME if name in ("dlpack", "list", "objects") else np.asarray(value)
        decoded = space.codec.decode(space.codec.encode(value), copy=True)
        assert type(decoded) is np.ndarray, name
        assert decoded.flags.c_contiguous, name
        assert np.array_equal(decoded, expected), name
        batch = space.codec.encode_many([value, value])
        assert np.array_equal(space.codec.decode(batch, 1), expected), name
    big_endian = np.arange(4, dtype=">f4")
    assert once(Box((4,), F4), big_endian).tobytes() == np.arange(4, dtype="<f4").tobytes()
    assert once(Box((0, 3), F4), np.zeros((0, 3), F4)).shape == (0, 3)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("grad", [False, True])
def test_c40_tensors_are_detached_and_moved(grad, device):
    tensor = Tensor([0.25, 0.5], grad=grad, device=device)
    assert once(Box((2,), F4), tensor).tolist() == [0.25, 0.5]
    batch = Tensor([[0.25, 0.5]], grad=grad, device=device)
    assert Box((2,), F4).codec.encode_stacked(batch, 1)[0].tolist() == [[0.25, 0.5]]


def test_c40_what_cannot_be_read_says_what_to_call():
    for value in (Stubborn(), [Tensor([1.0], grad=True)]):
        with pytest.raises(InvalidValue, match=r"\.detach\(\)\.cpu\(\)\.numpy\(\)"):
            Box((1, 1), F4).codec.encode(value)
    masked = np.ma.masked_array([1.0, 2.0], [False, True])
    with pytest.raises(InvalidValue, match=r"\.filled"):
        Box((2,), F4).codec.encode(masked)
    assert once(Box((2,), F4), np.ma.masked_array([1.0, 2.0])).tolist() == [1, 2]


def test_a_tensor_of_one_element_is_a_discrete_value():
    for tensor in (Tensor([1.0]), Tensor(1.0, grad=True), Tensor([[1.0]], device="cuda")):
        assert once(Discrete(2), tensor) == 1
