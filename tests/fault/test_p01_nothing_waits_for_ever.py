"""P1: nothing waits for ever. Every remote call ends by its deadline + 250 ms.

The peer is frozen (SIGSTOP) before, during or after an operation, on every transport. A frozen peer
keeps its sockets: nothing tells the client but time.
"""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import EndpointFault, PortTimeout
from rollmesh.testing.faults import FaultProxy
from tests.fault.parties import (
    ADDRESSES,
    JournalEnv,
    Lag,
    child_of,
    closing,
    env_port,
    evict,
    model_port,
    predict,
    release,
    reset,
    step,
)

DEADLINE_S = 0.5
LATE_S = 0.25
NAP_S = 0.4
"""How long an operation takes that the peer is frozen in."""

CLOSE_S = 0.5
MOMENTS = ("before", "during", "after")
OPERATIONS = {
    "env": ("connect", "reset", "step", "render", "rebuild", "close"),
    "model": ("connect", "predict", "evict", "release"),
}

ALL = [
    (side, operation, moment, transport)
    for side, operations in OPERATIONS.items()
    for operation, moment, transport in itertools.product(operations, MOMENTS, ADDRESSES)
]
DEFAULT = [case for number, case in enumerate(ALL) if number % 5 == 0]


@pytest.fixture(scope="module")
def children():
    """Give a served endpoint by side and transport: one child each, used again and again."""
    made = {}

    def child(side, transport):
        if (side, transport) not in made:
            options = {"resume_grace_s": 0.5, "queue_size": 4, "max_sessions": 4}
            made[side, transport] = child_of(side, transport, **options)
        return made[side, transport]

    yield child
    for one in made.values():
        one.close()


def timed(call):
    """Make a call; return how long it took, the machine's own lag left out, and what came of it."""
    with Lag() as lag:
        begun = time.monotonic()
        try:
            outcome = call()
        except EndpointFault as fault:
            outcome = fault
        elapsed = time.monotonic() - begun
    return elapsed - lag.longest_s, outcome


def prepare(side, operation, address):
    """Return a port that is ready for an operation, and the operation with its deadline."""
    naps = {"reset": 0.0}
    if side == "model":
        if operation == "connect":
            return None, lambda: model_port(address, connect_s=DEADLINE_S)
        port = model_port(address)
        if operation != "predict":
            predict(port, [1, 2, 3, NAP_S])
        return port, {
            "predict": lambda: predict(port, [1, 2, 3, NAP_S], timeout_s=DEADLINE_S),
            "evict": lambda: evict(port),
            "release": lambda: release(port, DEADLINE_S),
        }[operation]
    if operation == "connect":
        return None, lambda: env_port(address, connect_s=DEADLINE_S)
    port = env_port(address, connect_s=DEADLINE_S)
    naps = {operation if operation != "rebuild" else "close": NAP_S}
    if operation != "reset":
        reset(port, naps=naps)
    return port, {
        "reset": lambda: reset(port, naps=naps, timeout_s=DEADLINE_S),
        "step": lambda: step(port, 1, timeout_s=DEADLINE_S),
        "render": lambda: port.render(timeout_s=DEADLINE_S),
        "rebuild": lambda: port.rebuild(()),
        "close": lambda: port.close(DEADLINE_S),
    }[operation]


def check(child, side, operation, moment):
    port, operate = prepare(side, operation, child.ready)
    freeze = threading.Timer(NAP_S / 4, child.stop)
    try:
        if moment == "before":
            child.stop()
        elif moment == "during":
            freeze.start()
        elapsed, outcome = timed(operate)
        assert elapsed <= DEADLINE_S + LATE_S, (elapsed, outcome)
        if moment == "before" and operation != "close":
            assert isinstance(outcome, EndpointFault), outcome
        if moment == "after":
            assert not isinstance(outcome, EndpointFault), outcome
            child.stop()
        port = outcome if port is None and not isinstance(outcome, EndpointFault) else port
        freeze.cancel()
        if port is not None:
            # whatever happened, letting go is bounded too
            elapsed, outcome = timed(lambda: port.close(CLOSE_S))
            assert elapsed <= CLOSE_S + LATE_S, (elapsed, outcome)
    finally:
        freeze.cancel()
        freeze.join() if freeze.is_alive() else None
        child.resume()
        if port is not None:
            with closing(port):
                pass
    # once it goes on, the server serves the next client
    if side == "env":
        with closing(env_port(child.ready)) as another:
            assert reset(another, 5)[0].tolist() == [5, 0, 0, 0]
            assert step(another, 2)[0].tolist() == [5, 1, 2, 2]
    else:
        with closing(model_port(child.ready)) as another:
            assert predict(another, [1, 2, 3, 0]) == 6


@pytest.mark.fault
@pytest.mark.parametrize(("side", "operation", "moment", "transport"), DEFAULT)
def test_p1_a_frozen_peer_is_noticed_at_the_deadline(children, side, operation, moment, transport):
    check(children(side, transport), side, operation, moment)


@pytest.mark.fault_full
@pytest.mark.parametrize(("side", "operation", "moment", "transport"), ALL)
def test_p1_a_frozen_peer_is_noticed_at_the_deadline_full(
    children, side, operation, moment, transport
):
    check(children(side, transport), side, operation, moment)


def check_stall(child, direction, at_byte):
    """Step through a link that passes so many bytes more and then nothing."""
    with FaultProxy(child.ready) as proxy, closing(env_port(proxy.address)) as port:
        reset(port)
        step(port, 1)
        proxy.cut_after(at_byte, direction, "stall")
        elapsed = 0.0
        for n in range(2, 100):
            elapsed, outcome = timed(lambda n=n: step(port, n, timeout_s=DEADLINE_S))
            if isinstance(outcome, EndpointFault):
                break
        assert isinstance(outcome, PortTimeout), outcome
        assert elapsed <= DEADLINE_S + LATE_S, elapsed
        elapsed, outcome = timed(lambda: port.close(CLOSE_S))
        assert elapsed <= CLOSE_S + LATE_S, (elapsed, outcome)


@pytest.mark.fault
@pytest.mark.parametrize("transport", ADDRESSES)
@pytest.mark.parametrize(("direction", "at_byte"), [("down", 0), ("down", 150), ("up", 90)])
def test_p1_a_message_that_stalls_in_its_middle_ends_at_the_deadline(
    children, transport, direction, at_byte
):
    check_stall(children("env", transport), direction, at_byte)


@pytest.mark.fault_full
@pytest.mark.parametrize("transport", ADDRESSES)
@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("at_byte", range(1, 200, 20))
def test_p1_a_message_that_stalls_in_its_middle_ends_at_the_deadline_full(
    children, transport, direction, at_byte
):
    check_stall(children("env", transport), direction, at_byte)


@pytest.mark.fault
@pytest.mark.parametrize("operation", ["reset", "step", "render"])
def test_p1_an_env_that_hangs_in_the_same_process_is_left_at_the_deadline(operation):
    options = ServerOptions(close_timeout_s=0.5, drain_timeout_s=0.5)
    with (
        EnvServer(JournalEnv, f"mem://p1-{operation}", options) as server,
        closing(env_port(server.address)) as port,
    ):
        naps = {operation: 1.5}
        if operation != "reset":
            reset(port, naps=naps)
        operate = {
            "reset": lambda: reset(port, naps=naps, timeout_s=DEADLINE_S),
            "step": lambda: step(port, 1, timeout_s=DEADLINE_S),
            "render": lambda: port.render(timeout_s=DEADLINE_S),
        }[operation]
        elapsed, outcome = timed(operate)
        assert isinstance(outcome, PortTimeout), outcome
        assert elapsed <= DEADLINE_S + LATE_S, elapsed


@pytest.mark.fault
@pytest.mark.parametrize("transport", ADDRESSES)
def test_p1_a_frozen_peer_can_be_interrupted_without_a_deadline(children, transport):
    child = children("env", transport)
    port = env_port(child.ready)
    with closing(port):
        reset(port)
        child.stop()
        try:
            timer = threading.Timer(0.1, port.interrupt)
            timer.start()
            elapsed, outcome = timed(lambda: step(port, 1))
            timer.join()
            assert isinstance(outcome, EndpointFault)
            assert elapsed < 0.1 + LATE_S
        finally:
            child.resume()
