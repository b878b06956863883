"""Nothing unpickles: not by import, and not while a run is under way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rollmesh

PACKAGE = Path(rollmesh.__file__).parent
FORBIDDEN = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}

RUN_UNDER_AUDIT = """
import sys

found = []

def watch(event, arguments):
    if event == "pickle.find_class":
        found.append(arguments)

sys.addaudithook(watch)
import gymnasium
import rollmesh

for num_envs in (1, 2):
    result = rollmesh.evaluate(
        "random", "CartPole-v1", episodes=3, base_seed=0, num_envs=num_envs
    )
    assert len(result.episodes) == 3
    result.to_json()
import pickle

assert not found, found
pickle.loads(pickle.dumps(gymnasium.Env))
assert found, "the watch sees what it is there to see"
"""


def imported_modules(source: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize(
    "source", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_module_imports_pickle_or_its_kin(source: Path) -> None:
    assert imported_modules(source) & FORBIDDEN == set()


def test_a_run_finds_no_class_by_pickle() -> None:
    path = str(PACKAGE.parent)
    code = f"import sys; sys.path.insert(0, {path!r})\n{RUN_UNDER_AUDIT}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stderr
