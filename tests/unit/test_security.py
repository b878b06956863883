"""Tokens, TLS, where a server may listen, and who is at the other end."""

from __future__ import annotations

import copy
import logging
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import trustme

from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.probing import probe
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import (
    ConnectFailed,
    ConnectionLost,
    InvalidSpec,
    RollmeshError,
    TransportError,
)
from rollmesh.ports import StepRequest
from rollmesh.spaces.space import Box, Discrete
from rollmesh.transport.address import parse_address
from rollmesh.transport.connection import Connection
from rollmesh.transport.dialing import dial, listen
from rollmesh.transport.security import (
    Peer,
    TlsClient,
    TlsServer,
    Token,
    check_bind,
    check_dial,
    client_tls,
    client_wrap,
    load_token,
    peer_of,
    peer_of_grpc,
    server_tls,
    server_wrap,
)
from rollmesh.transport.stream import open_stream
from rollmesh.wire.messages import Hello, Kind, Message, Probe

SECRET = "0123456789abcdef" * 2
OTHER = "f" * 32


# ------------------------------------------------------------------------------------ tokens


@pytest.mark.parametrize(
    "offered",
    [SECRET, f"Bearer {SECRET}", f"bearer {SECRET}", f"BEARER   {SECRET}", SECRET.encode()],
)
def test_a_token_is_known_as_it_is_and_after_bearer(offered):
    assert Token(SECRET).matches(offered)


@pytest.mark.parametrize(
    "offered",
    [
        "",
        "Bearer",
        "Bearer ",
        OTHER,
        f"Bearer {OTHER}",
        SECRET[:-1],
        SECRET + "0",
        SECRET.upper(),
        f"Basic {SECRET}",
        f"Bearer Bearer {SECRET}",
        f"Bearer{SECRET}",
        b"\xff\xfe",
        "\ud800",
        "x" * 2**20,
    ],
)
def test_whatever_else_is_offered_is_no_token(offered):
    assert not Token(SECRET).matches(offered)


@pytest.mark.parametrize("good", [SECRET, "g" * 22, "correct-horse-battery-staple", "a" * 4096])
def test_a_servers_token_has_at_least_128_bits(good):
    assert Token(good).secret == good


@pytest.mark.parametrize("short", ["a" * 31, "0" * 31, "g" * 21, "hunter2"])
def test_a_shorter_token_of_a_server_is_refused_with_how_to_make_one(short):
    with pytest.raises(InvalidSpec, match=r"at least 128 bits.*token_hex") as caught:
        Token(short)
    assert short not in str(caught.value)


def test_a_client_sends_the_token_that_its_server_wants_however_short():
    assert Token("s3", side="client").secret == "s3"


@pytest.mark.parametrize("side", ["server", "client"])
@pytest.mark.parametrize(
    "bad", ["", " ", "\n", f" {SECRET}", f"{SECRET}\n", "é" * 40, f"{SECRET}\0", "a" * 4097]
)
def test_a_token_that_is_empty_or_cannot_be_sent_is_refused(bad, side):
    with pytest.raises(InvalidSpec, match="token"):
        Token(bad, side=side)


def test_a_token_of_another_type_is_refused():
    with pytest.raises(InvalidSpec, match="wants a text, got bytes"):
        Token(SECRET.encode())


def test_a_token_does_not_show():
    token = Token(SECRET)
    shown = f"{token} {token!r} {[token]} {Hello(generation='g', service='env', token=SECRET)!r}"
    assert SECRET not in shown
    assert repr(Hello(generation="g", service="env")).count("''") == 2


def test_tokens_are_equal_by_content():
    assert Token(SECRET) == Token(SECRET) == copy.deepcopy(Token(SECRET))
    assert Token(SECRET) != Token(OTHER)
    assert Token(SECRET) != SECRET
    assert len({Token(SECRET), Token(SECRET), Token(OTHER)}) == 2


# ---------------------------------------------------------------------------- loading tokens


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


def test_no_token_is_none():
    assert load_token(environ={}) is None


def test_a_token_comes_from_python_a_file_or_the_environment(token_file):
    expected = Token(SECRET)
    assert load_token(SECRET, environ={}) == expected
    assert load_token(expected, environ={}) is expected
    assert load_token(file=token_file, environ={}) == expected
    assert load_token(environ={"ROLLMESH_TOKEN": SECRET}) == expected
    assert load_token(environ={"ROLLMESH_TOKEN_FILE": str(token_file)}) == expected


def test_the_process_environment_is_where_it_is_looked_up(monkeypatch):
    monkeypatch.setenv("ROLLMESH_TOKEN", SECRET)
    monkeypatch.delenv("ROLLMESH_TOKEN_FILE", raising=False)
    assert load_token() == Token(SECRET)


def test_what_is_given_counts_before_the_environment(token_file):
    assert load_token(OTHER, environ={"ROLLMESH_TOKEN": SECRET}) == Token(OTHER)
    assert load_token(file=token_file, environ={"ROLLMESH_TOKEN": ""}) == Token(SECRET)


def test_two_tokens_at_once_are_refused(token_file):
    with pytest.raises(InvalidSpec, match="not both"):
        load_token(SECRET, file=token_file, environ={})
    both = {"ROLLMESH_TOKEN": SECRET, "ROLLMESH_TOKEN_FILE": str(token_file)}
    with pytest.raises(InvalidSpec, match="not both"):
        load_token(environ=both)


@pytest.mark.parametrize("text", ["", "\n", "\r\n"])
def test_an_empty_token_is_an_error_and_not_off(tmp_path, text):
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(InvalidSpec, match="an empty token protects nothing"):
        load_token(file=path, environ={})
    with pytest.raises(InvalidSpec, match="ROLLMESH_TOKEN: an empty token"):
        load_token(environ={"ROLLMESH_TOKEN": ""})
    with pytest.raises(InvalidSpec, match="empty token"):
        load_token("", environ={})


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_one_end_of_line_in_the_file_is_no_part_of_the_token(tmp_path, end):
    path = tmp_path / "token"
    path.write_bytes((SECRET + end).encode())
    path.chmod(0o600)
    assert load_token(file=path, environ={}) == Token(SECRET)


def test_a_token_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidSpec, match=r"token_file: cannot read .*nowhere: No such file"):
        load_token(file=tmp_path / "nowhere", environ={})
    with pytest.raises(InvalidSpec, match="ROLLMESH_TOKEN_FILE: cannot read"):
        load_token(environ={"ROLLMESH_TOKEN_FILE": str(tmp_path)})


def test_a_token_file_that_others_may_read_is_warned_about(token_file, caplog):
    load_token(file=token_file, environ={})
    assert not caplog.records
    token_file.chmod(0o644)
    assert load_token(file=token_file, environ={}) == Token(SECRET)
    assert "token_file_open" in caplog.text
    assert SECRET not in caplog.text


def test_a_token_that_is_too_short_says_which_file_it_stands_in(tmp_path):
    path = tmp_path / "token"
    path.write_text("short")
    path.chmod(0o600)
    with pytest.raises(InvalidSpec, match=r"token_file .*/token: a token has at least"):
        load_token(file=path, environ={})


# -------------------------------------------------------------------------- where to listen

LOCAL = ["5000", "localhost:1", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "mem://a", "unix:///a"]
LOCAL += ["rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0"]
OPEN = ["0.0.0.0:1", "[::]:1", "rollmesh+tcp://10.0.0.1:1", "tcp://host:1", "127.0.0.1.nip.io:1"]
SERVER_TLS = TlsServer(certificate="c", key="k")
TOKEN = Token(SECRET)


@pytest.mark.parametrize("text", LOCAL)
def test_local_addresses_need_nothing(text, caplog):
    check_bind(parse_address(text, "bind"), token=None, tls=None)
    assert not caplog.records


@pytest.mark.parametrize("text", OPEN)
def test_other_addresses_need_tls_and_a_token(text, caplog):
    address = parse_address(text, "bind")
    check_bind(address, token=TOKEN, tls=SERVER_TLS)
    assert not caplog.records
    for token, tls, missing in (
        (None, None, "TLS and a token are missing"),
        (TOKEN, None, "TLS is missing"),
        (None, SERVER_TLS, "a token is missing"),
    ):
        with pytest.raises(InvalidSpec, match=f"{missing}.*--insecure-plaintext"):
            check_bind(address, token=token, tls=tls)


@pytest.mark.parametrize("text", OPEN)
def test_plain_text_where_it_was_asked_for_warns_at_each_start(text, caplog):
    for _ in range(2):
        check_bind(parse_address(text, "bind"), token=TOKEN, tls=None, insecure_plaintext=True)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "insecure_plaintext" in caplog.text
    assert SECRET not in caplog.text


def test_a_client_sends_no_token_in_plain_text_to_another_machine():
    far, near = parse_address("host:1"), parse_address("localhost:1")
    with pytest.raises(InvalidSpec, match="plain text"):
        check_dial(far, token=TOKEN, tls=None)
    check_dial(far, token=TOKEN, tls=TlsClient())
    check_dial(far, token=TOKEN, tls=None, insecure_plaintext=True)
    check_dial(far, token=None, tls=None)
    check_dial(near, token=TOKEN, tls=None)


# --------------------------------------------------------------------------------------- TLS


@dataclass(frozen=True, kw_only=True)
class Files:
    """Certificates in files: of one authority, and of a stranger."""

    ca: Path
    certificate: Path
    key: Path
    client_certificate: Path
    client_key: Path
    stranger_ca: Path
    stranger_certificate: Path
    stranger_key: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("certificates")

    def write(name: str, *blobs: trustme.Blob) -> Path:
        path = folder / name
        path.write_bytes(b"".join(blob.bytes() for blob in blobs))
        return path

    ca, stranger = trustme.CA(), trustme.CA()
    server = ca.issue_cert("localhost", "127.0.0.1", "robot.test")
    client, other = ca.issue_cert("client.test"), stranger.issue_cert("localhost", "127.0.0.1")
    return Files(
        ca=write("ca.pem", ca.cert_pem),
        certificate=write("server.pem", *server.cert_chain_pems),
        key=write("server.key", server.private_key_pem),
        client_certificate=write("client.pem", *client.cert_chain_pems),
        client_key=write("client.key", client.private_key_pem),
        stranger_ca=write("stranger-ca.pem", stranger.cert_pem),
        stranger_certificate=write("stranger.pem", *other.cert_chain_pems),
        stranger_key=write("stranger.key", other.private_key_pem),
    )


@contextmanager
def echo_server(tls: TlsServer | None) -> Iterator[str]:
    """Serve connections that send every message back; gives the address."""
    with listen("rollmesh+tcp://127.0.0.1:0", wrap=server_wrap(tls)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection = listener.accept()
                except ConnectionLost:
                    return
                with connection:
                    echo(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield str(listener.address)
        finally:
            listener.close()
            thread.join(10)


def echo(connection: Connection) -> None:
    connection.admit()
    try:
        while True:
            connection.send(connection.receive(10), 10)
    except RollmeshError:
        return


def round_trip(address: str, tls: TlsClient | None, host: str = "127.0.0.1") -> bytes:
    """Send a message there and return what came back."""
    with dial(address, wrap=client_wrap(tls, host), timeout_s=5) as connection:
        connection.send(Message(Kind.PROBE, 1, Probe(b"hello" * 1000)), 5)
        return connection.receive(5).body.payload


def test_tls_carries_messages(files):
    server = TlsServer(certificate=files.certificate, key=files.key)
    with echo_server(server) as address:
        assert round_trip(address, TlsClient(ca=files.ca)) == b"hello" * 1000


def test_tls_of_the_peer_is_1_2_or_newer(files):
    server = TlsServer(certificate=files.certificate, key=files.key).context()
    client = TlsClient(ca=files.ca).context()
    assert server.minimum_version == client.minimum_version == ssl.TLSVersion.TLSv1_2
    assert client.check_hostname
    assert client.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("ca", "host", "name", "reason"),
    [
        ("stranger_ca", "127.0.0.1", None, "unable to get local issuer|self.signed"),
        ("ca", "127.0.0.1", "elsewhere.test", "Hostname mismatch"),
        ("ca", "10.0.0.1", None, "IP address mismatch"),
        (None, "127.0.0.1", None, "self.signed|unable to get local issuer"),
    ],
)
def test_a_certificate_of_somebody_else_is_refused(files, ca, host, name, reason):
    client = TlsClient(ca=None if ca is None else getattr(files, ca), server_name=name)
    with echo_server(TlsServer(certificate=files.certificate, key=files.key)) as address:
        with pytest.raises(ConnectFailed, match=f"certificate was refused: .*({reason})"):
            round_trip(address, client, host)
        # the server goes on serving others
        assert round_trip(address, TlsClient(ca=files.ca))


def test_the_server_name_counts_where_it_is_given(files):
    with echo_server(TlsServer(certificate=files.certificate, key=files.key)) as address:
        client = TlsClient(ca=files.ca, server_name="robot.test")
        assert round_trip(address, client, "10.0.0.1")


def test_a_client_certificate_is_wanted_where_there_is_a_client_ca(files):
    server = TlsServer(certificate=files.certificate, key=files.key, client_ca=files.ca)
    good = TlsClient(ca=files.ca, certificate=files.client_certificate, key=files.client_key)
    without = TlsClient(ca=files.ca)
    strange = TlsClient(ca=files.ca, certificate=files.stranger_certificate, key=files.stranger_key)
    with echo_server(server) as address:
        for client in (without, strange):
            with pytest.raises(TransportError):
                round_trip(address, client)
        assert round_trip(address, good)


def test_a_client_of_plain_text_gets_nothing_from_a_server_of_tls(files):
    with echo_server(TlsServer(certificate=files.certificate, key=files.key)) as address:
        # also a HELLO, whose first bytes a TLS library may take for a hello of SSL 2
        hello = Message(Kind.HELLO, 1, Hello(generation="g", service="env"))
        with dial(address) as connection, pytest.raises(ConnectionLost):
            connection.call(hello, 5)
        with pytest.raises(TransportError):
            round_trip(address, None)
        assert round_trip(address, TlsClient(ca=files.ca))


def test_a_client_of_tls_that_meets_plain_text_says_so(files):
    wanted = pytest.raises(ConnectFailed, match="does the server use TLS")
    with echo_server(None) as address, wanted:
        round_trip(address, TlsClient(ca=files.ca))


def test_a_frozen_peer_does_not_hold_up_the_handshake_for_ever(files):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"rollmesh+tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectFailed):
            dial(address, wrap=client_wrap(TlsClient(ca=files.ca), "127.0.0.1"), timeout_s=0.2)


def test_large_payloads_go_both_ways_at_once_through_tls(files):
    """One thread writes while another reads the same connection, beyond what OpenSSL bears."""
    image, action = Box(shape=(512, 512, 3), dtype="uint8", low=0, high=255), Discrete(n=4)
    leaves = [np.arange(512 * 512 * 3, dtype=np.uint32).astype(np.uint8).reshape(1, 512, 512, 3)]
    rounds = 10
    server = TlsServer(certificate=files.certificate, key=files.key)
    with echo_server_of_pixels(server, image.codec, action.codec) as address:
        wrap = client_wrap(TlsClient(ca=files.ca), "127.0.0.1")
        with dial(address, wrap=wrap, timeout_s=5) as connection:
            connection.framing.bind(action.codec, image.codec, 1)
            got = []

            def read() -> None:
                got.extend(connection.receive(20) for _ in range(rounds))

            thread = threading.Thread(target=read)
            thread.start()
            for number in range(rounds):
                connection.send(
                    Message(Kind.STEP, number + 1, StepRequest(action=leaves, episode_ids=("e",))),
                    20,
                )
            thread.join(20)
    assert [message.request_id for message in got] == list(range(1, rounds + 1))
    assert all(np.array_equal(message.body.action[0], leaves[0]) for message in got)


@contextmanager
def echo_server_of_pixels(tls, action_codec, other_codec) -> Iterator[str]:
    with listen("rollmesh+tcp://127.0.0.1:0", wrap=server_wrap(tls)) as listener:

        def serve() -> None:
            connection = listener.accept(10)
            connection.framing.bind(other_codec, action_codec, 1)
            with connection:
                echo(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield str(listener.address)
        finally:
            thread.join(20)


# --------------------------------------------------------------------------- files of TLS


def test_files_that_cannot_be_used_are_refused_when_the_server_starts(files, tmp_path):
    nothing, rubbish = tmp_path / "nothing", tmp_path / "rubbish"
    rubbish.write_text("no certificate")
    good = {"certificate": files.certificate, "key": files.key}
    for change, field in (
        ({"certificate": nothing}, "tls_cert"),
        ({"key": nothing}, "tls_key"),
        ({"client_ca": nothing}, "tls_client_ca"),
        ({"certificate": rubbish}, "tls_key"),
        ({"key": files.client_key}, "tls_key"),
        ({"client_ca": rubbish}, "tls_client_ca"),
    ):
        with pytest.raises(InvalidSpec) as caught:
            server_wrap(TlsServer(**{**good, **change}))
        assert caught.value.field == field
    with pytest.raises(InvalidSpec, match=r"tls_ca: .*no certificates in PEM form"):
        client_wrap(TlsClient(ca=rubbish), "host")


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_a_pass_phrase(files, tmp_path):
    from cryptography.hazmat.primitives import serialization as forms

    key = forms.load_pem_private_key(files.key.read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        key.private_bytes(
            forms.Encoding.PEM,
            forms.PrivateFormat.PKCS8,
            forms.BestAvailableEncryption(b"pass"),
        )
    )
    with pytest.raises(InvalidSpec, match="encrypted"):
        server_wrap(TlsServer(certificate=files.certificate, key=encrypted))


def test_grpc_gets_the_contents_of_the_same_files(files):
    pem = TlsServer(certificate=files.certificate, key=files.key, client_ca=files.ca).pem()
    assert pem.certificate == files.certificate.read_bytes()
    assert pem.key == files.key.read_bytes()
    assert pem.ca == files.ca.read_bytes()
    assert "PRIVATE" not in repr(pem)
    bare = TlsClient().pem()
    assert (bare.certificate, bare.key, bare.ca) == (None, None, None)


def test_half_of_a_pair_is_refused():
    with pytest.raises(InvalidSpec, match=r"tls\.key: is missing"):
        TlsClient(certificate="c")
    with pytest.raises(InvalidSpec, match=r"tls\.certificate: is missing"):
        TlsClient(key="k")
    with pytest.raises(InvalidSpec, match="tls_key: is missing"):
        server_tls("c", environ={})
    with pytest.raises(InvalidSpec, match="tls_cert: is missing"):
        server_tls(None, "k", environ={})
    with pytest.raises(InvalidSpec, match="tls_cert: is missing"):
        server_tls(client_ca="ca", environ={})


@pytest.mark.parametrize(
    ("text", "is_on"),
    [("1", True), ("true", True), ("Yes", True), ("", False), ("0", False), ("OFF", False)],
)
def test_a_switch_of_the_environment_is_what_it_says(text, is_on):
    assert (client_tls(environ={"ROLLMESH_TLS": text}) is not None) == is_on
    options = client_options(environ={"ROLLMESH_INSECURE_PLAINTEXT": text})
    assert options.insecure_plaintext == is_on


def test_a_switch_of_the_environment_that_says_neither_is_refused():
    with pytest.raises(InvalidSpec, match="ROLLMESH_TLS: wants 1 or 0, got 'maybe'"):
        client_tls(environ={"ROLLMESH_TLS": "maybe"})
    with pytest.raises(InvalidSpec, match="ROLLMESH_INSECURE_PLAINTEXT: wants 1 or 0"):
        client_options(environ={"ROLLMESH_INSECURE_PLAINTEXT": "2"})


def test_tls_options_come_from_the_environment_too():
    assert server_tls(environ={}) is None
    assert client_tls(environ={}) is None
    assert client_tls(environ={"ROLLMESH_TLS": "0"}) is None
    assert client_tls(environ={"ROLLMESH_TLS": "1"}) == client_tls(is_on=True, environ={})
    variables = {
        "ROLLMESH_TLS_CERT": "c",
        "ROLLMESH_TLS_KEY": "k",
        "ROLLMESH_TLS_CLIENT_CA": "ca",
    }
    expected = TlsServer(certificate="c", key="k", client_ca="ca")
    assert server_tls(environ=variables) == expected
    assert server_tls("c2", environ=variables) == TlsServer(
        certificate="c2", key="k", client_ca="ca"
    )
    variables = {
        "ROLLMESH_TLS_CA": "ca",
        "ROLLMESH_TLS_CLIENT_CERT": "c",
        "ROLLMESH_TLS_CLIENT_KEY": "k",
        "ROLLMESH_TLS_SERVER_NAME": "n",
    }
    expected = TlsClient(ca="ca", certificate="c", key="k", server_name="n")
    assert client_tls(environ=variables) == expected


def test_a_server_takes_token_and_tls_of_the_environment_where_none_are_given(monkeypatch):
    for name in [name for name in os.environ if name.startswith("ROLLMESH_")]:
        monkeypatch.delenv(name)
    bare = ServerOptions()
    assert bare.with_environment() is bare
    variables = {"ROLLMESH_TOKEN": SECRET, "ROLLMESH_TLS_CERT": "c", "ROLLMESH_TLS_KEY": "k"}
    found = bare.with_environment(variables)
    assert (found.secret, found.tls) == (TOKEN, SERVER_TLS)
    given = ServerOptions(token=OTHER, tls=TlsServer(certificate="a", key="b"))
    assert given.with_environment(variables) is given
    with pytest.raises(InvalidSpec, match="empty token"):
        bare.with_environment({"ROLLMESH_TOKEN": ""})
    monkeypatch.setenv("ROLLMESH_TOKEN", SECRET)
    with EnvServer("CartPole-v1", "mem://with-a-token") as server:
        assert probe(server.address, client_options(environ={})).health == "refused"
        assert probe(server.address, measure_s=0.01).health == "serving"


def test_without_tls_nothing_is_wrapped():
    assert server_wrap(None) is None
    assert client_wrap(None, "host") is None


# ------------------------------------------------------------------------------------- peers


def test_the_peer_of_a_unix_socket_is_known_by_its_user(monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        assert peer_of(ours) is Peer.SAME_USER
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert peer_of(ours) is Peer.SAME_MACHINE


def test_of_a_loopback_peer_only_the_machine_is_known():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as other,
    ):
        assert peer_of(client) is peer_of(other) is Peer.SAME_MACHINE


def test_a_socket_without_a_peer_is_a_strangers():
    with socket.socket() as lonely:
        assert peer_of(lonely) is Peer.STRANGER


class Far:
    family = socket.AF_INET

    def getpeername(self):
        return ("10.0.0.7", 5000)


def test_a_peer_elsewhere_is_a_stranger():
    assert peer_of(Far()) is Peer.STRANGER


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("unix:", Peer.SAME_USER),
        ("unix:/run/x.sock", Peer.SAME_USER),
        ("unix-abstract:x", Peer.SAME_MACHINE),
        ("ipv4:127.0.0.1:5000", Peer.SAME_MACHINE),
        ("ipv6:[::1]:5000", Peer.SAME_MACHINE),
        ("ipv6:%5B::1%5D:5000", Peer.SAME_MACHINE),
        ("ipv6:[::ffff:127.0.0.1]:5000", Peer.SAME_MACHINE),
        ("ipv4:10.0.0.1:5000", Peer.STRANGER),
        ("ipv6:[2001:db8::1]:5000", Peer.STRANGER),
        ("", Peer.STRANGER),
        ("inproc:1", Peer.STRANGER),
    ],
)
def test_the_peer_of_grpc_is_known_by_its_address(text, peer):
    assert peer_of_grpc(text) is peer


def test_connections_know_how_close_their_peer_is(tmp_path):
    for address, peer in (
        (f"rollmesh+unix://{tmp_path}/a.sock", Peer.SAME_USER),
        ("rollmesh+tcp://127.0.0.1:0", Peer.SAME_MACHINE),
        ("mem://peers", Peer.SAME_USER),
    ):
        with (
            listen(address) as listener,
            dial(listener.address) as client,
            listener.accept(5) as server,
        ):
            assert server.peer is client.peer is peer


def test_an_open_stream_of_tls_takes_turns(files):
    """A reader and a writer of one TLS socket never call it at the same moment."""
    context = TlsServer(certificate=files.certificate, key=files.key).context()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        client = TlsClient(ca=files.ca).context()
        ready = []
        thread = threading.Thread(
            target=lambda: ready.append(context.wrap_socket(theirs, server_side=True))
        )
        thread.start()
        with client.wrap_socket(ours, server_hostname="localhost") as wrapped:
            thread.join(10)
            stream = open_stream(wrapped)
            with ready[0]:
                assert not stream.can_scatter
                with pytest.raises(BlockingIOError):
                    stream.read(bytearray(4))
                assert stream.write([b"ab", b"cd"], 4, 1.0) == 4
                assert ready[0].recv(4) == b"abcd"
                ready[0].sendall(b"reply")
                assert stream.wait(5)
                assert stream.read(bytearray(8)) == 5
