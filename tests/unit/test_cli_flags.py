"""Options that commands share: what they become, and how `rollmesh eval` reaches a served end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rollmesh.cli import exit_codes, main
from rollmesh.cli.flags import ConnectFlags, ServeFlags
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from rollmesh.errors import InvalidSpec
from rollmesh.transport.security import TlsClient, TlsServer, Token

SECRET = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ROLLMESH_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(SECRET)
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (ServeFlags(), ["rollmesh+unix://"]),
        (ServeFlags(address=("5000",)), ["5000"]),
        (ServeFlags(native=False), ["rollmesh+unix://"]),
        (ServeFlags(address=("5000", "rollmesh+tcp://h:1")), ["5000", "rollmesh+tcp://h:1"]),
        (ServeFlags(address=("rollmesh+unix:///a",)), ["rollmesh+unix:///a"]),
    ],
)
def test_a_private_socket_is_listened_at_where_no_address_is_given(flags, expected) -> None:
    assert flags.addresses() == expected


def test_serve_options_left_out_are_the_servers_defaults() -> None:
    assert ServeFlags().options() == ServerOptions()
    assert ServeFlags().options(num_envs=None, max_batch=3) == ServerOptions(max_batch=3)


def test_serve_options_are_passed_on(token_file: str) -> None:
    flags = ServeFlags(
        max_sessions=3,
        idle_timeout=float("inf"),
        token_file=token_file,
        tls_cert="c",
        tls_key="k",
        expose_tracebacks=True,
        native=False,
    )
    assert flags.options() == ServerOptions(
        max_sessions=3,
        idle_timeout_s=None,
        token=SECRET,
        tls=TlsServer(certificate="c", key="k"),
        expose_tracebacks=True,
        native=False,
    )


def test_connect_options_are_passed_on(token_file: str) -> None:
    flags = ConnectFlags(token_file=token_file, tls_ca="ca", tls_server_name="n", transport="grpc")
    options = flags.options()
    assert options.token == Token(SECRET)
    assert options.tls == TlsClient(ca="ca", server_name="n")
    assert (options.transport, options.insecure_plaintext) == ("grpc", False)
    assert ConnectFlags(tls=True).options().tls == TlsClient()
    assert ConnectFlags(insecure_plaintext=True).options().insecure_plaintext


def test_connect_options_stand_in_the_environment_for_a_while(
    token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLMESH_TOKEN", "f" * 32)
    monkeypatch.setenv("ROLLMESH_TRANSPORT", "native")
    monkeypatch.chdir(Path(token_file).parent)
    before = dict(os.environ)
    flags = ConnectFlags(token_file="token", tls_ca="token", transport="grpc")
    with flags.in_environment():
        assert "ROLLMESH_TOKEN" not in os.environ
        assert os.environ["ROLLMESH_TOKEN_FILE"] == token_file
        assert os.environ["ROLLMESH_TLS_CA"] == token_file
        assert os.environ["ROLLMESH_TRANSPORT"] == "grpc"
    assert dict(os.environ) == before
    with ConnectFlags().in_environment():
        assert dict(os.environ) == before


def test_connect_options_that_are_wrong_change_nothing() -> None:
    before = dict(os.environ)
    for flags in (ConnectFlags(token_file="/nowhere"), ConnectFlags(tls_client_cert="c")):
        with pytest.raises(InvalidSpec), flags.in_environment():
            pass
        assert dict(os.environ) == before


# ------------------------------------------------------------------------------------- eval


def test_eval_reaches_both_ends_with_the_token_of_a_file(
    token_file: str, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ServerOptions(token=SECRET, native=False)
    with (
        EnvServer("CartPole-v1", "127.0.0.1:0", options) as env,
        ModelServer("random", "rollmesh+unix://", options) as model,
    ):
        arguments = ["eval", env.address, "-m", model.address, "-n", "2", "--seed", "0", "--json"]
        assert main([*arguments, "--token-file", token_file]) == exit_codes.OK
        out, err = capfd.readouterr()
        assert len(json.loads(out)["episodes"]) == 2
        assert SECRET not in out + err
        assert main(arguments) == exit_codes.FAILED
        assert "no token was given" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--token-file", "/nowhere"], "token_file: cannot read /nowhere"),
        (["--tls-client-key", "k"], "certificate: is missing"),
        (["--transport", "pigeon"], "pigeon"),
    ],
)
def test_bad_connect_options_exit_2(
    capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    command = ["eval", "CartPole-v1", "-m", "random", "-n", "1", *arguments]
    assert main(command) == exit_codes.BAD_ARGUMENTS
    out, err = capfd.readouterr()
    assert out == ""
    assert words in " ".join(err.split())
