"""Runs every case file of a folder in every way there is.

`python -m tests.cases.runner FOLDER` prints a line per case, variant and way:

    C01 next_step vector: ok
    C33 20 hosted: FAILED: AssertionError: …
    C59: skipped: needs a server and a client

The exit code is 0 only if something ran and nothing failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.cases.case_files import Unloadable, case_paths, read_case
from tests.cases.children import LIMIT_S, drive_in_child, job_table, write_report
from tests.cases.drive import FAILED, OK, SKIPPED, TookTooLong, Verdict, drive, failed, within
from tests.cases.jobs import Job, jobs_of

FULL_LIMIT_S = 600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the arguments name and return the exit code."""
    options = _read(argv)
    if options.job is not None:
        return _run_as_child(options.folder, options.job, options.report)
    tally: Counter[str] = Counter()
    for path in case_paths(options.folder):
        for job, verdict in _verdicts(path, options.only, full=options.full):
            tally[verdict.status] += 1
            print(f"{job}: {verdict.text}", flush=True)
    print(f"{tally[OK]} ok, {tally[FAILED]} failed, {tally[SKIPPED]} skipped")
    if not tally[OK] and not tally[FAILED]:
        print(f"no case of {options.folder} ran")
        return 1
    return 1 if tally[FAILED] else 0


def _verdicts(path: Path, only: str | None, *, full: bool) -> Iterator[tuple[str, Verdict]]:
    """Yield the label and verdict of every job of a file."""
    case = read_case(path)
    if isinstance(case, Unloadable):
        if only is None:
            yield path.name, Verdict(status=FAILED, detail=f"cannot be loaded: {case.reason}")
        return
    if only is not None and case.id.lower() != only.lower():
        return
    for job in jobs_of(case, full=full):
        yield job.label, run(job)


def run(job: Job) -> Verdict:
    """Run a job where it belongs, and never for ever."""
    limit_s = FULL_LIMIT_S if job.full else LIMIT_S
    if job.needs_child:
        return drive_in_child(job, limit_s)
    try:
        with within(limit_s):
            return drive(job)
    except TookTooLong as error:
        return failed(error)


def _run_as_child(folder: Path, text: str, report: Path) -> int:
    """Run the one job that the parent asked for, and report."""
    asked = json.loads(text)
    case = read_case(folder / asked["file"])
    if not isinstance(case, Unloadable):
        for job in jobs_of(case, full=asked["full"]):
            if job_table(job) == asked:
                return _report(job, report)
    raise SystemExit(f"there is no job {text} in {folder}")


def _report(job: Job, report: Path) -> int:
    verdict = drive(job)
    write_report(report, verdict)
    if job.judgement.judge_exit is not None and verdict.error is not None:
        raise verdict.error  # it ends as a user's script would
    return 0


def _read(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cases.runner", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the case files lie")
    parser.add_argument("--only", metavar="ID", help="one case, as in C01")
    parser.add_argument("--full", action="store_true", help="slow cases too, in their full size")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if not options.folder.is_dir():
        parser.error(f"there is no folder {options.folder}")
    return options


if __name__ == "__main__":
    sys.exit(main())
