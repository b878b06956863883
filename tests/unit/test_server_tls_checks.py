"""What a server looks at before it serves: TLS files that no address uses, and who may come in."""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import trustme

from rollmesh.cli.flags import ServeFlags
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.probing import probe
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import InvalidSpec
from rollmesh.transport.security import TlsClient, TlsServer, Token
from tests.unit.serving_toys import Counter

SECRET = Token("s" * 32)
GRPC = "127.0.0.1:0"
SERVERS = {
    "env": lambda address, options: EnvServer(Counter, address, options),
    "model": lambda address, options: ModelServer(lambda _: 0, address, options),
}


@pytest.fixture
def folder(monkeypatch):
    """The folder of our own socket files, of this test alone; its path is short."""
    with tempfile.TemporaryDirectory(prefix="tls-", dir="/tmp") as path:
        monkeypatch.setenv("XDG_RUNTIME_DIR", path)
        yield Path(path)


@pytest.fixture(scope="module")
def pems(tmp_path_factory):
    """The files of an authority, of a server and of a client."""
    where, ca = tmp_path_factory.mktemp("tls"), trustme.CA()
    server, client = ca.issue_cert("127.0.0.1"), ca.issue_cert("client@example.org")
    parts = {
        "ca": [ca.cert_pem],
        "server": server.cert_chain_pems,
        "server_key": [server.private_key_pem],
        "client": client.cert_chain_pems,
        "client_key": [client.private_key_pem],
    }
    for name, blobs in parts.items():
        (where / f"{name}.pem").write_bytes(b"".join([blob.bytes() for blob in blobs]))
    return {name: str(where / f"{name}.pem") for name in parts}


def tls_of(pems, *, mutual):
    client_ca = pems["ca"] if mutual else None
    return TlsServer(certificate=pems["server"], key=pems["server_key"], client_ca=client_ca)


# ------------------------------------------------------------------- files that nothing uses

UNUSED = ["rollmesh+unix://", "unix://{folder}/grpc.sock", "mem://tls-checks"]


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("address", [*UNUSED, GRPC, "rollmesh+tcp://127.0.0.1:0"])
@pytest.mark.parametrize("wrong", ["tls_cert", "tls_key", "tls_client_ca"])
def test_tls_files_are_checked_at_the_start_wherever_a_server_listens(
    folder, pems, kind, address, wrong
):
    given = {"tls_cert": pems["server"], "tls_key": pems["server_key"], "tls_client_ca": pems["ca"]}
    given[wrong] = str(folder / "missing.pem")
    tls = TlsServer(
        certificate=given["tls_cert"], key=given["tls_key"], client_ca=given["tls_client_ca"]
    )
    server = SERVERS[kind](address.format(folder=folder), ServerOptions(tls=tls))
    with pytest.raises(InvalidSpec, match=rf"{wrong}: .*missing\.pem"):
        server.start()
    assert not list(folder.rglob("*.sock"))


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("address", UNUSED)
def test_tls_that_no_address_uses_is_warned_of_once(folder, pems, caplog, kind, address):
    options = ServerOptions(tls=tls_of(pems, mutual=False), native=False)
    with SERVERS[kind](address.format(folder=folder), options):
        pass
    said = [record.getMessage() for record in caplog.records if "tls_unused" in record.getMessage()]
    assert len(said) == 1
    assert "no TCP address" in said[0]


@pytest.mark.parametrize("kind", SERVERS)
def test_nothing_is_said_where_one_address_uses_it(folder, pems, caplog, kind):
    options = ServerOptions(tls=tls_of(pems, mutual=False))
    with SERVERS[kind](["rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0"], options):
        pass
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("what", ["env", "model"])
@pytest.mark.slow
def test_the_command_line_refuses_a_missing_key_at_a_unix_socket(folder, pems, what):
    target = "CartPole-v1" if what == "env" else "random"
    missing = str(folder / "missing.pem")
    script = "import sys; from rollmesh.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", script, "serve", what, target]
    done = subprocess.run(
        [*command, "--tls-cert", pems["server"], "--tls-key", missing],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "tls_key" in done.stderr
    assert "missing.pem" in done.stderr


# --------------------------------------------------------------------- mutual TLS and our user


def sockets(folder):
    return list(folder.rglob("*.sock"))


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize(
    ("mutual", "native", "count"),
    [(False, None, 1), (True, None, 0), (True, True, 1), (True, False, 0), (False, False, 0)],
)
def test_with_a_client_ca_the_private_socket_is_opened_only_where_it_is_asked_for(
    folder, pems, kind, mutual, native, count
):
    options = ServerOptions(tls=tls_of(pems, mutual=mutual), token=SECRET, native=native)
    with SERVERS[kind](GRPC, options) as server:
        assert len(sockets(folder)) == count
        assert len(server.addresses) == 1 + count


def test_a_client_of_this_user_with_the_token_alone_gets_nowhere(folder, pems):
    options = ServerOptions(tls=tls_of(pems, mutual=True), token=SECRET)
    with EnvServer(Counter, GRPC, options) as server:
        bare = client_options(token=SECRET, tls=TlsClient(ca=pems["ca"]), environ={})
        assert probe(server.address, bare, timeout_s=5.0, measure_s=0.01).health != "serving"
        whole = client_options(
            token=SECRET,
            tls=TlsClient(ca=pems["ca"], certificate=pems["client"], key=pems["client_key"]),
            environ={},
        )
        report = probe(server.address, whole, timeout_s=20.0, measure_s=0.01)
        assert (report.health, report.taken) == ("serving", server.address)
        assert report.why == "the server names no native address"


@pytest.mark.parametrize(("given", "native"), [({}, None), ({"native": True}, True)])
def test_the_command_line_leaves_it_to_the_server_unless_told(given, native):
    assert ServeFlags(**given).options().native is native
