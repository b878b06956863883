"""Jobs: a case, a variant, an `also` entry and a way make one line of the runner's output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cases.all_ways import WAY_OF, WAYS
from tests.cases.case_files import CaseFile
from tests.cases.case_run import CORNER_OF, NO_VARIANT, CaseRun, default_variants
from tests.cases.judgements import BY_FILE, JUDGEMENTS, Judgement
from tests.cases.served_ways import SLOW_IN_CHILD

BY_HAND = "by hand"

_DANGEROUS = re.compile(
    r"os\._exit|sys\.exit|os\.kill|os\.abort|os\.fork|signal\.signal|KeyboardInterrupt"
    r"|sleep\(\s*(?:[3-9]\d|\d{3,})|while True|os\.chdir|os\.environ\[|os\.dup2"
    r"|sys\.std(?:out|err) *=|time\.time *=|setrlimit|multiprocessing|atexit"
)
"""What a case does that could harm or hold up the process that runs it."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One thing to run.

    Attributes:
        path: The case file.
        id: As in `C01`.
        variant: An entry of the case's `variants`, or `NO_VARIANT`.
        also: Which entry of the case's `also` changes its `RUN`; None: none does.
        what: That entry, in short.
        way: The name of the way.
        skip: Why it is not run, or None.
        needs_child: Whether it gets a process of its own.
        full: Whether slow cases have their full size.
        is_slow: Whether it belongs to the slow runs.
        is_slow_way: Whether its way makes it one of them, in its quick size too.
    """

    path: Path
    id: str
    variant: Any = NO_VARIANT
    also: int | None = None
    what: str = ""
    way: str = ""
    skip: str | None = None
    needs_child: bool = False
    full: bool = False
    is_slow: bool = False
    is_slow_way: bool = False

    @property
    def label(self) -> str:
        """What a line of output begins with."""
        variant = "" if self.variant is NO_VARIANT else str(self.variant)
        return " ".join(part for part in (self.id, variant, self.what, self.way) if part)

    @property
    def act(self) -> Callable[[CaseRun], str | None] | None:
        """What drives and judges it, where it is an extra part of its case."""
        return (self.judgement.extra or {}).get(self.what) if self.way == BY_HAND else None

    @property
    def judgement(self) -> Judgement:
        """How it is prepared and judged."""
        return judgement_of(self.id)


def judgement_of(case_id: str) -> Judgement:
    """Return the judgement of a case; that of its file where there is no entry."""
    return JUDGEMENTS.get(case_id, BY_FILE)


def jobs_of(case: CaseFile, *, full: bool = False) -> list[Job]:
    """Return all jobs of a case, at least one."""
    judgement = judgement_of(case.id)
    all_jobs = [
        job
        for also, run_dict in _runs(case)
        for variant in _variants(case)
        for job in _jobs(case, also, run_dict, variant, full=full)
    ]
    found = _told_apart(all_jobs, case)
    if not found:
        plain = CaseRun(case=case.module, run=case.run)
        reason = (
            judgement.skips(plain, "") or "it is to be driven by hand, and no existing way does"
        )
        found.append(Job(path=case.path, id=case.id, skip=reason))
    found.extend(
        Job(path=case.path, id=case.id, what=what, way=BY_HAND, full=full)
        for what in judgement.extra or ()
    )
    return found


def _jobs(
    case: CaseFile, also: int | None, run_dict: dict[str, Any], variant: Any, *, full: bool
) -> Iterator[Job]:
    judgement = judgement_of(case.id)
    run = CaseRun(case=case.module, run=run_dict, variant=variant, full=full)
    slow = judgement.is_slow is not None and judgement.is_slow(variant)
    if judgement.needs_child is not None:
        child = judgement.needs_child(variant)
    else:
        child = _DANGEROUS.search(case.source) is not None
    for way, reason in _ways(run, judgement):
        skip = judgement.skips(run, way) or reason or _nothing_to_judge(case, judgement)
        if skip is None and slow and not full:
            skip = "slow; run it with --full"
        yield Job(
            path=case.path,
            id=case.id,
            variant=variant,
            also=also,
            what="" if also is None else _short(case.run["also"][also]),
            way=way,
            skip=skip,
            needs_child=child,
            full=full,
            is_slow=slow,
            is_slow_way=way in WAY_OF
            and (WAY_OF[way].is_slow(case.id) or (child and way in SLOW_IN_CHILD)),
        )


def _ways(run: CaseRun, judgement: Judgement) -> Iterator[tuple[str, str | None]]:
    """Yield the ways that apply, with the reason why one cannot be taken."""
    if judgement.drive is not None:
        yield BY_HAND, None
        return
    lacks = None if run.maker else f"it has none of {', '.join(CORNER_OF)}"
    for way in WAYS:
        if way.applies(run):
            yield way.name, way.refuses(run) or (None if way.is_routeless else lacks)


def _nothing_to_judge(case: CaseFile, judgement: Judgement) -> str | None:
    if judgement.judge is not None or judgement.judge_exit is not None:
        return None
    if any(hasattr(case.module, name) for name in ("check", "check_error")):
        return None
    return None if case.run.get("expect_error") else "has no check"


def _told_apart(jobs: Iterable[Job], case: CaseFile) -> list[Job]:
    """Drop jobs that differ from an earlier one in the mode alone, where the way has none."""
    seen: set[str] = set()
    kept: list[Job] = []
    for job in jobs:
        changes = {} if job.also is None else dict(case.run["also"][job.also])
        changes.pop("mode", None)
        changes.pop("modes", None)
        key = repr((job.variant, changes, job.way))
        if key not in seen:
            seen.add(key)
            kept.append(job)
    return kept


def _runs(case: CaseFile) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """Yield the plain run and one run per `also` entry."""
    plain = {key: value for key, value in case.run.items() if key != "also"}
    yield None, plain
    for index, changes in enumerate(case.run.get("also", ())):
        yield index, {**plain, **changes}


def _variants(case: CaseFile) -> list[Any]:
    """Return the variants, and before them the plain case unless a variant is just that."""
    variants = list(case.run.get("variants", ()))
    defaults = default_variants(case.module)
    if not variants or (defaults and not any(default in variants for default in defaults)):
        return [NO_VARIANT, *variants]
    return variants


def run_of(job: Job, case: Any) -> CaseRun:
    """Return the run of a job, over a module that was loaded for it alone."""
    run = {key: value for key, value in case.RUN.items() if key != "also"}
    if job.also is not None:
        run.update(case.RUN["also"][job.also])
    return CaseRun(
        case=case,
        run=run,
        variant=job.variant,
        full=job.full,
        limits=job.judgement.limits,
    )


def _short(changes: dict[str, Any]) -> str:
    """Return an `also` entry in short; modes are part of the way's name."""
    parts = [
        f"{key}={value if len(repr(value)) < 24 else '…'}"
        for key, value in changes.items()
        if key not in {"mode", "modes"}
    ]
    return ",".join(parts).replace(" ", "")
