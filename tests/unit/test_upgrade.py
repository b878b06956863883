"""The way from a gRPC address to the fastest path: what is taken, what is refused, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rollmesh.endpoint.clients.client_dialing import ConnectRefused
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.env_client import connect_env
from rollmesh.endpoint.clients.probing import probe
from rollmesh.errors import ConnectFailed, EndpointFault, InvalidSpec
from rollmesh.limits import Limits
from rollmesh.transport import upgrade
from rollmesh.transport.address import parse_address
from rollmesh.transport.dialing import listen
from rollmesh.transport.security import Token
from rollmesh.transport.upgrade import (
    MACHINE_FACT,
    SERVER_FACT,
    TCP_FACT,
    UNIX_FACT,
    choose_path,
    machine_id,
    native_facts,
)
from rollmesh.wire.messages import ErrorBody
from tests.unit.test_grpc_transport import Pair

GRPC = parse_address("tcp://127.0.0.1:5000")


@pytest.fixture
def pair() -> Iterator[Pair]:
    one = Pair()
    yield one
    one.close()


@pytest.fixture
def native() -> Iterator[dict[str, Any]]:
    listeners = {name: listen(f"rollmesh+{name}") for name in ("unix://", "tcp://127.0.0.1:0")}
    yield {name.partition(":")[0]: listener for name, listener in listeners.items()}
    for listener in listeners.values():
        listener.close()


def tell(pair: Pair, facts: dict[str, str]) -> None:
    """Have the handshake say so."""
    describe = pair.host.describe

    def told(hello: Any) -> Any:
        import msgspec

        return msgspec.structs.replace(describe(hello), peer=facts)

    pair.host.describe = told


def taken(pair: Pair, **options: Any) -> tuple[str, str]:
    path = choose_path(pair.listener.address, "env", timeout_s=5, **options)
    path.connection.close()
    return path.kind, path.reason


def test_a_server_without_native_addresses_says_nothing():
    assert native_facts(["tcp://127.0.0.1:5000", "mem://x"], "me") == {}


def test_a_server_tells_its_first_native_address_of_each_kind():
    facts = native_facts(
        [
            "tcp://127.0.0.1:5000",
            "rollmesh+tcp://0.0.0.0:1",
            "rollmesh+unix:///a.sock",
            "rollmesh+tcp://127.0.0.1:2",
        ],
        "me",
    )
    assert facts == {
        MACHINE_FACT: machine_id(),
        SERVER_FACT: "me",
        TCP_FACT: "rollmesh+tcp://0.0.0.0:1",
        UNIX_FACT: "rollmesh+unix:///a.sock",
    }


def test_the_fastest_path_is_taken_and_another_one_can_be_forced(pair, native):
    tell(pair, native_facts([str(one.address) for one in native.values()], "me"))
    assert taken(pair)[0] == "unix"
    assert taken(pair, transport="native")[0] == "unix"
    assert taken(pair, transport="grpc") == ("grpc", "gRPC was asked for")
    native["unix"].close()
    assert taken(pair)[0] == "tcp"
    native["tcp"].close()
    kind, reason = taken(pair)
    assert kind == "grpc"
    assert "No such file" in reason
    with pytest.raises(ConnectFailed, match="no native path"):
        taken(pair, transport="native")


def test_without_native_addresses_it_stays_grpc(pair):
    assert taken(pair) == ("grpc", "the server names no native address")


def test_a_native_path_that_there_cannot_be_is_not_waited_for(pair):
    address = str(pair.listener.address)
    with pytest.raises(EndpointFault, match="the server names no native address; leave it at auto"):
        connect_env(address, client_options(transport="native", environ={}), limits=Limits())


def test_a_socket_file_of_another_machine_is_not_even_looked_for(pair, native):
    facts = native_facts([str(one.address) for one in native.values()], "me")
    tell(pair, {**facts, MACHINE_FACT: "another one"})
    assert taken(pair)[0] == "tcp"


@pytest.mark.parametrize("what", ["nothing", "file", "open"])
def test_a_peer_cannot_name_a_file_that_is_not_this_users_socket(pair, native, tmp_path, what):
    path = tmp_path / "s.sock"
    if what == "file":
        path.write_text("precious")
        path.chmod(0o600)
    elif what == "open":
        listener = listen(f"rollmesh+unix://{path}")
        path.chmod(0o666)
    tell(pair, {MACHINE_FACT: machine_id(), UNIX_FACT: f"rollmesh+unix://{path}"})
    kind, reason = taken(pair)
    assert kind == "grpc"
    assert "no socket of this user alone" in reason or "No such file" in reason
    if what == "open":
        listener.close()


@pytest.mark.parametrize(
    ("told", "dialled", "is_here", "expected"),
    [
        ("rollmesh+tcp://0.0.0.0:7", "tcp://sim:5", False, "rollmesh+tcp://sim:7"),
        ("rollmesh+tcp://[::]:7", "tcp://sim:5", False, "rollmesh+tcp://sim:7"),
        ("rollmesh+tcp://sim:7", "tcp://sim:5", False, "rollmesh+tcp://sim:7"),
        ("rollmesh+tcp://127.0.0.1:7", "tcp://localhost:5", True, "rollmesh+tcp://localhost:7"),
        ("rollmesh+tcp://0.0.0.0:7", "unix:///s", True, "rollmesh+tcp://127.0.0.1:7"),
        ("rollmesh+tcp://0.0.0.0:7", "unix:///s", False, None),
        ("rollmesh+tcp://127.0.0.1:7", "tcp://sim:5", False, None),
        ("rollmesh+tcp://evil:7", "tcp://sim:5", False, None),
        ("tcp://sim:7", "tcp://sim:5", False, None),
        ("no address", "tcp://sim:5", False, None),
        ("rollmesh+tcp://sim:0", "tcp://sim:5", False, None),
    ],
)
def test_a_peer_names_a_port_but_no_host(told, dialled, is_here, expected):
    got = upgrade._tcp(told, parse_address(dialled), is_here=is_here)
    if expected is None:
        assert isinstance(got, str)
    else:
        assert str(got) == expected


def test_an_address_of_another_protocol_is_the_path(native):
    path = choose_path(native["unix"].address, "env")
    assert (path.kind, path.reason) == ("unix", "it is the address that was given")
    path.connection.close()
    with pytest.raises(InvalidSpec, match="no gRPC address"):
        choose_path(native["unix"].address, "env", transport="grpc")


def test_a_server_that_refuses_us_is_left_to_refuse_the_hello(pair):
    pair.host.refusal = ErrorBody(code="invalid_request", message="odd")
    assert taken(pair)[0] == "grpc"
    pair.host.refusal = ErrorBody(code="draining", message="ends")
    with pytest.raises(ConnectFailed, match="ends"):
        taken(pair)


@pytest.mark.parametrize("transport", ["auto", "native"])
@pytest.mark.parametrize("given", [None, "ab" * 20])
def test_a_token_that_is_refused_is_told_whatever_path_was_asked_for(native, transport, given):
    pair = Pair(token=Token("0123456789abcdef0123456789abcdef"))
    options = client_options(token=given, transport=transport, environ={})
    address = str(pair.listener.address)
    try:
        tell(pair, native_facts([str(one.address) for one in native.values()], "me"))
        with pytest.raises(ConnectRefused, match=r"\(unauthenticated\): .*token") as caught:
            connect_env(address, options, limits=Limits())
        assert caught.value.code == "unauthenticated"
        report = probe(address, options, service="env")
        assert report.health == "refused"
        assert report.detail.startswith("unauthenticated: ")
    finally:
        pair.close()


def test_a_server_that_is_busy_is_waited_for_where_a_native_path_is_forced(pair):
    pair.host.refusal = ErrorBody(code="busy", message="all places are taken")
    options = client_options(transport="native", environ={})
    with pytest.raises(EndpointFault, match=r"gave up after .*it is busy: .*places are taken"):
        connect_env(str(pair.listener.address), options, limits=Limits(env_connect_s=0.2))
