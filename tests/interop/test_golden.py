"""What released peers sent each other, read and written again (see capture_golden.py).

Every recorded message is decoded into our types, encoded again, and compared as a message, times
aside: they must not differ in a single field.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmesh.ports import AutoresetMode, EnvContract, StepRequest
from rollmesh.wire import messages as ours
from rollmesh.wire import protobuf as wire
from rollmesh.wire._gen import rlmesh_env_v1_pb2 as env_pb
from rollmesh.wire._gen import rlmesh_model_v1_pb2 as model_pb
from rollmesh.wire.dialect import FOREIGN
from rollmesh.wire.handshake import EDITION, RUNTIME, party, select_edition
from rollmesh.wire.messages import Kind

GOLDEN = Path(__file__).parent / "golden"
ENV_FILES = sorted(path.stem for path in GOLDEN.glob("env_*.jsonl"))
MODEL_FILES = sorted(path.stem for path in GOLDEN.glob("model_*.jsonl"))
LANES = {"env_lanes", "env_lanes_run"}
TIMES = (
    "endpoint_total_ns",
    "decode_ns",
    "user_ns",
    "encode_ns",
    "lane_skew_ns",
    "queue_ns",
    "in_flight",
    "adapter_ns",
    "held_episodes",
    "held_state_bytes",
)


def records(name: str) -> list[tuple[str, str, bytes]]:
    """Return (method, way, bytes) of each message."""
    lines = (GOLDEN / f"{name}.jsonl").read_text().splitlines()
    loaded = [json.loads(line) for line in lines]
    return [
        (one["method"].rpartition("/")[2], one["way"], base64.b64decode(one["data"]))
        for one in loaded
    ]


def env_contract(name: str) -> EnvContract:
    [data] = [d for method, way, d in records(name) if (method, way) == ("Handshake", "response")]
    said, contract = wire.read_welcome("env", data)
    assert said.is_compatible
    assert contract is not None
    return contract


def without_times(message: Any) -> bytes:
    """Return a message's bytes in a fixed order (messages with a NaN differ from themselves)."""
    copy = type(message).FromString(message.SerializeToString())
    for field in TIMES:
        if field in copy.DESCRIPTOR.fields_by_name:
            copy.ClearField(field)
    for episode in [*copy.step.completed_episodes, *copy.close.final_episodes]:
        episode.ClearField("start_timestamp_ns")
        episode.ClearField("end_timestamp_ns")
    return copy.SerializeToString(deterministic=True)


def refuse(path: str, detail: str) -> None:
    raise AssertionError(f"{path}: {detail}")


@pytest.mark.parametrize("name", ENV_FILES)
def test_env_handshake_survives_both_ways(name: str) -> None:
    for method, way, data in records(name):
        if method != "Handshake":
            continue
        if way == "request":
            said = wire.read_hello("env", data)
            assert wire.read_hello("env", wire.write_hello("env", said)) == said
            original = env_pb.HandshakeRequest.FromString(data)
            assert env_pb.HandshakeRequest.FromString(wire.write_hello("env", said)) == original
        else:
            said, contract = wire.read_welcome("env", data)
            again = wire.write_welcome("env", said, contract=contract, dialect=FOREIGN)
            original = env_pb.HandshakeResponse.FromString(data)
            if not original.env_contract.spec.metadata.entries:
                original.env_contract.spec.ClearField("metadata")
            assert env_pb.HandshakeResponse.FromString(again) == original
        assert said.peer.component == "rlmesh-env"
        assert said.dialect == FOREIGN
        assert select_edition([party("env", said), RUNTIME]) == EDITION


@pytest.mark.parametrize("name", ENV_FILES)
def test_env_requests_survive_both_ways(name: str) -> None:
    contract = env_contract(name)
    server = wire.EnvServerWire(contract, FOREIGN, report=refuse)
    client = wire.EnvClientWire(contract, FOREIGN, report=refuse)
    count = 0
    for method, way, data in records(name):
        if (method, way) != ("Join", "request"):
            continue
        envelope = wire.open_env_request(data)
        assert envelope.nbytes == len(data)
        body = server.read(envelope)
        again = client.write(envelope.request_id, body)
        assert env_pb.JoinRequest.FromString(again) == env_pb.JoinRequest.FromString(data)
        count += 1
    assert count >= 3


@pytest.mark.parametrize("name", ENV_FILES)
def test_env_responses_survive_both_ways(name: str) -> None:
    """The ledger finds by itself what the released server said of its episodes."""
    contract = env_contract(name)
    server = wire.EnvServerWire(contract, FOREIGN, has_lanes=name in LANES, report=refuse)
    client = wire.EnvClientWire(contract, FOREIGN, report=refuse)
    ledger = wire.EpisodeLedger(contract)
    requests: dict[str, Any] = {}
    for method, way, data in records(name):
        if method != "Join":
            continue
        if way == "request":
            envelope = wire.open_env_request(data)
            requests[envelope.request_id] = server.read(envelope)
            continue
        envelope = client.open(data)
        request = requests[envelope.request_id]
        body = client.read(envelope, request)
        again = write_env_reply(server, ledger, envelope.request_id, body, request)
        original = env_pb.JoinResponse.FromString(data)
        assert without_times(env_pb.JoinResponse.FromString(again)) == without_times(original)
        if not isinstance(body, (ours.Done, ours.ErrorBody, ours.RenderReply)):
            assert body.endpoint_total_ns == original.endpoint_total_ns > 0


def write_env_reply(
    server: wire.EnvServerWire, ledger: wire.EpisodeLedger, request_id: str, body: Any, request: Any
) -> bytes:
    """Write a reply as an env server does."""
    if isinstance(body, ours.ErrorBody):
        body = ours.ErrorBody(
            code=body.code,
            message=f"step failed: {body.error_class}: {body.message}",
            is_recoverable=body.is_recoverable,
        )
        return server.write(request_id, body, request)
    if isinstance(body, ours.RenderReply):  # compressed otherwise: the image is compared elsewhere
        assert body.frame.shape == (4, 5, 3)
        assert np.array_equal(body.frame.ravel(), np.arange(60))
        message = env_pb.JoinResponse.FromString(server.write(request_id, body, request))
        joined = [
            env_pb.JoinResponse.FromString(data)
            for method, way, data in records("env_scalar")
            if (method, way) == ("Join", "response")
        ]
        [golden] = [one.render.frame for one in joined if one.HasField("render")]
        message.render.frame = golden
        return message.SerializeToString()
    match request:
        case ours.Close():
            return server.write(request_id, body, request, interrupted=ledger.close())
        case StepRequest():
            facts = ledger.step(request, body)
            interrupted = ledger.take_interrupted()
            return server.write(request_id, body, request, ended=facts, interrupted=interrupted)
        case ours.Configure() | ours.Render():
            return server.write(request_id, body, request)
        case _:
            ledger.reset(request)
            return server.write(request_id, body, request)


@pytest.mark.parametrize("name", MODEL_FILES)
def test_model_handshake_survives_both_ways(name: str) -> None:
    seen = 0
    for method, way, data in records(name):
        if method != "Handshake":
            continue
        seen += 1
        if way == "request":
            said = wire.read_hello("model", data)
            again = model_pb.HandshakeRequest.FromString(wire.write_hello("model", said))
            assert again == model_pb.HandshakeRequest.FromString(data)
            assert said.granted == frozenset()
        else:
            said, contract = wire.read_welcome("model", data)
            assert contract is None
            again = model_pb.HandshakeResponse.FromString(wire.write_welcome("model", said))
            assert again == model_pb.HandshakeResponse.FromString(data)
            assert said.granted == {
                "rlmesh.model.concurrent_predict.v1",
                "rlmesh.model.observation_history.v1",
            }
    assert seen >= 2


@pytest.mark.parametrize("name", MODEL_FILES)
def test_model_messages_survive_both_ways(name: str) -> None:
    contracts: dict[str, EnvContract] = {}
    requests: dict[str, Any] = {}
    kinds = set()
    for method, way, data in records(name):
        if method != "Join":
            continue
        if way == "request":
            envelope = wire.open_model_request(data)
            kinds.add(envelope.kind)
            contract = None
            if envelope.kind is Kind.PREDICT:
                contract = contracts[wire.context_of(envelope.message).env_id]
                body = wire.read_predict(envelope.message, contract, None)
            else:
                body = wire.read_model_request(envelope)
                if isinstance(body, wire.ResolveRoute):
                    contracts[body.context.env_id] = body.contract
            requests[envelope.request_id] = body, contract
            again = wire.write_model_request(envelope.request_id, body, FOREIGN, refuse, contract)
            parsed, original = map(model_pb.JoinRequest.FromString, (again, data))
            metadata = original.resolve_adapter.env_spec.metadata
            if original.HasField("resolve_adapter") and not metadata.entries:
                original.resolve_adapter.env_spec.ClearField("metadata")
            assert parsed == original
        else:
            envelope = wire.open_model_response(data)
            request, contract = requests[envelope.request_id]
            reply = wire.read_model_reply(envelope, request, contract)
            if isinstance(reply, ours.ErrorBody):
                assert reply.error_class == "ZeroDivisionError"
                assert reply.message == "integer division or modulo by zero"
                assert reply.code == "internal"
                continue
            again = wire.write_model_reply(
                envelope.request_id, reply, FOREIGN, request=request, contract=contract
            )
            parsed, original = map(model_pb.JoinResponse.FromString, (again, data))
            for field in TIMES:
                if field in original.DESCRIPTOR.fields_by_name:
                    original.ClearField(field)
            assert parsed == original
    assert kinds == {Kind.RESOLVE, Kind.PREDICT, Kind.RESET_ADAPTER, Kind.RELEASE_ADAPTER}


def test_the_first_bytes_of_a_value_are_those_of_the_table() -> None:
    from rollmesh.wire._gen import rlmesh_spaces_v1_pb2 as spaces_pb

    value = spaces_pb.SpaceValue(leaves=[b"\1\2\3", b"\4\5"])
    assert value.SerializeToString() == bytes.fromhex("0A03010203 0A020405")


def test_lanes_that_ended_are_completions_with_what_the_peer_counted() -> None:
    contract = env_contract("env_vector")
    assert contract.autoreset_mode is AutoresetMode.NEXT_STEP
    client = wire.EnvClientWire(contract, FOREIGN)
    server = wire.EnvServerWire(contract, FOREIGN)
    requests = {}
    ends = []
    for method, way, data in records("env_vector"):
        if method == "Join" and way == "request":
            envelope = wire.open_env_request(data)
            requests[envelope.request_id] = server.read(envelope)
        elif method == "Join":
            envelope = client.open(data)
            if envelope.kind is Kind.STEP:
                reply = client.read(envelope, requests[envelope.request_id])
                ends += [(end.env_index, end.step_count) for end in reply.completions]
                assert len(reply.infos) == 2
                for end in reply.completions:
                    assert end.final_info == reply.infos[end.env_index]
                    assert end.final_info["is_success"] is True
    assert ends == [(0, 2), (1, 3)]
