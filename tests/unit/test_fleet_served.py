"""Served envs as lanes of a fleet: a session each, lost and found again."""

from __future__ import annotations

import pytest

from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import EndpointFault, InvalidSpec
from rollmesh.fleet.lanes import FleetEnvs
from rollmesh.fleet.worker_options import WorkerOptions
from rollmesh.fleet.worker_spec import EnvTarget
from rollmesh.ports import PrepareRequest
from rollmesh.testing.faults import take_stock
from rollmesh.testing.faults.stock import left_behind
from tests.unit.fleet_toys import LIMIT_S, RAISE, WALKER, Walker, prepare, reset, step


def short():
    """Return an env whose episodes are short."""
    return Walker(length=2)


def other():
    """Return an env of other observations."""
    return Walker(shape=(5,))


@pytest.fixture
def serve():
    before, servers = take_stock(), []

    def start(env=short, address="rollmesh+unix://", **options):
        given = {"max_sessions": 4, "close_timeout_s": 2.0, **options}
        server = EnvServer(env, address, ServerOptions(**given))
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()
    assert not left_behind(before)


@pytest.fixture
def open_lanes():
    fleets = []

    def start(*servers, **given):
        addresses = [str(server.address) for server in servers]
        setups = given.pop("setups", {})
        fleets.append(FleetEnvs.open(setups, addresses=addresses, **given))
        return fleets[-1]

    yield start
    for fleet in fleets:
        fleet.close(LIMIT_S)


def test_an_address_twice_is_two_sessions(serve, open_lanes):
    server, told = serve(), []
    fleet = open_lanes(server, server, tell=lambda *one: told.append(one[:2]))
    assert fleet.contract.num_envs == 2
    prepare(fleet, 0, 1)
    reset(fleet, 0)
    reset(fleet, 1)
    step(fleet, lane=1)
    reply = step(fleet, lane=1)
    assert reply.completions[0].env_index == 1
    assert not step(fleet, lane=0).completions
    fleet.close(LIMIT_S)
    assert sorted(told[4:]) == [(0, "stopped"), (1, "stopped")]
    assert told[:4] == [
        *[(0, "starting"), (0, "ready"), (1, "starting"), (1, "ready")],
    ]


def test_workers_come_first_and_addresses_after_them(serve, open_lanes):
    target = EnvTarget.of(WALKER, {"length": 2})
    fleet = open_lanes(serve(), setups={"": target}, workers=1)
    assert fleet.contract.num_envs == 2
    prepare(fleet, 0, 1)
    pids = {reset(fleet, lane).infos[0]["pid"] for lane in range(2)}
    assert len(pids) == 2


def test_what_the_env_raises_is_a_fault_of_its_lane(serve, open_lanes):
    server = serve()
    fleet = open_lanes(server, server)
    prepare(fleet, 0, 1)
    reset(fleet, 1)
    with pytest.raises(EndpointFault, match="the door is stuck") as caught:
        step(fleet, RAISE, lane=1)
    assert caught.value.env_index == 1
    fleet.rebuild((1,))
    prepare(fleet, 1)
    reset(fleet, 1)
    step(fleet, lane=1)


def test_an_env_that_differs_is_refused(serve, open_lanes):
    fleet = open_lanes(serve(), serve(other))
    prepare(fleet, 0)
    with pytest.raises(EndpointFault, match="one model cannot play both") as caught:
        prepare(fleet, 1)
    assert caught.value.env_index == 1


def test_a_served_env_of_several_lanes_is_refused(serve):
    server = serve(num_envs=2)
    with pytest.raises((InvalidSpec, EndpointFault), match="serves 2 lanes"):
        FleetEnvs.open({}, addresses=[str(server.address)])


def test_nobody_at_the_first_address_is_raised():
    with pytest.raises(EndpointFault, match=r"nowhere\.sock"):
        FleetEnvs.open(
            {},
            addresses=["rollmesh+unix:///tmp/rollmesh-none/nowhere.sock"],
            options=WorkerOptions(load_s=0.2),
        )


def test_one_that_is_still_being_connected_can_be_left(serve, open_lanes):
    full = serve(max_sessions=1)
    fleet, other = open_lanes(serve(), full), open_lanes(full)  # the second one waits for a place
    arrived = []
    fleet.submit("prepare", PrepareRequest((1,), ""), arrived.append, (1,))
    fleet.wait(0.05)
    fleet.abandon((1,))
    fleet.wait(0.05)
    assert arrived == []
    other.close(LIMIT_S)
    prepare(fleet, 1)
    reset(fleet, 1)
