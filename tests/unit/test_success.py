"""Success is the env's own word: rule R32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmesh.runtime.success import read_success
from tests.driving import MODES, drive, lengths
from tests.toys import ToyEnv


@pytest.mark.parametrize("key", ["is_success", "success", "task_success"])
@pytest.mark.parametrize(
    ("value", "success"),
    [
        (True, True),
        (False, False),
        (1, True),
        (0, False),
        (np.True_, True),
        (np.False_, False),
        (np.array(True), True),
        (np.int64(1), True),
        (np.uint8(0), False),
    ],
)
def test_r32_takes_bools_and_0_and_1(key, value, success):
    assert read_success({key: value}) == (success, None)


@pytest.mark.parametrize(
    "value", [None, "yes", 2, -1, 1.0, 0.5, np.float32(1), [True], np.array([1, 0]), {}, object()]
)
def test_r32_anything_else_is_unknown_with_a_complaint(value):
    success, complaint = read_success({"success": value})
    assert success is None
    assert complaint is not None
    assert "success" in complaint


def test_r32_nothing_said_is_unknown_without_a_complaint():
    assert read_success({}) == (None, None)
    assert read_success({"score": 1}) == (None, None)


def test_r32_the_order_of_the_keys():
    assert read_success({"task_success": True, "success": False}) == (False, None)
    assert read_success({"success": True, "is_success": False}) == (False, None)
    assert read_success({"task_success": False, "is_success": True}) == (True, None)


def test_r32_is_never_guessed_from_terminated():
    run = drive(ToyEnv(1), max_episodes=2)
    assert [(e.terminated, e.success) for e in run.ok.episodes] == [(True, None)] * 2


def test_r32_one_warning_a_route():
    env = ToyEnv(2, length=lengths(2, 2), info=lambda lane: {"success": "maybe"})
    run = drive(env, max_episodes=6)
    assert [e.success for e in run.ok.episodes] == [None] * 6
    warnings = [e for e in run.notes.of("log") if e.level == "warning"]
    assert len(warnings) == 1
    assert "maybe" in warnings[0].message


@pytest.mark.parametrize("mode", MODES)
def test_r32_is_read_from_the_final_info(mode):
    def info(lane: Any) -> dict[str, Any]:
        return {"is_success": lane.t == 3}

    run = drive(ToyEnv(1, mode, length=lengths(3), info=info), max_episodes=2)
    assert [e.success for e in run.ok.episodes] == [True, True]
