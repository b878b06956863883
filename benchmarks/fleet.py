"""W5: sixteen envs in processes of their own, one model that answers batches.

The model takes 20 ms and 0.5 ms a row, a step 5 ms, all of it sleep, so that these rows measure who
waits for whom, and hold on a small machine too. Subjects take turns; each is measured in the middle
of a burst, from the answers of the model.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks import fleet_subjects as who
from benchmarks import table, workloads
from benchmarks.contest import Goal, lines_of
from benchmarks.fleet_env import AWAKE, LIMIT
from benchmarks.fleet_subjects import Contender
from benchmarks.harness import Burst, Comparison, Spread
from benchmarks.subjects import rlmesh_missing
from benchmarks.table import Line
from benchmarks.workloads import Workload

LEARNED = "rollmesh, workers, learned wait"
FIXED = "rollmesh, workers, wait {wait:g} ms"
LOCK_STEP = "rollmesh, AsyncVectorEnv in lock-step"
SERIAL = "rollmesh, one serial route"
RLMESH = "RLMesh, vector route"
VLA_EVAL = "vla-eval"

_SIMULATORS = 8
_PEER_STEPS = 2
"""Length of RLMesh's episodes at W3, where sixteen lanes take a second a step."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long and how often.

    Attributes:
        rounds: Of subjects in turn.
        window_s: What is measured of a burst.
        waits_ms: The sweep of fixed waits.
        full: Whether everything is measured.
    """

    rounds: int
    window_s: float
    waits_ms: Sequence[float]
    full: bool


SHORT = Pace(rounds=2, window_s=0.6, waits_ms=(3.0, 12.0), full=False)
FULL = Pace(rounds=5, window_s=2.0, waits_ms=(0.0, 2.0, 4.0, 6.0, 12.0, 25.0), full=True)


def fleet_row(*, short: bool) -> tuple[list[Line], str]:
    """Return W5 at W1 and W3, constant and heavy-tailed."""
    pace = SHORT if short else FULL
    lines: list[Line] = []
    steps = who.EPISODE_STEPS
    for workload in (workloads.scalar(steps), workloads.robot(steps)):
        is_w1 = workload.name == "W1"
        with contextlib.ExitStack() as stack:
            workers = who.Workers(workload)
            stack.callback(workers.close)
            lines += _contest(_constant(workload, workers, pace, stack), pace)
            if pace.full or is_w1:
                lines += _contest(_heavy(workload, workers, pace, stack), pace)
    return lines, ""


@dataclass(frozen=True, kw_only=True)
class _Match:
    """Who meets whom, and what must come of it.

    Attributes:
        row: Name of the row.
        contenders: Who is there.
        goals: Ratios between them.
        share_of_limit: What the learned wait must reach of the limit, or None.
        absent: Who is not there, and why.
    """

    row: str
    contenders: Sequence[Contender]
    goals: Sequence[Goal]
    share_of_limit: float | None = None
    absent: Sequence[tuple[str, str]] = ()


def _constant(
    workload: Workload, workers: who.Workers, pace: Pace, stack: contextlib.ExitStack
) -> _Match:
    thinking, is_w1 = "constant", workload.name == "W1"
    contenders = [workers.contender(LEARNED, thinking)]
    goals = [Goal(subject=LEARNED, base=LOCK_STEP)]
    if is_w1:
        serial = who.Workers(workload, thinking, lanes=1)
        stack.callback(serial.close)
        contenders.append(serial.contender(SERIAL, thinking, rate=LIMIT / who.LANES))
        goals.append(Goal(subject=LEARNED, base=SERIAL, least=11.0))
    contenders.append(_with(stack, who.lock_step(LOCK_STEP, workload, thinking)))
    absent = _peers(workload, thinking, pace, contenders, stack)
    # its W1 is held up by nothing but the model
    goals.append(Goal(subject=LEARNED, base=RLMESH, least=None if is_w1 else 30.0))
    goals.append(Goal(subject=LEARNED, base=VLA_EVAL, least=1.0 if is_w1 else 2.0))
    return _Match(
        row=f"fleet {workload.name} {thinking}",
        contenders=contenders,
        goals=goals,
        share_of_limit=0.95 if is_w1 else 0.88,
        absent=absent,
    )


def _heavy(
    workload: Workload, workers: who.Workers, pace: Pace, stack: contextlib.ExitStack
) -> _Match:
    thinking = "heavy-tailed"
    contenders = [workers.contender(LEARNED, thinking)]
    goals = [Goal(subject=LEARNED, base=LOCK_STEP, least=1.6)]
    for wait_ms in pace.waits_ms:
        name = FIXED.format(wait=wait_ms)
        contenders.append(workers.contender(name, thinking, max_wait_s=wait_ms / 1000))
    contenders.append(_with(stack, who.lock_step(LOCK_STEP, workload, thinking)))
    absent = _peers(workload, thinking, pace, contenders, stack) if pace.full else []
    goals.append(Goal(subject=LEARNED, base=RLMESH))
    goals.append(Goal(subject=LEARNED, base=VLA_EVAL, least=1.0))
    return _Match(
        row=f"fleet {workload.name} {thinking}", contenders=contenders, goals=goals, absent=absent
    )


def simulator_row(*, short: bool) -> list[Line]:
    """Return MuJoCo HalfCheetah-v5 in eight processes, with the same model."""
    pace = SHORT if short else FULL
    workload = workloads.half_cheetah(who.EPISODE_STEPS)
    row = "fleet MuJoCo HalfCheetah-v5 N=8"
    if missing := workload.missing:
        return [table.absent(row, LEARNED, missing)]
    with contextlib.ExitStack() as stack:
        workers = who.Workers(workload, AWAKE, lanes=_SIMULATORS)
        stack.callback(workers.close)
        lock_step = who.lock_step(LOCK_STEP, workload, AWAKE, lanes=_SIMULATORS)
        contenders = [workers.contender(LEARNED, AWAKE), _with(stack, lock_step)]
        absent: list[tuple[str, str]] = []
        if missing := rlmesh_missing():
            absent.append((RLMESH, missing))
        else:
            peer = who.rlmesh_vector(RLMESH, workload, AWAKE, lanes=_SIMULATORS)
            contenders.append(_with(stack, peer))
        goals = [Goal(subject=LEARNED, base=base) for base in (LOCK_STEP, RLMESH)]
        match = _Match(row=row, contenders=contenders, goals=goals, absent=absent)
        return _contest(match, pace)


def _peers(
    workload: Workload,
    thinking: str,
    pace: Pace,
    contenders: list[Contender],
    stack: contextlib.ExitStack,
) -> list[tuple[str, str]]:
    """Add the peers that can be run; return the others."""
    absent: list[tuple[str, str]] = []
    if missing := rlmesh_missing():
        absent.append((RLMESH, missing))
    elif pace.full or workload.name == "W3":
        slow = workloads.robot(_PEER_STEPS) if workload.name == "W3" else workload
        contenders.append(_with(stack, who.rlmesh_vector(RLMESH, slow, thinking)))
    if missing := who.vla_eval_missing():
        absent.append((VLA_EVAL, missing))
    elif pace.full:
        contenders.append(who.vla_eval(VLA_EVAL, workload.name.lower(), thinking))
    return absent


def _with(stack: contextlib.ExitStack, started: tuple[Contender, Callable[[], None]]) -> Contender:
    contender, close = started
    stack.callback(close)
    return contender


# ------------------------------------------------------------------------------ measuring


def measure(contenders: Sequence[Contender], pace: Pace) -> Comparison:
    """Let the contenders take turns; each begins its bursts with what does not count."""
    bursts: dict[str, list[Burst]] = {one.name: [] for one in contenders}
    for _ in range(pace.rounds):
        for one in contenders:
            gc.collect()
            bursts[one.name].append(one.burst(pace.window_s))
    return Comparison(bursts={name: tuple(each) for name, each in bursts.items()})


def _contest(match: _Match, pace: Pace) -> list[Line]:
    comparison = measure(match.contenders, pace)
    lines: list[Line] = []
    for one in match.contenders:
        lines += lines_of(match.row, one.name, match.goals, comparison)
        if one.name == LEARNED:
            lines += _own_lines(match, comparison)
    return lines + [table.absent(match.row, name, how) for name, how in match.absent]


def _own_lines(match: _Match, comparison: Comparison) -> Iterator[Line]:
    """Give what the learned wait must reach beside its ratios: the limit, and the best fixed."""
    rates = [burst.rate for burst in comparison.bursts[LEARNED]]
    if match.share_of_limit is not None:
        share = Spread.of([rate / LIMIT for rate in rates])
        yield _line_of(match.row, share, f"limit ({LIMIT:.0f})", match.share_of_limit)
    fixed = [name for name in comparison.bursts if name.startswith("rollmesh, workers, wait")]
    if fixed:
        best = max(fixed, key=lambda name: comparison.rate(name).median)
        ratio = comparison.speedup(LEARNED, best)
        yield _line_of(match.row, ratio, f"best fixed ({best.rpartition('wait ')[2]})", 0.95)


def _line_of(row: str, ratio: Spread, base: str, least: float) -> Line:
    return Line(
        row=row,
        subject="",
        ratio=table.ratio_text(ratio, base),
        target=f">= {least:g} x",
        verdict=table.at_least(ratio.median, least),
        numbers={"base": base, "ratio": ratio.median, "least": least},
    )
