"""Every code block in README.md and docs/ runs.

Blocks of Python in one file share a namespace, in order, as a reader would type them. In a console
block each line `$ rollmesh …` runs and must exit 0; one that ends in `&` runs beside those after
it, until the end of its block, where SIGTERM ends it. Ports from 5000 to 5009 stand for free ones.
A block is left out by a comment on the line before it that says why:
`<!-- no-test: needs a GPU -->`.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
LEFT_OUT = re.compile(r"<!-- no-test: \S[^>]*-->\s*\Z")
RUN_COMMAND = "import sys; from rollmesh.cli import main; sys.exit(main())"

UNASKED = range(20_000, 32_000)
"""Ports that systems give to nobody who asks for any: what is free stays free for a while."""


@dataclass(frozen=True, kw_only=True)
class Block:
    language: str
    line: int
    text: str


def blocks_of(text: str) -> list[Block]:
    found = []
    for fence in FENCE.finditer(text):
        if not LEFT_OUT.search(text[: fence.start()]):
            line = text.count("\n", 0, fence.start(2)) + 1
            found.append(Block(language=fence[1], line=line, text=fence[2]))
    return found


def commands_of(block: Block) -> list[list[str]]:
    lines = block.text.replace("\\\n", " ").splitlines()
    return [shlex.split(line[2:]) for line in lines if line.startswith("$ rollmesh ")]


def python_pages() -> list[Path]:
    return [
        page
        for page in PAGES
        if any(block.language == "python" for block in blocks_of(page.read_text("utf-8")))
    ]


def console_blocks() -> list[tuple[str, list[list[str]]]]:
    return [
        (f"{page.name}:{block.line}", commands)
        for page in PAGES
        for block in blocks_of(page.read_text("utf-8"))
        if block.language == "console" and (commands := commands_of(block))
    ]


def console_lines() -> list[tuple[str, list[str]]]:
    return [
        (where, command)
        for where, commands in console_blocks()
        if not has_servers(commands)
        for command in commands
    ]


def console_sessions() -> list[tuple[str, list[list[str]]]]:
    return [(where, commands) for where, commands in console_blocks() if has_servers(commands)]


def has_servers(commands: list[list[str]]) -> bool:
    return any(command[-1] == "&" for command in commands)


def free_port() -> int:
    while True:
        port = random.choice(UNASKED)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def with_free_ports(commands: list[list[str]]) -> list[list[str]]:
    text = "\0".join(shlex.join(command) for command in commands)
    for port in sorted(set(re.findall(r"\b500\d\b", text))):
        text = re.sub(rf"\b{port}\b", str(free_port()), text)
    return [shlex.split(command) for command in text.split("\0")]


def start(command: list[str], folder: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, "-c", RUN_COMMAND, *command[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
    )


def end(process: subprocess.Popen[str], where: str) -> None:
    try:
        out, err = process.communicate(timeout=50)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 0, f"{where}: {process.args}\n{out}\n{err}"


@pytest.mark.parametrize("page", python_pages(), ids=lambda page: page.name)
def test_python_blocks_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": f"blocks_of_{page.stem}"}
    for block in blocks_of(page.read_text("utf-8")):
        if block.language == "python":
            # Blank lines in front, so that a traceback names the line of the page.
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            exec(code, namespace)


@pytest.mark.parametrize(("where", "command"), console_lines(), ids=lambda v: str(v)[:80])
def test_console_lines_exit_with_0(where: str, command: list[str], tmp_path: Path) -> None:
    end(start(command, tmp_path), where)


@pytest.mark.parametrize(("where", "commands"), console_sessions(), ids=lambda v: str(v)[:80])
def test_console_blocks_with_a_server_run_beside_it(
    where: str, commands: list[list[str]], tmp_path: Path
) -> None:
    servers = []
    try:
        for command in with_free_ports(commands):
            if command[-1] == "&":
                servers.append(start(command[:-1], tmp_path))
            else:
                end(start(command, tmp_path), where)
    finally:
        for server in servers:
            server.send_signal(signal.SIGTERM)
    for server in servers:
        end(server, where)


def test_the_reader_of_blocks_sees_languages_lines_and_reasons() -> None:
    text = (
        "a\n```python\nx = 1\n```\n"
        "<!-- no-test: a reason -->\n```python\nboom\n```\n"
        "```console\n$ rollmesh eval A \\\n  --episodes 3\nout\n$ ls\n```\n"
    )
    first, second = blocks_of(text)
    assert first == Block(language="python", line=3, text="x = 1\n")
    assert second.language == "console"
    assert commands_of(second) == [["rollmesh", "eval", "A", "--episodes", "3"]]


def test_no_test_comments_need_a_reason() -> None:
    assert len(blocks_of("<!-- no-test: -->\n```python\nx\n```\n")) == 1
