"""Options of `rollmesh eval` that make a run of a plan: workers, folder, rules (layer 9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from rollmesh.cli.flags import Whole, whole_numbers, whole_or_auto
from rollmesh.fleet.plan_files import load_plan
from rollmesh.fleet.settings import FleetSettings


def _flag(text: str) -> Parameter:
    return Parameter(help=text, negative=())


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """How a run is spread, kept and ended; None leaves the default."""

    plan: Annotated[
        str | None, _flag("A file with tasks and seeds (JSON, TOML, YAML, Python).")
    ] = None
    workers: Annotated[
        Literal["auto"] | int | None,
        Parameter(
            help="How many env processes run side by side; auto is what the machine holds.",
            converter=whole_or_auto,
            negative=(),
        ),
    ] = None
    run_dir: Annotated[
        str | None,
        _flag(
            "The folder to keep the run in: the same command again runs what is left. If left "
            "out, a folder under runs/ (or $ROLLMESH_RUNS) named after env and model."
        ),
    ] = None
    journal: Annotated[bool, Parameter(help="Keep the run in a folder.")] = True
    new: Annotated[bool, _flag("Start over; what is in the folder is moved aside.")] = False
    accept_changes: Annotated[
        bool,
        _flag(
            "Go on with the run in the folder though the model's code is another than in its "
            "earlier starts (it was mended)."
        ),
    ] = False
    stop_when: Annotated[
        str | None, _flag("End early once that is known, such as 'width<0.05'.")
    ] = None
    max_errors: Annotated[
        float | None,
        _flag("End once more episodes errored: a number, or a share of the planned ones below 1."),
    ] = None
    grace: Annotated[
        float | None,
        _flag("Seconds that running episodes get to end after Ctrl-C: 10 with workers, else 0."),
    ] = None
    lanes_per_worker: Annotated[Whole, _flag("Envs in each worker.")] = 1
    max_attempts: Annotated[
        Whole, _flag("How often an episode is started whose worker was lost each time.")
    ] = 3
    tune: Annotated[
        bool,
        _flag("Measure workers and model for a minute first, and choose how many and how large."),
    ] = False
    pin: Annotated[bool, _flag("Bind each worker to one core.")] = False
    model_workers: Annotated[
        Whole | None, _flag("Run the model in so many processes of its own.")
    ] = None
    max_batch: Annotated[Whole, _flag("Rows that the model is asked for at once, at most.")] = 64
    max_wait_ms: Annotated[
        float | None, _flag("How long a batch may wait to fill; learned if left out.")
    ] = None
    bucket_sizes: Annotated[
        tuple[int, ...] | None,
        Parameter(
            help="Numbers of rows that the model is called with, such as 1,4,16; smaller batches "
            "are filled up. Left out, it is called with as many as there are.",
            converter=whole_numbers,
            n_tokens=1,
            negative=(),
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `evaluate` that these options come to.

        Raises:
            InvalidSpec: A number is out of range.
        """
        wait_ms = self.max_wait_ms
        settings = FleetSettings(
            lanes_per_worker=self.lanes_per_worker,
            max_attempts=self.max_attempts,
            pin=self.pin,
            model_workers=self.model_workers,
            max_batch=self.max_batch,
            max_wait_s=None if wait_ms is None else wait_ms / 1000.0,
            bucket_sizes=self.bucket_sizes,
        )
        return {
            "plan": None if self.plan is None else load_plan(self.plan),
            "workers": self.workers,
            "new": self.new,
            "accept_changes": self.accept_changes,
            "stop_when": self.stop_when,
            "max_errors": self.max_errors,
            "fleet": settings if self.is_fleet else None,
        }

    @property
    def is_fleet(self) -> bool:
        """Whether worker processes are asked for."""
        return self.workers is not None or self.plan is not None or self.tune

    @property
    def grace_s(self) -> float:
        """How long running episodes get after the first Ctrl-C, in seconds."""
        if self.grace is not None:
            return self.grace
        return 10.0 if self.is_fleet else 0.0
