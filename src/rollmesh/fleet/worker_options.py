"""How the workers of a fleet run: limits, threads, cores (layer 7). Checked once, when made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rollmesh.errors import InvalidSpec
from rollmesh.limits import check_duration
from rollmesh.spaces.conformance import POLICIES, Policy
from rollmesh.transport.spin import usable_cores

WorkerState: TypeAlias = Literal["starting", "ready", "lost", "stopped"]
Tell: TypeAlias = Callable[[int, WorkerState, str, "int | None"], None]
"""Takes the number of a worker, its new state, why, and its process id."""

_LEAST_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options of the workers of a fleet, as `FleetEnvs` takes them; a user sets `FleetSettings`.

    Durations are in seconds; None is no limit.

    Attributes:
        start_s: From the start of a worker to its first word: imports, mostly.
        load_s: Building an env.
        close_s: Closing all envs; workers that take longer are killed.
        starts_at_once: Workers that start or load at the same time; None is one per core, and at
            least four.
        failed_starts: After so many failed starts in a row that had the same cause a worker is
            given up, and after twice as many whatever their causes.
        threads: Threads that numeric libraries of a worker may use, unless the user's environment
            says; None leaves them alone.
        pin: Whether each worker runs on one core of its own, in turn.
        conformance: What happens to observations that do not fit their space.
        address: Where workers dial: a socket file of our own by default.
    """

    start_s: float | None = 60.0
    load_s: float | None = 60.0
    close_s: float | None = 5.0
    starts_at_once: int | None = None
    failed_starts: int = 3
    threads: int | None = 1
    pin: bool = False
    conformance: Policy = "warn"
    address: str = "rollmesh+unix://"

    def __post_init__(self) -> None:
        for name in ("start_s", "load_s", "close_s"):
            object.__setattr__(self, name, check_duration(name, getattr(self, name)))
        for name in ("starts_at_once", "failed_starts", "threads"):
            value = getattr(self, name)
            if value is None and name != "failed_starts":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidSpec(name, f"wants a whole number of 1 or more, got {value!r}")
        if self.conformance not in POLICIES:
            raise InvalidSpec(
                "conformance", f"wants one of {', '.join(POLICIES)}, got {self.conformance!r}"
            )

    @property
    def most_starting(self) -> int:
        """How many workers may be starting at the same time."""
        return self.starts_at_once or max(_LEAST_AT_ONCE, usable_cores())
