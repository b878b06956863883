"""The command line's own streams: a result that cannot be written is told, and no success."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rollmesh
from rollmesh.cli import exit_codes
from rollmesh.cli.output import Output

FULL = Path("/dev/full")
RUN = "import sys; from rollmesh.cli import main; sys.exit(main())"
COMMANDS = [
    ("power", "--rate", "0.6", "--width", "0.1"),
    ("eval", "CartPole-v1", "--model", "random", "-n", "1", "--no-journal", "--json"),
]


class Broken(io.StringIO):
    """A stream that takes nothing."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def write(self, text):
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO])
def test_a_reader_that_went_away_is_no_error(number):
    notes = io.StringIO()
    output = Output(Broken(number), notes)
    output.result("a line")
    assert notes.getvalue() == ""
    assert not output.is_lost


def test_a_full_disk_is_told_once():
    notes = io.StringIO()
    output = Output(Broken(errno.ENOSPC), notes)
    output.result("a line")
    output.result("another")
    assert output.is_lost
    assert notes.getvalue().count("\n") == 1
    assert "error: standard output cannot be written: No space left on device" in notes.getvalue()


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full, which Linux has")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_a_command_whose_result_is_lost_fails(tmp_path, command):
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", RUN, *command],
            stdout=full,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            cwd=tmp_path,
            text=True,
            timeout=50,
            check=False,
        )
    assert done.returncode == exit_codes.FAILED
    assert "error: standard output cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_package_is_the_command_too():
    done = subprocess.run(
        [sys.executable, "-m", "rollmesh", "--version"],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == exit_codes.OK, done.stderr
    assert done.stdout.strip() == rollmesh.__version__
    done = subprocess.run(
        [sys.executable, "-m", "rollmesh", "evil"],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == exit_codes.BAD_ARGUMENTS
