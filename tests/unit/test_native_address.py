"""A server's native address that leads elsewhere from where the client is: published ports, NAT.

In its gRPC handshake a server names the addresses that it has where it runs. Behind a published
port, or in another container's folder, somebody else may have them.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import rollmesh
from rollmesh.endpoint.clients.client_dialing import ConnectRefused
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.env_client import connect_env
from rollmesh.endpoint.clients.probing import probe
from rollmesh.endpoint.servers import grpc_door
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import EndpointFault
from rollmesh.limits import Limits
from rollmesh.transport import upgrade

OURS = ("127.0.0.1:0", "rollmesh+tcp://127.0.0.1:0")
SECRET = "0123456789abcdef" * 2
LIMITS = Limits(env_connect_s=20)


@pytest.fixture
def meant(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server, and what clients are told that it says of its native address."""
    told: dict[str, str] = {}

    def facts(addresses: Any, server: str) -> dict[str, str]:
        seen = [told.get(address, address) for address in addresses]
        return upgrade.native_facts(seen, server)

    monkeypatch.setattr(grpc_door, "native_facts", facts)
    with rollmesh.EnvServer("CartPole-v1", OURS) as server:
        yield server, lambda address: told.update({server.addresses[1]: address})


def other(**options: Any) -> rollmesh.EnvServer:
    return rollmesh.EnvServer("MountainCar-v0", OURS, ServerOptions(**options))


def connected(address: str, **given: Any) -> tuple[str, bool]:
    """Return what one gets there, and whether over gRPC."""
    port = connect_env(address, client_options(environ={}, **given), limits=LIMITS)
    with contextlib.closing(_Closing(port)):
        return port.contract.id, port.session._connection.path.startswith("gRPC")


class _Closing:
    def __init__(self, port: Any) -> None:
        self.close = lambda: port.close(5.0)


@pytest.mark.parametrize("token", [None, SECRET])
def test_the_server_that_was_dialled_is_the_one_that_is_used(meant, token, caplog):
    server, seen_at = meant
    assert connected(server.address) == ("CartPole-v1", False)
    with other(token=token) as wrong, caplog.at_level(logging.INFO, "rollmesh"):
        seen_at(wrong.addresses[1])
        assert connected(server.address) == ("CartPole-v1", True)
        assert wrong.sessions == 0
    assert "another server is there" in caplog.text
    assert "waiting_for_server" not in caplog.text


def test_a_model_behind_an_envs_native_address_is_passed_by(meant):
    server, seen_at = meant
    with rollmesh.ModelServer("random", OURS) as wrong:
        seen_at(wrong.addresses[1])
        assert connected(server.address) == ("CartPole-v1", True)


@pytest.mark.parametrize("does", ["hang up", "babble"])
def test_what_is_no_server_of_ours_is_passed_by(meant, does):
    server, seen_at = meant
    with socket.create_server(("127.0.0.1", 0)) as listener, _answering(listener, does):
        seen_at(f"rollmesh+tcp://127.0.0.1:{listener.getsockname()[1]}")
        assert connected(server.address) == ("CartPole-v1", True)
        report = probe(server.address, client_options(environ={}), service="env", measure_s=0.01)
        assert (report.health, report.path) == ("serving", "gRPC")


def test_where_the_native_way_is_forced_one_that_hangs_up_is_tried_again_for_as_long_as_told(meant):
    server, seen_at = meant
    with socket.create_server(("127.0.0.1", 0)) as listener, _answering(listener, "hang up"):
        seen_at(f"rollmesh+tcp://127.0.0.1:{listener.getsockname()[1]}")
        options = client_options(transport="native", environ={})
        with pytest.raises(EndpointFault, match=r"gave up after .* gives no welcome") as caught:
            connect_env(server.address, options, limits=Limits(env_connect_s=0.5))
        assert not isinstance(caught.value, ConnectRefused)


@contextlib.contextmanager
def _answering(listener: socket.socket, does: str) -> Iterator[None]:
    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted = listener.accept()[0]
                with accepted:
                    if does == "babble":
                        accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 20)
                        accepted.recv(65536)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(5.0)


def test_probe_tells_of_the_server_that_was_asked_for_and_why_not_the_native_way(meant):
    server, seen_at = meant
    with other() as wrong:
        seen_at(wrong.addresses[1])
        report = probe(server.address, client_options(environ={}), measure_s=0.01)
    assert report.contract is not None
    assert (report.contract.id, report.path) == ("CartPole-v1", "gRPC")
    assert report.why == f"{wrong.addresses[1]}: another server is there"


def test_a_native_way_that_is_forced_and_leads_elsewhere_is_refused(meant):
    server, seen_at = meant
    with other() as wrong:
        seen_at(wrong.addresses[1])
        with pytest.raises(ConnectRefused, match="from here, another server is there; give the"):
            connected(server.address, transport="native")
        assert wrong.sessions == 0
        report = probe(server.address, client_options(transport="native", environ={}))
    assert report.health == "refused"


def test_an_address_that_is_given_leads_where_it_leads(meant):
    server, _ = meant
    assert connected(server.addresses[1]) == ("CartPole-v1", False)
