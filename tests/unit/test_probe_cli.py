"""`rollmesh probe`: a report for people and one for machines, and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollmesh
from rollmesh.cli import exit_codes, main
from rollmesh.cli.probe_command import _printable
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.server_options import ServerOptions

SECRET = "0123456789abcdef" * 2
QUICK = ["--measure", "0.02"]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROLLMESH_TOKEN", "ROLLMESH_TOKEN_FILE", "ROLLMESH_TLS", "ROLLMESH_TRANSPORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def served() -> Iterator[str]:
    with EnvServer("CartPole-v1", "rollmesh+unix://") as server:
        yield server.address


def test_a_served_env_is_shown_as_a_tree_with_figures(
    served: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", served, "--steps", "5", *QUICK]) == exit_codes.OK
    out, err = capfd.readouterr()
    assert err == ""
    for line in (
        f"address    {served}",
        "health     serving",
        "service    env",
        "path       native frames over a unix socket",
        "because    it is the address that was given",
        "CartPole-v1: 1 env, autoreset disabled",
        "observation  Box float32 (4,)  16 bytes",
        "actions of 8 bytes there and back: p50 ",
        "observations of 16 bytes there and back: p50 ",
        "5 random steps: ",
    ):
        assert f"\n{line}" in f"\n{out}"


def test_json_is_for_machines(served: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", served, "--json", *QUICK]) == exit_codes.OK
    table = json.loads(capfd.readouterr().out)
    assert (table["health"], table["service"]) == ("serving", "env")
    assert table["contract"]["observation_space"]["row_bytes"] == 16
    assert [trips["what"] for trips in table["round_trips"]] == ["actions", "observations"]
    assert table["round_trips"][0]["p99_us"] >= table["round_trips"][0]["p50_us"] > 0
    assert table["steps"] is None


def test_another_process_can_probe_too(served: str) -> None:
    code = "import sys; from rollmesh.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "probe", served, "--json", *QUICK],
        capture_output=True,
        text=True,
        timeout=30,
        env={"PYTHONPATH": str(Path(rollmesh.__file__).parent.parent)},
        check=False,
    )
    assert done.returncode == exit_codes.OK, done.stderr
    assert json.loads(done.stdout)["health"] == "serving"


def test_nobody_there_exits_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", f"rollmesh+unix://{tmp_path}/nobody.sock"]) == exit_codes.FAILED
    assert "health     unreachable: " in capfd.readouterr().out


def test_a_refusal_exits_1_and_the_token_file_opens_the_door(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "token"
    path.write_text(SECRET)
    path.chmod(0o600)
    with EnvServer("CartPole-v1", "rollmesh+unix://", ServerOptions(token=SECRET)) as server:
        assert main(["probe", server.address, *QUICK]) == exit_codes.FAILED
        out = capfd.readouterr().out
        assert "health     refused: unauthenticated" in out
        assert "no token was given; give the server's: --token-file on the command line" in out
        arguments = ["--token-file", str(path), "--json", *QUICK]
        assert main(["probe", server.address, *arguments]) == exit_codes.OK
    out, err = capfd.readouterr()
    assert SECRET not in out + err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "wants host:port"),
        (["mem://x", "--tls-ca", "nowhere", "--tls-client-cert", "c"], "is missing"),
        (["rollmesh+tcp://h:1", "--tls-ca", "nowhere"], "tls_ca: cannot read nowhere"),
        (["mem://x", "--service", "door"], "door"),
        (["mem://x", "--transport", "pigeon"], "pigeon"),
        ([], "address"),
    ],
)
def test_bad_arguments_exit_2(
    capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["probe", *arguments]) == exit_codes.BAD_ARGUMENTS
    out, err = capfd.readouterr()
    assert out == ""
    assert words in err.lower()


def test_a_peers_words_cannot_disturb_a_terminal() -> None:
    assert _printable("fine µ") == "fine µ"
    assert _printable("a\x1b[2Jb\n") == "a\\x1b[2Jb\\x0a"
