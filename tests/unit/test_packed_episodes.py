"""Packed episodes: what is read is what was put in, and takes little memory."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest

from rollmesh.results.packed import PackedEpisodes
from rollmesh.results.result import EpisodeResult
from rollmesh.spaces.conformance import OddObservations

EPISODE = EpisodeResult(
    index=7,
    seed=2**31 - 1,
    env_index=3,
    episode_id="01a22960-69df-7db2-b7ff-9287ab2b68e7",
    steps=100,
    total_reward=1.5,
    terminated=True,
    truncated=False,
    success=True,
    duration_s=0.25,
)
CHANGES = {
    "plain": {},
    "no seed": {"seed": None},
    "an odd reward": {"total_reward": math.inf},
    "a lost attempt": {"attempts": 2, "causes": ("worker 1 died of SIGKILL", "ä")},
    "an error": {"error": "EnvFailed: no", "success": None, "task": "lift"},
    "a huge seed": {"seed": 2**100},
    "another id": {"episode_id": "my episode"},
    "an odd spelling": {"episode_id": "01A22960-69DF-7DB2-B7FF-9287AB2B68E7"},
    "half a character": {"error": "\ud800"},
    "odd observations": {
        "odd_observations": (OddObservations(kind="nan", path="observation", count=2),)
    },
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_read_equals_what_was_put_in(name):
    packed, episode = PackedEpisodes(), replace(EPISODE, **CHANGES[name])
    packed[7] = episode
    assert packed[7] == episode
    assert repr(packed[7]) == repr(episode), "types too"
    assert type(packed[7].causes) is tuple


def test_it_is_a_mapping():
    packed = PackedEpisodes()
    packed.update({2: replace(EPISODE, index=2), 1: replace(EPISODE, index=1)})
    assert (len(packed), list(packed), 2 in packed, 3 in packed) == (2, [1, 2], True, False)
    assert packed.get(3) is None
    packed[2] = replace(EPISODE, index=2, steps=5)
    assert packed[2].steps == 5
    del packed[1]
    assert dict(packed.items()) == {2: replace(EPISODE, index=2, steps=5)}
    for index in (1, 3, -1):
        with pytest.raises(KeyError):
            packed[index]
    with pytest.raises(KeyError):
        packed[-1] = EPISODE
    with pytest.raises(KeyError):
        del packed[1]


def test_what_it_begins_with_is_held_as_it_is():
    episode = replace(EPISODE, index=2)
    packed = PackedEpisodes({2: episode})
    assert packed[2] is episode
    assert (len(packed), list(packed)) == (1, [2])


def test_an_episode_takes_little():
    packed = PackedEpisodes()
    packed[7] = EPISODE
    held = packed._held[7]
    assert isinstance(held, bytes)
    assert sys.getsizeof(held) < 110
