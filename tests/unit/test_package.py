"""The public door: what it lists, what it loads, what the wheel ships."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest

import rollmesh

HEAVY = ("cyclopts", "grpc", "gymnasium", "rich", "scipy", "sqlite3", "torch")

FRESH_IMPORT = """
import json, sys, time
started = time.perf_counter()
import rollmesh
took_ms = (time.perf_counter() - started) * 1000
print(json.dumps({"took_ms": took_ms, "modules": sorted(sys.modules)}))
"""


def in_fresh_interpreter(code: str) -> str:
    source = str(Path(rollmesh.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r})\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_no_heavy_library() -> None:
    seen = json.loads(in_fresh_interpreter(FRESH_IMPORT))
    print(f"import rollmesh: {seen['took_ms']:.1f} ms (budget 150 ms)")
    assert [name for name in HEAVY if name in seen["modules"]] == []


def test_the_id_of_served_envs_is_known_where_gymnasium_was_loaded_before() -> None:
    code = """
import gymnasium, rollmesh
print("rollmesh/Remote-v0" in gymnasium.registry)
"""
    assert in_fresh_interpreter(code).strip() == "True"


def test_the_id_of_served_envs_is_known_from_the_first_name_that_is_used() -> None:
    code = """
import rollmesh, gymnasium
rollmesh.Limits
print("rollmesh/Remote-v0" in gymnasium.registry)
"""
    assert in_fresh_interpreter(code).strip() == "True"


def test_naming_everything_public_loads_no_terminal_or_statistics_library() -> None:
    code = """
import sys, rollmesh
for name in rollmesh.__all__:
    if name not in ("RemoteEnv", "RemoteVectorEnv"):  # subclasses of Gymnasium's classes
        getattr(rollmesh, name)
print(",".join(sorted(sys.modules)))
"""
    loaded = in_fresh_interpreter(code).strip().split(",")
    assert [name for name in HEAVY if name in loaded] == []


def test_all_is_sorted_short_and_without_duplicates() -> None:
    assert rollmesh.__all__ == sorted(set(rollmesh.__all__))
    assert len(rollmesh.__all__) <= 30


@pytest.mark.parametrize("name", rollmesh.__all__)
def test_every_public_name_is_there_and_is_what_its_module_says(name: str) -> None:
    value = getattr(rollmesh, name)
    module = rollmesh._MODULE_OF.get(name)
    if module is not None:
        assert value is getattr(import_module(module), name)
    assert name in dir(rollmesh)


def test_the_lazy_table_is_the_public_list() -> None:
    assert {*rollmesh._MODULE_OF, "__version__"} == set(rollmesh.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'evaluat'"):
        getattr(rollmesh, "evaluat")  # noqa: B009 - a type checker would flag the plain spelling


def test_version_is_one_and_the_same() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", rollmesh.__version__)
    try:
        installed = metadata.version("rollmesh")
    except metadata.PackageNotFoundError:
        pytest.skip("rollmesh is on the path, not installed")
    assert installed == rollmesh.__version__


def test_the_package_ships_its_types() -> None:
    assert (Path(rollmesh.__file__).parent / "py.typed").is_file()
