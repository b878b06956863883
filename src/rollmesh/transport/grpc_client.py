"""gRPC: connections of clients (layer 5).

    connection = dial_grpc(parse_address("tcp://127.0.0.1:5000"))
    welcome = connection.call(Message(Kind.HELLO, connection.next_id(), Hello(…)), timeout_s=10)
    reply = connection.call(Message(Kind.STEP, connection.next_id(), StepRequest(…)), timeout_s=9)

`HELLO` becomes the Handshake call and the opening of the Join. A released server gets what a
released client would send; a rollmesh server gets our hello with the Join, and its welcomes come
over the stream, several while we queue. `SHUTDOWN` is a call of its own. What the peer's wire has
no words for is left out (`CANCEL`, `PING`) or refused (`WireError`).

grpc is imported here.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from typing import Any, Literal, TypeAlias, cast

from rollmesh.errors import ConnectFailed, ConnectionLost, WireError
from rollmesh.ports import EnvContract
from rollmesh.transport.address import Address
from rollmesh.transport.connection import DEFAULT_OPTIONS, Connection, ConnectionOptions
from rollmesh.transport.grpc_client_speech import ClientSpeech, EnvSpeech, ModelSpeech
from rollmesh.transport.grpc_common import (
    CLIENT_OPTIONS,
    ERROR_KEY,
    HELLO_KEY,
    SERVICES,
    TOKEN_KEY,
    BoundFraming,
    refusal_of,
    target_of,
    unreached,
)
from rollmesh.transport.grpc_loading import grpc
from rollmesh.transport.grpc_nudge import UnaryCall, ask_for_health, await_call
from rollmesh.transport.grpc_stream import JoinStream, StreamEnded, StreamLate, open_stream
from rollmesh.transport.security import TlsClient
from rollmesh.wire import protobuf as wire
from rollmesh.wire.contract import encode_contract
from rollmesh.wire.handshake import RUNTIME, Offer, offer, party, select_edition
from rollmesh.wire.messages import (
    GENERATION,
    Configure,
    Done,
    ErrorBody,
    Hello,
    Kind,
    Message,
    Welcome,
)

_logger = logging.getLogger(__name__)

Service: TypeAlias = Literal["env", "model"]

_LARGE_BYTES = 64 * 1024
"""Observations from this size on are large: see `grpc_stream.open_stream`."""
_FLUSH_S = 0.05
"""How long closing waits for what was sent last."""
_FAREWELL_S = 5.0
"""How long a thread waits for it after that."""
_STUCK_S = 1.0
_NO_ANSWER = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
_TOO_LARGE = frozenset({"RESOURCE_EXHAUSTED", "OUT_OF_RANGE"})


class GrpcConnection(Connection):
    """A client's connection to a gRPC server, released or ours.

    Attributes:
        described: What the server said in the Handshake, or None before there was one.
        edition: The workflow edition of the session, or `""`.
    """

    def __init__(
        self, address: str, channel: grpc.Channel, options: ConnectionOptions = DEFAULT_OPTIONS
    ) -> None:
        super().__init__(address, options)
        self.framing = self._bound = BoundFraming(options.report)
        self.described: Offer | None = None
        self.edition = ""
        self._contract: EnvContract | None = None
        self._channel: grpc.Channel | None = channel
        self._stream: JoinStream | None = None
        self._speech: ClientSpeech | None = None
        self._unary: Any = None
        self._service: Service = "env"
        self._metadata: tuple[tuple[str, str | bytes], ...] = ()
        self._ready: deque[Message] = deque()
        self._hello_id = 0
        """Set while the server's welcome is to come over the stream."""

    # ------------------------------------------------------------------------ interface

    @property
    def path(self) -> str:
        return "gRPC"

    def send(self, message: Message, timeout_s: float | None = None) -> int:
        return self._say(message, timeout_s)

    def post(self, message: Message) -> bool:
        self._say(message, None, is_posted=True)
        return True  # whoever receives sees to it

    def _say(self, message: Message, timeout_s: float | None, *, is_posted: bool = False) -> int:
        if self._end_reason is not None:
            raise self._lost("closed")
        stream, speech = self._stream, self._speech
        if stream is None or speech is None:
            return self._send_first(message, timeout_s)
        kind = message.kind
        if kind is Kind.SHUTDOWN:
            return self._ask_shutdown(message, timeout_s)
        if not speech.dialect.details and (answer := self._answer_for(message)) is not None:
            self._ready.append(answer)
            return 0
        data = speech.write(message)
        if not data:
            return 0
        try:
            if is_posted:
                stream.post(data)
            else:
                stream.send(data, math.inf if timeout_s is None else time.monotonic() + timeout_s)
        except StreamEnded as end:
            raise self._lost(str(end)) from None
        except StreamLate:
            self._end("a message could not be sent in time")
            raise self._late("a message could not be sent", timeout_s, is_usable=False) from None
        except BaseException:  # Ctrl-C: nobody knows what the call has heard of
            self._end("interrupted while sending")
            raise
        return len(data)

    def receive(self, timeout_s: float | None = None) -> Message:
        if self._ready:
            return self._ready.popleft()
        if self._end_reason is not None:
            raise self._lost("closed")
        stream, speech = self._stream, self._speech
        if stream is None:
            raise self._lost("nothing was said yet")
        expiry = math.inf if timeout_s is None else time.monotonic() + timeout_s
        try:
            while True:
                data = stream.receive(expiry)
                if self._hello_id:
                    return self._read_welcome(data)
                assert speech is not None  # noqa: S101 - there is one once the hello is done
                message = speech.read(data)
                if message is not None:
                    return message
                _logger.debug("reply_dropped address=%s bytes=%d", self.address, len(data))
        except StreamLate as late:
            if not late.is_usable:
                self._lost("its reply came too late")
            raise self._late("nothing came", timeout_s, is_usable=late.is_usable) from None
        except StreamEnded as end:
            return self._ended(end)
        except WireError as error:
            self._end(str(error))
            raise

    def shutdown(self, reason: str = "shut down here") -> None:
        self._end(reason)

    def close(self) -> None:
        is_first = self._end_reason is None
        self._lost("closed here")
        unary, stream = self._unary, self._stream
        if unary is not None:
            unary.cancel()
        if stream is not None and is_first and not stream.close(_FLUSH_S):
            # a server that is stopped hears what was said last when it goes on
            threading.Thread(
                target=self._let_go, args=(_FAREWELL_S,), name="rollmesh-grpc-end", daemon=True
            ).start()
        else:
            self._let_go(0.0)

    def _let_go(self, limit_s: float) -> None:
        """End the call, at the latest after the limit, and the channel."""
        stream = self._stream
        if stream is not None and not (limit_s and stream.close(limit_s)):
            stream.cancel()
            stream.close(_STUCK_S)
        channel, self._channel = self._channel, None  # whoever keeps this keeps no descriptors
        if channel is not None:
            channel.close()

    # ------------------------------------------------------------------------ the hello

    def describe(
        self,
        service: Service,
        *,
        token: str = "",
        session_id: str = "",
        timeout_s: float | None = None,
    ) -> Offer | ErrorBody:
        """Ask what is served, without a session: the Handshake alone.

        Args:
            service: What is expected there.
            token: The secret, or `""`.
            session_id: The session that is going to be resumed, or `""`.
            timeout_s: How long it may take.

        Raises:
            ConnectionLost: Nobody answered.
            TransportTimeout: Nothing came in time.
            WireError: What came is no answer.
        """
        if self.described is not None and self._service == service:
            return self.described
        self._service = service
        self._metadata = ((TOKEN_KEY, token),) if token else ()
        said = offer(service, session_id=session_id)
        answer = self._ask("Handshake", wire.write_hello(service, said), timeout_s)
        if isinstance(answer, ErrorBody):
            return answer
        self.described, self._contract = wire.read_welcome(service, answer)
        return self.described

    def _send_first(self, message: Message, timeout_s: float | None) -> int:
        match message.kind:
            case Kind.HELLO:
                self._greet(message.request_id, message.body, timeout_s)
            case Kind.SHUTDOWN:
                return self._ask_shutdown(message, timeout_s)
            case _:
                raise WireError(f"{message.kind.name} before HELLO")
        return 0

    def _greet(self, request_id: int, hello: Hello, timeout_s: float | None) -> None:
        expiry = math.inf if timeout_s is None else time.monotonic() + timeout_s
        service = cast("Service", hello.service)
        said = self.describe(
            service, token=hello.token, session_id=hello.session_id, timeout_s=timeout_s
        )
        if isinstance(said, ErrorBody):
            self._ready.append(Message(Kind.ERROR, request_id, said))
            return
        if said.is_compatible:
            try:
                self.edition = select_edition((party(service, said), RUNTIME))
            except WireError as error:
                said = _unsuited(said, str(error))
        if not said.is_compatible:
            self._ready.append(Message(Kind.WELCOME, request_id, self._welcome(said)))
            return
        self._join(request_id, said, hello.session_id)
        if not said.dialect.details and not self._configure(request_id, expiry, timeout_s):
            return
        if not self._hello_id:
            self._ready.append(Message(Kind.WELCOME, request_id, self._welcome(said)))

    def _join(self, request_id: int, said: Offer, session_id: str) -> None:
        """Open the Join."""
        metadata = self._metadata
        if said.dialect.details:
            hello = wire.write_hello(self._service, offer(self._service, session_id=session_id))
            metadata = (*metadata, (HELLO_KEY, hello))
            self._hello_id = request_id
        self.is_foreign = not said.dialect.details
        writable, report = self.options.writable, self.options.report
        is_large = False
        if self._service == "model":
            self._speech = ModelSpeech(self._bound, said.dialect, writable=writable, report=report)
        else:
            contract = self._contract
            if contract is None:
                raise WireError("the server sent no env contract")
            self._speech = EnvSpeech(contract, said.dialect, writable=writable, report=report)
            is_large = _is_large(contract)
        path = f"/{SERVICES[self._service]}/Join"
        channel = self._channel
        if channel is None:
            raise self._lost("closed")
        self._stream = open_stream(channel, path, metadata, is_large=is_large)
        if self._end_reason is not None:
            self._stream.cancel()

    def _configure(self, request_id: int, expiry: float, timeout_s: float | None) -> bool:
        """Fix the edition of a released env's session: its answer says that we are let in."""
        stream, speech = self._stream, self._speech
        if self._service != "env" or stream is None or speech is None:
            return True
        configure = Message(Kind.CONFIGURE, request_id, Configure(edition=self.edition))
        try:
            stream.send(speech.write(configure))
            reply = speech.read(stream.receive(expiry))
        except StreamLate:
            self._lost("its welcome came too late")
            raise self._late("no welcome came", timeout_s, is_usable=False) from None
        except StreamEnded as end:
            self._ready.append(self._refusal(request_id, end))
            return False
        if reply is not None and reply.kind is Kind.ERROR:
            self._ready.append(reply)
            return False
        return True

    def _read_welcome(self, data: bytes) -> Message:
        said, contract = wire.read_welcome(self._service, data)
        request_id = self._hello_id
        if said.is_compatible and said.position == 0:
            self._hello_id = 0
            if contract is not None:
                self._contract = contract
        return Message(Kind.WELCOME, request_id, self._welcome(said), len(data))

    def _welcome(self, said: Offer) -> Welcome:
        contract = self._contract
        return Welcome(
            generation=GENERATION,
            is_compatible=said.is_compatible,
            detail=said.error,
            session_id=said.session_id,
            position=said.position,
            is_resumed=said.is_resumed,
            capabilities=dict(said.capabilities),
            peer={
                "component": said.peer.component,
                "package_version": said.peer.package_version,
                "language": said.peer.language,
                "os": said.peer.os,
                **said.peer.extra,
            },
            editions=said.editions,
            preferred_edition=said.preferred_edition,
            contract=b"" if contract is None else encode_contract(contract),
        )

    # ------------------------------------------------------------------------ other calls

    def _ask(self, method: str, request: bytes, timeout_s: float | None) -> bytes | ErrorBody:
        """Do a call that has one answer; return it, or what the server meant by its status."""
        channel = self._channel
        if self._end_reason is not None or channel is None:
            raise self._lost("closed")
        path = f"/{SERVICES[self._service]}/{method}"
        ask: UnaryCall = channel.unary_unary(path)
        call = self._unary = ask.future(request, timeout=timeout_s, metadata=self._metadata)
        if self._end_reason is not None:  # shut down meanwhile
            call.cancel()
        try:
            error = await_call(call, channel)
        except grpc.FutureCancelledError:
            raise self._lost("cancelled") from None
        finally:
            self._unary = None
        if error is None:
            return call.result()
        code, details = call.code().name, call.details() or ""
        if code == "DEADLINE_EXCEEDED":
            raise self._late(f"{method} was not answered", timeout_s, is_usable=True)
        refusal = refusal_of(code, details)
        if refusal is None:
            raise ConnectionLost(self.address, f"{method}: {code}: {details}")
        if code == "UNIMPLEMENTED":
            refusal = ErrorBody(
                code="incompatible",
                message=f"no {self._service} is served there ({details}); check which address "
                "is which",
                outcome="not_done",
            )
        return refusal

    def _ask_shutdown(self, message: Message, timeout_s: float | None) -> int:
        request = wire.write_shutdown(self._service, message.body)
        answer = self._ask("Shutdown", request, timeout_s)
        if isinstance(answer, ErrorBody):
            self._ready.append(Message(Kind.ERROR, message.request_id, answer))
        else:
            body = wire.read_shutdown_reply(self._service, answer)
            self._ready.append(Message(Kind.SHUTDOWN, message.request_id, body, len(answer)))
        return len(request)

    def _answer_for(self, message: Message) -> Message | None:
        """Return the answer that a released server needs not be asked for."""
        if message.kind is Kind.PING:
            return Message(Kind.PONG, message.request_id)
        if message.kind is Kind.CONFIGURE and message.body.edition in ("", self.edition):
            return Message(Kind.CONFIGURE, message.request_id, Done())
        return None

    # ------------------------------------------------------------------------ endings

    def _ended(self, end: StreamEnded) -> Message:
        """Return the refusal that the end of the stream is, or raise what it means."""
        if self._hello_id:
            return self._refusal(self._hello_id, end)
        if end.code in _TOO_LARGE and self._end_reason is None:
            self._lost(str(end))
            raise WireError(f"{end}; see SIZE_LIMITS.message_bytes") from None
        raise self._lost(str(end)) from None

    def _refusal(self, request_id: int, end: StreamEnded) -> Message:
        named = end.trailers.get(ERROR_KEY, "")
        if isinstance(named, bytes):
            named = named.decode("ascii", "replace")
        refusal = refusal_of(end.code, end.details, named)
        if refusal is None or self._end_reason is not None:
            raise self._lost(str(end)) from None
        self._lost(f"refused: {end.details}")
        return Message(Kind.ERROR, request_id, refusal)

    def _end(self, reason: str) -> None:
        self._lost(reason)
        for call in (self._unary, self._stream):
            if call is not None:
                call.cancel()


def _is_large(contract: EnvContract) -> bool:
    row_bytes = contract.observation_space.codec.row_bytes
    if row_bytes is None:
        row_bytes = sum(
            [spec.row_bytes or 0 for spec in contract.observation_space.codec.leaf_specs]
        )
    return row_bytes * contract.num_envs >= _LARGE_BYTES


def _unsuited(said: Offer, reason: str) -> Offer:
    return Offer(
        peer=said.peer,
        capabilities=said.capabilities,
        editions=said.editions,
        preferred_edition=said.preferred_edition,
        is_compatible=False,
        error=reason,
    )


# ----------------------------------------------------------------------------------- dialing


def dial_grpc(
    address: Address,
    options: ConnectionOptions = DEFAULT_OPTIONS,
    *,
    timeout_s: float = 10.0,
    tls: TlsClient | None = None,
) -> GrpcConnection:
    """Connect to a gRPC server; one attempt.

    Args:
        address: Of the protocol `grpc`.
        options: How to move messages.
        timeout_s: How long connecting may take.
        tls: How to talk TLS; None for plain text.

    Raises:
        ConnectFailed: Nobody answered in time, or the two do not agree on TLS.
        InvalidSpec: A file of the TLS options cannot be used.
    """
    channel = _channel(address, tls)
    call = ask_for_health(channel, timeout_s)  # whoever answers speaks gRPC
    try:
        error = await_call(call, channel)
    except BaseException:
        channel.close()
        raise
    code = "OK" if error is None else call.code().name
    if code not in _NO_ANSWER:
        return GrpcConnection(str(address), channel, options)
    channel.close()
    if code == "DEADLINE_EXCEEDED":
        raise ConnectFailed(str(address), f"no answer within {timeout_s:g} s") from error
    raise unreached(str(address), call.details(), with_tls=tls is not None) from error


def _channel(address: Address, tls: TlsClient | None) -> grpc.Channel:
    if tls is None or address.family == "unix":
        return grpc.insecure_channel(target_of(address), CLIENT_OPTIONS)
    pem = tls.pem()
    credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)
    settings: list[tuple[str, Any]] = list(CLIENT_OPTIONS)
    if tls.server_name:
        settings.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.secure_channel(target_of(address), credentials, settings)
