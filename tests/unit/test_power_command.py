"""`rollmesh power`: which questions it answers, and which it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rollmesh.cli import exit_codes, main
from rollmesh.results.power import (
    disagreement,
    episodes_for_return,
    episodes_for_width,
    episodes_paired,
    episodes_unpaired,
)


def _answers(capfd: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    assert main(["power", *options, "--json"]) == exit_codes.OK
    return json.loads(capfd.readouterr().out)


def test_a_difference_of_rates_is_planned_paired_and_unpaired(
    capfd: pytest.CaptureFixture[str],
) -> None:
    paired, unpaired = _answers(capfd, "--rate", "0.6", "--detect", "0.1")
    assert paired["episodes"] == episodes_paired(0.1, disagreement(0.6, 0.1))
    assert "same planned episodes" in paired["question"]
    assert unpaired["episodes"] == episodes_unpaired(0.6, 0.1)


def test_agreement_power_and_confidence_count(capfd: pytest.CaptureFixture[str]) -> None:
    options = ("--rate", "0.6", "--detect", "-0.1", "--paired-agreement", "0.85")
    paired, _ = _answers(capfd, *options, "--power", "0.9", "--confidence", "0.99")
    assert paired["episodes"] == episodes_paired(-0.1, 0.15, power=0.9, confidence=0.99)
    assert "0.85 of the episodes end the same" in paired["method"]


def test_a_width_and_a_difference_of_returns_are_planned(
    capfd: pytest.CaptureFixture[str],
) -> None:
    (width,) = _answers(capfd, "--rate", "0.6", "--width", "0.05")
    assert width["episodes"] == episodes_for_width(0.6, 0.05)
    (mean,) = _answers(capfd, "--sd", "30", "--detect", "5")
    assert mean["episodes"] == episodes_for_return(5, 30)


def test_the_answer_is_lines_for_people(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["power", "--rate", "0.6", "--detect", "0.1", "--width", "0.05"]) == exit_codes.OK
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "1,472 episodes  to know a success rate near 0.6 within 0.05 (Wilson)"
    assert lines[1].startswith("  377 episodes  to tell 0.6 from 0.7, same planned episodes")
    assert lines[-1] == "of each model"


def test_the_largest_count_says_that_it_may_be_more(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["power", "--rate", "0.5", "--detect", "1e-300"]) == exit_codes.OK
    paired, unpaired, _ = capfd.readouterr().out.splitlines()
    assert paired.startswith("1,000,000,000 or more episodes  to tell ")
    assert unpaired.startswith("1,000,000,000 or more episodes  to tell ")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ([], "--rate"),
        (["--rate", "0.6"], "--detect"),
        (["--sd", "3", "--width", "0.1"], "--detect"),
        (["--sd", "3", "--detect", "1", "--width", "0.1"], "--rate"),
        (["--sd", "3", "--detect", "1", "--paired-agreement", "0.9"], "--paired-agreement"),
        (["--rate", "0.95", "--detect", "0.1"], "detect"),
        (["--rate", "0.6", "--detect", "0.1", "--paired-agreement", "0.99"], "paired_agreement"),
        (["--rate", "0.6", "--detect", "0.1", "--power", "80"], "power"),
        (["--rate", "0.6", "--width", "2"], "width"),
        (["--sd", "-3", "--detect", "1"], "deviation"),
    ],
)
def test_questions_without_sense_are_refused(
    capfd: pytest.CaptureFixture[str], options: list[str], word: str
) -> None:
    assert main(["power", *options]) == exit_codes.BAD_ARGUMENTS
    out, err = capfd.readouterr()
    assert word in err
    assert not out
