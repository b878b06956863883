"""Seeds: every vector of the rule, and the arguments that matter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmesh.runtime.seeds import episode_seed, policy_seed, session_seed


@pytest.mark.parametrize(
    ("base_seed", "session_id", "generation", "env_index", "seed"),
    [
        (0, "session", 0, 0, 4938540681838044035),
        (42, "session", 0, 0, 3779897159559387645),
        (42, "session", 0, 1, 1547581752591798236),
        (42, "session", 1, 0, 4626032297247828042),
        (-1, "séance", 3, 7, 3901647208474408047),
        (9223372036854775807, "s", 4294967296, 255, 7167343777576788318),
    ],
)
def test_r41_session_seed_matches_the_references_vectors(
    base_seed, session_id, generation, env_index, seed
):
    assert session_seed(base_seed, session_id, generation, env_index) == seed


@pytest.mark.parametrize("base_seed", [2**63, -(2**63) - 1])
def test_r41_a_base_seed_beyond_64_bits_is_refused_not_wrapped(base_seed):
    with pytest.raises(OverflowError):
        session_seed(base_seed, "session", 0, 0)


@pytest.mark.parametrize(
    ("plan_seed", "task", "index", "seed"),
    [
        (0, "", 0, 848936359),
        (0, "", 1, 1599759510),
        (7, "", 0, 1968459363),
        (7, "libero/3", 199, 2023207658),
    ],
)
def test_r41_episode_seed_matches_the_vectors(plan_seed, task, index, seed):
    assert episode_seed(plan_seed, task, index) == seed


def test_r41_policy_seed_matches_the_vector_and_is_not_the_env_seed():
    assert policy_seed(7, "", 0) == 398517089
    assert policy_seed(7, "", 0) != episode_seed(7, "", 0)


def test_r41_a_plan_seed_may_be_any_integer():
    assert 0 <= episode_seed(10**40, "", 0) < 2**31
    assert episode_seed(-1, "", 0) != episode_seed(1, "", 0)


@given(
    plan_seed=st.integers(min_value=0),
    task=st.text(max_size=20),
    first=st.integers(min_value=0, max_value=2**40),
)
def test_r41_seeds_of_one_task_are_distinct_and_fit_31_bits(plan_seed, task, first):
    for derive in (episode_seed, policy_seed):
        seeds = [derive(plan_seed, task, first + k) for k in range(300)]
        assert len(set(seeds)) == len(seeds)
        assert all(0 <= seed < 2**31 for seed in seeds)


@given(
    plan_seed=st.integers(min_value=0, max_value=2**63),
    one=st.integers(min_value=0, max_value=2**31 - 1),
    other=st.integers(min_value=0, max_value=2**31 - 1),
)
def test_r41_two_episodes_of_a_task_never_share_a_seed(plan_seed, one, other):
    same = episode_seed(plan_seed, "task", one) == episode_seed(plan_seed, "task", other)
    assert same == (one == other)


@given(
    base_seed=st.integers(min_value=-(2**63), max_value=2**63 - 1),
    session_id=st.text(max_size=40),
    generation=st.integers(min_value=0, max_value=2**63),
    env_index=st.integers(min_value=0, max_value=2**31),
)
def test_r41_session_seed_has_its_top_bit_cleared_and_repeats(
    base_seed, session_id, generation, env_index
):
    seed = session_seed(base_seed, session_id, generation, env_index)
    assert 0 <= seed < 2**63
    assert seed == session_seed(base_seed, session_id, generation, env_index)
