"""What a user may set about a fleet, beyond the number of its workers (layer 7)."""

from __future__ import annotations

from dataclasses import dataclass

from rollmesh.errors import InvalidSpec


@dataclass(frozen=True, kw_only=True)
class FleetSettings:
    """How workers, and the model that they share, are run; the defaults are meant to do.

    Attributes:
        lanes_per_worker: Envs in each worker process.
        starts_at_once: How many workers may be starting at the same time; None: as many as there
            are cores, and at least four.
        max_attempts: How often an episode is started at most whose worker was lost each time.
        threads: Threads that numeric libraries in a worker may use (OMP and its kin), unless the
            environment says; None leaves them alone.
        pin: Whether each worker is bound to one core, in turn.
        model_workers: Processes that the model is run in; None runs it in this one.
        max_batch: Rows that the model is asked for at once, at most; 1 asks row by row.
        max_wait_s: How long the first row of a batch may wait, in seconds; None learns it from
            arrivals and from what a call costs.
        bucket_sizes: Numbers of rows that the model is called with, ascending; smaller batches are
            filled up. None calls it with as many as there are.

    Raises:
        InvalidSpec: A number is out of range.
    """

    lanes_per_worker: int = 1
    starts_at_once: int | None = None
    max_attempts: int = 3
    threads: int | None = 1
    pin: bool = False
    model_workers: int | None = None
    max_batch: int = 64
    max_wait_s: float | None = None
    bucket_sizes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("lanes_per_worker", "max_attempts", "max_batch"):
            _check(name, getattr(self, name))
        for name in ("starts_at_once", "threads", "model_workers"):
            if getattr(self, name) is not None:
                _check(name, getattr(self, name))
        wait = self.max_wait_s
        if wait is not None:
            _check_wait(wait)
        sizes = self.bucket_sizes
        if sizes is not None and (not sizes or min(sizes) < 1 or list(sizes) != sorted(set(sizes))):
            raise InvalidSpec("fleet.bucket_sizes", f"wants ascending ints from 1, got {sizes!r}")


def _check_wait(value: object) -> None:
    if not (isinstance(value, (int, float)) and 0 <= value < float("inf")):
        raise InvalidSpec("fleet.max_wait_s", f"wants seconds from 0, or None, got {value!r}")


def _check(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidSpec(f"fleet.{name}", f"wants an int of 1 or more, got {value!r}")
