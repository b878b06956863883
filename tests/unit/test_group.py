"""The episode loop, event by event, in each autoreset mode: rules R6, R8, R14, R20 to R22, R45."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from rollmesh.ports import PARTIAL_RESET, SUBSET_STEP
from rollmesh.runtime.driver import RouteDriver
from tests.driving import (
    DISABLED,
    MODES,
    NEXT_STEP,
    SAME_STEP,
    Run,
    drive,
    lengths,
    tell,
)
from tests.toys import ToyEnv, ToyModel, spec_for

BEGIN = ["session_started", "> reset all", "log info", "started 0 on 0", "started 1 on 1"]
FIRST = [
    "observation 0,1 new 0,1",
    "> predict 2",
    "action 0,1",
    "> step all",
    "step 0,1 over 0",
]
END = ["> release", "session_ended", "telemetry session"]


def test_r20_disabled_event_by_event():
    assert tell(DISABLED, 2, length=lengths(1, 2), max_episodes=3) == [
        *BEGIN,
        *FIRST,
        "completed 0 on 0",
        "> evict 1",
        "> reset 0",
        "started 2 on 0 auto",
        "observation 0,1 new 0",
        "> predict 2",
        "action 0,1",
        "> step all",
        "step 0,1 over 0,1",
        "completed 2 on 0",
        "completed 1 on 1",
        "> evict 2",
        *END,
    ]


def test_r21_next_step_event_by_event():
    assert tell(NEXT_STEP, 2, length=lengths(1, 2), max_episodes=3) == [
        *BEGIN,
        *FIRST,
        "completed 0 on 0",
        "> evict 1",
        "observation 1 new -",
        "> predict 1",
        "action 1",
        "> step all",
        "step 1 over 1",
        "started 2 on 0 auto",
        "completed 1 on 1",
        "> evict 1",
        "observation 0 new 0",
        "> predict 1",
        "action 0",
        "> step all",
        "step 0 over 0",
        "completed 2 on 0",
        "> evict 1",
        *END,
    ]


def test_r22_same_step_event_by_event():
    assert tell(SAME_STEP, 2, length=lengths(1, 2), max_episodes=3) == [
        *BEGIN,
        *FIRST,
        "completed 0 on 0",
        "> evict 1",
        "started 2 on 0 auto",
        "observation 0,1 new 0",
        "> predict 2",
        "action 0,1",
        "> step all",
        "step 0,1 over 0,1",
        "completed 2 on 0",
        "completed 1 on 1",
        "> evict 2",
        *END,
    ]


def test_r2_next_step_with_partial_resets_and_seeds_rolls_nothing():
    told = tell(
        NEXT_STEP, 2, capabilities=[PARTIAL_RESET], length=lengths(1, 2), episode_seeds=[1, 2, 3]
    )
    assert told == tell(DISABLED, 2, length=lengths(1, 2), episode_seeds=[1, 2, 3])
    assert "> reset 0" in told


def test_r2_next_step_with_partial_resets_but_no_plan_rolls():
    env = ToyEnv(2, NEXT_STEP, capabilities=[PARTIAL_RESET], length=lengths(1, 2))
    drive(env, max_episodes=3)
    assert len(env.resets) == 1


def test_r21_at_width_1_the_roll_is_a_step_without_events():
    assert tell(NEXT_STEP, 1, length=lengths(1), max_episodes=2) == [
        "session_started",
        "> reset all",
        "log info",
        "started 0 on 0",
        "observation 0 new 0",
        "> predict 1",
        "action 0",
        "> step all",
        "step 0 over 0",
        "completed 0 on 0",
        "> evict 1",
        "> step all",
        "started 1 on 0 auto",
        "observation 0 new 0",
        "> predict 1",
        "action 0",
        "> step all",
        "step 0 over 0",
        "completed 1 on 0",
        "> evict 1",
        *END,
    ]


def test_r45_independent_lanes_reset_and_step_alone():
    run = drive(ToyEnv(2, capabilities=[SUBSET_STEP], length=lengths(1, 2)), max_episodes=3)
    assert {r.env_indices for r in run.env.resets} == {(0,), (1,)}
    assert {s.env_indices for s in run.env.steps} == {(0,), (1,)}
    assert [e.env_index for e in run.ok.episodes][:2] == [0, 1]
    logs = [e for e in run.notes.of("log") if "reset" in e.message]
    assert len(logs) == 2, "R8: one a group"
    assert run.notes.names().count("session_ended") == 1
    assert len(run.model.releases) == 1


def test_r45_without_subset_step_all_lanes_are_one_group():
    run = drive(ToyEnv(2, length=lengths(1, 2)), max_episodes=3)
    assert {s.env_indices for s in run.env.steps} == {()}


def test_r45_a_group_without_a_planned_episode_is_left_alone():
    run = drive(ToyEnv(3, capabilities=[SUBSET_STEP], length=lengths(5, 5, 5)), max_episodes=2)
    assert {r.env_indices for r in run.env.resets} == {(0,), (1,)}
    assert run.ok.total_episodes == 2


# ------------------------------------------------------------------------------ R20 more


def test_r20_partial_resets_name_ended_lanes_ascending_with_everything_aligned():
    env = ToyEnv(4, length=lengths(2, 5, 2, 5))
    drive(
        env,
        episode_seeds=[10, 20, 30, 40, 50, 60],
        episode_options=[None, None, None, None, None, {"k": 6}],
    )
    first, second, *_ = env.resets
    assert first.seeds == (10, 20, 30, 40)
    assert first.options == ()
    assert second.env_indices == (0, 2)
    assert second.seeds == (50, 60)
    assert second.options == (None, {"k": 6})
    assert second.episode_ids == ("id-000005", "id-000006")


def test_r20_all_ended_at_once_is_a_whole_reset():
    env = ToyEnv(3, length=lengths(2, 2, 2))
    drive(env, max_episodes=6)
    assert [r.env_indices for r in env.resets] == [(), ()]


def test_r20_reset_rows_replace_only_the_rows_of_their_lanes():
    run = drive(ToyEnv(3, length=lengths(2, 9, 3)), max_episodes=5)
    for event in run.notes.of("observation_emitted"):
        for row, (steps, fresh) in enumerate(zip(event.steps, event.is_reset, strict=True)):
            assert event.decode(row)[1] == steps
            assert fresh == (steps == 0)


def test_r20_healthy_lanes_are_never_cut_short():
    run = drive(ToyEnv(2, length=lengths(1, 20)), max_episodes=12)
    assert {(e.env_index, e.steps) for e in run.ok.episodes} == {(0, 1), (1, 20)}
    assert not any(e.truncated for e in run.ok.episodes)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", [1, 2, 5])
def test_r20_works_in_every_mode_at_any_width(mode, width):
    run = drive(ToyEnv(width, mode, length=lengths(1, 2, 3, 4, 5)), max_episodes=9)
    assert run.ok.total_episodes == 9
    for episode in run.ok.episodes:
        assert episode.steps == 1 + episode.env_index


@pytest.mark.parametrize("width", [1, 2, 3])
def test_r21_episodes_look_the_same_in_every_mode(width):
    def projected(mode: Any) -> dict[int, list[tuple[Any, ...]]]:
        run = drive(ToyEnv(width, mode, length=lambda s, lane, n: 3), max_episodes=2 * width)
        return by_episode(run)

    assert projected(DISABLED) == projected(NEXT_STEP) == projected(SAME_STEP)


def by_episode(run: Run) -> dict[int, list[tuple[Any, ...]]]:
    """What each episode saw: its rows of observations and actions, and its steps, in order."""
    index = {e.episode_id: e.episode_index for e in run.notes.of("episode_started")}
    found: dict[int, list[tuple[Any, ...]]] = {k: [] for k in index.values()}
    for name, event in run.notes.events:
        for row, episode_id in enumerate(getattr(event, "episode_ids", ())):
            value = event.rewards[row] if name == "step_completed" else event.decode(row).tolist()
            found[index[episode_id]].append((name, event.steps[row], value))
    return found


# ------------------------------------------------------------------------------ R21 more


def test_r21_a_rolling_lane_is_in_no_event_and_no_predict():
    run = drive(ToyEnv(2, NEXT_STEP, length=lengths(1, 6)), max_episodes=4)
    over: set[str] = set()
    for name, event in run.notes.events:
        if name == "episode_completed":
            over.add(event.episode_id)
        for episode_id in getattr(event, "episode_ids", ()):
            assert episode_id not in over
    for event in run.notes.of("observation_emitted"):
        assert set(event.steps) <= set(range(6))
    assert [len(p.episode_info) for p in run.model.predicts] == [2, 1, 2, 1, 2, 1]


def test_r21_the_next_id_is_pushed_with_the_rolling_step():
    run = drive(ToyEnv(2, NEXT_STEP, length=lengths(1, 9)), max_episodes=3)
    first, rolling, after = run.env.steps[:3]
    assert first.episode_ids == ("id-000001", "id-000002")
    assert rolling.episode_ids == ("id-000003", "id-000002")
    assert after.episode_ids == ("id-000003", "id-000002")


def test_r14_events_carry_the_ids_before_rolls_and_the_request_those_after():
    run = drive(ToyEnv(2, NEXT_STEP, length=lengths(1, 9)), max_episodes=3)
    events = run.notes.of("action_received", "step_completed")
    assert [e.episode_ids for e in events[2:4]] == [("id-000002",), ("id-000002",)]
    assert run.env.steps[1].episode_ids == ("id-000003", "id-000002")


def test_r21_the_filler_is_the_lanes_last_frame():
    run = drive(ToyEnv(2, NEXT_STEP, length=lengths(2, 9)), max_episodes=3)
    actions = [step.action[0][:, 0].tolist() for step in run.env.steps]
    assert actions[2][0] == actions[1][0]
    assert actions[2][1] != actions[1][1], "the other lane acts as ever"


def test_r21_the_filler_is_another_lanes_row_where_a_lane_never_acted():
    # Lane 1 is unscored from the start: it never had a frame.
    run = drive(ToyEnv(2, NEXT_STEP, length=lengths(3, 9)), max_episodes=1)
    for step in run.env.steps:
        assert step.action[0][1, 0] == step.action[0][0, 0]


@pytest.mark.parametrize("budget", ["starts", "completions"])
def test_r21_no_roll_and_no_id_once_the_budget_is_met(budget):
    run = drive(ToyEnv(1, NEXT_STEP, length=lengths(2)), budget=budget, max_episodes=1)
    assert run.ok.total_episodes == 1
    assert len(run.env.steps) == 2
    assert {i for s in run.env.steps for i in s.episode_ids} == {"id-000001"}
    assert len(run.notes.of("episode_started")) == 1


def test_r21_a_pending_roll_of_another_lane_never_happens_once_the_budget_is_met():
    env = ToyEnv(2, NEXT_STEP, length=lengths(2, 2))
    run = drive(env, budget="completions", max_episodes=1)
    assert run.ok.total_episodes == 2, "R26: ends in the same step may exceed"
    assert len(env.steps) == 2


def test_r21_both_lanes_may_roll_at_once():
    run = drive(ToyEnv(2, NEXT_STEP, length=lengths(2, 2)), max_episodes=4)
    assert run.ok.total_episodes == 4
    assert len(run.env.steps) == 5
    assert len(run.notes.of("step_completed")) == 4, "an all-rolling step is no event"


# ------------------------------------------------------------------------------ R22 more


def test_r22_spare_ids_are_kept_until_they_are_used():
    run = drive(ToyEnv(2, SAME_STEP, length=lengths(1, 3)), max_episodes=4)
    pushed = [s.next_episode_ids for s in run.env.steps]
    assert len({nexts[1] for nexts in pushed[:3]}) == 1, "lane 1 did not end before step 3"
    assert len({nexts[0] for nexts in pushed[:3]}) == 3, "lane 0 used one a step"
    ids = [s.episode_ids for s in run.env.steps]
    assert [nexts[0] for nexts in pushed[:-1]] == [now[0] for now in ids[1:]]
    started = [e.episode_id for e in run.notes.of("episode_started")]
    assert len(set(started)) == len(started)


@pytest.mark.parametrize("mode", [DISABLED, NEXT_STEP])
def test_r22_other_modes_push_no_spare_ids(mode):
    run = drive(ToyEnv(2, mode), max_episodes=4)
    assert {s.next_episode_ids for s in run.env.steps} == {()}


def test_r22_the_observation_of_the_ending_step_is_the_next_episodes_first():
    run = drive(ToyEnv(1, SAME_STEP, length=lengths(2)), max_episodes=2)
    rows = [(e.decode()[0], e.decode()[1]) for e in run.notes.of("observation_emitted")]
    assert rows == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [e.decode()[1] for e in run.notes.of("step_completed")] == [1, 0, 1, 0]
    assert [e.decode()[1] for e in run.notes.of("episode_completed")] == [2, 2]


def test_r22_same_step_resets_once_in_a_route():
    run = drive(ToyEnv(3, SAME_STEP), max_episodes=9)
    assert len(run.env.resets) == 1


class ForgetfulModel(ToyModel):
    """Keeps no request."""

    def predict(self, request):
        reply = super().predict(request)
        self.predicts.clear()
        return reply


class WatchingEnv(ToyEnv):
    """Notes at each step whether somebody holds the observation that it gave last."""

    last = staticmethod(lambda: None)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.held: list[bool] = []

    def step(self, request):
        gc.collect()
        self.held.append(self.last() is not None)
        return super().step(request)

    def _observe(self, lanes):
        leaves = super()._observe(lanes)
        self.last = weakref.ref(leaves[0])
        return leaves


@pytest.mark.parametrize("mode", MODES)
def test_nobody_holds_an_observation_any_more_when_the_next_step_begins(mode):
    env = WatchingEnv(2, mode, length=lengths(2, 3))
    RouteDriver(spec_for(env, max_episodes=4), env, ForgetfulModel(), hooks=[]).run()
    assert env.held
    assert not any(env.held)
