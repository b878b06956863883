"""Rows across processes: an env, or an env and a model, in processes of their own.

Native rows come with and without spinning; those without show what a busy machine leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import bare, remote, workloads
from benchmarks import subjects as who
from benchmarks.contest import Goal, contest
from benchmarks.harness import Timing
from benchmarks.table import Line
from benchmarks.workloads import Workload

UNIX, TCP, GRPC = remote.OURS_UNIX, remote.OURS_TCP, remote.OURS_GRPC
UNIX_BLOCKING, OUR_ENV = remote.OURS_UNIX_BLOCKING, remote.OUR_ENV
VECTOR = "rollmesh, {n} lanes in one process"
VECTOR_SYNC = "rollmesh, SyncVectorEnv in one process"
BARE_GRPC = "gRPC stream of bytes, TCP"

_RLMESH_UNIX = remote.RLMESH_ENV + ", unix"
_W1_STEPS = 1000
_W3_STEPS = 200
_PEER_STEPS = {"W1": 100, "W3": 10}
"""Episodes of RLMesh, where a step takes it 1.5 ms and 25 ms."""


def _slow(workload: Workload) -> Workload:
    """Return the same workload with episodes that a slow peer can play in a burst."""
    make = workloads.robot if workload.name == "W3" else workloads.scalar
    return make(_PEER_STEPS[workload.name])


def _env_goals(base: str, times: float) -> tuple[Goal, ...]:
    """Return the goals of both rows with an env in another process.

    Args:
        base: Which of RLMesh's ways a native connection is compared with.
        times: How many times faster one must be on a unix socket.
    """
    return (
        Goal(subject=UNIX, base=base, least=times),
        Goal(subject=UNIX_BLOCKING, base=base),
        Goal(subject=TCP, base=remote.RLMESH_RUN, least=4.0),
        Goal(subject=TCP, base=GRPC, least=4.0),
        Goal(subject=OUR_ENV, base=remote.RLMESH_ENV),
    )


W1_GOALS = (
    Goal(subject=UNIX, base=who.ASYNC, least=3.0),
    Goal(subject=UNIX_BLOCKING, base=who.ASYNC, least=1.0),
    *_env_goals(remote.RLMESH_RUN, 4.0),
    Goal(subject=GRPC, base=remote.RLMESH_RUN, least=1.2),
)
W3_GOALS = (
    Goal(subject=UNIX, base=who.ASYNC, least=1.5),
    Goal(subject=UNIX_BLOCKING, base=who.ASYNC),
    *_env_goals(remote.RLMESH_ENV, 200.0),
    Goal(subject=UNIX, base=_RLMESH_UNIX),
    Goal(subject=GRPC, base=remote.RLMESH_RUN, least=25.0),
)


def _env_entries(workload: Workload) -> list[who.Entry]:
    slow = _slow(workload)
    entries = [
        who.async_vector(workload),
        remote.rlmesh_run(slow if workload.name == "W3" else workload),
        remote.rlmesh_env(slow),
        remote.ours(UNIX, workload),
        remote.ours(UNIX_BLOCKING, workload, spins=False),
        remote.ours(TCP, workload, address=remote.NATIVE_TCP),
        remote.ours(GRPC, workload, address=remote.TCP),
        remote.our_env(OUR_ENV, workload),
    ]
    if workload.name == "W3":
        unix = remote.rlmesh_env(slow, remote.UNIX, _RLMESH_UNIX)
        entries.insert(3, unix)
    return entries


def w1_row(timing: Timing) -> list[Line]:
    """Return W1 at N=1 with the env in another process."""
    entries = _env_entries(workloads.scalar(_W1_STEPS))
    return contest("env in another process W1 N=1", entries, W1_GOALS, timing)


def w3_row(timing: Timing) -> list[Line]:
    """Return W3 at N=1 with the env in another process; the policy may write into what it sees."""
    entries = _env_entries(workloads.robot(_W3_STEPS))
    return contest("env in another process W3 N=1", entries, W3_GOALS, timing)


def both_row(timing: Timing) -> list[Line]:
    """Return W1 and W3 at N=1 with env and model each in a process of its own."""
    lines: list[Line] = []
    for workload, times in (
        (workloads.scalar(_W1_STEPS), 10.0),
        (workloads.robot(_W3_STEPS), 100.0),
    ):
        entries = [
            remote.rlmesh_both(_slow(workload)),
            remote.ours_both(UNIX, workload),
            remote.ours_both(TCP, workload, address=remote.NATIVE_TCP),
            remote.ours_both(GRPC, workload, address=remote.TCP),
        ]
        goals = (
            Goal(subject=UNIX, base=remote.RLMESH_BOTH, least=times),
            Goal(subject=TCP, base=remote.RLMESH_BOTH, least=times),
            Goal(subject=GRPC, base=remote.RLMESH_BOTH),
        )
        lines += contest(f"env and model served {workload.name} N=1", entries, goals, timing)
    return lines


def vector_row(timing: Timing) -> list[Line]:
    """Return W1 and W3 at N = 8 and 64: all lanes in one process, against a process per lane."""
    lines: list[Line] = []
    for num_envs, w1_times in ((8, 2.0), (64, 10.0)):
        for workload, times in ((workloads.scalar(500), w1_times), (workloads.robot(50), 2.0)):
            batched = VECTOR.format(n=num_envs)
            entries = [
                who.async_vector(workload, num_envs),
                remote.ours(batched, workload, num_envs=num_envs),
                remote.ours(VECTOR_SYNC, workload, num_envs=num_envs, makes="sync"),
            ]
            goals = (
                Goal(subject=batched, base=who.ASYNC, least=times),
                Goal(subject=VECTOR_SYNC, base=who.ASYNC),
            )
            row = f"across processes {workload.name} N={num_envs}"
            lines += contest(row, entries, goals, timing)
    return lines


# --------------------------------------------------------------------------------- bare

_BARE_SHARED = "shared memory, copied"
_BARE_SOCKET = "unix socket"
_BARE_TCP = "TCP"
_BARE_SPIN = "unix socket, spinning where it pays"


def _bare_entries(workload: Workload) -> Sequence[who.Entry]:
    entries = [
        bare.grpc_stream(BARE_GRPC, workload),
        bare.native(_BARE_SOCKET, workload, shared_memory=False),
        bare.native(_BARE_SPIN, workload, spin="auto", shared_memory=False),
        bare.native(_BARE_TCP, workload, address=remote.NATIVE_TCP),
    ]
    if workload.name == "W3":
        entries += [
            bare.native(_BARE_SHARED, workload),
            bare.native("shared memory, viewed", workload, views=True),
        ]
    return entries


def bare_row(timing: Timing) -> list[Line]:
    """Return the transports with nothing around them, at W1 and W3."""
    w1 = (Goal(subject=_BARE_SOCKET, base=BARE_GRPC, least=5.0),)
    w3 = (
        Goal(subject=_BARE_SHARED, base=BARE_GRPC, least=4.0),
        Goal(subject=_BARE_SHARED, base=_BARE_SOCKET, least=1.2),
    )
    others = (
        Goal(subject=_BARE_TCP, base=BARE_GRPC),
        Goal(subject=_BARE_SPIN, base=BARE_GRPC),
    )
    return [
        *contest("bare W1", _bare_entries(workloads.scalar(1)), (*w1, *others), timing),
        *contest("bare W3", _bare_entries(workloads.robot(1)), (*w3, *others), timing),
    ]
