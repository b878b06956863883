"""Case files: found in a folder and loaded, each in isolation.

A case imports helpers such as `common` from its own folder. While a case is loaded, these names
mean that folder's files and modules of its own: nothing that one run changes is seen by the next.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

PATTERN = "c[0-9]*.py"


@dataclass(frozen=True, kw_only=True)
class CaseFile:
    """A case as its file declares it.

    Attributes:
        path: The file.
        id: As in `C01`.
        source: Its text.
        run: Its `RUN`.
        module: As loaded for listing; never run.
    """

    path: Path
    id: str
    source: str
    run: Mapping[str, Any]
    module: ModuleType


@dataclass(frozen=True, kw_only=True)
class Unloadable:
    """A file that could not be loaded.

    Attributes:
        path: The file.
        reason: What it raised.
    """

    path: Path
    reason: str


def case_paths(folder: Path) -> list[Path]:
    """Return the case files of a folder, by name."""
    return sorted(folder.glob(PATTERN))


def read_case(path: Path) -> CaseFile | Unloadable:
    """Load a case to see what it declares; what it prints meanwhile is dropped."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), loaded(path) as module:
            return CaseFile(
                path=path,
                id=str(getattr(module, "ID", path.stem)),
                source=path.read_text(encoding="utf-8"),
                run=dict(getattr(module, "RUN", {})),
                module=module,
            )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - told by the runner
        return Unloadable(path=path, reason=f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def loaded(path: Path) -> Iterator[ModuleType]:
    """Load a case anew; helpers of its folder can be imported until this ends."""
    folder = path.parent.resolve()
    helpers = {p.stem for p in folder.glob("*.py")} - {p.stem for p in case_paths(folder)}
    before = {name: sys.modules.pop(name) for name in helpers if name in sys.modules}
    wrote_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(folder))
    name = f"rollmesh_case_{path.stem}"
    try:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.modules.pop(name, None)
        for helper in helpers:
            sys.modules.pop(helper, None)
        sys.modules.update(before)
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))
        sys.dont_write_bytecode = wrote_bytecode


@contextlib.contextmanager
def environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables (None: unset them) and put them back."""
    before = {name: os.environ.get(name) for name in changes}
    _set(changes)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
