"""The env server: places, queue, order of calls, deadlines, resuming, lanes, several addresses."""

from __future__ import annotations

import itertools
import os
import threading
import time

import numpy as np
import pytest

from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import ConnectionLost, EndpointFault, InvalidSpec, ListenFailed
from rollmesh.ports import (
    REBUILD,
    SUBSET_STEP,
    AdapterContext,
    AutoresetMode,
    ResetReply,
    StepReply,
)
from rollmesh.transport.security import Token
from rollmesh.wire.messages import (
    Cancel,
    Close,
    Configure,
    Done,
    ErrorBody,
    Kind,
    Probe,
    Rebuild,
    Render,
    RenderReply,
    Resolve,
    Shutdown,
)
from tests.toys import ToyEnv
from tests.unit.serving_toys import LIMIT_S, Client, Counter, entered, serving

SECRET = "0123456789abcdef0123456789abcdef"
ADDRESSES = ["rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0", "mem://env-server-test"]


def wait_for(condition):
    """Wait until something is so; asserts that it becomes so."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.005)


class Made:
    """A factory that remembers what it made."""

    def __init__(self, kind=Counter):
        self.kind = kind
        self.envs = []
        self.threads = []

    def __call__(self):
        self.threads.append(threading.current_thread())
        self.envs.append(self.kind())
        return self.envs[-1]


# ---------------------------------------------------------------------------------- a session


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_episode_over_each_transport(address):
    with serving(Counter, address) as server, entered(server) as client:
        assert client.contract == server.contract
        reply = client.reset(seeds=(3,))
        assert isinstance(reply, ResetReply)
        assert reply.infos[0] == {"seed": 3}
        assert reply.endpoint_total_ns > 0
        for t in range(1, 4):
            reply = client.step()
            assert isinstance(reply, StepReply)
            assert reply.observation[0].tolist() == [[t, 1, 0, 0]]
            assert reply.rewards == (1.0,)
        client.leave()


class TooLarge(Counter):
    """Observes more than a message may hold."""

    def __init__(self):
        import gymnasium

        super().__init__()
        self.observation_space = gymnasium.spaces.Box(0, 255, (2**20, 400), np.uint8)


@pytest.mark.parametrize("way", ["start", "serve"])
def test_an_env_that_no_client_could_be_told_of_is_refused_at_the_start(way):
    server = EnvServer(TooLarge, "mem://too-large")
    with pytest.raises(InvalidSpec, match=r"TooLarge cannot be served: observation: .* allowed"):
        getattr(server, way)()


def test_several_addresses_serve_the_same_env():
    factory = Made()
    with serving(factory, ADDRESSES) as server:
        assert len(server.addresses) == 3
        assert ":0" not in server.addresses[1]
        for address in server.addresses:
            client = Client(address)
            client.enter()
            assert isinstance(client.reset(), ResetReply)
            client.leave()
    assert [env.closed for env in factory.envs] == [1] * len(factory.envs)


def test_c68_calls_out_of_order_get_one_clear_error_each():
    with serving(Counter()) as server:
        client = entered(server)
        assert client.step().code == "not_ready"
        assert isinstance(client.call(Kind.RENDER, Render()), RenderReply)
        assert isinstance(client.reset(), ResetReply)
        assert isinstance(client.reset(), ResetReply)
        assert isinstance(client.step(), StepReply)
        assert isinstance(client.call(Kind.CLOSE, Close()), Done)
        with pytest.raises(ConnectionLost):
            client.step()
        with entered(server) as other:
            assert "reset it before" in other.step().message
            assert isinstance(other.reset(), ResetReply)
            assert isinstance(other.step(), StepReply)


def test_ping_probe_configure_and_unknown_kinds():
    with serving() as server, entered(server) as client:
        assert client.call(Kind.PING, None) is None
        assert client.call(Kind.PROBE, Probe(b"xyz")).payload == b"xyz"
        assert isinstance(client.call(Kind.CONFIGURE, Configure(edition="2026.06")), Done)
        resolve = Resolve(context=AdapterContext("s", "e", "r"))
        assert client.call(Kind.RESOLVE, resolve).code == "invalid_request"


@pytest.mark.parametrize("lanes", [(1,), (0, 0), (-1,)])
def test_lanes_that_are_not_there_are_refused(lanes):
    with serving() as server, entered(server) as client:
        assert client.reset(lanes, len(lanes)).code == "invalid_action"
        assert isinstance(client.reset(), ResetReply)


def test_counts_that_do_not_fit_are_refused():
    with serving() as server, entered(server) as client:
        assert client.reset(seeds=(1, 2)).code == "invalid_action"
        assert isinstance(client.reset(), ResetReply)
        assert isinstance(client.step(), StepReply)


def test_an_error_of_the_env_is_told_and_the_session_goes_on():
    with serving() as server, entered(server) as client:
        client.reset()
        body = client.step(1)
        assert (body.code, body.error_class, body.message) == (
            "internal",
            "ValueError",
            "the door is stuck",
        )
        assert "serving_toys" in body.traceback_text
        assert body.is_recoverable
        assert isinstance(client.step(), StepReply)


@pytest.mark.parametrize(("action", "name"), [(3, "KeyboardInterrupt"), (4, "SystemExit")])
def test_c47_an_env_that_exits_ends_its_episode_and_not_the_server(action, name):
    with serving() as server, entered(server) as client:
        client.reset()
        body = client.step(action)
        assert body.error_class == name
        assert not body.is_recoverable
        assert client.step().code == "not_ready"
        assert isinstance(client.reset(), ResetReply)
        assert isinstance(client.step(), StepReply)


def test_a_stranger_gets_an_id_and_no_traceback(caplog):
    with serving(address="rollmesh+tcp://127.0.0.1:0") as server, entered(server) as client:
        client.reset()
        body = client.step(1)
        assert body.traceback_text == ""
        assert body.message == "the door is stuck"
        assert body.error_id in caplog.text
        assert "Traceback" in caplog.text
    with (
        serving(address="rollmesh+tcp://127.0.0.1:0", expose_tracebacks=True) as server,
        entered(server) as client,
    ):
        client.reset()
        assert "Traceback" in client.step(1).traceback_text


def test_render_and_render_of_an_env_that_cannot():
    with serving() as server, entered(server) as client:
        frame = client.call(Kind.RENDER, Render()).frame
        assert frame.shape == (4, 4, 3)
        assert frame.dtype == np.uint8
    with serving(ToyEnv()) as server, entered(server) as client:
        assert client.call(Kind.RENDER, Render()).error_class == "Unsupported"


# ------------------------------------------------------------------------------- threads, envs


def test_c51_serve_builds_steps_and_closes_on_the_calling_thread():
    factory = Made()
    server = EnvServer(factory, options=ServerOptions(max_sessions=1))
    home = []

    def serve():
        home.append(threading.get_ident())
        server.serve()

    thread = threading.Thread(target=serve)
    thread.start()
    wait_for(lambda: server.is_serving)
    for _ in range(2):
        client = entered(server)
        client.reset()
        client.step()
        client.call(Kind.RENDER, Render())
        client.leave()
    server.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    (env,) = factory.envs
    assert env.threads == set(home)
    assert env.closed == 1


def test_a_factory_gives_each_session_its_own_env_and_thread():
    factory = Made()
    with serving(factory) as server, entered(server) as one, entered(server) as other:
        one.reset()
        other.reset()
        one.step()
        assert other.step().observation[0][0, 0] == 1
        assert len(factory.envs) == 2
        assert len(set(factory.threads)) == 2
        assert all(len(env.threads) == 1 for env in factory.envs)
    assert [env.closed for env in factory.envs] == [1, 1]


def test_an_env_is_used_again_by_the_next_session():
    factory = Made()
    with serving(factory, max_sessions=1) as server:
        for resets in (1, 2):
            client = entered(server)
            assert client.reset().observation[0][0, 1] == resets
            client.leave()
    assert len(factory.envs) == 1


def test_close_env_builds_another_one_for_the_next_session():
    factory = Made()
    with serving(factory, max_sessions=1) as server:
        client = entered(server)
        client.call(Kind.CLOSE, Close(close_env=True))
        with entered(server) as other:
            assert isinstance(other.reset(), ResetReply)
        assert len(factory.envs) == 2
        assert factory.envs[0].closed == 1


def test_an_instance_stays_its_owners():
    env = Counter()
    with serving(env) as server, entered(server) as client:
        client.call(Kind.CLOSE, Close(close_env=True))
    assert env.closed == 0
    with serving(env, closes_env=True):
        pass
    assert env.closed == 1


def test_c45_a_close_that_raises_is_one_warning(caplog):
    class Bad(Counter):
        def close(self):
            super().close()
            raise RuntimeError("no simulator to stop")

    factory = Made(Bad)
    with serving(factory):
        pass
    assert factory.envs[0].closed == 1
    assert caplog.text.count("close_failed") == 1


def test_c45_a_close_that_hangs_is_left_behind(caplog):
    gate = threading.Event()

    class Hangs(Counter):
        def close(self):
            gate.wait(LIMIT_S)

    begun = time.monotonic()
    with serving(Hangs, close_timeout_s=0.1):
        pass
    assert time.monotonic() - begun < 5
    assert "close_overdue" in caplog.text
    gate.set()


def test_rebuild_builds_the_env_anew():
    factory = Made()
    with serving(factory) as server, entered(server) as client:
        assert client.welcome.capabilities[REBUILD] == "true"
        client.reset()
        assert isinstance(client.call(Kind.REBUILD, Rebuild()), Done)
        assert client.step().code == "not_ready"
        assert client.reset().observation[0][0, 1] == 1
        assert len(factory.envs) == 2
        assert factory.envs[0].closed == 1


def test_rebuild_of_an_instance_is_refused():
    with serving(Counter()) as server, entered(server) as client:
        assert REBUILD not in client.welcome.capabilities
        assert "instance" in client.call(Kind.REBUILD, Rebuild()).message


def test_a_rebuild_that_fails_can_be_tried_again():
    made = []

    def factory():
        if len(made) == 1:
            made.append(None)
            raise RuntimeError("no port left")
        made.append(Counter())
        return made[-1]

    with serving(factory) as server, entered(server) as client:
        client.reset()
        assert "no port left" in client.call(Kind.REBUILD, Rebuild()).message
        assert "could not be built" in client.reset().message
        assert isinstance(client.call(Kind.REBUILD, Rebuild()), Done)
        assert isinstance(client.reset(), ResetReply)


def test_an_env_that_cannot_be_built_fails_the_start_and_leaves_nothing(tmp_path):
    def factory():
        raise RuntimeError("no display")

    server = EnvServer(factory, f"rollmesh+unix://{tmp_path}/s.sock")
    with pytest.raises(EndpointFault, match="no display"):
        server.start()
    assert not list(tmp_path.iterdir())
    with pytest.raises(EndpointFault, match="no display"):
        EnvServer(factory).serve()


def test_a_second_env_that_cannot_be_built_is_told_to_its_client_only():
    made = []

    def factory():
        if made:
            raise RuntimeError("no port left")
        made.append(Counter())
        return made[0]

    with serving(factory) as server, entered(server) as client:
        other = Client(server.address)
        body = other.enter()
        assert isinstance(body, ErrorBody)
        assert "no port left" in body.message
        assert isinstance(client.reset(), ResetReply)
        other.vanish()


# ---------------------------------------------------------------------------- lanes, vectors


def test_a_vector_env_steps_all_lanes():
    with serving(ToyEnv(3, AutoresetMode.NEXT_STEP)) as server, entered(server) as client:
        assert client.contract == server.contract
        assert client.contract.num_envs == 3
        assert client.reset(rows=3).observation[0].shape == (3, 2)


def test_lanes_are_stepped_on_their_own_and_answer_as_they_come():
    envs = [Counter(), Counter()]
    with serving(envs) as server, entered(server) as client:
        assert client.welcome.capabilities[SUBSET_STEP] == "true"
        client.reset(rows=2)
        slow = client.send(Kind.STEP, client.step_request(2, (0,)))
        assert client.step(0, (1,)).observation[0].tolist() == [[1, 1, 0, 0]]
        envs[0].gate.set()
        late = client.connection.receive(LIMIT_S)
        assert late.request_id == slow
        assert isinstance(late.body, StepReply)
        assert client.step(rows=2).rewards == (1.0, 1.0)


def test_each_lane_is_reset_before_it_is_stepped():
    with serving(Counter, num_envs=2) as server, entered(server) as client:
        client.reset((0,))
        assert isinstance(client.step(0, (0,)), StepReply)
        assert client.step(0, (1,)).code == "not_ready"
        assert client.step(rows=2).code == "not_ready"


def test_a_late_lane_is_left_behind_and_rebuilt():
    with serving(Counter, num_envs=2) as server, entered(server) as client:
        client.reset(rows=2)
        body = client.step(2, (0,), timeout_ms=50)
        assert body.code == "timeout"
        assert body.env_index == 0
        assert isinstance(client.step(0, (1,)), StepReply)
        assert "rebuild" in client.step(0, (0,)).message
        assert isinstance(client.call(Kind.REBUILD, Rebuild(env_indices=(0,))), Done)
        assert client.step(0, (0,)).code == "not_ready"
        assert isinstance(client.reset((0,)), ResetReply)
        assert isinstance(client.step(0, (0,)), StepReply)


def test_a_lane_is_rendered_on_its_own():
    with serving([Counter(), Counter()]) as server, entered(server) as client:
        assert client.call(Kind.RENDER, Render(env_indices=(1,))).frame.shape == (4, 4, 3)
        assert client.call(Kind.RENDER, Render()).error_class == "Unsupported"


def test_a_cancelled_lane_request_gets_no_reply():
    envs = [Counter(), Counter()]
    with serving(envs) as server, entered(server) as client:
        client.reset(rows=2)
        slow = client.send(Kind.STEP, client.step_request(2, (0,)))
        client.send(Kind.CANCEL, Cancel(reason="nobody waits"), slow)
        client.call(Kind.PING, None)
        envs[0].gate.set()
        wait_for(lambda: envs[0].t == 1)
        reply = client.connection
        client.send(Kind.PING, None, 999)
        assert reply.receive(LIMIT_S).request_id == 999


# ---------------------------------------------------------------------------------- deadlines


def test_p1_a_late_step_is_answered_at_its_deadline_and_never_taken_for_the_next():
    env = Counter()
    with serving(env) as server:
        client = entered(server)
        client.reset()
        begun = time.monotonic()
        body = client.step(2, timeout_ms=100)
        assert 0.09 < time.monotonic() - begun < 0.6
        assert (body.code, body.outcome, body.is_recoverable) == ("timeout", "unknown", False)
        assert not server.is_serving
        assert client.reset().code == "not_ready"
        assert client.call(Kind.PING, None) is None
        waiting = Client(server.address)
        assert waiting.connection.receive(LIMIT_S).body.position == 1
        env.gate.set()
        assert waiting.enter().position == 0
        assert server.is_serving
        assert client.reset().code == "not_ready"
        assert isinstance(waiting.reset(), ResetReply)
        assert waiting.step().observation[0][0, 0] == 1
        assert isinstance(client.call(Kind.CLOSE, Close()), Done)
        client.vanish()
        waiting.leave()


def test_a_late_env_from_a_factory_is_built_anew():
    factory = Made()
    with serving(factory, max_sessions=1) as server:
        client = entered(server)
        client.reset()
        assert client.step(2, timeout_ms=30).code == "timeout"
        client.vanish()
        factory.envs[0].gate.set()
        with entered(server) as other:
            assert other.reset().observation[0][0, 1] == 1
        assert len(factory.envs) == 2


def test_c64_a_step_within_its_limit_passes():
    with serving() as server, entered(server) as client:
        client.reset()
        for timeout_ms in (10_000, 2**40, 0):
            assert isinstance(client.step(timeout_ms=timeout_ms), StepReply)


# ------------------------------------------------------------------------------------- resume


def again(client, server, **given):
    """Return the client's successor, which asks for its session."""
    ids = itertools.count(next(client.ids) + 1)
    return entered(server, session_id=client.welcome.session_id, ids=ids, **given)


def test_a_session_goes_on_over_another_connection():
    with serving(Counter()) as server:
        client = entered(server)
        client.reset()
        client.step()
        client.vanish()
        with again(client, server) as other:
            assert other.welcome.is_resumed
            assert other.welcome.session_id == client.welcome.session_id
            assert other.step().observation[0].tolist() == [[2, 1, 0, 0]]


def test_p2_a_step_that_was_done_is_answered_and_not_done_again():
    env = Counter()
    with serving(env) as server:
        client = entered(server)
        client.reset()
        first = client.step(request_id=50)
        client.vanish()
        with again(client, server) as other:
            back = other.step(request_id=50)
            assert back.observation[0].tolist() == first.observation[0].tolist()
            assert env.t == 1
            assert other.step().observation[0][0, 0] == 2


def test_p2_a_step_under_way_is_answered_when_it_is_done():
    env = Counter()
    with serving(env) as server:
        client = entered(server)
        client.reset()
        client.send(Kind.STEP, client.step_request(2), 50)
        client.vanish()
        with again(client, server) as other:
            other.send(Kind.STEP, other.step_request(2), 50)
            env.gate.set()
            reply = other.connection.receive(LIMIT_S)
            assert reply.request_id == 50
            assert reply.body.observation[0][0, 0] == 1
            assert env.t == 1


def test_p2_a_request_that_never_came_is_done():
    with serving(Counter()) as server:
        client = entered(server)
        client.reset()
        client.vanish()
        with again(client, server) as other:
            assert other.step(request_id=50).observation[0][0, 0] == 1


def test_p2_an_error_is_answered_again_too():
    env = Counter()
    with serving(env) as server:
        client = entered(server)
        client.reset()
        client.step(1, request_id=50)
        client.vanish()
        with again(client, server) as other:
            assert other.step(1, request_id=50).error_class == "ValueError"


def test_a_connection_that_was_not_known_to_be_lost_is_dropped():
    with serving(Counter()) as server:
        client = entered(server)
        client.reset()
        with again(client, server) as other:
            assert isinstance(other.step(), StepReply)
            with pytest.raises(ConnectionLost):
                client.connection.receive(LIMIT_S)
        client.vanish()


def test_a_session_that_is_gone_gives_a_new_one():
    with serving(Counter(), resume_grace_s=0.0) as server:
        client = entered(server)
        client.reset()
        client.vanish()
        wait_for(lambda: not server.sessions)
        with again(client, server) as other:
            assert not other.welcome.is_resumed
            assert other.welcome.session_id != client.welcome.session_id
            assert other.step().code == "not_ready"


def test_lanes_under_way_are_answered_after_a_drop():
    envs = [Counter(), Counter()]
    with serving(envs) as server:
        client = entered(server)
        client.reset(rows=2)
        client.send(Kind.STEP, client.step_request(2, (0,)), 50)
        client.step(0, (1,), request_id=51)
        client.vanish()
        with again(client, server) as other:
            assert other.step(0, (1,), request_id=51).observation[0][0, 0] == 1
            other.send(Kind.STEP, other.step_request(2, (0,)), 50)
            other.call(Kind.PING, None)
            envs[0].gate.set()
            assert other.connection.receive(LIMIT_S).request_id == 50
        assert envs[1].t == 1


# ----------------------------------------------------------------------------- places, queue


def test_a_client_that_finds_no_place_is_told_its_position():
    with serving(Counter()) as server:
        first = entered(server)
        second = Client(server.address)
        assert second.connection.receive(LIMIT_S).body.position == 1
        third = Client(server.address)
        assert third.connection.receive(LIMIT_S).body.position == 2
        first.leave()
        assert second.enter().position == 0
        assert isinstance(second.reset(), ResetReply)
        second.leave()
        assert third.enter().position == 0
        third.leave()


def test_with_a_full_queue_a_client_is_told_busy_and_until_when():
    with serving(Counter(), queue_size=0) as server, entered(server):
        body = Client(server.address).enter()
        assert body.code == "busy"
        assert body.is_recoverable
        assert "300.0 s" in body.message


def test_a_queued_client_that_leaves_holds_up_nobody():
    with serving(Counter()) as server:
        first = entered(server)
        second = Client(server.address)
        assert second.connection.receive(LIMIT_S).body.position == 1
        third = Client(server.address)
        wait_for(lambda: len(server._queue) == 2)
        second.vanish()
        first.leave()
        assert third.enter().position == 0
        third.leave()


def test_c56_a_client_that_vanished_frees_its_place_for_one_that_waits():
    with serving(Counter(), contested_grace_s=0.1) as server:
        client = entered(server)
        client.reset()
        client.vanish()
        begun = time.monotonic()
        with entered(server) as other:
            assert time.monotonic() - begun < 5
            assert other.step().code == "not_ready"
            assert isinstance(other.reset(), ResetReply)


def test_c56_a_client_that_froze_frees_its_place_for_one_that_waits():
    with serving(Counter(), idle_timeout_s=0.2) as server:
        frozen = entered(server)
        frozen.reset()
        with entered(server) as other:
            assert isinstance(other.reset(), ResetReply)
        frozen.vanish()


def test_an_idle_client_keeps_a_place_that_nobody_wants():
    with serving(Counter(), idle_timeout_s=0.01) as server, entered(server) as client:
        client.reset()
        time.sleep(0.1)
        assert isinstance(client.step(), StepReply)


def test_a_client_that_never_asked_for_anything_has_no_grace():
    with serving(Counter(), contested_grace_s=None) as server:
        entered(server).vanish()
        with entered(server) as other:
            assert isinstance(other.reset(), ResetReply)


def test_more_than_one_session_needs_a_factory():
    with pytest.raises(InvalidSpec, match="factory"):
        EnvServer(Counter(), options=ServerOptions(max_sessions=2))


# ------------------------------------------------------------------------------ hello, security


def test_the_token_is_checked_first():
    with serving(token=SECRET) as server:
        for token, service in [("", "env"), ("wrong", "env"), ("", "model")]:
            with Client(server.address, token=token, service=service) as client:
                assert client.enter().code == "unauthenticated"
        with Client(server.address, token=SECRET) as client:
            assert client.enter().session_id


def test_a_hello_for_another_service_is_incompatible():
    with serving() as server, Client(server.address, service="model") as client:
        body = client.enter()
        assert body.code == "incompatible"
        assert "serves an env" in body.message


def test_the_first_message_must_be_hello():
    with serving() as server:
        client = Client.__new__(Client)
        from rollmesh.transport.dialing import dial

        client.connection, client.ids = dial(server.address), itertools.count(1)
        assert client.call(Kind.PROBE, Probe(b"x")).code == "unauthenticated"
        client.vanish()


def test_an_address_that_strangers_reach_needs_tls_and_a_token():
    with pytest.raises(InvalidSpec, match="TLS"):
        EnvServer(Counter, "rollmesh+tcp://0.0.0.0:0")


def test_a_constructor_that_raises_keyboard_interrupt_is_told_as_a_fault_and_leaves_nothing(
    tmp_path,
):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(EndpointFault, match="constructor raised KeyboardInterrupt"):
        EnvServer(interrupted, f"rollmesh+unix://{tmp_path}/env.sock").start()
    assert not list(tmp_path.iterdir())


def test_c59_a_taken_address_is_one_clear_error_and_harms_nobody(tmp_path):
    address = f"rollmesh+unix://{tmp_path}/env.sock"
    factory = Made()
    with serving(Counter, address) as server:
        with pytest.raises(ListenFailed, match="in use"):
            EnvServer(factory, address).start()
        assert not factory.envs
        with entered(server) as client:
            assert isinstance(client.reset(), ResetReply)
    assert not list(tmp_path.iterdir())
    with serving(Counter, address):
        pass


def test_remote_shutdown_is_refused_unless_allowed():
    with serving() as server, entered(server) as client:
        reply = client.call(Kind.SHUTDOWN, Shutdown(reason="done"))
        assert not reply.is_accepted
        assert "disabled" in reply.detail
    with serving(allow_remote_shutdown=True, drain_timeout_s=0.0) as server:
        client = entered(server)
        assert client.call(Kind.SHUTDOWN, Shutdown(reason="done")).is_accepted
        assert server.wait(LIMIT_S)


@pytest.mark.parametrize(
    "given",
    [
        {"max_sessions": 0},
        {"max_sessions": True},
        {"queue_size": -1},
        {"idle_timeout_s": 0},
        {"idle_timeout_s": -1},
        {"drain_timeout_s": float("nan")},
        {"close_timeout_s": "5"},
        {"send_timeout_s": None},
        {"isolate": "thread"},
        {"conformance": "loose"},
        {"token": ""},
        {"token": "short"},
    ],
)
def test_options_that_make_no_sense_are_refused(given):
    with pytest.raises(InvalidSpec):
        ServerOptions(**given)


def test_options_keep_the_token_secret():
    options = ServerOptions(token=SECRET)
    assert isinstance(options.token, Token)
    assert SECRET not in repr(options)
    assert ServerOptions(idle_timeout_s=float("inf")).idle_timeout_s is None


def test_c50_an_env_that_changes_the_folder_leaves_no_socket_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Moves(Counter):
        def __init__(self):
            super().__init__()
            os.chdir("/")

    with serving(Moves, "rollmesh+unix://env.sock") as server, entered(server) as client:
        assert isinstance(client.reset(), ResetReply)
        assert (tmp_path / "env.sock").exists()
        with entered(server) as other:
            assert isinstance(other.reset(), ResetReply)
    assert not list(tmp_path.iterdir())
