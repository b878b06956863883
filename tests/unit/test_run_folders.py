"""Folders of runs that nobody named: found again, left alone once finished, never taken away."""

from __future__ import annotations

from rollmesh.cli.run_folders import discard_unused, folder_for
from rollmesh.runs.journal import Journal
from tests.unit.runs_toys import PLANNED, episode, identity


def run_in(folder, count):
    with Journal.open(folder, identity=identity(), facts={}) as journal:
        for index in range(count):
            journal.record(episode(index))


def test_the_same_command_finds_its_unfinished_run(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLMESH_RUNS", str(tmp_path))
    first = folder_for("Env-v0", "random", {"episodes": PLANNED})
    assert first.parent == tmp_path
    assert folder_for("Env-v0", "random", {"episodes": 3}) != first
    run_in(first, 1)
    assert folder_for("Env-v0", "random", {"episodes": PLANNED}) == first
    with Journal.open(first, identity=identity(), facts={}) as journal:
        for index in range(1, PLANNED):
            journal.record(episode(index))
    again = folder_for("Env-v0", "random", {"episodes": PLANNED})
    assert again.name == f"{first.name}-2"


def test_a_damaged_run_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLMESH_RUNS", str(tmp_path))
    first = folder_for(None, "random", {})
    first.mkdir()
    (first / "run.sqlite").write_bytes(b"no store")
    assert folder_for(None, "random", {}).name == f"{first.name}-2"


def test_only_a_folder_without_any_episode_is_discarded(tmp_path):
    for name, count in (("none", 0), ("one", 1)):
        run_in(tmp_path / name, count)
        discard_unused(tmp_path / name)
    discard_unused(tmp_path / "nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_a_folder_that_is_being_driven_is_never_discarded(tmp_path):
    with Journal.open(tmp_path / "live", identity=identity(), facts={}) as journal:
        discard_unused(tmp_path / "live")
        journal.record(episode(0))
        assert journal.flush()
