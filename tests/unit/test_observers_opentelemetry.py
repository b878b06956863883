"""OpenTelemetry spans and metrics, read back from the SDK's in-memory exporters."""

from __future__ import annotations

import pytest

import rollmesh
from rollmesh import observers
from tests.unit.viewer_toys import (
    completed,
    errored,
    metric,
    session_ended,
    session_failed,
    session_started,
    started,
    telemetry,
    worker,
)

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode


class Told:
    """What OpenTelemetry was told."""

    def __init__(self):
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracers, meters = (
            TracerProvider(shutdown_on_exit=False),
            MeterProvider(metric_readers=[self.reader], shutdown_on_exit=False),
        )
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.hook = observers.open("opentelemetry", tracer_provider=tracers, meter_provider=meters)

    def spans(self, name="rollmesh.episode"):
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def metrics(self):
        data = self.reader.get_metrics_data()
        return {
            one.name: list(one.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for one in scope.metrics
        }


@pytest.fixture
def told():
    told = Told()
    yield told
    told.hook.close()


def test_a_run_is_a_session_with_a_span_an_episode(told):
    result = rollmesh.evaluate("random", "CartPole-v1", episodes=4, base_seed=0, hooks=told.hook)
    (session,) = told.spans("rollmesh.session")
    spans = told.spans()
    assert [s.attributes["rollmesh.episode_index"] for s in spans] == [0, 1, 2, 3]
    assert {s.parent.span_id for s in spans} == {session.context.span_id}
    assert [s.attributes["rollmesh.return"] for s in spans] == [
        e.total_reward for e in result.episodes
    ]
    assert spans[0].attributes["rollmesh.seed"] == str(result.episodes[0].seed)
    assert spans[0].attributes["rollmesh.outcome"] == "unjudged"
    assert session.status.status_code is StatusCode.UNSET
    found = told.metrics()
    assert sum(p.value for p in found["rollmesh.episodes"]) == 4
    assert found["rollmesh.steps"][0].value == result.total_steps
    assert found["rollmesh.episode.duration"][0].count == 4


def test_errors_lost_attempts_and_failed_sessions_are_errors(told):
    hook = told.hook
    hook.session_started(session_started())
    hook.episode_started(started(0))
    hook.episode_started(started(0, attempt=2))
    hook.episode_errored(errored(0))
    hook.episode_started(started(1))
    hook.on_worker_changed(worker(0, "lost"))
    hook.session_failed(session_failed())
    first, second, third = told.spans()
    assert first.status.description == "the attempt came to nothing"
    assert second.attributes["rollmesh.attempt"] == 2
    assert second.status.description == "EnvFailed: boom"
    assert third.status.description == "the episode did not end"
    (session,) = told.spans("rollmesh.session")
    assert session.status.status_code is StatusCode.ERROR
    assert told.metrics()["rollmesh.worker.losses"][0].value == 1


def test_an_episode_before_the_session_and_a_close_without_its_end_lose_nothing(told):
    hook = told.hook
    hook.episode_completed(completed(0, 1.0))
    hook.session_ended(session_ended())
    hook.session_started(session_started())
    hook.episode_started(started(1, lane=3))
    hook.close()
    assert len(told.spans()) == len(told.spans("rollmesh.session")) == 1


def test_what_goes_nowhere_is_told(caplog, told):
    assert "opentelemetry.goes_nowhere" not in caplog.text
    observers.open("opentelemetry").close()
    assert "opentelemetry.goes_nowhere" in caplog.text
    assert "opentelemetry-instrument" in caplog.text


def test_calls_are_gauges_in_seconds(told):
    told.hook.on_telemetry(telemetry(metric("env.step", p50=1.5, p99=8.0)))
    points = told.metrics()["rollmesh.call.duration"]
    values = {p.attributes["quantile"]: p.value for p in points}
    assert values == {"0.5": pytest.approx(0.0015), "0.99": pytest.approx(0.008)}
