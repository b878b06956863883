"""Reading a run, whether it is being driven, was killed or is done (layer 7).

Reading takes no lock of the run and changes nothing in its folder, save for what SQLite itself
keeps beside a store that is in use.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from rollmesh.errors import RunDamaged, RunError
from rollmesh.results.result import EpisodeResult, EvalResult
from rollmesh.results.stopping import StopDecision
from rollmesh.runs import schema, store
from rollmesh.runs.checking import Contents, Start, damaged, read_contents
from rollmesh.runs.conditions import arguments_in, conditions_of, model_kwargs_of
from rollmesh.runs.identity import Json, RunIdentity
from rollmesh.runs.lock import holder_of, last_words
from rollmesh.runs.rows import FailedAttempt, episode_of

ReadT = TypeVar("ReadT")

Status = Literal["running", "finished", "stopped", "killed"]
"""`stopped` ended before its plan was done and said so, if only that its journal failed; `killed`
did not come to say anything: its process was killed, or its disk was full or gone."""


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run as its folder holds it, checked.

    Attributes:
        folder: Its folder.
        identity: What it is.
        status: What became of it.
        created_at: When it was begun, in seconds since 1970.
        starts: Its starts, in order; at least one unless the first was killed at once.
        result: Its finished episodes as a result.
        retried: Errored episodes that were set aside to be run again.
        failed_attempts: Attempts that came to nothing.
        last_at: When something was last written, in seconds since 1970.
        ended_at: When the last reply of each finished episode came, by its place in the plan.
    """

    folder: Path
    identity: RunIdentity
    status: Status
    created_at: float
    starts: tuple[Start, ...]
    result: EvalResult
    retried: tuple[EpisodeResult, ...]
    failed_attempts: tuple[FailedAttempt, ...]
    last_at: float
    ended_at: Mapping[int, float]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @property
    def facts(self) -> Mapping[str, Any]:
        """What its last start ran on."""
        return self.starts[-1].facts if self.starts else {}

    @cached_property
    def command(self) -> tuple[str, ...] | None:
        """The arguments after `rollmesh` that start it again; None where it has none."""
        for start in reversed(self.starts):
            said = start.facts.get("command")
            if said:
                return tuple(str(word) for word in said)
        return None


@dataclass(frozen=True, kw_only=True)
class RunGlance:
    """What a list of runs shows of one; its rows were counted, and not checked.

    Attributes:
        folder: Its folder.
        status: What became of it; None where it cannot be read.
        env: The env's name, by its own word where it has been built.
        typed: What the command or the plan named as env.
        model: The model's name.
        model_kwargs: What it was built with, as JSON texts.
        planned: How many episodes were planned, where that is known.
        num_episodes: How many have finished, errored ones included.
        num_errors: How many of them errored.
        num_said: Of how many the env said whether they were a success.
        num_successes: How many of these were.
        mean_return: Of those that did not error; NaN if one of their returns is, None of none.
        last_at: When something was last written, in seconds since 1970.
        decision: What the rule decided that the run was to stop by, or None; on how many episodes,
            of which others may have been played beyond.
        problem: Why it cannot be read, or None.
    """

    folder: Path
    status: Status | None = None
    env: str = ""
    typed: str = ""
    model: str = ""
    model_kwargs: Mapping[str, str] = field(default_factory=dict[str, str])
    planned: int | None = None
    num_episodes: int = 0
    num_errors: int = 0
    num_said: int = 0
    num_successes: int = 0
    mean_return: float | None = None
    last_at: float = 0.0
    decision: StopDecision | None = None
    problem: str | None = None


def read_run(folder: str | os.PathLike[str]) -> StoredRun:
    """Read the run in a folder, and check every row of it.

    Raises:
        RunError: There is no run, or it cannot be read.
        RunDamaged: Its store is not what was written.
    """
    path = Path(folder).absolute()
    is_driven = holder_of(path) is not None
    contents = _read(path, read_contents)
    failure = None if is_driven else last_words(path)
    result, starts = _result_of(path, contents, failure), contents.starts
    ended_at = {row[1]: row[-2] for row in contents.episodes}
    spoken = [start.ended_at or start.started_at for start in starts]
    return StoredRun(
        folder=path,
        identity=contents.identity,
        status=_status(
            len(result.episodes),
            contents.identity.planned,
            starts[-1:],
            is_driven=is_driven,
            failure=failure,
        ),
        created_at=contents.created_at,
        starts=starts,
        result=result,
        retried=tuple(episode_of(row) for row in contents.retried),
        failed_attempts=contents.failed_attempts,
        last_at=max([contents.created_at, *spoken, *ended_at.values()]),
        ended_at=ended_at,
    )


def list_runs(root: str | os.PathLike[str]) -> list[RunGlance]:
    """Return the runs in the folders of a folder, the latest first; damaged ones are among them.

    What is in a folder that may not be looked into nobody knows; it is left out.

    Raises:
        OSError: The folder cannot be read.
    """
    found = [p for p in Path(root).absolute().iterdir() if has_run(p)]
    return sorted((_glance(path) for path in found), key=lambda g: (-g.last_at, g.folder.name))


def has_run(folder: Path) -> bool:
    """Return whether there is a run in a folder, as far as it may be looked into."""
    return os.path.exists(folder / schema.STORE_FILE)  # noqa: PTH110 - that of Path may raise


# ---------------------------------------------------------------------------------- the file


def _read(folder: Path, read: Callable[[sqlite3.Connection, Path], ReadT]) -> ReadT:
    """Read a store where it is, or a copy of it where SQLite would have to write there first."""
    path = folder / schema.STORE_FILE
    try:
        size = path.stat().st_size
    except OSError as error:
        is_there = not isinstance(error, (FileNotFoundError, NotADirectoryError))
        what = "cannot read" if is_there else "holds no run:"
        raise RunError(str(folder), f"{what} {path.name}: {error.strerror}") from error
    if size == 0:
        raise damaged(path, "it is empty")
    try:
        with contextlib.closing(store.open_to_read(path)) as connection:
            return read(connection, path)
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise RunError(str(folder), f"another program has {path.name} locked") from error
        return _read_copy(path, read)


def _read_copy(path: Path, read: Callable[[sqlite3.Connection, Path], ReadT]) -> ReadT:
    """Read a copy: where the folder is read-only, or a crash left something to be rolled back."""
    folder = str(path.parent)
    try:
        with tempfile.TemporaryDirectory(prefix="rollmesh-") as place:
            for tail in ("", "-wal", "-journal"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(f"{path}{tail}", Path(place) / f"{path.name}{tail}")
            copied = Path(place) / path.name
            with contextlib.closing(store.open_to_write(copied)) as connection:
                return read(connection, path)
    except sqlite3.OperationalError as error:
        raise damaged(path, f"SQLite cannot open it ({error})") from error
    except OSError as error:
        raise RunError(folder, f"cannot read {path.name}: {error}") from error


# ------------------------------------------------------------------------------- what it says


def _status(
    num_episodes: int,
    planned: int | None,
    last: Sequence[Start],
    *,
    is_driven: bool,
    failure: str | None,
) -> Status:
    if is_driven:
        return "running"
    if planned is not None and num_episodes >= planned:
        return "finished"
    if not last or last[0].ended_at is None:
        return "killed" if failure is None else "stopped"
    return "finished" if planned is None and last[0].stopped is None else "stopped"


def _result_of(folder: Path, contents: Contents, failure: str | None) -> EvalResult:
    identity, starts = contents.identity, contents.starts
    episodes = tuple(sorted(contents.results(), key=lambda e: e.index))
    planned = len(episodes) if identity.planned is None else identity.planned
    facts: Mapping[str, Any] = starts[-1].facts if starts else {}
    lanes = facts.get(schema.WIDTH_FACT)
    is_short = len(episodes) < planned
    stopped = starts[-1].stopped if starts else None
    if failure is not None:
        stopped = f"the journal failed: {failure}"
    telemetry = [start.telemetry for start in starts if start.telemetry is not None]
    return EvalResult(
        episodes=episodes,
        telemetry=telemetry[-1] if telemetry else None,
        plan_seed=_plan_seed(identity),
        env=str(facts.get(schema.ENV_FACT) or identity.env),
        model=identity.model,
        num_envs=lanes if isinstance(lanes, int) else 1,
        planned=planned,
        elapsed_s=contents.elapsed_s(),
        stopped=stopped if is_short else None,
        decision=StopDecision.from_dict(facts.get(schema.DECISION_FACT)),
        plan_hash=identity.plan_hash,
        run_dir=str(folder),
        conditions=conditions_of(identity),
        model_kwargs=model_kwargs_of(identity),
        num_unwatched=contents.num_unwatched(),
    )


def _plan_seed(identity: RunIdentity) -> int | None:
    try:
        plan: Json = json.loads(identity.plan_json)
    except ValueError:
        return None
    seed = plan.get("seed") if isinstance(plan, Mapping) else None
    if isinstance(plan, Mapping) and all("seeds" in task for task in plan.get("tasks", [{}])):
        return None  # nothing follows from it
    return seed if isinstance(seed, int) else None


def _glance(folder: Path) -> RunGlance:
    try:
        is_driven = holder_of(folder) is not None
        return _read(folder, lambda connection, _: _count(connection, folder, is_driven=is_driven))
    except (RunError, sqlite3.Error, ValueError, TypeError, KeyError) as error:
        problem = error.detail if isinstance(error, RunDamaged) else str(error)
        return RunGlance(folder=folder, problem=problem)


def _count(connection: sqlite3.Connection, folder: Path, *, is_driven: bool) -> RunGlance:
    about = {name: json.loads(text) for name, text in connection.execute(schema.ALL_FACTS)}
    counts = connection.execute(schema.COUNT_EPISODES).fetchone()
    last = connection.execute(schema.LAST_START).fetchall()
    starts = [
        Start(started_at=a, ended_at=b, stopped=c, facts=json.loads(d)) for a, b, c, d in last
    ]
    facts: Mapping[str, Any] = starts[0].facts if starts else {}
    num_episodes, num_errors, num_said, num_successes, last_at, mean_return, num_nan = counts
    spoken = [start.ended_at or start.started_at for start in starts]
    return RunGlance(
        folder=folder,
        status=_status(
            num_episodes,
            about["planned"],
            starts,
            is_driven=is_driven,
            failure=None if is_driven else last_words(folder),
        ),
        env=str(facts.get(schema.ENV_FACT) or about["env"]),
        typed=about["env"],
        model=about["model"],
        model_kwargs=arguments_in(about["settings"], "model_kwargs"),
        planned=about["planned"],
        num_episodes=num_episodes,
        num_errors=num_errors,
        num_said=num_said,
        num_successes=num_successes,
        mean_return=math.nan if num_nan else mean_return,
        last_at=max(about["created_at"], *spoken, last_at or 0.0),
        decision=StopDecision.from_dict(facts.get(schema.DECISION_FACT)),
    )
