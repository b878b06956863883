"""The memory transport: both ends in one process, joined by two queues (layer 5).

For tests, conformance and embedding. Messages become real frames, one copy each way, so that what
holds here (limits, aliasing, lost types) holds everywhere; only sockets are missing.
"""

from __future__ import annotations

import queue
import threading
from typing import TypeAlias

from rollmesh.errors import ConnectFailed, ConnectionLost, ListenFailed, WireError
from rollmesh.transport.address import Address
from rollmesh.transport.connection import DEFAULT_OPTIONS, Connection, ConnectionOptions
from rollmesh.transport.listening import Listener
from rollmesh.transport.security import Peer
from rollmesh.wire.frames import HEADER_BYTES, read_header
from rollmesh.wire.messages import Message

_Item: TypeAlias = "tuple[bytes, bytearray, bytes] | None"
"""Header, payload and section; None is the end."""
_Queue: TypeAlias = "queue.SimpleQueue[_Item]"


class MemoryConnection(Connection):
    """One end of a connection within a process."""

    peer = Peer.SAME_USER

    def __init__(
        self, address: str, options: ConnectionOptions, incoming: _Queue, outgoing: _Queue
    ) -> None:
        super().__init__(address, options)
        self._incoming = incoming
        self._outgoing = outgoing
        self._send_lock = threading.Lock()
        self._other_end: Connection = self

    def join(self, other_end: MemoryConnection) -> None:
        """Take note of the other end, and let it take note of this one."""
        self._other_end, other_end._other_end = other_end, self

    @property
    def path(self) -> str:
        return "native frames within this process"

    def keep_parts(self) -> bool:
        return True  # messages come whole

    def is_gone(self) -> bool:
        return not (self.is_open and self._other_end.is_open)

    def send(self, message: Message, timeout_s: float | None = None) -> int:
        del timeout_s  # the queue has room
        with self._send_lock:
            if self._end_reason is not None:
                raise self._lost("closed")
            frame = self.framing.encode(message)
            payload = bytearray().join(frame.parts)
            self._outgoing.put((frame.header(), payload, frame.section))
            return HEADER_BYTES + len(payload) + len(frame.section)

    def receive(self, timeout_s: float | None = None) -> Message:
        if self._end_reason is not None:
            raise self._lost("closed")
        try:
            item = self._incoming.get(timeout=timeout_s)
        except queue.Empty:
            raise self._late("nothing came", timeout_s, is_usable=True) from None
        if item is None:
            raise self._end("the peer closed the connection")
        head, payload, section = item
        try:
            header = read_header(head, 0, self.most_bytes)
            data = payload if self.options.writable else memoryview(payload).toreadonly()
            return self.framing.decode(header, data, 0, section)
        except WireError as error:
            self._end(str(error))
            raise

    def shutdown(self, reason: str = "shut down here") -> None:
        self._end(reason)

    def close(self) -> None:
        self._end("closed here")

    def _end(self, reason: str) -> ConnectionLost:
        """End both directions; return the error that says why."""
        error = self._lost(reason)
        self._incoming.put(None)
        self._outgoing.put(None)
        return error


class MemoryListener(Listener):
    """Accepts connections from this process under a name.

    Raises:
        ListenFailed: Another one has the name.
    """

    def __init__(self, address: Address, options: ConnectionOptions = DEFAULT_OPTIONS) -> None:
        self.address = address
        self._options = options
        self._waiting: queue.SimpleQueue[MemoryConnection | None] = queue.SimpleQueue()
        self._closed = False
        with _lock:
            if address.path in _listeners:
                raise ListenFailed(str(address), "address in use: choose another name")
            _listeners[address.path] = self

    def accept(self, timeout_s: float | None = None) -> Connection | None:
        if self._closed:
            raise ConnectionLost(str(self.address), "the listener is closed")
        try:
            connection = self._waiting.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if connection is None:
            self._waiting.put(None)
            raise ConnectionLost(str(self.address), "the listener is closed")
        return connection

    def close(self) -> None:
        with _lock:
            if self._closed:
                return
            self._closed = True
            del _listeners[self.address.path]
        while True:
            try:
                connection = self._waiting.get_nowait()
            except queue.Empty:
                break
            if connection is not None:
                connection.close()
        self._waiting.put(None)

    def connect(self, options: ConnectionOptions) -> MemoryConnection:
        """Return the other end of a new connection."""
        ours, theirs = queue.SimpleQueue[_Item](), queue.SimpleQueue[_Item]()
        name = str(self.address)
        here = MemoryConnection(name, self._options, theirs, ours)
        there = MemoryConnection(name, options, ours, theirs)
        there.join(here)
        self._waiting.put(here)
        return there


_lock = threading.Lock()
_listeners: dict[str, MemoryListener] = {}


def connect_memory(
    address: Address, options: ConnectionOptions = DEFAULT_OPTIONS
) -> MemoryConnection:
    """Connect to a listener of this process.

    Raises:
        ConnectFailed: There is none of this name.
    """
    with _lock:
        listener = _listeners.get(address.path)
        if listener is None:
            raise ConnectFailed(str(address), "nobody listens under this name in this process")
        return listener.connect(options)


def memory_pair(
    options: ConnectionOptions = DEFAULT_OPTIONS, name: str = "mem://pair"
) -> tuple[MemoryConnection, MemoryConnection]:
    """Return both ends of a connection, both admitted; for tests."""
    ours, theirs = queue.SimpleQueue[_Item](), queue.SimpleQueue[_Item]()
    ends = (
        MemoryConnection(name, options, ours, theirs),
        MemoryConnection(name, options, theirs, ours),
    )
    ends[0].join(ends[1])
    for end in ends:
        end.admit()
    return ends
