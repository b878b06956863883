"""Observers by name: a missing library, a wrong option and a taken port are one sentence each."""

from __future__ import annotations

import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rollmesh import observers
from rollmesh.errors import InvalidSpec
from rollmesh.observers.observer import Numbers, Observer, phase_numbers
from tests.unit.viewer_toys import completed, episode, errored, metric, result, telemetry


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(InvalidSpec, match="wants one of prometheus, opentelemetry, wandb"):
        observers.open("grafana")


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("prometheus", "prometheus_client", "prometheus"),
        ("opentelemetry", "opentelemetry.trace", "otel"),
        ("wandb", "wandb", "wandb"),
        ("mlflow", "mlflow", "mlflow"),
        ("tensorboard", "tensorboardX", "tensorboard"),
    ],
)
def test_a_missing_library_is_a_sentence_with_what_to_install(monkeypatch, name, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidSpec) as info:
        observers.open(name)
    assert f"pip install 'rollmesh[{extra}]'" in str(info.value)


class UnsupportedUriError(Exception):
    """What MLflow raises for a store that its small package has not got."""


@pytest.mark.parametrize("trouble", [UnsupportedUriError("sqlite"), OSError("refused")])
def test_a_store_that_mlflow_has_not_got_is_a_sentence_with_the_cures(monkeypatch, trouble):
    def client(uri):
        raise trouble

    for name in ("mlflow", "mlflow.entities"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(MlflowClient=client))
    with pytest.raises(InvalidSpec, match="cannot watch this run") as info:
        observers.open("mlflow")
    is_store = isinstance(trouble, UnsupportedUriError)
    assert ("MLFLOW_TRACKING_URI" in str(info.value)) is is_store
    assert ("pip install mlflow" in str(info.value)) is is_store


def test_a_wrong_option_is_a_sentence():
    with pytest.raises(InvalidSpec, match=r"prometheus: cannot watch this run: .*'prot'"):
        observers.open("prometheus", prot=9090)


def test_a_taken_port_is_a_sentence():
    pytest.importorskip("prometheus_client")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidSpec, match="name a free port"):
            observers.open("prometheus", port=taken.getsockname()[1])


def test_importing_observers_imports_none_of_their_libraries():
    code = (
        "import sys, rollmesh.observers, rollmesh.observers.prometheus, "
        "rollmesh.observers.opentelemetry, rollmesh.observers.wandb, rollmesh.observers.mlflow, "
        "rollmesh.observers.tensorboard\n"
        "print([m for m in ('prometheus_client','opentelemetry','wandb','mlflow','tensorboardX') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


def test_a_summary_has_rates_and_means_with_their_intervals():
    numbers = Numbers()
    for index in range(4):
        numbers.add(completed(index, float(index), success=index > 0))
    numbers.add_errored(errored(4))
    table = numbers.summary()
    assert table["episodes"] == 5
    assert table["errored"] == 1
    assert table["steps"] == 14
    assert table["success_rate"] == 0.75
    assert table["success_rate_low"] < 0.75 < table["success_rate_high"]
    assert table["mean_return"] == 1.5
    assert table["mean_return_low"] < 1.5 < table["mean_return_high"]
    assert Numbers().summary() == {"episodes": 0, "errored": 0, "steps": 0}


def test_the_interval_of_several_tasks_is_that_of_the_result():
    numbers, episodes = Numbers(), []
    for index in range(40):
        reward, task = float(100 * (index % 2) + index % 7), ("lift", "pour")[index % 2]
        numbers.add(completed(index, reward, task=task))
        episodes.append(episode(index, reward, task=task))
    low, high = result(episodes).return_interval
    table = numbers.summary()
    assert table["mean_return_low"] == pytest.approx(low)
    assert table["mean_return_high"] == pytest.approx(high)


def test_phases_are_named_as_people_name_them():
    snapshot = telemetry(metric("env.step"), metric("runner.round", "round.total")).snapshot
    assert phase_numbers(snapshot) == {"step_p50_ms": 1.5, "step_p99_ms": 8.0}


def test_an_observer_is_closed_by_its_context():
    class Mine(Observer):
        closed = 0

        def close(self):
            self.closed += 1

    with Mine() as mine:
        pass
    assert mine.closed == 1
