"""Properties of the rlmesh-wire-v1 mapping: nothing is lost, and any bytes are an answer."""

from __future__ import annotations

import base64
import contextlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmesh.errors import InvalidValue, WireError
from rollmesh.ports import EnvContract, PredictRequest, ResetReply, ResetRequest, StepRequest
from rollmesh.wire import messages as ours
from rollmesh.wire import protobuf as wire
from rollmesh.wire._gen import rlmesh_spaces_v1_pb2 as pb
from rollmesh.wire.dialect import FOREIGN, ROLLMESH
from rollmesh.wire.messages import Kind
from rollmesh.wire.proto_metadata import decode_lanes, decode_map, encode_map, encode_vector
from rollmesh.wire.proto_spaces import decode_space, encode_space
from rollmesh.wire.proto_values import CUT_ABOVE, cut_leaves
from tests.property.strategies import batches, same, spaces

GOLDEN = Path(__file__).parents[1] / "interop" / "golden"
DOCUMENTED = (WireError, InvalidValue)

plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.text(st.characters(codec="utf-8"), max_size=5),
        st.binary(max_size=5),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), inner, max_size=3),
    ),
    max_leaves=8,
)
maps = st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), plain, max_size=4)


def refuse(path: str, detail: str) -> None:
    raise AssertionError(f"{path}: {detail}")


def sent_to_a_released_peer(space):
    try:
        return encode_space(space, FOREIGN).SerializeToString()
    except WireError:
        return None


@given(spaces())
def test_any_space_survives_between_rollmesh_ends(space):
    data = encode_space(space, ROLLMESH).SerializeToString()
    assert decode_space(pb.SpaceSpec.FromString(data)) == space


@given(spaces())
def test_a_space_is_refused_towards_a_released_peer_or_survives_but_for_texts(space):
    data = sent_to_a_released_peer(space)
    if data is None:
        with pytest.raises(WireError, match="cannot be sent to this peer"):
            encode_space(space, FOREIGN)
        return
    again = decode_space(pb.SpaceSpec.FromString(data))
    assert encode_space(again, FOREIGN).SerializeToString() == data
    if "Text" not in repr(space):
        assert again == space


@settings(deadline=None)
@given(batches())
def test_values_survive_bit_by_bit(batch):
    space, values = batch
    contract = EnvContract(
        id="x", observation_space=space, action_space=space, num_envs=len(values)
    )
    request = ResetRequest(episode_ids=("e",) * len(values))
    leaves = space.codec.encode_many(values)
    reply = ResetReply(observation=leaves, infos=({},) * len(values))
    data = wire.EnvServerWire(contract, FOREIGN).write("r", reply, request)
    client = wire.EnvClientWire(contract, FOREIGN)
    got = client.read(client.open(data), request)
    for row, value in enumerate(values):
        decoded = space.codec.decode(got.observation, row)
        assert same(decoded, space.codec.decode(leaves, row))
        del value


@given(maps)
def test_plain_maps_survive_towards_anybody(values):
    message = pb.MetaMap()
    encode_map(values, message, refuse)
    assert decode_map(pb.MetaMap.FromString(message.SerializeToString())) == values


flat = st.one_of(st.booleans(), st.integers(-9, 9), st.text("ab", max_size=2))
flat_maps = st.dictionaries(st.text("abc", min_size=1, max_size=2), flat, max_size=3)


@given(st.lists(flat_maps, min_size=2, max_size=4))
def test_infos_of_lanes_survive_the_vector_form(infos):
    message = pb.MetaMap()
    encode_vector(infos, message, refuse)
    assert decode_lanes(message, len(infos)) == tuple(infos)


# ----------------------------------------------------------------------------------- mutants


def golden(pattern: str) -> list[tuple[str, str, bytes]]:
    found = []
    for path in sorted(GOLDEN.glob(pattern)):
        for line in path.read_text().splitlines():
            one = json.loads(line)
            found.append((one["method"], one["way"], base64.b64decode(one["data"])))
    return found


def mutant(data: bytes, chance: random.Random) -> bytes:
    """Return bytes that are nearly a message."""
    out = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 5])):
        place = chance.randrange(len(out) + 1) if out else 0
        match chance.randrange(6):
            case 0 if out:
                out[place % len(out)] ^= 1 << chance.randrange(8)
            case 1 if out:
                out[place % len(out)] = chance.choice([0, 1, 127, 128, 255])
            case 2:
                del out[place : place + chance.randrange(1, 9)]
            case 3:
                out[place:place] = chance.randbytes(chance.randrange(1, 9))
            case 4:
                out[place:place] = out[place : place + chance.randrange(1, 40)]
            case _:
                del out[place:]
    return bytes(out)


def read_all(method: str, way: str, data: bytes, contracts: Contracts) -> None:
    """Read bytes the way a server or client would."""
    service = "env" if ".env." in method else "model"
    match method.rpartition("/")[2], way, service:
        case "Handshake", "request", _:
            wire.read_hello(service, data)
        case "Handshake", _, _:
            wire.read_welcome(service, data)
        case _, "request", "env":
            contracts.env_server.read(wire.open_env_request(data))
        case _, _, "env":
            read_env_reply(contracts, data)
        case _, "request", _:
            read_model(contracts, data)
        case _:
            envelope = wire.open_model_response(data)
            wire.read_model_reply(envelope, contracts.predict, contracts.contract)


class Contracts:
    """What was agreed: two lanes of the recorded counting env."""

    def __init__(self) -> None:
        [(_, _, data)] = [
            one
            for one in golden("env_vector.jsonl")
            if one[0].endswith("Handshake") and one[1] == "response"
        ]
        contract = wire.read_welcome("env", data)[1]
        assert contract is not None
        self.contract = contract
        self.env_server = wire.EnvServerWire(contract, ROLLMESH)
        self.env_client = wire.EnvClientWire(contract, ROLLMESH)
        codec = contract.observation_space.codec
        self.predict = PredictRequest(
            context=wire.context_of(wire_context()),
            observation=codec.encode(np.zeros(2, np.float32)),
            episode_info=(),
        )


def wire_context() -> Any:
    for method, way, data in golden("model_plain.jsonl"):
        if method.endswith("Join") and way == "request":
            return wire.open_model_request(data).message
    raise AssertionError


def read_env_reply(contracts: Contracts, data: bytes) -> None:
    envelope = contracts.env_client.open(data)
    request: Any = ours.Render()
    if envelope.kind is Kind.STEP:
        action = contracts.contract.action_space.codec.encode_many([0, 0])
        request = StepRequest(action=action, episode_ids=("a", "b"))
    elif envelope.kind is Kind.RESET:
        request = ResetRequest(episode_ids=("a", "b"))
    contracts.env_client.read(envelope, request)


def read_model(contracts: Contracts, data: bytes) -> None:
    envelope = wire.open_model_request(data)
    if envelope.kind is not Kind.PREDICT:
        wire.read_model_request(envelope)
    elif wire.is_grouped(envelope):
        for group in wire.groups_of(envelope):
            wire.read_predict(group, contracts.contract, None)
    else:
        wire.read_predict(envelope.message, contracts.contract, None, envelope.leaves)


def run_mutants(count: int, seed: int) -> None:
    chance = random.Random(seed)
    contracts = Contracts()
    messages = golden("*.jsonl")
    accepted = 0
    for _ in range(count):
        method, way, data = chance.choice(messages)
        broken = mutant(data, chance)
        with contextlib.suppress(*DOCUMENTED):
            read_all(method, way, broken, contracts)
            accepted += 1
    assert 0 < accepted < count


def test_mutants_of_recorded_messages_are_accepted_or_refused_with_a_documented_error():
    run_mutants(4000, 1)


@pytest.mark.fault_full
def test_many_mutants_of_recorded_messages():
    for seed in range(10):
        run_mutants(20_000, seed)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer(data):
    contracts = Contracts()
    for method in ("/rlmesh.env.v1.EnvService/", "/rlmesh.model.v1.ModelService/"):
        for name in ("Handshake", "Join"):
            for way in ("request", "response"):
                with contextlib.suppress(*DOCUMENTED):
                    read_all(method + name, way, data, contracts)


def test_cutting_a_mutant_finds_what_the_library_finds_or_nothing():
    """Whatever is cut out of odd bytes: rest and leaves are what the library reads in the whole."""
    from rollmesh.wire._gen import rlmesh_env_v1_pb2 as env_pb

    chance = random.Random(2)
    message = env_pb.JoinResponse(request_id="r1", endpoint_total_ns=2**40)
    message.step.observation.leaves.extend([bytes(CUT_ABOVE), b"abc", b""])
    message.step.rewards.extend([1.0, 2.0])
    message.step.infos.entries["k"].text = "v"
    data = message.SerializeToString()
    head = len(data) - len(data.lstrip(b"")) + 40
    agreed = 0
    for _ in range(3000):
        broken = bytearray(data)
        region = chance.choice([range(head), range(len(data) - 60, len(data))])
        for _ in range(chance.choice([0, 1, 1, 2])):
            broken[chance.choice(region)] = chance.randrange(256)
        whole = bytes(broken)
        cut = cut_leaves(whole, (0x0A, 0x12), 0x0A)
        try:
            expected = env_pb.JoinResponse.FromString(whole)
        except Exception:  # noqa: BLE001 - the library's error differs from version to version
            continue
        if cut is None:
            continue
        rest = env_pb.JoinResponse.FromString(cut[0])
        kind = expected.WhichOneof("response")
        assert rest.WhichOneof("response") == kind
        if kind not in {"step", "reset"}:
            continue
        inner = getattr(expected, kind)
        assert list(inner.observation.leaves) == [bytes(leaf) for leaf in cut[1]]
        inner.ClearField("observation")
        assert rest == expected
        agreed += 1
    assert agreed > 500
