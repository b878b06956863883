"""Cases that are not one run of a route: calls out of order, limits of many values, Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollmesh import InvalidSpec, Limits, OperationTimeout, RouteCancelled, Session, evaluate
from tests.cases.case_run import CaseRun
from tests.cases.recording import Outcome

if TYPE_CHECKING:
    from tests.cases.jobs import Job


SKIP = "skip: "
"""What begins the answer of a judge that saw what no existing way can do better."""


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a child process ended.

    Attributes:
        job: What it ran.
        code: Its exit code.
        elapsed_s: How long it lived, in seconds.
        stderr: What it wrote there.
        report: What it reported before, or None.
    """

    job: Job
    code: int
    elapsed_s: float
    stderr: str
    report: dict[str, Any] | None


# ---------------------------------------------------------------------------- C64, C68


def drive_c64(run: CaseRun, outcome: Outcome) -> None:
    """Run a step of 0.2 s under each limit; note the steps made, or the error."""
    seen: list[tuple[Any, Any]] = []
    for value in run.run["values"]:
        try:
            result = evaluate(
                run.make_policy(),
                run.factory,
                seeds=[0],
                max_episode_steps=1,
                limits=Limits(env_step_s=value),
            )
        except (InvalidSpec, OperationTimeout) as error:
            seen.append((value, error))
        else:
            seen.append((value, result.total_steps))
    outcome.answer = seen


def drive_c68(run: CaseRun, outcome: Outcome) -> None:
    """Make the calls in the order given; note for each what it raised, or None."""
    session = Session(run.make_model(), run.factory)
    seen: list[tuple[str, BaseException | None]] = []
    for call in run.run["calls"]:
        if call == "render":  # a session has none
            continue
        try:
            getattr(session, call)()
        except Exception as error:  # noqa: BLE001 - judged later
            seen.append((call, error))
        else:
            seen.append((call, None))
    outcome.answer = seen


# ---------------------------------------------------------------------------- C58

_FEW = 4


class Raising:
    """A caller's hook that fails at every step."""

    def step_completed(self, event: Any) -> None:
        raise RuntimeError("the caller's own hook is broken")


def drive_c58(run: CaseRun, outcome: Outcome) -> None:
    """Run as a user's script would: nothing is caught here but to note the partial result."""
    seeds, variant = run.seeds, run.variant
    assert seeds is not None
    if variant == "hook":
        seeds = seeds[:_FEW]
        outcome.result = evaluate(
            run.make_policy(), run.factory, seeds=seeds, num_envs=run.lanes, hooks=Raising()
        )
        outcome.answer = {"episodes": len(outcome.result.episodes), "lines": outcome.lines}
        return
    if variant == "forget":
        session = Session(run.make_model(), run.factory)
        session.reset(seed=0)
        session.step()
        outcome.answer = {"session": session}  # alive until the very end
        return
    timer = threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    try:
        evaluate(
            run.make_policy(),
            run.factory,
            seeds=seeds,
            num_envs=run.lanes,
            hooks=outcome.recorder,
        )
    except RouteCancelled as error:
        ended = 0 if error.result is None else len(error.result.episodes)
        told = outcome.recorder.failed
        outcome.answer = {"episodes": ended, "told": told, "reason": error.reason}
        raise


def judge_exit_c58(exit_: Exit) -> str | None:
    """R33: a raising observer is logged and the run goes on, so that `hook` ends well."""
    assert exit_.elapsed_s < 5, exit_
    assert exit_.stderr.count("Traceback (most recent call last)") <= 1, exit_.stderr
    if exit_.job.variant == "SIGINT":
        assert exit_.code != 0, exit_
        assert "RouteCancelled" in exit_.stderr, exit_.stderr
        answer = exit_.report and exit_.report["answer"]
        assert answer, exit_
        assert answer["reason"] == "interrupted", answer
        assert answer["episodes"] >= 1, answer
        assert len(answer["told"]) == 1, answer
        return f"{answer['episodes']} episodes kept"
    assert exit_.code == 0, exit_.stderr
    if exit_.job.variant == "hook":
        answer = exit_.report and exit_.report["answer"]
        assert answer, exit_
        assert answer["episodes"] == _FEW, answer
        named = [line for line in answer["lines"] if "hook=Raising" in line]
        assert len(named) == 1, answer
        return "logged, and the run goes on (R33)"
    return None
