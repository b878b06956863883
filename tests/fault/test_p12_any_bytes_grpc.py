"""P12 on a live gRPC port: any message is answered, or ends the call with a documented status.

Real sessions of a foreign peer are spoiled below the protobuf layer: messages are poked, cut and
exchanged. A status UNKNOWN would mean that the server raised something nobody had thought of.
"""

from __future__ import annotations

import random
import threading

import grpc
import numpy as np
import pytest

from rollmesh.wire._gen import rlmesh_core_v1_pb2 as core_pb
from rollmesh.wire._gen import rlmesh_env_v1_pb2 as env_pb
from rollmesh.wire._gen import rlmesh_model_v1_pb2 as model_pb
from rollmesh.wire._gen import rlmesh_spaces_v1_pb2 as spaces_pb
from rollmesh.wire.dialect import FOREIGN
from rollmesh.wire.proto_spaces import encode_space
from rollmesh.wire.protobuf import ENV_SERVICE, MODEL_SERVICE
from tests.fault.parties import ACTION, ADDRESSES, OBSERVATION, child_of
from tests.fault.test_p12_any_bytes import (
    MOST_GROWTH_BYTES,
    MOST_OUTPUT,
    descriptors,
    resident_bytes,
    serves,
    settles,
)
from tests.property.test_frames_properties import poke

CALL_S = 10.0
ANSWER_S = 0.05
"""How long an answer is waited for before the next message; not each message has one."""

UNDOCUMENTED = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED)
SERVICES = {"env": ENV_SERVICE, "model": MODEL_SERVICE}
UNARY = ("Handshake", "Shutdown")
sides = pytest.mark.parametrize("side", SERVICES)


def value(array):
    return spaces_pb.SpaceValue(leaves=[np.asarray(array, np.float64).tobytes()])


def env_session():
    """Return the messages of a good session with an env."""
    options = spaces_pb.MetaMap(entries={"key": spaces_pb.MetaValue(text="value")})
    reset = env_pb.ResetRequest(seeds=[3], options=options, episode_ids=["e"], timeout_ms=900)
    step = env_pb.StepRequest(action=value([1.0]), timeout_ms=900, episode_ids=["e"])
    configure = env_pb.ConfigureRequest(selected_workflow_edition="2026.06")
    return [
        env_pb.JoinRequest(configure=configure, request_id="1"),
        env_pb.JoinRequest(reset=reset, request_id="2"),
        env_pb.JoinRequest(step=step, request_id="3"),
        env_pb.JoinRequest(render=env_pb.RenderRequest(env_indices=[0]), request_id="4"),
        env_pb.JoinRequest(close=env_pb.CloseEnvsRequest(reason="done"), request_id="5"),
    ]


def model_session():
    """Return the messages of a good session with a model."""

    def context(n):
        return model_pb.AdapterContext(session_id="s", env_id="e", request_id=f"e:{n}")

    spec = core_pb.EnvSpec(
        id="JournalEnv",
        action_space=encode_space(ACTION, FOREIGN),
        observation_space=encode_space(OBSERVATION, FOREIGN),
    )
    resolve = model_pb.ResolveAdapterRequest(context=context(1), env_spec=spec)
    predict = model_pb.PredictRequest(
        context=context(2),
        observation=value([1, 2, 3, 0]),
        episode_info=[model_pb.EpisodeInfo(episode_id="a", seed=1)],
    )
    reset = model_pb.ResetAdapterRequest(context=context(3), episode_ids=["a"])
    release = model_pb.ReleaseAdapterRequest(context=context(4), reason="done")
    return [
        model_pb.JoinRequest(resolve_adapter=resolve, request_id="e:1"),
        model_pb.JoinRequest(predict=predict, request_id="e:2"),
        model_pb.JoinRequest(reset_adapter=reset, request_id="e:3"),
        model_pb.JoinRequest(release_adapter=release, request_id="e:4"),
    ]


SESSIONS = {"env": env_session, "model": model_session}


def spoiled(chance, whole):
    """Return a session with something wrong in it."""
    how = chance.randrange(4)
    if how == 0:
        return [poke(chance, whole[0]), *whole[1:]]
    good = whole[: chance.randrange(len(whole) + 1)]
    if how == 1:
        return [*good, *chance.choices(whole, k=3)]
    if how == 2:
        return [*good, chance.randbytes(chance.randrange(60)), *whole[-2:]]
    return [*good, *[poke(chance, chance.choice(whole)) for _ in range(3)]]


def join(channel, side, messages, answered, answer_s=ANSWER_S):
    """Send messages, each once there is an answer to the last; return the call's status."""
    arrived = threading.Semaphore(0)

    def pieces():
        for message in messages:
            yield message
            arrived.acquire(timeout=answer_s)

    call = channel.stream_stream(f"/{SERVICES[side]}/Join")(pieces(), timeout=CALL_S)
    try:
        for reply in call:
            answered.append(reply)
            arrived.release()
    except grpc.RpcError:
        pass
    return call.code()


def ask(channel, side, method, data):
    call = channel.unary_unary(f"/{SERVICES[side]}/{method}")
    try:
        call(data, timeout=CALL_S)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def attack(side, count, seed):
    chance = random.Random(seed)
    whole = [message.SerializeToString() for message in SESSIONS[side]()]
    hello = core_pb.HandshakeRequest(protocol_generation="rlmesh-wire-v1").SerializeToString()
    with child_of(side, "grpc", resume_grace_s=0.0) as child:
        target = child.ready.removeprefix("tcp://")
        with grpc.insecure_channel(target, [("grpc.enable_http_proxy", 0)]) as channel:
            answered = []
            assert join(channel, side, whole, answered, CALL_S / 2) is grpc.StatusCode.OK
            assert len(answered) == len(whole)
            serves(side, child.ready)
            memory, held = resident_bytes(child.pid), descriptors(child.pid)
            for number in range(count):
                if number % 5 == 0:
                    data = poke(chance, hello)
                    code = ask(channel, side, chance.choice(UNARY), data)
                else:
                    data = spoiled(chance, whole)
                    code = join(channel, side, data, answered)
                assert code not in UNDOCUMENTED, (code, data)
                if number % 50 == 49:
                    serves(side, child.ready)
            assert len(answered) > count
            assert resident_bytes(child.pid) - memory < MOST_GROWTH_BYTES
            assert settles(child.pid, held + 8)
        child.terminate()
        assert child.wait(20.0) == 0, child.output()
        printed = child.output(MOST_OUTPUT)
        assert "Traceback" not in printed, printed[-20_000:]


@pytest.mark.fault
@sides
def test_p12_any_bytes_on_a_live_grpc_port(side):
    assert "grpc" in ADDRESSES
    attack(side, 100, 7)


@pytest.mark.fault_full
@pytest.mark.parametrize("seed", range(5))
@sides
def test_p12_any_bytes_on_a_live_grpc_port_full(side, seed):
    attack(side, 100, 300 + seed)
