"""What a run is, and what two of them differ in."""

from __future__ import annotations

import pytest

from rollmesh.results.conditions import written
from rollmesh.runs.identity import RunIdentity
from tests.unit.runs_toys import identity


def test_the_same_is_the_same():
    assert identity().changes_since(identity()) == ()


def test_each_change_is_named_old_to_new():
    new = identity(env="Other-v1", model="toy:better", settings={"max_episode_steps": 50, "x": 1})
    assert new.changes_since(identity()) == (
        'env: "Toy-v0" -> "Other-v1"',
        'model: "toy:policy" -> "toy:better"',
        "settings.max_episode_steps: 100 -> 50",
        "settings.x: (nothing) -> 1",
    )


def test_a_changed_plan_is_told_by_its_entries():
    new = identity(
        plan_hash="ffff", plan_json='{"seed": 8, "tasks": [{"name": "lift", "episodes": 30}]}'
    )
    assert new.changes_since(identity()) == (
        "plan.seed: 7 -> 8",
        "plan.tasks[0].episodes: 20 -> 30",
    )


def test_lists_of_different_length_are_told_once_and_compared_as_far_as_they_go():
    old = identity(settings={"a": [1, 2]})
    assert identity(settings={"a": [1, 3, 4]}).changes_since(old) == (
        "settings.a: 2 entries -> 3 entries",
        "settings.a[1]: 2 -> 3",
    )


def test_equal_hashes_are_equal_plans_whatever_their_spelling():
    assert identity(plan_json="{}").changes_since(identity()) == ()


@pytest.mark.parametrize("text", ["no JSON", identity().plan_json])
def test_a_plan_that_cannot_be_compared_is_told_by_its_hash(text):
    new = identity(plan_hash="ffff", plan_json=text)
    assert new.changes_since(identity()) == ("plan: hash 0123456789abcdef -> ffff",)


def test_true_is_not_one():
    old = identity(settings={"a": 1})
    assert identity(settings={"a": True}).changes_since(old) == ("settings.a: 1 -> true",)


def test_many_and_long_changes_are_cut():
    old = identity(settings={})
    changes = identity(settings={str(i): "x" * 500 for i in range(20)}).changes_since(old)
    assert changes[-1] == "… and 12 more"
    assert all(len(change) < 200 for change in changes)


def test_the_number_of_episodes_follows_from_the_plan_and_is_not_compared():
    assert identity(planned=None).changes_since(identity()) == ()


def test_tuples_are_lists_in_settings():
    assert identity(settings={"a": (1, 2)}) == identity(settings={"a": [1, 2]})


def test_a_setting_that_json_cannot_carry_is_refused():
    with pytest.raises(TypeError, match=r"settings\['model'\] wants a value that JSON can carry"):
        identity(settings={"model": object()})


def test_it_comes_back_from_its_values():
    assert RunIdentity(**identity().to_dict()) == identity()


def test_arguments_are_compared_by_what_they_say():
    assert written(None) == {}
    assert written({"a": (1, 2.5), "b": None}) == {"a": "[1, 2.5]", "b": "null"}
    assert written({"kind": dict, "maker": written}) == {"kind": '"dict"', "maker": '"written"'}
    assert written({"map": {(0, 1): "wall", 2: object()}}) == {
        "map": '{"(0, 1)": "wall", "2": "object"}'
    }
