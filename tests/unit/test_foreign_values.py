"""Tests of `rollmesh.endpoint.clients.foreign_values`: what a foreign server does not tell."""

from __future__ import annotations

import numpy as np
import pytest

from rollmesh.endpoint.clients.foreign_values import ForeignValues
from rollmesh.errors import EndpointFault
from rollmesh.ports import OddValue, ResetReply, StepReply
from rollmesh.spaces.conformance import Checker
from rollmesh.spaces.space import Box, Dict, Discrete, Text

F4 = np.float32
SPACE = Dict({"a": Box((2,), F4, -1, 1), "n": Discrete(3), "t": Text(1, 3)})
RIGHT = {"a": np.zeros(2, F4), "n": 1, "t": "ab"}
WRONG = {"a": np.array([np.nan, 2], F4), "n": 7, "t": "abcd"}
PLACES = [
    ("nan", "observation['a']"),
    ("bounds", "observation['a']"),
    ("bounds", "observation['n']"),
    ("length", "observation['t']"),
]


def values(policy="warn", told=None):
    report = (lambda path, detail: None) if told is None else lambda path, _: told.append(path)
    return ForeignValues(SPACE.codec, Checker("observation", policy, report=report))


def reset(*observations):
    leaves = SPACE.codec.encode_many(observations)
    return ResetReply(observation=leaves, infos=({},) * len(observations))


def step(*observations):
    leaves, rows = SPACE.codec.encode_many(observations), len(observations)
    return StepReply(observation=leaves, rewards=(0.0,) * rows, infos=({},) * rows)


@pytest.mark.parametrize("reply", [reset, step])
def test_every_reply_is_counted_and_told_once(reply):
    told = []
    foreign = values(told=told)
    for observation in (RIGHT, WRONG, RIGHT, WRONG):
        got = reply(observation)
        foreign.look(got, ())
        wanted = [OddValue(0, *place) for place in PLACES] if observation is WRONG else []
        assert list(got.odd) == wanted
    assert sorted(told) == sorted([path for _, path in PLACES])


def test_rows_are_told_apart():
    got = step(RIGHT, WRONG, RIGHT)
    values().look(got, ())
    assert set(got.odd) == {OddValue(1, *place) for place in PLACES}


def test_what_is_looked_at_stays_as_it_was():
    got = step(WRONG, RIGHT)
    before = list(got.observation)
    values().look(got, ())
    assert all(now is then for now, then in zip(got.observation, before, strict=True))


@pytest.mark.parametrize(
    ("observations", "lanes", "lane"),
    [((WRONG,), (), 0), ((WRONG,), (4,), 4), ((RIGHT, WRONG), (4, 5), None)],
)
def test_strict_makes_it_the_envs_fault(observations, lanes, lane):
    foreign = values("strict")
    with pytest.raises(EndpointFault, match="NaN") as caught:
        foreign.look(step(*observations), lanes)
    assert (caught.value.outcome, caught.value.env_index) == ("done", lane)
    assert caught.value.is_recoverable
    got = step(RIGHT)
    foreign.look(got, ())
    assert got.odd == ()
