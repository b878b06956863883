"""Ends: rules R22, R23, R25 and R27."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rollmesh.errors import ProtocolError
from rollmesh.ports import PARTIAL_RESET, SUBSET_STEP, Completion, StepReply, StepRequest
from tests.driving import (
    DISABLED,
    MODES,
    NEXT_STEP,
    SAME_STEP,
    FakeClock,
    SlowEnv,
    drive,
    lengths,
)
from tests.toys import ToyEnv

Edit = Callable[["EditedEnv", StepReply], StepReply]


class EditedEnv(ToyEnv):
    """A toy whose replies are changed before the runtime sees them."""

    def __init__(self, edit: Edit, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.edit = edit

    def step(self, request: StepRequest) -> StepReply:
        return self.edit(self, super().step(request))


def with_ends(*extra: Completion, at: int = 1) -> Edit:
    """Add completions to the reply of step `at` (from 1)."""

    def edit(env: EditedEnv, reply: StepReply) -> StepReply:
        if len(env.steps) == at:
            reply.completions = (*reply.completions, *extra)
        return reply

    return edit


def changed(**fields: Any) -> Edit:
    """Change fields of every completion."""

    def edit(env: EditedEnv, reply: StepReply) -> StepReply:
        ends = [msgspec.structs.replace(one, **fields) for one in reply.completions]
        reply.completions = tuple(ends)
        return reply

    return edit


def end_of(lane: int, episode_id: str | None = None) -> Completion:
    return Completion(
        env_index=lane, terminated=True, truncated=False, episode_id=episode_id, final_info={}
    )


def test_r25_an_unscored_lane_is_not_compared():
    """Lane 1 has no planned episode: the runtime does not count its steps, but the env does."""
    edit = changed(step_count=2, cumulative_reward=2.0)
    env = EditedEnv(edit, 2, SAME_STEP, length=lengths(2, 2))
    run = drive(env, max_episodes=3)
    assert run.ok.total_episodes == 3
    assert not [e for e in run.notes.of("log") if e.level == "warning"]


@pytest.mark.parametrize("lane", [2, -1, 2**40])
def test_r23_an_end_of_a_lane_that_does_not_exist(lane):
    run = drive(EditedEnv(with_ends(end_of(lane)), 2), max_episodes=2)
    assert isinstance(run.failure, ProtocolError)
    assert run.failure.operation == "env.step"
    assert str(lane) in str(run.failure)


def test_r23_an_end_of_a_lane_that_was_not_stepped():
    env = EditedEnv(with_ends(end_of(1)), 2, capabilities=[SUBSET_STEP], length=lengths(9, 9))
    assert isinstance(drive(env, max_episodes=2).failure, ProtocolError)


def test_r23_a_stale_echo_is_dropped_logged_at_debug_and_counted_nowhere(caplog):
    env = EditedEnv(with_ends(end_of(0, "somebody else")), 1, length=lengths(3))
    with caplog.at_level(logging.DEBUG, logger="rollmesh.runtime.endings"):
        run = drive(env, max_episodes=1)
    assert [e.steps for e in run.ok.episodes] == [3]
    assert len(run.notes.of("episode_completed")) == 1
    assert not any(any(e.terminated) for e in run.notes.of("step_completed")[:-1])
    records = [r for r in caplog.records if "stale" in r.getMessage()]
    assert [r.levelno for r in records] == [logging.DEBUG]


@pytest.mark.parametrize("echo", [None, ""])
def test_r23_an_empty_echo_means_the_current_episode(echo):
    run = drive(EditedEnv(with_ends(end_of(0, echo)), 1, length=lengths(3)), max_episodes=1)
    assert [e.steps for e in run.ok.episodes] == [1]


def test_r23_a_second_entry_for_the_same_episode_is_dropped():
    edit = with_ends(
        Completion(env_index=0, terminated=False, truncated=True, episode_id="id-000001"),
        end_of(0),
        at=2,
    )
    run = drive(EditedEnv(edit, 1, length=lengths(2)), max_episodes=2)
    assert run.ok.total_episodes == 2
    first = run.notes.of("episode_completed")[0]
    assert (first.terminated, first.truncated) == (True, False)
    assert len(run.notes.of("episode_completed")) == 2
    assert [e.episode_ids for e in run.model.evictions] == [("id-000001",), ("id-000002",)]


def test_r23_a_cap_reported_late_by_a_peer_is_stale():
    # The peer notices the end that a cap caused one step later, and names the old episode.
    env = EditedEnv(with_ends(end_of(0, "id-000001"), at=3), 1, length=lengths(9))
    run = drive(env, max_episode_steps=2, max_episodes=2)
    assert [(e.steps, e.truncated) for e in run.ok.episodes] == [(2, True), (2, True)]


def test_r22_an_end_under_same_step_needs_its_final_observation_and_info():
    for field in ("final_observation", "final_info"):
        env = EditedEnv(changed(**{field: None}), 1, SAME_STEP)
        run = drive(env, max_episodes=1)
        assert isinstance(run.failure, ProtocolError)
        assert "final_observation and final_info" in str(run.failure)


@pytest.mark.parametrize("mode", MODES)
def test_r22_final_observation_and_info_belong_to_the_ended_episode(mode):
    run = drive(ToyEnv(2, mode, length=lengths(2, 3)), max_episodes=4)
    for event in run.notes.of("episode_completed"):
        assert event.decode()[1] == event.steps
        assert event.final_info == {"t": event.steps, "lane": event.env_index}


def test_r21_an_end_of_a_rolling_lane_is_a_protocol_error():
    env = EditedEnv(with_ends(end_of(0), at=2), 2, NEXT_STEP, length=lengths(1, 9))
    run = drive(env, max_episodes=3)
    assert isinstance(run.failure, ProtocolError)
    assert "lane 0" in str(run.failure)


def test_r21_a_repeated_end_that_names_the_old_episode_is_only_stale():
    env = EditedEnv(with_ends(end_of(0, "id-000001"), at=2), 2, NEXT_STEP, length=lengths(1, 3))
    assert drive(env, max_episodes=3).ok.total_episodes == 3


@pytest.mark.parametrize("mode", MODES)
def test_r25_lanes_count_for_themselves(mode):
    run = drive(ToyEnv(2, mode, length=lengths(2, 3), reward=0.5), max_episodes=4)
    assert [(e.env_index, e.steps, e.total_reward) for e in run.ok.episodes] == [
        (lane, 2 + lane, (2 + lane) * 0.5) for lane in [e.env_index for e in run.ok.episodes]
    ]
    assert run.ok.total_steps == sum(e.steps for e in run.ok.episodes)


@pytest.mark.parametrize("own", [{"step_count": 99}, {"cumulative_reward": -1.0}])
def test_r25_an_env_that_counts_otherwise_is_logged_once_and_not_believed(own):
    run = drive(EditedEnv(changed(**own), 1, length=lengths(2)), max_episodes=3)
    assert [(e.steps, e.total_reward) for e in run.ok.episodes] == [(2, 2.0)] * 3
    assert len([e for e in run.notes.of("log") if e.level == "warning"]) == 1


def test_r25_an_env_that_counts_alike_is_not_mentioned():
    env = EditedEnv(changed(step_count=2, cumulative_reward=2.0), 1, length=lengths(2))
    run = drive(env, max_episodes=2)
    assert not [e for e in run.notes.of("log") if e.level == "warning"]


def test_r25_nan_on_both_sides_is_no_difference():
    env = EditedEnv(changed(cumulative_reward=math.nan), 1, length=lengths(2), reward=math.nan)
    run = drive(env, max_episodes=1)
    assert math.isnan(run.ok.episodes[0].total_reward)
    assert not [e for e in run.notes.of("log") if e.level == "warning"]


# ---------------------------------------------------------------------------------- caps


@pytest.mark.parametrize(
    ("mode", "capabilities"),
    [(DISABLED, [PARTIAL_RESET]), (DISABLED, [SUBSET_STEP]), (NEXT_STEP, [PARTIAL_RESET])],
)
def test_r27_a_step_cap_truncates(mode, capabilities):
    env = ToyEnv(2, mode, capabilities=capabilities, length=lengths(2, 99))
    run = drive(env, max_episode_steps=3, max_episodes=4)
    ends = {(e.env_index, e.steps, e.terminated, e.truncated) for e in run.ok.episodes}
    assert ends == {(0, 2, True, False), (1, 3, False, True)}
    for event in run.notes.of("step_completed"):
        for lane, steps, cut in zip(event.env_indices, event.steps, event.truncated, strict=True):
            assert cut == (lane == 1 and steps == 3), "the step's event says so too"


def test_r27_an_episode_that_ends_by_itself_at_the_cap_stays_as_it_is():
    run = drive(ToyEnv(1, length=lengths(3)), max_episode_steps=3, max_episodes=1)
    (episode,) = run.ok.episodes
    assert (episode.steps, episode.terminated, episode.truncated) == (3, True, False)


def test_r27_final_info_is_the_lanes_info_of_that_step():
    run = drive(ToyEnv(2, length=lengths(9, 9)), max_episode_steps=2, max_episodes=2)
    infos = [e.final_info for e in run.notes.of("episode_completed")]
    assert infos == [{"t": 2, "lane": 0}, {"t": 2, "lane": 1}]
    assert [e.decode()[1] for e in run.notes.of("episode_completed")] == [2, 2]


def test_r27_seconds_run_from_the_resets_reply_to_the_steps():
    clock = FakeClock()
    env = SlowEnv(clock, 1, length=lengths(99), reset_s=100.0, step_s=1.0)
    run = drive(env, driver={"clock": clock}, max_episode_seconds=2.5, max_episodes=2)
    assert [(e.steps, e.truncated, e.duration_s) for e in run.ok.episodes] == [(3, True, 3.0)] * 2


def test_r27_seconds_are_counted_a_lane():
    clock = FakeClock()
    env = SlowEnv(clock, 2, length=lengths(2, 99), step_s=1.0)
    run = drive(env, driver={"clock": clock}, max_episode_seconds=3.0, max_episodes=3)
    assert [(e.env_index, e.steps, e.truncated) for e in run.ok.episodes] == [
        (0, 2, False),
        (1, 3, True),
        (0, 2, False),
    ]


def test_r27_a_cap_at_a_width_is_followed_by_a_partial_reset():
    env = ToyEnv(2, NEXT_STEP, capabilities=[PARTIAL_RESET], length=lengths(9, 9))
    drive(env, max_episode_steps=2, episode_seeds=[1, 2, 3, 4])
    assert [(r.env_indices, r.seeds) for r in env.resets] == [((), (1, 2)), ((), (3, 4))]
