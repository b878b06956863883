"""A small server of the session protocol, whose every move a test can plan."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time

from rollmesh.errors import EndpointFault, RollmeshError
from rollmesh.transport.dialing import listen
from rollmesh.wire.contract import encode_contract
from rollmesh.wire.messages import (
    GENERATION,
    Done,
    ErrorBody,
    Kind,
    Message,
    RenderReply,
    ResolveReply,
    Welcome,
)

_names = itertools.count(1)
_OPERATIONS = {
    Kind.RESET: "reset",
    Kind.STEP: "step",
    Kind.PREDICT: "predict",
    Kind.RESET_ADAPTER: "reset_adapter",
    Kind.RELEASE_ADAPTER: "release_adapter",
}


def mem_address():
    return f"mem://toy-{next(_names)}"


class ToyServer:
    """Serves a local port. One session at a time is remembered, with its replies.

    `plan(kind, action)` queues what happens to the next request of a kind, in place of an answer:
    `"drop"` closes the connection before it is executed, `"drop_after"` once it is, `"silent"`
    does nothing, and a callable `(connection, message) -> None` anything. With `after` it goes on
    with the session of a server before it.
    """

    def __init__(self, port, address=None, *, service="env", capabilities=(), after=None):
        self.port = port
        self.service = service
        self.capabilities = dict.fromkeys(capabilities, "true")
        self.hellos, self.requests, self.executed, self.closed = [], [], [], []
        self.welcomes = []  # what to answer to the next hellos in place of a welcome
        self.session_id = None if after is None else after.session_id
        self.replies = {} if after is None else after.replies
        self._plans = {}
        self._sessions = itertools.count(1)
        self._connections = []
        self._lock = threading.Lock()
        self.listener = listen(address or mem_address())
        self.address = str(self.listener.address)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def plan(self, kind, *actions):
        self._plans.setdefault(kind, []).extend(actions)

    def drop_connections(self):
        for connection in self._connections:
            connection.shutdown("dropped by the test")

    def close(self):
        self.listener.close()
        self.drop_connections()
        self._thread.join(5)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _accept(self):
        with contextlib.suppress(RollmeshError):
            while True:
                connection = self.listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with contextlib.suppress(RollmeshError), connection:
            hello = connection.receive(5)
            if not self._welcome(connection, hello):
                return
            while True:
                message = connection.receive()
                self.requests.append(message.kind)
                with self._lock:
                    if not self._answer(connection, message):
                        return

    def _welcome(self, connection, hello):
        self.hellos.append(hello.body)
        if self.welcomes:
            answer = self.welcomes.pop(0)
            if callable(answer):
                return answer(connection, hello)
            kind = Kind.ERROR if isinstance(answer, ErrorBody) else Kind.WELCOME
            connection.send(Message(kind, hello.request_id, answer))
            return False
        is_resumed = bool(hello.body.session_id) and hello.body.session_id == self.session_id
        if not is_resumed:
            self.session_id = f"s{next(self._sessions)}"
            self.replies = {}
        connection.admit()
        contract = getattr(self.port, "contract", None)
        welcome = Welcome(
            generation=GENERATION,
            session_id=self.session_id,
            is_resumed=is_resumed,
            capabilities=self.capabilities,
            contract=b"" if contract is None else encode_contract(contract),
        )
        if contract is not None:
            self.bind(connection, contract)
        connection.send(Message(Kind.WELCOME, hello.request_id, welcome))
        return True

    def bind(self, connection, contract):
        num_envs = contract.num_envs if self.service == "env" else None
        connection.framing.bind(
            contract.observation_space.codec, contract.action_space.codec, num_envs
        )

    def _answer(self, connection, message):
        planned = self._plans.get(message.kind)
        action = planned.pop(0) if planned else None
        if callable(action):
            action(connection, message)
            return True
        if action == "silent":
            return True
        if action == "drop":
            return False
        reply = self.replies.get(message.request_id)
        if reply is None:
            reply = self.replies[message.request_id] = self._execute(message)
        if action == "drop_after":
            return False
        if reply is not None:
            connection.send(reply)
        return message.kind is not Kind.CLOSE

    def _execute(self, message):
        kind, body = message.kind, message.body
        self.executed.append(kind)
        try:
            if kind in _OPERATIONS:
                result = getattr(self.port, _OPERATIONS[kind])(body)
            elif kind is Kind.RENDER:
                result = RenderReply(frame=self.port.env.render())
            elif kind is Kind.RESOLVE:
                result = ResolveReply(context=body.context)
            elif kind is Kind.CLOSE:
                self.closed.append(body.reason)
                self.session_id = None
                result = Done()
            elif kind is Kind.REBUILD:
                result = Done()
            else:
                return None
        except EndpointFault as fault:
            return Message(Kind.ERROR, message.request_id, error_body(fault))
        return Message(kind, message.request_id, Done() if result is None else result)


def error_body(fault, code="internal"):
    return ErrorBody(
        code=code,
        error_class=fault.error_class,
        message=fault.detail,
        traceback_text=fault.traceback_text,
        is_recoverable=fault.is_recoverable,
        outcome=fault.outcome,
        env_index=fault.env_index,
    )


def until(condition, limit_s=5.0):
    """Wait for something that another thread does."""
    expiry = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < expiry, "it did not happen"
        threading.Event().wait(0.002)
