"""The same plan tells the same story under every engine and grouping: rules R46 and R47."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.ports import PARTIAL_RESET, SUBSET_STEP, StepReply, StepRequest
from rollmesh.runtime.driver import RouteDriver
from rollmesh.runtime.engine.blocking import BlockingEngine
from rollmesh.runtime.engine.concurrent import ConcurrentEngine
from rollmesh.runtime.engine.simulated import SimulatedEngine, VirtualClock, Weather
from rollmesh.runtime.trace import TraceHash
from tests.driving import DISABLED, MODES, NEXT_STEP, Run, drive
from tests.toys import CountingMint, ToyEnv, ToyModel, spec_for
from tests.toys_threads import ThreadedEnv, ThreadedModel

SEEDS = [3, 9, 4, 17, 22, 8, 1, 30, 41, 5]


def traced(
    env: ToyEnv, model: ToyModel | None = None, *, seeds: list[int] | None = None, **kwargs: Any
) -> str:
    trace = TraceHash()
    run = drive(env, model, hooks=[trace], episode_seeds=seeds or SEEDS, **kwargs)
    assert run.error is None, repr(run.error)
    return trace.hexdigest()


def simulated(seed: int) -> dict[str, Any]:
    """Arguments of a driver that runs in virtual time."""
    clock = VirtualClock()
    return {
        "clock": clock,
        "make_engine": lambda parts: SimulatedEngine(parts, clock, Weather(), seed),
    }


def on_threads(width: int, *capabilities: str, shared: bool = False) -> tuple[Any, Any]:
    env = ThreadedEnv(width, capabilities=capabilities)
    thread: OwnThread | None = env.threads[0] if shared else None
    return env, ThreadedModel(thread=thread)


WAYS: dict[str, Callable[[], str]] = {
    "blocking 1": lambda: traced(ToyEnv(1)),
    "blocking 3": lambda: traced(ToyEnv(3)),
    "blocking 16": lambda: traced(ToyEnv(16)),
    "next step owned": lambda: traced(ToyEnv(3, NEXT_STEP, capabilities=[PARTIAL_RESET])),
    "inline lanes": lambda: traced(ToyEnv(4, capabilities=[SUBSET_STEP])),
    "concurrent 3": lambda: traced(*on_threads(3, PARTIAL_RESET)),
    "threads 4": lambda: traced(*on_threads(4, SUBSET_STEP)),
    "hosted 2": lambda: traced(*on_threads(2, PARTIAL_RESET, shared=True)),
    "simulated 3": lambda: traced(ToyEnv(3), driver=simulated(1)),
    "simulated lanes": lambda: traced(ToyEnv(5, capabilities=[SUBSET_STEP]), driver=simulated(2)),
    "simulated lanes again": lambda: traced(
        ToyEnv(5, capabilities=[SUBSET_STEP]), driver=simulated(3)
    ),
}


def test_r46_the_trace_hash_is_one_under_every_engine_and_grouping():
    hashes = {name: way() for name, way in WAYS.items()}
    assert len(set(hashes.values())) == 1, hashes


@pytest.mark.parametrize("width", [1, 2, 5])
def test_r46_chunks_keep_the_hash_at_any_width_where_lanes_replan_alone(width):
    assert traced(ToyEnv(width), ToyModel(3)) == traced(ToyEnv(3), ToyModel(3))


def test_r46_the_hash_tells_plans_apart():
    class Rewarding(ToyEnv):
        def step(self, request: StepRequest) -> StepReply:
            reply = super().step(request)
            if len(self.steps) == 3:
                reply.rewards = tuple(r + 1e-15 for r in reply.rewards)
            return reply

    hashes = [
        traced(ToyEnv(2)),
        traced(ToyEnv(2), seeds=[*SEEDS[1:], SEEDS[0]]),
        traced(ToyEnv(2), seeds=SEEDS[:-1]),
        traced(ToyEnv(2), ToyModel(2)),
        traced(ToyEnv(2, reward=2.0)),
        traced(Rewarding(2)),
        traced(ToyEnv(2), max_episode_steps=2),
        traced(ToyEnv(2, info=lambda lane: {"success": True})),
    ]
    assert len(set(hashes)) == len(hashes)


def test_r46_ids_times_and_lanes_are_left_out():
    env, trace = ToyEnv(2), TraceHash()
    spec = spec_for(env, session_id="another", env_id="other", episode_seeds=SEEDS)
    RouteDriver(spec, env, ToyModel(), hooks=[trace]).run()
    assert trace.hexdigest() == traced(ToyEnv(2))


def test_r46_an_episode_that_did_not_complete_is_no_part():
    trace = TraceHash()
    assert trace.hexdigest() == TraceHash().hexdigest()

    class Breaks(ToyEnv):
        def step(self, request: StepRequest) -> StepReply:
            if len(self.steps) == 4:
                raise ValueError("broke")
            return super().step(request)

    drive(Breaks(1), hooks=[trace], episode_seeds=[3, 9, 4])
    assert trace.hexdigest() == traced(ToyEnv(1), seeds=[3])
    assert not trace._open, "what was spoiled is forgotten"


def forced(kind: type) -> dict[str, Any]:
    return {"make_engine": kind}


VOLATILE = {"duration_s", "snapshot", "message"}


def stream(run: Run) -> list[tuple[Any, ...]]:
    """Every event with all that does not depend on the clock."""
    found: list[tuple[Any, ...]] = []
    for name, event in run.notes.events:
        fields = [
            (field, repr(getattr(event, field)))
            for field in event.__struct_fields__
            if field not in VOLATILE
        ]
        found.append((name, fields))
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("frames", [1, 3])
def test_r46_with_one_group_the_whole_stream_is_equal(mode, frames):
    runs = [
        drive(ToyEnv(3, mode), ToyModel(frames), driver=driver, max_episodes=8)
        for driver in (forced(BlockingEngine), forced(ConcurrentEngine), simulated(7))
    ]
    threaded = ThreadedEnv(3, mode)
    runs.append(drive(threaded, ThreadedModel(frames), max_episodes=8))
    hosted = ThreadedEnv(3, mode)
    runs.append(drive(hosted, ThreadedModel(frames, thread=hosted.threads[0]), max_episodes=8))
    streams = [stream(run) for run in runs]
    assert all(one == streams[0] for one in streams[1:])


def by_episode(run: Run) -> dict[int, list[tuple[Any, ...]]]:
    """Events projected on episodes: rows in order, without ids, lanes and times."""
    index = {e.episode_id: e.episode_index for e in run.notes.of("episode_started")}
    found: dict[int, list[tuple[Any, ...]]] = {k: [] for k in index.values()}
    for name, event in run.notes.events:
        for row, episode_id in enumerate(getattr(event, "episode_ids", ())):
            line = [name, event.steps[row], event.decode(row).tolist()]
            if name == "step_completed":
                line += [event.rewards[row], event.terminated[row], event.truncated[row]]
            if name == "observation_emitted":
                line += [event.is_reset[row]]
            found[index[episode_id]].append(tuple(map(str, line)))
        if name == "episode_completed":
            line = [name, event.seed, event.steps, event.total_reward, event.success]
            found[index[event.episode_id]].append(tuple(map(str, line)))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_r46_projected_on_an_episode_events_are_equal_under_every_grouping(seed):
    plain = by_episode(drive(ToyEnv(1, DISABLED), episode_seeds=SEEDS))
    lanes = drive(
        ToyEnv(4, capabilities=[SUBSET_STEP]), driver=simulated(seed), episode_seeds=SEEDS
    )
    wide = drive(ToyEnv(4), episode_seeds=SEEDS)
    assert by_episode(lanes) == by_episode(wide) == plain


def test_r46_the_same_run_twice_is_the_same_stream():
    def once() -> list[tuple[Any, ...]]:
        return stream(
            drive(
                ToyEnv(3, capabilities=[SUBSET_STEP]),
                driver={**simulated(11), "mint": CountingMint()},
                max_episodes=9,
            )
        )

    assert once() == once()


CORE = ("spec", "plan", "lanes", "operations", "requests", "endings", "route", "group", "seeds")


@pytest.mark.parametrize("module", CORE)
def test_r47_the_core_reads_no_clock(module, project_root: Path):
    text = (project_root / "src/rollmesh/runtime" / f"{module}.py").read_text(encoding="utf-8")
    imported = {
        name.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in node.names
    }
    assert not imported & {"time", "random", "socket", "asyncio", "threading", "datetime"}
    assert "monotonic_ns" not in text
