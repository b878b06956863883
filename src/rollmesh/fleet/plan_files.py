"""Plans in files: a suite of tasks as JSON, TOML, YAML or Python (layer 7).

| ending | what it holds |
|---|---|
| `.json` | the table of `Plan.to_dict` |
| `.toml` | the same table: `seed = 7` and a `[[tasks]]` for each task |
| `.yaml`, `.yml` | the same table; needs PyYAML |
| `.py` | a module with `plan`, a `Plan`, or a function without arguments that returns one |
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollmesh.errors import InvalidSpec
from rollmesh.fleet.plan import Plan

_MODULE = "__rollmesh_plan__"


def load_plan(path: str | Path) -> Plan:
    """Return the plan that a file holds.

    A `.py` file is run: open only what you trust.

    Raises:
        InvalidSpec: The file is not there, cannot be read, or holds no plan; the sentence names it.
    """
    file = Path(path)
    read = _READERS.get(file.suffix.lower())
    if read is None:
        known = ", ".join(_READERS)
        raise InvalidSpec("plan", f"{file}: a plan file ends in one of {known}")
    try:
        found = read(file)
    except OSError as error:
        raise InvalidSpec("plan", f"{file} cannot be read: {error.strerror or error}") from error
    try:
        return found if isinstance(found, Plan) else Plan.from_dict(found)
    except InvalidSpec as error:
        raise InvalidSpec("plan", f"{file}: {error}") from error


def _read_json(file: Path) -> object:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidSpec("plan", f"{file} is no JSON: {error}") from error


def _read_toml(file: Path) -> object:
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return toml.loads(file.read_text(encoding="utf-8"))
    except toml.TOMLDecodeError as error:
        raise InvalidSpec("plan", f"{file} is no TOML: {error}") from error


def _read_yaml(file: Path) -> object:
    try:
        import yaml
    except ImportError as error:
        raise InvalidSpec(
            "plan", f"{file}: reading YAML needs PyYAML: pip install 'rollmesh[yaml]'"
        ) from error
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise InvalidSpec("plan", f"{file} is no YAML: {error}") from error


def _read_python(file: Path) -> object:
    file.read_bytes()  # what cannot be read is told apart from what its code cannot find
    spec = importlib.util.spec_from_file_location(_MODULE, file)
    if spec is None or spec.loader is None:
        raise InvalidSpec("plan", f"{file} cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        found: Any = getattr(module, "plan", None)
        made = found() if callable(found) else found
    except InvalidSpec as error:
        raise InvalidSpec("plan", f"{file}: {error}") from error
    except (Exception, SystemExit) as error:
        raise InvalidSpec(
            "plan", f"{file} failed as it was run: {type(error).__name__}: {error}"
        ) from error
    if made is None:
        raise InvalidSpec("plan", f"{file} has no `plan`: a Plan, or a function that returns one")
    return made


_READERS: dict[str, Callable[[Path], object]] = {
    ".json": _read_json,
    ".toml": _read_toml,
    ".yaml": _read_yaml,
    ".yml": _read_yaml,
    ".py": _read_python,
}
