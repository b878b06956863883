"""Dialing and listening by address: the door of the native and memory transports (layer 5)."""

from __future__ import annotations

import contextlib
import socket
import time

from rollmesh.errors import ConnectFailed, InvalidSpec
from rollmesh.transport.address import Address, parse_address
from rollmesh.transport.connection import DEFAULT_OPTIONS, Connection, ConnectionOptions
from rollmesh.transport.listening import Listener, NativeListener
from rollmesh.transport.memory import MemoryListener, connect_memory
from rollmesh.transport.native import NativeConnection
from rollmesh.transport.stream import Wrap

CONNECT_S = 10.0


def dial(
    address: str | Address,
    options: ConnectionOptions = DEFAULT_OPTIONS,
    *,
    timeout_s: float = CONNECT_S,
    wrap: Wrap | None = None,
) -> Connection:
    """Connect to a server; one attempt.

    Args:
        address: `rollmesh+unix://…`, `rollmesh+tcp://…` or `mem://…`.
        options: How to move messages.
        timeout_s: How long connecting may take, the wrapper included.
        wrap: Applied to a connected TCP socket (TLS).

    Raises:
        ConnectFailed: Nobody answered in time, or the wrapper refused the server.
        InvalidSpec: It is no such address.
    """
    where = address if isinstance(address, Address) else parse_address(address)
    if where.protocol == "memory":
        connection: Connection = connect_memory(where, options)
    elif where.protocol == "native":
        sock = _connect(where, timeout_s, wrap)
        try:
            connection = NativeConnection(sock, str(where), options)
        except OSError as error:  # the server is gone already
            sock.close()
            raise ConnectFailed(str(where), str(error)) from error
        except BaseException:
            sock.close()
            raise
    else:
        raise InvalidSpec("address", f"{where} speaks {where.protocol}, not a native transport")
    connection.admit()
    return connection


def listen(
    address: str | Address,
    options: ConnectionOptions = DEFAULT_OPTIONS,
    *,
    wrap: Wrap | None = None,
) -> Listener:
    """Listen at an address, `rollmesh+unix://` (a path of our own) and port 0 included.

    Raises:
        ListenFailed: It is in use or cannot be bound.
        InvalidSpec: It is no address of these transports.
    """
    where = address if isinstance(address, Address) else parse_address(address, "bind")
    if where.protocol == "memory":
        return MemoryListener(where, options)
    if where.protocol == "native":
        return NativeListener(where, options, wrap=wrap)
    raise InvalidSpec("address", f"{where} speaks {where.protocol}, not a native transport")


def _connect(address: Address, timeout_s: float, wrap: Wrap | None) -> socket.socket:
    expiry = time.monotonic() + timeout_s
    try:
        if address.family == "unix":
            return _connect_unix(address, timeout_s)
        sock = _connect_tcp(address, timeout_s)
    except TimeoutError as error:
        raise ConnectFailed(str(address), f"no answer within {timeout_s:g} s") from error
    except (OSError, UnicodeError) as error:
        raise ConnectFailed(str(address), f"{error}; is the server running?") from error
    if wrap is None:
        return sock
    try:
        sock.settimeout(max(0.001, expiry - time.monotonic()))
        return wrap(sock)
    except OSError as error:
        sock.close()
        raise ConnectFailed(str(address), f"the handshake failed: {error}") from error
    except BaseException:
        sock.close()
        raise


def _connect_tcp(address: Address, timeout_s: float) -> socket.socket:
    if address.host == "localhost":
        # whatever the system's tables say: a server may be bound to either loopback address
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", address.port), timeout_s)
        return socket.create_connection(("::1", address.port), timeout_s)
    return socket.create_connection((address.host, address.port), timeout_s)


def _connect_unix(address: Address, timeout_s: float) -> socket.socket:
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.settimeout(timeout_s)
        sock.connect(address.path)
        stack.pop_all()
        return sock
