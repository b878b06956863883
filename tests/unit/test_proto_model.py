"""Tests of `rollmesh.wire.proto_model`."""

from __future__ import annotations

import numpy as np
import pytest

from rollmesh.errors import InvalidValue, WireError
from rollmesh.ports import (
    AdapterContext,
    AutoresetMode,
    EnvContract,
    EpisodeInfo,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
)
from rollmesh.spaces.space import Box, Discrete, Sequence
from rollmesh.wire import messages as ours
from rollmesh.wire import protobuf as wire
from rollmesh.wire._gen import rlmesh_model_v1_pb2 as pb
from rollmesh.wire.dialect import FOREIGN, ROLLMESH
from rollmesh.wire.messages import Kind
from tests.unit.wire_toys import DIALECTS, same_leaves

CONTRACT = EnvContract(
    id="Toy",
    observation_space=Box((3,)),
    action_space=Discrete(4),
    num_envs=2,
    autoreset_mode=AutoresetMode.NEXT_STEP,
    render_mode="human",
    metadata={"fps": 30, "size": (1, 2)},
)
CONTEXT = AdapterContext("session", "env", "env:predict:1")


def refuse(path, detail):
    raise AssertionError(f"{path}: {detail}")


def write(body, dialect=FOREIGN, contract=CONTRACT):
    return wire.write_model_request("id", body, dialect, refuse, contract)


def predict(count=2, **fields):
    values = [np.array([i, 0, -i], np.float32) for i in range(count)]
    fields = {
        "context": CONTEXT,
        "observation": CONTRACT.observation_space.codec.encode_many(values),
        "episode_info": tuple(EpisodeInfo(f"e{i}", i or None) for i in range(count)),
        **fields,
    }
    return PredictRequest(**fields)


def received(body, dialect=FOREIGN, horizon=None):
    envelope = wire.open_model_request(write(body, dialect))
    assert envelope.request_id == "id"
    if envelope.kind is Kind.PREDICT:
        return wire.read_predict(envelope.message, CONTRACT, horizon, envelope.leaves)
    return wire.read_model_request(envelope)


def answered(reply, request, dialect=FOREIGN, **options):
    data = wire.write_model_reply(
        "id", reply, dialect, request=request, contract=CONTRACT, **options
    )
    return wire.read_model_reply(wire.open_model_response(data), request, CONTRACT)


@DIALECTS
def test_a_predict_survives(dialect):
    request = predict(timeout_ms=900)
    got = received(request, dialect, horizon=4)
    assert same_leaves(got.observation, request.observation)
    assert (got.context, got.episode_info) == (CONTEXT, request.episode_info)
    assert got.execution_horizon == 4
    assert got.timeout_ms == (900 if dialect == ROLLMESH else 0)


def test_a_large_predict_is_cut_and_survives():
    contract = EnvContract(
        id="Big", observation_space=Box((256, 64), np.uint8), action_space=Discrete(4)
    )
    frames = np.random.default_rng(0).integers(0, 256, (4, 256, 64), np.uint8)
    request = predict(4, observation=[frames])
    envelope = wire.open_model_request(write(request, contract=contract))
    got = wire.read_predict(envelope.message, contract, None, envelope.leaves)
    assert envelope.leaves is not None
    assert np.array_equal(got.observation[0], frames)
    assert got.episode_info == request.episode_info


def test_a_seed_may_be_zero_or_none():
    infos = (EpisodeInfo("a", 0), EpisodeInfo("b", None), EpisodeInfo("c", -1))
    assert received(predict(3, episode_info=infos)).episode_info == infos
    with pytest.raises(InvalidValue, match="64 bits"):
        write(predict(1, episode_info=(EpisodeInfo("a", 2**63),)))


@DIALECTS
def test_a_route_survives(dialect):
    body = wire.ResolveRoute(
        context=CONTEXT, contract=CONTRACT, edition="2026.06", execution_horizon=8
    )
    got = received(body, dialect)
    if dialect == ROLLMESH:
        assert got == body
    else:  # a released peer tells the env's spec only
        assert got.contract == EnvContract(
            id="Toy",
            observation_space=CONTRACT.observation_space,
            action_space=CONTRACT.action_space,
            autoreset_mode=AutoresetMode.UNSPECIFIED,
            metadata={"fps": 30, "size": [1, 2]},
        )
        assert (got.context, got.edition, got.execution_horizon) == (CONTEXT, "2026.06", 8)


def test_no_horizon_is_zero_on_the_wire():
    body = wire.ResolveRoute(context=CONTEXT, contract=CONTRACT)
    sent = pb.JoinRequest.FromString(write(body)).resolve_adapter
    assert sent.execution_horizon == 0
    assert received(body).execution_horizon is None


def test_a_space_that_a_released_model_does_not_know_is_refused():
    contract = EnvContract(id="S", observation_space=Sequence(Box((1,))), action_space=Discrete(2))
    body = wire.ResolveRoute(context=CONTEXT, contract=contract)
    with pytest.raises(WireError, match="a Sequence cannot be sent"):
        write(body)
    assert received(body, ROLLMESH).contract == contract


@DIALECTS
@pytest.mark.parametrize(
    "body",
    [
        ResetAdapterRequest(CONTEXT, ("a", "b")),
        ReleaseAdapterRequest(CONTEXT, "over", None),
        ours.Close(reason="bye"),
    ],
    ids=lambda body: type(body).__name__,
)
def test_other_requests_survive(dialect, body):
    assert received(body, dialect) == body
    assert answered(ours.Done(), body, dialect) == ours.Done()


def test_requests_of_ours_survive_between_rollmesh_ends_only():
    for body in (ours.Cancel(reason="late"), ours.Probe(b"\0")):
        assert received(body, ROLLMESH) == body
        with pytest.raises(WireError, match="has no"):
            write(body)
    release = ReleaseAdapterRequest(CONTEXT, "over", 2.5)
    assert received(release, ROLLMESH) == release
    assert received(release).timeout_s is None
    probe = ours.ProbeReply(b"x")
    assert answered(probe, ours.Probe(b"x"), ROLLMESH) == probe


def frames(count, rows=2):
    codec = CONTRACT.action_space.codec
    return tuple(codec.encode_many([(i + row) % 4 for row in range(rows)]) for i in range(count))


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_chunk_survives_with_the_context_it_was_given(count):
    context = AdapterContext("other", "env", "x")
    reply = PredictReply(context=context, frames=frames(count))
    got = answered(reply, predict(), timing_ns={"endpoint_total_ns": 5, "in_flight": 2})
    assert got.context == context  # whose it is, the runtime compares
    assert len(got.frames) == count
    assert all(same_leaves(a, b) for a, b in zip(got.frames, reply.frames, strict=True))
    assert got.endpoint_total_ns == 5
    assert got.response_bytes > 0


@pytest.mark.parametrize("chunk", [None, 1, 16])
def test_a_resolve_reply_survives(chunk):
    request = wire.ResolveRoute(context=CONTEXT, contract=CONTRACT)
    reply = ours.ResolveReply(context=CONTEXT, native_chunk=chunk)
    assert answered(reply, request) == reply


def test_a_grouped_predict_is_read_and_answered_group_by_group():
    groups = [pb.JoinRequest.FromString(write(predict(n))).predict for n in (1, 3)]
    message = pb.JoinRequest(
        request_id="g", grouped_predict=pb.GroupedPredictRequest(groups=groups)
    )
    envelope = wire.open_model_request(message.SerializeToString())
    assert envelope.kind is Kind.PREDICT
    assert wire.is_grouped(envelope)
    requests = [wire.read_predict(one, CONTRACT, None) for one in wire.groups_of(envelope)]
    assert [len(one.episode_info) for one in requests] == [1, 3]
    reply = PredictReply(context=CONTEXT, frames=frames(1, rows=1))
    error = ours.ErrorBody(code="not_configured", message="resolve it first")
    data = wire.write_grouped_reply("g", [(reply, CONTRACT), (error, None)], FOREIGN)
    results = pb.JoinResponse.FromString(data).grouped_predict.results
    assert [one.WhichOneof("outcome") for one in results] == ["response", "error"]
    assert results[1].error.code == 3
    assert wire.is_grouped(wire.open_model_response(data))


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("invalid_request", 2),
        ("not_configured", 3),
        ("busy", 4),
        ("unsupported", 5),
        ("internal", 10),
        ("cancelled", 12),
        ("closed", 13),
        ("timeout", 10),
        ("invalid_action", 2),
    ],
)
def test_codes_have_their_numbers(code, number):
    data = wire.write_model_reply("id", ours.ErrorBody(code=code), FOREIGN)
    assert pb.JoinResponse.FromString(data).error.code == number


def test_history_and_steps_of_a_released_runtime_are_tolerated():
    message = pb.JoinRequest.FromString(write(predict(1)))
    message.predict.step = 4
    message.predict.history.add(step=3).episode_info.add(episode_id="e0")
    envelope = wire.open_model_request(message.SerializeToString())
    assert wire.read_predict(envelope.message, CONTRACT, None).episode_info == (EpisodeInfo("e0"),)


def predict_message(**fields):
    message = pb.JoinRequest.FromString(write(predict(2))).predict
    for name in fields.pop("clear", ()):
        message.ClearField(name)
    message.MergeFrom(pb.PredictRequest(**fields))
    return message


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (predict_message(clear=["context"]), WireError),
        (predict_message(clear=["episode_info"]), WireError),
        (predict_message(episode_info=[pb.EpisodeInfo(episode_id="e0")]), WireError),
        (predict_message(episode_info=[pb.EpisodeInfo(episode_id="e9")]), InvalidValue),
        (predict_message(clear=["observation"]), InvalidValue),
        (predict_message(context=pb.AdapterContext(env_id="x" * 2000)), WireError),
    ],
)
def test_a_predict_that_is_not_valid_is_refused(message, error):
    with pytest.raises(error):
        wire.read_predict(message, CONTRACT, None)


def test_requests_without_context_spec_or_kind_are_refused():
    for message in (
        pb.JoinRequest(resolve_adapter=pb.ResolveAdapterRequest()),
        pb.JoinRequest(resolve_adapter=pb.ResolveAdapterRequest(context=pb.AdapterContext())),
        pb.JoinRequest(reset_adapter=pb.ResetAdapterRequest()),
        pb.JoinRequest(release_adapter=pb.ReleaseAdapterRequest()),
        pb.JoinRequest(),
    ):
        with pytest.raises(WireError):
            wire.read_model_request(wire.open_model_request(message.SerializeToString()))


def test_too_many_frames_or_a_reply_to_another_request_are_refused():
    many = pb.JoinResponse()
    for _ in range(4097):
        many.predict.actions.add()
    for message in (many, pb.JoinResponse(close=pb.CloseResponse()), pb.JoinResponse()):
        envelope = wire.open_model_response(message.SerializeToString())
        with pytest.raises(WireError):
            wire.read_model_reply(envelope, predict(), CONTRACT)
