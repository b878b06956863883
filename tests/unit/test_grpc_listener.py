"""Where gRPC servers listen: what is told where they cannot."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys

import pytest

from rollmesh.errors import ListenFailed
from rollmesh.transport import grpc_listener
from rollmesh.transport.address import parse_address
from rollmesh.transport.grpc_listener import GrpcListener

_CHILD = """
import sys
from rollmesh.errors import ListenFailed
from rollmesh.transport.address import parse_address
from rollmesh.transport.grpc_listener import GrpcListener

class Host:
    service, token = "env", None

try:
    GrpcListener(parse_address(sys.argv[1], "bind"), Host())
except ListenFailed as error:
    print(f"error: {error}", file=sys.stderr)
"""


class Host:
    """Serves nobody."""

    service, token = "env", None


def said(address: str) -> list[str]:
    """Return what a process says on stderr that listens at an address."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, address],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stderr.splitlines()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_port_that_is_taken_is_one_error_and_grpc_says_nothing_of_its_own(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"tcp://{host}:{other.getsockname()[1]}"
        lines = said(address)
    assert len(lines) == 1
    assert lines[0].startswith(f"error: cannot listen at {address}: address in use: ")


def test_a_host_that_is_not_of_this_machine_is_one_error() -> None:
    lines = said("tcp://192.0.2.1:5000")
    assert len(lines) == 1
    assert "cannot listen at tcp://192.0.2.1:5000: " in lines[0]
    assert "assign requested address" in lines[0]


def test_a_host_that_nobody_knows_is_told() -> None:
    with pytest.raises(ListenFailed, match="the host is not known"):
        GrpcListener(parse_address("tcp://no-such-host.invalid:5000", "bind"), Host())


def test_a_port_that_is_taken_between_the_look_and_the_bind_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grpc_listener, "_check_free", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ListenFailed, match="in use, or not of this machine"):
            GrpcListener(parse_address(address, "bind"), Host())


def test_looking_whether_a_port_is_free_leaves_it_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
    listener = GrpcListener(parse_address(address, "bind"), Host())
    assert str(listener.address) == address
    listener.close()


def test_a_family_that_this_machine_lacks_is_left_to_grpc_at_the_wildcard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoSuchFamily(socket.socket):
        def __init__(self, *_: object) -> None:
            raise OSError(errno.EAFNOSUPPORT, "no such family")

    monkeypatch.setattr(grpc_listener.socket, "socket", NoSuchFamily)
    listener = GrpcListener(parse_address("tcp://0.0.0.0:0", "bind"), Host())
    listener.close()
