"""The random policy: values of every space, the same for the same seed, inside all bounds."""

from __future__ import annotations

import numpy as np
import pytest

from rollmesh.endpoint.models.corners import find_corners
from rollmesh.endpoint.models.model import EpisodeContext
from rollmesh.endpoint.models.policy import LocalModel
from rollmesh.endpoint.models.random_policy import RandomPolicy, sampler
from rollmesh.ports import AdapterContext, EpisodeInfo, PredictRequest, ResetAdapterRequest
from rollmesh.spaces.conformance import Checker
from rollmesh.spaces.space import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)

INF = np.inf
HUGE = np.finfo(np.float64).max
SPACES = {
    "box": Box((2, 3), low=-1, high=2),
    "box of shape ()": Box((), low=0, high=1),
    "box without elements": Box((0, 3)),
    "unbounded": Box((4,)),
    "half-bounded": Box((4,), np.float64, low=[-INF, 0, -INF, 3], high=[INF, INF, -5, 4]),
    "widest": Box((2,), np.float64, low=-HUGE, high=HUGE),
    "float16": Box((3,), np.float16, low=0.1, high=0.1001),
    "uint8": Box((8,), np.uint8),
    "int64": Box((3,), np.int64),
    "uint64": Box((3,), np.uint64, low=2**63, high=2**64 - 1),
    "bool": Box((5,), bool),
    "bool set": Box((5,), bool, low=True, high=True),
    "discrete": Discrete(3, start=-1),
    "discrete int8": Discrete(256, start=-128, dtype=np.int8),
    "discrete widest": Discrete(2**64 - 1, start=0, dtype=np.uint64),
    "multi binary": MultiBinary((2, 3)),
    "multi discrete": MultiDiscrete([[2, 3], [4, 5]], start=[[1, -2], [0, 7]]),
    "multi discrete widest": MultiDiscrete([2**63 - 1, 1]),
    "text": Text(1, 12),
    "text of letters": Text(0, 2**20, "äßx"),
    "text of nothing": Text(0, 3, ""),
    "text of one length": Text(3, 3),
    "dict": Dict({"b": Discrete(2), "a": Dict({"": Box((2,))})}),
    "tuple": Tuple((Text(1, 3), Discrete(2))),
    "sequence": Sequence(Box((2,), low=0, high=1)),
    "stacked sequence": Sequence(Dict({"x": Discrete(3)}), stack=True),
    "graph": Graph(Box((2,)), Discrete(3)),
    "graph without edges": Graph(Discrete(4), None),
    "one of": OneOf((Discrete(2), Box((3,)))),
}


@pytest.mark.parametrize("name", SPACES)
def test_every_sample_is_of_its_space(name):
    space = SPACES[name]
    draw, strict = sampler(space), Checker("action", "strict", "refuse")
    rng = np.random.default_rng(0)
    for _ in range(50):
        leaves = space.codec.encode(draw(rng), strict)
        space.codec.verify(leaves, 1)


def test_samples_reach_both_ends():
    rng = np.random.default_rng(0)
    draw = sampler(Discrete(3, start=-1))
    assert {int(draw(rng)) for _ in range(100)} == {-1, 0, 1}
    draw = sampler(MultiDiscrete([2], start=[5]))
    assert {int(draw(rng)[0]) for _ in range(100)} == {5, 6}
    draw = sampler(Box((1,), np.int8, low=3, high=4))
    assert {int(draw(rng)[0]) for _ in range(100)} == {3, 4}


def port(space):
    return LocalModel(
        find_corners(RandomPolicy(space)),
        observation_space=Box((1,)),
        action_space=space,
        checker=Checker("action", "strict", "refuse"),
        observes=False,
    )


def play(local, episodes, steps=5, space=SPACES["box"]):
    """Return the actions of each episode, all asked for in one batch per step."""
    played = {episode: [] for episode, _ in episodes}
    for _ in range(steps):
        reply = local.predict(
            PredictRequest(
                context=AdapterContext("s", "r", "1"),
                observation=Box((1,)).codec.encode_many([np.zeros(1, np.float32)] * len(episodes)),
                episode_info=tuple(EpisodeInfo(*episode) for episode in episodes),
            )
        )
        for row, (episode, _) in enumerate(episodes):
            played[episode].append(space.codec.decode(reply.frames[0], row).tolist())
    return played


def test_an_episode_is_the_same_on_any_lane():
    alone = play(port(SPACES["box"]), [("a", 7)])
    among = play(port(SPACES["box"]), [("x", 1), ("b", 7), ("y", 7)])
    assert alone["a"] == among["b"] == among["y"]
    assert among["x"] != among["b"]


def test_without_a_seed_every_episode_differs():
    played = play(port(SPACES["box"]), [("a", None), ("b", None)])
    assert played["a"] != played["b"]


def test_ended_episodes_are_forgotten():
    policy = RandomPolicy(SPACES["box"])
    context = EpisodeContext(episode_id="a", policy_seed=1)
    policy.on_episode_start(context)
    policy.predict(None, context)
    policy.on_episode_end(context)
    assert policy._generators == {}
    local = port(SPACES["box"])
    play(local, [("a", 7)])
    local.reset_adapter(ResetAdapterRequest(AdapterContext("s", "r", "2"), ("a",)))
    assert local.episodes == ()
