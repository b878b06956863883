"""Addresses: where a server listens and a client connects (layer 5).

| text | protocol | where |
|---|---|---|
| `5000`, `:5000` | grpc | 127.0.0.1 |
| `host:5000`, `[::1]:5000`, `tcp://host:5000` | grpc | that host |
| `http://host:5000` | grpc | that host; clients only |
| `unix:///run/x.sock`, `unix://x.sock` | grpc | a socket file, absolute or relative |
| `rollmesh+tcp://host:5000` | native | that host |
| `rollmesh+unix:///run/x.sock` | native | a socket file |
| `rollmesh+unix://` | native | servers only: a socket file of our own in a private folder |
| `mem://name` | memory | within this process |

`https://` is refused: TLS is an option of the connection, not part of the address. A path is taken
as it stands (blanks, `%20` and letters of any script included).

This module opens nothing; it only knows how addresses are written.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rollmesh.errors import InvalidSpec

Protocol: TypeAlias = Literal["grpc", "native", "memory"]
Family: TypeAlias = Literal["tcp", "unix", "memory"]
Use: TypeAlias = Literal["bind", "connect"]

LONGEST_UNIX_PATH = 103 if sys.platform == "darwin" else 107
"""Bytes that a socket path may have; the kernel's own limit."""

_WANTED = (
    "host:port or unix:///path (gRPC), rollmesh+tcp://host:port or rollmesh+unix:///path (our own "
    "frames)"
)
_LAST_PORT = 65535
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LOOPBACK = re.compile(r"127(\.\d{1,3}){3}")
_HOST = re.compile(r"[A-Za-z0-9._~-]+")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_SCHEMES: dict[str, tuple[Protocol, Family]] = {
    "tcp": ("grpc", "tcp"),
    "http": ("grpc", "tcp"),
    "unix": ("grpc", "unix"),
    "rollmesh+tcp": ("native", "tcp"),
    "rollmesh+unix": ("native", "unix"),
    "mem": ("memory", "memory"),
}
_PREFIXES: dict[tuple[Protocol, Family], str] = {
    ("grpc", "tcp"): "tcp://",
    ("grpc", "unix"): "unix://",
    ("native", "tcp"): "rollmesh+tcp://",
    ("native", "unix"): "rollmesh+unix://",
    ("memory", "memory"): "mem://",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """An address, taken apart. `str()` gives its canonical spelling.

    Attributes:
        protocol: What is spoken there.
        family: How it is reached.
        host: Host name or IP address without brackets; `""` unless `family` is `tcp`.
        port: Port; 0 lets the system choose one.
        path: Socket path, or name of a memory address; `""` for a path of our own choice.
    """

    protocol: Protocol
    family: Family
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        prefix = _PREFIXES[self.protocol, self.family]
        if self.family == "tcp":
            host = f"[{self.host}]" if ":" in self.host else self.host
            return f"{prefix}{host}:{self.port}"
        return prefix + self.path

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it: a socket file, memory, or a loopback host."""
        if self.family != "tcp":
            return True
        return self.host == "localhost" or is_loopback(self.host)


def _check_text(text: object) -> None:
    if isinstance(text, int) and not isinstance(text, bool):
        raise InvalidSpec("address", f'wants a text, got an int; write "127.0.0.1:{text}"')
    if not isinstance(text, str):
        raise InvalidSpec("address", f"wants a text, got {type(text).__name__}")
    if not text:
        raise InvalidSpec("address", f"is missing: {_WANTED}")


def parse_address(text: str, use: Use = "connect") -> Address:
    """Take an address apart.

    Args:
        text: The address.
        use: Whether it is to be listened at or connected to.

    Raises:
        InvalidSpec: It is no address, or not one for this use; the sentence says what to write.
    """
    _check_text(text)
    if text.isascii() and text.isdigit():
        return _tcp("grpc", f":{text}", text, use)
    if text.startswith("unix:") and not text.startswith("unix://"):
        return _unix("grpc", text[len("unix:") :], text, use)
    match = _SCHEME.fullmatch(text)
    if match is None:
        return _tcp("grpc", text, text, use)
    scheme, rest = match[1].lower(), match[2]
    if scheme == "https":
        raise _bad(text, "https:// is not spoken; write tcp:// and give the TLS options")
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in _SCHEMES)
        raise _bad(text, f"unknown scheme {scheme}://; known ones: {known}")
    if scheme == "http" and use == "bind":
        raise _bad(text, "http:// is for clients; listen at tcp://")
    protocol, family = _SCHEMES[scheme]
    if family == "unix":
        return _unix(protocol, rest, text, use)
    if family == "memory":
        if _NAME.fullmatch(rest) is None:
            raise _bad(text, "wants a name of letters, digits, '.', '_' and '-' after mem://")
        return Address(protocol=protocol, family=family, path=rest)
    return _tcp(protocol, rest.removesuffix("/") if scheme == "http" else rest, text, use)


def _tcp(protocol: Protocol, rest: str, text: str, use: Use) -> Address:
    host, colon, port_text = rest.rpartition(":")
    if not colon or not port_text.isascii() or not port_text.isdigit():
        if "://" in text:
            raise _bad(text, f"wants host:port after {text.partition('://')[0]}://")
        raise _bad(text, f"wants {_WANTED}")
    port = int(port_text) if len(port_text) <= len(str(_LAST_PORT)) else _LAST_PORT + 1
    if port > _LAST_PORT or (port == 0 and use == "connect"):
        least = 0 if use == "bind" else 1
        raise _bad(text, f"wants a port from {least} to {_LAST_PORT}, got {port_text[:20]}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host or not _is_ipv6(host):
            raise _bad(text, f"{host!r} in brackets is no IPv6 address")
    elif ":" in host:
        raise _bad(text, f"write an IPv6 address in brackets, as in [::1]:{port}")
    elif host and _HOST.fullmatch(host) is None:
        raise _bad(text, f"{host!r} is no host name")
    return Address(protocol=protocol, family="tcp", host=host or "127.0.0.1", port=port)


def is_loopback(host: str) -> bool:
    """Tell whether an IP address, without brackets, is one of this machine's loopback ones."""
    if host == "::1" or host.lower().startswith("::ffff:127."):
        return True
    return _LOOPBACK.fullmatch(host) is not None


def _is_ipv6(host: str) -> bool:
    import ipaddress

    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _unix(protocol: Protocol, path: str, text: str, use: Use) -> Address:
    if not path and not (protocol == "native" and use == "bind"):
        raise _bad(text, "wants a path of a socket file")
    check_unix_path(path, text)
    return Address(protocol=protocol, family="unix", path=path)


def check_unix_path(path: str, text: str) -> None:
    """Refuse a path that no socket can have.

    Raises:
        InvalidSpec: It is too long, or contains a NUL.
    """
    size = len(os.fsencode(path))
    if "\0" in path:
        raise _bad(text, "a path cannot contain a NUL")
    if size > LONGEST_UNIX_PATH:
        raise _bad(
            text,
            f"the path of a socket may have {LONGEST_UNIX_PATH} bytes, this one has {size}; "
            "use a shorter folder",
        )


def _bad(text: str, detail: str) -> InvalidSpec:
    shown = text if len(text) <= 200 else text[:199] + "…"  # noqa: PLR2004 - enough to recognise it
    return InvalidSpec("address", f"{shown!r}: {detail}")
