"""Which folder a command's run is kept in, where none is named (layer 9).

The name follows from what decides the episodes, so that the same command finds an unfinished run
and goes on with it. A finished one is left alone: the next run of the same command gets a number.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmesh.cli.run_flags import RunFlags

ROOT_VARIABLE = "ROLLMESH_RUNS"
_LONGEST = 24
_DIGEST_BYTES = 4
_MOST = 10_000


@dataclass(frozen=True, kw_only=True)
class Folder:
    """Where a command keeps its run.

    Attributes:
        path: The folder.
        is_default: Whether nobody named it: then a run that cannot be kept is run all the same.
    """

    path: Path
    is_default: bool

    @classmethod
    def of(cls, run: RunFlags, env: str | None, model: str, deciding: Mapping[str, Any]) -> Folder:
        """Return the folder that was named, or the one of this command."""
        if run.run_dir is not None:
            return cls(path=Path(run.run_dir), is_default=False)
        return cls(path=folder_for(env, model, deciding), is_default=True)


def runs_root() -> Path:
    """Return the folder that run folders are put into: `$ROLLMESH_RUNS`, or `runs`."""
    return Path(os.environ.get(ROOT_VARIABLE) or "runs")


def folder_for(env: str | None, model: str, deciding: Mapping[str, Any]) -> Path:
    """Return the folder of this command's unfinished run, or a new one.

    Args:
        env: As it was given.
        model: As it was given.
        deciding: The other arguments that decide what the episodes come to.
    """
    text = json.dumps([env, model, dict(deciding)], sort_keys=True, default=repr)
    digest = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    root = runs_root()
    name = f"{_slug(env or 'plan')}-{_slug(model)}-{digest}"
    for number in range(1, _MOST):
        folder = root / (name if number == 1 else f"{name}-{number}")
        if not _is_finished(folder):
            return folder
    return root / f"{name}-{_MOST}"


def _is_finished(folder: Path) -> bool:
    from rollmesh.errors import RunError
    from rollmesh.runs.reading import read_run
    from rollmesh.runs.schema import STORE_FILE

    if not (folder / STORE_FILE).exists():
        return False
    try:
        return read_run(folder).status == "finished"
    except RunError:
        return True  # damaged: left as it is


def _slug(text: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", Path(text).name.lower()).strip("-")
    return plain[:_LONGEST].strip("-") or "run"


def discard_unused(folder: Path) -> None:
    """Remove a folder that was begun just now and in which no episode was recorded.

    Not one that another process drives: it may have been refused for a reason of its own.
    """
    from rollmesh.errors import RunError
    from rollmesh.runs.reading import read_run

    try:
        run = read_run(folder)
    except RunError:
        return
    is_begun = len(run.starts) <= 1 and not run.result.episodes and not run.retried
    if is_begun and run.status != "running":
        shutil.rmtree(folder, ignore_errors=True)
