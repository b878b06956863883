"""The client nudges a gRPC connection on which it waits for long."""

from __future__ import annotations

import math
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.testing.faults import FaultProxy
from rollmesh.transport import grpc_nudge, grpc_stream
from rollmesh.transport.address import parse_address
from rollmesh.transport.grpc_client import dial_grpc
from rollmesh.transport.grpc_limits import WATCHDOG
from rollmesh.transport.grpc_loading import grpc
from rollmesh.transport.grpc_nudge import ask_for_health, await_call, next_pause, nudge
from rollmesh.transport.grpc_stream import JoinStream
from tests.fault.parties import JournalEnv, closing, env_port, reset, step

LIMIT_S = 20.0


@pytest.fixture
def served():
    with EnvServer(JournalEnv, "tcp://127.0.0.1:0") as server, FaultProxy(server.address) as proxy:
        yield proxy


@pytest.fixture
def soon(monkeypatch):
    """Nudges come soon."""
    monkeypatch.setattr(grpc_stream, "FIRST_NUDGE_S", 0.02)
    monkeypatch.setattr(grpc_nudge, "FIRST_NUDGE_S", 0.02)


def test_pauses_grow_up_to_a_limit():
    pauses = [1.0]
    while pauses[-1] != next_pause(pauses[-1]):
        pauses.append(next_pause(pauses[-1]))
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_a_wait_that_lasts_writes_to_the_server(served, soon):
    with closing(env_port(served.address)) as port:
        reset(port, 1)
        before = served.links[-1].up_bytes
        step(port, 1, timeout_s=LIMIT_S)
        short = served.links[-1].up_bytes - before
        reset(port, 1, naps={"step": 0.5})
        before = served.links[-1].up_bytes
        assert step(port, 1, timeout_s=LIMIT_S)[0].tolist() == [1.0, 1.0, 1.0, 1.0]
        assert served.links[-1].up_bytes - before > 2 * short


def test_a_wait_without_a_deadline_is_nudged_too(served, soon):
    with closing(env_port(served.address)) as port:
        reset(port, 1, naps={"step": 0.5})
        before = served.links[-1].up_bytes
        step(port, 1)
        long = served.links[-1].up_bytes - before
        reset(port, 1)
        before = served.links[-1].up_bytes
        step(port, 1)
        assert long > 2 * (served.links[-1].up_bytes - before)


def test_nothing_is_written_while_nothing_is_waited_for(served, soon):
    with closing(env_port(served.address)) as port:
        reset(port, 1, naps={"step": 0.1})
        step(port, 1)
        threading.Event().wait(0.2)  # the last nudge's own pings
        before = served.links[-1].up_bytes
        threading.Event().wait(0.5)
        assert served.links[-1].up_bytes - before < 100


def test_a_wait_that_ended_meanwhile_is_not_nudged(served, monkeypatch):
    nudged = []
    monkeypatch.setattr(grpc_stream, "nudge", nudged.append)
    with closing(env_port(served.address)) as port:
        reset(port, 1)
        (stream,) = [one for one in WATCHDOG._streams if isinstance(one, JoinStream)]
        stream.look(0.0)  # as the watchdog does that saw the wait just before it ended
        assert nudged == []
        assert stream.look_at > 0.0  # and not at once again
        stream._begin_wait(math.inf)
        stream.look(0.0)
        assert nudged == [stream._nudged]
        stream._end_wait()


def test_a_nudge_that_nobody_holds_is_answered():
    ended = queue.SimpleQueue()

    class Checked(grpc.GenericRpcHandler):
        def service(self, handler_call_details):
            del handler_call_details
            return grpc.unary_unary_rpc_method_handler(check)

    def check(data, context):
        context.add_callback(lambda: ended.put(context.code()))
        context.set_code(grpc.StatusCode.OK)
        return b""

    server = grpc.server(ThreadPoolExecutor(2), handlers=[Checked()])
    channel = grpc.insecure_channel(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    server.start()
    try:
        assert ask_for_health(channel, LIMIT_S).exception() is None
        assert ended.get(timeout=LIMIT_S) is grpc.StatusCode.OK
        for _ in range(20):
            nudge(channel)
            assert ended.get(timeout=LIMIT_S) is grpc.StatusCode.OK
    finally:
        channel.close()
        server.stop(0).wait(LIMIT_S)


def test_a_call_with_one_answer_is_nudged(served, soon):
    connection = dial_grpc(parse_address(str(served.address)))
    channel = connection._channel
    try:
        before = served.links[-1].up_bytes
        served.stall("down")
        call = ask_for_health(channel, LIMIT_S)
        timer = threading.Timer(0.5, served.resume)
        timer.start()
        assert await_call(call, channel) is None
        timer.join()
        assert call.code().name == "OK"
        assert served.links[-1].up_bytes - before > 200
    finally:
        connection.close()


def test_a_closed_channel_is_not_nudged():
    with EnvServer(JournalEnv, "tcp://127.0.0.1:0") as server:
        connection = dial_grpc(parse_address(str(server.address)))
        channel = connection._channel
        connection.close()
        nudge(channel)
