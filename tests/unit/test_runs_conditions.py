"""Where the conditions of two kept runs differ."""

from __future__ import annotations

import json

from rollmesh.results.compare import compare
from rollmesh.runs.conditions import differing_conditions, with_conditions
from rollmesh.runs.identity import RunIdentity
from tests.unit.result_toys import returns


def identity(tasks=(), env="E", **settings):
    plan = json.dumps({"seed": 7, "tasks": list(tasks)})
    return RunIdentity(plan_json=plan, plan_hash=plan, env=env, model="m", settings=settings)


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
    found = compare(returns([1.0] * 100), returns([1.0] * 100), margin=0.5)
    noted = with_conditions(found, identity(env="mine:one"), identity(env="mine:two"))
    assert noted.notes == ("A was started with the env mine:one, B with mine:two",)
    assert noted.gate(strict=True).is_open
