"""In-process rows: the same loop by hand, by the peers and by us, at one lane and at many."""

from __future__ import annotations

from benchmarks import subjects as who
from benchmarks import table, workloads
from benchmarks.contest import Goal, contest
from benchmarks.harness import Timing
from benchmarks.table import Line

W1_GOALS = (
    Goal(subject=who.OURS, base=who.RLMESH_RUN, least=12.0),
    Goal(subject=who.OURS, base=who.SYNC, least=0.4),
    Goal(subject=who.OURS_JOURNAL, base=who.RLMESH_RUN, least=12.0),
    Goal(subject=who.OURS_JOURNAL, base=who.SYNC, least=0.4),
    Goal(subject=who.OURS_FACTORY, base=who.SYNC),
    Goal(subject=who.OURS_BUILT, base=who.SYNC),
)


def w1_row(timing: Timing) -> list[Line]:
    """Return W1 at N=1, the row with targets; episodes are long, so that no set-up counts."""
    workload = workloads.scalar(1000 if timing.burst_s < 1.0 else 2000)
    entries = [
        who.bare(workload),
        who.sync_vector(workload),
        who.async_vector(workload),
        who.rlmesh_run(workload),
        who.rlmesh_session(workload),
        who.ours(workload),
        who.ours_journal(workload),
        who.ours_factory(workload),
        who.ours_built(workload),
    ]
    return contest("in process W1 N=1", entries, W1_GOALS, timing)


def _informative(row: str, workload: workloads.Workload, timing: Timing) -> list[Line]:
    """Return ratios without targets for one workload at N=1."""
    if workload.missing:
        return [table.absent(row, workload.name, workload.missing)]
    entries = [
        who.bare(workload),
        who.sync_vector(workload),
        who.rlmesh_run(workload),
        who.ours(workload),
    ]
    goals = (
        Goal(subject=who.OURS, base=who.RLMESH_RUN),
        Goal(subject=who.OURS, base=who.SYNC),
    )
    return contest(row, entries, goals, timing)


def cartpole_row(timing: Timing) -> list[Line]:
    """Return CartPole-v1 at N=1."""
    return _informative("in process CartPole-v1 N=1", workloads.cartpole(), timing)


def w2_row(timing: Timing) -> list[Line]:
    """Return W2 at N=1; short episodes, as in W3."""
    return _informative("in process W2 N=1", workloads.frames(20), timing)


def w3_row(timing: Timing) -> list[Line]:
    """Return W3 at N=1; short episodes, for RLMesh takes 25 ms a step here."""
    return _informative("in process W3 N=1", workloads.robot(10), timing)


def w4_row(timing: Timing) -> list[Line]:
    """Return W4: real simulators, where they are installed."""
    cheetah = _informative("in process HalfCheetah-v5 N=1", workloads.half_cheetah(), timing)
    return cheetah + _informative("in process ALE/Pong-v5 N=1", workloads.pong(), timing)


def vector_row(timing: Timing) -> list[Line]:
    """Return W1 at N = 8 and 64: peers and our three ways to many lanes."""
    lines: list[Line] = []
    workload = workloads.scalar(500)
    for num_envs in (8, 64):
        entries = [
            who.sync_vector(workload, num_envs),
            *([who.async_vector(workload, num_envs)] if num_envs <= 8 else []),
            who.ours_vector(workload, num_envs),
            who.ours_batched(workload, num_envs),
            *([who.ours_lanes(workload, num_envs)] if num_envs <= 8 else []),
        ]
        goals = tuple(
            Goal(subject=name, base=who.SYNC)
            for name in (who.OURS_VECTOR, who.OURS_BATCHED, who.OURS_LANES)
        )
        lines += contest(f"in process W1 N={num_envs}", entries, goals, timing)
    return lines
