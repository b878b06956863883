"""Observations that their space does not hold are counted, whatever way they come."""

from __future__ import annotations

import json
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

import rollmesh
from rollmesh.cli import main
from rollmesh.fleet.settings import FleetSettings
from rollmesh.ports import AutoresetMode, OddValue
from rollmesh.results.odd import OddPlace, odd_lines, odd_places
from rollmesh.results.result import EvalResult
from rollmesh.runs import read_run
from rollmesh.runtime.lanes import Lane
from rollmesh.spaces.conformance import Checker, OddObservations
from rollmesh.spaces.space import Box, Dict, Discrete, Sequence, Text
from tests.conformance.links import LINKS
from tests.driving import MODES, drive
from tests.toys import ToyEnv
from tests.unit.odd_toys import make, policy
from tests.unit.result_toys import episode

F4 = np.float32
WRIST = "observation['wrist']"
NAN = OddObservations(kind="nan", path=WRIST, count=2)
HIGH = OddObservations(kind="bounds", path=WRIST, count=1)
NAMED = "tests.unit.odd_toys:make"


def by_episode(result):
    return [set(e.odd_observations) for e in result.episodes]


# ------------------------------------------------------------------------------ the checker


def kept(space, value, *, rows=None):
    checker = Checker("observation", report=lambda path, detail: None).keeping()
    for _ in range(3):  # what is told once is kept each time
        checker.found.clear()
        if rows is None:
            space.codec.encode(value, checker)
        else:
            space.codec.encode_stacked(value, rows, checker)
    return {(kind, path, tuple(of)) for kind, path, of in checker.found}


@pytest.mark.parametrize(
    ("space", "value", "kinds"),
    [
        (Box((2,), F4, -1, 1), np.array([0, np.nan], F4), ["nan"]),
        (Box((2,), F4, -1, 1), np.array([2, np.nan], F4), ["nan", "bounds"]),
        (Box((2,), F4, -np.inf, np.inf), np.array([0, np.nan], F4), ["nan"]),
        (Box((200, 200), F4, -1, 1), np.full((200, 200), 2, F4), ["bounds"]),
        (Box((2,), np.uint8, 0, 9), np.array([10, 1], np.uint8), ["bounds"]),
        (Discrete(3), 7, ["bounds"]),
        (Text(1, 3, frozenset("ab")), "abcd", ["length", "charset"]),
        (Box((2,), F4, -1, 1), np.array([0, 1], F4), []),
        (Box((2,), F4, -1, 1), np.array([0.0, 1.0]), []),  # converted, and right then
        (Text(1, 3, frozenset("ab")), "ab", []),
    ],
    ids=lambda value: str(value) if isinstance(value, list) else "",
)
def test_a_checker_keeps_each_time_what_it_tells_once(space, value, kinds):
    assert kept(space, value) == {(kind, "observation", (0,)) for kind in kinds}


def test_rows_of_a_batch_are_told_apart():
    space = Dict({"a": Box((2,), F4, -1, 1), "t": Text(1, 3), "s": Sequence(Box((), F4, 0, 1))})
    arrays = np.zeros((3, 2), F4)
    arrays[1, 0], arrays[2, 1] = np.nan, 9
    value = {"a": arrays, "t": ("x", "", "x"), "s": ((), (F4(0), F4(3)), (F4(9),))}
    assert kept(space, value, rows=3) == {
        ("nan", "observation['a']", (1,)),
        ("bounds", "observation['a']", (2,)),
        ("length", "observation['t']", (1,)),
        ("bounds", "observation['s'][*]", (1,)),
        ("bounds", "observation['s'][*]", (2,)),
    }


def test_a_checker_that_nobody_asked_keeps_nothing():
    checker = Checker("observation", report=lambda path, detail: None)
    Discrete(3).codec.encode(7, checker)
    assert checker.found is None


# ------------------------------------------------------------------------------ every way


@pytest.mark.parametrize(
    "how", [{}, {"num_envs": 2}, {"workers": 1}], ids=["alone", "lanes", "worker"]
)
def test_each_episode_says_what_was_odd_in_it(how, caplog):
    env = NAMED if how.get("workers") else make
    result = rollmesh.evaluate(policy, env, seeds=[0, 1, 2, 3], **how)
    assert by_episode(result) == [{HIGH}, {NAN, HIGH}, {HIGH}, {NAN, HIGH}]
    assert len([r for r in caplog.records if "NaN" in r.getMessage()]) == 1  # as before
    assert result.odd_observations == (
        OddPlace(kind="nan", path=WRIST, count=4, episodes=(1, 3)),
        OddPlace(kind="bounds", path=WRIST, count=4, episodes=(0, 1, 2, 3)),
    )


def test_several_lanes_of_one_worker_are_told_apart():
    result = rollmesh.evaluate(
        policy, NAMED, seeds=[0, 1], workers=1, fleet=FleetSettings(lanes_per_worker=2)
    )
    assert by_episode(result) == [{HIGH}, {NAN, HIGH}]


@pytest.mark.parametrize("isolate", [None, "process"])
@pytest.mark.parametrize("num_envs", [None, 2], ids=["alone", "lanes"])
@pytest.mark.parametrize("link", LINKS)
def test_a_served_env_tells_the_same_over_every_transport(link, num_envs, isolate, monkeypatch):
    way = LINKS[link]
    for name, value in way.environment:
        monkeypatch.setenv(name, value)
    options = way.options(isolate=isolate, num_envs=num_envs)
    with rollmesh.EnvServer(NAMED, way.place(), options=options) as server:
        result = rollmesh.evaluate(policy, server.address, seeds=[0, 1, 2, 3])
    local = rollmesh.evaluate(policy, make, seeds=[0, 1, 2, 3])
    assert by_episode(result) == by_episode(local) == [{HIGH}, {NAN, HIGH}] * 2
    assert result.odd_observations == local.odd_observations


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("mode", list(gym.vector.AutoresetMode), ids=lambda mode: mode.name)
def test_a_served_vector_env_tells_the_same_over_every_transport(mode, link, monkeypatch):
    def build():
        return gym.vector.SyncVectorEnv([make, make], autoreset_mode=mode)

    way = LINKS[link]
    for name, value in way.environment:
        monkeypatch.setenv(name, value)
    is_same_step = mode is gym.vector.AutoresetMode.SAME_STEP  # takes no seeds
    plan = {"episodes": 4} if is_same_step else {"seeds": [0, 3, 4, 5]}
    with rollmesh.EnvServer(build, way.place(), options=way.options()) as server:
        result = rollmesh.evaluate(policy, server.address, **plan)
    local = rollmesh.evaluate(policy, build, **plan)
    assert by_episode(result) == by_episode(local)
    assert {NAN, HIGH} in by_episode(result)


@pytest.mark.parametrize("mode", list(gym.vector.AutoresetMode), ids=lambda mode: mode.name)
def test_lanes_of_a_vector_env_are_told_apart_in_each_mode(mode):
    """The first observation of an episode is its own, also where the env resets itself."""
    envs = gym.vector.SyncVectorEnv([make, make], autoreset_mode=mode)
    if mode is gym.vector.AutoresetMode.SAME_STEP:
        # it resets itself, and counts its seeds up from 0: 0 and 0, then 1 and 1
        plan, wanted = {"episodes": 4}, [{HIGH}, {HIGH}, {NAN, HIGH}, {NAN, HIGH}]
    else:
        plan, wanted = {"seeds": [0, 3, 4, 5]}, [{HIGH}, {NAN, HIGH}, {HIGH}, {NAN, HIGH}]
    result = rollmesh.evaluate(policy, envs, **plan)
    envs.close()
    assert by_episode(result) == wanted


@pytest.mark.parametrize("conformance", ["off", "strict"])
def test_only_warn_lets_odd_observations_pass_and_counts_them(conformance):
    if conformance == "strict":
        with pytest.raises(rollmesh.EnvFailed, match="NaN"):
            rollmesh.evaluate(policy, make, seeds=[1], conformance="strict")
        return
    result = rollmesh.evaluate(policy, make, seeds=[1], conformance=conformance)
    assert result.odd_observations == ()


class BrokenAtLast(type(make())):
    """Sees NaN at the start, and breaks."""

    def step(self, action):
        raise RuntimeError("broken")


def test_an_errored_episode_says_what_was_odd_before():
    result = rollmesh.evaluate(policy, BrokenAtLast, seeds=[1], on_error="continue")
    (only,) = result.episodes
    assert only.error is not None
    assert only.odd_observations == (OddObservations(kind="nan", path=WRIST, count=1),)


# ----------------------------------------------------------------------------- the route


class OddToy(ToyEnv):
    """Says that its first lane is odd, in every reply."""

    def reset(self, request):
        reply = super().reset(request)
        if not request.env_indices or request.env_indices[0] == 0:
            reply.odd = (OddValue(0, "nan", "observation"),)
        return reply

    def step(self, request):
        reply = super().step(request)
        reply.odd = (OddValue(0, "nan", "observation"),)
        return reply


@pytest.mark.parametrize("mode", MODES)
def test_every_observation_of_an_episode_is_counted_once(mode):
    """Under SAME_STEP the toy's last observation is right, and the next one's first is not."""
    more = 0 if mode is AutoresetMode.SAME_STEP else 1
    for one in drive(OddToy(2, mode), max_episodes=6).ok.episodes:
        counted = sum(odd.count for odd in one.odd_observations)
        assert counted == (one.steps + more if one.env_index == 0 else 0), one


def test_very_many_paths_are_counted_together():
    lane = Lane(0, 0)
    for number in range(1000):
        lane.count_odd("nan", f"observation[{number}]", is_next=False)
    told = lane.odd_observations()
    assert len(told) == 33
    assert sum(one.count for one in told) == 1000
    assert told[-1].path == "…"
    lane = Lane(0, 0)
    lane.count_odd("nan", "x" * 10_000, is_next=False)
    assert len(lane.odd_observations()[0].path) == 256


# ------------------------------------------------------------------------------- results


RESULT = EvalResult(
    episodes=(
        episode(0),
        episode(1, odd_observations=(HIGH, NAN)),
        episode(2, odd_observations=(HIGH,), error="boom"),
    ),
    planned=3,
)


def test_nan_is_told_first_and_names_its_episodes():
    assert list(odd_lines(odd_places(RESULT.episodes), episodes=3)) == [
        ("NaN observed", "2", f"{WRIST}; in 1 of 3 episodes: 1"),
        ("out of bounds", "2", f"{WRIST}; in 2 of 3 episodes: 1, 2"),
    ]
    assert "NaN observed" in repr(RESULT)
    assert RESULT.episodes[0].odd_observations == ()
    escape = OddObservations(kind="nan", path="\x1b[2J", count=1)
    assert "\x1b" not in repr(EvalResult(episodes=(episode(0, odd_observations=(escape,)),)))
    assert "observed" not in repr(EvalResult(episodes=(episode(0),), planned=1))


def test_episodes_that_an_older_version_played_are_not_among_those_looked_at():
    seen = replace(RESULT, num_unwatched=1)
    assert "in 2 of 2 episodes: 1, 2; 1 of an older version not looked at" in repr(seen)
    assert EvalResult.from_json(seen.to_json()) == seen


def test_json_carries_what_was_odd_and_old_json_has_none():
    text = RESULT.to_json()
    table = json.loads(text)
    assert table["odd_observations"][0] == {
        "kind": "nan", "path": WRIST, "count": 2, "episodes": [1],
    }  # fmt: skip
    assert EvalResult.from_json(text) == RESULT
    for entry in table["episodes"]:
        del entry["odd_observations"]
    del table["odd_observations"]
    old = EvalResult.from_json(json.dumps(table))
    assert old.odd_observations == ()


def test_a_result_stays_hashable():
    result = rollmesh.evaluate(policy, make, seeds=[1], env_kwargs={})
    assert hash(result) == hash(result)


def test_a_kept_run_says_so_again(tmp_path, capfd):
    folder = tmp_path / "run"
    rollmesh.evaluate(policy, make, seeds=[0, 1], run_dir=folder)
    assert by_episode(read_run(folder).result) == [{HIGH}, {NAN, HIGH}]
    assert main(["show", str(folder)]) == 0
    shown = capfd.readouterr().out
    assert "NaN observed" in shown
    assert WRIST in shown
    assert main(["report", str(folder), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "Observations of 1 of 2 episodes had NaN in them." in page
