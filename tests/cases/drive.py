"""Drives one job: loads the case anew, runs it one way, and judges what came of it."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollmesh import EnvFailed
from tests.cases.all_ways import WAY_OF
from tests.cases.case_files import environment, loaded
from tests.cases.case_run import CaseRun
from tests.cases.jobs import Job, run_of
from tests.cases.judgements import Judgement
from tests.cases.judging import Judge, judge_by_file
from tests.cases.recording import Outcome, Quiet, Recorder, partial_result, warnings_of_rollmesh

OK, FAILED, SKIPPED = "ok", "FAILED", "skipped"

UNSCORED = "is for lanes that can idle: those of a vector env run on, unscored (rule R26)"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a line of output says.

    Attributes:
        status: `ok`, `FAILED` or `skipped`.
        detail: Why, or which of several right outcomes it was.
        error: What made it fail, where that is known.
        answer: What a case driven by hand returned.
    """

    status: str
    detail: str = ""
    error: BaseException | None = None
    answer: Any = None

    @property
    def text(self) -> str:
        """The line without its label."""
        detail = " ".join(self.detail.split())
        if not detail:
            return self.status
        return f"{self.status} ({detail})" if self.status == OK else f"{self.status}: {detail}"


class TookTooLong(BaseException):
    """Raised by the alarm of `within`; no `except Exception` of a case stops it."""


def drive(job: Job) -> Verdict:
    """Run a job in this process."""
    if job.skip is not None:
        return Verdict(status=SKIPPED, detail=job.skip)
    judge = job.judgement.judge or judge_by_file
    try:
        with prepared(job) as run, job.judgement.around(run):
            if job.act is not None:
                return Verdict(status=OK, detail=job.act(run) or "")
            outcome = perform(job, run)
            try:
                detail = judge(outcome)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - told by the runner
                if is_about_unscored(outcome, judge):
                    return Verdict(status=SKIPPED, detail=UNSCORED)
                return failed(error, outcome.answer)
            return Verdict(
                status=OK,
                detail=detail or _ignored(run, job.judgement),
                answer=outcome.answer,
            )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - told by the runner
        return failed(error)


def failed(error: BaseException, answer: Any = None) -> Verdict:
    """Return the verdict that an error makes."""
    detail = f"{type(error).__name__}: {error}"[:1500]
    return Verdict(status=FAILED, detail=detail, error=error, answer=answer)


@contextlib.contextmanager
def prepared(job: Job) -> Iterator[CaseRun]:
    """Load the case of a job, with the environment it wants, and yet nothing of an earlier run."""
    quick = {} if job.full else dict(job.judgement.quick or {})
    changes: dict[str, str | None] = {k: v for k, v in quick.items() if k not in os.environ}
    with environment(changes), loaded(job.path) as case:
        run = run_of(job, case)
        with (
            environment({str(k): str(v) for k, v in run.run.get("environ", {}).items()}),
            tape_of_all_processes(job),
        ):
            yield run


@contextlib.contextmanager
def tape_of_all_processes(job: Job) -> Iterator[None]:
    """Have env and model write on a tape that other processes can write on, where there are any."""
    if not getattr(WAY_OF.get(job.way), "has_processes", False) or "CASE_TAPE" in os.environ:
        yield
        return
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rollmesh-tape-"))
        stack.enter_context(environment({"CASE_TAPE": str(Path(folder) / "tape.jsonl")}))
        yield


def perform(job: Job, run: CaseRun) -> Outcome:
    """Run the case and return what came of it; an error of the run is part of that."""
    recorder = Recorder() if job.judgement.keeps_steps else Quiet()
    outcome = Outcome(run=run, way=job.way, recorder=recorder)
    common = _common_of(run)
    if common is not None:
        read_tape(common, clear=True)
    started = time.monotonic()
    with warnings_of_rollmesh() as outcome.lines, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Gymnasium says of a case's spaces
        try:
            if job.judgement.drive is not None:
                job.judgement.drive(run, outcome)
            else:
                WAY_OF[job.way].drive(run, outcome)
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - judged
            outcome.error = error
            outcome.result = partial_result(error) or outcome.result
    outcome.elapsed_s = time.monotonic() - started
    if common is not None:
        outcome.tape = read_tape(common)
    return outcome


def read_tape(common: Any, **options: Any) -> list[dict[str, Any]]:
    """Return what was noted; the cases leave a tape in a file open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        return common.tape(**options)


def _common_of(run: CaseRun) -> Any:
    """Return the case's own `common`, or what it took from there."""
    return run.case if hasattr(run.case, "tape") else None


def is_about_unscored(outcome: Outcome, judge: Judge) -> bool:
    """Return whether only what unscored lanes did made a case fail.

    The lanes of a vector env step together, so that one without a planned episode runs unscored
    (rule R26). A case that counts every env call, or whose env knows its planned seeds only, is for
    lanes that can idle: without those calls it holds, or the env failed in one of them.
    """
    seeds = outcome.run.seeds
    if "vector" not in outcome.way or seeds is None:
        return False
    scored, unscored = _split_tape(outcome.tape, seeds)
    if not unscored:
        return False
    if outcome.error is not None:
        last = [row for row in outcome.tape if row["who"] == "env"][-1]
        return isinstance(outcome.error, EnvFailed) and last in unscored
    try:
        judge(replace(outcome, tape=scored))
    except (Exception, SystemExit):  # noqa: BLE001 - the first failure is told
        return False
    return True


def _split_tape(
    tape: list[dict[str, Any]], seeds: list[Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Part what envs noted after a reset with a seed that nobody planned from the rest."""
    kept: list[dict[str, Any]] = []
    dropped: list[dict[str, Any]] = []
    unscored: set[Any] = set()
    for row in tape:
        lane = row.get("lane")
        if row["who"] == "env" and row["ev"] == "reset":
            (unscored.discard if row["seed"] in seeds else unscored.add)(lane)
        is_dropped = row["who"] == "env" and lane is not None and lane in unscored
        (dropped if is_dropped else kept).append(row)
    return kept, dropped


def _ignored(run: CaseRun, judgement: Judgement) -> str:
    """Say which keys of `RUN` were not acted upon, where no judgement knows the case."""
    if judgement.judge is not None or not run.ignored:
        return ""
    return f"RUN keys not acted upon: {', '.join(run.ignored)}"


@contextlib.contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Interrupt what takes too long, on the main thread of a POSIX system.

    Raises:
        TookTooLong: The time is up.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return

    def ring(*_: object) -> None:
        raise TookTooLong(f"did not end within {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
