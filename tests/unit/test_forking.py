"""A process that forks keeps its sessions, whatever its child does with what it inherited."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from gymnasium.spaces import Discrete

import rollmesh
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.errors import EnvFailed
from rollmesh.transport.memory import memory_pair
from tests.unit.serving_toys import Counter

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

WAYS = {
    "unix": ("rollmesh+unix://", "auto"),
    "tcp": ("rollmesh+tcp://127.0.0.1:0", "auto"),
    "grpc": ("127.0.0.1:0", "grpc"),
}
DONE, RAISED = 0, 9


def in_child(do: Callable[[], Any]) -> int:
    """Fork, do this in the child, and return its exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads
        child = os.fork()
    if child == 0:
        code = RAISED
        try:
            do()
            code = DONE
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("way", WAYS)
def test_what_a_child_forgets_or_closes_stays_open_in_the_parent(way):
    address, transport = WAYS[way]
    with EnvServer(Counter, address) as server:
        options = client_options(transport=transport, resume_grace_s=2.0, environ={})
        with rollmesh.RemoteEnv(server.address, options=options) as env:
            env.reset(seed=0)
            env.step(0)
            for do in (env.__del__, env.close):
                ended = in_child(do)
                # grpc itself may crash in a fork of a process whose threads are inside it
                assert ended == DONE or way == "grpc"
            assert env.step(0)[0][0] == 2
            assert server.sessions == 1


@pytest.mark.parametrize("way", ["unix", "tcp"])
def test_a_child_is_told_and_gets_a_session_of_its_own_with_the_next_reset(way):
    with EnvServer(Counter, WAYS[way][0]) as server, rollmesh.RemoteEnv(server.address) as env:
        env.reset(seed=0)
        env.step(0)

        def child() -> None:
            with pytest.raises(EnvFailed, match="process from which this one was forked; reset"):
                env.step(0)
            env.reset(seed=0)
            assert env.step(0)[0][0] == 1  # another env: the server built one for us
            env.close()

        assert in_child(child) == DONE
        assert env.step(0)[0][0] == 2


def test_a_served_model_is_asked_by_a_child_in_a_session_of_its_own():
    with (
        rollmesh.ModelServer("random", "rollmesh+unix://") as server,
        rollmesh.RemoteModel(server.address) as model,
    ):
        model.configure(Discrete(3), Discrete(3))
        model.reset(seed=0)
        model.predict(1)

        def child() -> None:
            model.reset(seed=0)
            model.predict(1)
            model.close()

        assert in_child(child) == DONE
        model.predict(1)


def test_a_connection_that_is_forsaken_is_over_here_and_goes_on_there():
    ours, theirs = memory_pair()
    with ours, theirs:
        ours.forsake()
        assert not ours.is_open
        assert theirs.is_open
