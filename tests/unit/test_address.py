"""Addresses: what each spelling means, and what is refused with a sentence."""

from __future__ import annotations

import pytest

from rollmesh.errors import InvalidSpec
from rollmesh.transport.address import LONGEST_UNIX_PATH, Address, parse_address

GOOD = {
    "5000": ("grpc", "tcp", "127.0.0.1", 5000, "", "tcp://127.0.0.1:5000"),
    ":5000": ("grpc", "tcp", "127.0.0.1", 5000, "", "tcp://127.0.0.1:5000"),
    "host:5000": ("grpc", "tcp", "host", 5000, "", "tcp://host:5000"),
    "gpu-1.lab_x.example:65535": (
        *("grpc", "tcp", "gpu-1.lab_x.example", 65535, ""),
        "tcp://gpu-1.lab_x.example:65535",
    ),
    "tcp://localhost:1": ("grpc", "tcp", "localhost", 1, "", "tcp://localhost:1"),
    "TCP://localhost:1": ("grpc", "tcp", "localhost", 1, "", "tcp://localhost:1"),
    "[::1]:5000": ("grpc", "tcp", "::1", 5000, "", "tcp://[::1]:5000"),
    "tcp://[fe80::1%eth0]:5": ("grpc", "tcp", "fe80::1%eth0", 5, "", "tcp://[fe80::1%eth0]:5"),
    "http://host:80": ("grpc", "tcp", "host", 80, "", "tcp://host:80"),
    "http://host:80/": ("grpc", "tcp", "host", 80, "", "tcp://host:80"),
    "unix:///run/x.sock": ("grpc", "unix", "", 0, "/run/x.sock", "unix:///run/x.sock"),
    "unix://x.sock": ("grpc", "unix", "", 0, "x.sock", "unix://x.sock"),
    "unix:/run/x.sock": ("grpc", "unix", "", 0, "/run/x.sock", "unix:///run/x.sock"),
    "unix:///a b/%20/é.sock": ("grpc", "unix", "", 0, "/a b/%20/é.sock", "unix:///a b/%20/é.sock"),
    "rollmesh+tcp://[::1]:7": ("native", "tcp", "::1", 7, "", "rollmesh+tcp://[::1]:7"),
    "rollmesh+tcp://:7": ("native", "tcp", "127.0.0.1", 7, "", "rollmesh+tcp://127.0.0.1:7"),
    "rollmesh+unix:///x": ("native", "unix", "", 0, "/x", "rollmesh+unix:///x"),
    "mem://arm.1_a-b": ("memory", "memory", "", 0, "arm.1_a-b", "mem://arm.1_a-b"),
}


@pytest.mark.parametrize("text", GOOD)
def test_what_an_address_means(text):
    protocol, family, host, port, path, canonical = GOOD[text]
    address = parse_address(text)
    expected = Address(protocol=protocol, family=family, host=host, port=port, path=path)
    assert address == expected
    assert str(address) == canonical
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "host:port"),
        ("host", "host:port"),
        ("host:", "host:port"),
        ("host:x", "host:port"),
        ("host:٣", "host:port"),
        ("host:-1", "host:port"),
        ("host:65536", "1 to 65535"),
        ("host:" + "9" * 5000, "1 to 65535"),
        ("::1:5000", "in brackets"),
        ("[host]:5", "no IPv6"),
        ("[::zz]:5", "no IPv6"),
        ("us er:5", "no host name"),
        ("user@host:5", "no host name"),
        ("tcp://host:5/path", "host:port"),
        ("https://host:443", "TLS options"),
        ("ftp://host:5", "unknown scheme"),
        ("unix://", "path"),
        ("unix:///a\0b", "NUL"),
        ("rollmesh+unix://", "path"),
        ("mem://", "name"),
        ("mem://a/b", "name"),
        ("mem://" + "a" * 65, "name"),
        (5000, 'wants a text, got an int; write "127.0.0.1:5000"'),
        (True, "wants a text, got bool"),
    ],
)
def test_what_is_no_address(text, why):
    with pytest.raises(InvalidSpec, match=why) as caught:
        parse_address(text)
    assert caught.value.field == "address"
    assert len(str(caught.value)) < 500


def test_port_0_and_our_own_path_are_for_servers():
    assert parse_address("127.0.0.1:0", "bind").port == 0
    assert parse_address("rollmesh+unix://", "bind").path == ""
    with pytest.raises(InvalidSpec, match="from 1 to"):
        parse_address("127.0.0.1:0")
    with pytest.raises(InvalidSpec, match="for clients"):
        parse_address("http://host:80", "bind")


def test_c61_a_long_path_names_its_length_and_the_limit():
    fits = "/" + "s" * (LONGEST_UNIX_PATH - 1)
    assert parse_address("unix://" + fits).path == fits
    for extra, size in (("s", 1), ("é", 2), ("s" * 93, 93)):
        with pytest.raises(InvalidSpec) as caught:
            parse_address("unix://" + fits + extra)
        assert f"{LONGEST_UNIX_PATH} bytes" in str(caught.value)
        assert f"has {LONGEST_UNIX_PATH + size}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "is_local"),
    [
        ("127.0.0.1:5", True),
        ("127.8.8.8:5", True),
        ("localhost:5", True),
        ("[::1]:5", True),
        ("unix://x", True),
        ("mem://x", True),
        ("0.0.0.0:5", False),
        ("[::]:5", False),
        ("10.0.0.1:5", False),
        ("127.0.0.1.example.com:5", False),
    ],
)
def test_which_addresses_only_this_machine_can_reach(text, is_local):
    assert parse_address(text).is_local is is_local
