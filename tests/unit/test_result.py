"""`EvalResult`: what is counted, what is not, and how it is shown."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from rollmesh.events import MetricRow, TelemetrySnapshot
from rollmesh.results import EpisodeResult, EvalResult
from rollmesh.results.aggregates import summarize_returns
from rollmesh.results.stopping import StopRule
from tests.unit.result_toys import returns


def episode(index: int, reward: float = 1.0, **over: Any) -> EpisodeResult:
    given: dict[str, Any] = {
        "index": index,
        "seed": index + 100,
        "env_index": 0,
        "episode_id": f"id-{index}",
        "steps": 10,
        "total_reward": reward,
        "terminated": True,
        "truncated": False,
        "success": None,
        "duration_s": 0.5,
        "error": None,
    }
    return EpisodeResult(**{**given, **over})


def result(*episodes: EpisodeResult, **over: Any) -> EvalResult:
    given: dict[str, Any] = {"planned": len(episodes), "env": "Toy-v0", "model": "zero"}
    return EvalResult(episodes=episodes, **{**given, **over})


def test_no_episodes_give_an_empty_result_that_never_raises() -> None:
    empty = EvalResult(episodes=())
    assert empty.success_rate is None
    assert empty.success_interval is None
    assert empty.success_bounds is None
    assert empty.mean_return is None
    assert empty.return_interval is None
    assert empty.mean_length is None
    assert empty.steps_per_s is None
    assert "0 episodes" in repr(empty)
    assert json.loads(empty.to_json())["episodes"] == []


def test_success_rate_is_none_where_no_episode_says() -> None:
    assert result(episode(0), episode(1)).success_rate is None
    assert "the env does not say" in repr(result(episode(0)))


def test_success_rate_counts_only_the_episodes_that_say() -> None:
    found = result(episode(0, success=True), episode(1, success=False), episode(2))
    assert found.success_rate == 0.5
    assert "1 of 2; 1 do not say" in repr(found)


def test_errored_episodes_are_in_no_mean_or_rate_and_give_bounds() -> None:
    found = result(
        episode(0, 4.0, success=True),
        episode(1, -99.0, success=None, error="RuntimeError: boom", terminated=False),
        episode(2, 2.0, success=True, steps=20),
    )
    assert found.success_rate == 1.0
    assert found.success_bounds == (2 / 3, 1.0)
    assert found.mean_return == 3.0
    assert found.mean_length == 15.0
    assert found.num_errors == 1
    assert "RuntimeError: boom" in repr(found)
    assert "0.667 to 1.000 with the errored ones" in repr(found)


def test_bounds_without_errors_are_the_rate() -> None:
    found = result(episode(0, success=True), episode(1, success=False))
    assert found.success_bounds == (0.5, 0.5)


def test_mean_return_is_nan_if_any_return_is_and_says_how_many() -> None:
    found = result(episode(0, math.nan), episode(1, 2.0), episode(2, math.inf))
    assert math.isnan(found.mean_return or 0.0)
    assert found.num_non_finite_returns == 2
    assert found.return_interval is None
    assert "2 of 3 returns not finite" in repr(found)


def test_json_names_non_finite_numbers_instead_of_carrying_them() -> None:
    found = result(episode(0, math.nan), episode(1, -math.inf), episode(2, 2.0))
    table = json.loads(found.to_json(), parse_constant=pytest.fail)
    assert table["episodes"][0]["total_reward"] is None
    assert table["episodes"][1]["total_reward"] is None
    assert table["mean_return"] is None
    assert set(table["non_finite"]) == {
        "mean_return",
        "episodes[0].total_reward",
        "episodes[1].total_reward",
    }


def test_json_keys_are_named_as_the_fields_and_seeds_stay_exact() -> None:
    snapshot = TelemetrySnapshot(
        horizon="session",
        rows=(
            MetricRow(
                operation="env.step",
                component="env",
                metric="rpc.total",
                kind="duration",
                count=1,
                mean=0.1,
                p50=0.1,
                p95=0.1,
                p99=0.1,
                min=0.1,
                max=0.1,
            ),
        ),
    )
    found = result(episode(0, seed=2**100, success=True), plan_seed=7, telemetry=snapshot)
    table = json.loads(found.to_json())
    assert table["episodes"][0]["seed"] == 2**100
    assert set(table["episodes"][0]) == set(EpisodeResult.__dataclass_fields__)
    assert table["plan_seed"] == 7
    assert table["success_interval"]["method"] == "wilson"
    assert table["telemetry"]["rows"][0]["operation"] == "env.step"
    assert table["non_finite"] == []


def test_repr_shows_intervals_speed_and_the_plan_seed() -> None:
    rewards = [9.0, 11.0, 10.0, 12.0]
    found = result(
        *(episode(i, r, success=i > 0) for i, r in enumerate(rewards)),
        plan_seed=42,
        elapsed_s=0.5,
        num_envs=2,
    )
    text = repr(found)
    assert text.splitlines()[0] == "EvalResult  zero in Toy-v0: 4 episodes, 2 lanes"
    assert "0.750" in text
    assert "95 % Wilson" in text
    assert "95 % Student t" in text
    assert "steps/s       80 " in text
    assert "40 steps in 0.50 s" in text
    assert "plan seed     42" in text


def test_repr_says_when_and_why_fewer_episodes_ended() -> None:
    found = result(episode(0), planned=10, stopped="interrupted")
    assert "1 of 10 episodes (stopped: interrupted)" in repr(found)


def test_the_cause_of_an_error_is_shown_once_and_is_not_cut_off() -> None:
    episode_id = "01a228ae-4bc3-7a42-9e78-c76a15000e01"
    where = "Step7: env.step failed at step 7, lane 0"
    said = f"{where}, episode {episode_id}, seed 848936359: RuntimeError: the GL context is lost"
    brief = f"{where}, seed 848936359: RuntimeError: the GL context is lost"
    error = f"{said}\n\nenv-side traceback:\n..."
    going_on = repr(result(episode(0, error=error), planned=1))
    assert f"first: {brief}\n" in f"{going_on}\n"
    stopped = repr(result(episode(0, error=error), planned=3, stopped=error))
    assert f"1 of 3 episodes (stopped: {brief})" in stopped
    assert stopped.count("GL context") == 1
    assert "it stopped the run" in stopped


def test_where_every_episode_errored_the_env_is_not_said_to_be_silent() -> None:
    assert "no episode finished" in repr(result(episode(0, error="broke"), planned=1))
    assert "the env does not say" in repr(result(episode(0), episode(1, error="broke")))


def test_one_episode_is_one() -> None:
    assert repr(result(episode(0))).startswith("EvalResult  zero in Toy-v0: 1 episode\n")
    assert "1 of 2 episodes" in repr(result(episode(0), planned=2))


def test_an_endless_error_is_cut() -> None:
    assert "xx …\n" in f"{result(episode(0, error='x' * 10_000), planned=1)!r}\n"


def test_how_often_a_model_that_answers_with_chunks_was_asked_is_shown() -> None:
    def asked(times: int) -> TelemetrySnapshot:
        row = MetricRow(
            operation="model.predict",
            component="zero",
            metric="group.size",
            kind="count",
            count=times,
            mean=1.0,
            p50=1.0,
            p95=1.0,
            p99=1.0,
            min=1.0,
            max=1.0,
        )
        return TelemetrySnapshot(horizon="session", rows=(row,))

    chunked = repr(result(episode(0), elapsed_s=0.5, telemetry=asked(2)))
    assert "10 steps from 2 predicted chunks in 0.50 s" in chunked
    each_step = repr(result(episode(0), elapsed_s=0.5, telemetry=asked(10)))
    assert "10 steps in 0.50 s" in each_step


def test_equal_returns_are_shown_as_such() -> None:
    assert "(all equal)" in repr(result(episode(0, 500.0), episode(1, 500.0)))


def decided(*, errors: tuple[int, ...] = (), rest: int = 36) -> EvalResult:
    """31 of the first 38 that say so succeed, and two thirds of those beyond."""
    decision = StopRule.parse("width<0.3").update(31, 38)
    assert decision is not None
    outcomes = [i >= 7 for i in range(38)] + [i % 3 > 0 for i in range(rest)]
    for place in errors:
        outcomes.insert(place, None)
    episodes = [
        episode(i, success=said, error="broke" if said is None else None)
        for i, said in enumerate(outcomes)
    ]
    return result(*episodes, planned=400, decision=decision)


def test_rate_counts_and_interval_are_those_of_the_decision() -> None:
    found = decided()
    interval = found.success_interval
    assert found.success_rate == 31 / 38
    assert interval is not None
    assert interval.low < 31 / 38 < interval.high
    assert (found.success_counts, found.success_counts_of_all) == ((31, 38), (55, 74))
    first, second, *_ = found.summary()
    assert (first.label, first.value) == ("success rate", "0.816")
    assert first.note == "31 of 38 episodes, decided by width<0.3"
    assert (second.label, second.value) == ("all played", "0.743")
    assert second.note == "55 of 74; 36 were played beyond"
    table = json.loads(found.to_json())
    assert table["success_rate"] == 31 / 38
    assert (table["success_counts"], table["success_counts_of_all"]) == ([31, 38], [55, 74])
    assert table["success_rate_of_all"] == 55 / 74
    assert EvalResult.from_json(found.to_json()).success_rate == 31 / 38


def test_where_nothing_was_played_beyond_a_decision_nothing_is_said_of_it() -> None:
    found = decided(rest=0)
    assert found.success_rate == found.success_rate_of_all == 31 / 38
    assert "all played" not in repr(found)
    assert "1 was played beyond" in repr(decided(rest=1))


def test_bounds_beside_a_decision_are_of_its_own_episodes() -> None:
    found = decided(errors=(3, 9, 70))
    assert found.num_errors == 3
    assert found.success_bounds == (31 / 40, 33 / 40)
    assert decided(errors=(70,)).success_bounds == (31 / 38, 31 / 38)


def test_the_interval_of_a_suite_is_stratified_by_task_as_that_of_a_report_is() -> None:
    values = [1000.0 * (i % 4) + i for i in range(80)]
    found = returns(values, tasks=[f"t{i % 4}" for i in range(80)])
    reported = summarize_returns(found)
    assert reported is not None
    assert found.return_interval == reported.mean.interval
    alone = returns(values)
    assert found.return_interval is not None
    assert alone.return_interval is not None
    widths = [one.high - one.low for one in (found.return_interval, alone.return_interval)]
    assert 10 * widths[0] < widths[1]  # how tasks differ adds no width


def test_a_long_folder_does_not_push_the_intervals_away() -> None:
    folder = "runs/halfcheetah-v5-half-cheetah-halfch-0a1b2c3d"
    for resumed in (0, 1):
        found = result(episode(0, 1.0), episode(1, 2.0), run_dir=folder, resumed=resumed)
        lines = repr(found).splitlines()
        assert next(line for line in lines if "mean return" in line).startswith(
            "  mean return   1.500  ["
        )
        kept = next(line for line in lines if "kept in" in line)
        assert kept.startswith(f"  kept in       {folder}")
        assert ("1 episode in earlier starts" in kept) is bool(resumed)
