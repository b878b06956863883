"""JSON lines for machines: one object an event, on one line each (docs/watching.md).

Every object has `event` and `time` (seconds since the Unix epoch). Numbers that JSON cannot carry
are null, as in `EvalResult.to_dict`.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from rollmesh.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollmesh.results.result import EvalResult
    from rollmesh.viewer.live.progress import News, Progress

VERSION = 1
INTERVAL_S = 10.0


class JsonLines:
    """Writes what happens as JSON objects.

    Where a journal keeps the run, an `episode` is written once it is on disk, else when it ended.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        is_stored: bool = False,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Begin with nothing written.

        Args:
            write: Writes a line; may raise, which ends the showing.
            is_stored: Whether a journal tells which episodes are on disk (`Tally.acknowledged`).
            interval_s: Seconds between two `progress` objects.
        """
        self._write = write
        self._is_stored = is_stored
        self._interval_s = interval_s
        self._written_s = 0.0

    def open(self) -> None:
        """Do nothing: the first object comes with the session."""

    def paint(self, progress: Progress, news: Sequence[News]) -> None:
        """Write what is new, and a `progress` where one is due."""
        for one in news:
            self._tell(one)
        if progress.elapsed_s >= self._written_s + self._interval_s:
            self._progress(progress)

    def close(self, progress: Progress, news: Sequence[News]) -> None:
        """Write what is new and the last `progress`."""
        for one in news:
            self._tell(one)
        self._progress(progress)

    def _tell(self, one: News) -> None:
        put = partial(self._put, one.wall_s)
        if one.episode is not None:
            if one.is_stored == self._is_stored:
                put("episode", **asdict(one.episode))
            if one.episode.error is not None and not one.is_stored:
                put(
                    "error",
                    index=one.episode.index,
                    task=one.episode.task,
                    error=one.episode.error,
                )
        elif one.worker is not None:
            put(
                "worker",
                worker=one.worker.number,
                state=one.worker.state,
                detail=one.worker.detail,
                pid=one.worker.pid,
                losses=one.worker.losses,
            )
        elif one.session is not None:
            put("session", state=one.session, detail=one.note, version=VERSION)
        else:
            put("note", text=one.note)

    def _progress(self, progress: Progress) -> None:
        self._written_s = progress.elapsed_s
        table = asdict(progress)
        del table["errors"]  # each had an object of its own
        del table["wall_s"]
        self._put(progress.wall_s, "progress", success_rate=progress.success_rate, **table)

    def _put(self, wall_s: float, event: str, **facts: Any) -> None:
        table = {"event": event, "time": round(wall_s, 3), **facts}
        self._write(json.dumps(_finite(table), allow_nan=False))


def result_line(result: EvalResult, clock: Clock = SYSTEM_CLOCK) -> str:
    """Return the last object of a run: its result, as `EvalResult.to_dict` tells it."""
    table = {"event": "result", "time": round(clock.wall_ns() / 1e9, 3), "result": result.to_dict()}
    return json.dumps(table, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {key: _finite(item) for key, item in table.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
