"""OpenTelemetry traces and metrics as a hooks object (extra `otel`).

A span for the session, and one an attempt inside it; counters and histograms of episodes. Where the
spans go is OpenTelemetry's own business: without providers the global ones are used, which do
nothing unless an SDK was set up; then one warning says so.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from rollmesh.observers.observer import PHASES, Observer, library

if TYPE_CHECKING:
    from rollmesh.events import (
        EpisodeCompleted,
        EpisodeErrored,
        EpisodeStarted,
        SessionEnded,
        SessionFailed,
        SessionStarted,
        TelemetryEmitted,
        WorkerChanged,
    )

_logger = logging.getLogger(__name__)

_SCOPE = "rollmesh"


class OpenTelemetryHooks(Observer):
    """Tells OpenTelemetry of sessions, episodes, workers and calls.

    Raises:
        InvalidSpec: The OpenTelemetry API is not installed.
    """

    def __init__(self, *, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        """Prepare the instruments.

        Args:
            tracer_provider: Makes the tracer; None is the global one.
            meter_provider: Makes the meter; None is the global one.
        """
        self._trace: Any = library("opentelemetry.trace", "otel")
        metrics: Any = library("opentelemetry.metrics", "otel")
        if tracer_provider is None and meter_provider is None:
            _warn_of_nowhere(self._trace.get_tracer_provider(), metrics.get_meter_provider())
        self._tracer = self._trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._episodes = meter.create_counter("rollmesh.episodes", "{episode}", "Ended episodes.")
        self._attempts = meter.create_counter("rollmesh.attempts", "{attempt}", "Attempts begun.")
        self._steps = meter.create_counter("rollmesh.steps", "{step}", "Env steps.")
        self._losses = meter.create_counter("rollmesh.worker.losses", "{worker}", "Workers lost.")
        self._durations = meter.create_histogram(
            "rollmesh.episode.duration", "s", "From the reset's reply to the last step's."
        )
        self._returns = meter.create_histogram("rollmesh.episode.return", "1", "Returns.")
        self._calls = meter.create_gauge(
            "rollmesh.call.duration", "s", "Quantiles of the last telemetry window."
        )
        self._lock = threading.Lock()
        self._sessions: dict[str, Any] = {}
        self._spans: dict[tuple[str, int], Any] = {}

    def session_started(self, event: SessionStarted) -> None:
        """Begin the session's span."""
        span = self._tracer.start_span(
            "rollmesh.session",
            attributes={
                "rollmesh.session_id": event.session_id,
                "rollmesh.env": event.route.env_component,
                "rollmesh.model": event.route.model_component,
            },
        )
        with self._lock:
            self._sessions[event.session_id] = span

    def session_ended(self, event: SessionEnded) -> None:
        """End the session's span."""
        self._end_session(event.session_id, None)

    def session_failed(self, event: SessionFailed) -> None:
        """End the session's span as an error."""
        self._end_session(event.session_id, str(event.reason))

    def episode_started(self, event: EpisodeStarted) -> None:
        """Begin an attempt's span; one still open on this lane came to nothing."""
        self._attempts.add(1)
        with self._lock:
            parent = self._sessions.get(event.session_id)
        context = None if parent is None else self._trace.set_span_in_context(parent)
        attributes: dict[str, Any] = {
            "rollmesh.episode_id": event.episode_id,
            "rollmesh.episode_index": event.episode_index,
            "rollmesh.lane": event.env_index,
            "rollmesh.attempt": event.attempt,
        }
        if event.seed is not None:
            attributes["rollmesh.seed"] = str(event.seed)  # seeds may have more than 64 bits
        if event.task:
            attributes["rollmesh.task"] = event.task
        span = self._tracer.start_span("rollmesh.episode", context=context, attributes=attributes)
        with self._lock:
            lost = self._spans.get((event.session_id, event.env_index))
            self._spans[event.session_id, event.env_index] = span
        if lost is not None:
            self._end(lost, error="the attempt came to nothing")

    def episode_completed(self, event: EpisodeCompleted) -> None:
        """End an episode's span with what it came to."""
        outcome = "unjudged" if event.success is None else "success" if event.success else "failure"
        labels = _labels(outcome, event.task)
        self._returns.record(event.total_reward, labels)
        self._ended(event, labels, None)

    def episode_errored(self, event: EpisodeErrored) -> None:
        """End an episode's span as an error."""
        self._ended(event, _labels("errored", event.task), event.error)

    def on_worker_changed(self, event: WorkerChanged) -> None:
        """Count losses."""
        if event.state == "lost":
            self._losses.add(1, {"rollmesh.worker": event.worker})

    def on_telemetry(self, event: TelemetryEmitted) -> None:
        """Set the quantiles of each kind of call."""
        for row in event.snapshot.rows:
            if row.operation in PHASES and row.metric == "rpc.total":
                for quantile, value in (("0.5", row.p50), ("0.99", row.p99)):
                    labels = {"rollmesh.call": PHASES[row.operation], "quantile": quantile}
                    self._calls.set(value / 1000, labels)

    def close(self) -> None:
        """End every span that is open."""
        with self._lock:
            sessions = list(self._sessions)
        for session_id in sessions:
            self._end_session(session_id, None)

    def _ended(
        self, event: EpisodeCompleted | EpisodeErrored, labels: dict[str, str], error: str | None
    ) -> None:
        self._episodes.add(1, labels)
        self._steps.add(event.steps)
        self._durations.record(event.duration_s, labels)
        with self._lock:
            span = self._spans.pop((event.session_id, event.env_index), None)
        if span is not None:
            span.set_attribute("rollmesh.outcome", labels["rollmesh.outcome"])
            span.set_attribute("rollmesh.steps", event.steps)
            span.set_attribute("rollmesh.return", event.total_reward)
            self._end(span, error)

    def _end_session(self, session_id: str, error: str | None) -> None:
        with self._lock:
            session = self._sessions.pop(session_id, None)
            mine = [key for key in self._spans if key[0] == session_id]
            lost = [self._spans.pop(key) for key in mine]
        for span in lost:
            self._end(span, error="the episode did not end")
        if session is not None:
            self._end(session, error)

    def _end(self, span: Any, error: str | None) -> None:
        if error is not None:
            first = error.strip().partition("\n")[0]
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, first))
        span.end()


def _warn_of_nowhere(*providers: Any) -> None:
    """Say so where the global providers are OpenTelemetry's stand-ins, which do nothing."""
    if all("Proxy" in type(provider).__name__ for provider in providers):
        _logger.warning(
            "opentelemetry.goes_nowhere: no SDK was set up, so spans and metrics are dropped; run "
            "the command under opentelemetry-instrument, or give providers"
        )


def _labels(outcome: str, task: str) -> dict[str, str]:
    labels = {"rollmesh.outcome": outcome}
    return labels | {"rollmesh.task": task} if task else labels
