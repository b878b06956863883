"""Greetings: the first 8 bytes on a unix socket, each way (layer 5).

    magic      4 bytes
    with file  1 byte: whether the descriptor of a shared memory file comes with it
    zeros      3 bytes

It knows no messages.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable

from rollmesh.errors import WireError
from rollmesh.transport.shared_memory import Ring, Window, create_file, is_available

_logger = logging.getLogger(__name__)

_GREETING = b"\xa7RM1"
_GREETING_BYTES = 8
_WITH_FILE = 1


def greet(sock: socket.socket, *, with_memory: bool) -> Ring | None:
    """Send the greeting, and return the ring whose descriptor went with it.

    It is the first thing on the socket, and always fits. Where it cannot be sent, the first send or
    receive says what is wrong.
    """
    descriptor = -1
    if with_memory and is_available():
        try:
            descriptor = create_file()
        except OSError as error:
            _logger.warning("shared_memory_off error=%s", error)
    with_file = descriptor >= 0
    greeting = _GREETING + bytes((with_file, 0, 0, 0))
    ring: Ring | None = None
    try:
        if with_file:
            socket.send_fds(sock, [greeting], [descriptor])
            ring = Ring(descriptor)
        else:
            sock.send(greeting)
    except OSError:
        if with_file and ring is None:
            os.close(descriptor)
    return ring


def read_greeting(
    sock: socket.socket, wait: Callable[[], None], *, with_memory: bool
) -> Window | None:
    """Read the other end's greeting, and return the window whose descriptor came with it.

    Args:
        sock: The socket.
        wait: Waits until there is something to read.
        with_memory: Whether shared memory is wanted here.

    Raises:
        EOFError: The peer closed the connection before it said anything.
        WireError: That is no greeting, or no memory of ours.
    """
    greeting = b""
    descriptors: list[int] = []
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0) | socket.MSG_DONTWAIT
    try:
        while len(greeting) < _GREETING_BYTES:
            wait()
            try:
                data, more, _, _ = socket.recv_fds(sock, _GREETING_BYTES - len(greeting), 4, flags)
            except BlockingIOError:
                continue
            descriptors += more
            if not data:
                raise EOFError("the peer closed the connection before it said anything")
            greeting += data
        if not greeting.startswith(_GREETING):
            raise WireError(
                f"no rollmesh greeting: {greeting!r}; is the peer a rollmesh end, and this its "
                "native address?"
            )
        has_file = greeting[4] & _WITH_FILE and len(descriptors) == 1 and is_available()
        return Window(descriptors.pop()) if has_file and with_memory else None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
