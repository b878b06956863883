"""Ways with the env in worker processes of a fleet, and the model in this one.

| way | workers | lanes of each |
|---|---|---|
| workers | 1 | those of the case |
| workers, one a lane | as many as the case has lanes | 1 |
| workers 3 | 3, for cases with one lane whose order of episodes does not matter | 1 |

A worker finds the env by name (`make_env` below) and is told the case's file and variant. A run
with workers goes on after a fault of an env; here, but for C48, it is told to end as elsewhere.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, ClassVar

from rollmesh import evaluate
from rollmesh.fleet.settings import FleetSettings
from tests.cases.case_files import loaded
from tests.cases.case_run import NO_VARIANT, CaseRun
from tests.cases.recording import Outcome
from tests.cases.served_ways import CHANGES_ITS_MODULE

BUILDER = "tests.cases.fleet_ways:make_env"


SERIAL = {
    "C41": "it reads the seeds in the order of the resets, and workers have none among them",
    "C44": "it names the episodes that had ended before, which is chance where others run beside",
    "C45": "it counts one close, and each worker closes its own env",
    "C51": "it counts one close, and each worker closes its own env",
}
"""Why a case with one lane is not spread over several workers."""


class Workers:
    """One worker process that holds all lanes."""

    name = "workers"
    is_routeless = False
    has_processes = True
    GOES_ON: ClassVar[frozenset[str]] = frozenset()
    """Cases whose run goes on after a fault of an env, as it does with workers unless told."""
    QUICK = frozenset({"C42", "C47", "C48"})
    """What is about processes or lanes; the others run with the slow tests."""

    def is_slow(self, case_id: str) -> bool:
        return case_id not in self.QUICK

    def applies(self, run: CaseRun) -> bool:
        return not run.run.get("manual")

    def refuses(self, run: CaseRun) -> str | None:
        del run
        return None

    def shape(self, run: CaseRun) -> tuple[int, int]:
        """Return how many workers there are, and the lanes of each."""
        return 1, run.lanes

    def drive(self, run: CaseRun, outcome: Outcome) -> None:
        kwargs: dict[str, Any] = {"path": run.case.__file__}
        if run.variant is not NO_VARIANT:
            kwargs["variant"] = run.variant
            if run.case.ID in CHANGES_ITS_MODULE:
                run.make_env()
        workers, lanes = self.shape(run)
        goes_on = run.case.ID in self.GOES_ON
        outcome.result = evaluate(
            run.make_policy(),
            BUILDER,
            workers=workers,
            fleet=FleetSettings(lanes_per_worker=lanes, max_attempts=3 if goes_on else 1),
            env_kwargs=kwargs,
            on_error="continue" if goes_on else "raise",
            hooks=outcome.recorder,
            **run.arguments,
        )


class WorkerALane(Workers):
    """A worker process for each lane."""

    name = "workers, one a lane"

    def is_slow(self, case_id: str) -> bool:
        del case_id
        return True

    def applies(self, run: CaseRun) -> bool:
        return run.lanes > 1 and super().applies(run)

    def shape(self, run: CaseRun) -> tuple[int, int]:
        return run.lanes, 1


class ThreeWorkers(Workers):
    """Three worker processes that take the episodes of a case as they come."""

    name = "workers 3"
    GOES_ON = frozenset({"C48"})

    def is_slow(self, case_id: str) -> bool:
        del case_id
        return True

    def applies(self, run: CaseRun) -> bool:
        return run.lanes == 1 and run.episodes > 1 and super().applies(run)

    def refuses(self, run: CaseRun) -> str | None:
        return SERIAL.get(run.case.ID)

    def shape(self, run: CaseRun) -> tuple[int, int]:
        del run
        return 3, 1


def make_env(path: str, variant: Any = NO_VARIANT, lane: int = 0) -> Any:
    """Build a lane of a case in a worker process."""
    stack = contextlib.ExitStack()  # the case stays loaded until the process ends
    case = stack.enter_context(loaded(Path(path)))
    stack.pop_all()
    return CaseRun(case=case, run={}, variant=variant).make_env(lane)
