"""What all observers share: a library that may be missing, and an end (layer 7)."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollmesh.errors import InvalidSpec
from rollmesh.results.stats import Interval, mean, stratified_interval, wilson_interval
from rollmesh.runtime.hooks import Hooks

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from rollmesh.events import EpisodeCompleted, EpisodeErrored, TelemetrySnapshot

PHASES = {"env.reset": "reset", "model.predict": "predict", "env.step": "step"}
"""Names of the calls of a run, by the operation that telemetry knows them as."""


class Observer(Hooks):
    """A hooks object with an end; use it as a context manager, or call `close` after the run."""

    def close(self) -> None:
        """Send what is left and let go of what is held; may be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def library(module: str, extra: str) -> Any:
    """Import a library that comes with an extra.

    Raises:
        InvalidSpec: It is not installed, or broken; the sentence says what to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise InvalidSpec(
            extra,
            f"needs the package {module.partition('.')[0]}, which cannot be imported ({error}); "
            f"install it with: pip install 'rollmesh[{extra}]'",
        ) from error


@dataclass(kw_only=True)
class Numbers:
    """The numbers a summary is made of, 9 bytes an episode.

    Attributes:
        returns: Total rewards of finished episodes, by task.
        successes: How many of the episodes whose env says succeeded.
        judged: How many that are.
        errored: How many episodes errored.
        steps: Env steps of all episodes.
    """

    returns: dict[str, array[float]] = field(default_factory=dict[str, "array[float]"])
    successes: int = 0
    judged: int = 0
    errored: int = 0
    steps: int = 0

    @property
    def ended(self) -> int:
        """How many episodes ended."""
        return sum(map(len, self.returns.values())) + self.errored

    def add(self, event: EpisodeCompleted) -> None:
        """Count an episode that finished."""
        self.returns.setdefault(event.task, array("d")).append(event.total_reward)
        self.steps += event.steps
        if event.success is not None:
            self.judged += 1
            self.successes += event.success

    def add_errored(self, event: EpisodeErrored) -> None:
        """Count an episode that was spoiled."""
        self.errored += 1
        self.steps += event.steps

    def summary(self) -> dict[str, float]:
        """Return rates and means with the ends of their intervals, under plain names."""
        table: dict[str, float] = {
            "episodes": self.ended,
            "errored": self.errored,
            "steps": self.steps,
        }
        if self.judged:
            table["success_rate"] = self.successes / self.judged
            table |= _ends("success_rate", wilson_interval(self.successes, self.judged))
        average = mean([one for returns in self.returns.values() for one in returns])
        if average is not None:
            table["mean_return"] = average
            table |= _ends("mean_return", stratified_interval(self.returns.values()))
        return table


def _ends(name: str, interval: Interval | None) -> dict[str, float]:
    if interval is None:
        return {}
    return {f"{name}_low": interval.low, f"{name}_high": interval.high}


def phase_numbers(snapshot: TelemetrySnapshot) -> dict[str, float]:
    """Return the median and 99th percentile of each kind of call, in ms, under plain names."""
    table: dict[str, float] = {}
    for row in snapshot.rows:
        name = PHASES.get(row.operation)
        if name is not None and row.metric == "rpc.total":
            table[f"{name}_p50_ms"] = row.p50
            table[f"{name}_p99_ms"] = row.p99
    return table
