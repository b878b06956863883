"""What a stored run comes to: by task, errors by cause, slow phases."""

from __future__ import annotations

import json
import math

from rollmesh.events import MetricRow, TelemetrySnapshot
from rollmesh.runs import summary
from rollmesh.runs.journal import Journal
from rollmesh.runs.moving import retry_errored
from rollmesh.runs.reading import read_run
from rollmesh.runs.rows import FailedAttempt
from tests.unit.runs_toys import StillClock, episode, identity


def metric(operation, count, mean, *, name="rpc.total", kind="duration"):
    return MetricRow(
        operation=operation, component="c", metric=name, kind=kind, count=count, mean=mean,
        p50=mean, p95=mean, p99=mean * 2, min=0.0, max=mean * 3,
    )  # fmt: skip


ROWS = (
    metric("env.step", 1000, 2.0),
    metric("env.step", 1000, 1.0, name="endpoint.total"),
    metric("env.step", 1000, 9.0, name="request.bytes", kind="bytes"),
    metric("model.predict", 100, 50.0),
)


def stored(folder, *episodes, telemetry=None, attempts=()):
    opened = Journal.open(folder, identity=identity(), facts={}, clock=StillClock())
    with opened as journal:
        for one in episodes:
            journal.record(one)
        for attempt in attempts:
            journal.record_failed_attempt(attempt)
        journal.note_outcome(elapsed_s=1.0, telemetry=telemetry)
    return read_run(folder)


def test_each_task_has_its_own_figures(tmp_path):
    run = stored(
        tmp_path,
        episode(0, task="b", success=True, total_reward=1.0),
        episode(1, task="a", success=False),
        episode(2, task="b", success=False, total_reward=2.0),
        episode(3, task="b", success=None, error="boom"),
    )
    tasks = run.result.tasks
    assert list(tasks) == ["b", "a"]
    assert (tasks["b"].success_rate, tasks["b"].mean_return, tasks["b"].num_errors) == (0.5, 1.5, 1)
    assert tasks["a"].success_rate == 0.0


def test_errors_that_differ_in_numbers_and_ids_are_one_cause(tmp_path):
    text = "EnvFailed: env.step failed at step {}, episode 0199f0c4-0000-7000-8000-00000000000{}\nx"
    run = stored(
        tmp_path,
        episode(0),
        episode(1, error="ModelFailed: other"),
        episode(2, error=text.format(17, 1)),
        episode(3, error=text.format(4, 2)),
        episode(4, error="  \n"),
    )
    causes = summary.errors_by_cause(run)
    assert causes[0].text == "EnvFailed: env.step failed at step 17"
    assert (causes[0].count, causes[0].episodes) == (2, (2, 3))
    assert {cause.text for cause in causes[1:]} == {"ModelFailed: other", "no message"}


def test_causes_of_attempts_made_again_are_counted_each(tmp_path):
    run = stored(
        tmp_path,
        episode(0, attempts=3, causes=("SIGKILL", "SIGKILL")),
        episode(1, attempts=2, causes=("exit code 3",)),
        episode(2),
    )
    first, second = summary.retries_by_cause(run)
    assert (first.text, first.count, first.episodes) == ("SIGKILL", 2, (0,))
    assert (second.text, second.count, second.episodes) == ("exit code 3", 1, (1,))


def test_phases_come_by_the_time_they_took_altogether(tmp_path):
    snapshot = TelemetrySnapshot(horizon="session", rows=ROWS)
    first, second = summary.slowest_phases(stored(tmp_path, telemetry=snapshot))
    assert (first.operation, first.count, first.total_s) == ("model.predict", 100, 5.0)
    assert (second.operation, second.total_s) == ("env.step", 2.0)
    assert (second.p50_ms, second.p99_ms, second.max_ms) == (2.0, 4.0, 6.0)
    assert summary.slowest_phases(stored(tmp_path / "none")) == ()


def test_phases_of_several_starts_are_summed_and_a_start_without_any_is_told(tmp_path):
    snapshot = TelemetrySnapshot(horizon="session", rows=ROWS)
    later = TelemetrySnapshot(horizon="session", rows=(metric("env.step", 10, 0.5),))
    stored(tmp_path, telemetry=snapshot)
    stored(tmp_path)
    run = stored(tmp_path, telemetry=later)
    predict, step = summary.slowest_phases(run)
    assert (predict.count, predict.p50_ms) == (100, 50.0)
    assert (step.count, step.total_s, step.max_ms) == (1010, 2.005, 6.0)
    assert (step.p50_ms, step.p99_ms) == (2.0, 4.0)  # not those of ten calls
    assert (summary.starts_with_phases(run), len(run.starts)) == (2, 3)


def test_everything_is_plain_json(tmp_path):
    run = stored(
        tmp_path,
        episode(0, total_reward=math.nan),
        episode(1, error="boom"),
        attempts=[FailedAttempt(index=1, attempt=1, cause="SIGKILL", signal=9)],
        telemetry=TelemetrySnapshot(horizon="session", rows=ROWS),
    )
    retry_errored(tmp_path)
    run = read_run(tmp_path)
    table = json.loads(json.dumps(summary.to_dict(run), allow_nan=False))
    assert table["status"] == "stopped"
    assert table["created_at"] == "2001-09-09T01:46:40.000Z"
    assert table["plan_hash"] == identity().plan_hash
    assert table["tasks"]["lift"]["num_episodes"] == 1
    assert table["tasks"]["lift"]["mean_return"] is None
    assert table["retried"] == [1]
    assert table["failed_attempts"][0]["signal"] == 9
    assert table["result"]["non_finite"]


def test_settings_and_facts_that_are_not_finite_are_texts_in_json(tmp_path):
    endless = identity(settings={"max_episode_seconds": math.inf})
    facts = {"note": {"limits": [-math.inf, math.nan, 1.0]}}
    with Journal.open(tmp_path, identity=endless, facts=facts):
        pass
    table = json.loads(json.dumps(summary.to_dict(read_run(tmp_path)), allow_nan=False))
    assert table["settings"] == {"max_episode_seconds": "Infinity"}
    assert table["starts"][0]["facts"]["note"]["limits"] == ["-Infinity", "NaN", 1.0]
    assert len(table["starts"]) == 1
