"""Remote model ports, and `RemoteModel`: what is asked in place of a local policy."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest

import rollmesh
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.model_client import (
    ModelRoute,
    RemoteModelPort,
    connect_model,
)
from rollmesh.endpoint.clients.remote_model import RemoteModel
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.errors import (
    InvalidSpec,
    InvalidValue,
    ModelFailed,
    PortTimeout,
    SessionLost,
)
from rollmesh.limits import Limits
from rollmesh.ports import (
    ResetAdapterRequest,
)
from rollmesh.spaces.space import Discrete
from rollmesh.wire.messages import Kind
from tests.unit.env_toys import Count
from tests.unit.model_toys import (
    ACTIONS,
    CONTRACT,
    OBSERVATIONS,
    OPTIONS,
    EchoPort,
    action,
    ask,
    context,
    release,
    route,
)
from tests.unit.session_toys import ToyServer, mem_address


class Wide(Count):
    def __init__(self, **options):
        super().__init__(high=2**31, **options)


@pytest.fixture
def server():
    with ToyServer(EchoPort(), service="model") as running:
        yield running


# ----------------------------------------------------------------------------- one group


def test_the_route_is_made_known_before_the_first_predict(server):
    port = connect_model(server.address, route(), OPTIONS)
    assert isinstance(port, RemoteModelPort)
    assert server.requests == [Kind.RESOLVE]
    reply = port.predict(ask(2))
    assert action(reply) == 2
    assert reply.request_bytes == 8
    assert reply.response_bytes > 8
    port.reset_adapter(ResetAdapterRequest(context("reset_adapter"), ("e0",)))
    port.release_adapter(release())
    assert server.port.forgotten == ["e0"]
    assert server.port.released == ["done"]
    assert server.closed == ["done"]


def test_another_route_is_made_known_when_it_comes(server):
    port = connect_model(server.address, ModelRoute(contract=CONTRACT), OPTIONS, closes=False)
    assert server.requests == []
    port.predict(ask(1))
    port.predict(ask(1))
    port.release_adapter(release())
    port.predict(ask(1))
    wanted = [Kind.RESOLVE, Kind.PREDICT, Kind.PREDICT, Kind.RELEASE_ADAPTER]
    assert server.requests == [*wanted, Kind.RESOLVE, Kind.PREDICT]
    port.close(1.0)


@pytest.mark.parametrize("horizon", [None, 3])
def test_the_execution_horizon_is_told_with_the_route(server, horizon):
    told = []

    def note(connection, message):
        told.append(message.body.execution_horizon)
        connection.send(server._execute(message))

    server.plan(Kind.RESOLVE, note, note)
    rollmesh.evaluate(server.address, Wide, episodes=1, execution_horizon=horizon)
    with rollmesh.Session(server.address, Wide, execution_horizon=horizon):
        pass
    assert told == [horizon, horizon]


@pytest.mark.parametrize("cut", ["drop", "drop_after"])
def test_p2_a_predict_cut_by_a_drop_is_asked_once(server, cut):
    port = connect_model(server.address, route(), OPTIONS)
    server.plan(Kind.PREDICT, cut)
    assert action(port.predict(ask(1, timeout_ms=5000))) == 1
    assert server.port.asked == [["e0"]]
    port.release_adapter(release())


def test_a_lost_session_is_opened_anew_by_the_next_predict(server):
    port = connect_model(server.address, route(), OPTIONS)
    port.predict(ask(1))
    server.session_id = None
    server.drop_connections()
    with pytest.raises(SessionLost):
        port.predict(ask(1))
    port.reset_adapter(ResetAdapterRequest(context(), ("e0",)))  # there is nothing to forget
    assert server.port.forgotten == []
    assert action(port.predict(ask(2))) == 2
    assert server.requests[-2:] == [Kind.RESOLVE, Kind.PREDICT]
    port.release_adapter(release())


def test_p1_a_silent_model_is_given_up_at_the_deadline(server):
    port = connect_model(server.address, route(), OPTIONS)
    server.plan(Kind.PREDICT, "silent")
    with pytest.raises(PortTimeout, match="PREDICT got no answer"):
        port.predict(ask(1, timeout_ms=100))
    port.release_adapter(release())


def test_a_model_that_takes_nobody_in_is_told_from_a_server_that_is_gone(server):
    server.plan(Kind.RESOLVE, "silent")
    limits = Limits(model_connect_s=0.3)
    with pytest.raises(PortTimeout, match=r"at work for another client.*raise limits"):
        connect_model(server.address, route(), OPTIONS, limits=limits)


def test_an_env_server_is_no_model(server):
    server.welcomes = [_refusal()]
    with pytest.raises(rollmesh.ModelFailed, match="serves an env, the client wants a model"):
        rollmesh.evaluate(server.address, Count, episodes=1)


def _refusal():
    from rollmesh.wire.messages import ErrorBody

    return ErrorBody(
        code="incompatible", message="this address serves an env, the client wants a model"
    )


# -------------------------------------------------------------------------------- product


@pytest.mark.parametrize("address", ["rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0"])
def test_p8_a_served_model_gives_the_same_episodes(address):
    def steps(result):
        return [(e.index, e.seed, e.steps, e.total_reward) for e in result.episodes]

    local = rollmesh.evaluate("random", Wide, episodes=6, base_seed=3)
    with ModelServer("random", address) as server:
        for env, width in ((Wide, None), (Wide(), None), (Wide, 3), ([Wide, Wide], None)):
            served = rollmesh.evaluate(server.address, env, episodes=6, base_seed=3, num_envs=width)
            assert steps(served) == steps(local)


def test_a_model_fault_names_the_other_side():
    def policy(observation):
        raise ValueError("no weights")

    with ModelServer(policy, "rollmesh+unix://") as server:
        with pytest.raises(rollmesh.ModelFailed, match="no weights") as caught:
            rollmesh.evaluate(server.address, Wide, episodes=1)
        assert server.address in str(caught.value)
        assert "in policy\n" in str(caught.value)


# ---------------------------------------------------------------------------- RemoteModel


def lean(observation, *, horizon=None):
    del horizon
    return int(observation[0]) % 3


@pytest.fixture
def address():
    with ModelServer(lean, mem_address()) as server:
        yield server.address


def test_a_remote_model_is_asked_by_hand(address):
    env = Wide()
    with RemoteModel(address) as model:
        model.configure(env.observation_space, env.action_space)
        model.configure(env.observation_space, env.action_space)
        model.reset(seed=1)
        assert model.predict(np.array([4, 0], np.float32)) == 1
        assert model.predict(np.array([5, 0], np.float32)) == 2
        model.reset()
        assert model.predict(np.array([3, 0], np.float32)) == 0
    model.close()
    with pytest.raises(InvalidSpec, match="this model is closed"):
        model.predict(np.zeros(2, np.float32))


def test_a_chunk_is_executed_action_by_action():
    calls = []

    class Planner:
        def predict_chunk(self, observation):
            calls.append(observation)
            return np.array([0, 1, 2])

    with ModelServer(Planner(), mem_address()) as server, RemoteModel(server.address) as model:
        model.configure(OBSERVATIONS, ACTIONS, execution_horizon=2)
        model.reset(seed=1)
        assert [model.predict(np.zeros(2, np.float32)) for _ in range(4)] == [0, 1, 0, 1]
        assert len(calls) == 2


def test_a_remote_model_says_what_is_wrong(address):
    with RemoteModel(address) as model:
        with pytest.raises(InvalidSpec, match=r"call configure\(observation_space"):
            model.predict(np.zeros(2, np.float32))
        model.configure(OBSERVATIONS, ACTIONS)
        with pytest.raises(InvalidValue, match="observation"):
            model.predict(np.zeros(5, np.float32))
        with pytest.raises(InvalidSpec, match="make a RemoteModel per env"):
            model.configure(OBSERVATIONS, Discrete(9))


def test_a_remote_model_that_nobody_serves_says_so():
    model = RemoteModel("mem://nobody", limits=Limits(model_connect_s=0.1))
    with pytest.raises(ModelFailed, match=r"model\.connect failed.*mem://nobody"):
        model.configure(OBSERVATIONS, ACTIONS)
    with pytest.raises(InvalidSpec, match="wants host:port"):
        RemoteModel("no address")


def test_a_remote_model_is_for_one_thread_at_a_time(server):
    model = RemoteModel(server.address, options=OPTIONS)
    model.configure(OBSERVATIONS, ACTIONS)
    go_on, errors = threading.Event(), []

    def hold(connection, message):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(5)
        connection.send(server._execute(message))

    def other():
        try:
            model.predict(np.zeros(2, np.float32))
        except InvalidSpec as error:
            errors.append(str(error))
        go_on.set()

    server.plan(Kind.PREDICT, hold)
    model.predict(np.zeros(2, np.float32))
    assert go_on.is_set()
    assert "another thread is in predict()" in errors[0]
    model.close()


def test_a_remote_model_is_good_for_evaluate_and_copies_by_address(address):
    with RemoteModel(address) as model:
        result = rollmesh.evaluate(model, Wide, episodes=2)
        assert result.model == address
        again = copy.deepcopy(model)
        assert again.address == address
        again.close()


def test_a_copy_holds_no_token():
    secret = "0123456789abcdef0123456789abcdef"
    model = RemoteModel("mem://nobody", options=client_options(token=secret, environ={}))
    assert secret not in repr(model.__reduce__())
    assert copy.copy(model).options.token is None
