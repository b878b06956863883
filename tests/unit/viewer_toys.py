"""Events and episodes for the tests of what is seen of a run."""

from __future__ import annotations

from typing import Any

from rollmesh import events
from rollmesh.ids import Uuid7Mint
from rollmesh.results.result import EpisodeResult, EvalResult
from rollmesh.spaces.space import Discrete

ROUTE = events.Route("r", "env", "model")
COMMON: dict[str, Any] = {"session_id": "s", "route": ROUTE}
START_NS = 1_790_000_000_000_000_000


class SetClock:
    """A clock that stands still until told."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return START_NS + self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


def started(index: int = 0, *, attempt: int = 1, lane: int = 0) -> events.EpisodeStarted:
    return events.EpisodeStarted(
        **COMMON,
        episode_id=f"e{index}",
        record_id=f"ep-{index:06d}",
        episode_index=index,
        env_index=lane,
        seed=index,
        started_from_auto_reset=False,
        attempt=attempt,
    )


def completed(index: int, reward: float, **changes: Any) -> events.EpisodeCompleted:
    fields: dict[str, Any] = {
        "episode_id": f"e{index}",
        "record_id": f"ep-{index:06d}",
        "episode_index": index,
        "env_index": 0,
        "seed": index,
        "steps": 3,
        "total_reward": reward,
        "terminated": True,
        "truncated": False,
        "success": None,
        "duration_s": 0.1,
        "final_info": {},
        "observation_space": Discrete(n=2),
        "final_observation": [],
    }
    return events.EpisodeCompleted(**COMMON, **(fields | changes))


def errored(index: int, error: str = "EnvFailed: boom\nTraceback", **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "episode_id": f"e{index}",
        "record_id": f"ep-{index:06d}",
        "episode_index": index,
        "env_index": 0,
        "seed": index,
        "steps": 2,
        "total_reward": 1.0,
        "duration_s": 0.1,
        "error": error,
    }
    return events.EpisodeErrored(**COMMON, **(fields | changes))


def worker(number: int, state: str, detail: str = "", pid: int | None = None) -> Any:
    return events.WorkerChanged(**COMMON, worker=number, state=state, detail=detail, pid=pid)


def metric(operation: str, name: str = "rpc.total", **changes: Any) -> events.MetricRow:
    fields: dict[str, Any] = {
        "kind": "duration",
        "count": 50,
        "mean": 2.0,
        "p50": 1.5,
        "p95": 4.0,
        "p99": 8.0,
        "min": 1.0,
        "max": 9.0,
    }
    return events.MetricRow(operation=operation, component="c", metric=name, **(fields | changes))


def telemetry(*rows: events.MetricRow, horizon: str = "window") -> events.TelemetryEmitted:
    snapshot = events.TelemetrySnapshot(horizon=horizon, rows=rows)
    return events.TelemetryEmitted(**COMMON, snapshot=snapshot)


def session_started() -> events.SessionStarted:
    return events.SessionStarted(**COMMON, env_id="r")


def session_ended() -> events.SessionEnded:
    return events.SessionEnded(**COMMON, reason="done", total_steps=1, total_episodes=1)


def session_failed(reason: str = "EnvFailed: boom") -> events.SessionFailed:
    return events.SessionFailed(**COMMON, reason=reason)


def episode(index: int, reward: float = 1.0, **changes: Any) -> EpisodeResult:
    fields: dict[str, Any] = {
        "index": index,
        "seed": 100 + index,
        "env_index": index % 2,
        "episode_id": f"e{index}",
        "steps": 3,
        "total_reward": reward,
        "terminated": True,
        "truncated": False,
        "success": bool(index % 2),
        "duration_s": 1.0,
    }
    return EpisodeResult(**(fields | changes))


def result(episodes: list[EpisodeResult], **changes: Any) -> EvalResult:
    fields: dict[str, Any] = {
        "env": "Toy-v0",
        "model": "toys:policy",
        "plan_seed": 7,
        "planned": len(episodes),
        "elapsed_s": 2.0,
        "num_envs": 2,
    }
    return EvalResult(episodes=tuple(episodes), **(fields | changes))


def timed(count: int, lanes: int = 2, *, gap_at: int | None = None, gap_s: float = 0.0) -> Any:
    """Return episodes whose ids tell when they ran: each a second, lane by lane."""
    clock = SetClock()
    mint = Uuid7Mint(clock)
    episodes = []
    offset = 0.0
    for index in range(count):
        if index == gap_at:
            offset += gap_s
        clock.now_ns = round((index // lanes + offset) * 1e9)
        episodes.append(
            episode(
                index,
                float(index),
                env_index=index % lanes,
                episode_id=mint.mint(),
                duration_s=0.9,
            )
        )
    return episodes
