"""Tests of `rollmesh.wire.proto_env_server`: requests as a server reads them, and `proto_env`."""

from __future__ import annotations

import numpy as np
import pytest

from rollmesh.errors import InvalidValue, WireError
from rollmesh.ports import (
    ResetRequest,
)
from rollmesh.wire import messages as ours
from rollmesh.wire import protobuf as wire
from rollmesh.wire._gen import rlmesh_env_v1_pb2 as pb
from rollmesh.wire.dialect import FOREIGN, ROLLMESH
from rollmesh.wire.messages import Kind
from tests.unit.wire_toys import (
    DIALECTS,
    Pair,
    same_leaves,
    step_request,
)


@DIALECTS
@pytest.mark.parametrize("lanes", [(), (0, 2)])
def test_a_reset_survives(dialect, lanes):
    rows = len(lanes) or 3
    request = ResetRequest(
        episode_ids=tuple(f"e{i}" for i in range(rows)),
        seeds=tuple(range(rows)),
        options=({"level": 3},) * rows,
        timeout_ms=500,
        env_indices=lanes,
    )
    assert Pair(dialect, 3).there(request) == request


@DIALECTS
def test_a_reset_without_anything_survives(dialect):
    request = ResetRequest(episode_ids=("", ""))
    assert Pair(dialect, 2).there(request) == request


def test_options_of_lanes_survive_between_rollmesh_ends_none_and_empty_apart():
    options = (None, {}, {"at": (1, 2), 3: np.float32(0.5)})
    got = Pair(ROLLMESH, 3).there(ResetRequest(episode_ids=("a", "b", "c"), options=options))
    assert got.options == options
    assert type(got.options[2]["at"]) is tuple


def test_trial_index_may_differ_from_lane_to_lane_everywhere():
    options = ({"trial_index": 4, "level": 1}, {"trial_index": 5, "level": 1})
    pair = Pair(FOREIGN, 2)
    request = ResetRequest(episode_ids=("a", "b"), options=options)
    assert pair.there(request).options == options
    sent = pb.JoinRequest.FromString(pair.client.write("r", request)).reset.options
    assert [item.integer for item in sent.entries["trial_index"].list.items] == [4, 5]


def test_other_options_that_differ_are_refused_towards_a_released_peer():
    request = ResetRequest(episode_ids=("a", "b"), options=({"level": 1}, {"level": 2}))
    with pytest.raises(InvalidValue, match="reset the lanes one by one"):
        Pair(FOREIGN, 2).there(request)
    assert Pair(ROLLMESH, 2).there(request) == request


def test_an_odd_option_is_reported_once_and_sent_as_its_repr():
    pair = Pair(FOREIGN)
    for _ in range(2):
        got = pair.there(ResetRequest(episode_ids=("a",), options=({"x": {1, 2}},)))
        assert got.options == ({"x": "{1, 2}"},)
    assert [path for path, _ in pair.told] == ["options['x']"]


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1])
def test_a_seed_beyond_64_bits_is_refused(seed):
    with pytest.raises(InvalidValue, match="does not fit"):
        Pair(FOREIGN).there(ResetRequest(episode_ids=("a",), seeds=(seed,)))


@DIALECTS
@pytest.mark.parametrize("lanes", [(), (1,), (0, 2)])
def test_a_step_survives(dialect, lanes):
    request = step_request(len(lanes) or 3, env_indices=lanes, timeout_ms=7)
    got = Pair(dialect, 3).there(request)
    assert same_leaves(got.action, request.action)
    assert (got.episode_ids, got.env_indices, got.timeout_ms) == (request.episode_ids, lanes, 7)


def test_next_episode_ids_travel_between_rollmesh_ends_only():
    request = step_request(next_episode_ids=("n",))
    assert Pair(ROLLMESH).there(request).next_episode_ids == ("n",)
    assert Pair(FOREIGN).there(request).next_episode_ids == ()


@DIALECTS
@pytest.mark.parametrize(
    "body",
    [
        ours.Configure(edition="2026.06"),
        ours.Render(env_indices=(1,), timeout_ms=3),
        ours.Close(reason="bye"),
    ],
    ids=lambda body: type(body).__name__,
)
def test_other_requests_survive(dialect, body):
    assert Pair(dialect, 2).there(body) == body


@pytest.mark.parametrize(
    "body",
    [
        ours.Close(reason="bye", timeout_ms=9, close_env=True),
        ours.Rebuild(env_indices=(1,), timeout_ms=3),
        ours.Cancel(reason="enough"),
        ours.Probe(b"\0\1"),
    ],
    ids=lambda body: type(body).__name__,
)
def test_requests_of_ours_survive_between_rollmesh_ends(body):
    assert Pair(ROLLMESH, 2).there(body) == body
    if not isinstance(body, ours.Close):
        with pytest.raises(WireError, match="only rollmesh's has"):
            Pair(FOREIGN, 2).there(body)


def test_any_request_id_is_carried_also_an_empty_one():
    pair = Pair(FOREIGN)
    for request_id in ("", "grpc-req-1", "ü" * 50):
        pair.there(step_request(), request_id)


REFUSED = {
    "lane out of range": pb.JoinRequest(step=pb.StepRequest(env_indices=[3])),
    "lane twice": pb.JoinRequest(reset=pb.ResetRequest(env_indices=[1, 1])),
    "too many lanes": pb.JoinRequest(render=pb.RenderRequest(env_indices=[0, 1, 2, 3])),
    "too few seeds": pb.JoinRequest(reset=pb.ResetRequest(seeds=[1, 2])),
    "too many seeds for lanes": pb.JoinRequest(
        reset=pb.ResetRequest(seeds=[1, 2], env_indices=[0])
    ),
    "too few ids": pb.JoinRequest(reset=pb.ResetRequest(episode_ids=["a"])),
    "no action": pb.JoinRequest(step=pb.StepRequest()),
    "too many options": pb.JoinRequest(reset=pb.ResetRequest(exact_options=[b""] * 4)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_request_that_does_not_fit_is_an_invalid_value(name):
    envelope = wire.open_env_request(REFUSED[name].SerializeToString())
    with pytest.raises(InvalidValue):
        Pair(FOREIGN, 3).server.read(envelope)


def test_more_seeds_than_lanes_on_a_whole_reset_are_cut_off_as_the_released_server_does():
    request = pb.JoinRequest(reset=pb.ResetRequest(seeds=[1, 2, 3]))
    envelope = wire.open_env_request(request.SerializeToString())
    assert Pair(FOREIGN, 2).server.read(envelope).seeds == (1, 2)


def test_a_request_without_a_known_kind_has_none_and_is_refused():
    for data in (b"", pb.JoinRequest(request_id="x").SerializeToString(), b"\x9a\x3f\x00"):
        envelope = wire.open_env_request(data)
        assert envelope.kind is None
        with pytest.raises(WireError, match="without a kind"):
            Pair(FOREIGN).server.read(envelope)


def test_bytes_that_are_no_message_are_refused():
    client = Pair(FOREIGN).client
    for data in (b"\xff", b"\x0a\x7f", b"\x2a\x02\xff\xff"):
        for read in (client.open, wire.open_env_request):
            with pytest.raises(WireError, match="are no"):
                read(data)


def test_kinds_are_those_of_the_session_messages():
    client = Pair(ROLLMESH).client
    kinds = [
        wire.open_env_request(client.write("r", body)).kind
        for body in (step_request(), ours.Render(), ours.Close(), ours.Probe(b""), ours.Cancel())
    ]
    assert kinds == [Kind.STEP, Kind.RENDER, Kind.CLOSE, Kind.PROBE, Kind.CANCEL]
