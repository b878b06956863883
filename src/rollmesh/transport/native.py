"""The native connection: our own frames over a unix or TCP socket (layer 5).

On a unix socket each end first sends a greeting of 8 bytes which carries the descriptor of its
shared memory file, where both the platform and the options have one. Nothing waits for it: the
first `receive` reads the other end's.

Sending is here, and the life of the connection: locks, the ends of both directions, what a caller
is told of them. How bytes become messages is in `receiving.py`, how one waits for them in
`patience.py`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any

from rollmesh.errors import ConnectionLost, WireError
from rollmesh.transport.connection import DEFAULT_OPTIONS, Connection, ConnectionOptions
from rollmesh.transport.greeting import greet, read_greeting
from rollmesh.transport.patience import Late, PatientReader
from rollmesh.transport.receiving import Receiver
from rollmesh.transport.security import Peer, peer_of
from rollmesh.transport.shared_memory import Ring
from rollmesh.transport.spin import Spinner
from rollmesh.transport.stream import Stream, is_hung_up, open_stream, remaining
from rollmesh.wire.frames import HEADER_BYTES, Frame
from rollmesh.wire.messages import Message

_MOST_DRAINED = 64
_MOMENT_S = 0.002
"""How long `post` waits for a peer that is just reading, before it leaves the rest to `flush`."""
_LOOK_S = 1.0
_INTERRUPTED = "interrupted while sending"
_clock = time.monotonic


class NativeConnection(Connection):
    """One end of a native connection; see `Connection` for what it promises.

    Args:
        sock: A connected unix or TCP (or wrapped) socket; the connection owns it from here on.
        address: The other end, for messages.
        options: How to move messages.
        place: What all connections like this have in common: the listener; the other end if empty.

    Attributes:
        keeps_parts: Whether a message whose rest does not come by the deadline of a `receive` is
            gone on with by the next one; else the connection is of no more use then.
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
        self._sock = sock
        self.peer = peer_of(sock)
        self._is_unix = sock.family == getattr(socket, "AF_UNIX", None)
        self._ring: Ring | None = None
        if self._is_unix:
            self._ring = greet(sock, with_memory=options.shared_memory)
        self._is_greeted = not self._is_unix
        self._stream: Stream = open_stream(sock)
        self._spinner = Spinner(options.spin, processes=options.processes, place=place or address)
        self._reader = PatientReader(self._stream, self._spinner)
        self._receiver = Receiver(
            self._stream, self._reader, self.framing, options, most_bytes=self.most_bytes
        )
        # reentrant: a signal handler may close what its own thread waits for
        self._send_lock = threading.RLock()
        self._receive_lock = threading.RLock()
        self._threshold = options.shared_threshold_bytes
        self._unsent: list[memoryview] = []
        """What `post` left for `flush`, in order."""
        self.keeps_parts = False

    @property
    def path(self) -> str:
        if not self._is_unix:
            version = getattr(self._sock, "version", lambda: "")()
            return "native frames over TCP" + (f" with {version}" if version else "")
        if self._ring is not None and self._receiver.window is not None:
            large = f"payloads from {self._threshold // 1024} KiB on through shared memory"
        elif self._ring is not None:  # before the first message has come
            large = "shared memory where the other end has it"
        else:
            large = "without shared memory"
        return f"native frames over a unix socket, {large}"

    @property
    def has_more(self) -> bool:
        """Whether more than the last message has been read from the socket."""
        receiver = self._receiver
        return receiver.start != receiver.end

    @property
    def is_amid(self) -> bool:
        """Whether a part of a message was there when the last `receive` came to its deadline."""
        return self._receiver.is_amid

    def admit(self) -> None:
        super().admit()
        self._receiver.most_bytes = self.most_bytes

    def keep_parts(self) -> bool:
        self.keeps_parts = True
        return True

    def is_gone(self) -> bool:
        return self._end_reason is not None or is_hung_up(self._sock)

    def share(self, processes: int) -> None:
        if self.peer is not Peer.STRANGER:  # others have cores of their own
            self._spinner.share(processes)

    # ---------------------------------------------------------------------------- send

    def send(self, message: Message, timeout_s: float | None = None) -> int:
        lock = self._send_lock
        if not lock.acquire(blocking=False):
            timeout_s = self._take_turn(lock, timeout_s)
        try:
            if self._end_reason is not None:
                raise self._lost("closed")
            if self._unsent:
                self._clear_unsent(timeout_s)
            try:
                data = self.framing.quick(message)
                if data is not None:
                    return self._write_all([data], len(data), timeout_s)
                parts, on_socket, total = self._parts_of(message)
                self._write_all(parts, on_socket, timeout_s)
            except BaseException as error:
                self._look_at(error)
                raise
            return total
        finally:
            lock.release()

    def post(self, message: Message) -> bool:
        with self._send_lock:
            if self._end_reason is not None:
                raise self._lost("closed")
            sent = 0
            try:
                data = self.framing.quick(message)
                if data is None:
                    parts, on_socket, _ = self._parts_of(message)
                else:
                    parts, on_socket = [data], len(data)
                unsent = self._unsent
                if not unsent:
                    sent = self._write(parts, on_socket, _MOMENT_S)
                if sent == on_socket:
                    return True
                # a copy: the leaves are the caller's again
                unsent.append(memoryview(b"".join(remaining(parts, sent))))
            except BaseException as error:
                self._look_at(error)
                if sent:  # what is cut cannot be gone on with
                    self._broken("a message was cut")
                raise
            return len(unsent) > 1

    def flush(self, timeout_s: float | None = None) -> None:
        waits = self._stream.wait_for_room
        expiry = None if timeout_s is None else _clock() + timeout_s
        while True:
            with self._send_lock:
                if self._end_reason is not None:
                    raise self._lost("closed")
                if self._unsent and self._write_unsent(0.0) and timeout_s is not None:
                    expiry = _clock() + timeout_s
                if not self._unsent:
                    return
            # without the lock: nobody who posts waits for the peer
            left_s = _LOOK_S if expiry is None else min(_LOOK_S, expiry - _clock())
            if left_s <= 0.0:
                self._broken("the peer takes nothing any more")
                raise self._late("the peer took nothing", timeout_s, is_usable=False)
            waits(left_s)

    def _parts_of(self, message: Message) -> tuple[list[Any], int, int]:
        """Return a message as buffers, their bytes on the socket, and those in all."""
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
        return parts, on_socket, total

    def _write_all(self, parts: list[Any], total: int, timeout_s: float | None) -> int:
        if self._write(parts, total, timeout_s) != total:
            self._broken("a message was cut at its deadline")
            raise self._late("the peer did not take a message", timeout_s, is_usable=False)
        return total

    def _write(self, parts: list[Any], total: int, timeout_s: float | None) -> int:
        """Write what the peer takes in time; return the bytes written."""
        try:
            return self._stream.write(parts, total, timeout_s)
        except OSError as error:
            raise self._broken(f"the connection broke while sending: {error}") from error
        except BaseException:
            self._broken(_INTERRUPTED)
            raise

    def _clear_unsent(self, timeout_s: float | None) -> None:
        self._write_unsent(timeout_s)
        if self._unsent:
            what = "the peer did not take what goes before"
            raise self._late(what, timeout_s, is_usable=True)

    def _write_unsent(self, timeout_s: float | None) -> bool:
        """Write of what `post` left what the peer takes in time; return whether it took any."""
        unsent = self._unsent
        sent = self._write(list(unsent), sum([len(one) for one in unsent]), timeout_s)
        self._unsent = remaining(unsent, sent)
        return sent > 0

    def _look_at(self, error: BaseException) -> None:
        """Break a connection on which sending was interrupted: the peer may have half of it."""
        if not isinstance(error, Exception):
            self._broken(_INTERRUPTED)

    def _share(self, frame: Frame, ring: Ring) -> list[Any] | None:
        """Put the payload into shared memory and return the header; None where it cannot be."""
        if not self._is_greeted:  # not known yet whether the other end takes it
            return None
        slot = ring.claim(frame.payload_bytes)
        if slot is None:
            return None
        view, place = slot.view, 0
        try:
            for part in frame.parts:
                data = part if isinstance(part, bytes) else memoryview(part).cast("B")
                size = len(data)
                view[place : place + size] = data
                place += size
        except BaseException:  # nothing of it is sent
            ring.give_back(slot)
            raise
        return [frame.header(slot.index, slot.page, is_shared=True)]

    # ------------------------------------------------------------------------- receive

    def receive(self, timeout_s: float | None = None) -> Message:
        with self._receive_lock:
            if self._end_reason is not None:
                raise self._lost("closed")
            expiry = None if timeout_s is None else _clock() + timeout_s
            try:
                if not self._is_greeted:
                    self._read_greeting(expiry)
                return self._receiver.receive(expiry)
            except Late:
                what, is_usable = "nothing came", True
                if self._receiver.is_amid:
                    what, is_usable = "the rest of a message did not come", self.keeps_parts
                    if not is_usable:
                        self._broken("a message was cut at its deadline")
                raise self._late(what, timeout_s, is_usable=is_usable) from None
            except EOFError as error:
                raise self._broken(str(error)) from None
            except WireError as error:
                self._broken(str(error))
                raise
            except OSError as error:
                raise self._broken(f"the connection broke: {error}") from error
            except BaseException:  # Ctrl-C: what came of a message is lost
                if self._receiver.is_amid:
                    self._broken("interrupted in the middle of a message")
                raise

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
            window, self._receiver.window = self._receiver.window, None
            if window is not None:
                window.close()

    def forsake(self) -> None:
        super().forsake()
        self._sock.close()  # no shutdown: this descriptor is a copy

    def _drain(self) -> None:
        """Read what was not received: closing over it would take back what was sent last."""
        with contextlib.suppress(OSError):
            for _ in range(_MOST_DRAINED):
                if not self._stream.read(self._receiver.inbox):
                    break

    def _broken(self, detail: str) -> ConnectionLost:
        """Shut down a connection that is of no more use, and return the error that says why."""
        error = self._lost(detail)
        self._stream.shutdown()
        return error

    def _read_greeting(self, expiry: float | None) -> None:
        window = read_greeting(
            self._sock,
            lambda: self._reader.wait(expiry),
            with_memory=self.options.shared_memory,
        )
        self._receiver.window = window
        self._is_greeted = True
        if window is None and self._ring is not None:
            # a peer that offers no shared memory takes none either
            self._ring.close()
            self._ring = None
