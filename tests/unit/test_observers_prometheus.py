"""The Prometheus endpoint, read as a scraper reads it."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

import rollmesh
from rollmesh import observers
from tests.unit.viewer_toys import completed, errored, metric, started, telemetry, worker

client = pytest.importorskip("prometheus_client")
parser = pytest.importorskip("prometheus_client.parser")


@pytest.fixture
def watching():
    with observers.open("prometheus", port=None) as hook:
        yield hook


def samples(text):
    """Return every sample by name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(hook):
    return samples(client.generate_latest(hook.registry).decode())


def test_episodes_steps_attempts_and_losses_are_counted(watching):
    watching.episode_started(started(0))
    watching.episode_started(started(0, attempt=2))
    watching.episode_completed(completed(0, 2.0, success=True, task="lift"))
    watching.episode_completed(completed(1, 4.0, success=False, task="lift"))
    watching.episode_completed(completed(2, 6.0))
    watching.episode_errored(errored(3))
    watching.on_worker_changed(worker(0, "ready"))
    watching.on_worker_changed(worker(1, "lost"))
    watching.on_worker_changed(worker(1, "starting"))
    found = scraped(watching)
    name = "rollmesh_episodes_total"
    assert found[name, ("outcome", "success"), ("task", "lift")] == 1
    assert found[name, ("outcome", "failure"), ("task", "lift")] == 1
    assert found[name, ("outcome", "unjudged"), ("task", "")] == 1
    assert found[name, ("outcome", "errored"), ("task", "")] == 1
    assert found[("rollmesh_attempts_total",)] == 2
    assert found[("rollmesh_steps_total",)] == 11
    assert found[("rollmesh_worker_losses_total",)] == 1
    assert found["rollmesh_workers", ("state", "ready")] == 1
    assert found["rollmesh_workers", ("state", "starting")] == 1
    assert found["rollmesh_workers", ("state", "lost")] == 0
    assert found[("rollmesh_episode_return_sum",)] == 12.0
    assert found[("rollmesh_episode_return_count",)] == 3
    assert found["rollmesh_episode_steps_bucket", ("le", "3.0")] == 4


def test_calls_sum_over_windows_and_the_session_is_not_counted_again(watching):
    for p99 in (8.0, 16.0):
        watching.on_telemetry(telemetry(metric("env.step", count=50, mean=2.0, p99=p99)))
    watching.on_telemetry(telemetry(metric("env.step", count=100), horizon="session"))
    found = scraped(watching)
    name = "rollmesh_call_duration_seconds"
    assert found[f"{name}_count", ("call", "step")] == 100
    assert found[f"{name}_sum", ("call", "step")] == pytest.approx(0.2)
    assert found[name, ("call", "step"), ("quantile", "0.99")] == pytest.approx(0.016)


def test_calls_after_the_last_window_are_counted_too(watching):
    name = "rollmesh_call_duration_seconds"
    watching.on_telemetry(telemetry(metric("env.step", count=50, mean=2.0, p99=8.0)))
    whole = (metric("env.step", count=80, mean=2.5, p99=9.0), metric("env.reset", count=3, p99=1.0))
    watching.on_telemetry(telemetry(*whole, horizon="session"))
    found = scraped(watching)
    assert found[f"{name}_count", ("call", "step")] == 80
    assert found[f"{name}_sum", ("call", "step")] == pytest.approx(0.2)
    assert found[name, ("call", "step"), ("quantile", "0.99")] == pytest.approx(0.008)
    assert found[f"{name}_count", ("call", "reset")] == 3
    assert found[name, ("call", "reset"), ("quantile", "0.99")] == pytest.approx(0.001)
    watching.on_telemetry(telemetry(metric("env.step", count=10, mean=2.0), horizon="session"))
    assert scraped(watching)[f"{name}_count", ("call", "step")] == 90


def test_a_scraper_sees_the_run_on_this_machine_only():
    with observers.open("prometheus") as hook:
        rollmesh.evaluate("random", "CartPole-v1", episodes=5, base_seed=0, hooks=hook)
        assert hook._server.server_address[0] == "127.0.0.1"
        url = f"http://127.0.0.1:{hook.port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = samples(answer.read().decode())
        assert found["rollmesh_episodes_total", ("outcome", "unjudged"), ("task", "")] == 5
    hook.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=10)


def test_a_port_that_cannot_be_had_is_named():
    with (
        observers.open("prometheus", port=0) as first,
        pytest.raises(rollmesh.InvalidSpec, match=f"port {first.port}: Address already in use"),
    ):
        observers.open("prometheus", port=first.port)
    with pytest.raises(rollmesh.InvalidSpec, match=r"port 99999: .*0-65535"):
        observers.open("prometheus", port=99999)
