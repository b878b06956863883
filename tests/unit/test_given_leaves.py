"""Leaves that were given away: the policy gets their memory, where nobody else can tell."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import rollmesh
from rollmesh import Hooks
from rollmesh.ports import EpisodeInfo, PredictRequest
from rollmesh.spaces import recycling
from rollmesh.spaces.codec import Given
from rollmesh.spaces.recycling import WORTH_BYTES
from rollmesh.spaces.space import Box, Dict, Text
from rollmesh.transport.connection import ConnectionOptions
from rollmesh.wire.messages import Kind, Message
from tests.unit.frame_toys import CONTEXT
from tests.unit.test_native import LIMIT_S, connected

TCP = "rollmesh+tcp://127.0.0.1:0"
SIZE = 2 * WORTH_BYTES
IMAGE = Box((SIZE,), np.uint8, 0, 255)
SPACE = Dict((("image", IMAGE), ("few", Box((2,), np.float32, -1, 1)), ("says", Text(0, 9, None))))

recycles = pytest.mark.skipif(not recycling._HAS_GIL, reason="recycles with a GIL only")


def value(fill):
    return {"image": np.full(SIZE, fill, np.uint8), "few": np.zeros(2, np.float32), "says": "go"}


def test_one_row_is_handed_over_as_it_is_and_may_be_written_to():
    leaves = SPACE.codec.encode(value(7))
    got = SPACE.codec.decode(Given(leaves), 0, copy=True)
    assert np.shares_memory(got["image"], leaves[0])
    assert not np.shares_memory(got["few"], leaves[1])
    assert got["says"] == "go"
    got["image"][:] += 1
    got["few"][:] += 1
    assert set(got["image"]) == {8}


def test_all_rows_are_handed_over_as_they_are():
    leaves = SPACE.codec.encode_many([value(7), value(9)])
    got = SPACE.codec.decode_stacked(Given(leaves), 2, copy=True)
    assert np.shares_memory(got["image"], leaves[0])
    got["image"][1] = 3
    assert [set(row) for row in got["image"]] == [{7}, {3}]


@pytest.mark.parametrize("rows", [1, 2])
def test_leaves_that_were_not_given_away_are_copied(rows):
    leaves = SPACE.codec.encode_many([value(7)] * rows)
    got = SPACE.codec.decode_stacked(leaves, rows, copy=True)["image"]
    one = SPACE.codec.decode(leaves, 0, copy=True)["image"]
    assert not np.shares_memory(got, leaves[0])
    assert not np.shares_memory(one, leaves[0])


@pytest.mark.parametrize(
    "foreign",
    [
        np.full((1, SIZE), 7, np.uint8),
        np.full((2, SIZE), 7, np.uint8)[:1],
        np.ndarray((1, SIZE), np.uint8, bytes(SIZE)),
        np.ndarray((1, SIZE), np.uint8, bytearray(SIZE)),
    ],
)
def test_memory_that_is_not_ours_is_copied_all_the_same(foreign):
    for got in (
        IMAGE.codec.decode(Given([foreign]), 0, copy=True),
        IMAGE.codec.decode_stacked(Given([foreign]), 1, copy=True),
    ):
        assert not np.shares_memory(got, foreign)
        got[...] = 1


def test_what_is_made_of_given_leaves_is_given_to_nobody():
    codec, given = SPACE.codec, Given(SPACE.codec.encode(value(7)))
    for made in (
        codec.take(given, [0]),
        codec.gather([(given, 0)]),
        codec.put(given, [0], codec.encode(value(8))),
    ):
        assert type(made) is list


def test_without_a_copy_they_are_views_that_cannot_be_written_to():
    got = SPACE.codec.decode(Given(SPACE.codec.encode(value(7))), 0)
    with pytest.raises(ValueError, match="read-only"):
        got["image"][0] = 1


@recycles
def test_what_a_policy_keeps_is_not_written_over():
    codec = SPACE.codec
    kept = [
        codec.decode(Given(codec.encode(value(fill))), 0, copy=True)["image"] for fill in range(20)
    ]
    assert [set(image) for image in kept] == [{fill} for fill in range(20)]


def test_a_received_predict_is_given_to_the_one_call_it_is_for():
    request = PredictRequest(
        context=CONTEXT, observation=SPACE.codec.encode(value(5)), episode_info=(EpisodeInfo("a"),)
    )
    options = ConnectionOptions(shared_memory=False, lent=True)
    with connected(TCP, options, SPACE) as (client, server):
        for number in range(1, 5):  # the first ones are read in other ways than the rest
            client.send(Message(Kind.PREDICT, number, request), LIMIT_S)
            leaves = server.receive(LIMIT_S).body.observation
            assert not leaves[0].flags.writeable
            got = SPACE.codec.decode(leaves, 0, copy=True)["image"]
            assert np.shares_memory(got, leaves[0])
            got[:] = 6


# ------------------------------------------------------------------------------- in a run


class Counting(gym.Env):
    """Shows the number of its step."""

    observation_space = gym.spaces.Box(0, 255, (SIZE,), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(SIZE, np.uint8), {}

    def step(self, action):
        self.steps += 1
        return np.full(SIZE, self.steps, np.uint8), 0.0, False, self.steps >= 5, {}


class Spoiling:
    """Writes into what it sees, and keeps it."""

    def __init__(self):
        self.seen = []
        self.first = []

    def predict(self, observation):
        self.first.append(int(observation[0]))
        assert observation.flags.writeable
        observation[:] = 99
        self.seen.append(observation)
        return 0


class Keeping(Hooks):
    """Keeps what it is shown."""

    def __init__(self):
        self.kept = []


class KeepingEmitted(Keeping):
    def observation_emitted(self, event):
        self.kept.append(event.observation[0])


class KeepingSteps(Keeping):
    def step_completed(self, event):
        self.kept.append(event.observation[0])


class KeepingTransformed(Keeping):
    def transform_observation(self, context, observation):
        self.kept.append(observation[0])
        return observation


class KeepingEnds(Keeping):
    def episode_completed(self, event):
        self.kept.append(event.final_observation[0])


@pytest.mark.parametrize(
    ("hooks", "shown"),
    [
        (KeepingEmitted, [0, 1, 2, 3, 4]),
        (KeepingTransformed, [0, 1, 2, 3, 4]),
        (KeepingSteps, [1, 2, 3, 4, 5]),
        (KeepingEnds, [5]),
    ],
)
def test_hooks_see_what_the_env_showed_whatever_the_policy_writes(hooks, shown):
    hook, model = hooks(), Spoiling()
    rollmesh.evaluate(model, Counting(), episodes=2, hooks=hook)
    assert model.first == [0, 1, 2, 3, 4] * 2
    assert [set(leaf.flat) for leaf in hook.kept] == [{number} for number in shown * 2]


def test_a_session_by_hand_shows_the_policy_what_the_env_showed():
    model = Spoiling()
    with rollmesh.Session(model, Counting()) as session:
        shown, _ = session.reset(seed=1)
        shown[:] = 77
        session.predict()
    assert model.first == [0]


@pytest.mark.parametrize("num_envs", [1, 3])
def test_what_the_policy_kept_stays_what_it_made_of_it(num_envs):
    model = Spoiling()
    rollmesh.evaluate(model, Counting, episodes=4, num_envs=num_envs)
    assert sorted(model.first) == sorted([0, 1, 2, 3, 4] * 4)
    assert all(set(observation) == {99} for observation in model.seen)
