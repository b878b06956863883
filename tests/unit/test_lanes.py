"""Lanes, rosters and groups: the state that rules R10, R20, R21 and R25 speak of."""

from __future__ import annotations

from rollmesh.runtime.lanes import Episode, Group, Lane, QueuedFrame, Roster


def busy_lane(index: int = 0, *, planned: bool = True) -> Lane:
    lane = Lane(env_index=index, row=index)
    lane.begin(Episode(id=f"e{index}", index=index, seed=index + 10, planned=planned), 5)
    return lane


def test_r25_a_start_counts_from_zero():
    lane = busy_lane()
    lane.steps, lane.total_reward = 7, 3.5
    lane.frames.append(QueuedFrame([], 0, 1))
    lane.begin(Episode(id="next"), 99)
    assert (lane.steps, lane.total_reward, lane.started_ns, lane.fresh) == (0, 0.0, 99, True)
    assert not lane.frames, "R18: frames of the last episode are dropped"


def test_r21_the_four_states():
    idle = Lane(env_index=0, row=0)
    moving = busy_lane()
    rolling = busy_lane()
    rolling.next = Episode(id="n", index=5)
    unscored = busy_lane(planned=False)
    ending = busy_lane()
    ending.next = Episode(id="n", planned=False)
    assert [one.moves for one in (idle, moving, rolling, unscored, ending)] == [
        False,
        True,
        False,
        False,
        False,
    ]
    assert [one.owes for one in (idle, moving, rolling, unscored, ending)] == [
        False,
        True,
        True,
        False,
        False,
    ]


def test_r10_a_roster_names_lanes_row_by_row():
    lanes = [busy_lane(1), busy_lane(3)]
    roster = Roster(lanes, 4)
    assert not roster.whole
    assert roster.env_indices == (1, 3)
    assert roster.episode_ids == ("e1", "e3")
    assert [(i.episode_id, i.seed) for i in roster.adapter_infos] == [("e1", 11), ("e3", 13)]
    lanes[1].steps = 4
    assert roster.steps() == (0, 4)
    assert Roster(lanes, 2).whole


def test_r21_a_rolling_lane_leaves_the_roster_but_not_the_request():
    group = Group(range(2), is_whole_env=True)
    for lane in group.lanes:
        lane.begin(Episode(id=f"e{lane.row}", index=lane.row), 0)
    group.changed()
    assert group.roster().episode_ids == group.request_ids() == ("e0", "e1")
    group.lanes[0].next = Episode(id="n0", index=2)
    group.changed()
    assert group.roster().episode_ids == ("e1",)
    assert group.request_ids() == ("n0", "e1")


def test_r20_requests_name_no_lane_where_the_group_is_the_whole_env():
    assert Group(range(3), is_whole_env=True).env_indices == ()
    assert Group([2], is_whole_env=False).env_indices == (2,)


def test_r26_only_a_lane_alone_may_idle():
    assert Group([2], is_whole_env=False).may_idle
    assert Group([0], is_whole_env=True).may_idle
    assert not Group(range(2), is_whole_env=True).may_idle


def test_r16_a_groups_step_is_that_of_its_first_lane():
    group = Group(range(2), is_whole_env=True)
    group.lanes[0].steps, group.lanes[1].steps = 4, 9
    assert group.step == 4


def test_r29_a_cleared_lane_is_idle_and_starts_from_zero():
    lane = busy_lane()
    lane.steps = 3
    lane.frames.append(QueuedFrame([], 0, 1))
    lane.next = Episode(id="n", index=2)
    lane.clear()
    assert (lane.episode, lane.next, lane.last_frame, lane.steps) == (None, None, None, 0)
    assert not lane.owes
    assert not lane.frames
