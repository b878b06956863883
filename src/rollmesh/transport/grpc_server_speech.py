"""gRPC: the bytes of a client's Join as a server's messages, and back (layer 5).

One object per Join. It remembers what was asked: a released peer wants its own request id back,
whatever it is, and a reply is written by what it answers. Requests that cannot be read are answered
here; the session never sees them. Towards a released peer it also keeps the books that the peer
expects an env server to keep (`EpisodeLedger`), and takes grouped predicts apart.

Knows no streams.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import Any

import msgspec

from rollmesh.errors import InvalidValue, WireError
from rollmesh.ports import (
    EnvContract,
    PredictRequest,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.transport.grpc_common import BoundFraming
from rollmesh.transport.grpc_steps import ReplyWriter, RequestReader, is_plain
from rollmesh.wire import protobuf as wire
from rollmesh.wire.contract import encode_contract
from rollmesh.wire.messages import Close, ErrorBody, Kind, Message, Resolve
from rollmesh.wire.metadata import Report

_logger = logging.getLogger(__name__)

_CANCEL, _PREDICT, _RESOLVE, _STEP, _RESET = (
    Kind.CANCEL,
    Kind.PREDICT,
    Kind.RESOLVE,
    Kind.STEP,
    Kind.RESET,
)
_LARGEST_ID = 2**64
_LONGEST_ID = 20
_MOST_GROUPS = 1024
_NO_FACTS: dict[int, wire.EpisodeFacts] = {}


class Asked(msgspec.Struct, gc=False):
    """A request that was not answered yet.

    Attributes:
        wire_id: Its id as the client sent it.
        body: What was asked.
        begun_ns: When it came.
        group: The grouped request that it is a part of, if it is.
        place: Its place among the parts.
    """

    wire_id: str
    body: Any
    begun_ns: int
    group: Any = None
    place: int = 0


class _Group:
    """A grouped predict: parts that are answered one by one, and together."""

    def __init__(self, wire_id: str, size: int) -> None:
        self.wire_id = wire_id
        self.results: list[Any] = [None] * size
        self.left = size


class ServerSpeech:
    """What the two services have in common.

    Args:
        dialect: What both ends know.
        report: Called for each value that has no form on the peer's wire.
    """

    def __init__(self, dialect: wire.Dialect, report: Report | None) -> None:
        self.dialect = dialect
        self.is_over = False
        """Whether the stream ends with what was written last."""
        self._report = report
        self._asked: dict[int, Asked] = {}
        self._next_id = itertools.count(1).__next__
        self._lock = threading.Lock()

    def read(self, data: bytes) -> list[Message] | bytes:
        """Return the requests in a message, or the bytes of an answer for the client.

        Raises:
            WireError: It is no message at all.
        """
        raise NotImplementedError

    def write(self, message: Message) -> bytes | None:
        """Return a reply as bytes, or None where nothing is to be sent now.

        Raises:
            WireError: It has no form on this peer's wire; another reply may be given instead.
        """
        raise NotImplementedError

    @property
    def is_waited_for(self) -> bool:
        """Whether an answer is still owed."""
        return bool(self._asked)

    def farewell(self) -> Message:
        """Return what a released client means by ending its stream."""
        return Message(Kind.CLOSE, self._next_id(), Close(reason="its stream ended"))

    def _note(self, wire_id: str, body: Any) -> int:
        """Take note of a request; return its id as a number."""
        request_id = 0
        if self.dialect.details:
            request_id = _number(wire_id)
        if not request_id:
            request_id = self._next_id()
        self._asked[request_id] = Asked(wire_id, body, time.perf_counter_ns())
        return request_id

    def _find(self, wire_id: str) -> int:
        """Return the number of a request under way, or 0."""
        for request_id, asked in list(self._asked.items()):
            if asked.wire_id == wire_id:
                return request_id
        return 0

    def _cancelled(self, envelope: wire.Envelope, body: Any) -> list[Message]:
        request_id = self._find(envelope.request_id)
        return [Message(_CANCEL, request_id, body, envelope.nbytes)] if request_id else []

    def _timing(self, body: Any, asked: Asked) -> dict[str, int]:
        total_ns = getattr(body, "endpoint_total_ns", None)
        if total_ns is None:
            total_ns = time.perf_counter_ns() - asked.begun_ns
        return {"endpoint_total_ns": max(0, total_ns)}

    def _told(self, body: ErrorBody) -> ErrorBody:
        """Return an error in words that a released peer has."""
        if not self.dialect.details and body.code == "invalid_value":
            code = "invalid_action" if body.outcome == "not_done" else "internal"
            return msgspec.structs.replace(body, code=code)
        return body


class EnvServerSpeech(ServerSpeech):
    """Speaks for an env.

    Args:
        contract: What is served.
        dialect: What both ends know.
        has_lanes: Whether each lane can be stepped on its own.
        report: Called for each info that has no form on the peer's wire.
    """

    def __init__(
        self,
        contract: EnvContract,
        dialect: wire.Dialect,
        *,
        has_lanes: bool = False,
        report: Report | None = None,
    ) -> None:
        super().__init__(dialect, report)
        self._wire = wire.EnvServerWire(contract, dialect, has_lanes=has_lanes, report=report)
        self._ledger = None if dialect.details else wire.EpisodeLedger(contract)
        self._num_envs = contract.num_envs
        self._requests = RequestReader(contract.action_space.codec, contract.num_envs)
        self._replies = ReplyWriter(contract.observation_space.codec)

    def read(self, data: bytes) -> list[Message] | bytes:
        quick = self._requests.read(data)
        if quick is not None:
            body, wire_id = quick
            return [Message(_STEP, self._note(wire_id, body), body, len(data))]
        envelope = wire.open_env_request(data)
        kind = envelope.kind
        try:
            body = self._wire.read(envelope)
        except InvalidValue as error:
            return self._refuse(envelope, "invalid_action", str(error))
        except WireError as error:
            code = "unsupported" if kind is None else "invalid_action"
            return self._refuse(envelope, code, str(error))
        if kind is _CANCEL:
            return self._cancelled(envelope, body)
        assert kind is not None  # noqa: S101 - refused above
        if kind is _STEP:
            self._requests.learn(body, data)
        return [Message(kind, self._note(envelope.request_id, body), body, envelope.nbytes)]

    def write(self, message: Message) -> bytes | None:
        asked = self._asked.get(message.request_id)
        if asked is None:
            return None
        body: Any = message.body
        request: Any = asked.body
        ended, interrupted = _NO_FACTS, ()
        ledger = self._ledger
        if type(body) is ErrorBody:
            body = self._told(body)
            self.is_over = ledger is not None and not body.is_recoverable
            if ledger is not None and self.is_over:
                interrupted = ledger.close()
        elif ledger is not None:
            if type(body) is StepReply:
                ended = ledger.step(request, body)
                interrupted = ledger.take_interrupted()
            elif type(body) is ResetReply:
                ledger.reset(_named(request, len(body.infos)))
            elif type(request) is Close:
                interrupted = ledger.close()
        timing = self._timing(body, asked)
        if type(body) is StepReply and not interrupted and self._is_plain(body, request):
            data = self._write_plain(asked.wire_id, body, asked.body, timing)
        else:
            data = self._wire.write(
                asked.wire_id,
                body,
                request,
                ended=ended,
                interrupted=interrupted,
                timing_ns=timing,
            )
        self._asked.pop(message.request_id, None)
        return data

    def _write_plain(
        self, wire_id: str, reply: StepReply, request: StepRequest, timing: dict[str, int]
    ) -> bytes:
        """Return a reply that may be like the one before."""
        lanes = request.env_indices
        data = self._replies.write(wire_id, reply, lanes, timing["endpoint_total_ns"])
        if data is None:
            data = self._wire.write(wire_id, reply, request, timing_ns=timing)
            self._replies.learn(lanes, reply, data)
        return data

    def _is_plain(self, reply: StepReply, request: Any) -> bool:
        """Return whether a reply can be written like the one before, if that was alike."""
        rows = len(request.env_indices) or self._num_envs
        return len(reply.rewards) == rows == len(reply.infos) and is_plain(reply)

    def _refuse(self, envelope: wire.Envelope, code: str, text: str) -> bytes:
        return self._wire.write(envelope.request_id, _refusal(code, text))


class ModelServerSpeech(ServerSpeech):
    """Speaks for a model.

    Args:
        framing: Has the spaces where the session was bound to them before this Join.
        dialect: What both ends know.
        report: Called for each value that has no form on the peer's wire.
    """

    def __init__(
        self, framing: BoundFraming, dialect: wire.Dialect, report: Report | None = None
    ) -> None:
        super().__init__(dialect, report)
        self._framing = framing
        self._routes: dict[str, tuple[EnvContract, int | None]] = {}

    def read(self, data: bytes) -> list[Message] | bytes:
        envelope = wire.open_model_request(data)
        kind = envelope.kind
        try:
            if kind is _PREDICT:
                return self._read_predicts(envelope)
            body = wire.read_model_request(envelope)
        except (InvalidValue, WireError) as error:
            code = "unsupported" if kind is None else "invalid_request"
            return self._refuse(envelope.request_id, code, str(error))
        except _Unknown as error:
            return self._refuse(envelope.request_id, "not_configured", str(error))
        assert kind is not None  # noqa: S101 - refused above
        if kind is _CANCEL:
            return self._cancelled(envelope, body)
        if kind is _RESOLVE:
            body = self._route(body)
        return [Message(kind, self._note(envelope.request_id, body), body, envelope.nbytes)]

    def write(self, message: Message) -> bytes | None:
        asked = self._asked.get(message.request_id)
        if asked is None:
            return None
        body = self._told(message.body) if type(message.body) is ErrorBody else message.body
        contract = None
        if type(asked.body) is PredictRequest:
            contract = self._spaces(asked.body.context.env_id)[0]
        timing = self._timing(body, asked)
        if asked.group is not None:
            data = self._write_part(asked, body, contract, timing)
        else:
            data = wire.write_model_reply(
                asked.wire_id,
                body,
                self.dialect,
                request=asked.body,
                contract=contract,
                timing_ns=timing,
            )
        self._asked.pop(message.request_id, None)
        return data

    def _read_predicts(self, envelope: wire.Envelope) -> list[Message] | bytes:
        if not wire.is_grouped(envelope):
            body = self._read_predict(envelope.message, envelope.leaves)
            return [Message(_PREDICT, self._note(envelope.request_id, body), body, envelope.nbytes)]
        parts = list(wire.groups_of(envelope))
        if not parts or len(parts) > _MOST_GROUPS:
            raise WireError(f"a grouped predict of {len(parts)} parts; 1 to {_MOST_GROUPS} fit")
        group = _Group(envelope.request_id, len(parts))
        messages: list[Message] = []
        for place, part in enumerate(parts):
            try:
                body = self._read_predict(part, None)
            except (InvalidValue, WireError, _Unknown) as error:
                code = "not_configured" if isinstance(error, _Unknown) else "invalid_request"
                group.results[place] = (_refusal(code, str(error)), None)
                group.left -= 1
                continue
            request_id = self._next_id()
            self._asked[request_id] = Asked(
                group.wire_id, body, time.perf_counter_ns(), group, place
            )
            messages.append(Message(_PREDICT, request_id, body, envelope.nbytes))
        if messages:
            return messages
        return wire.write_grouped_reply(group.wire_id, group.results, self.dialect)

    def _write_part(
        self, asked: Asked, body: Any, contract: EnvContract | None, timing: dict[str, int]
    ) -> bytes | None:
        group: _Group = asked.group
        with self._lock:
            group.results[asked.place] = (body, contract)
            group.left -= 1
            if group.left:
                return None
        return wire.write_grouped_reply(group.wire_id, group.results, self.dialect, timing)

    def _read_predict(self, message: Any, cut: Any) -> PredictRequest:
        contract, horizon = self._spaces(wire.context_of(message).env_id)
        return wire.read_predict(message, contract, horizon, cut)

    def _spaces(self, env_id: str) -> tuple[EnvContract, int | None]:
        route = self._routes.get(env_id)
        if route is not None:
            return route
        contract = self._framing.contract
        if contract is None:
            raise _Unknown(f"route {env_id!r} was not made known (resolve_adapter) on this stream")
        return contract, None

    def _route(self, route: wire.ResolveRoute) -> Resolve:
        self._routes[route.context.env_id] = (route.contract, route.execution_horizon)
        return Resolve(
            context=route.context,
            contract=encode_contract(route.contract),
            edition=route.edition,
            execution_horizon=route.execution_horizon,
        )

    def _refuse(self, wire_id: str, code: str, text: str) -> bytes:
        return wire.write_model_reply(wire_id, _refusal(code, text), self.dialect)


class _Unknown(Exception):  # noqa: N818 - never leaves this module
    """A predict for a route that was not made known."""


def _refusal(code: str, text: str) -> ErrorBody:
    return ErrorBody(
        code=code, error_class=code, message=text, is_recoverable=True, outcome="not_done"
    )


def _number(wire_id: str) -> int:
    """Return the number that a rollmesh client wrote as a request id, or 0."""
    if not wire_id.isascii() or not wire_id.isdigit() or len(wire_id) > _LONGEST_ID:
        return 0
    number = int(wire_id)
    return number if number < _LARGEST_ID else 0


def _named(request: ResetRequest, rows: int) -> ResetRequest:
    """Return a reset with an episode id per row, empty where the client pushed none."""
    if request.episode_ids:
        return request
    return msgspec.structs.replace(request, episode_ids=("",) * rows)
