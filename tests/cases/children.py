"""Jobs in a process of their own: cases that exit, hang, change the process or take Ctrl-C.

The child is this package's runner, asked for one job; it writes its report into a file, because its
stdout and stderr belong to the case.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cases.by_hand import SKIP, Exit
from tests.cases.case_run import NO_VARIANT
from tests.cases.drive import FAILED, OK, SKIPPED, Verdict
from tests.cases.jobs import Job

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT_S = 60.0
_SHOWN = 1500


def drive_in_child(job: Job, limit_s: float = LIMIT_S) -> Verdict:
    """Run a job in a child process and judge how that ended."""
    if job.skip is not None:
        return Verdict(status=SKIPPED, detail=job.skip)
    with tempfile.TemporaryDirectory(prefix="rollmesh-case-") as folder:
        exit_ = _run(job, Path(folder), limit_s)
    if exit_ is None:
        return Verdict(status=FAILED, detail=f"did not end within {limit_s:g} s")
    if job.judgement.judge_exit is not None:
        return _judge_exit(exit_, job.judgement.judge_exit)
    return _reported(exit_)


def _judge_exit(exit_: Exit, judge: Callable[[Exit], str | None]) -> Verdict:
    """Judge from how the process ended, and from its report where the judge leaves it at that."""
    try:
        said = judge(exit_)
    except AssertionError as error:
        return Verdict(status=FAILED, detail=f"AssertionError: {error}"[:_SHOWN], error=error)
    if said is None:
        return _reported(exit_)
    if said.startswith(SKIP):
        return Verdict(status=SKIPPED, detail=said.removeprefix(SKIP))
    return Verdict(status=OK, detail=said)


def _reported(exit_: Exit) -> Verdict:
    """Return the verdict that the child reported before it ended well."""
    if exit_.report is None:
        tail = exit_.stderr.strip()[-_SHOWN:]
        detail = f"ended with code {exit_.code} and no verdict: {tail}"
        return Verdict(status=FAILED, detail=detail)
    if exit_.code != 0:
        return Verdict(status=FAILED, detail=f"ended with code {exit_.code}: {exit_.report}")
    return Verdict(status=exit_.report["status"], detail=exit_.report["detail"])


def _run(job: Job, folder: Path, limit_s: float) -> Exit | None:
    """Run the child to its end; None if it had to be killed."""
    report, errors = folder / "report.json", folder / "stderr"
    command = [
        sys.executable,
        "-m",
        "tests.cases.runner",
        str(job.path.parent.resolve()),
        "--job",
        json.dumps(job_table(job)),
        "--report",
        str(report),
    ]
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environ = {
        **os.environ,
        "CASE_TAPE": str(folder / "tape.jsonl"),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }
    started = time.monotonic()
    with (folder / "stdout").open("wb") as out, errors.open("wb") as err:
        child = subprocess.Popen(
            command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    return Exit(
        job=job,
        code=code,
        elapsed_s=time.monotonic() - started,
        stderr=errors.read_bytes().decode("utf-8", "replace"),
        report=json.loads(report.read_text("utf-8")) if report.exists() else None,
    )


def job_table(job: Job) -> dict[str, Any]:
    """Return what tells a job from the others of its folder, as JSON gives it back."""
    table: dict[str, Any] = {
        "file": job.path.name,
        "also": job.also,
        "way": job.way,
        "full": job.full,
    }
    if job.variant is not NO_VARIANT:
        table["variant"] = job.variant
    return json.loads(json.dumps(table))


def write_report(path: Path, verdict: Verdict) -> None:
    """Write what the parent reads."""
    try:
        answer = json.loads(json.dumps(verdict.answer))
    except (TypeError, ValueError):
        answer = None
    table = {"status": verdict.status, "detail": verdict.detail, "answer": answer}
    path.write_text(json.dumps(table), encoding="utf-8")
