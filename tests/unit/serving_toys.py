"""Envs and raw clients for the tests of servers."""

from __future__ import annotations

import contextlib
import itertools
import threading

import numpy as np

from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.ports import ResetRequest, StepRequest
from rollmesh.transport.dialing import dial
from rollmesh.wire.contract import decode_contract
from rollmesh.wire.messages import GENERATION, Close, ErrorBody, Hello, Kind, Message

LIMIT_S = 10.0
_connections = []


class Counter:
    """Counts its steps; told by its actions to do what envs should not."""

    def __init__(self, length=1000):
        import gymnasium

        self.observation_space = gymnasium.spaces.Box(-1e9, 1e9, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(8)
        self.length = length
        self.t = 0
        self.resets = 0
        self.closed = 0
        self.gate = threading.Event()
        self.threads = {threading.get_ident()}

    def _observe(self):
        self.threads.add(threading.get_ident())
        return np.array([self.t, self.resets, 0, 0], np.float32)

    def reset(self, *, seed=None, options=None):
        self.t, self.resets = 0, self.resets + 1
        return self._observe(), {"seed": seed}

    def step(self, action):
        if action == 1:
            raise ValueError("the door is stuck")
        if action == 2:
            self.gate.wait(LIMIT_S)
        if action == 3:
            raise KeyboardInterrupt
        if action == 4:
            raise SystemExit(0)
        self.t += 1
        return self._observe(), 1.0, self.t >= self.length, False, {}

    def render(self):
        self.threads.add(threading.get_ident())
        return np.zeros((4, 4, 3), np.uint8)

    def close(self):
        self.threads.add(threading.get_ident())
        self.closed += 1


class Client:
    """A raw client: one connection, one session."""

    def __init__(self, address, *, session_id="", token="", service="env", ids=None):
        self.address = address
        self.connection = dial(address)
        _connections.append(self.connection)
        self.ids = ids or itertools.count(10)
        hello = Hello(generation=GENERATION, service=service, token=token, session_id=session_id)
        self.connection.send(Message(Kind.HELLO, 1, hello))
        self.welcome = None

    def enter(self):
        """Wait for a place; return the welcome or the error."""
        while True:
            body = self.connection.receive(LIMIT_S).body
            if isinstance(body, ErrorBody):
                return body
            self.welcome = body
            if not body.position:
                break
        if body.contract:
            self.contract = decode_contract(body.contract)
            self.bind(self.contract)
        return body

    def bind(self, contract):
        self.connection.framing.bind(
            contract.observation_space.codec, contract.action_space.codec, contract.num_envs
        )

    def send(self, kind, body, request_id=None):
        request_id = request_id or next(self.ids)
        self.connection.send(Message(kind, request_id, body))
        return request_id

    def call(self, kind, body, request_id=None):
        request_id = self.send(kind, body, request_id)
        while True:
            reply = self.connection.receive(LIMIT_S)
            if reply.request_id == request_id:
                return reply.body

    def reset(self, lanes=(), rows=1, **given):
        request = ResetRequest(episode_ids=("e",) * rows, env_indices=lanes, **given)
        return self.call(Kind.RESET, request)

    def step_request(self, action=0, lanes=(), rows=1, **given):
        return StepRequest(
            action=[np.full(rows, action, np.int64)],
            episode_ids=("e",) * rows,
            env_indices=lanes,
            **given,
        )

    def step(self, action=0, lanes=(), rows=1, request_id=None, **given):
        return self.call(Kind.STEP, self.step_request(action, lanes, rows, **given), request_id)

    def leave(self):
        """Close the session and the connection."""
        self.call(Kind.CLOSE, Close(reason="done"))
        self.connection.close()

    def vanish(self):
        """Go without a word."""
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()


@contextlib.contextmanager
def serving(env=Counter, address="rollmesh+unix://", **options):
    """Give a started server."""
    try:
        with EnvServer(env, address, ServerOptions(**options)) as server:
            yield server
    finally:
        close_clients()


def close_clients():
    """Close the connections of all clients made so far."""
    while _connections:
        _connections.pop().close()


def entered(server, **given):
    """Return a client that has a place."""
    client = Client(server.address, **given)
    client.enter()
    return client
