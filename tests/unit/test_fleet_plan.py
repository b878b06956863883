"""Plans: episodes as a pure function of seed, task and index; JSON forms, hashes, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmesh.arguments import derived_seeds
from rollmesh.endpoint.models.policy import derived_policy_seed
from rollmesh.errors import InvalidSpec
from rollmesh.fleet.plan import Plan, Task

SUITE = Plan(
    name="suite",
    seed=7,
    tasks=(
        Task(name="lift", env="bench:make", env_kwargs={"task": 3}, episodes=4, initial_states=3),
        Task(name="push", env="bench:make", env_kwargs={"task": 3}, seeds=[5, 6], options={"a": 1}),
        Task(name="stack", env="Other-v0", episodes=2, max_episode_steps=50),
    ),
)


def test_episodes_follow_one_another_task_by_task():
    assert [(e.index, e.task, e.task_index) for e in SUITE.episodes] == [
        (0, "lift", 0),
        (1, "lift", 1),
        (2, "lift", 2),
        (3, "lift", 3),
        (4, "push", 0),
        (5, "push", 1),
        (6, "stack", 0),
        (7, "stack", 1),
    ]
    assert [e.max_episode_steps for e in SUITE.episodes] == [None] * 6 + [50, 50]


def test_initial_states_go_round_and_are_reset_options():
    assert [e.initial_state for e in SUITE.episodes] == [0, 1, 2, 0, None, None, None, None]
    assert SUITE.episodes[2].options == {"initial_state": 2}
    named = Task(
        episodes=2, initial_states=2, initial_state_option="init_state_id", options={"x": 1}
    )
    assert named.options_of(1) == {"x": 1, "init_state_id": 1}


def test_explicit_seeds_are_taken_as_they_are():
    assert [e.env_seed for e in SUITE.episodes[4:6]] == [5, 6]


def test_a_plan_of_one_nameless_task_has_the_seeds_of_evaluate():
    plan = Plan(tasks=[Task(episodes=5)], seed=11)
    assert tuple(e.env_seed for e in plan.episodes) == derived_seeds(11, 5)


def test_policy_seeds_are_those_that_policies_are_given():
    assert [e.policy_seed for e in SUITE.episodes] == [
        derived_policy_seed(e.env_seed) for e in SUITE.episodes
    ]


@given(st.integers(0, 2**70), st.text(max_size=8), st.integers(1, 40), st.integers(0, 39))
def test_an_episode_does_not_depend_on_what_else_is_planned(seed, name, count, k):
    k %= count
    alone = Plan(tasks=[Task(name=name, episodes=k + 1)], seed=seed).episodes[k]
    others = [Task(name=f"{name}.", episodes=3), Task(name=name or "x", episodes=count)]
    if name:
        among = Plan(tasks=others, seed=seed).episodes[3 + k]
        assert (among.env_seed, among.policy_seed) == (alone.env_seed, alone.policy_seed)
    assert 0 <= alone.env_seed < 2**31
    assert 0 <= alone.policy_seed < 2**31


def test_json_brings_back_an_equal_plan():
    again = Plan.from_json(SUITE.to_json(indent=2))
    assert again.hash == SUITE.hash
    assert again.episodes == SUITE.episodes
    assert again.name == "suite"


def test_the_hash_is_known_and_does_not_hear_the_label():
    assert SUITE.hash == Plan(name="other", seed=7, tasks=SUITE.tasks).hash
    assert SUITE.hash != Plan(seed=8, tasks=SUITE.tasks).hash
    assert (
        Plan(tasks=[Task(episodes=3)]).hash == "487d7438cf20a7e948a18d60d94f42f5"
    )  # another value orphans every run folder


def test_numpy_values_are_written_as_plain_ones():
    plan = Plan(tasks=[Task(seeds=np.arange(3), env_kwargs={"x": np.float64(0.5)})])
    assert Plan.from_json(plan.to_json()).hash == plan.hash


def test_numpy_numbers_count_as_plain_ones():
    given = Task(episodes=np.int64(3), initial_states=np.int8(2), max_episode_steps=np.uint16(9))
    plan = Plan(tasks=(given,), seed=np.int64(4))
    same = Plan(tasks=(Task(episodes=3, initial_states=2, max_episode_steps=9),), seed=4)
    assert (plan.hash, plan.episodes) == (same.hash, same.episodes)
    assert type(plan.episodes[1].options["initial_state"]) is int
    assert type(plan.starts()[0].max_steps) is int


def test_tasks_with_equal_envs_share_a_setup():
    assert SUITE.setup_of == {"lift": "lift", "push": "lift", "stack": "stack"}
    assert list(SUITE.setups) == ["lift", "stack"], "in the order in which they are first needed"
    assert SUITE.setups["lift"].name == "lift"


def test_starts_leave_out_what_has_finished():
    starts = SUITE.starts({0: None, 5: None})
    assert [s.index for s in starts] == [1, 2, 3, 4, 6, 7]
    assert (starts[3].task, starts[3].setup, starts[3].seed) == ("push", "lift", 5)
    assert starts[-1].max_steps == 50


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Plan(tasks=[]), "at least one"),
        (lambda: Plan(tasks=Task(episodes=1)), r"list of Task.*got Task\("),
        (lambda: Plan(tasks=[Task(name="a", episodes=1)] * 2), "two tasks"),
        (lambda: Plan(tasks=[Task(episodes=1), Task(name="a", episodes=1)]), "no name"),
        (lambda: Plan(tasks=[Task(episodes=1)], seed=-1), "seed"),
        (Task, "episodes"),
        (lambda: Task(episodes=-1), "0 or more"),
        (lambda: Task(episodes=2, seeds=[1]), "contradicts"),
        (lambda: Task(seeds=[1, -2]), r"seeds\[1\]"),
        (lambda: Task(seeds=[1, None]), r"seeds\[1\]"),
        (lambda: Task(episodes=1, initial_states=0), "1 or more"),
        (lambda: Task(episodes=2, options=[{}]), "1 entries for 2"),
        (lambda: Task(episodes=1, options=[3]), r"options\[0\]"),
        (lambda: Plan(tasks=[Task(episodes=1, env_kwargs={"f": print})]), "cannot be written"),
        (lambda: Plan(tasks=[Task(episodes=1, env_kwargs={"f": float("nan")})]), "nan"),
        (lambda: Plan(tasks=[Task(episodes=1, options={1: 2})]), "no text"),
        (lambda: Plan.from_json("{"), "no JSON"),
        (lambda: Plan.from_dict({"tasks": [{"episode": 1}]}), "episode.*not known"),
        (lambda: Plan.from_dict({"tasks": [{"episodes": 1}], "sed": 1}), "sed.*not known"),
        (lambda: Plan.from_dict({"tasks": [], "format": 9}), "format"),
        (lambda: Plan.from_dict([]), "table"),
        (lambda: Plan.from_dict({"tasks": "abc"}), "list"),
    ],
)
def test_wrong_plans_are_refused_by_name(make, word):
    with pytest.raises(InvalidSpec, match=word):
        make()
