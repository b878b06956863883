"""`rollmesh report` on folders of runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollmesh.cli import exit_codes, main
from rollmesh.cli.report_command import run_names
from rollmesh.runs import Journal, RunIdentity
from tests.unit.viewer_toys import timed


@pytest.fixture
def stored(tmp_path):
    def make(name: str, count: int = 6) -> Path:
        folder = tmp_path / name
        identity = RunIdentity(
            plan_json=json.dumps({"seed": 7}), plan_hash="9f2c", env="Toy-v0", model="m", planned=6
        )
        with Journal.open(folder, identity=identity, facts={"python": "3.11.2"}) as journal:
            for episode in timed(count):
                journal.record(episode)
        return folder

    return make


def test_a_stored_run_becomes_a_page(stored, tmp_path, capfd):
    page = tmp_path / "out" / "page.html"
    page.parent.mkdir()
    assert main(["report", str(stored("a")), "-o", str(page)]) == exit_codes.OK
    assert capfd.readouterr().out == f"{page}\n"
    text = page.read_text("utf-8")
    assert "9f2c" in text
    assert "3.11.2" in text
    assert "<title>m in Toy-v0</title>" in text
    assert [p.name for p in page.parent.iterdir()] == ["page.html"]


def test_several_runs_share_a_page(stored, tmp_path):
    page = tmp_path / "page.html"
    folders = [str(stored("one")), str(stored("two", 4))]
    assert main(["report", *folders, "-o", str(page)]) == exit_codes.OK
    text = page.read_text("utf-8")
    assert "one and two" in text
    assert "4 of 6 planned episodes ended" in text


def test_what_cannot_be_read_or_written_is_one_sentence(stored, tmp_path, capfd):
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "nothing"), "-o", str(page)]) == exit_codes.FAILED
    assert capfd.readouterr().err.startswith("error: ")
    assert not page.exists()
    missing = tmp_path / "no" / "such" / "page.html"
    assert main(["report", str(stored("a")), "-o", str(missing)]) == exit_codes.FAILED
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert f"cannot write {missing}: No such file or directory; name another file" in err
    assert main(["report", str(stored("b")), "-o", str(tmp_path)]) == exit_codes.FAILED
    assert "Is a directory" in capfd.readouterr().err
    assert main(["report", "-o", str(page)]) == exit_codes.BAD_ARGUMENTS


def test_runs_are_named_by_as_much_of_their_path_as_tells_them_apart():
    assert run_names([Path("/x/runs/a"), Path("/x/runs/b")]) == ["a", "b"]
    assert run_names([Path("/x/one/run"), Path("/x/two/run")]) == ["one/run", "two/run"]
    assert run_names([Path("/x/a"), Path("/x/a")]) == ["a", "a (2)"]
