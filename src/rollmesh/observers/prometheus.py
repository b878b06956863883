"""A Prometheus endpoint as a hooks object (extra `prometheus`).

Durations of calls come from telemetry windows, which know counts, sums and percentiles, not single
samples: they are summaries with quantiles of the last window, while count and sum go on growing.
What a session had after its last window comes with the snapshot at its end.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollmesh.errors import InvalidSpec
from rollmesh.observers.observer import PHASES, Observer, library

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollmesh.events import (
        EpisodeCompleted,
        EpisodeErrored,
        EpisodeStarted,
        TelemetryEmitted,
        WorkerChanged,
    )

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
_STEPS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
_STATES = ("starting", "ready", "lost", "stopped")


class PrometheusHooks(Observer):
    """Serves a run's numbers at `http://host:port/metrics`.

    Raises:
        InvalidSpec: prometheus_client is not installed, or the port is taken or none.

    Attributes:
        registry: The registry, for those who serve it themselves.
        port: The port it listens on; None where it does not.
    """

    def __init__(self, *, port: int | None = 0, host: str = "127.0.0.1") -> None:
        """Begin to count, and to serve.

        Args:
            port: Where to listen; 0 is a free one, None serves nothing.
            host: The address to listen on; whoever reaches it can read the numbers, so it is this
                machine only unless told otherwise.
        """
        client = library("prometheus_client", "prometheus")
        self.registry: Any = client.CollectorRegistry()
        common = {"registry": self.registry}
        self._episodes = client.Counter(
            "rollmesh_episodes", "Episodes that ended.", ("outcome", "task"), **common
        )
        self._attempts = client.Counter(
            "rollmesh_attempts", "Episodes started, again ones included.", **common
        )
        self._steps = client.Counter("rollmesh_steps", "Env steps of ended episodes.", **common)
        self._losses = client.Counter(
            "rollmesh_worker_losses",
            "Workers that died or were killed because they hung.",
            **common,
        )
        self._workers = client.Gauge(
            "rollmesh_workers", "Workers by their present state.", ("state",), **common
        )
        self._durations = client.Histogram(
            "rollmesh_episode_duration_seconds",
            "From the reset's reply to the last step's.",
            buckets=_SECONDS,
            **common,
        )
        self._lengths = client.Histogram(
            "rollmesh_episode_steps", "Steps of an episode.", buckets=_STEPS, **common
        )
        self._returns = client.Summary(
            "rollmesh_episode_return", "Returns of finished episodes.", **common
        )
        self._calls = _Calls(client)
        self.registry.register(self._calls)
        self._states: dict[int, str] = {}
        self._lock = threading.Lock()
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self.port: int | None = None
        if port is not None:
            try:
                server, thread = client.start_http_server(port, addr=host, registry=self.registry)
            except (OSError, OverflowError) as error:
                why = getattr(error, "strerror", None) or str(error)
                raise InvalidSpec(
                    "prometheus", f"cannot listen at {host}, port {port}: {why}; name a free port"
                ) from error
            self._server, self._thread = server, thread
            self.port = server.server_port

    def episode_started(self, event: EpisodeStarted) -> None:
        """Count an attempt."""
        del event
        self._attempts.inc()

    def episode_completed(self, event: EpisodeCompleted) -> None:
        """Count a finished episode."""
        outcome = "unjudged" if event.success is None else "success" if event.success else "failure"
        self._ended(outcome, event)
        self._returns.observe(event.total_reward)

    def episode_errored(self, event: EpisodeErrored) -> None:
        """Count an errored episode."""
        self._ended("errored", event)

    def on_worker_changed(self, event: WorkerChanged) -> None:
        """Count workers by state, and losses."""
        with self._lock:
            self._states[event.worker] = event.state
            states = list(self._states.values())
        for state in {*_STATES, *states}:
            self._workers.labels(state).set(states.count(state))
        if event.state == "lost":
            self._losses.inc()

    def on_telemetry(self, event: TelemetryEmitted) -> None:
        """Take a window; of the snapshot of the whole session what came after its last one."""
        for row in event.snapshot.rows:
            if row.operation in PHASES and row.metric == "rpc.total":
                quantiles = {"0.5": row.p50, "0.95": row.p95, "0.99": row.p99}
                self._calls.add(
                    (event.session_id, row.component, PHASES[row.operation]),
                    _Phase(
                        row.count,
                        row.mean * row.count / 1000,
                        {name: value / 1000 for name, value in quantiles.items()},
                    ),
                    is_window=event.snapshot.horizon == "window",
                )

    def close(self) -> None:
        """Serve no more."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            if self._thread is not None:
                self._thread.join(5.0)

    def _ended(self, outcome: str, event: EpisodeCompleted | EpisodeErrored) -> None:
        self._episodes.labels(outcome, event.task).inc()
        self._steps.inc(event.steps)
        self._durations.observe(event.duration_s)
        self._lengths.observe(event.steps)


@dataclass
class _Phase:
    count: int
    sum_s: float
    quantiles: dict[str, float]

    def and_then(self, other: _Phase) -> _Phase:
        """Return both together, with the quantiles of the later one."""
        return _Phase(self.count + other.count, self.sum_s + other.sum_s, other.quantiles)


class _Calls:
    """Collects the durations of calls, as `prometheus_client` wants a collector."""

    def __init__(self, client: Any) -> None:
        self._metric = client.Metric
        self._phases: dict[str, _Phase] = {}
        self._windows: dict[tuple[str, str, str], _Phase] = {}  # of sessions that go on
        self._lock = threading.Lock()

    def add(self, key: tuple[str, str, str], found: _Phase, *, is_window: bool) -> None:
        """Add a window, or what a whole session has beyond its windows.

        Args:
            key: The session, the component, and the kind of call.
            found: What was measured.
            is_window: Whether in a window; else in the session, which is over.
        """
        with self._lock:
            told = self._windows.pop(key, _Phase(0, 0.0, {}))
            if is_window:
                self._windows[key] = told.and_then(found)
            else:
                rest = max(0, found.count - told.count), max(0.0, found.sum_s - told.sum_s)
                found = _Phase(*rest, told.quantiles or found.quantiles)
            before = self._phases.get(key[2], _Phase(0, 0.0, {}))
            self._phases[key[2]] = before.and_then(found)

    def collect(self) -> Iterable[Any]:
        """Yield the summary of all calls."""
        name = "rollmesh_call_duration_seconds"
        family = self._metric(name, "Durations of calls; quantiles of the last second.", "summary")
        with self._lock:
            phases = sorted(self._phases.items())
        for call, phase in phases:
            for quantile, value in phase.quantiles.items():
                family.add_sample(name, {"call": call, "quantile": quantile}, value)
            family.add_sample(f"{name}_count", {"call": call}, phase.count)
            family.add_sample(f"{name}_sum", {"call": call}, phase.sum_s)
        yield family
