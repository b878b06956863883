"""Where the conditions of two evaluations differ, kept or not."""

from __future__ import annotations

import json
import math

import pytest

import rollmesh
from rollmesh.results import conditions
from rollmesh.results.compare import compare
from rollmesh.results.conditions import Conditions
from rollmesh.results.result import EvalResult
from rollmesh.runs import read_run
from rollmesh.runs.conditions import conditions_of
from rollmesh.runs.identity import RunIdentity
from tests.unit.result_toys import returns


def identity(tasks=(), env="E", **settings):
    plan = json.dumps({"seed": 7, "tasks": list(tasks)})
    return RunIdentity(plan_json=plan, plan_hash=plan, env=env, model="m", settings=settings)


def differing_conditions(a, b):
    return conditions.differing_conditions(conditions_of(a), conditions_of(b))


def test_the_same_conditions_are_told_as_nothing():
    one = identity([{"name": "a", "episodes": 3}], env_kwargs={"x": "1"}, max_episode_steps=9)
    more = identity([{"name": "a", "episodes": 8}], env_kwargs={"x": "1"}, max_episode_steps=9)
    assert differing_conditions(one, more) == ()
    assert differing_conditions(identity(env_kwargs={}), identity()) == ()


def test_what_the_model_did_is_no_condition():
    assert differing_conditions(identity(execution_horizon=1), identity(replan="batch")) == ()


def test_arguments_and_caps_are_named_with_both_values():
    one = identity(env_kwargs={"scene": '"drawer"', "light": "1"}, max_episode_steps=50)
    other = identity(env_kwargs={"scene": '"door"', "light": "1"}, max_episode_seconds=2.5)
    assert differing_conditions(one, other) == (
        'env_kwargs.scene: "drawer" and "door"',
        "max_episode_steps: 50 and none",
        "max_episode_seconds: none and 2.5",
    )


def test_tasks_of_both_plans_are_compared_by_name():
    one = identity([{"name": "a", "options": {"x": 1}}, {"name": "b"}])
    other = identity(
        [{"name": "c"}, {"name": "a", "options": {"x": 0, "y": 1}, "initial_states": 4}]
    )
    assert differing_conditions(one, other) == (
        "task 'a', options.x: 1 and 0",
        "task 'a', options.y: none and 1",
        "task 'a', initial_states: none and 4",
    )


def test_a_plan_that_cannot_be_read_has_no_tasks():
    odd = RunIdentity(plan_json="[]", plan_hash="1", env="E", model="m")
    worse = RunIdentity(plan_json="{", plan_hash="2", env="E", model="m")
    assert differing_conditions(odd, worse) == ()


def test_many_differences_and_long_values_are_cut():
    one = identity(env_kwargs={f"k{i}": "1" for i in range(9)}, max_episode_steps=1)
    other = identity(env_kwargs={"k0": "x" * 200}, max_episode_steps=1)
    told = differing_conditions(one, other)
    assert len(told[0]) < 100
    assert told[-1] == "… and 3 more"


def test_another_name_of_an_env_is_a_note_and_shuts_no_gate():
    one, two = (conditions_of(identity(env=env)) for env in ("mine:one", "mine:two"))
    a, b = returns([1.0] * 100, conditions=one), returns([1.0] * 100, conditions=two)
    noted = compare(a, b, margin=0.5)
    assert noted.notes == ("A was started with the env mine:one, B with mine:two",)
    assert noted.gate(strict=True).is_open


def test_options_that_are_the_same_for_all_episodes_are_told_as_one():
    one = identity([{"name": "", "options": [{"x": 1}, {"x": 1}]}])
    other = identity([{"name": "", "options": {"x": 1}}])
    assert differing_conditions(one, other) == ()


# ------------------------------------------------------------------- results in memory


def make(scene="door"):
    del scene
    import gymnasium

    return gymnasium.make("CartPole-v1")


def play(**given):
    return rollmesh.evaluate(lambda seen: 0, make, episodes=3, base_seed=7, **given)


def test_results_in_memory_are_compared_with_their_conditions():
    a = play(env_kwargs={"scene": "door"}, max_episode_steps=5)
    b = play(env_kwargs={"scene": "drawer"}, options={"low": -0.01, "high": 0.01})
    found = rollmesh.compare(a, b, metric="return", margin=1e9)
    assert found.conditions == (
        'env_kwargs.scene: "door" and "drawer"',
        "max_episode_steps: 5 and none",
        'options: none and {"low": -0.01, "high": 0.01}',
    )
    assert found.gate().is_open
    assert not found.gate(strict=True).is_open
    assert "not played alike" in repr(found)
    assert rollmesh.compare(a, a, metric="return", margin=1e9).gate(strict=True).is_open


def test_conditions_survive_json_and_old_json_has_none():
    a = play(env_kwargs={"scene": "door"}, options={"low": -0.01, "high": 0.01})
    text = a.to_json()
    back = EvalResult.from_json(text)
    assert (
        back.conditions
        == a.conditions
        == Conditions(
            env="make",
            settings={"env_kwargs": {"scene": '"door"'}},
            tasks={"": {"options": {"low": -0.01, "high": 0.01}}},
        )
    )
    table = json.loads(text)
    del table["conditions"]
    old = EvalResult.from_json(json.dumps(table))
    assert old.conditions is None
    other = play(env_kwargs={"scene": "drawer"})
    assert rollmesh.compare(old, other, metric="return").conditions == ()


@pytest.mark.parametrize(
    "table", [None, 7, {}, {"settings": 1, "tasks": {}}, {"settings": {}, "tasks": {"a": 1}}]
)
def test_what_are_no_conditions_are_unknown_ones(table):
    assert Conditions.from_dict(table) is None


def test_a_kept_run_and_the_same_in_memory_have_the_same_conditions(tmp_path):
    given = {"env_kwargs": {"scene": "door"}, "options": {"low": -0.01, "high": 0.01}}
    kept = play(run_dir=tmp_path / "run", **given)
    assert play(**given).conditions == kept.conditions
    assert read_run(tmp_path / "run").result.conditions == kept.conditions


def test_options_without_a_json_form_are_not_compared():
    result = play(options={"mine": object})
    assert result.conditions is not None
    assert result.conditions.tasks == {}


def test_a_token_is_told_by_no_result_and_kept_in_no_file(tmp_path):
    token = "c0ffee" * 8
    task = {"name": "a", "env_kwargs": {"token": token, "address": "tcp://host:1"}}
    assert Conditions.of(env="E", settings={}, tasks=[task]).tasks == {
        "a": {"env_kwargs": {"address": "tcp://host:1"}}
    }
    with rollmesh.EnvServer(
        "CartPole-v1", "127.0.0.1:0", rollmesh.ServerOptions(token=token)
    ) as server:
        result = rollmesh.evaluate(
            "random",
            "rollmesh.gymnasium_plugin:rollmesh/Remote-v0",
            seeds=[1],
            env_kwargs={"address": server.address, "token": token},
            run_dir=tmp_path / "run",
        )
    assert result.num_errors == 0
    assert result.conditions is not None
    assert "address" in result.conditions.settings["env_kwargs"]
    assert token not in result.to_json()
    kept = [file.read_bytes() for file in (tmp_path / "run").iterdir() if file.is_file()]
    assert kept
    assert not any(token.encode() in data for data in kept)


def test_arguments_that_hold_themselves_or_say_any_name_are_no_error():
    class Odd:
        def __getattr__(self, name):
            return 7

    around: dict = {}
    around["again"] = around
    told = {"a": '"dict"', "b": json.dumps(Odd.__qualname__)}
    assert conditions.written({"a": around, "b": Odd()}) == told
    assert play(options=around).conditions.tasks == {}


def test_a_cap_of_infinity_is_none():
    endless = Conditions(settings={"max_episode_seconds": math.inf})
    assert conditions.differing_conditions(endless, Conditions()) == ()
    assert conditions.differing_conditions(
        endless, Conditions(settings={"max_episode_seconds": 5.0})
    )
