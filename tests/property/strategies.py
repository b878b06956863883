"""Hypothesis strategies for spaces of every kind and values of them, and a bit-exact comparison."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.spaces import GraphInstance
from hypothesis import strategies as st

from rollmesh.spaces.space import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Space,
    Text,
    Tuple,
)

BOX_DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
]
INT_DTYPES = [name for name in BOX_DTYPES if "int" in name]
HAS_DISCRETE_DTYPE = "dtype" in inspect.signature(gym_spaces.Discrete).parameters
"""Gymnasium's own Discrete was int64 only for a long time."""
DISCRETE_DTYPES = INT_DTYPES if HAS_DISCRETE_DTYPE else ["int64"]
ODD_NAMES = ["", " ", "a", "a.b", "c/d", "z", "ü", "['x']", "\n", "0"]

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
filled_shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    """Draw a Box: any dtype and shape; unbounded, uniform or elementwise bounds."""
    dtype = np.dtype(draw(st.sampled_from(BOX_DTYPES)))
    shape = draw(shapes)
    style = draw(st.sampled_from(["unbounded", "uniform", "elementwise"]))
    if style == "unbounded" or dtype.kind == "b":
        return Box(shape, dtype)
    least = 0 if dtype.kind == "u" else -100
    numbers = st.integers(least, 100)
    if style == "uniform":
        low, high = sorted([draw(numbers), draw(numbers)])
        return Box(shape, dtype, low, high)
    size = int(np.prod(shape))
    pairs = [sorted([draw(numbers), draw(numbers)]) for _ in range(size)]
    low = np.array([pair[0] for pair in pairs], dtype).reshape(shape)
    high = np.array([pair[1] for pair in pairs], dtype).reshape(shape)
    return Box(shape, dtype, low, high)


@st.composite
def discretes(draw: st.DrawFn) -> Discrete:
    dtype = draw(st.sampled_from(DISCRETE_DTYPES))
    start = draw(st.integers(0 if dtype.startswith("u") else -50, 50))
    return Discrete(draw(st.integers(1, 70)), start, dtype)


@st.composite
def multi_discretes(draw: st.DrawFn) -> MultiDiscrete:
    dtype = draw(st.sampled_from(INT_DTYPES))
    shape = draw(filled_shapes)
    least = 0 if dtype.startswith("u") else -20
    size = int(np.prod(shape))
    nvec = draw(st.lists(st.integers(1, 40), min_size=size, max_size=size))
    start = draw(st.lists(st.integers(least, 20), min_size=size, max_size=size))
    return MultiDiscrete(np.reshape(nvec, shape), np.reshape(start, shape), dtype)


@st.composite
def texts(draw: st.DrawFn) -> Text:
    charset = draw(st.sampled_from([None, "ab", "äöü€🙂", "0123456789"]))
    least = draw(st.integers(0, 2))
    return Text(least, least + draw(st.integers(0, 6)), charset)


def multi_binaries() -> st.SearchStrategy[MultiBinary]:
    return st.lists(st.integers(1, 3), min_size=1, max_size=2).map(MultiBinary)


def fundamentals() -> st.SearchStrategy[Space]:
    return st.one_of(boxes(), discretes(), multi_binaries(), multi_discretes(), texts())


def _wider(inner: st.SearchStrategy[Space]) -> st.SearchStrategy[Space]:
    names = st.lists(st.sampled_from(ODD_NAMES), unique=True, min_size=1, max_size=3)
    return st.one_of(
        names.flatmap(
            lambda keys: st.tuples(*[inner for _ in keys]).map(
                lambda spaces: Dict(list(zip(keys, spaces, strict=True)))
            )
        ),
        st.lists(inner, min_size=1, max_size=3).map(Tuple),
        st.builds(Sequence, inner, st.booleans()),
        st.builds(Graph, st.one_of(boxes(), discretes()), st.one_of(st.none(), boxes())),
        st.lists(inner, min_size=1, max_size=3).map(OneOf),
    )


def spaces() -> st.SearchStrategy[Space]:
    """Any space, nested anyhow."""
    return st.recursive(fundamentals(), _wider, max_leaves=5)


def _bits(draw: st.DrawFn, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Draw an array of any bit pattern: NaNs with payload, infinities, negative zeros."""
    count = int(np.prod(shape))
    if dtype.kind == "b":
        bools = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        return np.array(bools, bool).reshape(shape)
    size = count * dtype.itemsize
    return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)


def _ints(draw: st.DrawFn, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    pairs = zip(low.ravel().tolist(), high.ravel().tolist(), strict=True)
    return np.array([draw(st.integers(a, b)) for a, b in pairs], low.dtype).reshape(low.shape)


@st.composite
def values(draw: st.DrawFn, space: Space) -> Any:  # noqa: PLR0911 - one per kind of space
    """Draw a value as `decode` would give it; Box elements are any bits, bounds aside."""
    if isinstance(space, Box):
        return _bits(draw, space.shape, space.dtype)
    if isinstance(space, Discrete):
        return space.dtype.type(draw(st.integers(space.start, space.start + space.n - 1)))
    if isinstance(space, MultiBinary):
        zeros, ones = np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8)
        return _ints(draw, zeros, ones)
    if isinstance(space, MultiDiscrete):
        return _ints(draw, space.start, space.start + (space.nvec - 1).astype(space.dtype))
    if isinstance(space, Text):
        letters = st.characters() if space.charset is None else st.sampled_from(space.charset)
        return draw(st.text(letters, min_size=space.min_length, max_size=space.max_length))
    if isinstance(space, Dict):
        return {name: draw(values(child)) for name, child in space.spaces}
    if isinstance(space, Tuple):
        return tuple(draw(values(child)) for child in space.spaces)
    if isinstance(space, OneOf):
        index = draw(st.integers(0, len(space.spaces) - 1))
        return np.int64(index), draw(values(space.spaces[index]))
    if isinstance(space, Sequence):
        items = draw(st.lists(values(space.space), max_size=3))
        return stack(space.space, items) if space.stack else tuple(items)
    assert isinstance(space, Graph)
    return _graph(draw, space)


def _graph(draw: st.DrawFn, space: Graph) -> GraphInstance:
    nodes = draw(st.lists(values(space.node_space), min_size=1, max_size=3))
    stacked = stack(space.node_space, nodes)
    if space.edge_space is None or draw(st.booleans()):
        return GraphInstance(stacked, None, None)
    edges = draw(st.lists(values(space.edge_space), max_size=3))
    ends = st.integers(0, len(nodes) - 1)
    links = [[draw(ends), draw(ends)] for _ in edges]
    dtype = draw(st.sampled_from(INT_DTYPES))
    return GraphInstance(
        stacked, stack(space.edge_space, edges), np.array(links, dtype).reshape(len(edges), 2)
    )


def stack(space: Space, items: list[Any]) -> Any:
    """Return values as one batched value in Gymnasium's vector convention."""
    if isinstance(space, Dict):
        return {name: stack(child, [item[name] for item in items]) for name, child in space.spaces}
    if isinstance(space, Tuple):
        return tuple(
            stack(child, [item[index] for item in items])
            for index, child in enumerate(space.spaces)
        )
    if isinstance(space, (Text, Sequence, Graph, OneOf)):
        return tuple(items)
    spec = space.codec.leaf_specs[0]
    return np.array(items, spec.dtype).reshape((len(items), *spec.shape))


@st.composite
def batches(draw: st.DrawFn, most: int = 4) -> tuple[Space, list[Any]]:
    """Draw a space and a list of values of it."""
    space = draw(spaces())
    return space, draw(st.lists(values(space), min_size=1, max_size=most))


def same(left: Any, right: Any) -> bool:
    """Return whether two values are equal in type, dtype, shape and every bit."""
    if isinstance(left, (np.ndarray, np.generic)):
        return (
            type(left) is type(right)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right
