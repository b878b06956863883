"""Every script in examples/ runs, where it has one in its short form (`--quick`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
HAS_SHORT_FORM = {"demo.py", "fleet_demo.py", "train_cartpole.py", "train_half_cheetah.py"}
NEEDS = {
    "demo.py": "mujoco",
    "fleet_demo.py": "mujoco",
    "half_cheetah.py": "mujoco",
    "train_half_cheetah.py": "mujoco",
}


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.name)
def test_example_runs(script: Path, tmp_path: Path) -> None:
    if needed := NEEDS.get(script.name):
        pytest.importorskip(needed)
    before = {path.name for path in script.parent.iterdir()}
    done = subprocess.run(
        [sys.executable, str(script), *(["--quick"] if script.name in HAS_SHORT_FORM else [])],
        capture_output=True,
        text=True,
        timeout=55,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout, "an example shows something"
    assert {path.name for path in script.parent.iterdir()} == before
    left = {path.name for path in tmp_path.iterdir()} - {"MUJOCO_LOG.TXT"}
    assert left == set(), "an example leaves nothing behind where it is run"


def test_there_are_examples() -> None:
    assert EXAMPLES
    assert {path.name for path in EXAMPLES} >= HAS_SHORT_FORM | NEEDS.keys()
