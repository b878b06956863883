"""Reads the arguments of `evaluate` that make a run of a plan (layer 8)."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rollmesh.arguments import EpisodePlan, optional_count, plain_int
from rollmesh.errors import InvalidSpec
from rollmesh.fleet.plan import Plan, Task
from rollmesh.fleet.settings import FleetSettings

if TYPE_CHECKING:
    from rollmesh.results.stopping import StopRule
    from rollmesh.runs.reading import StoredRun

PlanArgument: TypeAlias = "Plan | str | os.PathLike[str] | None"
Workers: TypeAlias = "int | Literal['auto'] | None"
PathArgument: TypeAlias = "str | os.PathLike[str] | None"

DRAWN_SEEDS = 2**31


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """The arguments of a planned run, as they were given.

    Attributes:
        plan: A plan, or its file.
        workers: How many processes.
        run_dir: Where it is kept.
        new: Whether what is there is moved aside.
        accept_changes: Whether a run goes on whose model or env is another under the same name.
        stop_when: The rule that ends it early, as text.
        max_errors: The failure budget.
        fleet: How workers are run.
        command: The command line that it stands for.
    """

    plan: PlanArgument = None
    workers: Workers = None
    run_dir: PathArgument = None
    new: bool = False
    accept_changes: bool = False
    stop_when: str | None = None
    max_errors: float | None = None
    fleet: FleetSettings | None = None
    command: Sequence[str] | None = None

    def __post_init__(self) -> None:
        workers: Any = self.workers
        if workers != "auto":
            optional_count("workers", workers)
        fleet: Any = self.fleet
        if fleet is not None and not isinstance(fleet, FleetSettings):
            raise InvalidSpec("fleet", f"wants FleetSettings, got {fleet!r}")
        if fleet is not None and self.workers is None and self.plan is None:
            raise InvalidSpec("fleet", "says how workers are run; give workers as well")
        if self.new and self.run_dir is None:
            raise InvalidSpec("new", "starts a run folder over; give run_dir as well")
        if self.accept_changes and self.run_dir is None:
            raise InvalidSpec(
                "accept_changes", "goes on with the run in a folder; give run_dir as well"
            )

    @property
    def is_wanted(self) -> bool:
        """Whether any of them asks for more than a loop."""
        return any(
            one is not None
            for one in (self.plan, self.workers, self.run_dir, self.stop_when, self.max_errors)
        )

    def read_plan(self, loose: EpisodePlan | None) -> tuple[Plan, bool]:
        """Return the plan: the one that was given, or the one that other arguments describe.

        Without a seed a stored run's is taken over, else one is drawn: then the second is True.

        Raises:
            InvalidSpec: The file holds no plan.
        """
        if loose is None:
            given = self.plan
            if isinstance(given, Plan):
                return given, False
            from rollmesh.fleet.plan_files import load_plan

            assert given is not None  # noqa: S101 - one of the two is there
            return load_plan(Path(given)), False
        seed, is_drawn = loose.base_seed, False
        if not loose.is_seeded:
            stored = self.read_stored()
            seed = None if stored is None else stored.result.plan_seed
            if seed is None:
                seed, is_drawn = secrets.randbelow(DRAWN_SEEDS), True
        task = Task(episodes=loose.count, seeds=loose.seeds, options=loose.options)
        return Plan(tasks=(task,), seed=seed or 0), is_drawn

    def read_stored(self) -> StoredRun | None:
        """Return the run that is in the folder and is to be gone on with, or None.

        Raises:
            RunError: There is one, and it cannot be read.
        """
        if self.run_dir is None or self.new:
            return None
        from rollmesh.runs.reading import has_run, read_run

        folder = Path(self.run_dir)
        return read_run(folder) if has_run(folder) else None

    def count_workers(self) -> int:
        """Return how many workers there may be; 1 where nobody said."""
        if self.workers == "auto":
            from rollmesh.fleet.machine import default_workers

            return default_workers()
        return int(self.workers or 1)

    def read_stop_rule(self) -> StopRule | None:
        """Return the rule.

        Raises:
            InvalidSpec: It is no rule.
        """
        if self.stop_when is None:
            return None
        from rollmesh.results.stopping import StopRule

        return StopRule.parse(self.stop_when)

    def read_max_errors(self, planned: int) -> int | None:
        """Return the largest number of errored episodes that does not end the run.

        Raises:
            InvalidSpec: It is neither a number of episodes nor a share below 1.
        """
        most = self.max_errors
        if most is None:
            return None
        if isinstance(most, float) and 0 < most < 1:
            return math.floor(Fraction(str(most)) * planned)  # 0.29 of 100 is 29, not 28.99…
        if isinstance(most, float) and most.is_integer():
            most = int(most)
        count = plain_int("max_errors", most)
        if count < 0:
            raise InvalidSpec("max_errors", f"wants 0 or more, or a share below 1, got {count}")
        return count
