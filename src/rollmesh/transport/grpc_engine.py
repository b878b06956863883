"""gRPC: the server under a listener (layer 5).

`make_engine` gives one of two that behave alike: `DirectEngine` hands out `DirectCall`s and needs
parts of grpc that are not documented; where they are missing or have changed, `PlainEngine` stands
on grpc's documented server.

Calls with one answer, and the beginnings of streams, are handled on a thread each, so that a slow
one keeps nobody waiting; how many there may be at once is bounded.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias

from rollmesh.transport.grpc_calls import (
    CallEnded,
    CallLate,
    DirectCall,
    Metadata,
    PlainCall,
    ServerCall,
)
from rollmesh.transport.grpc_loading import IS_OLDER_WAY, grpc

_logger = logging.getLogger(__name__)

Settings: TypeAlias = "Sequence[tuple[str, int | str]]"
Answer: TypeAlias = "Callable[[bytes, Metadata], bytes]"
"""Answers a call; raises `CallRefused`."""
Begin: TypeAlias = "Callable[[ServerCall], None]"
"""Takes a streaming call; returns soon."""

MOST_AT_ONCE = 96
"""Calls being answered, and streams being begun, at once."""
_ANSWER_S = 10.0
"""How long a client may take to send the request of a call with one answer."""
_LOOK_S = 0.004
"""How often to look for new calls while there are streams."""


class CallRefused(Exception):  # noqa: N818 - never leaves the transport
    """A call that is answered with a status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class Methods(Protocol):
    """What a server can be called for."""

    def find_answer(self, path: str) -> Answer | None:
        """Return what answers a method with one answer, or None."""
        ...

    def find_stream(self, path: str) -> Begin | None:
        """Return what takes calls of a streaming method, or None."""
        ...


class Engine(Protocol):
    """A gRPC server."""

    def add_port(self, target: str, credentials: grpc.ServerCredentials | None) -> int:
        """Bind; return the port, or raise `RuntimeError`."""
        ...

    def start(self) -> None:
        """Take calls."""
        ...

    def stop(self, grace_s: float) -> None:
        """Take no more calls and let go of the ports; open ones end within the grace."""
        ...


def make_engine(methods: Methods, settings: Settings) -> Engine:
    """Return a server that is not bound yet."""
    try:
        return DirectEngine(methods, settings)
    except Exception:
        # another version of grpc: its documented interface still works
        _logger.debug("grpc_plain", exc_info=True)
        return PlainEngine(methods, settings)


# ------------------------------------------------------------------------------------- plain


class PlainEngine(grpc.GenericRpcHandler):
    """A server on grpc's documented interface."""

    def __init__(self, methods: Methods, settings: Settings) -> None:
        self._methods = methods
        # an open stream keeps a thread where grpc has no other way
        self._workers = ThreadPoolExecutor(4 * MOST_AT_ONCE, "rollmesh-grpc")
        self._server = grpc.server(self._workers, [self], options=settings)

    def add_port(self, target: str, credentials: grpc.ServerCredentials | None) -> int:
        if credentials is None:
            return self._server.add_insecure_port(target)
        return self._server.add_secure_port(target, credentials)

    def start(self) -> None:
        self._server.start()

    def stop(self, grace_s: float) -> None:
        self._server.stop(grace_s)
        self._workers.shutdown(wait=False)

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """Return what handles a call; see `grpc.GenericRpcHandler`."""
        path = handler_call_details.method
        begin = self._methods.find_stream(path)
        if begin is not None:
            return grpc.stream_stream_rpc_method_handler(_non_blocking(begin))
        answer = self._methods.find_answer(path)
        if answer is not None:
            return grpc.unary_unary_rpc_method_handler(_answering(answer))
        return None


def _answering(answer: Answer) -> Callable[[bytes, Any], bytes]:
    def behaviour(data: bytes, context: Any) -> bytes:
        try:
            return answer(data, dict(context.invocation_metadata() or ()))
        except CallRefused as refused:
            context.abort(refused.code, refused.details)
            raise

    return behaviour


def _non_blocking(begin: Begin) -> Any:
    """Return a behaviour that answers whenever it likes, from any thread.

    grpc hands such a behaviour a function to answer with, so that no thread of its pool is kept by
    an open stream. A version without that gets an iterator of the answers.
    """

    def behaviour(
        requests: Any, context: Any, respond: Callable[[bytes | None], None] | None = None
    ) -> Iterator[bytes] | None:
        if respond is not None:
            begin(PlainCall(requests, context, respond))
            return None
        answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        begin(PlainCall(requests, context, answers.put))
        return iter(answers.get, None)

    behaviour.experimental_non_blocking = True  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess]
    return behaviour


# ------------------------------------------------------------------------------------ direct

_CALL, _DOWN = "call", "down"


class DirectEngine:
    """A server whose streaming calls are read by the threads that wait for them.

    Where those threads read the sockets too (`grpc_loading.IS_OLDER_WAY`), one that waits for new
    calls would read what is for them, and have to wake them. While there are streams it only looks
    now and then.

    Raises:
        Exception: This version of grpc has other insides.
    """

    def __init__(self, methods: Methods, settings: Settings) -> None:
        from grpc._cython import cygrpc  # pyright: ignore[reportMissingTypeStubs]

        self._operations: Any = cygrpc
        self._methods = methods
        self._lock = threading.Lock()
        self._at_once = threading.Semaphore(MOST_AT_ONCE)
        self._is_started = False
        self._is_stopped = False
        self._streams: set[DirectCall] = set()
        self._bell = threading.Event()
        self._is_timeout = cygrpc.CompletionType.queue_timeout
        self._is_down = threading.Event()
        self._events = cygrpc.CompletionQueue()
        self._server = cygrpc.Server(tuple(settings), False)
        self._server.register_completion_queue(self._events)
        self._add_port = self._server.add_http2_port
        self._request_call = self._server.request_call

    def add_port(self, target: str, credentials: grpc.ServerCredentials | None) -> int:
        if credentials is None:
            port = self._add_port(target.encode())
        else:
            inner: Any = credentials
            port = self._add_port(target.encode(), inner._credentials)  # noqa: SLF001 - see the module
        if port == 0:
            raise RuntimeError(f"cannot bind {target}")
        return port

    def start(self) -> None:
        with self._lock:
            if self._is_stopped:
                return
            self._is_started = True
            self._server.start()
        threading.Thread(target=self._run, name="rollmesh-grpc", daemon=True).start()

    def stop(self, grace_s: float) -> None:
        with self._lock:
            if self._is_stopped:
                return
            self._is_stopped = True
            if not self._is_started:  # a server that never ran cannot be shut down
                self._server.start()
                threading.Thread(target=self._run, name="rollmesh-grpc", daemon=True).start()
            self._server.shutdown(self._events, _DOWN)
            self._bell.set()
        threading.Thread(
            target=self._cut, args=(grace_s,), name="rollmesh-grpc-end", daemon=True
        ).start()

    def _cut(self, grace_s: float) -> None:
        if not self._is_down.wait(grace_s):
            with self._lock, contextlib.suppress(Exception):
                self._server.cancel_all_calls()

    def _run(self) -> None:
        events = self._operations.CompletionQueue()
        self._request_call(events, self._events, _CALL)
        while True:
            event = self._next_event()
            if event.tag == _DOWN:
                break
            if event.tag != _CALL:
                continue
            call_events, is_call = events, event.success
            if not self._is_stopped:
                events = self._operations.CompletionQueue()
                self._request_call(events, self._events, _CALL)
            if is_call:
                self._take(event, call_events)
            event = None
        self._is_down.set()
        with self._lock, contextlib.suppress(Exception):  # `shutdown` may not have returned yet
            self._server.destroy()

    def _next_event(self) -> Any:
        poll, streams = self._events.poll, self._streams
        while IS_OLDER_WAY and streams:
            event = poll(time.time())
            if event.completion_type != self._is_timeout:
                return event
            self._bell.wait(_LOOK_S)
        return poll()

    def _take(self, event: Any, events: Any) -> None:
        """Hand a call to a thread."""
        method = event.call_details.method
        path = method.decode("utf-8", "replace") if isinstance(method, bytes) else str(method)
        call = DirectCall(event, events, self._operations)
        if not self._at_once.acquire(blocking=False):
            call.open()
            call.finish(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls at once")
            threading.Thread(target=call.close, name="rollmesh-grpc-call", daemon=True).start()
            return
        threading.Thread(
            target=self._handle, args=(path, call), name="rollmesh-grpc-call", daemon=True
        ).start()

    def _handle(self, path: str, call: DirectCall) -> None:
        try:
            begin = self._methods.find_stream(path)
            if begin is not None:
                self._streams.add(call)
                call.when_closed = self._streams.discard
                begin(call)
                return
            answer = self._methods.find_answer(path)
            if answer is None:
                call.finish(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
                call.close()
                return
            self._answer(call, answer)
        except Exception:
            _logger.exception("call_failed method=%s", path)
            call.finish(grpc.StatusCode.INTERNAL, "the server failed; see its log")
            call.close()
        finally:
            self._at_once.release()

    def _answer(self, call: DirectCall, answer: Answer) -> None:
        call.open()
        try:
            call.write(answer(call.read(_ANSWER_S), call.metadata), _ANSWER_S)
        except CallRefused as refused:
            call.finish(refused.code, refused.details)
        except (CallEnded, CallLate):
            call.cancel()
        else:
            call.finish(grpc.StatusCode.OK, "")
        call.close()
