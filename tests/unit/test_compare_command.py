"""`rollmesh compare`: what it reads, prints and returns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollmesh.cli import exit_codes, main
from rollmesh.results.result import EpisodeResult, EvalResult
from rollmesh.runs import Journal, RunIdentity
from rollmesh.viewer.live.json_lines import result_line
from tests.unit.result_toys import episode, returns, successes, table


def _kept(path: Path, result: EvalResult) -> str:
    path.write_text(result.to_json(), encoding="utf-8")
    return str(path)


@pytest.fixture
def better(tmp_path: Path) -> tuple[str, str]:
    a, b = table(both=20, lost=2, won=12, neither=16)
    return _kept(tmp_path / "a.json", a), _kept(tmp_path / "b.json", b)


def test_two_files_are_compared_and_the_table_is_on_standard_output(
    better: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *better]) == exit_codes.OK
    out, err = capfd.readouterr()
    assert out.startswith("Comparison  B is BETTER than A in success rate.")
    assert not err


def test_a_gate_is_an_exit_code_with_its_reason(
    better: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    a, b = better
    assert main(["compare", a, b, "--gate"]) == exit_codes.OK
    assert "gate open: B is BETTER" in capfd.readouterr().err
    assert main(["compare", "--gate", b, a]) == exit_codes.FAILED
    assert "gate CLOSED: B is WORSE" in capfd.readouterr().err
    assert main(["compare", b, a]) == exit_codes.OK


def test_underpowered_passes_a_gate_and_not_a_strict_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    a, b = table(both=10, lost=2, won=2, neither=10)
    files = [_kept(tmp_path / "a.json", a), _kept(tmp_path / "b.json", b)]
    assert main(["compare", *files, "--gate"]) == exit_codes.OK
    assert main(["compare", *files, "--gate", "--strict"]) == exit_codes.FAILED
    err = capfd.readouterr().err
    assert "UNDERPOWERED: 24 pairs cannot tell" in err
    assert "not ruled out" in err
    assert main(["compare", *files, "--gate", "--strict", "--margin", "0.5"]) == exit_codes.OK


def test_options_reach_the_comparison_and_json_is_json(
    better: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--metric", "return", "--margin", "0.5", "--confidence", "0.9", "--json"]
    assert main(["compare", *better, *options]) == exit_codes.OK
    values = json.loads(capfd.readouterr().out)
    assert values["metric"] == "return"
    assert values["margin"] == 0.5
    assert values["confidence"] == 0.9
    assert values["verdict"] == "equivalent"


def _run(folder: Path, model: str, rewards: list[float], **settings: object) -> str:
    """A run folder as an evaluation leaves it."""
    identity = RunIdentity(plan_json="{}", plan_hash="00", env="E", model=model, settings=settings)
    with Journal.open(folder, identity=identity, facts={}) as journal:
        for i, reward in enumerate(rewards):
            journal.record(_ended(i, reward))
    return str(folder)


def _ended(index: int, reward: float) -> EpisodeResult:
    return episode(index, total_reward=reward, episode_id=f"01890000-0000-7000-8000-{index:012d}")


def test_run_folders_are_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    a = _run(tmp_path / "old", "old", [float(i) for i in range(20)])
    b = _run(tmp_path / "new", "new", [i + 1.0 + 0.1 * (i % 3) for i in range(22)])
    assert main(["compare", a, b, "--json"]) == exit_codes.OK
    values = json.loads(capfd.readouterr().out)
    assert (values["a"], values["b"], values["verdict"]) == ("old", "new", "better")
    assert (values["pairs"], values["only_in_b"]) == (20, 2)


def test_runs_that_were_not_played_alike_are_told_and_do_not_pass_a_strict_gate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    a = _run(tmp_path / "old", "old", [1.0] * 100, max_episode_steps=50)
    b = _run(tmp_path / "new", "new", [1.0] * 100, max_episode_steps=None)
    options = ["--margin", "0.5", "--gate"]
    assert main(["compare", a, b, *options]) == exit_codes.OK
    assert "not played alike: max_episode_steps: 50 and none." in capfd.readouterr().out
    assert main(["compare", a, b, *options, "--strict"]) == exit_codes.FAILED
    assert "not played under the same conditions" in capfd.readouterr().err
    assert main(["compare", a, a, *options, "--strict"]) == exit_codes.OK


def test_a_folder_and_a_file_are_compared(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    a = _run(tmp_path / "old", "old", [1.0] * 100)
    b = _kept(tmp_path / "b.json", returns([1.0] * 100))
    assert main(["compare", a, b]) == exit_codes.OK
    assert "EQUIVALENT" in capfd.readouterr().out


def test_what_export_and_json_lines_wrote_is_compared_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = _run(tmp_path / "old", "old", [1.0] * 100)
    whole = str(tmp_path / "whole.json")
    assert main(["export", folder, "--format", "json", "-o", whole]) == exit_codes.OK
    last = tmp_path / "last.json"
    last.write_text(result_line(returns([1.0] * 100)), encoding="utf-8")
    lines = tmp_path / "lines.jsonl"
    lines.write_text(f'{{"event": "episode"}}\n{last.read_text(encoding="utf-8")}\n', "utf-8")
    for file in (whole, str(last), str(lines)):
        assert main(["compare", folder, file]) == exit_codes.OK
        assert "EQUIVALENT" in capfd.readouterr().out


def test_what_cannot_be_compared_is_told(
    tmp_path: Path, better: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    other = _kept(tmp_path / "c.json", successes([True], tasks=["elsewhere"]))
    text = tmp_path / "notes.txt"
    text.write_text("not JSON", encoding="utf-8")
    cases = {
        str(tmp_path / "nowhere"): "found nothing there",
        str(tmp_path / "empty"): "empty",
        str(text): "wants the JSON of a result",
        other: "no task in common",
    }
    for path, word in cases.items():
        assert main(["compare", better[0], path, "--gate"]) == exit_codes.BAD_ARGUMENTS
        out, err = capfd.readouterr()
        assert word in err
        assert not out


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--strict"], "--gate"),
        (["--margin", "-1"], "margin"),
        (["--margin", "5"], "difference of success rates below 1"),
        (["--confidence", "95"], "confidence"),
        (["--metric", "steps"], "metric"),
    ],
)
def test_bad_options_are_refused(
    better: tuple[str, str], capfd: pytest.CaptureFixture[str], options: list[str], word: str
) -> None:
    assert main(["compare", *better, *options]) == exit_codes.BAD_ARGUMENTS
    assert word in capfd.readouterr().err
