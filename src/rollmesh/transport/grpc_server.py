"""gRPC: the connections of a server's clients (layer 5).

One Join is one connection. Its first message is the client's hello: the one that came with the
Join's metadata from a rollmesh client, one made up for a released client, which says nothing. A
released client that ends its stream has closed its session; a rollmesh client may come back.

`grpc_listener.py` makes them. grpc is imported here.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any

from rollmesh.errors import WireError
from rollmesh.transport.connection import DEFAULT_OPTIONS, Connection, ConnectionOptions
from rollmesh.transport.grpc_calls import CallEnded, CallLate, ServerCall
from rollmesh.transport.grpc_common import (
    BUSY,
    ERROR_KEY,
    HELLO_KEY,
    TOKEN_KEY,
    BoundFraming,
    status_of,
)
from rollmesh.transport.grpc_loading import grpc
from rollmesh.transport.grpc_server_speech import (
    EnvServerSpeech,
    ModelServerSpeech,
    ServerSpeech,
)
from rollmesh.wire import protobuf as wire
from rollmesh.wire.contract import decode_contract
from rollmesh.wire.dialect import CONCURRENT_PREDICT, FOREIGN, SUBSET_STEP
from rollmesh.wire.handshake import Offer, offer
from rollmesh.wire.messages import GENERATION, ErrorBody, Hello, Kind, Message, Welcome
from rollmesh.wire.proto_handshake import Service

_logger = logging.getLogger(__name__)

_PATIENCE_S = 1.0
"""How long a released client may wait for the session before it to end; it cannot be told that it
waits."""
_SEND_S = 10.0
_LOOK_S = 0.02


class GrpcServerConnection(Connection):
    """A client's Join.

    Attributes:
        is_foreign: Whether the client is no rollmesh: nothing of ours is said to it, and its
            session cannot be resumed.
    """

    def __init__(
        self, service: Service, call: ServerCall, options: ConnectionOptions = DEFAULT_OPTIONS
    ) -> None:
        super().__init__(call.peer, options)
        self.framing = self._bound = BoundFraming(options.report)
        self._service: Service = service
        self._call = call
        self._speech: ServerSpeech | None = None
        self._lock = threading.Lock()
        self._ready: deque[Message] = deque()
        self._hello_id = self.next_id()
        self._is_gone = False
        self._is_told = False
        self._all_said = threading.Event()
        self._patience: threading.Timer | None = None
        self._has_place = False
        said = self._read_hello()
        self.is_foreign = said is None
        self._dialect = FOREIGN if said is None else said.dialect

    # ------------------------------------------------------------------------ interface

    def keep_parts(self) -> bool:
        return self._call.can_pause

    def is_gone(self) -> bool:
        return self._end_reason is not None or self._is_gone or not self._call.look()

    def send(self, message: Message, timeout_s: float | None = None) -> int:
        lock = self._lock
        if not lock.acquire(blocking=False):
            timeout_s = self._take_turn(lock, timeout_s)
        try:
            if self._end_reason is not None:
                raise self._lost("closed")
            if self._is_gone:
                return self._sent_to_nobody()
            speech = self._speech
            if speech is None:
                return self._answer_hello(message)
            if message.kind is Kind.PING:  # HTTP/2 has its own
                return 0
            data = speech.write(message)
            if data is None:
                return 0
            size = self._put(data, timeout_s)
            if speech.is_over:
                self._call.finish(grpc.StatusCode.OK, "")
            if not speech.is_waited_for:
                self._all_said.set()
            return size
        finally:
            lock.release()

    def receive(self, timeout_s: float | None = None) -> Message:
        ready = self._ready
        if ready:
            return ready.popleft()
        if self._end_reason is not None:
            raise self._lost("closed")
        try:
            while True:
                message = self._read(self._call.read(timeout_s))
                if message is not None:
                    return message
        except CallEnded:
            return self._gone()
        except CallLate as late:
            if not late.is_usable:
                self._lost("nothing came in time")
            raise self._late("nothing came", timeout_s, is_usable=late.is_usable) from None

    def shutdown(self, reason: str = "shut down here") -> None:
        self._lost(reason)
        self._all_said.set()
        # one that ended its stream has its answers: that is a good end
        code = grpc.StatusCode.OK if self._is_told else grpc.StatusCode.UNAVAILABLE
        self._call.finish(code, reason)

    def close(self) -> None:
        is_first = self._end_reason is None
        self._lost("closed here")
        if is_first:
            self._call.finish(grpc.StatusCode.OK, "")
        self._call.close()

    # ------------------------------------------------------------------------ the hello

    def _read_hello(self) -> Offer | None:
        """Make the hello that is received first; return what came with the Join, if anything."""
        metadata = self._call.metadata
        token = metadata.get(TOKEN_KEY, "")
        data = metadata.get(HELLO_KEY)
        said = wire.read_hello(self._service, data) if isinstance(data, bytes) else None
        self._ready.append(
            Message(
                Kind.HELLO,
                self._hello_id,
                hello_of(self._service, said or Offer(editions=()), as_text(token)),
            )
        )
        return said

    def _answer_hello(self, message: Message) -> int:
        body = message.body
        if type(body) is ErrorBody:
            self._refuse(body)
            return 0
        if type(body) is not Welcome:
            raise WireError(f"a {message.kind.name} in answer to HELLO")
        if not body.is_compatible:
            self._refuse(ErrorBody(code="incompatible", message=body.detail))
            return 0
        if body.position:
            return self._queued(body)
        if self._patience is not None:
            self._patience.cancel()
        contract = decode_contract(body.contract) if body.contract else None
        report = self.options.report
        if self._service == "model":
            self._speech = ModelServerSpeech(self._bound, self._dialect, report)
        elif contract is None:
            raise WireError("a WELCOME of an env without a contract")
        else:
            self._speech = EnvServerSpeech(
                contract,
                self._dialect,
                has_lanes=body.capabilities.get(SUBSET_STEP) == "true",
                report=report,
            )
        if self.is_foreign:
            return 0
        return self._put(self._welcome(body, contract), None)

    def _welcome(self, body: Welcome, contract: Any) -> bytes:
        said = offer_of(self._service, body)
        return wire.write_welcome(self._service, said, contract=contract, dialect=self._dialect)

    def _queued(self, body: Welcome) -> int:
        if not self.is_foreign:
            return self._put(self._welcome(body, None), None)
        if body.detail:  # it has a place, which it may wait for
            self._has_place = True
            if self._patience is not None:
                self._patience.cancel()
        elif self._patience is None:
            timer = self._patience = threading.Timer(_PATIENCE_S, self._out_of_patience)
            timer.daemon = True
            timer.start()
        return 0

    def _out_of_patience(self) -> None:
        with self._lock:
            if self._speech is None and not self._has_place:
                self._refuse(ErrorBody(code="busy", message=BUSY))

    def _refuse(self, body: ErrorBody) -> None:
        """End the Join with a status that says why; called with the lock."""
        code, text = status_of(body), body.message
        if self.is_foreign and body.code == "busy" and self._service == "env":
            text = BUSY
        self._call.finish(code, text, ((ERROR_KEY, body.code),))
        self._lost(f"refused: {text}")

    # ------------------------------------------------------------------------ inside

    def _read(self, data: bytes) -> Message | None:
        """Return the first request in a message; others, if any, are kept for later."""
        try:
            got: Any = self._understood(data)
        except WireError as error:
            self.shutdown(str(error))
            raise
        if type(got) is bytes:
            with self._lock:
                self._put(got, _SEND_S)
            return None
        if not got:
            return None
        first, *rest = got
        self._ready.extend(rest)
        return first

    def _understood(self, data: bytes) -> Any:
        """Return the requests in a message, or bytes to answer it with.

        Raises:
            WireError: It is too large, too early or no message.
        """
        if len(data) > self.most_bytes:
            raise WireError(f"a message of {len(data)} bytes; {self.most_bytes} are allowed")
        if self._speech is None:
            raise WireError("a message before the welcome")
        return self._speech.read(data)

    def _put(self, data: bytes, timeout_s: float | None) -> int:
        """Send bytes; called with the lock."""
        try:
            self._call.write(data, timeout_s)
        except CallEnded:
            self._is_gone = True
            return self._sent_to_nobody()
        except CallLate:
            self._lost("the client took nothing in time")
            self._call.cancel()
            raise self._late(
                "the client did not take a message", timeout_s, is_usable=False
            ) from None
        return len(data)

    def _sent_to_nobody(self) -> int:
        """Let a released client's session end when its stream is read; others may resume."""
        if self.is_foreign:
            return 0
        raise self._lost("the client is gone")

    def _gone(self) -> Message:
        speech = self._speech
        if self._end_reason is None and self.is_foreign and speech and not self._is_told:
            self._answer_rest(speech)
            self._is_gone = self._is_told = True
            return speech.farewell()
        self._is_gone = True
        raise self._lost("the client is gone, or ended its stream") from None

    def _answer_rest(self, speech: ServerSpeech) -> None:
        """Wait until a client that asks for nothing more, but listens, has its answers."""
        while self._call.look() and self._end_reason is None:
            with self._lock:
                if not speech.is_waited_for:
                    return
                self._all_said.clear()
            self._all_said.wait(_LOOK_S)


def hello_of(service: Service, said: Offer, token: str) -> Hello:
    """Return what a client said as the hello that sessions know."""
    return Hello(
        generation=GENERATION,
        service=service,
        token=token,
        session_id=said.session_id,
        capabilities=dict(said.capabilities),
        peer={"component": said.peer.component, **said.peer.extra},
        editions=said.editions,
        preferred_edition=said.preferred_edition,
    )


def offer_of(service: Service, body: Welcome) -> Offer:
    """Return a server's welcome as what its handshake says."""
    granted = [name for name, value in body.capabilities.items() if value == "true"]
    if service == "model" and "concurrent_predict" in granted:
        granted.append(CONCURRENT_PREDICT)
    said = offer(service, capabilities=granted, extra=body.peer, session_id=body.session_id)
    return Offer(
        peer=said.peer,
        capabilities=said.capabilities,
        session_id=body.session_id,
        is_compatible=body.is_compatible,
        error=body.detail,
        position=body.position,
        is_resumed=body.is_resumed,
    )


def as_text(value: Any) -> str:
    """Return a metadata value as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
