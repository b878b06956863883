"""`rollmesh eval --tune`: measures, says what it chose, and runs."""

from __future__ import annotations

import pytest

from rollmesh.cli import exit_codes, main


@pytest.mark.slow
def test_tune_says_what_it_found_and_runs_with_it(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "CartPole-v1", "-m", "random", "-n", "4", "--tune", "--workers", "2"]
    assert main([*words, "--no-journal"]) == exit_codes.OK
    out, err = capfd.readouterr()
    assert "4 episodes" in out
    assert "rows/s" in err
    assert "workers   env steps/s" in err


def test_tune_needs_an_env_that_workers_can_build(capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["eval", "127.0.0.1:9", "-m", "random", "-n", "4", "--tune"])
    assert code == exit_codes.BAD_ARGUMENTS
    assert "workers build" in capfd.readouterr().err
