"""Where a server listens beside what it was asked for: a private socket file for our clients."""

from __future__ import annotations

import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollmesh
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.probing import ProbeReport, probe
from rollmesh.endpoint.servers.doors import PRIVATE, private_addresses
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import EndpointFault, InvalidSpec, ListenFailed
from rollmesh.transport import listening
from rollmesh.transport.address import parse_address
from tests.unit.serving_toys import Counter

GRPC = "127.0.0.1:0"
SECRET = "0123456789abcdef" * 2
STAYS = ServerOptions(native=False)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of our own socket files, of this test alone; its path is short."""
    with tempfile.TemporaryDirectory(prefix="doors-", dir="/tmp") as path:
        monkeypatch.setenv("XDG_RUNTIME_DIR", path)
        yield Path(path) / "rollmesh"


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def look(address: str, token: str | None = None) -> ProbeReport:
    return probe(address, client_options(environ={}, token=token), measure_s=0.01)


# ----------------------------------------------------------------------------- which it is


@pytest.mark.parametrize(
    ("asked", "native", "expected"),
    [
        (["5000"], True, [PRIVATE]),
        (["5000", "unix:///run/x.sock"], True, [PRIVATE]),
        (["5000"], False, []),
        (["5000", "rollmesh+tcp://127.0.0.1:0"], True, []),
        (["rollmesh+unix:///run/x.sock"], True, []),
        (["5000", "mem://x"], True, []),
        (["mem://x"], True, []),
    ],
)
def test_a_private_socket_stands_beside_grpc_addresses_only(asked, native, expected) -> None:
    addresses = [parse_address(text, "bind") for text in asked]
    assert private_addresses(addresses, native=native) == expected


def test_a_platform_without_socket_files_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    assert private_addresses([parse_address("5000")], native=True) == []


# ---------------------------------------------------------------------------- in a server


@pytest.mark.parametrize("kind", ["env", "model"])
def test_a_grpc_address_comes_first_and_clients_change_over(folder: Path, kind: str) -> None:
    server = EnvServer(Counter, GRPC) if kind == "env" else ModelServer(lambda _: 0, GRPC)
    with server:
        (file,) = files(folder)
        assert server.address.startswith("tcp://127.0.0.1:")
        assert server.addresses == (server.address, f"rollmesh+unix://{file}")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        report = look(server.address)
        assert (report.health, report.taken) == ("serving", server.addresses[1])
    assert not files(folder)


def test_what_is_told_as_ready_begins_with_what_was_asked_for(folder: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with EnvServer(Counter, [GRPC, GRPC], ServerOptions(ready_file=ready)) as server:
        told = ready.read_text().splitlines()
        assert told == list(server.addresses)
        kinds = [line.partition("://")[0] for line in told]
        assert kinds == ["tcp", "tcp", "rollmesh+unix"]


@pytest.mark.parametrize("address", [GRPC, [GRPC, "rollmesh+tcp://127.0.0.1:0"], "mem://alone"])
def test_native_false_listens_where_it_was_asked_to_and_nowhere_else(folder: Path, address) -> None:
    with EnvServer(Counter, address, STAYS) as server:
        assert len(server.addresses) == (1 if isinstance(address, str) else 2)
        assert not files(folder)


def test_clients_stay_with_grpc_where_it_is_off(folder: Path) -> None:
    with EnvServer("CartPole-v1", GRPC, STAYS) as server:
        report = look(server.address)
        assert (report.taken, report.why) == (server.address, "the server names no native address")
        with pytest.raises(EndpointFault, match="no native path"):
            rollmesh.connect(server.address, transport="native")


def test_the_token_is_asked_for_there_too(folder: Path) -> None:
    with EnvServer(Counter, GRPC, ServerOptions(token=SECRET)) as server:
        assert look(server.addresses[1], SECRET).health == "serving"
        for token in (None, "f" * 32):
            assert look(server.addresses[1], token).health == "refused"


def test_a_server_serves_on_where_it_has_no_folder_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_folder() -> str:
        raise ListenFailed("/tmp/x", "no folder for sockets: the disk is read-only")

    monkeypatch.setattr(listening, "own_path", no_folder)
    with EnvServer(Counter, GRPC) as server:
        assert len(server.addresses) == 1
        assert look(server.address).taken == server.address
    assert "the disk is read-only; clients stay with gRPC" in caplog.text
    with pytest.raises(ListenFailed, match="read-only"):  # whoever asks for it is told
        EnvServer(Counter, "rollmesh+unix://").start()


def test_a_server_that_does_not_start_leaves_no_file(folder: Path) -> None:
    def broken() -> Counter:
        raise ValueError("no simulator here")

    with pytest.raises(rollmesh.RollmeshError, match="no simulator here"):
        EnvServer(broken, GRPC).start()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ListenFailed, match="in use"):
            EnvServer(Counter, address).start()
    with pytest.raises(InvalidSpec, match="TLS"):
        EnvServer(Counter, "0.0.0.0:0")
    assert not files(folder)
