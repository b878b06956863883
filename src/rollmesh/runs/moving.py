"""Setting things aside, never deleting them: a whole store, or episodes to run again (layer 7).

`put_aside` wants the lock of the folder held; `retry_errored` takes it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from itertools import count
from pathlib import Path

from rollmesh.errors import RunDamaged
from rollmesh.runs import store
from rollmesh.runs.checking import name_error, read_contents
from rollmesh.runs.lock import RunLock
from rollmesh.runs.schema import SIDECARS, STORE_FILE
from rollmesh.runs.store import Store

TRACES_FOLDER = "traces"
_STEM, _, _SUFFIX = STORE_FILE.rpartition(".")


def put_aside(folder: Path) -> str | None:
    """Give the store of a folder, and its traces, the next free name of its row.

    `run.sqlite` becomes `run-1.sqlite`, then `run-2.sqlite`, …, and `traces` the same.

    Returns:
        The store's new name, or None where there was no store.

    Raises:
        OSError: A file could not be renamed.
    """
    path = folder / STORE_FILE
    moved = [path.name + tail for tail in (*SIDECARS, "")]
    has_traces = (folder / TRACES_FOLDER).is_dir() and any((folder / TRACES_FOLDER).iterdir())
    if not has_traces and not any((folder / name).exists() for name in moved):
        return None
    if path.exists():
        _make_one_file(path)
    number = next(n for n in count(1) if not _is_taken(folder, n))
    # The store comes last: a log beside another store than its own would be played into that.
    for tail in (*SIDECARS, ""):
        with contextlib.suppress(FileNotFoundError):
            (folder / f"{path.name}{tail}").rename(folder / f"{_aside(number)}{tail}")
    if has_traces:
        (folder / TRACES_FOLDER).rename(folder / f"{TRACES_FOLDER}-{number}")
    store.sync_folder(folder)
    return _aside(number)


def retry_errored(folder: Path) -> tuple[int, ...]:
    """Set the errored episodes of a run aside, so that its next start runs them again.

    Their rows are kept in the table of retried episodes.

    Returns:
        Their plan indices.

    Raises:
        RunLocked: The run is being driven.
        RunDamaged: The store is not what was written.
        JournalError: The store could not be written.
    """
    path = folder / STORE_FILE
    lock = RunLock.acquire(folder)
    try:
        with contextlib.closing(store.open_to_write(path)) as connection:
            contents = read_contents(connection, path)
            errored = tuple(sorted(e.index for e in contents.results() if e.error is not None))
            if errored:
                Store(connection, contents).set_errored_aside()
    except (sqlite3.Error, OSError) as error:
        raise name_error(folder, error) from error
    finally:
        lock.release()
    return errored


def _aside(number: int) -> str:
    return f"{_STEM}-{number}.{_SUFFIX}"


def _is_taken(folder: Path, number: int) -> bool:
    names = (*(_aside(number) + tail for tail in ("", *SIDECARS)), f"{TRACES_FOLDER}-{number}")
    return any((folder / name).exists() for name in names)


def _make_one_file(path: Path) -> None:
    """Fold what a crash left beside a store into it; a damaged one stays as it was found."""
    with contextlib.suppress(sqlite3.Error, RunDamaged):
        with contextlib.closing(store.open_to_read(path)) as connection:
            read_contents(connection, path)
        with contextlib.closing(store.open_to_write(path)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE").fetchone()
