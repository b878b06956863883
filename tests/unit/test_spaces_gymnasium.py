"""Spaces from and to Gymnasium, losslessly or refused with a sentence."""

from __future__ import annotations

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as theirs

from rollmesh.errors import InvalidValue
from rollmesh.spaces import space as ours
from rollmesh.spaces.gymnasium import from_gymnasium, to_gymnasium
from tests.property.strategies import HAS_DISCRETE_DTYPE

BOX = theirs.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        theirs.Box(0, 255, (84, 84, 4), np.uint8),
        theirs.Box(-np.inf, np.inf, (), np.float64),
        theirs.Box(np.array([-1, 0]), np.array([1, 9]), dtype=np.int64),
        theirs.Box(0, 2**64 - 1, (2,), np.uint64),
        theirs.Box(0, 1, (2,), bool),
        theirs.Box(-65504, 65504, (3,), np.float16),
        theirs.Box(0, 1, (0, 3), np.float32),
        theirs.Discrete(5, start=-2),
        *([theirs.Discrete(3, dtype=np.uint8)] if HAS_DISCRETE_DTYPE else []),
        theirs.MultiBinary(3),
        theirs.MultiBinary((2, 3)),
        theirs.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [-1, 2]]),
        theirs.MultiDiscrete([2, 3], dtype=np.int8),
        theirs.Text(5),
        theirs.Text(9, min_length=0, charset="zyxä"),
        theirs.Dict([("z", BOX), ("a", BOX), ("", theirs.Discrete(2))]),
        theirs.Dict({"b": BOX, "a": BOX}),
        theirs.Tuple((BOX, theirs.Dict({"a": theirs.Tuple((BOX,))}))),
        theirs.Sequence(BOX),
        theirs.Sequence(BOX, stack=True),
        theirs.Graph(BOX, theirs.Discrete(3)),
        theirs.Graph(BOX, None),
        theirs.OneOf((theirs.Discrete(4), BOX)),
    ],
    ids=repr,
)
def test_gymnasium_spaces_come_back_equal(space):
    described = from_gymnasium(space)
    back = to_gymnasium(described)
    assert back == space
    assert from_gymnasium(back) == described
    space.seed(3)
    sample = space.sample()
    assert space.contains(described.codec.decode(described.codec.encode(sample), copy=True))


def test_names_keep_their_declared_order():
    space = theirs.Dict([("z", BOX), ("a", BOX)])
    assert list(to_gymnasium(from_gymnasium(space)).spaces) == ["z", "a"]


def test_the_charset_keeps_its_order():
    assert from_gymnasium(theirs.Text(3, charset="cab")).charset == "cab"


def test_a_text_of_any_character_becomes_one_that_contains_every_string():
    space = ours.Text(0, 5)
    made = to_gymnasium(space)
    assert isinstance(made, theirs.Text)
    assert made.contains("é🙂")
    assert not made.contains("toolong")
    assert made.contains(made.sample())
    assert made == to_gymnasium(space)
    assert made != to_gymnasium(ours.Text(0, 6))
    assert from_gymnasium(made) == space
    assert from_gymnasium(theirs.Tuple((made,))) == ours.Tuple([space])


def test_64_bit_boxes_can_be_sampled():
    made = to_gymnasium(ours.Box((2,), np.int64))
    made.seed(0)
    assert made.contains(made.sample())


class Odd(gym.Space):
    pass


class EvenBox(theirs.Box):
    def contains(self, x):
        return super().contains(x) and bool(np.all(x % 2 == 0))


class NamedBox(theirs.Box):
    label = "a box with a name"


def test_foreign_spaces_are_refused_with_their_place():
    space = theirs.Dict({"a": theirs.Tuple((BOX, Odd()))})
    with pytest.raises(InvalidValue, match=r"class .*Odd; expected one of Box") as caught:
        from_gymnasium(space, "observation_space")
    assert caught.value.path == "observation_space['a'][1]"
    with pytest.raises(InvalidValue, match="EvenBox changes which values a Box contains"):
        from_gymnasium(EvenBox(0, 8, (2,), np.int8))
    assert from_gymnasium(NamedBox(-1, 1, (2,), np.float32)) == from_gymnasium(BOX)
    for value in (None, "CartPole-v1", 3):
        with pytest.raises(InvalidValue, match="cannot describe"):
            from_gymnasium(value)


def test_names_that_are_no_strings_are_refused_with_their_place():
    with pytest.raises(InvalidValue, match="names that are strings") as caught:
        from_gymnasium(theirs.Tuple((theirs.Dict({0: BOX}),)))
    assert caught.value.path == "space[0]"


def test_what_gymnasium_cannot_express_is_refused():
    with pytest.raises(InvalidValue, match="Gymnasium cannot express"):
        to_gymnasium(ours.Discrete(256, dtype=np.uint8))
    with pytest.raises(InvalidValue, match="Gymnasium cannot express"):
        to_gymnasium(ours.MultiBinary((0,)))
    with pytest.raises(InvalidValue, match="expected a rollmesh space"):
        to_gymnasium(BOX)


def test_our_own_spaces_pass_through():
    space = ours.Discrete(2)
    assert from_gymnasium(space) is space


def test_the_package_does_not_import_gymnasium():
    code = (
        "import sys, rollmesh.spaces.gymnasium, rollmesh.spaces.space, rollmesh.spaces.metadata; "
        "sys.exit('gymnasium' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
