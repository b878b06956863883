"""Options of `rollmesh eval` that have somebody else watch: numbers, trackers, traces (layer 9)."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rollmesh.cli.flags import Whole
from rollmesh.errors import InvalidSpec

Tracker = Literal["wandb", "mlflow", "tensorboard", "opentelemetry"]


@dataclass(frozen=True, kw_only=True)
class WatchFlags:
    """Who watches a run; see docs/watching.md."""

    prometheus: Annotated[
        Whole | None,
        Parameter(help="Serve the run's numbers to Prometheus at this port of 127.0.0.1."),
    ] = None
    track: Annotated[
        tuple[Tracker, ...],
        Parameter(help="Log the run there; may be given several times.", negative=()),
    ] = ()
    trace: Annotated[
        bool,
        Parameter(help="Keep every step in Parquet files in the run's folder.", negative=()),
    ] = False

    @contextlib.contextmanager
    def hooks(self, folder: Path | None) -> Generator[list[object]]:
        """Open what is asked for, and close it after the run.

        Raises:
            InvalidSpec: A library is missing, a port is taken, or a trace has no folder to go to.
        """
        from rollmesh import observers

        with contextlib.ExitStack() as stack:
            opened: list[object] = []
            if self.prometheus is not None:
                opened.append(
                    stack.enter_context(observers.open("prometheus", port=self.prometheus))
                )
            opened.extend(stack.enter_context(observers.open(name)) for name in self.track)
            if self.trace:
                if folder is None:
                    raise InvalidSpec(
                        "--trace", "goes into the run's folder; leave out --no-journal"
                    )
                from rollmesh.runs.moving import TRACES_FOLDER
                from rollmesh.runs.traces import StepTrace

                trace = StepTrace(folder / TRACES_FOLDER)
                stack.callback(trace.flush)
                opened.append(trace)
            yield opened
