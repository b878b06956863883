"""gRPC: where servers listen, and the connections of their clients (layer 5).

    listener = GrpcListener(parse_address("tcp://127.0.0.1:0", "bind"), host)
    listener.open()          # from here on clients come in: `host.join(connection, peer)`
    listener.close()

One Join is one connection. Its first message is the client's hello: the one that came with the
Join's metadata from a rollmesh client, one made up for a released client, which says nothing. A
released client that ends its stream has closed its session; a rollmesh client may come back.

Handshake, Shutdown and the standard health service are answered here with what the host says.
The token is compared before anything that a client sent is read.

grpc is imported here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import grpc

from rollmesh.errors import ConnectionLost, ListenFailed, RollmeshError, WireError
from rollmesh.transport.address import Address
from rollmesh.transport.connection import DEFAULT_OPTIONS, Connection, ConnectionOptions
from rollmesh.transport.grpc_common import (
    BUSY,
    ERROR_KEY,
    HEALTH_SERVICE,
    HELLO_KEY,
    SERVER_OPTIONS,
    SERVICES,
    TOKEN_KEY,
    BoundFraming,
    status_of,
    target_of,
)
from rollmesh.transport.grpc_server_speech import (
    EnvServerSpeech,
    ModelServerSpeech,
    ServerSpeech,
)
from rollmesh.transport.grpc_stream import Limit
from rollmesh.transport.security import Peer, TlsServer, Token, peer_of_grpc
from rollmesh.transport.unix_paths import bind_path, unlink_own
from rollmesh.wire import protobuf as wire
from rollmesh.wire.contract import decode_contract
from rollmesh.wire.dialect import CONCURRENT_PREDICT, FOREIGN, SUBSET_STEP
from rollmesh.wire.handshake import GENERATION as WIRE_GENERATION
from rollmesh.wire.handshake import Offer, check_generation, offer
from rollmesh.wire.messages import (
    GENERATION,
    ErrorBody,
    Hello,
    Kind,
    Message,
    Shutdown,
    ShutdownReply,
    Welcome,
)
from rollmesh.wire.proto_handshake import Service
from rollmesh.wire.proto_health import read_health_request, write_health

_logger = logging.getLogger(__name__)

MOST_JOINS = 320
"""Joins that may be open at once, those that wait for a place included."""
_MOST_WATCHERS = 64
_PATIENCE_S = 1.0
"""How long a released client may wait for the session before it to end; it cannot be told that it
waits."""
_STOP_S = 10.0
_WATCH_S = 0.25
_BACKLOG = 16
_OTHER_WORKERS = 32


class Host(Protocol):
    """Who is served over a listener."""

    service: Service
    token: Token | None

    def describe(self, hello: Hello) -> Welcome | ErrorBody:
        """Return what is served, without opening a session."""
        ...

    def join(self, connection: Connection, peer: Peer) -> None:
        """Take a client's connection; must return soon."""
        ...

    def shutdown(self, request: Shutdown) -> ShutdownReply:
        """End the server, or say why not."""
        ...

    def is_serving(self) -> bool:
        """Whether a new client would be served."""
        ...


# -------------------------------------------------------------------------------- connections


class GrpcServerConnection(Connection):
    """A client's Join.

    Attributes:
        is_foreign: Whether the client is no rollmesh: nothing of ours is said to it, and its
            session cannot be resumed.
    """

    def __init__(
        self,
        service: Service,
        requests: Iterator[bytes],
        context: Any,
        respond: Callable[[bytes | None], None],
        options: ConnectionOptions = DEFAULT_OPTIONS,
    ) -> None:
        super().__init__(context.peer(), options)
        self.framing = self._bound = BoundFraming(options.report)
        self._service: Service = service
        self._requests = requests
        self._context = context
        self._respond = respond
        self._limit = Limit(self._cut)
        self._speech: ServerSpeech | None = None
        self._lock = threading.Lock()
        self._ready: deque[Message] = deque()
        self._hello_id = self.next_id()
        self._is_gone = False
        self._is_finished = False
        self._is_told = False
        self._patience: threading.Timer | None = None
        said = self._read_hello()
        self.is_foreign = said is None
        self._dialect = FOREIGN if said is None else said.dialect
        if not context.add_callback(self._note_gone):
            self._is_gone = True

    # ------------------------------------------------------------------------ interface

    def send(self, message: Message, timeout_s: float | None = None) -> int:
        with self._lock:
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
            self._put(data, timeout_s)
            if speech.is_over:
                self._finish(grpc.StatusCode.OK, "")
            return len(data)

    def receive(self, timeout_s: float | None = None) -> Message:
        ready = self._ready
        if ready:
            return ready.popleft()
        if self._end_reason is not None:
            raise self._lost("closed")
        limit = None if timeout_s is None else Limit(self._cut)
        if limit is not None and timeout_s is not None:
            limit.arm(time.monotonic() + timeout_s)
        try:
            while True:
                try:
                    data = next(self._requests)
                except StopIteration:
                    return self._gone("the client ended its stream")
                except grpc.RpcError:
                    return self._gone("the client is gone")
                message = self._read(data)
                if message is not None:
                    return message
        except ConnectionLost:
            if limit is not None and limit.is_late:
                raise self._late("nothing came", timeout_s, is_usable=False) from None
            raise
        finally:
            if limit is not None:
                limit.disarm()

    def shutdown(self, reason: str = "shut down here") -> None:
        self._lost(reason)
        if self._lock.acquire(blocking=False):
            try:
                self._finish(grpc.StatusCode.UNAVAILABLE, reason)
            finally:
                self._lock.release()
        else:  # a send is under way, and may never come to its end
            self._context.cancel()

    def close(self) -> None:
        is_first = self._end_reason is None
        self._lost("closed here")
        if self._lock.acquire(timeout=_PATIENCE_S):
            try:
                if is_first:
                    self._finish(grpc.StatusCode.OK, "")
                else:
                    self._finish(grpc.StatusCode.UNAVAILABLE, self._end_reason or "closed")
            finally:
                self._lock.release()
        else:
            self._context.cancel()

    # ------------------------------------------------------------------------ the hello

    def _read_hello(self) -> Offer | None:
        """Make the hello that is received first; return what came with the Join, if anything."""
        metadata = dict(self._context.invocation_metadata() or ())
        token = metadata.get(TOKEN_KEY, "")
        data = metadata.get(HELLO_KEY)
        said = None if data is None else wire.read_hello(self._service, data)
        self._ready.append(
            Message(
                Kind.HELLO,
                self._hello_id,
                hello_of(self._service, said or Offer(editions=()), _as_text(token)),
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
        if self._patience is None:
            timer = self._patience = threading.Timer(_PATIENCE_S, self._out_of_patience)
            timer.daemon = True
            timer.start()
        return 0

    def _out_of_patience(self) -> None:
        with self._lock:
            if self._speech is None:
                self._refuse(ErrorBody(code="busy", message=BUSY))

    def _refuse(self, body: ErrorBody) -> None:
        """End the Join with a status that says why; called with the lock."""
        code, text = status_of(body), body.message
        if self.is_foreign and body.code == "busy" and self._service == "env":
            text = BUSY
        self._context.set_trailing_metadata(((ERROR_KEY, body.code),))
        self._finish(code, text)
        self._lost(f"refused: {text}")

    # ------------------------------------------------------------------------ inside

    def _read(self, data: bytes) -> Message | None:
        """Return the first request in a message; others, if any, are kept for later."""
        speech = self._speech
        try:
            if len(data) > self.most_bytes:
                raise WireError(f"a message of {len(data)} bytes; {self.most_bytes} are allowed")
            if speech is None:
                raise WireError("a message before the welcome")
            got = speech.read(data)
        except WireError as error:
            self.shutdown(str(error))
            raise
        if type(got) is bytes:
            with self._lock:
                self._put(got, _STOP_S)
            return None
        if not got:
            return None
        first, *rest = got
        self._ready.extend(rest)
        return first

    def _put(self, data: bytes, timeout_s: float | None) -> int:
        """Send bytes; called with the lock."""
        limit = self._limit
        if timeout_s is not None:
            limit.arm(time.monotonic() + timeout_s)
        try:
            self._respond(data)
        except Exception as error:  # noqa: BLE001 - grpc raises what it likes on a dead call
            self._is_gone = True
            _logger.debug("send_failed client=%s error=%s", self.address, error)
        finally:
            limit.disarm()
        if limit.is_late:
            self._lost("the client took nothing in time")
            raise self._late("the client did not take a message", timeout_s, is_usable=False)
        if self._is_gone:
            return self._sent_to_nobody()
        return len(data)

    def _sent_to_nobody(self) -> int:
        """A released client's session ends with its stream, when that is read; others may resume."""
        if self.is_foreign:
            return 0
        raise self._lost("the client is gone")

    def _gone(self, reason: str) -> Message:
        self._is_gone = True
        speech = self._speech
        if self._end_reason is None and self.is_foreign and speech and not self._is_told:
            self._is_told = True
            return speech.farewell()
        raise self._lost(reason) from None

    def _finish(self, code: grpc.StatusCode, details: str) -> None:
        """End the call with a status; called with the lock."""
        if self._is_finished:
            return
        self._is_finished = True
        with contextlib.suppress(Exception):  # the call may be over
            if code is not grpc.StatusCode.OK:
                self._context.set_code(code)
                self._context.set_details(details[:1000])
            self._respond(None)

    def _cut(self) -> None:
        self._context.cancel()

    def _note_gone(self) -> None:
        self._is_gone = True


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


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# ---------------------------------------------------------------------------------- listener


class GrpcListener(grpc.GenericRpcHandler):
    """Listens at a TCP or unix address, from `open` on.

    Args:
        address: Of the protocol `grpc`; port 0 lets the system choose one.
        host: Who is served.
        options: How connections move messages.
        tls: TLS, for TCP addresses.

    Attributes:
        address: What was bound, read back.

    Raises:
        ListenFailed: The address is in use or cannot be bound.
        InvalidSpec: A file of the TLS options cannot be used.
    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        options: ConnectionOptions = DEFAULT_OPTIONS,
        tls: TlsServer | None = None,
    ) -> None:
        self._host = host
        self._options = options
        self._is_closed = False
        self._lock = threading.Lock()
        self._joins = 0
        self._watchers: list[tuple[Any, Callable[[bytes | None], None]]] = []
        self._identity: tuple[int, int] | None = None
        workers = ThreadPoolExecutor(MOST_JOINS + _OTHER_WORKERS, "rollmesh-grpc")
        self._server = grpc.server(workers, [self], options=SERVER_OPTIONS)
        self._workers = workers
        try:
            self.address = self._bind(address, tls)
        except BaseException:
            self._server.stop(None)
            workers.shutdown(wait=False)
            raise

    def open(self) -> None:
        """Let clients in."""
        self._server.start()

    def close(self) -> None:
        """Let no more clients in; joins that are open go on. Any thread may, any number of times."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            watchers, self._watchers = self._watchers, []
            identity, self._identity = self._identity, None
        for _, respond in watchers:
            with contextlib.suppress(Exception):
                respond(write_health("not_serving"))
                respond(None)
        self._server.stop(_STOP_S)
        self._workers.shutdown(wait=False)
        if identity is not None:
            unlink_own(self.address.path, identity)

    def service(self, handler_call_details: Any) -> Any:
        """Return what handles a call; see `grpc.GenericRpcHandler`."""
        service, _, method = handler_call_details.method.strip("/").rpartition("/")
        if service == SERVICES[self._host.service]:
            if method == "Join":
                return grpc.stream_stream_rpc_method_handler(_non_blocking(self._join))
            calls = {"Handshake": self._handshake, "Shutdown": self._shutdown}
            if method in calls:
                return grpc.unary_unary_rpc_method_handler(calls[method])
        elif service == HEALTH_SERVICE:
            if method == "Check":
                return grpc.unary_unary_rpc_method_handler(self._check)
            if method == "Watch":
                return grpc.unary_stream_rpc_method_handler(_non_blocking(self._watch))
        return None

    # ------------------------------------------------------------------------ binding

    def _bind(self, address: Address, tls: TlsServer | None) -> Address:
        if address.family == "unix":
            return self._bind_unix(address)
        host = "127.0.0.1" if address.host == "localhost" else address.host
        target = target_of(Address(protocol="grpc", family="tcp", host=host, port=address.port))
        try:
            if tls is None:
                port = self._server.add_insecure_port(target)
            else:
                pem = tls.pem()
                credentials = grpc.ssl_server_credentials(
                    [(pem.key or b"", pem.certificate or b"")],
                    pem.ca,
                    require_client_auth=pem.ca is not None,
                )
                port = self._server.add_secure_port(target, credentials)
        except RuntimeError as error:
            raise ListenFailed(
                str(address),
                "the address is in use, or not of this machine; stop the server that listens "
                "there, choose another port, or port 0 for a free one",
            ) from error
        return Address(protocol="grpc", family="tcp", host=address.host, port=port)

    def _bind_unix(self, address: Address) -> Address:
        path = address.path
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as claim:
            bind_path(claim, path, str(address), _BACKLOG)  # grpc would take it from its owner
            mask = os.umask(0o177)
            try:
                self._server.add_insecure_port(target_of(address))
            except RuntimeError as error:
                raise ListenFailed(str(address), str(error)) from error
            finally:
                os.umask(mask)
        found = Path(path).lstat()
        self._identity = (found.st_dev, found.st_ino)
        return address

    # ------------------------------------------------------------------------ calls

    def _join(
        self, requests: Iterator[bytes], context: Any, respond: Callable[[bytes | None], None]
    ) -> None:
        refusal = self._unwelcome(context)
        if refusal is not None:
            _end(context, respond, *refusal)
            return
        context.send_initial_metadata(())  # a released client waits for it
        try:
            connection = GrpcServerConnection(
                self._host.service, requests, context, respond, self._options
            )
        except WireError as error:
            _end(context, respond, grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return
        with self._lock:
            self._joins += 1
        if not context.add_callback(self._left):
            self._left()
        try:
            self._host.join(connection, peer_of_grpc(context.peer()))
        except Exception:
            _logger.exception("join_failed client=%s", connection.address)
            connection.close()

    def _left(self) -> None:
        with self._lock:
            self._joins -= 1

    def _unwelcome(self, context: Any) -> tuple[grpc.StatusCode, str] | None:
        """Return why a call is refused before anything in it is read, or None."""
        token = self._host.token
        if token is not None:
            metadata = dict(context.invocation_metadata() or ())
            if not token.matches(metadata.get(TOKEN_KEY, "")):
                return grpc.StatusCode.UNAUTHENTICATED, f"invalid {self._host.service} token"
        if self._is_closed:
            return grpc.StatusCode.UNAVAILABLE, "this server is about to end"
        if self._joins >= MOST_JOINS:
            return grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MOST_JOINS} clients are connected"
        return None

    def _handshake(self, data: bytes, context: Any) -> bytes:
        self._check_token(context)
        service = self._host.service
        try:
            said = wire.read_hello(service, data)
        except WireError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        metadata = dict(context.invocation_metadata() or ())
        hello = hello_of(service, said, _as_text(metadata.get(TOKEN_KEY, "")))
        found = self._host.describe(hello)
        if isinstance(found, ErrorBody):
            if found.code != "incompatible":
                context.abort(status_of(found), found.message)
            found = Welcome(generation=GENERATION, is_compatible=False, detail=found.message)
        answer = offer_of(service, found)
        mismatch = check_generation(said.generation)
        if mismatch or not answer.is_compatible:
            return wire.write_welcome(service, _unsuited(answer, mismatch or answer.error))
        contract = decode_contract(found.contract) if found.contract else None
        try:
            return wire.write_welcome(service, answer, contract=contract, dialect=said.dialect)
        except WireError as error:
            return wire.write_welcome(service, _unsuited(answer, str(error)))

    def _shutdown(self, data: bytes, context: Any) -> bytes:
        self._check_token(context)
        service = self._host.service
        try:
            reply = self._host.shutdown(wire.read_shutdown(service, data))
        except WireError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        return wire.write_shutdown_reply(service, reply)

    def _check_token(self, context: Any) -> None:
        refusal = self._unwelcome(context)
        if refusal is not None:
            context.abort(*refusal)

    # ------------------------------------------------------------------------ health

    def _check(self, data: bytes, context: Any) -> bytes:
        try:
            service = read_health_request(data)
        except WireError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        if service not in ("", SERVICES[self._host.service]):
            context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return self._health()

    def _health(self) -> bytes:
        is_serving = not self._is_closed and self._host.is_serving()
        return write_health("serving" if is_serving else "not_serving")

    def _watch(
        self, data: bytes, context: Any, respond: Callable[[bytes | None], None]
    ) -> None:
        del data
        with self._lock:
            is_first = not self._watchers
            is_full = self._is_closed or len(self._watchers) >= _MOST_WATCHERS
            if not is_full:
                self._watchers.append((context, respond))
        if is_full:
            _end(context, respond, grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watchers")
        elif is_first:
            threading.Thread(
                target=self._tell_watchers, name="rollmesh-grpc-health", daemon=True
            ).start()

    def _tell_watchers(self) -> None:
        told: dict[int, bytes] = {}
        while True:
            with self._lock:
                self._watchers = [one for one in self._watchers if one[0].is_active()]
                watchers = list(self._watchers)
            if not watchers or self._is_closed:
                return
            health = self._health()
            for context, respond in watchers:
                if told.get(id(context)) != health:
                    told[id(context)] = health
                    with contextlib.suppress(Exception):
                        respond(health)
            time.sleep(_WATCH_S)


def _unsuited(said: Offer, reason: str) -> Offer:
    return Offer(
        generation=WIRE_GENERATION,
        peer=said.peer,
        capabilities=said.capabilities,
        is_compatible=False,
        error=reason,
    )


def _end(
    context: Any, respond: Callable[[bytes | None], None], code: grpc.StatusCode, details: str
) -> None:
    context.set_code(code)
    context.set_details(details)
    respond(None)


def _non_blocking(behave: Callable[..., None]) -> Any:
    """Return a behaviour that answers whenever it likes, from any thread.

    grpc hands such a behaviour a function to answer with, so that no thread of its pool is kept by
    an open stream. A version without that gets an iterator of the answers.
    """

    def behaviour(
        requests: Any, context: Any, respond: Callable[[bytes | None], None] | None = None
    ) -> Iterator[bytes] | None:
        if respond is not None:
            behave(requests, context, respond)
            return None
        answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        behave(requests, context, answers.put)
        return iter(answers.get, None)

    behaviour.experimental_non_blocking = True  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess]
    return behaviour


def close_quietly(connection: Connection) -> None:
    """Close a connection whatever state it is in."""
    with contextlib.suppress(RollmeshError):
        connection.close()
