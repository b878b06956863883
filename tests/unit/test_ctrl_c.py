"""Ctrl-C in a call of a served env, as in a notebook: what is called next works or says why not."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

import rollmesh
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.servers.env_server import EnvServer
from tests.unit.serving_toys import LIMIT_S, Counter

WAITS = 2
WAYS = {"unix": "rollmesh+unix://", "tcp": "rollmesh+tcp://127.0.0.1:0", "grpc": "127.0.0.1:0"}


class Waiting(Counter):
    """Interrupts its client once a step is under way, and waits for the gate."""

    def step(self, action):  # type: ignore[no-untyped-def]
        if action == WAITS:
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals are the main one's"
)
@pytest.mark.parametrize("way", WAYS)
def test_the_next_call_goes_on_with_the_session(way):
    env = Waiting()
    transport = "grpc" if way == "grpc" else "auto"
    options = client_options(transport=transport, resume_grace_s=LIMIT_S, environ={})
    with (
        EnvServer(env, WAYS[way]) as server,
        rollmesh.RemoteEnv(server.address, options=options) as remote,
    ):
        remote.reset(seed=0)
        with pytest.raises(KeyboardInterrupt):
            remote.step(WAITS)
        env.gate.set()
        # the step that was interrupted was carried out there
        assert remote.step(0)[0][0] == 2
        remote.reset(seed=0)
        assert remote.step(0)[0][0] == 1


@contextlib.contextmanager
def over_grpc(env: Counter) -> Iterator[tuple[EnvServer, rollmesh.RemoteEnv]]:
    """Serve an env over gRPC, and reset it from here."""
    options = client_options(transport="grpc", resume_grace_s=LIMIT_S, environ={})
    with (
        EnvServer(env, WAYS["grpc"]) as server,
        rollmesh.RemoteEnv(server.address, options=options) as remote,
    ):
        remote.reset(seed=0)
        yield server, remote


def test_a_grpc_call_whose_last_event_a_ctrl_c_took_along_is_a_drop():
    with over_grpc(Counter()) as (server, remote):
        stream = remote.port.session._connection._stream
        stream._operate = lambda *_: False  # as grpc answers from then on
        assert remote.step(0)[0][0] == 1
        assert server.sessions == 1


@pytest.mark.parametrize("event", range(4))
def test_a_ctrl_c_while_grpc_tells_of_something_is_a_drop(event):
    with over_grpc(Counter()) as (server, remote):
        stream = remote.port.session._connection._stream
        take, left = stream._take, [event]

        def interrupted(what):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            take(what)

        stream._take = interrupted
        steps = []
        with pytest.raises(KeyboardInterrupt):
            steps.extend(remote.step(0)[0][0] for _ in range(9))
        # that step was carried out, or it was not; the session goes on in any case
        assert remote.step(0)[0][0] in (len(steps) + 1, len(steps) + 2)
        remote.reset(seed=0)
        assert remote.step(0)[0][0] == 1
        assert server.sessions == 1


@pytest.mark.parametrize("event", range(3))
def test_a_ctrl_c_with_which_grpc_loses_an_event_is_a_drop(event):
    with over_grpc(Counter()) as (server, remote):
        stream = remote.port.session._connection._stream

        def losing(fetch, left):
            for _ in range(left):
                yield next(fetch)
            next(fetch)
            stream._events.clear()
            raise KeyboardInterrupt

        stream._fetch = losing(stream._fetch, event)
        steps = []
        with pytest.raises(KeyboardInterrupt):
            steps.extend(remote.step(0)[0][0] for _ in range(9))
        assert remote.step(0)[0][0] in (len(steps) + 1, len(steps) + 2)
        assert server.sessions == 1


def test_a_ctrl_c_in_a_short_call_over_grpc_costs_no_session():
    class Slow(Counter):
        def step(self, action):  # type: ignore[no-untyped-def]
            time.sleep(0.1)
            return super().step(action)

    with over_grpc(Slow()) as (server, remote):
        presses = threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGINT))
        presses.start()
        with pytest.raises(KeyboardInterrupt):
            [remote.step(0) for _ in range(50)]
        done = remote.step(0)[0][0]
        assert remote.step(0)[0][0] == done + 1
        assert server.sessions == 1
