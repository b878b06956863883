"""A link: the driver's end of the connection to one worker (layer 7).

Knows requests and their callbacks; knows no processes, tasks or episodes. Used by one thread at a
time, the one that waits on the hub.

Answers are read there, as they are small or come through shared memory. What is there of one is
read, and nobody waits for its rest: the hub tells when more has come. Where a large one has come
through the socket once (an info of megabytes), this worker's are read on a thread of their own from
then on, so that nobody else waits while they are copied.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from rollmesh.endpoint.error_bodies import fault_of
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.errors import (
    EndpointFault,
    RollmeshError,
    TransportError,
    TransportTimeout,
    WireError,
)
from rollmesh.fleet.hub import Hub
from rollmesh.ports import Callback, ResetReply, StepReply
from rollmesh.spaces.codec import Codec
from rollmesh.transport.native import NativeConnection
from rollmesh.wire.messages import ErrorBody, Kind, Message

_SEND_S = 5.0
"""A worker that takes nothing for so long is hung; a request nearly always fits the socket."""
_REST_S = 5.0
"""How long the rest of a message may take whose beginning has come."""
_BULKY_BYTES = 256 * 2**10
"""More than that fits no socket: the worker must be waited for while it sends."""


class Link:
    """Asks one worker.

    Args:
        connection: The connection; the link owns it.
        sock: The socket under it.
        hub: Reads it.
        broken: Called with a reason when the connection is lost.

    Attributes:
        pending: Requests under way: their lane and callback, by id.
    """

    def __init__(
        self,
        connection: NativeConnection,
        sock: socket.socket,
        hub: Hub,
        broken: Callable[[str], None],
    ) -> None:
        self.connection = connection
        self.pending: dict[int, tuple[int, Callback]] = {}
        self._sock = sock
        self._hub = hub
        self._broken = broken
        self._next_id = connection.next_id
        self._send = connection.send
        self._receive = connection.receive
        self._is_closed = False
        self._request_bytes = 0
        self._shared_bytes = 0
        self._reader: OwnThread | None = None
        self._awaits_rest = False
        connection.keeps_parts = True
        hub.add(sock, self)

    def bind(self, observation: Codec, action: Codec, lanes: int) -> None:
        """Say what the envs there are like."""
        self.connection.framing.bind(observation, action, lanes)
        self._request_bytes = action.row_bytes or 0
        if self._sock.family == getattr(socket, "AF_UNIX", None):
            self._shared_bytes = sum([one.row_bytes or 0 for one in observation.leaf_specs])

    def ask(self, kind: Kind, body: Any, lane: int, callback: Callback) -> None:
        """Send a request; `callback` gets the body of its reply, or an exception."""
        request_id = self._next_id()
        self.pending[request_id] = lane, callback
        try:
            self._send(Message(kind, request_id, body), _SEND_S)
        except WireError as error:
            del self.pending[request_id]
            callback(
                EndpointFault(
                    f"{kind.name} cannot be sent to its worker: {error}",
                    error_class=type(error).__name__,
                    outcome="not_done",
                    is_recoverable=True,
                )
            )
        except (TransportError, TransportTimeout) as error:
            self._lose(str(error))

    def read(self) -> None:
        """Read what is there and call back."""
        if self._reader is not None:
            self._hub.remove(self._sock)
            self._read_apart(self._reader)
            return
        while not self._is_closed:
            try:
                message = self._receive(0.0)
            except TransportTimeout:
                self._await_rest()
                return
            except (RollmeshError, OSError) as error:
                self._lose(str(error))
                return
            if self._awaits_rest:
                self._awaits_rest = False
                self._hub.cancel(self)
            if message.nbytes - self._shared_bytes > _BULKY_BYTES and self._reader is None:
                self._reader = OwnThread("rollmesh-bulk")
            self._deliver(message)
            del message  # what came is the caller's alone while we wait
            if not self.connection.has_more:
                return

    def _await_rest(self) -> None:
        """Let the hub tell when more of a message is there; it must be there as a whole in time."""
        if self.connection.is_amid and not self._awaits_rest:
            self._awaits_rest = True
            late = f"the rest of a message did not come within {_REST_S:g} s"
            self._hub.call_after(self, _REST_S, lambda: self._lose(late))

    def _read_apart(self, reader: OwnThread) -> None:
        reader.submit(
            self._receive, lambda got: self._hub.post(lambda: self._arrived(reader, got)), _REST_S
        )

    def _arrived(self, reader: OwnThread, got: Any) -> None:
        """Take over what was read apart, and go on."""
        if self._is_closed:
            return
        if isinstance(got, BaseException):
            self._lose(str(got))
            return
        if self.connection.has_more:
            self._read_apart(reader)
        else:
            self._hub.add(self._sock, self)
        self._deliver(got)

    def _deliver(self, message: Message) -> None:
        entry = self.pending.pop(message.request_id, None)
        if entry is not None:
            entry[1](self._result(message))

    def forget(self, lanes: frozenset[int]) -> list[tuple[int, Callback]]:
        """Take out the requests of all lanes; return those of other lanes than these."""
        others = [entry for entry in self.pending.values() if entry[0] not in lanes]
        self.pending.clear()
        return others

    def close(self) -> None:
        """Let go of the connection. Any number of times."""
        if not self._is_closed:
            self._is_closed = True
            self._hub.remove(self._sock)
            self._hub.cancel(self)
            if self._reader is not None:
                self._reader.stop()
            self.connection.close()

    def _lose(self, reason: str) -> None:
        if not self._is_closed:
            self.close()
            self._broken(reason)

    def _result(self, message: Message) -> Any:
        body = message.body
        if type(body) is StepReply:
            body.response_bytes = message.nbytes
            body.request_bytes = self._request_bytes
        elif type(body) is ResetReply:
            body.response_bytes = message.nbytes
        elif type(body) is ErrorBody:
            return fault_of(body)
        return body
