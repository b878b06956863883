"""The model server: sessions apart, batches across clients, slow and late calls, resuming."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from dataclasses import replace
from functools import partial

import gymnasium
import msgspec
import numpy as np
import pytest

import rollmesh
from rollmesh.endpoint.servers import reading_loan
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.model_session import ModelSession
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import ConnectionLost, EndpointFault, InvalidSpec
from rollmesh.ports import (
    AdapterContext,
    EnvContract,
    EpisodeInfo,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
)
from rollmesh.spaces.space import Box, Discrete
from rollmesh.transport import grpc_engine, grpc_listener
from rollmesh.wire.contract import encode_contract
from rollmesh.wire.messages import Close, Done, ErrorBody, Kind, Resolve, ResolveReply
from tests.unit.serving_toys import LIMIT_S, Client, close_clients
from tests.unit.test_env_server import wait_for

CONTRACT = EnvContract(
    id="toy", observation_space=Box((1,)), action_space=Box((1,), np.float32, -1e6, 1e6)
)
OTHER = EnvContract(id="other", observation_space=Box((2,)), action_space=Discrete(4))


class Policy:
    """Doubles its observation; notes its calls, threads and episodes."""

    made: list[Policy] = []

    def __init__(self):
        self.threads = {threading.get_ident()}
        self.started, self.ended = [], []
        self.closed = self.loaded = 0
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        type(self).made.append(self)

    def load(self):
        self.loaded += 1

    def _work(self, observation):
        self.threads.add(threading.get_ident())
        self.entered.release()
        assert self.gate.wait(LIMIT_S)
        return observation * 2

    def predict(self, observation):
        if observation[0] == -1:
            raise ValueError("no plan")
        return self._work(observation)

    def on_episode_start(self, context):
        self.started.append(context.episode_id)

    def on_episode_end(self, context):
        self.ended.append(context.episode_id)

    def close(self):
        self.threads.add(threading.get_ident())
        self.closed += 1


class Batched(Policy):
    """The same with a batch corner."""

    made: list[Policy] = []

    def __init__(self):
        super().__init__()
        self.rows = []

    def predict_batch(self, observations):
        self.rows.append(len(observations))
        return self._work(observations)


@contextlib.contextmanager
def serving(model, address="rollmesh+unix://", **options):
    """Give a started server."""
    try:
        with ModelServer(model, address, ServerOptions(**options)) as server:
            yield server
    finally:
        close_clients()


class ModelClient(Client):
    """A raw client of a model."""

    def __init__(self, server, **given):
        super().__init__(server.address, service="model", **given)
        self.enter()

    def context(self, env_id):
        return AdapterContext("mine", env_id, f"{env_id}:{next(self.ids)}")

    def resolve(self, env_id="env", contract=CONTRACT):
        body = self.call(
            Kind.RESOLVE,
            Resolve(context=self.context(env_id), contract=encode_contract(contract)),
        )
        if isinstance(body, ResolveReply):
            self.bind(contract)
        return body

    def request(self, value=1.0, episode="e", env_id="env", **given):
        return PredictRequest(
            context=self.context(env_id),
            observation=[np.full((1, 1), value, np.float32)],
            episode_info=(EpisodeInfo(episode, 7),),
            **given,
        )

    def predict(self, value=1.0, episode="e", env_id="env", request_id=None, **given):
        request = self.request(value, episode, env_id, **given)
        body = self.call(Kind.PREDICT, request, request_id)
        if isinstance(body, PredictReply):
            assert body.context == request.context
            return body.frames[0][0].tolist()
        return body

    def reset_adapter(self, *episodes, env_id="env"):
        return self.call(Kind.RESET_ADAPTER, ResetAdapterRequest(self.context(env_id), episodes))

    def release(self, env_id="env"):
        return self.call(
            Kind.RELEASE_ADAPTER, ReleaseAdapterRequest(self.context(env_id), "done", 1.0)
        )


ADDRESSES = ["rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0", "mem://model-server-test"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_route_over_each_transport(address):
    with serving(Policy(), address) as server:
        client = ModelClient(server)
        assert isinstance(client.resolve(), ResolveReply)
        assert client.predict(3.0) == [[6.0]]
        assert isinstance(client.reset_adapter("e"), Done)
        assert isinstance(client.release(), Done)
        client.leave()


def test_c51_serve_builds_calls_and_closes_on_the_calling_thread():
    Policy.made.clear()
    server = ModelServer(Policy)
    home = []

    def serve():
        home.append(threading.get_ident())
        server.serve()

    thread = threading.Thread(target=serve)
    thread.start()
    wait_for(lambda: server.is_serving)
    client = ModelClient(server)
    client.resolve()
    assert client.predict(1.0) == [[2.0]]
    server.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    (policy,) = Policy.made
    assert policy.threads == set(home)
    assert (policy.loaded, policy.closed) == (1, 1)
    assert policy.ended == ["e"]
    close_clients()


def test_one_policy_serves_all_clients_and_spaces():
    class Any:
        def __init__(self):
            Any.made = getattr(Any, "made", 0) + 1

        def predict(self, observation):
            return observation[:1] if len(observation) == 1 else 2

    with serving(Any) as server:
        one, two = ModelClient(server), ModelClient(server)
        one.resolve()
        two.resolve(contract=OTHER)
        assert one.predict(5.0) == [[5.0]]
        request = PredictRequest(
            context=two.context("env"),
            observation=[np.zeros((1, 2), np.float32)],
            episode_info=(EpisodeInfo("x"),),
        )
        assert two.call(Kind.PREDICT, request).frames[0][0].tolist() == [2]
        assert Any.made == 1


def test_an_instance_stays_open():
    policy = Policy()
    with serving(policy):
        pass
    assert policy.closed == 0


def test_a_predict_of_an_env_that_was_not_resolved_is_refused():
    with serving(Policy()) as server:
        client = ModelClient(server)
        client.resolve()
        assert client.predict(env_id="other").code == "not_configured"
        assert client.predict() == [[2.0]]


@pytest.mark.parametrize("width", [1, 40_000], ids=["small", "large"])
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_predict_before_anything_was_resolved_is_refused_and_the_client_goes_on(address, width):
    contract = EnvContract(id="wide", observation_space=Box((width,)), action_space=Box((width,)))
    with serving(Policy(), address) as server:
        client = ModelClient(server)
        client.bind(contract)
        observation = [np.zeros((1, width), np.float32)]
        request = msgspec.structs.replace(client.request(), observation=observation)
        assert client.call(Kind.PREDICT, request).code == "not_configured"
        assert isinstance(client.resolve(), ResolveReply)
        assert client.predict() == [[2.0]]


def test_a_resolve_without_a_contract_is_refused():
    with serving(Policy()) as server:
        client = ModelClient(server)
        bad = Resolve(context=client.context("env"))
        assert client.call(Kind.RESOLVE, bad).code == "invalid_request"
        bad = Resolve(context=client.context("env"), contract=b"nonsense")
        assert client.call(Kind.RESOLVE, bad).code == "invalid_request"


def test_other_spaces_need_another_connection_or_a_release():
    with serving(Policy()) as server:
        client = ModelClient(server)
        client.resolve()
        assert "other spaces" in client.resolve("b", OTHER).message
        client.release()
        assert isinstance(client.resolve("b", OTHER), ResolveReply)


def test_an_error_of_the_policy_is_told_and_the_route_goes_on():
    with serving(Policy()) as server:
        client = ModelClient(server)
        client.resolve()
        body = client.predict(-1.0)
        assert (body.code, body.error_class, body.message) == ("internal", "ValueError", "no plan")
        assert client.predict(1.0) == [[2.0]]


def test_a_policy_that_cannot_be_built_fails_the_start():
    def broken():
        raise RuntimeError("no weights")

    with pytest.raises(EndpointFault, match="no weights"):
        ModelServer(broken, options=ServerOptions(model_kwargs={})).start()
    with pytest.raises(EndpointFault, match="no weights"):
        ModelServer(broken, options=ServerOptions(model_kwargs={})).serve()
    with pytest.raises(InvalidSpec):
        ModelServer(3)


def test_a_load_that_fails_is_told_to_who_resolves():
    class Bad(Policy):
        def load(self):
            raise OSError("checkpoint is gone")

    with serving(Bad()) as server:
        client = ModelClient(server)
        assert "checkpoint is gone" in client.resolve().message


# ------------------------------------------------------- the model's thread reads for one client


def test_a_lone_client_is_heard_while_the_model_works():
    policy = Policy()
    with serving(policy) as server:
        client = ModelClient(server)
        client.resolve()
        assert client.predict(1.0) == [[2.0]]
        policy.gate.clear()
        predict = client.send(Kind.PREDICT, client.request(2.0))
        ping = client.send(Kind.PING, None)
        assert client.connection.receive(LIMIT_S).request_id == ping
        policy.gate.set()
        reply = client.connection.receive(LIMIT_S)
        assert (reply.request_id, reply.body.frames[0][0].tolist()) == (predict, [[4.0]])
        assert client.predict(3.0) == [[6.0]]


def test_a_second_client_is_served_beside_a_lone_one():
    policy = Policy()
    with serving(policy) as server:
        clients = [ModelClient(server)]
        clients[0].resolve()
        assert clients[0].predict(1.0, episode="0") == [[2.0]]
        for number in (1, 2):
            clients.append(ModelClient(server))
            clients[number].resolve()
            for value in range(3):
                for name, client in enumerate(clients):
                    assert client.predict(value, episode=str(name)) == [[2.0 * value]]
        for client in clients[1:]:
            client.leave()
        wait_for(lambda: server.sessions == 1)
        assert clients[0].predict(1.0, episode="0") == [[2.0]]
        assert len(policy.threads) == 2, "the one that made it here, and the model's own"


def test_a_lone_client_that_was_cut_off_goes_on():
    policy = Policy()
    with serving(policy) as server:
        client = ModelClient(server)
        client.resolve()
        assert client.predict(1.0) == [[2.0]]
        policy.gate.clear()
        request = client.request(2.0)
        number = client.send(Kind.PREDICT, request)
        for _ in range(2):
            assert policy.entered.acquire(timeout=LIMIT_S)
        client.vanish()
        back = ModelClient(server, session_id=client.welcome.session_id, ids=client.ids)
        assert back.welcome.is_resumed
        back.bind(CONTRACT)
        back.send(Kind.PREDICT, request, number)
        policy.gate.set()
        reply = back.connection.receive(LIMIT_S)
        assert (reply.request_id, reply.body.frames[0][0].tolist()) == (number, [[4.0]])
        assert back.predict(3.0) == [[6.0]]


# ----------------------------------------------------------------------------------- apart


def test_nobody_can_use_or_end_the_episodes_of_another():
    policy = Policy()
    with serving(policy) as server:
        mine, theirs = ModelClient(server), ModelClient(server)
        for client in (mine, theirs):
            client.resolve()  # both call their env "env"
        mine.predict(episode="m")
        assert "another route" in theirs.predict(episode="m").message
        theirs.predict(episode="t")
        assert isinstance(theirs.reset_adapter("m"), Done)
        assert isinstance(theirs.release(), Done)
        assert policy.ended == ["t"]
        assert mine.predict(episode="m") == [[2.0]]
        assert policy.started == ["m", "t"]


@pytest.mark.parametrize("is_thread_safe", [False, True])
@pytest.mark.parametrize("kind", [Policy, Batched])
def test_episodes_of_a_client_that_is_away_go_to_whoever_asks_for_them(kind, is_thread_safe):
    policy = kind()
    with serving(policy, thread_safe=is_thread_safe) as server:
        old = ModelClient(server)
        old.resolve()
        old.predict(episode="e1")
        old.predict(episode="e2")
        old.vanish()
        wait_for(server._home.owners["e1"].is_away)
        new = ModelClient(server)
        new.resolve()
        assert new.predict(5.0, episode="e1") == [[10.0]]
        assert policy.ended == ["e1"], "it was ended where it was, and nothing else"
        assert policy.started == ["e1", "e2", "e1"]
        back = ModelClient(server, session_id=old.welcome.session_id, ids=old.ids)
        assert back.welcome.is_resumed
        back.bind(CONTRACT)
        assert "another route" in back.predict(episode="e1").message
        assert back.predict(episode="e2") == [[2.0]]
        assert "another route" in new.predict(episode="e2").message


@pytest.mark.parametrize("kind", [Policy, Batched])
def test_a_client_that_leaves_has_its_episodes_ended(kind):
    policy = kind()
    with serving(policy, resume_grace_s=0.0) as server:
        mine, theirs = ModelClient(server), ModelClient(server)
        for name, client in [("m", mine), ("t", theirs)]:
            client.resolve()
            client.predict(episode=name)
        mine.leave()
        wait_for(lambda: policy.ended == ["m"])
        theirs.vanish()
        wait_for(lambda: policy.ended == ["m", "t"])
        wait_for(lambda: not server.sessions)


def test_more_clients_than_places_are_told_busy():
    with serving(Policy(), max_sessions=1) as server:
        first = ModelClient(server)
        with Client(server.address, service="model") as other:
            assert other.enter().code == "busy"
        first.leave()
        wait_for(lambda: not server.sessions)
        assert ModelClient(server).welcome.session_id


# -------------------------------------------------------------------------------- batching


def test_clients_share_a_batch_and_get_their_own_rows():
    policy = Batched()
    with serving(policy, max_wait_s=0.05) as server:
        clients = [ModelClient(server) for _ in range(3)]
        for client in clients:
            client.resolve()
        policy.gate.clear()
        first = clients[0].send(Kind.PREDICT, clients[0].request(1.0, "e0"))
        assert policy.entered.acquire(timeout=LIMIT_S)
        for number, client in enumerate(clients[1:], 1):
            client.send(Kind.PREDICT, client.request(10.0 * number, f"e{number}"))
        wait_for(lambda: sum(len(s.flights) for s in server._sessions.values()) == 3)
        policy.gate.set()
        answers = [client.connection.receive(LIMIT_S) for client in clients]
        assert answers[0].request_id == first
        assert [a.body.frames[0][0].tolist() for a in answers] == [[[2.0]], [[20.0]], [[40.0]]]
        assert policy.rows == [2]  # a single row goes to the single corner


def test_batching_can_be_turned_off():
    policy = Batched()
    with serving(policy, max_batch=1) as server:
        client = ModelClient(server)
        client.resolve()
        assert client.predict() == [[2.0]]
        assert policy.rows == []


def test_a_thread_safe_policy_is_called_from_several_threads_at_once():
    policy = Policy()
    with serving(policy, thread_safe=True) as server:
        one, two = ModelClient(server), ModelClient(server)
        for client in (one, two):
            client.resolve()
        policy.gate.clear()
        for name, client in [("a", one), ("b", two)]:
            client.send(Kind.PREDICT, client.request(1.0, name))
        for _ in range(2):
            assert policy.entered.acquire(timeout=LIMIT_S)
        policy.gate.set()
        for client in (one, two):
            assert isinstance(client.connection.receive(LIMIT_S).body, PredictReply)


# ------------------------------------------------------------------------------ slow, late


def test_c54_a_slow_first_call_keeps_nobody_from_being_heard():
    policy = Policy()
    policy.gate.clear()
    with serving(policy) as server:
        first = ModelClient(server)
        first.resolve()
        slow = first.send(Kind.PREDICT, first.request(1.0))
        assert policy.entered.acquire(timeout=LIMIT_S)
        begun = time.monotonic()
        second = ModelClient(server)
        assert second.call(Kind.PING, None) is None
        assert first.call(Kind.PING, None) is None
        assert server.is_serving
        assert time.monotonic() - begun < 2
        policy.gate.set()
        reply = first.connection.receive(LIMIT_S)
        assert reply.request_id == slow
        assert isinstance(reply.body, PredictReply)


def test_p1_a_late_predict_is_answered_at_its_deadline_and_ends_the_session():
    policy = Policy()
    policy.gate.clear()
    with serving(policy) as server:
        client, other = ModelClient(server), ModelClient(server)
        client.resolve()
        begun = time.monotonic()
        body = client.predict(timeout_ms=100)
        assert body.code == "timeout"
        assert 0.09 < time.monotonic() - begun < 0.6
        assert not server.is_serving
        assert client.predict().code == "not_ready"
        policy.gate.set()
        other.resolve()
        assert other.predict(5.0, "o") == [[10.0]]
        assert server.is_serving
        assert isinstance(client.call(Kind.CLOSE, Close()), Done)


def test_p2_a_predict_that_was_done_is_answered_and_not_done_again():
    policy = Policy()
    with serving(policy) as server:
        client = ModelClient(server)
        client.resolve()
        first = client.predict(4.0, request_id=90)
        client.vanish()
        ids = itertools.count(next(client.ids) + 100)
        other = ModelClient(server, session_id=client.welcome.session_id, ids=ids)
        assert other.welcome.is_resumed
        other.bind(CONTRACT)
        body = other.call(Kind.PREDICT, other.request(4.0), 90)
        assert body.frames[0][0].tolist() == first
        assert policy.entered._value == 1
        assert other.predict(5.0) == [[10.0]]


def test_too_many_requests_under_way_are_refused():
    policy = Policy()
    policy.gate.clear()
    with serving(policy) as server:
        client = ModelClient(server)
        client.resolve()
        for number in range(8):
            client.send(Kind.PREDICT, client.request(1.0, f"e{number}"))
        assert client.predict(1.0, "e9").code == "busy"
        policy.gate.set()
        for _ in range(8):
            assert isinstance(client.connection.receive(LIMIT_S).body, PredictReply)


def test_one_request_per_lane_may_be_under_way():
    policy = Policy()
    policy.gate.clear()
    with serving(policy) as server:
        client = ModelClient(server)
        for env_id, lanes in (("small", 2), ("wide", 10)):
            client.resolve(env_id, replace(CONTRACT, num_envs=lanes))
        for number in range(12):
            client.send(Kind.PREDICT, client.request(1.0, f"e{number}", "wide"))
        assert client.predict(1.0, "e12", "wide").code == "busy"
        policy.gate.set()
        for _ in range(12):
            assert isinstance(client.connection.receive(LIMIT_S).body, PredictReply)


def test_the_server_can_be_ended_while_clients_are_there():
    policy = Policy()
    with serving(policy) as server:
        client = ModelClient(server)
        client.resolve()
        client.predict()
        server.close()
        assert server.wait(LIMIT_S)
        with pytest.raises(ConnectionLost):
            client.predict()
    assert policy.ended == ["e"]


def test_a_model_port_is_served_as_it_is():
    class Port:
        def __init__(self):
            self.contexts = []

        def predict(self, request):
            self.contexts.append(request.context)
            frames = ([request.observation[0] + 1],)
            return PredictReply(context=request.context, frames=frames)

        def reset_adapter(self, request):
            self.contexts.append(request.context)

        def release_adapter(self, request):
            self.contexts.append(request.context)

    port = Port()
    with serving(port) as server:
        one, two = ModelClient(server), ModelClient(server)
        for name, client in [("a", one), ("b", two)]:
            client.resolve()
            assert client.predict(1.0, name) == [[2.0]]
        assert port.contexts[0].env_id != port.contexts[1].env_id
        body = one.release()
        assert isinstance(body, Done), body
        assert not isinstance(body, ErrorBody)


# ------------------------------------------------------------------------- lending the reading


def loans(monkeypatch):
    """Return a list that gets an entry whenever the model's thread is lent the reading."""
    made, lend = [], ModelSession._lend

    def counting(self, *given):
        made.append(self)
        lend(self, *given)

    monkeypatch.setattr(ModelSession, "_lend", counting)
    return made


def kept_back(sent, parts, total, timeout_s):
    """Stand for `Stream.write`: keep what should be written."""
    sent.extend(parts)
    return total


@pytest.mark.parametrize("address", ADDRESSES[:2])
def test_a_request_that_comes_in_parts_while_the_reading_is_lent_is_answered(address, monkeypatch):
    lent = loans(monkeypatch)
    with serving(Policy(), address) as server:
        client = ModelClient(server)
        client.resolve()
        assert client.predict(3.0) == [[6.0]]
        for value in (4.0, 5.0):
            sent, wait = [], threading.Event()
            stream = client.connection._stream
            with monkeypatch.context() as patch:
                patch.setattr(stream, "write", partial(kept_back, sent))
                client.send(Kind.PREDICT, client.request(value), 1000 + int(value))
            data = b"".join(bytes(memoryview(part).cast("B")) for part in sent)
            stream.write([data[:60]], 60, None)
            wait.wait(10 * reading_loan.READ_S)  # far longer than it is waited for a request
            stream.write([data[60:]], len(data) - 60, None)
            reply = client.connection.receive(LIMIT_S)
            assert reply.body.frames[0][0].tolist() == [[2 * value]]
        assert lent
        client.leave()


@pytest.mark.parametrize("engine", ["DirectEngine", "PlainEngine"])
def test_pauses_between_requests_end_no_grpc_session(engine, monkeypatch, caplog):
    caplog.set_level("WARNING", "rollmesh")
    lent = loans(monkeypatch)
    monkeypatch.setattr(grpc_listener, "make_engine", getattr(grpc_engine, engine))
    space = gymnasium.spaces.Box(-1e6, 1e6, (1,), np.float32)
    with (
        serving(Policy(), "tcp://127.0.0.1:0") as server,
        rollmesh.RemoteModel(server.address, transport="grpc") as model,
    ):
        model.configure(space, space)
        model.reset()
        for value in (1.0, 2.0, 3.0):
            assert model.predict(np.full(1, value, np.float32)).tolist() == [2 * value]
            threading.Event().wait(10 * reading_loan.READ_S)
    assert bool(lent) == (engine == "DirectEngine")
    assert "resuming" not in caplog.text
