"""TLS of servers and clients (layer 5): options, contexts, and what wraps a socket.

TLS 1.2 or newer; the server's certificate and name are always checked, the client's where the
server asks for one. Every file is read, and refused by name, when the server starts or the client
connects.

`security.py` is the door to this module.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from rollmesh.errors import InvalidSpec
from rollmesh.transport.stream import Wrap

PathLike: TypeAlias = "str | os.PathLike[str]"

_MOST_FILE_BYTES = 2**20
_SWITCHES = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("", "0", "false", "no", "off"), False),
}
_HANDSHAKE = b"\x16"
"""First byte of every TLS connection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pem:
    """Contents of the files of one side, as gRPC wants them.

    Attributes:
        certificate: The chain, or None.
        key: Its private key, or None.
        ca: Who is believed, or None.
    """

    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    ca: bytes | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsServer:
    """TLS of a server: files in PEM form.

    Attributes:
        certificate: Its certificate, followed by the chain above it.
        key: The private key, not encrypted.
        client_ca: Who issues the certificates that clients must have; None asks them for none.
    """

    certificate: PathLike
    key: PathLike
    client_ca: PathLike | None = None

    def context(self) -> ssl.SSLContext:
        """Return a context for accepted sockets.

        Raises:
            InvalidSpec: A file cannot be read or does not hold what it should.
        """
        context = _context(ssl.PROTOCOL_TLS_SERVER)
        _load_chain(context, self.certificate, self.key, ("tls_cert", "tls_key"))
        context.num_tickets = 0  # sessions of TLS are not resumed
        if self.client_ca is not None:
            _load_ca(context, self.client_ca, "tls_client_ca")
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def pem(self) -> Pem:
        """Return the contents of the files, once they have been checked.

        Raises:
            InvalidSpec: As `context`.
        """
        self.context()
        return Pem(
            certificate=read_file(self.certificate, "tls_cert"),
            key=read_file(self.key, "tls_key"),
            ca=_maybe_read(self.client_ca, "tls_client_ca"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsClient:
    """TLS of a client: files in PEM form.

    Attributes:
        ca: Who issues the certificates of servers; None believes whom the system believes.
        certificate: The client's own certificate, where the server wants one.
        key: Its private key, not encrypted.
        server_name: The name that the server's certificate must have; the address's host if None.
    """

    ca: PathLike | None = None
    certificate: PathLike | None = None
    key: PathLike | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            missing, given = ("key", "certificate") if self.key is None else ("certificate", "key")
            raise InvalidSpec(f"tls.{missing}", f"is missing: a {given} was given without it")

    def context(self) -> ssl.SSLContext:
        """Return a context for connected sockets.

        Raises:
            InvalidSpec: A file cannot be read or does not hold what it should.
        """
        context = _context(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and host name
        if self.ca is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            _load_ca(context, self.ca, "tls_ca")
        if self.certificate is not None and self.key is not None:
            _load_chain(context, self.certificate, self.key, ("tls_client_cert", "tls_client_key"))
        return context

    def pem(self) -> Pem:
        """Return the contents of the files, once they have been checked.

        Raises:
            InvalidSpec: As `context`.
        """
        self.context()
        return Pem(
            certificate=_maybe_read(self.certificate, "tls_client_cert"),
            key=_maybe_read(self.key, "tls_client_key"),
            ca=_maybe_read(self.ca, "tls_ca"),
        )


def server_tls(
    certificate: PathLike | None = None,
    key: PathLike | None = None,
    client_ca: PathLike | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> TlsServer | None:
    """Return the TLS options of a server, or None where none were given.

    What is left out comes from `ROLLMESH_TLS_CERT`, `ROLLMESH_TLS_KEY` and
    `ROLLMESH_TLS_CLIENT_CA`.

    Raises:
        InvalidSpec: Some of it is missing.
    """
    variables = os.environ if environ is None else environ
    certificate = certificate or variables.get("ROLLMESH_TLS_CERT") or None
    key = key or variables.get("ROLLMESH_TLS_KEY") or None
    client_ca = client_ca or variables.get("ROLLMESH_TLS_CLIENT_CA") or None
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None:
        raise InvalidSpec("tls_cert", "is missing: TLS wants a certificate and its key")
    if key is None:
        raise InvalidSpec("tls_key", "is missing: TLS wants a certificate and its key")
    return TlsServer(certificate=certificate, key=key, client_ca=client_ca)


def client_tls(
    ca: PathLike | None = None,
    certificate: PathLike | None = None,
    key: PathLike | None = None,
    *,
    server_name: str | None = None,
    is_on: bool = False,
    environ: Mapping[str, str] | None = None,
) -> TlsClient | None:
    """Return the TLS options of a client, or None where none were given.

    What is left out comes from `ROLLMESH_TLS_CA`, `ROLLMESH_TLS_CLIENT_CERT`,
    `ROLLMESH_TLS_CLIENT_KEY` and `ROLLMESH_TLS_SERVER_NAME`; `ROLLMESH_TLS=1` is `is_on`.

    Args:
        ca: See `TlsClient`.
        certificate: See `TlsClient`.
        key: See `TlsClient`.
        server_name: See `TlsClient`.
        is_on: Use TLS also where no file is given, with the certificates that the system believes.
        environ: The process's environment if left out.

    Raises:
        InvalidSpec: Some of it is missing, or `ROLLMESH_TLS` is neither on nor off.
    """
    variables = os.environ if environ is None else environ
    ca = ca or variables.get("ROLLMESH_TLS_CA") or None
    certificate = certificate or variables.get("ROLLMESH_TLS_CLIENT_CERT") or None
    key = key or variables.get("ROLLMESH_TLS_CLIENT_KEY") or None
    server_name = server_name or variables.get("ROLLMESH_TLS_SERVER_NAME") or None
    is_on = is_on or read_switch("ROLLMESH_TLS", variables)
    if not is_on and ca is None and certificate is None and key is None and server_name is None:
        return None
    return TlsClient(ca=ca, certificate=certificate, key=key, server_name=server_name)


def read_switch(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether a variable of the environment switches something on.

    Raises:
        InvalidSpec: It says neither yes nor no.
    """
    text = environ.get(name, "").strip().lower()
    if text not in _SWITCHES:
        raise InvalidSpec(name, f"wants 1 or 0, got {text[:40]!r}")
    return _SWITCHES[text]


def server_wrap(tls: TlsServer | None) -> Wrap | None:
    """Return what `listen` applies to accepted sockets; None without TLS.

    Raises:
        InvalidSpec: A file cannot be used: a server finds out when it starts.
    """
    if tls is None:
        return None
    context = tls.context()

    def wrap(sock: socket.socket) -> socket.socket:
        # a frame of ours happens to look like the start of a very old kind of hello, whose rest
        # would be waited for
        if sock.recv(1, socket.MSG_PEEK) != _HANDSHAKE:
            raise OSError("the peer does not speak TLS")
        return context.wrap_socket(sock, server_side=True)

    return wrap


def client_wrap(tls: TlsClient | None, host: str) -> Wrap | None:
    """Return what `dial` applies to a connected socket; None without TLS.

    Args:
        tls: The options.
        host: The host of the address, whose name the certificate must have.

    Raises:
        InvalidSpec: A file cannot be used.
    """
    if tls is None:
        return None
    context = tls.context()
    name = tls.server_name or host

    def wrap(sock: socket.socket) -> socket.socket:
        try:
            return context.wrap_socket(sock, server_hostname=name)
        except ssl.SSLCertVerificationError as error:
            raise OSError(certificate_refused(error.verify_message)) from error
        except ssl.SSLError as error:
            raise OSError(f"{error.reason or error}; does the server use TLS?") from error

    return wrap


def certificate_refused(reason: str) -> str:
    """Return the sentence for a server's certificate that a client does not believe.

    Args:
        reason: What the TLS library says.
    """
    if "expired" in reason or "not yet valid" in reason:
        cure = "have it renewed, and look at the clock of this machine"
    else:
        cure = "give the CA that issued it, or the server name it is for"
    return f"the server's certificate was refused: {reason}; {cure}"


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _load_chain(
    context: ssl.SSLContext, certificate: PathLike, key: PathLike, fields: tuple[str, str]
) -> None:
    for name, path in zip(fields, (certificate, key), strict=True):
        read_file(path, name)  # says which of the two cannot be read

    def refuse() -> str:
        raise ValueError("it is encrypted; give one without a pass phrase")

    try:
        context.load_cert_chain(certificate, key, refuse)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        text = f"{os.fspath(certificate)} and {os.fspath(key)} are no certificate and its key"
        raise InvalidSpec(fields[1], f"{text}: {reason}") from error


def _load_ca(context: ssl.SSLContext, path: PathLike, name: str) -> None:
    text = read_file(path, name)
    try:
        context.load_verify_locations(cadata=text.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise InvalidSpec(name, f"{os.fspath(path)} holds no certificates in PEM form") from error


def _maybe_read(path: PathLike | None, name: str) -> bytes | None:
    return None if path is None else read_file(path, name)


def read_file(path: PathLike, name: str) -> bytes:
    """Return the content of a small file that an option names.

    Raises:
        InvalidSpec: It cannot be read, or is too large to be what it should.
    """
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 - any path-like
            data = stream.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidSpec(name, f"cannot read {os.fspath(path)}: {reason}") from error
    if len(data) > _MOST_FILE_BYTES:
        raise InvalidSpec(name, f"{os.fspath(path)} is larger than {_MOST_FILE_BYTES} bytes")
    return data
