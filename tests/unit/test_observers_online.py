"""Weights & Biases offline and MLflow's file store, each with its own library."""

from __future__ import annotations

import pytest

import rollmesh
from rollmesh import observers

pytestmark = [
    pytest.mark.slow,
    # Of the libraries, not of ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def evaluate(watching):
    return rollmesh.evaluate("random", "CartPole-v1", episodes=12, base_seed=0, hooks=watching)


def test_mlflow_keeps_episodes_and_the_summary(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    with observers.open("mlflow", tracking_uri=uri, experiment="mine", run_name="one") as watching:
        result = evaluate(watching)
    client = mlflow.MlflowClient(uri)
    run = client.get_run(watching.run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "one"
    assert run.data.tags["rollmesh.env"] == result.env
    assert run.data.metrics["rollmesh/result/mean_return"] == pytest.approx(result.mean_return)
    low, _ = result.return_interval
    assert run.data.metrics["rollmesh/result/mean_return_low"] == pytest.approx(low)
    history = client.get_metric_history(watching.run_id, "rollmesh/episode/return")
    assert [m.value for m in sorted(history, key=lambda m: m.step)] == [
        e.total_reward for e in result.episodes
    ]


def test_mlflow_uses_a_run_that_is_given_and_leaves_it_open(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    client = mlflow.MlflowClient(uri)
    mine = client.create_run("0").info.run_id
    with observers.open("mlflow", tracking_uri=uri, run_id=mine) as watching:
        evaluate(watching)
    run = client.get_run(mine)
    assert run.info.status == "RUNNING"
    assert run.data.metrics["rollmesh/result/episodes"] == 12


def test_wandb_offline_keeps_episodes_and_the_summary(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path))
    run = wandb.init(
        mode="offline", dir=tmp_path, project="mine", settings=wandb.Settings(console="off")
    )
    with observers.open("wandb", run=run) as watching:
        result = evaluate(watching)
    summary = dict(run.summary)
    assert summary["rollmesh/result/mean_return"] == pytest.approx(result.mean_return)
    low, high = result.return_interval
    assert summary["rollmesh/result/mean_return_low"] == pytest.approx(low)
    assert summary["rollmesh/result/mean_return_high"] == pytest.approx(high)
    assert summary["rollmesh/episode/return"] == result.episodes[-1].total_reward
    assert run.config["rollmesh"]["env"] == result.env
    run.finish()


def test_wandb_begins_and_finishes_a_run_of_its_own(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with observers.open("wandb", mode="offline", dir=str(tmp_path), project="mine") as watching:
        evaluate(watching)
        assert wandb.run is not None
    assert wandb.run is None
    assert list(tmp_path.rglob("*.wandb"))
