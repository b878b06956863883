"""The life of a server's process: signals, the word that it is ready, systemd (layer 6).

Signals. The handlers are ours while `serve()` runs on the main thread. An env may install its own
when it is built; so the numbers are read from the wake-up descriptor, which Python writes to
whatever the handlers are, and ours are installed again after each build. What a signal leads to
runs on a thread of its own: it comes through when the main thread hangs in an env.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmesh.errors import InvalidSpec

if TYPE_CHECKING:
    from typing_extensions import Self

_logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SAME_SIGNAL_S = 0.3
"""The same signal again within so short a time is taken as one: it may be seen twice, and a
terminal and a supervisor often send one each."""


class Signals:
    """Has SIGTERM and SIGINT handled while it is entered; does nothing off the main thread.

    Args:
        on_signal: Called on a thread of its own with the signal, and how many have come before it.
    """

    def __init__(self, on_signal: Callable[[int, int], None]) -> None:
        self._on_signal = on_signal
        self._old: dict[int, Any] = {}
        self._old_wakeup = -1
        self._pair: tuple[socket.socket, socket.socket] | None = None
        self._count = 0
        self._last: tuple[int, float] = (0, 0.0)
        self._thread: threading.Thread | None = None

    @property
    def is_installed(self) -> bool:
        """Whether signals are handled here."""
        return self._pair is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        reading, writing = socket.socketpair()
        writing.setblocking(False)
        self._pair = reading, writing
        for number in STOP_SIGNALS:
            self._old[number] = signal.signal(number, self._handle)
        self._old_wakeup = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._read, name="rollmesh-signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._pair is None:
            return
        reading, writing = self._pair
        self._pair = None
        with contextlib.suppress(ValueError, OSError):
            signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        with contextlib.suppress(OSError):
            reading.shutdown(socket.SHUT_RDWR)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)
        writing.close()
        reading.close()

    def install_again(self) -> None:
        """Take back what an env may have taken; on the main thread, else nothing happens."""
        if self._pair is None or threading.current_thread() is not threading.main_thread():
            return
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != self._handle:
                _logger.info("signal_handler_replaced signal=%d detail=ours is back", number)
                signal.signal(number, self._handle)
        signal.set_wakeup_fd(self._pair[1].fileno(), warn_on_full_buffer=False)

    def _handle(self, number: int, frame: object) -> None:
        """Stand in for the default: the wake-up descriptor tells; so does this, if it was taken."""
        del frame
        pair = self._pair
        if pair is not None:
            with contextlib.suppress(OSError):
                pair[1].send(bytes((number,)))

    def _read(self) -> None:
        pair = self._pair
        if pair is None:
            return
        while True:
            try:
                data = pair[0].recv(64)
            except OSError:
                return
            if not data:
                return
            for number in data:
                self._take(number)

    def _take(self, number: int) -> None:
        now = time.monotonic()
        last, at = self._last
        if number not in STOP_SIGNALS or (number == last and now - at < SAME_SIGNAL_S):
            return
        self._last = number, now
        before, self._count = self._count, self._count + 1
        threading.Thread(
            target=self._on_signal, args=(number, before), name="rollmesh-signal", daemon=True
        ).start()


# ------------------------------------------------------------------------------------- ready


class Readiness:
    """Tells whoever started the server that it is ready.

    Args:
        ready_fd: Gets the addresses, one a line, and is closed.
        ready_file: Gets them too; it appears complete, and is removed by `stopped`. What an earlier
            server left there, which was killed, is removed by `begin`.
    """

    def __init__(
        self, ready_fd: int | None = None, ready_file: str | os.PathLike[str] | None = None
    ) -> None:
        self._fd = ready_fd
        # an env may change the working directory
        self._file = None if ready_file is None else Path(ready_file).absolute()
        self._written: tuple[int, int, int] | None = None

    def check(self) -> None:
        """Refuse what could not be told, before anything is built.

        Raises:
            InvalidSpec: The descriptor is not open, or the file has no folder to be in.
        """
        if self._fd is not None:
            try:
                os.fstat(self._fd)
            except OSError as error:
                raise InvalidSpec(
                    "ready_fd",
                    f"{self._fd} is no open descriptor ({error.strerror}); whoever starts the "
                    "server has to hand it down (in Python: pass_fds)",
                ) from error
        if self._file is not None and not os.access(self._file.parent, os.W_OK):
            reason = "cannot be written to" if self._file.parent.is_dir() else "does not exist"
            raise InvalidSpec("ready_file", f"the folder {self._file.parent} {reason}")

    def begin(self) -> None:
        """Take away what a killed server left, which would pass for the word of this one."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()

    def ready(self, addresses: Sequence[str]) -> None:
        """Say that clients are served."""
        text = "".join(f"{address}\n" for address in addresses)
        if self._file is not None:
            draft = self._file.with_name(f".{self._file.name}.{os.getpid()}")
            draft.write_text(text, encoding="utf-8")
            self._written = _identity(draft)
            draft.replace(self._file)
        descriptor, self._fd = self._fd, None
        if descriptor is not None:
            with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "w") as stream:
                stream.write(text)
        notify_systemd(f"READY=1\nSTATUS=serving at {', '.join(addresses)}")

    def stopping(self) -> None:
        """Say that the server is about to end."""
        notify_systemd("STOPPING=1")

    def stopped(self) -> None:
        """Take back the ready file, unless the next server has put its own there."""
        file, written = self._file, self._written
        if file is not None and written is not None:
            with contextlib.suppress(FileNotFoundError):
                if _identity(file) == written:
                    file.unlink()


def _identity(file: Path) -> tuple[int, int, int]:
    facts = file.stat()
    return facts.st_dev, facts.st_ino, facts.st_mtime_ns  # numbers of files are used again


def notify_systemd(text: str) -> bool:
    """Send a state to systemd, if it started us; return whether it was sent.

    Source: sd_notify(3).
    """
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path or path[0] not in "/@" or not hasattr(socket, "AF_UNIX"):
        return False
    where = f"\0{path[1:]}" if path[0] == "@" else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(1.0)
            sock.sendto(text.encode(), where)
    except OSError as error:
        _logger.warning("systemd_notify_failed error=%s", error)
        return False
    return True
