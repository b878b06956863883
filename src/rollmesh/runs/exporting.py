"""A run for other tools: its episodes as CSV, Parquet or JSON (layer 7).

Parquet needs pyarrow, from the extra `parquet`; it is imported when it is asked for.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from rollmesh.errors import InvalidSpec
from rollmesh.results.result import EpisodeResult
from rollmesh.runs.reading import StoredRun
from rollmesh.runs.summary import to_dict
from rollmesh.spaces.conformance import OddObservations

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

Format = Literal["csv", "parquet", "json"]
COLUMNS = tuple(field.name for field in fields(EpisodeResult))
"""The columns of CSV and Parquet: the fields of an `EpisodeResult`."""
_LINE_END = "\r\n"


def export_run(run: StoredRun, form: Format) -> bytes:
    """Return the episodes of a run as the bytes of a file.

    JSON holds everything that is known of the run. In CSV a NaN reads `nan`, an unknown value is
    empty, and `causes` and `odd_observations` are JSON lists.

    Raises:
        InvalidSpec: Parquet is asked for, and pyarrow is not installed.
    """
    if form == "json":
        return (json.dumps(to_dict(run), indent=2, allow_nan=False) + "\n").encode()
    if form == "csv":
        return _csv(run.result.episodes).encode()
    return _parquet(run)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all: a temporary one, synced and renamed.

    Raises:
        OSError: It cannot be written; it names the file that was asked for.
    """
    if not path.name or path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError):
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise


def arrow() -> tuple[ModuleType, ModuleType]:
    """Return the modules `pyarrow` and `pyarrow.parquet`.

    Raises:
        InvalidSpec: They are not installed.
    """
    try:
        import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
        import pyarrow.parquet as pq  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise InvalidSpec(
            "parquet", f"wants pyarrow ({error}); install it with pip install 'rollmesh[parquet]'"
        ) from error
    return pa, pq


def _csv(episodes: tuple[EpisodeResult, ...]) -> str:
    rows: list[str] = []
    # written with "\r\n" at the end, so that a cell with either of the two is quoted
    writer = csv.writer(_Rows(rows.append), lineterminator=_LINE_END)
    writer.writerow(COLUMNS)
    for episode in episodes:
        writer.writerow([_cell(getattr(episode, name)) for name in COLUMNS])
    return "".join([f"{row.removesuffix(_LINE_END)}\n" for row in rows])


class _Rows:
    """A file whose lines are taken one by one."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self.write = write


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        plain = [asdict(item) if isinstance(item, OddObservations) else item for item in items]
        return json.dumps(plain) if plain else ""
    return value


def _parquet(run: StoredRun) -> bytes:
    pa, parquet = arrow()
    episodes = run.result.episodes
    is_wide = any(e.seed is not None and e.seed >= 2**63 for e in episodes)
    kinds = {
        "index": pa.int64(),
        "seed": pa.string() if is_wide else pa.int64(),
        "env_index": pa.int64(),
        "episode_id": pa.string(),
        "steps": pa.int64(),
        "total_reward": pa.float64(),
        "terminated": pa.bool_(),
        "truncated": pa.bool_(),
        "success": pa.bool_(),
        "duration_s": pa.float64(),
        "error": pa.string(),
        "attempts": pa.int64(),
        "causes": pa.list_(pa.string()),
        "task": pa.string(),
    }
    columns = {
        name: pa.array([getattr(e, name) for e in episodes], kind)
        for name, kind in kinds.items()
        if name != "seed"
    }
    odd = pa.struct({"kind": pa.string(), "path": pa.string(), "count": pa.int64()}.items())
    told = [[asdict(one) for one in e.odd_observations] for e in episodes]
    columns["odd_observations"] = pa.array(told, pa.list_(odd))
    seeds = [str(e.seed) if is_wide and e.seed is not None else e.seed for e in episodes]
    columns["seed"] = pa.array(seeds, kinds["seed"])
    about = {"plan_hash": run.identity.plan_hash, "env": run.result.env, "model": run.result.model}
    table = pa.table(columns).replace_schema_metadata(
        {f"rollmesh.{name}": text for name, text in about.items()}
    )
    sink = io.BytesIO()
    parquet.write_table(table, sink)
    return sink.getvalue()
