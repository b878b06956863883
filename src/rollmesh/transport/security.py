"""Security: tokens, TLS, where a server may listen, and who is at the other end (layer 5).

    token = load_token(file="/run/secrets/rollmesh")      # or ROLLMESH_TOKEN, ROLLMESH_TOKEN_FILE
    tls = TlsServer(certificate="server.pem", key="server.key")
    check_bind(address, token=token, tls=tls)             # raises, or warns
    listener = listen(address, wrap=server_wrap(tls))
    ...
    if token is not None and not token.matches(hello.token): ...

    connection = dial(address, wrap=client_wrap(TlsClient(ca="ca.pem"), host))

A token comes from a file or the environment, never from a command line, which everybody on the
machine can read. It never shows in a `repr`. TLS is 1.2 or newer, and the server's name is checked.

gRPC has its own TLS; it gets the same files through `pem()`.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import logging
import os
import re
import socket
import stat
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from rollmesh.errors import InvalidSpec
from rollmesh.transport.address import Address, is_loopback
from rollmesh.transport.tls import (
    PathLike,
    Pem,
    TlsClient,
    TlsServer,
    client_tls,
    client_wrap,
    read_file,
    read_switch,
    server_tls,
    server_wrap,
)

__all__ = (
    "Peer",
    "Pem",
    "TlsClient",
    "TlsServer",
    "Token",
    "check_bind",
    "check_dial",
    "client_tls",
    "client_wrap",
    "load_token",
    "peer_of",
    "peer_of_grpc",
    "read_switch",
    "server_tls",
    "server_wrap",
)

_logger = logging.getLogger(__name__)

TOKEN_VARIABLE = "ROLLMESH_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE_VARIABLE = "ROLLMESH_TOKEN_FILE"  # noqa: S105 - as above
LEAST_TOKEN_BITS = 128

Side: TypeAlias = Literal["server", "client"]

_MOST_TOKEN_BYTES = 4096
_HEX_BITS, _OTHER_BITS = 4, 6
_HEX = re.compile(r"[0-9A-Fa-f]+")
_BEARER = re.compile(r"bearer +", re.IGNORECASE)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MAKE_ONE = 'make one with: python -c "import secrets; print(secrets.token_hex(32))"'


# ------------------------------------------------------------------------------------ tokens


class Token:
    """A shared secret that does not show in a `repr`.

    Args:
        secret: Printable ASCII. A server's has no blanks and at least 128 bits: 32 hexadecimal
            digits, or 22 other characters. A client sends whatever its server wants.
        side: Who uses it.
        source: Where it came from, for errors.

    Raises:
        InvalidSpec: It is empty, too short, or cannot be sent.
    """

    __slots__ = ("_digest", "_secret")

    def __init__(self, secret: str, *, side: Side = "server", source: str = "token") -> None:
        _check_text(secret, source)
        if not secret:
            raise InvalidSpec(source, f"an empty token protects nothing; {_MAKE_ONE}")
        least = "!" if side == "server" else " "
        if not all(least <= letter <= "~" for letter in secret) or secret != secret.strip():
            raise InvalidSpec(source, "a token is printable ASCII without blanks")
        if len(secret) > _MOST_TOKEN_BYTES:
            raise InvalidSpec(source, f"a token has at most {_MOST_TOKEN_BYTES} characters")
        bits = len(secret) * (_HEX_BITS if _HEX.fullmatch(secret) else _OTHER_BITS)
        if side == "server" and bits < LEAST_TOKEN_BITS:
            raise InvalidSpec(
                source,
                f"a token has at least {LEAST_TOKEN_BITS} bits (32 hexadecimal digits or 22 other "
                f"characters), this one at most {bits}; {_MAKE_ONE}",
            )
        self._secret = secret
        self._digest = _digest(secret)

    @property
    def secret(self) -> str:
        """The secret, as it is sent: in `Hello.token`, or as the value of `authorization`."""
        return self._secret

    def matches(self, offered: str | bytes) -> bool:
        """Tell, in constant time, whether a peer knows the secret.

        Args:
            offered: What it sent: the secret as it is, or after `Bearer`.
        """
        text = offered.decode("utf-8", "replace") if isinstance(offered, bytes) else offered
        if len(text) > 2 * _MOST_TOKEN_BYTES:
            return False
        plain = hmac.compare_digest(_digest(text), self._digest)
        bearer = hmac.compare_digest(_digest(_BEARER.sub("", text.strip(), 1)), self._digest)
        return plain or bearer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and hmac.compare_digest(other._digest, self._digest)

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return "Token(…)"


def load_token(
    token: str | Token | None = None,
    *,
    file: PathLike | None = None,
    side: Side = "server",
    environ: Mapping[str, str] | None = None,
) -> Token | None:
    """Return the token to use, or None where none was given.

    What is given here counts before the environment.

    Args:
        token: The secret itself, from Python.
        file: A file that holds it; one end of line after it is no part of it.
        side: Who uses it.
        environ: Where `ROLLMESH_TOKEN` and `ROLLMESH_TOKEN_FILE` are looked up; the process's
            environment if left out.

    Raises:
        InvalidSpec: It is empty or too short, the file cannot be read, or two are given.
    """
    if token is not None and file is not None:
        raise InvalidSpec("token", "give a token or a file, not both")
    if token is not None:
        return token if isinstance(token, Token) else Token(token, side=side)
    if file is not None:
        return _token_from_file(file, side, "token_file")
    variables = os.environ if environ is None else environ
    text, path = variables.get(TOKEN_VARIABLE), variables.get(TOKEN_FILE_VARIABLE)
    if text is not None and path is not None:
        raise InvalidSpec(TOKEN_VARIABLE, f"set this variable or {TOKEN_FILE_VARIABLE}, not both")
    if text is not None:
        return Token(text, side=side, source=TOKEN_VARIABLE)
    if path is not None:
        return _token_from_file(path, side, TOKEN_FILE_VARIABLE)
    return None


def _token_from_file(file: PathLike, side: Side, source: str) -> Token:
    path = Path(file)
    text = read_file(path, source).decode("utf-8", "replace")
    with_others = os.name == "posix" and path.stat().st_mode & _OTHERS
    if with_others:
        _logger.warning("token_file_open path=%s detail=other users may use it; chmod 600 it", path)
    return Token(text.removesuffix("\n").removesuffix("\r"), side=side, source=f"{source} {path}")


def _check_text(secret: object, source: str) -> None:
    if not isinstance(secret, str):
        raise InvalidSpec(source, f"wants a text, got {type(secret).__name__}")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


# ------------------------------------------------------------------------------ where to talk


def check_bind(
    address: Address,
    *,
    token: Token | None,
    tls: TlsServer | None,
    insecure_plaintext: bool = False,
) -> None:
    """Refuse to listen where strangers could use the server.

    A unix socket (0600), memory and loopback hosts are free. Any other address needs TLS and a
    token, or the explicit `insecure_plaintext`, which warns at each start.

    Raises:
        InvalidSpec: The address needs what is missing.
    """
    if address.is_local:
        return
    missing = [name for name, given in (("TLS", tls), ("a token", token)) if given is None]
    if not missing:
        return
    what = " and ".join(missing)
    verb = "is" if len(missing) == 1 else "are"
    if not insecure_plaintext:
        raise InvalidSpec(
            "address",
            f"{address} can be reached from other machines, which needs TLS and a token; {what} "
            f"{verb} missing. Give both, listen at 127.0.0.1 or a unix socket, or, on a network "
            "where everybody is trusted, say so: --insecure-plaintext (insecure_plaintext=True)",
        )
    _logger.warning(
        "insecure_plaintext address=%s missing=%s detail=whoever reaches this address can use the "
        "server, or read what it sends",
        address,
        what,
    )


def check_dial(
    address: Address,
    *,
    token: Token | None,
    tls: TlsClient | None,
    insecure_plaintext: bool = False,
) -> None:
    """Refuse to send a token in plain text to another machine.

    Raises:
        InvalidSpec: It would be.
    """
    if token is None or tls is not None or address.is_local or insecure_plaintext:
        return
    raise InvalidSpec(
        "token",
        f"would cross the network to {address} in plain text; give TLS options (tls=TlsClient(…), "
        "--tls-ca), or say that the network is trusted: insecure_plaintext=True",
    )


# ------------------------------------------------------------------------------------- peers


class Peer(enum.IntEnum):
    """How close the other end is."""

    STRANGER = 0
    SAME_MACHINE = 1
    SAME_USER = 2


def peer_of(sock: socket.socket) -> Peer:
    """Tell how close the other end of a connected socket is.

    The kernel knows the user at the other end of a unix socket. Of a loopback TCP connection only
    the machine is known: a forwarded port looks the same.
    """
    try:
        if sock.family == getattr(socket, "AF_UNIX", None):
            return Peer.SAME_USER if _peer_user(sock) == os.geteuid() else Peer.SAME_MACHINE
        host = sock.getpeername()[0]
    except OSError:
        return Peer.STRANGER
    return Peer.SAME_MACHINE if is_loopback(host) else Peer.STRANGER


def peer_of_grpc(peer: str) -> Peer:
    """Tell how close a gRPC peer is, from what `context.peer()` says.

    Our socket files are for one user only (0600), so whoever comes through one is that user.
    """
    kind, _, rest = peer.partition(":")
    if kind in ("unix", "unix-abstract"):
        return Peer.SAME_USER if kind == "unix" else Peer.SAME_MACHINE
    host = rest.rpartition(":")[0].replace("%5B", "[").replace("%5D", "]").strip("[]")
    return Peer.SAME_MACHINE if is_loopback(host) else Peer.STRANGER


_CREDENTIALS = struct.Struct("3i")  # process, user, group
_XUCRED = struct.Struct("II")  # version, user, …
_XUCRED_BYTES = 76
_LOCAL_PEERCRED = 1


def _peer_user(sock: socket.socket) -> int:
    """Return the user id at the other end of a unix socket; -1 where the system does not say."""
    if sys.platform == "darwin":
        return _XUCRED.unpack_from(sock.getsockopt(0, _LOCAL_PEERCRED, _XUCRED_BYTES))[1]
    option: int | None = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return -1
    return _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))[1]
