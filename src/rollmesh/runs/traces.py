"""Every step of a run as Parquet files, one a shard of episodes (layer 7).

    with StepTrace("runs/lift/traces") as trace:
        rollmesh.evaluate(model, env, episodes=100, hooks=trace)

    pandas.read_parquet("runs/lift/traces")

Columns: `plan_index`, `episode_id`, `attempt`, `task`, `seed` (null where it has more than 64 bits;
the journal has it), `t` (from 0), `reward`, `terminated`, `truncated`, `error` (of an episode that
errored), `action`, and `observation` (what the action was chosen on) where asked for. `episode_id`
is that of the journal: of an episode that was run twice, because its driver was killed before it
was acknowledged, both are here.
"""

from __future__ import annotations

import io
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmesh.ids import MINT, MintsIds
from rollmesh.runs.exporting import arrow, write_whole
from rollmesh.runs.trace_columns import column_of
from rollmesh.runtime.hooks import Hooks

if TYPE_CHECKING:
    from typing_extensions import Self

    from rollmesh.events import (
        ActionReceived,
        EpisodeCompleted,
        EpisodeErrored,
        EpisodeStarted,
        ObservationEmitted,
        SessionEnded,
        SessionFailed,
        StepCompleted,
    )
    from rollmesh.spaces.space import Space

_logger = logging.getLogger(__name__)

SHARD_EPISODES = 100
SHARD_BYTES = 1 << 28
"""A shard of large observations is written before it has all its episodes."""
CLOSE_S = 120.0
"""How long the disk may take for what is left, or for a shard while others wait."""
_QUEUED_SHARDS = 2
_MOST_SEED = 2**64 - 1
_RAGGED_BYTES = 256
"""What a value without a fixed size is taken for when a shard's size is guessed."""


class StepTrace(Hooks):
    """Hooks that keep every step of every episode that ended, in Parquet files in a folder.

    Files are written on a thread of their own. What goes wrong there is logged, and ends the trace,
    not the run.

    Guarantees: a file with a name ending in `.parquet` is whole. After a crash of this process the
    episodes of the shard that was being collected have no trace.

    Args:
        folder: Where the files go; made if it is not there.
        episodes_per_file: How many episodes a shard has.
        observations: Whether observations are kept too; they may be large.

    Attributes:
        failure: What ended the trace, or None.

    Raises:
        InvalidSpec: pyarrow is not installed.
        OSError: The folder cannot be made.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        episodes_per_file: int = SHARD_EPISODES,
        observations: bool = False,
        mint: MintsIds = MINT,
    ) -> None:
        if episodes_per_file < 1:
            raise ValueError(f"episodes_per_file wants 1 or more, got {episodes_per_file!r}")
        arrow()
        self._folder = Path(folder).absolute()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._episodes_per_file = episodes_per_file
        self._has_observations = observations
        self._mint = mint
        self._lock = threading.Lock()
        self._open: dict[str, _Episode] = {}
        self._shards: dict[tuple[Space | None, Space | None], _Shard] = {}
        self._queue: queue.Queue[_Shard | None] = queue.Queue(_QUEUED_SHARDS)
        self._writer: threading.Thread | None = None
        self.failure: Exception | None = None

    # ------------------------------------------------------------------------------- as hooks

    def episode_started(self, event: EpisodeStarted) -> None:
        """Begin to collect an episode; an earlier attempt at it that was lost is forgotten."""
        with self._lock:
            lost = [
                key for key, e in self._open.items() if e.start.episode_index == event.episode_index
            ]
            for key in lost:
                del self._open[key]
            self._open[event.episode_id] = _Episode(event)

    def observation_emitted(self, event: ObservationEmitted) -> None:
        """Keep each row for the step that follows."""
        if not self._has_observations:
            return
        for row, episode_id in enumerate(event.episode_ids):
            if episode := self._open.get(episode_id):
                episode.observation_space = event.observation_space
                episode.observations.append(event.decode(row))
                episode.nbytes += event.observation_space.codec.row_bytes or _RAGGED_BYTES

    def action_received(self, event: ActionReceived) -> None:
        """Keep each row for the step that follows."""
        for row, episode_id in enumerate(event.episode_ids):
            if episode := self._open.get(episode_id):
                episode.action_space = event.action_space
                episode.actions.append(event.decode(row))
                episode.nbytes += event.action_space.codec.row_bytes or _RAGGED_BYTES

    def step_completed(self, event: StepCompleted) -> None:
        """Keep what came of each row's action."""
        for row, episode_id in enumerate(event.episode_ids):
            if episode := self._open.get(episode_id):
                episode.rewards.append(event.rewards[row])
                episode.terminated.append(event.terminated[row])
                episode.truncated.append(event.truncated[row])

    def episode_completed(self, event: EpisodeCompleted) -> None:
        """Add an episode to its shard."""
        self._add(event.episode_id, None)

    def episode_errored(self, event: EpisodeErrored) -> None:
        """Add the steps that an errored episode came to."""
        self._add(event.episode_id, event.error)

    def session_ended(self, event: SessionEnded) -> None:
        """Write what is left."""
        del event
        self.flush()

    def session_failed(self, event: SessionFailed) -> None:
        """Write what is left."""
        del event
        self.flush()

    # ------------------------------------------------------------------------------- the files

    def flush(self, timeout_s: float | None = None) -> bool:
        """Write the shards that are not full, and return whether all are on disk in time.

        Args:
            timeout_s: How long to wait; `CLOSE_S` if left out.
        """
        with self._lock:
            shards, self._shards = list(self._shards.values()), {}
            for shard in shards:
                self._send(shard)
            writer, self._writer = self._writer, None
            if writer is None:
                return self.failure is None
            self._send(None)
        writer.join(CLOSE_S if timeout_s is None else timeout_s)
        return not writer.is_alive() and self.failure is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.flush()

    def _add(self, episode_id: str, error: str | None) -> None:
        with self._lock:
            episode = self._open.pop(episode_id, None)
            if episode is None or not episode.rewards or self.failure is not None:
                return
            episode.error = error
            key = (episode.action_space, episode.observation_space)
            shard = self._shards.setdefault(key, _Shard())
            shard.episodes.append(episode)
            shard.nbytes += episode.nbytes
            if len(shard.episodes) >= self._episodes_per_file or shard.nbytes >= SHARD_BYTES:
                self._send(self._shards.pop(key))

    def _send(self, shard: _Shard | None) -> None:
        """Give a shard to the writer, and wait while it has enough to do: memory is bounded."""
        if self.failure is not None:
            return
        if self._writer is None and shard is not None:
            self._queue = queue.Queue(_QUEUED_SHARDS)
            self._writer = threading.Thread(
                target=self._write_all, args=(self._queue,), name="rollmesh-step-trace", daemon=True
            )
            self._writer.start()
        try:
            self._queue.put(shard, timeout=CLOSE_S)
        except queue.Full:
            self._fail(TimeoutError(f"{self._folder} took no file within {CLOSE_S:g} s"))

    def _write_all(self, shards: queue.Queue[_Shard | None]) -> None:
        """Write shards until there are no more, or something goes wrong."""
        while (shard := shards.get()) is not None and self.failure is None:
            try:
                data = shard.to_parquet()
                self._folder.mkdir(parents=True, exist_ok=True)  # it may have been moved aside
                write_whole(self._folder / f"steps-{self._mint.mint()}.parquet", data)
            except Exception as error:  # noqa: BLE001 - a trace is not worth a run
                self._fail(error)
                break
        while not shards.empty():  # whoever waits for a place goes on
            shards.get()

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            _logger.error(
                "step_trace.failed folder=%s error=%r (no more steps are kept; the run goes on)",
                self._folder,
                error,
            )


@dataclass
class _Episode:
    """The steps of one attempt; the last action of an errored one may have come to nothing."""

    start: EpisodeStarted
    actions: list[Any] = field(default_factory=list[Any])
    observations: list[Any] = field(default_factory=list[Any])
    rewards: list[float] = field(default_factory=list[float])
    terminated: list[bool] = field(default_factory=list[bool])
    truncated: list[bool] = field(default_factory=list[bool])
    action_space: Space | None = None
    observation_space: Space | None = None
    error: str | None = None
    nbytes: int = 0


@dataclass
class _Shard:
    """Episodes of one action and observation space."""

    episodes: list[_Episode] = field(default_factory=list[_Episode])
    nbytes: int = 0

    def to_parquet(self) -> bytes:
        """Return the bytes of a Parquet file."""
        pa, parquet = arrow()
        columns: dict[str, Any] = {
            "plan_index": pa.array(self._repeated(lambda e: e.start.episode_index), pa.int64()),
            "episode_id": pa.array(self._repeated(lambda e: e.start.episode_id), pa.string()),
            "attempt": pa.array(self._repeated(lambda e: e.start.attempt), pa.int64()),
            "task": pa.array(self._repeated(lambda e: e.start.task), pa.string()),
            "seed": pa.array(self._repeated(_seed_of), pa.uint64()),
            "t": pa.array(self._flat(lambda e: range(len(e.rewards))), pa.int64()),
            "reward": pa.array(self._flat(lambda e: e.rewards), pa.float64()),
            "terminated": pa.array(self._flat(lambda e: e.terminated), pa.bool_()),
            "truncated": pa.array(self._flat(lambda e: e.truncated), pa.bool_()),
            "error": pa.array(self._repeated(lambda e: e.error), pa.string()),
        }
        fields = [pa.field(name, array.type) for name, array in columns.items()]
        arrays = list(columns.values())
        for name, space, values in self._values():
            one_field, array = column_of(name, space, values)
            fields.append(one_field)
            arrays.append(array)
        sink = io.BytesIO()
        table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        parquet.write_table(table, sink, compression="zstd")
        return sink.getvalue()

    def _values(self) -> list[tuple[str, Space, list[Any]]]:
        """Return name, space and values of the columns that have a space."""
        first = self.episodes[0]
        found: list[tuple[str, Space, list[Any]]] = []
        if first.action_space is not None:
            values = self._flat(lambda e: e.actions[: len(e.rewards)])
            found.append(("action", first.action_space, values))
        if first.observation_space is not None:
            values = self._flat(lambda e: e.observations[: len(e.rewards)])
            found.append(("observation", first.observation_space, values))
        return found

    def _flat(self, get: Callable[[_Episode], Iterable[Any]]) -> list[Any]:
        return [value for episode in self.episodes for value in get(episode)]

    def _repeated(self, get: Callable[[_Episode], Any]) -> list[Any]:
        return [value for e in self.episodes for value in [get(e)] * len(e.rewards)]


def _seed_of(episode: _Episode) -> int | None:
    seed = episode.start.seed
    return None if seed is None or seed > _MOST_SEED else seed
