"""What a run ran on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from rollmesh.runs.facts import gather_facts

REPOSITORY = """
set -e
git init -q .
git -c user.name=n -c user.email=e@x commit -q --allow-empty -m first
"""


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return tmp_path


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_versions_machine_and_command_are_noted(nowhere):
    facts = gather_facts(command=["eval", "CartPole-v1"])
    assert json.loads(json.dumps(facts)) == facts
    assert facts["packages"]["numpy"] == version("numpy")
    assert facts["packages"]["gymnasium"] == version("gymnasium")
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["pid"] == os.getpid()
    assert facts["cpus"] >= 1
    assert facts["memory_bytes"] > 2**20
    assert facts["command"] == ["eval", "CartPole-v1"]
    assert facts["working_folder"] == str(nowhere)
    assert "git" not in facts


def test_without_a_command_there_is_none(nowhere):
    assert "command" not in gather_facts()


def test_the_revision_and_whether_it_is_clean(nowhere):
    subprocess.run(["sh", "-c", REPOSITORY], check=True)
    said = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert gather_facts()["git"] == {"revision": said.stdout.strip(), "dirty": False}
    (nowhere / "new").write_text("x")
    assert gather_facts()["git"]["dirty"] is True


def test_gpus_are_named_where_the_driver_names_them(nowhere, monkeypatch):
    program(nowhere, "nvidia-smi", "echo 'Card A'; echo 'Card B'")
    monkeypatch.setenv("PATH", f"{nowhere}:{os.environ['PATH']}")
    assert gather_facts()["gpus"] == ["Card A", "Card B"]


def test_a_program_that_fails_or_hangs_is_left_out(nowhere, monkeypatch):
    program(nowhere, "nvidia-smi", "echo broken; exit 9")
    program(nowhere, "git", "exec sleep 60")
    monkeypatch.setenv("PATH", f"{nowhere}:{os.environ['PATH']}")
    monkeypatch.setattr("rollmesh.runs.facts._ASKING_S", 0.2)
    facts = gather_facts()
    assert "gpus" not in facts
    assert "git" not in facts


def test_a_working_folder_that_is_gone_is_left_out(nowhere):
    gone = nowhere / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    assert "working_folder" not in gather_facts()
