"""Lanes beyond the plan, and the two budgets: rule R26."""

from __future__ import annotations

import pytest

from rollmesh.ports import PARTIAL_RESET, REBUILD, SUBSET_STEP
from rollmesh.runtime.seeds import session_seed
from tests.driving import DISABLED, MODES, NEXT_STEP, SAME_STEP, Run, drive, lengths
from tests.toys import ToyEnv, ToyModel


def seen_ids(run: Run) -> set[str]:
    """Every episode id that any event or predict names."""
    ids = {i.episode_id for p in run.model.predicts for i in p.episode_info}
    for _, event in run.notes.events:
        ids.update(getattr(event, "episode_ids", ()))
        if hasattr(event, "episode_id"):
            ids.add(event.episode_id)
    return ids


def lanes_in_events(run: Run) -> set[int]:
    lanes: set[int] = set()
    for _, event in run.notes.events:
        lanes.update(getattr(event, "env_indices", ()))
        if hasattr(event, "env_index"):
            lanes.add(event.env_index)
    return lanes


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("short", [1, 2, 99])
def test_r26_an_unscored_lane_is_in_no_predict_event_or_count(mode, short):
    run = drive(ToyEnv(3, mode, length=lengths(3, 4, short)), max_episodes=2)
    assert lanes_in_events(run) == {0, 1}
    assert [(e.env_index, e.steps) for e in run.ok.episodes] == [(0, 3), (1, 4)]
    assert run.ok.total_steps == 7
    assert [len(p.episode_info) for p in run.model.predicts] == [2, 2, 2, 1]
    assert seen_ids(run) == {e.episode_id for e in run.ok.episodes}
    assert {e.num_envs for e in run.notes.of("observation_emitted")} == {3}


@pytest.mark.parametrize("mode", MODES)
def test_r26_an_unscored_lane_gets_an_id_and_is_stepped_with_its_group(mode):
    run = drive(ToyEnv(3, mode, length=lengths(3, 3, 2)), max_episodes=2)
    assert len(run.env.resets[0].episode_ids) == 3
    for step in run.env.steps:
        assert len(set(step.episode_ids)) == 3
        assert step.action[0].shape == (3, 1)


def test_r26_an_unscored_lane_is_reset_when_it_must_be():
    run = drive(ToyEnv(3, DISABLED, length=lengths(5, 5, 2)), max_episodes=2)
    assert [r.env_indices for r in run.env.resets] == [(), (2,), (2,)]
    ids = [r.episode_ids for r in run.env.resets]
    assert len({ids[0][2], *ids[1], *ids[2]}) == 3


def test_r26_an_unscored_lane_has_a_derived_seed_where_the_others_have_one():
    run = drive(ToyEnv(3, length=lengths(5, 5, 2)), episode_seeds=[70, 80])
    first, second, third = run.env.resets
    assert first.seeds[:2] == (70, 80)
    assert [len(r.seeds) for r in run.env.resets] == [3, 1, 1]
    assert len({first.seeds[2], *second.seeds, *third.seeds, 70, 80}) == 5


def test_r26_an_unscored_lane_has_r41_seeds_with_a_base_seed():
    run = drive(ToyEnv(2, length=lengths(5, 2)), base_seed=7, max_episodes=1)
    assert run.env.resets[1].seeds == (session_seed(7, "session", 1, 1),)


def test_r26_an_unscored_lane_has_no_seed_where_the_others_have_none():
    run = drive(ToyEnv(2, length=lengths(5, 2)), max_episodes=1)
    assert {r.seeds for r in run.env.resets} == {()}


@pytest.mark.parametrize("mode", MODES)
def test_r26_a_lane_becomes_unscored_when_the_plan_runs_out(mode):
    run = drive(ToyEnv(2, mode, length=lengths(2, 9)), max_episodes=3)
    assert [(e.env_index, e.steps) for e in run.ok.episodes] == [(0, 2), (1, 9), (0, 2)]
    assert len(run.notes.of("episode_started")) == 3
    late = run.notes.of("observation_emitted")[-2:]
    assert {e.env_indices for e in late} == {(1,)}


@pytest.mark.parametrize("mode", MODES)
def test_r26_unscored_ends_evict_nothing_and_fire_nothing(mode):
    run = drive(ToyEnv(2, mode, length=lengths(6, 1)), max_episodes=1)
    assert [e.episode_ids for e in run.model.evictions] == [(run.ok.episodes[0].episode_id,)]
    assert len(run.notes.of("episode_completed")) == 1


def test_r8_the_log_counts_the_episodes_that_are_ready():
    run = drive(ToyEnv(3), max_episodes=2)
    (log,) = run.notes.of("log")
    assert "2 episodes" in log.message


def test_r26_a_lane_alone_idles_and_gets_no_call():
    run = drive(ToyEnv(2, capabilities=[SUBSET_STEP], length=lengths(1, 9)), max_episodes=3)
    assert [(e.env_index, e.steps) for e in run.ok.episodes] == [(0, 1), (1, 9), (0, 1)]
    assert len([s for s in run.env.steps if s.env_indices == (0,)]) == 2


@pytest.mark.parametrize("mode", MODES)
def test_r26_replay_of_chunks_beside_an_unscored_lane(mode):
    run = drive(ToyEnv(2, mode, length=lengths(5, 2)), ToyModel(3), max_episodes=1)
    assert [len(p.episode_info) for p in run.model.predicts] == [1, 1]
    assert run.ok.episodes[0].steps == 5


# ---------------------------------------------------------------------------- completions


@pytest.mark.parametrize("mode", MODES)
def test_r26_completions_the_first_ends_finish_the_route(mode):
    run = drive(ToyEnv(2, mode, length=lengths(1, 9)), budget="completions", max_episodes=3)
    assert [e.env_index for e in run.ok.episodes] == [0, 0, 0], "a fast lane may crowd out"
    assert run.ok.total_episodes == 3
    (ended,) = run.notes.of("session_ended")
    assert (ended.reason, ended.total_steps, ended.total_episodes) == (
        "completed requested episodes",
        3,
        3,
    )


@pytest.mark.parametrize("mode", MODES)
def test_r26_completions_in_the_same_step_may_exceed_and_count(mode):
    run = drive(ToyEnv(3, mode, length=lengths(2, 2, 2)), budget="completions", max_episodes=1)
    assert run.ok.total_episodes == 3
    assert len(run.notes.of("episode_completed")) == 3


def test_r26_completions_report_in_the_order_of_completion():
    run = drive(ToyEnv(2, length=lengths(3, 1)), budget="completions", max_episodes=4)
    completed = [e.episode_index for e in run.notes.of("episode_completed")]
    assert [e.index for e in run.ok.episodes] == completed
    assert completed[0] == 1


def test_r26_completions_alive_episodes_are_evicted_and_not_reported():
    run = drive(ToyEnv(2, length=lengths(1, 9)), budget="completions", max_episodes=2)
    assert {e.env_index for e in run.ok.episodes} == {0}
    evicted = [i for e in run.model.evictions for i in e.episode_ids]
    assert "id-000002" in evicted
    assert len(evicted) == len(set(evicted)) == 3


@pytest.mark.parametrize("mode", MODES)
def test_r26_starts_is_met_only_when_all_claimed_have_ended(mode):
    run = drive(ToyEnv(2, mode, length=lengths(1, 9)), max_episodes=2)
    assert [(e.env_index, e.steps) for e in run.ok.episodes] == [(0, 1), (1, 9)]


@pytest.mark.parametrize("mode", MODES)
def test_r26_the_final_reset_never_happens(mode):
    run = drive(ToyEnv(2, mode, length=lengths(2, 2)), max_episodes=2)
    assert len(run.env.resets) == 1
    assert len(run.env.steps) == 2


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_r26_idle_beside_unscored_capabilities_change_nothing_else(mode):
    caps = [PARTIAL_RESET, REBUILD]
    plain = drive(ToyEnv(2, mode, length=lengths(2, 3)), max_episodes=5)
    other = drive(ToyEnv(2, mode, capabilities=caps, length=lengths(2, 3)), max_episodes=5)
    assert plain.notes.names() == other.notes.names()
