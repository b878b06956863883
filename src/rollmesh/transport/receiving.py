"""Receiving frames: the bytes of a stream become messages (layer 5).

Small messages are read into one inbox and copied out. Once a large payload has come through the
socket, the next one is expected to be about as large: header, payload and inbox are then offered to
a single system call. A payload in shared memory leaves only its header and section on the socket.
Large payloads land in buffers that are used again once nobody holds them: every leaf keeps its
buffer alive, so that a received observation is the receiver's for as long as it keeps it.

It knows no connection: who closes it, and what a caller is told of an end, is `native.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rollmesh.errors import WireError
from rollmesh.spaces.recycling import Recycler
from rollmesh.transport.connection import ConnectionOptions
from rollmesh.transport.patience import Late, PatientReader
from rollmesh.transport.shared_memory import Lease, Window
from rollmesh.transport.stream import Stream
from rollmesh.wire.frame_reading import Plan
from rollmesh.wire.frames import (
    HEADER_BYTES,
    PAGE_BYTES,
    PREFIX_BYTES,
    SHARED,
    TAIL,
    Header,
    check_start,
    read_header,
)
from rollmesh.wire.framing import Framing
from rollmesh.wire.messages import Message

INBOX_BYTES = 64 * 2**10
_MOST_IDLE_BYTES = 2**20
"""An inbox that has grown larger is given back once a smaller message has come."""
_MOST_KEPT_BYTES = 16 * 2**20
"""One that has grown larger than that is given back at once."""
_DIRECT_BYTES = 16 * 2**10
"""Payloads from this size on are read straight into their buffer."""
_SLACK_BYTES = 4096
"""How much larger than the last one a payload may be, as texts differ, without more work."""
_read_tail = TAIL.unpack_from
_BYTE = np.dtype(np.uint8)


class Receiver:
    """Receives the messages of one stream. For one thread at a time.

    Args:
        stream: What to read from.
        reader: Reads and waits.
        framing: Turns frames into messages.
        options: How payloads are received.
        most_bytes: How large a message may be.

    Attributes:
        inbox: What small messages are read into.
        start: Where in it begins what has been read and not been received.
        end: Where that ends.
        most_bytes: How large a message may be.
        window: The other end's shared memory, once it is known.
    """

    def __init__(
        self,
        stream: Stream,
        reader: PatientReader,
        framing: Framing,
        options: ConnectionOptions,
        *,
        most_bytes: int,
    ) -> None:
        self.inbox = bytearray(INBOX_BYTES)
        self.start: int = 0
        self.end: int = 0
        self.most_bytes = most_bytes
        self.window: Window | None = None
        self._view = memoryview(self.inbox)
        self._stream = stream
        self._reader = reader
        self._framing = framing
        self._plans = framing.plans
        self._options = options
        self._expected = 0
        self._is_in_payload = False
        self._begun: Callable[[float | None], Message] | None = None
        self._head = bytearray(HEADER_BYTES)
        self._recycler = Recycler()
        self._copy: Callable[[memoryview], Any] = bytearray if options.writable else bytes

    @property
    def is_amid(self) -> bool:
        """Whether the `receive` that was cut short had read a part of a message."""
        return self._is_in_payload or self.end != self.start

    def receive(self, expiry: float | None) -> Message:
        """Return the next message; after a deadline in the middle of one, that one's rest.

        Args:
            expiry: The deadline, a time of `time.monotonic()`; None is none.

        Raises:
            Late: The deadline is over.
            EOFError: The peer closed the connection.
            OSError: The connection broke.
            WireError: What came is no message.
        """
        if self._begun is not None:
            begun, self._begun = self._begun, None
            return begun(expiry)
        self._is_in_payload = False
        if self.start == self.end:
            room, used = len(self.inbox), self.start
            self.start = self.end = 0
            if room > _MOST_KEPT_BYTES or (room > _MOST_IDLE_BYTES and used <= _MOST_IDLE_BYTES):
                self.inbox = bytearray(INBOX_BYTES)
                self._view = memoryview(self.inbox)
            if self._expected:
                return self._receive_direct(expiry)
            stream = self._stream
            count = self._reader.first(stream.read, stream.take, self._view, expiry)
            plan = self._plans.get(bytes(self._view[:PREFIX_BYTES]))
            if plan is not None and count >= plan.stop:
                # like one before, as nearly all messages are
                end, stop = plan.end, plan.stop
                if count > stop:
                    self.start, self.end = stop, count
                request_id, spent = _read_tail(self.inbox, PREFIX_BYTES)
                section = b"" if end == stop else self._view[end:stop]
                if not plan.is_shared:
                    payload = self._copy(self._view[HEADER_BYTES:end])
                    return plan.read(payload, request_id, spent, section)
                payload, lease = self._take_shared(plan.slot, plan.page, plan.nbytes)
                message = plan.read(payload, request_id, spent, section)
                message.lease = lease
                return message
            self.end = count
        while (held := self.end - self.start) < HEADER_BYTES:
            if held:  # a stranger may send less than that, and then wait for us
                check_start(self.inbox[self.start])
            self._more(expiry)
        return self._receive_rest(read_header(self.inbox, self.start, self.most_bytes), expiry)

    def _receive_rest(self, header: Header, expiry: float | None) -> Message:
        """Receive what follows a header that stands at the start of the inbox."""
        inline = 0 if header.flags & SHARED else header.payload_bytes
        if inline >= _DIRECT_BYTES:
            self._framing.check(header)
            buffer: Any = self._buffer(inline)
            self._is_in_payload = True
            self.start += HEADER_BYTES
            view = memoryview(buffer)
            have = min(inline, self.end - self.start)
            view[:have] = self._view[self.start : self.start + have]
            self.start += have
            self._expected = inline if self._stream.can_scatter else 0
            return self._finish_direct(header, buffer, have, expiry)
        self._expected = 0
        stop = HEADER_BYTES + inline + header.section_bytes
        while self.end - self.start < stop:
            self._more(expiry, stop)
        start = self.start + HEADER_BYTES
        middle = start + inline
        self.start += stop
        section = self._view[middle : middle + header.section_bytes]
        if header.flags & SHARED:
            return self._receive_shared(header, section)
        payload = self._copy(self._view[start:middle]) if inline else b""
        return self._framing.decode(header, payload, 0, section)

    def _receive_shared(self, header: Header, section: memoryview) -> Message:
        payload, lease = self._take_shared(header.slot, header.page, header.payload_bytes)
        message = self._framing.decode(header, payload, 0, section)
        message.lease = lease
        return message

    def _take_shared(self, slot: int, page: int, nbytes: int) -> tuple[Any, Lease | None]:
        """Return the payload in a slot: lent, a view with its lease, or a copy."""
        window = self.window
        if window is None:
            raise WireError("a payload in shared memory, but none was set up")
        if self._options.lent:
            return window.lend(slot, page, nbytes), None
        source = window.view(slot, page, nbytes)
        if self._options.views:
            return source, window.lease(slot)
        buffer: Any = self._buffer(nbytes)
        buffer[:nbytes] = source
        window.free(slot)
        return self._payload(buffer), None

    def _receive_direct(self, expiry: float | None) -> Message:
        """Receive a message whose payload is expected to be about as large as the last one."""
        buffer: Any = self._buffer(self._expected + _SLACK_BYTES)
        whole, room = memoryview(buffer), len(buffer)
        head, stream = self._head, self._stream
        buffers = [head, whole, self._view]
        count = self._reader.first(stream.read_many, stream.take_many, buffers, expiry)
        self._is_in_payload = True
        came = count - HEADER_BYTES
        if came >= 0:
            plan = self._plans.get(bytes(head[:PREFIX_BYTES]))
            if plan is not None and not plan.is_shared:
                size = plan.stop - HEADER_BYTES
                if max(came, _DIRECT_BYTES) <= size <= room:
                    return self._finish_planned(plan, buffer, came, expiry)
            header = read_header(head, 0, self.most_bytes)
            inline = header.payload_bytes
            if _DIRECT_BYTES <= inline <= room and not header.flags & SHARED:
                self._framing.check(header)
                self.start, self.end = 0, max(0, came - room)
                if came > inline:  # what follows it belongs where small messages are read
                    self._fill(bytes(whole[inline : min(came, room)]) + self._view[: self.end])
                self._expected = inline
                return self._finish_direct(header, buffer, min(came, inline), expiry)
        # another message: put everything where small ones are read
        body, rest = max(0, min(came, room)), max(0, came - room)
        self._fill(head[:count] + whole[:body] + self._view[:rest])
        self._expected = 0
        while self.end < HEADER_BYTES:
            self._more(expiry)
        return self._receive_rest(read_header(self.inbox, 0, self.most_bytes), expiry)

    def _finish_planned(self, plan: Plan, buffer: Any, have: int, expiry: float | None) -> Message:
        """Read the rest of a message like one before, section included, into its buffer."""
        size, nbytes = plan.stop - HEADER_BYTES, plan.nbytes
        whole = memoryview(buffer)
        try:
            while have < size:
                have += self._reader.rest(whole[have:size], expiry, size - have)
        except Late:
            self._begun = partial(self._finish_planned, plan, buffer, have)
            raise
        self._expected = nbytes
        request_id, spent = _read_tail(self._head, PREFIX_BYTES)
        section = b"" if size == nbytes else whole[nbytes:size]
        return plan.read(self._payload(buffer), request_id, spent, section)

    def _fill(self, data: bytes | bytearray) -> None:
        """Let the inbox hold this and nothing else."""
        if len(data) > len(self.inbox):
            self.inbox = bytearray(len(data) + INBOX_BYTES)
            self._view = memoryview(self.inbox)
        self._view[: len(data)] = data
        self.start, self.end = 0, len(data)

    def _finish_direct(
        self, header: Header, buffer: Any, have: int, expiry: float | None
    ) -> Message:
        """Read the rest of a large payload into its buffer, then the section."""
        inline = header.payload_bytes
        view = memoryview(buffer)[:inline]
        size = header.section_bytes
        try:
            while have < inline:
                have += self._reader.rest(view[have:], expiry, inline - have)
            while self.end - self.start < size:
                self._more(expiry, size)
        except Late:
            self._begun = partial(self._finish_direct, header, buffer, have)
            raise
        section = self._view[self.start : self.start + size]
        self.start += size
        return self._framing.decode(header, self._payload(buffer), 0, section)

    def _more(self, expiry: float | None, wanted: int = HEADER_BYTES) -> None:
        """Read more into the inbox; it grows as bytes come, until so many of them fit."""
        if self.end == len(self.inbox):
            held = self._view[self.start : self.end]
            room = len(self.inbox)
            if self.start < room // 2:
                room = max(INBOX_BYTES, min(2 * room, wanted))
            inbox = bytearray(room)
            inbox[: len(held)] = held
            self.start, self.end = 0, len(held)
            self.inbox, self._view = inbox, memoryview(inbox)
        self.end += self._reader.rest(self._view[self.end :], expiry)

    def _buffer(self, nbytes: int) -> Any:
        """Return a buffer of at least so many bytes, one used before if nobody holds it."""
        size = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
        return self._recycler.array((size,), _BYTE, size)

    def _payload(self, buffer: Any) -> Any:
        """Return a buffer that was filled, for leaves that may be written to or not."""
        buffer.flags.writeable = self._options.writable
        return buffer
