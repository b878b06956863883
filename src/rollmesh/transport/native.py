"""The native connection: our own frames over a unix or TCP socket (layer 5).

On a unix socket each end first sends a greeting of 8 bytes which carries the descriptor of its
shared memory file, where both the platform and the options have one. Nothing waits for it: the
first `receive` reads the other end's.

Receiving. Small messages are read into one inbox and copied out. Once a large payload has come
through the socket, the next one is expected to be about as large: header, payload and inbox are
then offered to a single system call. A payload in shared memory leaves only its header and section
on the socket. Large payloads land in buffers that are used again once nobody holds them: every leaf
keeps its buffer alive, so that a received observation is the receiver's for as long as it keeps it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rollmesh.errors import ConnectionLost, WireError
from rollmesh.spaces.recycling import Recycler
from rollmesh.transport.connection import DEFAULT_OPTIONS, Connection, ConnectionOptions
from rollmesh.transport.greeting import greet, read_greeting
from rollmesh.transport.security import peer_of
from rollmesh.transport.shared_memory import Lease, Ring, Window
from rollmesh.transport.spin import Spinner
from rollmesh.transport.stream import Stream, open_stream
from rollmesh.wire.frame_reading import Plan
from rollmesh.wire.frames import (
    HEADER_BYTES,
    PAGE_BYTES,
    PREFIX_BYTES,
    SHARED,
    TAIL,
    Frame,
    Header,
    read_header,
)
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
_PROMPT_NS = 8_000
"""A wait that took no longer was none: the next message may be there at once, too."""
_MOST_DRAINED = 64
_read_tail = TAIL.unpack_from
_BYTE = np.dtype(np.uint8)
_clock_ns = time.perf_counter_ns
_clock = time.monotonic


class NativeConnection(Connection):
    """One end of a native connection; see `Connection` for what it promises.

    Args:
        sock: A connected unix or TCP (or wrapped) socket; the connection owns it from here on.
        address: The other end, for messages.
        options: How to move messages.
        place: What all connections like this have in common: the listener; the other end if empty.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        options: ConnectionOptions = DEFAULT_OPTIONS,
        *,
        place: str = "",
    ) -> None:
        super().__init__(address, options)
        self.spinner = Spinner(options.spin, processes=options.processes, place=place or address)
        self._sock = sock
        self.peer = peer_of(sock)
        self._is_unix = sock.family == getattr(socket, "AF_UNIX", None)
        self._ring: Ring | None = None
        self._window: Window | None = None
        if self._is_unix:
            self._ring = greet(sock, with_memory=options.shared_memory)
        self._is_greeted = not self._is_unix
        self._stream: Stream = open_stream(sock)
        # reentrant: a signal handler may close what its own thread waits for
        self._send_lock = threading.RLock()
        self._receive_lock = threading.RLock()
        self._plans = self.framing.plans
        self._threshold = options.shared_threshold_bytes
        self._inbox = bytearray(INBOX_BYTES)
        self._view = memoryview(self._inbox)
        self._start: int = 0
        self._end: int = 0
        self._expected = 0
        self._is_amid = False
        self._is_prompt = False
        self._head = bytearray(HEADER_BYTES)
        self._recycler = Recycler()
        self._copy: Callable[[memoryview], Any] = bytearray if options.writable else bytes

    @property
    def path(self) -> str:
        if not self._is_unix:
            version = getattr(self._sock, "version", lambda: "")()
            return "native frames over TCP" + (f" with {version}" if version else "")
        if self._ring is not None and self._window is not None:
            large = f"payloads from {self._threshold // 1024} KiB on through shared memory"
        elif self._ring is not None:  # before the first message has come
            large = "shared memory where the other end has it"
        else:
            large = "without shared memory"
        return f"native frames over a unix socket, {large}"

    @property
    def has_more(self) -> bool:
        """Whether more than the last message has been read from the socket."""
        return self._start != self._end

    # ---------------------------------------------------------------------------- send

    def send(self, message: Message, timeout_s: float | None = None) -> int:
        with self._send_lock:
            if self._end_reason is not None:
                raise self._lost("closed")
            data = self.framing.quick(message)
            if data is not None:
                return self._write([data], len(data), timeout_s)
            frame = self.framing.encode(message)
            total = on_socket = HEADER_BYTES + frame.payload_bytes + len(frame.section)
            parts = None
            if frame.payload_bytes >= self._threshold and self._ring is not None:
                parts = self._share(frame, self._ring)
            if parts is None:
                parts = [frame.header(), *frame.parts]
            else:
                on_socket -= frame.payload_bytes
            if frame.section:
                parts.append(frame.section)
            self._write(parts, on_socket, timeout_s)
            return total

    def _write(self, parts: list[Any], total: int, timeout_s: float | None) -> int:
        try:
            written = self._stream.write(parts, total, timeout_s)
        except OSError as error:
            raise self._broken(f"the connection broke while sending: {error}") from error
        if written != total:
            self._broken("a message was cut at its deadline")
            raise self._late("the peer did not take a message", timeout_s, is_usable=False)
        return total

    def _share(self, frame: Frame, ring: Ring) -> list[Any] | None:
        """Put the payload into shared memory and return the header; None where it cannot be."""
        if not self._is_greeted:  # not known yet whether the other end takes it
            return None
        slot = ring.claim(frame.payload_bytes)
        if slot is None:
            return None
        view, place = slot.view, 0
        for part in frame.parts:
            data = part if isinstance(part, bytes) else memoryview(part).cast("B")
            size = len(data)
            view[place : place + size] = data
            place += size
        return [frame.header(slot.index, slot.page, is_shared=True)]

    # ------------------------------------------------------------------------- receive

    def receive(self, timeout_s: float | None = None) -> Message:
        with self._receive_lock:
            if self._end_reason is not None:
                raise self._lost("closed")
            expiry = None if timeout_s is None else _clock() + timeout_s
            self._is_amid = False
            try:
                return self._receive(expiry)
            except _Late:
                is_usable = not (self._is_amid or self._end != self._start)
                if not is_usable:
                    self._broken("a message was cut at its deadline")
                raise self._late("nothing came", timeout_s, is_usable=is_usable) from None
            except WireError as error:
                self._broken(str(error))
                raise
            except ConnectionLost:
                raise
            except OSError as error:
                raise self._broken(f"the connection broke: {error}") from error
            except BaseException:  # Ctrl-C: what came of a message is lost
                if self._is_amid or self._end != self._start:
                    self._broken("interrupted in the middle of a message")
                raise

    def _receive(self, expiry: float | None) -> Message:
        if not self._is_greeted:
            self._read_greeting(expiry)
        if self._start == self._end:
            room, used = len(self._inbox), self._start
            self._start = self._end = 0
            if room > _MOST_KEPT_BYTES or (room > _MOST_IDLE_BYTES and used <= _MOST_IDLE_BYTES):
                self._inbox = bytearray(INBOX_BYTES)
                self._view = memoryview(self._inbox)
            if self._expected:
                return self._receive_direct(expiry)
            stream = self._stream
            count = self._first(stream.read, stream.take, self._view, expiry)
            plan = self._plans.get(bytes(self._view[:PREFIX_BYTES]))
            if plan is not None and count >= plan.stop:
                # like one before, as nearly all messages are
                end, stop = plan.end, plan.stop
                if count > stop:
                    self._start, self._end = stop, count
                request_id, spent = _read_tail(self._inbox, PREFIX_BYTES)
                section = b"" if end == stop else self._view[end:stop]
                if not plan.is_shared:
                    payload = self._copy(self._view[HEADER_BYTES:end])
                    return plan.read(payload, request_id, spent, section)
                payload, lease = self._take_shared(plan.slot, plan.page, plan.nbytes)
                message = plan.read(payload, request_id, spent, section)
                message.lease = lease
                return message
            self._end = count
        while self._end - self._start < HEADER_BYTES:
            self._more(expiry)
        return self._receive_rest(read_header(self._inbox, self._start, self.most_bytes), expiry)

    def _receive_rest(self, header: Header, expiry: float | None) -> Message:
        """Receive what follows a header that stands at the start of the inbox."""
        inline = 0 if header.flags & SHARED else header.payload_bytes
        if inline >= _DIRECT_BYTES:
            self.framing.check(header)
            buffer: Any = self._buffer(inline)
            self._is_amid = True
            self._start += HEADER_BYTES
            view = memoryview(buffer)
            have = min(inline, self._end - self._start)
            view[:have] = self._view[self._start : self._start + have]
            self._start += have
            self._expected = inline if self._stream.can_scatter else 0
            return self._finish_direct(header, buffer, have, expiry)
        self._expected = 0
        stop = HEADER_BYTES + inline + header.section_bytes
        while self._end - self._start < stop:
            self._more(expiry, stop)
        start = self._start + HEADER_BYTES
        middle = start + inline
        self._start += stop
        section = self._view[middle : middle + header.section_bytes]
        if header.flags & SHARED:
            return self._receive_shared(header, section)
        payload = self._copy(self._view[start:middle]) if inline else b""
        return self.framing.decode(header, payload, 0, section)

    def _receive_shared(self, header: Header, section: memoryview) -> Message:
        payload, lease = self._take_shared(header.slot, header.page, header.payload_bytes)
        message = self.framing.decode(header, payload, 0, section)
        message.lease = lease
        return message

    def _take_shared(self, slot: int, page: int, nbytes: int) -> tuple[Any, Lease | None]:
        """Return the payload in a slot: lent, a view with its lease, or a copy."""
        window = self._window
        if window is None:
            raise WireError("a payload in shared memory, but none was set up")
        if self.options.lent:
            return window.lend(slot, page, nbytes), None
        source = window.view(slot, page, nbytes)
        if self.options.views:
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
        count = self._first(stream.read_many, stream.take_many, buffers, expiry)
        self._is_amid = True
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
                self.framing.check(header)
                self._start, self._end = 0, max(0, came - room)
                if came > inline:  # what follows it belongs where small messages are read
                    self._fill(bytes(whole[inline : min(came, room)]) + self._view[: self._end])
                self._expected = inline
                return self._finish_direct(header, buffer, min(came, inline), expiry)
        # another message: put everything where small ones are read
        body, rest = max(0, min(came, room)), max(0, came - room)
        self._fill(head[:count] + whole[:body] + self._view[:rest])
        self._expected = 0
        while self._end < HEADER_BYTES:
            self._more(expiry)
        return self._receive_rest(read_header(self._inbox, 0, self.most_bytes), expiry)

    def _finish_planned(self, plan: Plan, buffer: Any, have: int, expiry: float | None) -> Message:
        """Read the rest of a message like one before, section included, into its buffer."""
        size, nbytes = plan.stop - HEADER_BYTES, plan.nbytes
        whole = memoryview(buffer)
        while have < size:
            have += self._wait_and_read(whole[have:size], expiry, size - have)
        self._expected = nbytes
        request_id, spent = _read_tail(self._head, PREFIX_BYTES)
        section = b"" if size == nbytes else whole[nbytes:size]
        return plan.read(self._payload(buffer), request_id, spent, section)

    def _fill(self, data: bytes | bytearray) -> None:
        """Let the inbox hold this and nothing else."""
        if len(data) > len(self._inbox):
            self._inbox = bytearray(len(data) + INBOX_BYTES)
            self._view = memoryview(self._inbox)
        self._view[: len(data)] = data
        self._start, self._end = 0, len(data)

    def _finish_direct(
        self, header: Header, buffer: Any, have: int, expiry: float | None
    ) -> Message:
        """Read the rest of a large payload into its buffer, then the section."""
        inline = header.payload_bytes
        view = memoryview(buffer)[:inline]
        while have < inline:
            have += self._wait_and_read(view[have:], expiry, inline - have)
        size = header.section_bytes
        while self._end - self._start < size:
            self._more(expiry, size)
        section = self._view[self._start : self._start + size]
        self._start += size
        return self.framing.decode(header, self._payload(buffer), 0, section)

    # ---------------------------------------------------------------------------- bytes

    def _first(
        self,
        read: Callable[[Any], int],
        take: Callable[[Any], int],
        target: Any,
        expiry: float | None,
    ) -> int:
        """Read the first bytes of a message: spin where that pays, then wait."""
        begun = _clock_ns()
        if begun >= self.spinner.resume_ns:
            count = self._spin(read, target, begun, expiry)
        elif expiry is None:
            count = take(target)
        else:
            count = self._wait_first(read, target, expiry)
        if not count:
            raise self._broken("the peer closed the connection")
        return count

    def _wait_first(self, read: Callable[[Any], int], target: Any, expiry: float) -> int:
        if self._is_prompt:
            try:
                return read(target)
            except BlockingIOError:
                self._is_prompt = False
        wait, left_s = self._stream.wait, expiry - _clock()
        begun = _clock_ns()
        while True:
            if not wait(left_s if left_s > 0 else 0.0):
                raise _Late
            self._is_prompt = _clock_ns() - begun < _PROMPT_NS
            try:
                return read(target)
            except BlockingIOError:  # said to be there, and is not
                left_s = expiry - _clock()

    def _spin(
        self, read: Callable[[Any], int], target: Any, begun: int, expiry: float | None
    ) -> int:
        """Read the first bytes, looking again and again before waiting."""
        spinner = self.spinner
        stop = begun + spinner.budget_ns
        hit = True
        while True:
            try:
                count = read(target)
                break
            except BlockingIOError:
                if not hit or _clock_ns() > stop:
                    hit = False
                    self._wait(expiry)
        spinner.note(_clock_ns() - begun, hit=hit)
        return count

    def _more(self, expiry: float | None, wanted: int = HEADER_BYTES) -> None:
        """Read more into the inbox; it grows as bytes come, until so many of them fit."""
        if self._end == len(self._inbox):
            held = self._view[self._start : self._end]
            room = len(self._inbox)
            if self._start < room // 2:
                room = max(INBOX_BYTES, min(2 * room, wanted))
            inbox = bytearray(room)
            inbox[: len(held)] = held
            self._start, self._end = 0, len(held)
            self._inbox, self._view = inbox, memoryview(inbox)
        self._end += self._wait_and_read(self._view[self._end :], expiry)

    def _buffer(self, nbytes: int) -> Any:
        """Return a buffer of at least so many bytes, one used before if nobody holds it."""
        size = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
        return self._recycler.array((size,), _BYTE, size)

    def _payload(self, buffer: Any) -> Any:
        """Return a buffer that was filled, for leaves that may be written to or not."""
        buffer.flags.writeable = self.options.writable
        return buffer

    def _wait_and_read(self, target: memoryview, expiry: float | None, least: int = 1) -> int:
        """Read more of a message, which the peer is sending now; at least so much is to come."""
        read, spinner = self._stream.read, self.spinner
        stop = 0
        while True:
            try:
                count = read(target)
                break
            except BlockingIOError:
                now = _clock_ns()
                stop = stop or now + spinner.budget_ns
                if now < spinner.resume_ns or now > stop:
                    self._wait(expiry, least)
        if not count:
            raise self._broken("the peer closed the connection in the middle of a message")
        return count

    def _wait(self, expiry: float | None, least: int = 1) -> None:
        left_s = None if expiry is None else max(0.0, expiry - _clock())
        if not self._stream.wait(left_s, least):
            raise _Late

    # ------------------------------------------------------------------------- lifecycle

    def shutdown(self, reason: str = "shut down here") -> None:
        if self._end_reason is None:
            self._end_reason = reason
        self._stream.shutdown()

    def close(self) -> None:
        self.shutdown("closed here")
        # whoever sends or receives wakes up from the shutdown and lets go of the lock
        with self._receive_lock, self._send_lock:
            self._drain()
            self._stream.close()
            if self._ring is not None:
                self._ring.close()
                self._ring = None
            if self._window is not None:
                self._window.close()
                self._window = None

    def _drain(self) -> None:
        """Read what was not received: closing over it would take back what was sent last."""
        with contextlib.suppress(OSError):
            for _ in range(_MOST_DRAINED):
                if not self._stream.read(self._view):
                    break

    def _broken(self, detail: str) -> Any:
        """Shut down a connection that is of no more use, and return the error that says why."""
        error = self._lost(detail)
        self._stream.shutdown()
        return error

    def _read_greeting(self, expiry: float | None) -> None:
        with_memory = self.options.shared_memory
        try:
            self._window = read_greeting(
                self._sock, lambda: self._wait(expiry), with_memory=with_memory
            )
        except EOFError:
            raise self._broken("the peer closed the connection before it said anything") from None
        self._is_greeted = True
        if self._window is None and self._ring is not None:
            # a peer that offers no shared memory takes none either
            self._ring.close()
            self._ring = None


class _Late(Exception):  # noqa: N818 - never leaves this module
    """The deadline is over."""
