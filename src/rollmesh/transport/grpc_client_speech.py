"""gRPC: a client's messages as the bytes of a Join, and back (layer 5).

One object per Join. It remembers what was asked, because a reply is read by what it answers; a
reply to nothing that was asked is passed over. Request ids are numbers between rollmesh ends, so
that a resumed session knows them again; a foreign model gets the id of the context, as it wants.

A reply that does not fit what it answers is an error of the endpoint, not of the connection.

Knows no streams.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmesh.errors import InvalidValue, WireError
from rollmesh.ports import (
    EnvContract,
    PredictReply,
    PredictRequest,
    ResetReply,
    StepReply,
    StepRequest,
)
from rollmesh.spaces.codec import Leaves
from rollmesh.transport.grpc_common import BoundFraming
from rollmesh.transport.grpc_steps import ReplyReader, RequestWriter
from rollmesh.wire import protobuf as wire
from rollmesh.wire.contract import decode_contract
from rollmesh.wire.messages import (
    Cancel,
    ErrorBody,
    Kind,
    Message,
    Probe,
    ProbeReply,
    Resolve,
)
from rollmesh.wire.metadata import Report

_PING, _PONG, _ERROR, _CANCEL = Kind.PING, Kind.PONG, Kind.ERROR, Kind.CANCEL
_STEP = Kind.STEP
_NO_PING = Probe(b"")
_MOST_FRAMES = 1024
"""Longest chunk that a released model may be asked for."""


class ClientSpeech:
    """What the two services have in common.

    Args:
        dialect: What both ends know.
        writable: Whether received leaves may be written to.
    """

    def __init__(self, dialect: wire.Dialect, *, writable: bool) -> None:
        self.dialect = dialect
        self._writable = writable
        self._asked: dict[str, tuple[int, Kind, Any]] = {}

    def write(self, message: Message) -> bytes:
        """Return a request as bytes; nothing where this peer need not be told.

        Raises:
            WireError: It has no form on this peer's wire.
            InvalidValue: A value in it has none.
        """
        kind, body = message.kind, message.body
        if kind is _CANCEL:
            return self._write_cancel(message.request_id, body)
        if kind is _PING:
            body = _NO_PING
        wire_id = self._wire_id(message.request_id, body)
        data = self._write(wire_id, body)
        self._asked[wire_id] = (message.request_id, kind, body)
        return data

    def read(self, data: bytes) -> Message | None:
        """Return the reply in a response, or None where nobody waits for it.

        Raises:
            WireError: The bytes are no response.
        """
        envelope = self._open(data)
        asked = self._asked.pop(envelope.request_id, None)
        if asked is None:
            return None
        request_id, kind, request = asked
        try:
            body = self._read(envelope, request)
        except (WireError, InvalidValue) as error:
            body = ErrorBody(
                code="internal",
                error_class="ProtocolError",
                message=f"the reply to {kind.name} cannot be read: {error}",
                outcome="done",
            )
        self._learn(request, body, data)
        if type(body) is ErrorBody:
            kind = _ERROR
        elif kind is _PING and type(body) is ProbeReply:
            kind, body = _PONG, None
        elif self._writable:
            _make_writable(body)
        return Message(kind, request_id, body, envelope.nbytes)

    def _write_cancel(self, request_id: int, body: Cancel) -> bytes:
        for wire_id, (asked_id, _, _) in list(self._asked.items()):
            if asked_id == request_id:
                return self._write(wire_id, body) if self.dialect.details else b""
        return b""

    def _wire_id(self, request_id: int, body: Any) -> str:
        del body
        return str(request_id)

    def _write(self, wire_id: str, body: Any, /) -> bytes:
        raise NotImplementedError

    def _open(self, data: bytes) -> wire.Envelope:
        raise NotImplementedError

    def _read(self, envelope: wire.Envelope, request: Any) -> Any:
        raise NotImplementedError

    def _learn(self, request: Any, body: Any, data: bytes) -> None:
        """Take note of a reply that was read."""


class EnvSpeech(ClientSpeech):
    """Speaks to an env.

    Args:
        contract: What it said of itself.
        dialect: What both ends know.
        writable: Whether received leaves may be written to.
        report: See `EnvClientWire`.
    """

    def __init__(
        self,
        contract: EnvContract,
        dialect: wire.Dialect,
        *,
        writable: bool = False,
        report: Report | None = None,
    ) -> None:
        super().__init__(dialect, writable=writable)
        spoken = wire.EnvClientWire(contract, dialect, report)
        self._spoken = spoken
        self._open = spoken.open
        self._requests = RequestWriter(contract.action_space.codec)
        self._replies = ReplyReader(contract.observation_space.codec)

    def read(self, data: bytes) -> Message | None:
        found = self._replies.match(data)
        if found is not None:
            asked = self._asked.get(found[1])
            if asked is not None and asked[1] is _STEP:
                body = self._replies.read(found, asked[2], len(data))
                if body is not None:
                    del self._asked[found[1]]
                    if self._writable:
                        _make_writable(body)
                    return Message(_STEP, asked[0], body, len(data))
        return super().read(data)

    def _write(self, wire_id: str, body: Any) -> bytes:
        if type(body) is not StepRequest:
            return self._spoken.write(wire_id, body)
        data = self._requests.write(wire_id, body)
        if data is None:
            data = self._spoken.write(wire_id, body)
            self._requests.learn(body, data)
        return data

    def _read(self, envelope: wire.Envelope, request: Any) -> Any:
        return self._spoken.read(envelope, request)

    def _learn(self, request: Any, body: Any, data: bytes) -> None:
        if type(body) is StepReply:
            self._replies.learn(request, body, data)


class ModelSpeech(ClientSpeech):
    """Speaks to a model.

    Args:
        framing: Has the spaces where the session was bound to them before this Join.
        dialect: What both ends know.
        writable: Whether received leaves may be written to.
        report: Called for each metadata value that has no form on the peer's wire.
    """

    def __init__(
        self,
        framing: BoundFraming,
        dialect: wire.Dialect,
        *,
        writable: bool = False,
        report: Report | None = None,
    ) -> None:
        super().__init__(dialect, writable=writable)
        self._framing = framing
        self._report: Report = report or _ignore
        self._routes: dict[str, EnvContract] = {}

    def _wire_id(self, request_id: int, body: Any) -> str:
        context = getattr(body, "context", None)
        if self.dialect.details or context is None or not context.request_id:
            return str(request_id)
        return context.request_id

    def _write(self, wire_id: str, body: Any, /) -> bytes:
        contract = None
        if type(body) is PredictRequest:
            contract = self._contract(body.context.env_id)
        elif type(body) is Resolve:
            contract = decode_contract(body.contract)
            self._routes[body.context.env_id] = contract
            body = wire.ResolveRoute(
                context=body.context,
                contract=contract,
                edition=body.edition,
                execution_horizon=self._horizon(body.execution_horizon),
            )
        return wire.write_model_request(wire_id, body, self.dialect, self._report, contract)

    def _open(self, data: bytes) -> wire.Envelope:
        return wire.open_model_response(data)

    def _read(self, envelope: wire.Envelope, request: Any) -> Any:
        if type(request) is PredictRequest:
            contract = self._contract(request.context.env_id)
            return wire.read_model_reply(envelope, request, contract)
        if type(request) is Resolve:
            request = wire.ResolveRoute(
                context=request.context, contract=self._contract(request.context.env_id)
            )
        return wire.read_model_reply(envelope, request)

    def _horizon(self, horizon: int | None) -> int | None:
        """Return how many frames to ask for: a released model returns one unless it is told."""
        if self.dialect.details:
            return horizon
        return _MOST_FRAMES if horizon is None else min(horizon, _MOST_FRAMES)

    def _contract(self, env_id: str) -> EnvContract:
        contract = self._routes.get(env_id) or self._framing.contract
        if contract is None:
            raise WireError(f"route {env_id!r} was not made known before its first predict")
        return contract


def _make_writable(body: Any) -> None:
    if type(body) is StepReply or type(body) is ResetReply:
        body.observation = _own(body.observation)
    elif type(body) is PredictReply:
        body.frames = tuple([_own(frame) for frame in body.frames])


def _own(leaves: Leaves) -> Leaves:
    return [
        leaf if not isinstance(leaf, np.ndarray) or leaf.flags.writeable else leaf.copy()  # pyright: ignore[reportUnknownMemberType]
        for leaf in leaves
    ]


def _ignore(path: str, detail: str) -> None:
    del path, detail
