"""A client and a server of the released wire, face to face, and values for them."""

from __future__ import annotations

import numpy as np
import pytest

from rollmesh.ports import AutoresetMode, Completion, EnvContract, StepReply, StepRequest
from rollmesh.spaces.space import Box, Dict, Discrete, Text
from rollmesh.wire import protobuf as wire
from rollmesh.wire.dialect import FOREIGN, ROLLMESH

DIALECTS = pytest.mark.parametrize("dialect", [FOREIGN, ROLLMESH], ids=["foreign", "rollmesh"])
OBSERVATIONS = Dict({"x": Box((2,)), "say": Text(0, 9)})
ACTIONS = Discrete(3)


def contract(num_envs=1, mode=AutoresetMode.DISABLED, observations=OBSERVATIONS):
    return EnvContract(
        id="Toy",
        observation_space=observations,
        action_space=ACTIONS,
        num_envs=num_envs,
        autoreset_mode=mode,
    )


class Pair:
    """A client and a server of one session."""

    def __init__(self, dialect, num_envs=1, **options):
        self.contract = contract(num_envs)
        self.told = []
        told = self.told
        self.client = wire.EnvClientWire(self.contract, dialect, lambda *one: told.append(one))
        self.server = wire.EnvServerWire(
            self.contract, dialect, report=lambda *one: told.append(one), **options
        )

    def there(self, body, request_id="r1"):
        envelope = wire.open_env_request(self.client.write(request_id, body))
        assert envelope.request_id == request_id
        return self.server.read(envelope)

    def back(self, body, request, **options):
        data = self.server.write("r1", body, request, **options)
        envelope = self.client.open(data)
        assert envelope.request_id == "r1"
        assert envelope.nbytes == len(data)
        return self.client.read(envelope, request)


def observations(count):
    values = [{"x": np.array([i, -i], np.float32), "say": "ü" * i} for i in range(count)]
    return OBSERVATIONS.codec.encode_many(values)


def actions(*values):
    return ACTIONS.codec.encode_many(list(values))


def same_leaves(left, right):
    return all(
        np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(left, right, strict=True)
    )


def step_request(count=1, **fields):
    ids = tuple(f"e{i}" for i in range(count))
    return StepRequest(action=actions(*[1] * count), episode_ids=ids, **fields)


def step_reply(count=1, **fields):
    fields = {"rewards": (1.5,) * count, "infos": ({},) * count, **fields}
    return StepReply(observation=observations(count), **fields)


def end(lane, **flags):
    """Return an end of a lane's episode."""
    flags = {"terminated": True, "truncated": False, **flags}
    return Completion(env_index=lane, **flags)
