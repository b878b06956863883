"""What an env server does about clients that wait: for an env to be built, for a place, at the end.

A client that is told nothing takes its connection for lost and comes again, so whoever waits is
told at once; and whoever did not wait costs nothing.
"""

from __future__ import annotations

import logging
import threading
import time

import pytest

import rollmesh
from rollmesh.endpoint.clients import client_dialing
from rollmesh.endpoint.clients.probing import probe
from rollmesh.endpoint.servers import env_server
from rollmesh.endpoint.servers.env_server import BUILDING, EnvServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import EndpointFault, RollmeshError
from rollmesh.limits import Limits
from rollmesh.ports import ResetReply
from rollmesh.wire.messages import Close, Kind
from tests.unit.serving_toys import LIMIT_S, Client, Counter, close_clients, entered, serving
from tests.unit.test_env_server import wait_for

WAYS = [("rollmesh+unix://", "auto"), ("rollmesh+tcp://127.0.0.1:0", "auto")]
WAYS += [("tcp://127.0.0.1:0", "grpc")]


class Slow:
    """A factory whose envs, from the second one on, are built once the gate is open."""

    def __init__(self, quick=1):
        self.quick = quick
        self.built = 0
        self.gate = threading.Event()

    def __call__(self):
        self.built += 1
        if self.built > self.quick:
            assert self.gate.wait(LIMIT_S)
        return Counter(length=3)


@pytest.fixture
def slow():
    """Give a factory of envs that take long to build; its gate is open at the end."""
    factory = Slow()
    yield factory
    factory.gate.set()


@pytest.fixture
def told(caplog):
    """Give a function that returns what the log says of waiting."""
    caplog.set_level(logging.INFO, "rollmesh.endpoint.clients.client_dialing")
    return lambda: [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("waiting address=")
    ]


# --------------------------------------------------------------------------------- being built


@pytest.mark.parametrize(("address", "transport"), WAYS)
def test_a_client_whose_env_is_being_built_is_told_so_and_does_not_come_again(
    address, transport, slow, told, monkeypatch
):
    monkeypatch.setattr(client_dialing, "_FIRST_HELLO_S", 0.4)
    monkeypatch.setattr(client_dialing, "_HELLO_S", 0.4)
    with serving(slow, address) as server, rollmesh.RemoteEnv(server.address, transport=transport):
        opened = []

        def connect():
            with rollmesh.RemoteEnv(server.address, transport=transport) as env:
                opened.append(env.reset()[0])

        thread = threading.Thread(target=connect)
        thread.start()
        wait_for(told)
        time.sleep(1.0)  # it would have come again by now
        assert (slow.built, server.sessions) == (2, 2)
        slow.gate.set()
        thread.join(LIMIT_S)
    assert len(opened) == 1
    assert slow.built == 2
    (line,) = told()
    assert BUILDING in line


@pytest.mark.parametrize(("address", "transport"), WAYS)
def test_lanes_get_one_env_each(address, transport, slow, told):
    del transport
    with serving(slow, address) as server:
        opener = threading.Thread(target=lambda: (wait_for(told), slow.gate.set()))
        opener.start()
        result = rollmesh.evaluate(lambda _: 0, server.address, episodes=2, num_envs=2)
        opener.join(LIMIT_S)
    assert len(result.episodes) == 2
    assert slow.built == 2


@pytest.mark.parametrize(("address", "transport"), WAYS)
def test_who_gives_up_meanwhile_says_what_it_waited_for(address, transport, slow):
    with serving(slow, address) as server, rollmesh.RemoteEnv(server.address, transport=transport):
        limits = Limits(env_connect_s=0.5)
        with pytest.raises(RollmeshError, match=rf"gave up after .*: {BUILDING}; .*env_connect_s"):
            rollmesh.RemoteEnv(server.address, transport=transport, limits=limits)
        slow.gate.set()


def test_an_env_whose_client_has_left_is_kept_for_the_next_one(slow):
    with serving(slow, max_sessions=2) as server, entered(server):
        second = Client(server.address)
        welcome = second.connection.receive(LIMIT_S).body
        assert (welcome.position, welcome.detail, welcome.contract) == (1, BUILDING, b"")
        second.vanish()
        slow.gate.set()
        wait_for(lambda: server.sessions == 1)
        with entered(server) as third:
            assert isinstance(third.reset(), ResetReply)
    assert slow.built == 2


@pytest.mark.parametrize("address", ["rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0"])
def test_clients_that_left_before_the_doors_opened_get_no_env(address):
    factory = Slow(quick=0)
    server = EnvServer(factory, address, ServerOptions())
    starter = threading.Thread(target=server.start)
    starter.start()
    try:
        wait_for(lambda: server.addresses)
        for _ in range(3):
            Client(server.address).vanish()
        factory.gate.set()
        starter.join(LIMIT_S)
        with entered(server) as client:
            assert isinstance(client.reset(), ResetReply)
    finally:
        factory.gate.set()
        close_clients()
        server.close()
    assert factory.built == 1


def test_a_client_is_not_sent_away_as_idle_while_its_env_is_being_built(slow):
    with serving(slow, max_sessions=2, idle_timeout_s=0.05) as server:
        first, second = entered(server), Client(server.address)
        assert second.connection.receive(LIMIT_S).body.detail == BUILDING
        with entered(server) as third:  # gets the place of the first one, which is idle
            assert isinstance(third.reset(), ResetReply)
            slow.gate.set()
            assert second.enter().position == 0
            assert isinstance(second.reset(), ResetReply)
        first.vanish()


@pytest.mark.parametrize("isolate", [None, "process"])
def test_who_comes_to_a_place_whose_env_is_built_anew_is_told_so(isolate):
    env = Counter if isolate is None else "tests.unit.serving_toys:Counter"
    with serving(env, max_sessions=1, isolate=isolate) as server:
        first = entered(server)
        first.call(Kind.CLOSE, Close(close_env=True))
        first.vanish()
        second = Client(server.address)
        bodies = [second.connection.receive(LIMIT_S).body]
        while bodies[-1].position:
            bodies.append(second.connection.receive(LIMIT_S).body)
        assert bodies[-2].detail == BUILDING


def test_a_probe_waits_for_the_env_and_says_so_where_it_is_late(slow):
    with serving(slow) as server, entered(server):
        report = probe(server.address, timeout_s=0.5)
        assert (report.health, report.detail) == ("serving", BUILDING)
        threading.Timer(0.2, slow.gate.set).start()
        report = probe(server.address, measure_s=0.01)
        assert (report.health, report.detail) == ("serving", "")
        assert report.contract is not None


# ----------------------------------------------------------------------------------- the queue


@pytest.mark.parametrize("address", ["rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0", "mem://q"])
def test_clients_that_did_not_wait_keep_nobody_out_of_the_queue(address):
    with serving(Counter(), address, queue_size=3) as server, entered(server) as first:
        queued = [Client(server.address) for _ in range(3)]
        for client in queued:
            client.connection.receive(LIMIT_S)
        for client in queued[:2]:
            client.vanish()
        last = Client(server.address)
        assert last.connection.receive(LIMIT_S).body.position == 2
        assert queued[2].connection.receive(LIMIT_S).body.position == 1
        assert len(server._queue) == 2
        full = [Client(server.address), Client(server.address)]
        codes = {getattr(one.connection.receive(LIMIT_S).body, "code", "") for one in full}
        assert codes == {"", "busy"}
        assert isinstance(first.reset(), ResetReply)


def test_a_grpc_client_that_did_not_wait_keeps_nobody_out_of_the_queue():
    limits = Limits(env_connect_s=0.3)
    with serving(Counter(), "tcp://127.0.0.1:0", queue_size=1) as server:
        native = server.addresses[1]
        with entered_at(native):
            with pytest.raises(EndpointFault, match="number 1"):
                rollmesh.RemoteEnv(server.address, transport="grpc", limits=limits)

            def comes_in():
                with Client(native) as other:
                    return getattr(other.connection.receive(LIMIT_S).body, "position", 0) == 1

            wait_for(comes_in)


def entered_at(address):
    """Return a client that has a place there."""
    client = Client(address)
    client.enter()
    return client


# ------------------------------------------------------------------------------------- the end


class Closed:
    """Stands for what tells that a place is closed: it never comes to be, and time passes."""

    def __init__(self, clock):
        self.closed = self
        self.clock = clock

    def wait(self, limit_s):
        self.clock[0] += limit_s
        return False


def test_the_close_timeout_is_for_all_places_together(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(env_server.time, "monotonic", lambda: clock[0])
    places = [Closed(clock) for _ in range(4)]
    assert env_server._not_closed(places, 1.5) == places
    assert clock[0] == 101.5


def test_who_was_left_behind_is_told():
    gate = threading.Event()

    class Hangs(Counter):
        def close(self):
            gate.wait(LIMIT_S)

    with serving(Hangs, close_timeout_s=0.1) as server:
        pass
    assert server.has_left_behind
    gate.set()
    with serving(Counter, close_timeout_s=5.0) as server:
        pass
    assert not server.has_left_behind
