"""Tests of `rollmesh.wire.proto_env_client`: replies as a client reads them."""

from __future__ import annotations

import numpy as np
import pytest

from rollmesh.errors import InvalidValue, WireError
from rollmesh.ports import (
    Completion,
    OddValue,
    ResetReply,
    ResetRequest,
)
from rollmesh.wire import messages as ours
from rollmesh.wire._gen import rlmesh_env_v1_pb2 as pb
from rollmesh.wire.dialect import FOREIGN, ROLLMESH
from tests.unit.wire_toys import (
    DIALECTS,
    OBSERVATIONS,
    Pair,
    observations,
    same_leaves,
    step_reply,
    step_request,
)


@DIALECTS
@pytest.mark.parametrize("has_lanes", [True, False])
@pytest.mark.parametrize("lanes", [(), (1,), (0, 2)])
def test_a_reset_reply_survives(dialect, has_lanes, lanes):
    pair = Pair(dialect, 3, has_lanes=has_lanes)
    rows = len(lanes) or 3
    request = ResetRequest(episode_ids=("e",) * rows, env_indices=lanes)
    infos = tuple({"at": i, "ok": True} for i in range(rows))
    reply = ResetReply(observation=observations(rows), infos=infos)
    got = pair.back(reply, request, timing_ns={"endpoint_total_ns": 42})
    assert same_leaves(got.observation, reply.observation)
    assert got.infos == infos
    assert got.endpoint_total_ns == 42
    assert got.response_bytes > 0


@DIALECTS
@pytest.mark.parametrize("has_lanes", [True, False])
@pytest.mark.parametrize("lanes", [(), (1,), (2, 0)])
def test_a_step_reply_survives_with_its_ends(dialect, has_lanes, lanes):
    pair = Pair(dialect, 3, has_lanes=has_lanes)
    request = step_request(len(lanes) or 3, env_indices=lanes)
    named = lanes or (0, 1, 2)
    rows = len(named)
    infos = tuple({"at": i} for i in named)
    ends = tuple(
        Completion(
            env_index=lane,
            terminated=row == 0,
            truncated=row > 0,
            final_info={"last": lane},
            episode_id=request.episode_ids[row],
            step_count=4,
            cumulative_reward=-2.5,
        )
        for row, lane in list(enumerate(named))[:2]
    )
    reply = step_reply(rows, rewards=tuple(map(float, named)), infos=infos, completions=ends)
    got = pair.back(reply, request)
    assert same_leaves(got.observation, reply.observation)
    assert (got.rewards, got.infos) == (reply.rewards, infos)
    assert got.completions == tuple(sorted(ends, key=lambda end: named.index(end.env_index)))


def test_infos_survive_without_loss_between_rollmesh_ends():
    info = {"pose": np.arange(3, dtype=np.float16), "t": (1, {2}), "big": 2**80, 5: None}
    got = Pair(ROLLMESH).back(step_reply(infos=(info,)), step_request()).infos[0]
    assert got.keys() == info.keys()
    assert got["t"] == (1, {2})
    assert got["big"] == 2**80
    assert got["pose"].dtype == np.float16


ODD = (
    OddValue(2, "nan", "observation['wrist'][2]"),
    OddValue(0, "bounds", "observation", is_final=True),
)


def test_odd_values_travel_between_rollmesh_ends_only():
    for dialect, told in ((ROLLMESH, ODD), (FOREIGN, ())):
        pair = Pair(dialect, 3, has_lanes=True)
        step = step_reply(3, odd=ODD)
        assert pair.back(step, step_request(3)).odd == told
        reset = ResetReply(observation=observations(3), infos=({},) * 3, odd=ODD)
        assert pair.back(reset, ResetRequest(episode_ids=("e",) * 3)).odd == told


@pytest.mark.parametrize("kind", ["reset", "step"])
def test_odd_values_of_a_row_that_is_not_there_are_refused(kind):
    odd = (OddValue(3, "nan", "observation"),)
    pair = Pair(ROLLMESH, 3)
    reply, request = step_reply(3, odd=odd), step_request(3)
    if kind == "reset":
        reply = ResetReply(observation=observations(3), infos=({},) * 3, odd=odd)
        request = ResetRequest(episode_ids=("e",) * 3)
    with pytest.raises(WireError, match="odd values"):
        pair.back(reply, request)


def test_an_odd_info_never_ends_a_session_with_a_released_peer():
    pair = Pair(FOREIGN)
    for _ in range(3):
        got = pair.back(step_reply(infos=({"handle": object, "at": 1},)), step_request())
    assert got.infos[0]["at"] == 1
    assert [path for path, _ in pair.told] == ["info['handle']"]


def test_a_final_info_that_is_the_steps_own_is_not_sent_twice_between_rollmesh_ends():
    end = Completion(env_index=0, terminated=True, truncated=False)
    reply = step_reply(infos=({"a": 1},), completions=(end,))
    assert Pair(ROLLMESH).back(reply, step_request()).completions == (end,)
    got = Pair(FOREIGN).back(reply, step_request()).completions[0]
    assert got.final_info == {"a": 1}  # a released peer expects it there


def test_a_final_observation_travels_between_rollmesh_ends():
    end = Completion(
        env_index=0, terminated=True, truncated=False, final_observation=observations(1)
    )
    got = Pair(ROLLMESH).back(step_reply(completions=(end,)), step_request()).completions[0]
    assert same_leaves(got.final_observation, observations(1))


def test_a_released_peer_gets_both_masks_with_every_step():
    data = Pair(FOREIGN, 2).server.write("r", step_reply(2), step_request(2))
    step = pb.JoinResponse.FromString(data).step
    assert (step.terminated_mask, step.truncated_mask) == (b"\0\0", b"\0\0")
    assert not pb.JoinResponse.FromString(
        Pair(ROLLMESH, 2).server.write("r", step_reply(2), step_request(2))
    ).step.terminated_mask


def test_a_stale_end_is_told_but_marks_no_lane():
    end = Completion(env_index=0, terminated=True, truncated=False, episode_id="old")
    for dialect in (FOREIGN, ROLLMESH):
        pair = Pair(dialect)
        reply = step_reply(completions=(end,))
        data = pair.server.write("r", reply, step_request())
        step = pb.JoinResponse.FromString(data).step
        assert not step.terminated_mask.strip(b"\0")
        assert step.completed_episodes[0].episode_id == "old"
        assert pair.back(reply, step_request()).completions == ()


def test_an_end_of_a_lane_that_was_not_stepped_is_an_error():
    for lane, lanes in ((3, ()), (0, (1,))):
        end = Completion(env_index=lane, terminated=True, truncated=False)
        request = step_request(len(lanes) or 3, env_indices=lanes)
        reply = step_reply(len(lanes) or 3, completions=(end,))
        with pytest.raises(WireError, match=f"ended lane {lane}"):
            Pair(FOREIGN, 3).server.write("r", reply, request)


@pytest.mark.parametrize("frame", [None, np.arange(60, dtype=np.uint8).reshape(4, 5, 3)])
@DIALECTS
def test_a_rendered_frame_survives(dialect, frame):
    got = Pair(dialect).back(ours.RenderReply(frame=frame), ours.Render()).frame
    assert got is None if frame is None else np.array_equal(got, frame)


def test_other_renderings_survive_between_rollmesh_ends_and_are_reported_elsewhere():
    reply = ours.RenderReply(frame=["+--+", "|  |"])
    assert Pair(ROLLMESH).back(reply, ours.Render()) == reply
    pair = Pair(FOREIGN)
    assert pair.back(reply, ours.Render()).frame is None
    assert "no image" in pair.told[0][1]


@pytest.mark.parametrize(
    "request_body",
    [ours.Configure(edition="2026.06"), ours.Close(), ours.Rebuild()],
    ids=lambda body: type(body).__name__,
)
def test_a_reply_without_a_result_survives(request_body):
    assert Pair(ROLLMESH).back(ours.Done(), request_body) == ours.Done()
    assert Pair(ROLLMESH).back(ours.ProbeReply(b"x"), ours.Probe(b"x")) == ours.ProbeReply(b"x")


def test_a_reply_to_another_request_is_refused():
    pair = Pair(FOREIGN)
    data = pair.server.write("r", step_reply(), step_request())
    with pytest.raises(WireError, match="answered a ResetRequest with STEP"):
        pair.client.read(pair.client.open(data), ResetRequest(episode_ids=("a",)))
    with pytest.raises(WireError, match="answered a StepRequest with nothing"):
        pair.client.read(pair.client.open(b""), step_request())


def bad_step(**fields):
    fields = {"rewards": [1.0, 2.0], "observation": {"leaves": leaf_bytes(2)}, **fields}
    return pb.JoinResponse(step=pb.StepResponse(**fields)).SerializeToString()


def leaf_bytes(rows):
    return [bytes(one) for one in OBSERVATIONS.codec.to_buffers(observations(rows))]


BROKEN = {
    "mask": ({"terminated_mask": b"\1"}, "mask of 1 bytes"),
    "empty mask of wrong length": ({"truncated_mask": b"\0" * 3}, "mask of 3 bytes"),
    "rewards": ({"rewards": [1.0]}, "1 rewards for 2"),
    "lanes": ({"env_indices": [1]}, "for lanes"),
    "infos": ({"exact_infos": [b""]}, "1 infos for 2"),
    "exact info": ({"exact_infos": [b"\xff", b""]}, "metadata"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_step_reply_that_breaks_the_wire_is_refused(name):
    fields, words = BROKEN[name]
    client = Pair(ROLLMESH, 2).client
    with pytest.raises(WireError, match=words):
        client.read(client.open(bad_step(**fields)), step_request(2))


def test_leaves_that_do_not_fit_are_an_invalid_value():
    client = Pair(FOREIGN, 2).client
    for leaves in ([], leaf_bytes(1), leaf_bytes(2)[:1], [*leaf_bytes(2), b""]):
        with pytest.raises(InvalidValue, match="observation leaves"):
            client.read(client.open(bad_step(observation={"leaves": leaves})), step_request(2))


def test_no_rewards_are_zeros_and_no_mask_is_no_end():
    client = Pair(FOREIGN, 2).client
    got = client.read(client.open(bad_step(rewards=[])), step_request(2))
    assert (got.rewards, got.completions) == ((0.0, 0.0), ())


def test_a_mask_without_an_entry_is_an_end_of_which_nothing_else_is_known():
    client = Pair(FOREIGN, 2).client
    other = pb.EpisodeMetadata(episode_id="interrupted", env_index=1, truncated=True)
    data = bad_step(truncated_mask=b"\0\7", completed_episodes=[other])
    got = client.read(client.open(data), step_request(2)).completions
    assert got == (Completion(env_index=1, terminated=False, truncated=True),)
