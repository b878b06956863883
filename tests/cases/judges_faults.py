"""Judges of envs that misbehave, and of what is around them; each follows its case's "Right: …"."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rollmesh import (
    EnvFailed,
    InvalidSpec,
    ModelFailed,
    OperationTimeout,
    RouteCancelled,
    evaluate,
)
from rollmesh.errors import EndpointFault
from tests.cases.by_hand import SKIP, Exit
from tests.cases.case_run import CaseRun
from tests.cases.judging import checked, finished, first_line, judge_by_file, refused
from tests.cases.recording import Outcome
from tests.cases.served_ways import is_env_served, is_isolated


def judge_c44(outcome: Outcome) -> str | None:
    judge_by_file(outcome)
    error = outcome.error
    assert isinstance(error, EnvFailed)
    assert error.error_class == "TwoArgs"
    assert "c44_step_raises.py" in error.traceback_text
    assert "KeyError: 'joint'" in error.traceback_text, "the cause is lost"
    assert error.seed == 1
    assert error.step == 2
    assert error.is_recoverable
    assert len(str(error)) < 30_000, "the message is not cut"
    done = [episode for episode in outcome.r["episodes"] if episode["error"] is None]
    assert [(episode["seed"], episode["steps"]) for episode in done] == [(0, 3)]
    return None


def judge_c45(outcome: Outcome) -> str | None:
    """Result in full, one close, its failure one warning, in bounded time (instances stay open)."""
    checked(outcome)
    variant = outcome.run.variant
    closes = sum(row["ev"] == "close" for row in outcome.tape)
    assert closes == (0 if outcome.way == "blocking" else 1), closes
    assert outcome.elapsed_s < outcome.run.run["close_limit_s"], outcome.elapsed_s
    told = [line for line in outcome.lines if "close" in line]
    wants = closes if variant in {"raise", "hang"} else 0
    assert len(told) == wants, outcome.lines
    return None


SOON_S, WITH_PROCESSES_S = 5.0, 30.0
"""Far below any limit of a step; starting a process on a busy machine takes its time."""


def judge_c47(outcome: Outcome) -> str | None:
    limit_s = WITH_PROCESSES_S if is_isolated(outcome.way) else SOON_S
    assert outcome.elapsed_s < limit_s, outcome.elapsed_s
    if outcome.run.variant == "sys_exit":
        return refused(outcome, EnvFailed, "SystemExit", "sys.exit(0)")
    if outcome.run.variant == "os_exit":
        return refused(outcome, EnvFailed, "exited with code 0")
    error = outcome.error
    if is_env_served(outcome.way):  # the Ctrl-C of another process, or of a thread: not ours
        return refused(outcome, EnvFailed, "KeyboardInterrupt")
    assert isinstance(error, RouteCancelled), repr(error)
    assert error.reason == "interrupted"
    return None


def judge_exit_c47(exit_: Exit) -> str | None:
    if exit_.job.variant != "os_exit" or is_isolated(exit_.job.way):
        return None
    assert exit_.code == 0, exit_
    assert exit_.report is None, exit_
    return f"{SKIP}in this process os._exit takes all with it; an env process is needed"


def skip_c47(run: CaseRun, way: str) -> str | None:
    if run.variant == "os_exit" and way != "blocking" and not is_isolated(way):
        return "as blocking: in this process os._exit takes all with it"
    return None


def judge_c48(outcome: Outcome) -> str | None:
    """The caller is told soon that the env's process died and of what; what ended is kept."""
    assert outcome.elapsed_s < WITH_PROCESSES_S, outcome.elapsed_s
    done = [episode["seed"] for episode in outcome.r["episodes"] if episode["error"] is None]
    if outcome.way == "workers 3":  # it goes on: only the dying episode is lost
        (lost,) = [one for one in finished(outcome)["episodes"] if one["error"] is not None]
        assert f"died of {outcome.run.variant}" in lost["error"], lost
        assert (done, lost["seed"]) == ([0, 2], 1)
        return "the others ended"
    assert done == [0], done
    return refused(outcome, EnvFailed, "died of", str(outcome.run.variant))


def skip_c48(run: CaseRun, way: str) -> str | None:
    del run
    return None if is_isolated(way) else "in this process the env's end would be ours"


def skip_c51(run: CaseRun, way: str) -> str | None:
    if run.variant == "main" and way != "blocking" and not is_isolated(way):
        return "an env that wants the main thread is given as an instance, or has its own process"
    return None


def judge_c51(outcome: Outcome) -> str | None:
    checked(outcome)
    if outcome.way != "blocking":
        assert sum(row["ev"] == "closed" for row in outcome.tape) == 1
    return None


def judge_c52(outcome: Outcome) -> str | None:
    """One that is built on the main thread works; elsewhere Python refuses signal handlers."""
    if outcome.way == "blocking" or is_isolated(outcome.way):
        checked(outcome)
        return None
    kind = EndpointFault if is_env_served(outcome.way) else EnvFailed  # as the server starts
    return refused(outcome, kind, "main thread")


@contextlib.contextmanager
def around_c53(run: CaseRun) -> Iterator[None]:
    """Hold the lock in another thread while the lanes are built."""
    holder = run.case.hold(15 if run.full else 0.6)
    try:
        yield
    finally:
        holder.join()


def judge_c53(outcome: Outcome) -> str | None:
    checked(outcome)
    assert outcome.elapsed_s < outcome.run.run["start_limit_s"], outcome.elapsed_s
    return None


def judge_c54(outcome: Outcome) -> str | None:
    """The first call lives, its time is told, and the typical time is that of the others."""
    checked(outcome)
    result = outcome.result
    assert result is not None
    if result.telemetry is None:  # turned by hand
        return None
    (row,) = [
        row
        for row in result.telemetry.rows
        if row.operation == "model.predict" and row.metric == "rpc.total"
    ]
    slow_ms = outcome.run.case.SLOW_S * 1000
    assert row.count == 5
    assert row.max >= slow_ms * 0.98
    assert row.p50 < slow_ms / 5
    return None


@contextlib.contextmanager
def around_c63(run: CaseRun) -> Iterator[None]:
    """No mark of an earlier run lies about."""
    mark = run.case.MARK
    with contextlib.suppress(FileNotFoundError):
        os.remove(mark)  # noqa: PTH107 - a path of the case's
    yield


def judge_c63(outcome: Outcome) -> str | None:
    assert not os.path.exists(outcome.run.case.MARK), "the bomb went off"  # noqa: PTH110
    if outcome.run.variant == "action":
        outcome.run.case.check_error(outcome.error, outcome.r)
        return refused(outcome, ModelFailed, "Bomb")
    r = finished(outcome)
    assert r["episodes"][0]["steps"] == 2
    if outcome.run.variant == "info":
        named = [line for line in outcome.lines if "info['b']" in line and "Bomb" in line]
        assert len(named) == 1, outcome.lines
        return "replaced, with a warning"
    return None


def skip_c63(run: CaseRun, way: str) -> str | None:
    del way
    return "bytes to a port are no run of a route: see raw bytes" if run.variant == "raw" else None


class Growth:
    """Samples memory, file descriptors and threads while a run goes on."""

    def __init__(self, rss_mb: Callable[[], float], after: int) -> None:
        self._rss_mb = rss_mb
        self._after = after
        self._steps = 0
        self.start: tuple[float, int, int] | None = None

    def step_completed(self, event: Any) -> None:
        self._steps += len(event.episode_ids)
        if self.start is None and self._steps >= self._after:
            self.start = self.sample()

    def sample(self) -> tuple[float, int, int]:
        """Return RSS in MB, number of file descriptors, number of threads."""
        return self._rss_mb(), len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208


def skip_c65(run: CaseRun, way: str) -> str | None:
    del run, way
    return None if Path("/proc/self/status").exists() else "reads /proc, which this system lacks"


def drive_c65(run: CaseRun, outcome: Outcome) -> None:
    growth = Growth(run.case.rss_mb, after=min(2000, run.case.N // 2))
    outcome.result = evaluate(
        run.make_model, run.factory, model_kwargs={}, hooks=growth, **run.arguments
    )
    outcome.answer = (growth.start, growth.sample())


def judge_c65(outcome: Outcome) -> str | None:
    checked(outcome)
    start, end = outcome.answer
    assert end[0] - start[0] < 32, f"grew from {start[0]:.0f} to {end[0]:.0f} MB"
    assert end[1] <= start[1] + 2, f"file descriptors: {start[1]}, then {end[1]}"
    assert end[2] <= start[2] + 1, f"threads: {start[2]}, then {end[2]}"
    return f"{end[0] - start[0]:+.1f} MB"


def judge_c66(outcome: Outcome) -> str | None:
    r = checked(outcome)
    ids = [episode["episode_id"] for episode in r["episodes"]]
    assert ids == sorted(set(ids)), "ids do not sort in the order they were made"
    return None


def skip_c67(run: CaseRun, way: str) -> str | None:
    del way
    return None if run.variant == "ok" else "only a recorder calls render, and there is none yet"


NAGLE_MS = 40.0


def judge_c69(outcome: Outcome) -> str | None:
    """No call waits for an acknowledgement: the usual one stays far below what that would take."""
    checked(outcome)
    result = outcome.result
    assert result is not None
    if result.telemetry is None:  # turned by hand
        assert outcome.elapsed_s < 200 * NAGLE_MS / 2000, outcome.elapsed_s
        return None
    for row in result.telemetry.rows:
        if row.metric == "rpc.total" and row.operation in {"env.step", "model.predict"}:
            assert row.p50 < NAGLE_MS / 2, (row.operation, row.p50)
    return None


def judge_c58(outcome: Outcome) -> str | None:
    """Leave it to how the process ends; an error ends it as it would a user's script."""
    if outcome.error is not None:
        raise outcome.error
    return None


def judge_c64(outcome: Outcome) -> str | None:
    finished(outcome)
    told = {repr(value): seen for value, seen in outcome.answer}
    for value in ("0", "-1", "nan", "'5'"):
        assert isinstance(told[value], InvalidSpec), (value, told[value])
        assert "env_step_s" in str(told[value]), told[value]
    for value in ("inf", "None", "1000000000000.0", "0.5"):
        assert told[value] == 1, (value, told[value])
    for value in ("1e-09", "0.05"):
        error = told[value]
        assert isinstance(error, OperationTimeout), (value, error)
        assert error.operation == "env.step", error
        assert "connect" not in first_line(error), error
    return None


def judge_c68(outcome: Outcome) -> str | None:
    """Each call out of order is one clear `InvalidSpec`; the others answer for themselves."""
    finished(outcome)
    answers = outcome.answer
    kinds = [call if seen is None else f"{call}: {seen}" for call, seen in answers]
    want = ["step!", "reset", "reset", "step", "step", "step!", "step!", "close", "step!", "close"]
    got = [call + ("" if seen is None else "!") for call, seen in answers]
    assert got == want, kinds
    for call, seen in answers:
        assert seen is None or isinstance(seen, InvalidSpec), (call, seen)
    assert "reset()" in str(answers[0][1])
    assert "over" in str(answers[8][1])
    assert len(outcome.env_events("reset")) == 2
    assert len(outcome.env_events("step")) == 2
    return None
