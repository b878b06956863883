"""Claims of episodes: rules R26 and R42."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rollmesh.ports import PARTIAL_RESET, SUBSET_STEP
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.hooks import Hooks
from rollmesh.runtime.lanes import Group
from rollmesh.runtime.plan import EpisodePlan
from tests.driving import DISABLED, MODES, NEXT_STEP, drive, lengths
from tests.toys import CountingMint, ToyEnv, spec_for


def plan_for(width: int = 2, cancel: CancelToken | None = None, **spec: Any) -> EpisodePlan:
    return EpisodePlan(spec_for(ToyEnv(width), **spec), CountingMint(), cancel or CancelToken())


def test_r26_each_claim_is_the_next_planned_episode_and_no_more_than_asked():
    plan, group = plan_for(max_episodes=3), Group(range(2), is_whole_env=True)
    first = plan.claim(group.lanes, may_idle=False)
    second = plan.claim(group.lanes, may_idle=False)
    claimed = [e for e in (*first, *second) if e is not None]
    assert [(e.index, e.planned) for e in claimed] == [
        (0, True),
        (1, True),
        (2, True),
        (-1, False),
    ]
    assert len({e.id for e in claimed}) == 4
    assert plan.claimed == 3


def test_r26_a_lane_that_may_idle_gets_nothing_past_the_plan():
    plan, group = plan_for(max_episodes=1), Group([0], is_whole_env=True)
    assert [e.index for e in plan.claim(group.lanes, may_idle=True) if e] == [0]
    assert plan.claim(group.lanes, may_idle=True) == [None]


def test_r26_without_max_episodes_the_plan_has_no_end():
    plan, group = plan_for(), Group(range(2), is_whole_env=True)
    for _ in range(50):
        plan.claim(group.lanes, may_idle=False)
    assert plan.claimed == 100


def test_r26_completions_do_not_bound_starts():
    plan, group = plan_for(max_episodes=1, budget="completions"), Group(range(3), is_whole_env=True)
    assert [e.index for e in plan.claim(group.lanes, may_idle=False) if e] == [0, 1, 2]


def test_r26_draining_hands_out_no_new_episode():
    cancel = CancelToken()
    plan, group = plan_for(cancel=cancel, max_episodes=9), Group(range(2), is_whole_env=True)
    plan.claim(group.lanes, may_idle=False)
    cancel.drain()
    assert [e.planned for e in plan.claim(group.lanes, may_idle=False) if e] == [False, False]
    assert plan.claim(group.lanes, may_idle=True) == [None, None]


def test_r42_seeds_and_options_go_with_their_index():
    plan = plan_for(episode_seeds=[7, 8, 9], episode_options=[None, {"a": 1}, None])
    group = Group(range(3), is_whole_env=True)
    claimed = [e for e in plan.claim(group.lanes, may_idle=False) if e]
    assert [(e.index, e.seed, e.options) for e in claimed] == [
        (0, 7, None),
        (1, 8, {"a": 1}),
        (2, 9, None),
    ]


def test_r26_an_unplanned_episode_has_a_derived_seed_where_the_others_have_one():
    plan, group = plan_for(episode_seeds=[7]), Group(range(3), is_whole_env=True)
    seeds = [e.seed for e in plan.claim(group.lanes, may_idle=False) if e]
    assert seeds[0] == 7
    assert None not in seeds
    assert len(set(seeds)) == 3
    again, group = plan_for(episode_seeds=[7]), Group(range(3), is_whole_env=True)
    assert [e.seed for e in again.claim(group.lanes, may_idle=False) if e] == seeds
    bare, group = plan_for(max_episodes=1), Group(range(3), is_whole_env=True)
    assert [e.seed for e in bare.claim(group.lanes, may_idle=False) if e] == [None, None, None]


def test_r22_a_spare_id_is_the_next_episodes_id():
    plan, group = plan_for(max_episodes=2), Group([0], is_whole_env=True)
    group.lanes[0].spare_id = "spare"
    assert [e.id for e in plan.claim(group.lanes, may_idle=True) if e] == ["spare"]


# ------------------------------------------------------------------------- in whole runs

SEEDS = list(range(100, 111))


@pytest.mark.parametrize("width", [1, 2, 3, 5, 16])
@pytest.mark.parametrize(
    ("mode", "capability"),
    [(DISABLED, PARTIAL_RESET), (DISABLED, SUBSET_STEP), (NEXT_STEP, PARTIAL_RESET)],
)
def test_r42_every_seed_gets_exactly_one_episode_at_any_width(width, mode, capability):
    env = ToyEnv(width, mode, capabilities=[capability])
    run = drive(env, episode_seeds=SEEDS)
    assert [(e.index, e.seed) for e in run.ok.episodes] == list(enumerate(SEEDS))
    assert [e.steps for e in run.ok.episodes] == [1 + seed % 5 for seed in SEEDS]
    started = Counter(e.seed for e in run.notes.of("episode_started"))
    assert started == Counter(SEEDS)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("episodes", [1, 2, 3, 4, 7])
def test_r26_n_asked_is_n_started_and_n_ended(mode, episodes):
    run = drive(ToyEnv(3, mode, length=lengths(1, 4, 9)), max_episodes=episodes)
    assert run.ok.total_episodes == episodes
    assert [e.index for e in run.ok.episodes] == list(range(episodes))
    assert len(run.notes.of("episode_started")) == episodes
    assert len(run.notes.of("episode_completed")) == episodes


@pytest.mark.parametrize("mode", MODES)
def test_r26_a_fast_lane_cannot_crowd_out_a_slow_one(mode):
    run = drive(ToyEnv(2, mode, length=lengths(1, 50)), max_episodes=4)
    assert [e.env_index for e in run.ok.episodes] == [0, 1, 0, 0]
    assert run.ok.episodes[1].steps == 50, "the slow episode was claimed, so it is played out"


def test_r26_short_episodes_are_not_over_represented():
    steps = [1 + seed % 5 for seed in range(40)]
    for width in (1, 4, 8):
        run = drive(ToyEnv(width), episode_seeds=list(range(40)))
        assert [e.steps for e in run.ok.episodes] == steps


def test_r26_drain_ends_the_route_when_running_episodes_have_ended():
    cancel = CancelToken()

    class DrainAtSecondStart(Hooks):
        def episode_started(self, event: Any) -> None:
            if event.episode_index == 2:
                cancel.drain()

    env = ToyEnv(2, length=lengths(2, 3))
    run = drive(env, hooks=[DrainAtSecondStart()], cancel=cancel, max_episodes=10)
    assert [e.index for e in run.ok.episodes] == [0, 1, 2]
    (ended,) = run.notes.of("session_ended")
    assert ended.reason != "completed requested episodes"
    assert ended.total_episodes == 3


def test_r26_drain_after_the_last_claim_changes_nothing():
    cancel = CancelToken()

    class DrainAtLastStart(Hooks):
        def episode_started(self, event: Any) -> None:
            if event.episode_index == 2:
                cancel.drain()

    run = drive(ToyEnv(2), hooks=[DrainAtLastStart()], cancel=cancel, max_episodes=3)
    assert run.notes.of("session_ended")[0].reason == "completed requested episodes"


def test_r26_drain_before_the_start_plays_nothing():
    cancel = CancelToken()
    cancel.drain()
    run = drive(ToyEnv(2), cancel=cancel, max_episodes=3)
    assert run.ok.total_episodes == 0
    assert not run.env.resets
    assert run.notes.names() == ["session_started", "session_ended", "on_telemetry"]
