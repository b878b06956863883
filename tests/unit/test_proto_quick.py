"""The short way for steps says and understands exactly what the long way does."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from rollmesh.ports import (
    Completion,
    EnvContract,
    OddValue,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.spaces.space import Box, Dict, Discrete, MultiBinary, Text
from rollmesh.transport.grpc_client_speech import EnvSpeech
from rollmesh.transport.grpc_server_speech import EnvServerSpeech
from rollmesh.wire import protobuf as wire
from rollmesh.wire._gen import rlmesh_env_v1_pb2 as pb
from rollmesh.wire.dialect import FOREIGN, ROLLMESH
from rollmesh.wire.messages import ErrorBody, Kind, Message
from rollmesh.wire.proto_quick import Template
from rollmesh.wire.proto_values import tag

ONE = tag(1)[0]
SPACES = {
    "one leaf": (Box((4,)), Discrete(3)),
    "three leaves": (
        Dict((("a", Box((2,), np.uint8, 0, 255)), ("b", MultiBinary((3,))), ("c", Box(())))),
        Dict((("x", Discrete(9)), ("y", Box((2,))))),
    ),
    "ragged": (Dict((("a", Box((2,))), ("t", Text(0, 9)))), Text(0, 5)),
}


class Ends:
    """Both ends of a conversation, and the long way beside them."""

    def __init__(self, spaces: str, num_envs: int, dialect: Any) -> None:
        observation, action = SPACES[spaces]
        self.contract = EnvContract(
            id="x", observation_space=observation, action_space=action, num_envs=num_envs
        )
        self.random = random.Random(7)
        self.client = EnvSpeech(self.contract, dialect)
        self.server = EnvServerSpeech(self.contract, dialect, has_lanes=True)
        self.long_client = wire.EnvClientWire(self.contract, dialect)
        self.long_server = wire.EnvServerWire(self.contract, dialect, has_lanes=True)
        self.number = 0

    def value(self, space: Any) -> Any:
        if isinstance(space, Dict):
            return {name: self.value(inner) for name, inner in space.spaces}
        if isinstance(space, Text):
            return "x" * self.random.randint(0, 5)
        if isinstance(space, Discrete):
            return self.random.randrange(space.n)
        if isinstance(space, MultiBinary):
            return np.array([self.random.randint(0, 1) for _ in range(3)], np.int8)
        low = 0 if space.dtype == np.uint8 else -3
        return np.full(space.shape, self.random.randint(low, 100), space.dtype)

    def batch(self, space: Any, rows: int) -> Any:
        return space.codec.encode_many([self.value(space) for _ in range(rows)])

    def reset(self) -> None:
        rows = self.contract.num_envs
        request = ResetRequest(episode_ids=tuple([f"e{row}" for row in range(rows)]))
        [message] = self.server.read(self.client.write(self.next(Kind.RESET, request)))
        observation = self.batch(self.contract.observation_space, rows)
        reply = ResetReply(observation=observation, infos=({},) * rows)
        data = self.server.write(Message(Kind.RESET, message.request_id, reply))
        self.client.read(data)

    def next(self, kind: Kind, body: Any) -> Message:
        self.number += 1
        return Message(kind, self.number, body)

    def step(
        self, *, ids: str = "e", lanes: tuple[int, ...] = (), timeout_ms: int = 300, **given: Any
    ) -> None:
        """Have a step asked and answered, and compare all of it with the long way."""
        rows = len(lanes) or self.contract.num_envs
        request = StepRequest(
            action=self.batch(self.contract.action_space, rows),
            episode_ids=tuple([f"{ids}{row}" for row in range(rows)]),
            env_indices=lanes,
            timeout_ms=timeout_ms,
        )
        asked = self.next(Kind.STEP, request)
        data = self.client.write(asked)
        assert same(pb.JoinRequest, data, self.long_client.write(str(asked.request_id), request))
        [got] = self.server.read(data)
        expected = self.long_server.read(wire.open_env_request(data))
        assert equal(got.body, expected)
        assert got.nbytes == len(data)
        given.setdefault("infos", ({},) * rows)
        reply = StepReply(
            observation=self.batch(self.contract.observation_space, rows),
            rewards=tuple([self.random.choice((0.0, 1.5, -1e300)) for _ in range(rows)]),
            endpoint_total_ns=self.random.choice((0, 127, 128, 10**6, 2**40)),
            **given,
        )
        data = self.server.write(Message(Kind.STEP, got.request_id, reply))
        back = self.client.read(data)
        assert (back.kind, back.request_id, back.nbytes) == (Kind.STEP, asked.request_id, len(data))
        assert equal(back.body, self.long_client.read(self.long_client.open(data), request))
        assert back.body.endpoint_total_ns == reply.endpoint_total_ns
        assert back.body.rewards == reply.rewards


def same(module: Any, data: bytes, other: bytes) -> bool:
    return module.FromString(data) == module.FromString(other)


def equal(one: Any, other: Any) -> bool:
    """Compare two bodies, leaves included."""
    assert type(one) is type(other)
    for name in one.__struct_fields__:
        left, right = getattr(one, name), getattr(other, name)
        if name in ("action", "observation"):
            assert len(left) == len(right)
            assert all(np.array_equal(a, b) for a, b in zip(left, right, strict=True)), name
            assert [getattr(a, "dtype", None) for a in left] == [
                getattr(b, "dtype", None) for b in right
            ]
        else:
            assert left == right, name
    return True


@pytest.mark.parametrize("dialect", [FOREIGN, ROLLMESH], ids=["foreign", "rollmesh"])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("spaces", SPACES)
def test_steps_of_every_kind_in_any_order_are_what_the_long_way_makes_of_them(
    spaces, num_envs, dialect
):
    ends = Ends(spaces, num_envs, dialect)
    ends.reset()
    info = tuple([{"k": row} for row in range(num_envs)])
    over = (Completion(env_index=0, terminated=True, truncated=False),)
    cases: list[dict[str, Any]] = [
        {},
        {"ids": "other"},
        {"timeout_ms": 0},
        {"infos": info},
        {"completions": over},
        {"odd": (OddValue(0, "nan", "observation"),)},
        {"lanes": (num_envs - 1,)},
    ]
    for _ in range(120):
        ends.step(**ends.random.choice(cases))
        for _ in range(ends.random.randint(0, 4)):
            ends.step()


def test_an_error_between_steps_changes_nothing():
    ends = Ends("one leaf", 1, ROLLMESH)
    ends.reset()
    for _ in range(5):
        ends.step()
    request = StepRequest(action=ends.batch(ends.contract.action_space, 1), episode_ids=("e0",))
    asked = ends.next(Kind.STEP, request)
    [got] = ends.server.read(ends.client.write(asked))
    body = ErrorBody(code="busy", message="later", is_recoverable=True, outcome="not_done")
    data = ends.server.write(Message(Kind.ERROR, got.request_id, body))
    assert ends.client.read(data).body == body
    for _ in range(5):
        ends.step()


def message(action: bytes = b"\1\2\3\4", name: str = "17", **more: Any) -> bytes:
    step = pb.StepRequest(episode_ids=["e"], timeout_ms=9, **more)
    step.action.leaves.append(action)
    return pb.JoinRequest(request_id=name, step=step).SerializeToString()


def test_a_template_cuts_out_its_holes_and_fills_them():
    template = Template.learn(message(), ONE)
    assert template is not None
    other = message(b"\0\0\0\0", "12345")
    assert template.match(other) == ([b"\0\0\0\0"], "12345", None)
    assert template.fill([b"\0\0\0\0"], "12345") == other


def test_a_template_takes_nothing_that_differs_elsewhere():
    template = Template.learn(message(), ONE)
    assert template is not None
    good = message(b"\0\0\0\0", "5")
    for place in range(len(good)):
        if good[place : place + 1] == b"\0":  # the hole
            continue
        for flip in (1, 128):
            bad = good[:place] + bytes([good[place] ^ flip]) + good[place + 1 :]
            found = template.match(bad)
            if found is not None:  # the id alone may be another one
                assert same(pb.JoinRequest, bad, template.fill(found[0], found[1]) or b"")
    for end in range(len(good)):
        found = template.match(good[:end])
        assert found is None
    assert template.match(good + b"\x08\x01") is None
    assert template.match(message(b"\0" * 5)) is None


def test_a_template_refuses_what_does_not_fit():
    template = Template.learn(message(), ONE)
    assert template is not None
    assert template.fill([b"\0" * 3], "5") is None
    assert template.fill([], "5") is None
    assert template.fill([b"\0" * 4], "") is None
    assert template.fill([b"\0" * 4], "x" * 128) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        message(name=""),
        message(b""),
        message(b"x" * 9000),
        message() + message(),
        message()[:-1],
        pb.JoinRequest(request_id="5", close=pb.CloseEnvsRequest()).SerializeToString(),
    ],
    ids=range(7),
)
def test_there_is_no_template_of_odd_messages(data):
    template = Template.learn(data, ONE)
    assert template is None or template.match(data) is None
