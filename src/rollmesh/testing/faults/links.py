"""One connection through a fault proxy: two sockets, and what is held between them (layer 7).

Nothing here blocks or knows threads: the proxy's loop calls `read`, `pump` and `wanted`, one thread
at a time. Descriptors that come with bytes of a unix socket (SCM_RIGHTS) go on with them.
"""

from __future__ import annotations

import array
import contextlib
import os
import selectors
import socket
import struct
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from rollmesh.testing.faults.plans import Directions, Ending, LinkFaults, PipeFaults

_MOST_HELD = 2**20
"""Bytes held for a direction before its source is left waiting."""
_READ_BYTES = 2**16
_MOST_DESCRIPTORS = 16
_TICK_S = 0.005
"""Bandwidth is dealt out in portions of so much time."""
_NEVER = float("inf")
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_RECEIVE_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_SEND_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)


@dataclass(slots=True)
class _Chunk:
    """Bytes as they came in one piece, and the descriptors that came with them."""

    data: memoryview
    descriptors: list[int]
    ready_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkState:
    """What has become of a link.

    Attributes:
        number: Links are counted from 0.
        up_bytes: Bytes passed on to the server.
        down_bytes: Bytes passed on to the client.
        is_open: Whether it is still there.
        ended: Why it ended, in a word or two, or `""`.
    """

    number: int
    up_bytes: int
    down_bytes: int
    is_open: bool
    ended: str


@dataclass(slots=True)
class Pipe:
    """The bytes of one direction.

    Attributes:
        source: Where they come from.
        sink: Where they go.
        faults: What is done to them; may be exchanged at any time.
        passed: Bytes passed on.
        is_over: Nothing more passes, and the sink knows or is gone.
        stalled_until_s: Nothing passes before.
    """

    source: socket.socket
    sink: socket.socket
    faults: PipeFaults
    passed: int = 0
    is_over: bool = False
    stalled_until_s: float = 0.0
    _chunks: deque[_Chunk] = field(default_factory=deque)
    _held: int = 0
    _is_at_end: bool = False
    _waits_for_room: bool = False
    _next_s: float = 0.0

    def wants_read(self, now_s: float) -> bool:
        """Whether the source is to be read."""
        return (
            not self._is_at_end
            and (self.is_over or self._held < _MOST_HELD)
            and now_s >= self.stalled_until_s
        )

    @property
    def wants_room(self) -> bool:
        """Whether the sink did not take what there was."""
        return self._waits_for_room

    @property
    def is_drained(self) -> bool:
        """Whether the source has ended and nothing is held."""
        return self._is_at_end and not self._chunks

    def read(self, now_s: float) -> bool:
        """Take in what the source has; False where it was reset."""
        try:
            data, descriptors = _receive(self.source)
        except BlockingIOError:
            return True
        except OSError:
            self._is_at_end = True
            return False
        if not data:
            self._is_at_end = True
        elif self.is_over:  # nobody takes it any more
            _close_all(descriptors)
        else:
            ready_s = now_s + self.faults.delay_s
            self._chunks.append(_Chunk(memoryview(data), descriptors, ready_s))
            self._held += len(data)
        return True

    def pump(self, now_s: float) -> Ending | None:
        """Pass on the next piece, if its time has come; tell what is to happen at this byte."""
        self._waits_for_room = False
        if self.is_over or now_s < self.stalled_until_s:
            return None
        faults = self.faults
        if faults.at_byte is not None and self.passed >= faults.at_byte:
            self.faults = replace(faults, at_byte=None)
            if faults.then == "stall":
                lasting_s = _NEVER if faults.stall_s is None else faults.stall_s
                self.stalled_until_s = now_s + lasting_s
            return faults.then
        if self._chunks and now_s >= max(self._chunks[0].ready_s, self._next_s):
            self._pass_on(self._chunks[0], now_s)
        if self.is_drained and not self.is_over:
            self.finish()
        return None

    def due_s(self, now_s: float) -> float:
        """Return when `pump` has something to do again."""
        if self.is_over or self._waits_for_room:
            return _NEVER
        at_byte = self.faults.at_byte
        if at_byte is not None and self.passed >= at_byte:
            return self.stalled_until_s
        if self._chunks:
            return max(self._chunks[0].ready_s, self._next_s, self.stalled_until_s)
        # the source is watched again when the stall is over
        return self.stalled_until_s if self.stalled_until_s > now_s else _NEVER

    def finish(self) -> None:
        """End this direction: the sink sees the end, what is held is dropped."""
        self.is_over = True
        self.drop()
        with contextlib.suppress(OSError):
            self.sink.shutdown(socket.SHUT_WR)

    def drop(self) -> None:
        """Forget what is held."""
        for chunk in self._chunks:
            _close_all(chunk.descriptors)
        self._chunks.clear()
        self._held = 0

    def _pass_on(self, chunk: _Chunk, now_s: float) -> None:
        faults = self.faults
        size = len(chunk.data)
        if faults.at_byte is not None:
            size = min(size, faults.at_byte - self.passed)
        if faults.piece_bytes is not None:
            size = min(size, faults.piece_bytes)
        if faults.bytes_per_s is not None:
            size = min(size, max(1, int(faults.bytes_per_s * _TICK_S)))
        try:
            sent = _send(self.sink, chunk.data[:size], chunk.descriptors)
        except BlockingIOError:
            self._waits_for_room = True
            return
        except OSError:  # the sink is gone; the other direction may still have something to say
            self.is_over = True
            self.drop()
            return
        _close_all(chunk.descriptors)
        chunk.descriptors = []
        self.passed += sent
        self._held -= sent
        if faults.bytes_per_s is not None:
            self._next_s = max(self._next_s, now_s) + sent / faults.bytes_per_s
        chunk.data = chunk.data[sent:]
        if not chunk.data:
            self._chunks.popleft()


class Link:
    """A client's connection and the proxy's own one to the server.

    Attributes:
        number: Links are counted from 0.
        up: From the client to the server.
        down: From the server to the client.
        ended: Why it ended, or `""` while it is open.
    """

    def __init__(
        self, number: int, client: socket.socket, server: socket.socket, faults: LinkFaults
    ) -> None:
        self.number = number
        self._client = client
        self._server = server
        for sock in (client, server):
            sock.setblocking(False)
            if sock.family != getattr(socket, "AF_UNIX", None):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.up = Pipe(client, server, faults.up)
        self.down = Pipe(server, client, faults.down)
        self.ended = ""
        self._is_reset = False

    def pipes(self, direction: Directions) -> list[Pipe]:
        """Return the pipes of `up`, `down` or `both`."""
        named = {"up": [self.up], "down": [self.down], "both": [self.up, self.down]}
        return named[direction]

    def wanted(self, now_s: float) -> list[tuple[socket.socket, int]]:
        """Return each socket with the events that it is watched for; 0 is none."""
        wanted: list[tuple[socket.socket, int]] = []
        for incoming, outgoing in ((self.up, self.down), (self.down, self.up)):
            events = selectors.EVENT_READ if incoming.wants_read(now_s) else 0
            if outgoing.wants_room:
                events |= selectors.EVENT_WRITE
            wanted.append((incoming.source, events))
        return wanted

    def read(self, sock: socket.socket, now_s: float) -> None:
        """Take in what a socket has."""
        pipe = self.up if sock is self._client else self.down
        if not pipe.read(now_s) and not self.ended:
            # hand on what came before, then the reset
            other = self.down if pipe is self.up else self.up
            other.is_over = True
            other.drop()
            self._is_reset = True

    def pump(self, now_s: float) -> None:
        """Pass on what can be, and do what is due."""
        directions: tuple[Directions, ...] = ("up", "down")
        for direction in directions:
            (pipe,) = self.pipes(direction)
            ending = pipe.pump(now_s)
            if ending is not None:
                self.end(ending, direction, f"{ending} at byte {pipe.passed} {direction}")
            if self.ended:
                return
        if self.up.is_over and self.down.is_over:
            reason = "reset by an end" if self._is_reset else "both ends done"
            self._close(reason, is_reset=self._is_reset)

    def due_s(self, now_s: float) -> float:
        """Return when `pump` has something to do again."""
        return min(self.up.due_s(now_s), self.down.due_s(now_s))

    def end(self, ending: Ending, direction: Directions, reason: str) -> None:
        """Do to the link what an ending says."""
        if self.ended:
            return
        if ending == "half_close":
            for pipe in self.pipes(direction):
                pipe.finish()
        elif ending == "stall":
            return
        else:
            self._close(reason, is_reset=ending == "reset")

    def state(self) -> LinkState:
        """Return what has become of it."""
        return LinkState(
            number=self.number,
            up_bytes=self.up.passed,
            down_bytes=self.down.passed,
            is_open=not self.ended,
            ended=self.ended,
        )

    def _close(self, reason: str, *, is_reset: bool) -> None:
        self.ended = reason
        self.up.is_over = self.down.is_over = True
        for pipe in (self.up, self.down):
            pipe.drop()
        for sock in (self._client, self._server):
            close_socket(sock, is_reset=is_reset)


def close_socket(sock: socket.socket, *, is_reset: bool) -> None:
    """Close a socket, with a reset where it is a TCP one and that is asked."""
    with contextlib.suppress(OSError):
        if not is_reset:
            sock.shutdown(socket.SHUT_RDWR)
        elif sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    sock.close()


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    if sock.family != getattr(socket, "AF_UNIX", None):
        return sock.recv(_READ_BYTES), []
    room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
    data, ancillary, _, _ = sock.recvmsg(_READ_BYTES, room, _RECEIVE_FLAGS)
    descriptors: list[int] = []
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found = array.array("i")
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
            descriptors.extend(found)
    return data, descriptors


def _send(sock: socket.socket, data: memoryview, descriptors: list[int]) -> int:
    if not descriptors:
        return sock.send(data, _SEND_FLAGS)
    rights: Any = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    return sock.sendmsg([data], [rights], _SEND_FLAGS)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
