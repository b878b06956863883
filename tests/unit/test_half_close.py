"""A gRPC client that says all it has to say and then listens: half-closed streams have answers."""

from __future__ import annotations

import queue

import numpy as np
import pytest

from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.ports import AdapterContext, EpisodeInfo, PredictRequest
from rollmesh.transport.address import parse_address
from rollmesh.transport.grpc_common import target_of
from rollmesh.transport.grpc_loading import grpc
from rollmesh.wire import protobuf as wire
from rollmesh.wire._gen import rlmesh_model_v1_pb2 as model_pb
from rollmesh.wire.dialect import FOREIGN
from tests.unit.session_toys import until
from tests.unit.test_model_server import CONTRACT, Batched, Policy


class Stranger:
    """A released client of a served model, by hand."""

    def __init__(self, server):
        self._channel = grpc.insecure_channel(target_of(parse_address(server.address)))
        self._requests = queue.SimpleQueue()
        join = self._channel.stream_stream(f"/{wire.MODEL_SERVICE}/Join")
        self.responses = join(iter(self._requests.get, None), timeout=20)

    def say(self, wire_id, body):
        data = wire.write_model_request(wire_id, body, FOREIGN, lambda *_: None, CONTRACT)
        self._requests.put(data)

    def resolve(self, wire_id="r"):
        context = AdapterContext("session", "env", wire_id)
        self.say(wire_id, wire.ResolveRoute(context=context, contract=CONTRACT))

    def predict(self, number):
        self.say(
            f"p{number}",
            PredictRequest(
                context=AdapterContext("session", "env", f"p{number}"),
                observation=[np.full((1, 1), number, np.float32)],
                episode_info=(EpisodeInfo(f"e{number}", 1),),
            ),
        )

    def half_close(self):
        self._requests.put(None)

    def hear(self):
        return model_pb.JoinResponse.FromString(next(self.responses))

    def hear_rest(self):
        return [model_pb.JoinResponse.FromString(data) for data in self.responses]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.responses.cancel()
        self._channel.close()


@pytest.fixture(params=[Policy, Batched])
def policy(request):
    return request.param()


@pytest.fixture
def server(policy):
    with ModelServer(policy, "tcp://127.0.0.1:0", ServerOptions(close_timeout_s=2.0)) as running:
        yield running
        policy.gate.set()


def test_a_route_is_answered_after_the_half_close(server):
    with Stranger(server) as client:
        client.resolve()
        client.half_close()
        (answer,) = client.hear_rest()
        assert answer.WhichOneof("response") == "resolve_adapter"
        assert client.responses.code() is grpc.StatusCode.OK
    until(lambda: server.sessions == 0)


def test_predicts_under_way_are_answered_after_the_half_close(server, policy):
    with Stranger(server) as client:
        client.resolve()
        client.hear()
        policy.gate.clear()
        for number in range(3):
            client.predict(number)
        client.half_close()
        until(lambda: [len(one.flights) for one in server._all_sessions()] == [3])
        policy.gate.set()
        answers = client.hear_rest()
        assert sorted(answer.request_id for answer in answers) == ["p0", "p1", "p2"]
        assert {answer.WhichOneof("response") for answer in answers} == {"predict"}
        assert client.responses.code() is grpc.StatusCode.OK
    until(lambda: server.sessions == 0)
    assert sorted(policy.ended) == ["e0", "e1", "e2"]


def test_a_client_that_gives_up_after_its_half_close_is_not_waited_for(server, policy):
    with Stranger(server) as client:
        client.resolve()
        client.hear()
        policy.gate.clear()
        client.predict(0)
        client.half_close()
        until(lambda: [len(one.flights) for one in server._all_sessions()] == [1])
        client.responses.cancel()
        until(lambda: server.sessions == 0)
        policy.gate.set()
