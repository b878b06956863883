"""The policy that acts at random (layer 6).

It samples the action space from a generator seeded per episode with the policy seed, so that an
episode has the same actions on any lane. Knows spaces, no port.

Sampling: bounded numbers uniformly, half-bounded ones by an exponential from the bound, unbounded
ones by a normal; texts of uniform length, sequences of geometric length, graphs of 1 to 9 nodes.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from rollmesh.endpoint.models.model import EpisodeContext, Model
from rollmesh.spaces import space as spaces
from rollmesh.spaces.space import Space

Sampler: TypeAlias = Callable[[np.random.Generator], Any]

_LETTERS = string.ascii_letters + string.digits
_TEXT_LENGTH = 64
"""How much longer than the shortest a text may be."""
_CONTINUE = 0.25
_MAX_NODES = 9


class RandomPolicy(Model):
    """Samples an action space.

    Args:
        action_space: The space.
    """

    def __init__(self, action_space: Space) -> None:
        self._sample = sampler(action_space)
        self._generators: dict[str, np.random.Generator] = {}

    def on_episode_start(self, context: EpisodeContext) -> None:
        self._generators[context.episode_id] = np.random.default_rng(context.policy_seed)

    def on_episode_end(self, context: EpisodeContext) -> None:
        self._generators.pop(context.episode_id, None)

    def predict(self, observation: Any, context: EpisodeContext) -> Any:
        del observation
        return self._sample(self._generators[context.episode_id])


def sampler(space: Space) -> Sampler:
    """Return what draws a value of a space from a generator."""
    for kind, build in _SAMPLERS.items():
        if isinstance(space, kind):
            return build(space)
    raise TypeError(f"no sampler for {type(space).__name__}")


def _box(space: spaces.Box) -> Sampler:
    shape, dtype, low, high = space.shape, space.dtype, space.low, space.high
    if dtype.kind == "b":
        return lambda rng: (rng.random(shape) < 0.5).astype(dtype) & high | low  # noqa: PLR2004
    if dtype.kind in "iu":
        native = _native(dtype)
        return lambda rng: rng.integers(low, high, size=shape, endpoint=True, dtype=native)
    lows, highs = low.astype(np.float64), high.astype(np.float64)
    below, above = np.isfinite(lows), np.isfinite(highs)
    both = below & above
    if both.all():
        return lambda rng: _within(_between(rng.random(shape), lows, highs), low, high, dtype)
    least, most = np.where(below, lows, 0.0), np.where(above, highs, 0.0)

    def sample(rng: np.random.Generator) -> Any:
        tail = rng.exponential(size=shape)
        drawn = np.where(below, least + tail, np.where(above, most - tail, rng.normal(size=shape)))
        drawn = np.where(both, _between(rng.random(shape), least, most), drawn)
        return _within(drawn, low, high, dtype)

    return sample


def _native(dtype: Any) -> np.dtype[Any]:
    """Return a dtype in the byte order of this machine, which is all that generators draw."""
    return dtype.newbyteorder("=")


def _between(share: Any, low: Any, high: Any) -> Any:
    return low * (1.0 - share) + high * share  # never overflows, unlike low + share * (high - low)


def _within(drawn: Any, low: Any, high: Any, dtype: np.dtype[Any]) -> Any:
    """Round to the dtype, and back into the bounds where rounding left them."""
    with np.errstate(over="ignore"):
        rounded = np.asarray(drawn).astype(dtype)
    return np.minimum(np.maximum(rounded, low), high, dtype=dtype)


def _discrete(space: spaces.Discrete) -> Sampler:
    start, last, make = space.start, space.n - 1, space.dtype.type
    if last < 2**63 - 1:
        return lambda rng: make(start + int(rng.integers(last + 1)))
    return lambda rng: make(start + int(rng.integers(last, endpoint=True, dtype=np.uint64)))


def _multi_binary(space: spaces.MultiBinary) -> Sampler:
    shape = space.shape
    return lambda rng: rng.integers(2, size=shape, dtype=np.int8)


def _multi_discrete(space: spaces.MultiDiscrete) -> Sampler:
    start, last, dtype = space.start, space.nvec - 1, _native(space.dtype)
    return lambda rng: rng.integers(0, last, endpoint=True, dtype=dtype) + start


def _text(space: spaces.Text) -> Sampler:
    letters = _LETTERS if space.charset is None else space.charset
    least = space.min_length
    most = min(space.max_length, least + _TEXT_LENGTH) if letters else 0

    def sample(rng: np.random.Generator) -> str:
        length = int(rng.integers(least, most, endpoint=True))
        return "".join([letters[i] for i in rng.integers(len(letters), size=length)])

    return sample


def _dict(space: spaces.Dict) -> Sampler:
    children = [(name, sampler(child)) for name, child in space.spaces]
    return lambda rng: {name: draw(rng) for name, draw in children}


def _tuple(space: spaces.Tuple) -> Sampler:
    children = [sampler(child) for child in space.spaces]
    return lambda rng: tuple([draw(rng) for draw in children])


def _sequence(space: spaces.Sequence) -> Sampler:
    if space.stack:
        batches = _batches_of(space.space)
        return lambda rng: batches(rng, int(rng.geometric(_CONTINUE)))
    draw = sampler(space.space)
    return lambda rng: tuple([draw(rng) for _ in range(int(rng.geometric(_CONTINUE)))])


def _graph(space: spaces.Graph) -> Sampler:
    nodes = _batches_of(space.node_space)
    edges = None if space.edge_space is None else _batches_of(space.edge_space)

    def sample(rng: np.random.Generator) -> tuple[Any, Any, Any]:
        count = int(rng.integers(1, _MAX_NODES, endpoint=True))
        drawn = nodes(rng, count)
        if edges is None:
            return drawn, None, None
        links = int(rng.integers(0, count * (count - 1), endpoint=True))
        pairs = rng.integers(count, size=(links, 2), dtype=np.int32)
        return drawn, edges(rng, links), pairs

    return sample


def _batches_of(space: Space) -> Callable[[np.random.Generator, int], Any]:
    """Return what draws a number of values in Gymnasium's vector convention."""
    draw, codec = sampler(space), space.codec

    def sample(rng: np.random.Generator, count: int) -> Any:
        leaves = codec.encode_many([draw(rng) for _ in range(count)])
        return codec.decode_stacked(leaves, count, copy=True)

    return sample


def _one_of(space: spaces.OneOf) -> Sampler:
    children = [sampler(child) for child in space.spaces]

    def sample(rng: np.random.Generator) -> tuple[Any, Any]:
        index = rng.integers(len(children))
        return index, children[index](rng)

    return sample


_SAMPLERS: dict[type[Space], Callable[[Any], Sampler]] = {
    spaces.Box: _box,
    spaces.Discrete: _discrete,
    spaces.MultiBinary: _multi_binary,
    spaces.MultiDiscrete: _multi_discrete,
    spaces.Text: _text,
    spaces.Dict: _dict,
    spaces.Tuple: _tuple,
    spaces.Sequence: _sequence,
    spaces.Graph: _graph,
    spaces.OneOf: _one_of,
}
