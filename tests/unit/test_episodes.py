"""Tests of `rollmesh.wire.episodes`."""

from __future__ import annotations

from rollmesh.ports import (
    AutoresetMode,
    ResetRequest,
    StepRequest,
)
from rollmesh.wire import protobuf as wire
from rollmesh.wire._gen import rlmesh_env_v1_pb2 as pb
from rollmesh.wire.dialect import FOREIGN, ROLLMESH
from tests.unit.wire_toys import (
    Pair,
    actions,
    contract,
    end,
    step_reply,
    step_request,
)


class Ticks:
    """A clock that moves by one."""

    def __init__(self):
        self.now = 0

    def monotonic_ns(self):
        return 0

    def wall_ns(self):
        self.now += 1
        return self.now


def test_the_ledger_counts_steps_and_rewards_of_each_lane():
    ledger = wire.EpisodeLedger(contract(2), Ticks())
    ledger.reset(ResetRequest(episode_ids=("a", "b"), seeds=(7, 8)))
    ledger.step(step_request(2), step_reply(2))
    facts = ledger.step(step_request(2), step_reply(2, completions=(end(1, truncated=True),)))
    [(lane, fact)] = facts.items()
    assert (lane, fact.episode_id, fact.seed, fact.step_count) == (1, "b", 8, 2)
    assert (fact.cumulative_reward, fact.terminated, fact.truncated) == (3.0, True, True)
    assert fact.started_ns < fact.ended_ns
    assert ledger.take_interrupted() == ()


def test_a_reset_over_a_running_episode_interrupts_it_and_it_is_told_once():
    ledger = wire.EpisodeLedger(contract(3), Ticks())
    ledger.reset(ResetRequest(episode_ids=("a", "b", "c")))
    ledger.step(step_request(3), step_reply(3, completions=(end(0),)))
    ledger.reset(ResetRequest(episode_ids=("d", "e"), env_indices=(0, 2)))
    told = ledger.take_interrupted()
    assert [(one.episode_id, one.env_index, one.truncated) for one in told] == [("c", 2, True)]
    assert ledger.take_interrupted() == ()
    assert [one.episode_id for one in ledger.close()] == ["d", "b", "e"]


def test_only_the_last_hundred_interrupted_episodes_are_kept():
    ledger = wire.EpisodeLedger(contract(1), Ticks())
    for index in range(103):
        ledger.reset(ResetRequest(episode_ids=(f"e{index}",)))
    told = ledger.take_interrupted()
    assert len(told) == 100
    assert told[0].episode_id == "e2"


def test_under_next_step_the_pushed_id_begins_with_the_step_that_resets():
    ledger = wire.EpisodeLedger(contract(1, AutoresetMode.NEXT_STEP), Ticks())
    ledger.reset(ResetRequest(episode_ids=("a",), seeds=(1,)))
    ledger.step(step_request(), step_reply(completions=(end(0),)))
    rolled = StepRequest(action=actions(0), episode_ids=("b",))
    ledger.step(rolled, step_reply(rewards=(0.0,)))
    facts = ledger.step(rolled, step_reply(completions=(end(0),)))
    assert (facts[0].episode_id, facts[0].seed, facts[0].step_count) == ("b", None, 1)


def test_under_same_step_the_next_id_begins_with_the_end():
    ledger = wire.EpisodeLedger(contract(1, AutoresetMode.SAME_STEP), Ticks())
    ledger.reset(ResetRequest(episode_ids=("a",)))
    ledger.step(step_request(next_episode_ids=("b",)), step_reply(completions=(end(0),)))
    assert ledger.step(step_request(), step_reply(completions=(end(0),)))[0].episode_id == "b"


def test_under_disabled_a_step_after_the_end_belongs_to_no_episode():
    ledger = wire.EpisodeLedger(contract(1), Ticks())
    ledger.reset(ResetRequest(episode_ids=("a",)))
    ledger.step(step_request(), step_reply(completions=(end(0),)))
    assert ledger.step(step_request(), step_reply(completions=(end(0),))) == {}


def test_interrupted_episodes_are_reported_with_the_next_step_to_a_released_peer_only():
    facts = wire.EpisodeFacts(episode_id="old", env_index=0, truncated=True, step_count=3)
    for dialect, count in ((FOREIGN, 1), (ROLLMESH, 0)):
        pair = Pair(dialect)
        data = pair.server.write("r", step_reply(), step_request(), interrupted=[facts])
        assert len(pb.JoinResponse.FromString(data).step.completed_episodes) == count
        assert pair.client.read(pair.client.open(data), step_request()).completions == ()
