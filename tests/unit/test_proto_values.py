"""Tests of `rollmesh.wire.proto_values`: leaves in and out of messages."""

from __future__ import annotations

import numpy as np
import pytest

from rollmesh.errors import WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.ports import (
    EnvContract,
    ResetReply,
    ResetRequest,
    StepReply,
)
from rollmesh.spaces.space import Box, Dict, Text
from rollmesh.wire import protobuf as wire
from rollmesh.wire._gen import rlmesh_env_v1_pb2 as pb
from rollmesh.wire.dialect import FOREIGN
from tests.unit.wire_toys import (
    ACTIONS,
    contract,
    same_leaves,
    step_request,
)

IMAGES = Dict({"a": Box((64, 64, 3), np.uint8), "b": Box((128, 64), np.float64), "t": Text(0, 9)})


def images(count):
    generator = np.random.default_rng(1)
    return IMAGES.codec.encode_many(
        [
            {
                "a": generator.integers(0, 256, (64, 64, 3), np.uint8),
                "b": generator.random((128, 64)),
                "t": f"n{i}",
            }
            for i in range(count)
        ]
    )


@pytest.mark.parametrize("rows", [1, 3])
def test_large_leaves_are_views_where_that_is_safe_and_aligned_everywhere(rows):
    toy = contract(rows, observations=IMAGES)
    server, client = wire.EnvServerWire(toy, FOREIGN), wire.EnvClientWire(toy, FOREIGN)
    reply = StepReply(observation=images(rows), rewards=(1.0,) * rows, infos=({"a": 1},) * rows)
    request = step_request(rows)
    data = server.write("r", reply, request)
    envelope = client.open(data)
    assert len(envelope.leaves) == 3
    got = client.read(envelope, request)
    assert same_leaves(got.observation, reply.observation)
    assert all(leaf.flags.aligned for leaf in got.observation[:2])
    assert not any(leaf.flags.writeable for leaf in got.observation[:2])
    assert np.shares_memory(got.observation[0], np.frombuffer(data, np.uint8))
    assert got.infos == ({"a": 1},) * rows


def test_what_is_put_together_by_hand_reads_as_the_library_would_have_written_it():
    toy = contract(1, observations=IMAGES)
    reply = ResetReply(observation=images(1), infos=({},))
    request = ResetRequest(episode_ids=("a",))
    data = wire.EnvServerWire(toy, FOREIGN).write("r9", reply, request)
    message = pb.JoinResponse(request_id="r9")
    message.reset.observation.leaves.extend(
        [bytes(one) for one in IMAGES.codec.to_buffers(reply.observation)]
    )
    assert pb.JoinResponse.FromString(data) == message


def test_a_reply_larger_than_a_message_is_refused_before_it_is_put_together():
    size = SIZE_LIMITS.message_bytes // 2

    leaf = np.broadcast_to(np.zeros(1, np.uint8), (1, size))
    twice = EnvContract(
        id="x",
        observation_space=Dict({"a": Box((size,), np.uint8), "b": Box((size,), np.uint8)}),
        action_space=ACTIONS,
    )

    zeros = np.ascontiguousarray(leaf)
    reply = ResetReply(observation=[zeros, zeros], infos=({},))
    with pytest.raises(WireError, match="larger than SIZE_LIMITS"):
        wire.EnvServerWire(twice, FOREIGN).write("r", reply, ResetRequest(episode_ids=("a",)))
