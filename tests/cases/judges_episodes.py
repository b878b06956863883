"""Judges of cases on episodes, chunks and seeds; each follows its case's "Right: …"."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from rollmesh import InvalidSpec, ModelFailed, evaluate
from tests.cases.judging import checked, finished, raised, refused
from tests.cases.recording import Outcome


def judge_c04(outcome: Outcome) -> str | None:
    r = checked(outcome)
    ends = [step for step in r["steps"] if step["terminated"]]
    assert len(ends) == len(r["episodes"]) == 6, "an end is missing among the steps"
    return None


def judge_c15(outcome: Outcome) -> str | None:
    if outcome.run.seeds != []:
        checked(outcome)
        return None
    r = finished(outcome)
    assert r["episodes"] == []
    assert r["tape"] == [], "zero episodes touch nothing"
    result = outcome.result
    assert result is not None
    assert result.mean_return is None
    assert result.success_rate is None
    assert result.total_steps == 0
    assert json.loads(result.to_json())["episodes"] == []
    return None


def judge_c16(outcome: Outcome) -> str | None:
    r = checked(outcome)
    model = [row for row in r["tape"] if row["who"] == "model"]
    ends = [row["ep"] for row in model if row["ev"] == "end"]
    asked = {row["ep"] for row in model if row["ev"] == "predict"}
    assert len(ends) == 3, ends
    assert set(ends) == asked == {episode["episode_id"] for episode in r["episodes"]}
    over: set[str] = set()
    last = None
    for row in model:
        if row["ev"] == "end":
            over.add(row["ep"])
            continue
        assert row["ep"] not in over, model
        if outcome.way != "workers 3":  # an end comes before the next episode's first predict
            assert last in {None, row["ep"]} or last in over, model
        last = row["ep"]
    return None


def judge_c18(outcome: Outcome) -> str | None:
    if outcome.run.lanes == 1:
        checked(outcome)
        return None
    r = finished(outcome)
    predicts = sorted(row["t"] for row in r["tape"] if row["ev"] == "predict")
    assert predicts == [0.0, 0.0, 4.0, 4.0, 8.0, 8.0], predicts
    want = [[float(t - t % 4), float(t % 4)] for t in range(10)]
    for lane in range(2):
        got = [row["a"] for row in outcome.env_events("step") if row["lane"] == lane]
        assert got == want, (lane, got)
    return None


def judge_c20(outcome: Outcome) -> str | None:
    variant = outcome.run.variant
    if variant == "short":
        checked(outcome)
        return "replayed, then asked again"
    if variant == "flat" and outcome.error is None:
        # A plain callable may answer with one action.
        steps = outcome.env_events("step")
        assert [row["a"] for row in steps] == [[0.0, 0.0]] * 10
        assert sum(row["ev"] == "predict" for row in outcome.tape) == 10
        return "taken for a single action"
    got = {
        "zero_d": "()",
        "batched": "(1, 8, 2)",
        "empty": "(0, 2)",
        "flat": "(2,)",
        "width": "(4, 3)",
        "none": "None",
    }[variant]
    assert outcome.env_events("step") == [], "a malformed plan reached the env"
    return refused(outcome, ModelFailed, f"returned {got}" if got == "None" else got, "wanted ")


def judge_c41(outcome: Outcome) -> str | None:
    """Good seeds arrive exactly; bad ones, and True, are refused before anything is built."""
    checked(outcome)
    case, zero = outcome.run.case, outcome.run.make_policy()
    assert [episode["seed"] for episode in outcome.r["episodes"]] == [int(s) for s in case.GOOD]
    for bad in (*outcome.run.run["bad"], True):
        built: list[int] = []

        def factory(lane: int, built: list[int] = built) -> Any:
            built.append(lane)
            return case.make_env(lane)

        plan = [0, bad]
        error = raised(
            InvalidSpec, lambda plan=plan, make=factory: evaluate(zero, make, seeds=plan)
        )
        for word in ("seeds[1]", repr(bad), "0 or more"):
            assert word in str(error), error
        assert not built, "an env was built for a bad seed"
    return None


def judge_c42(outcome: Outcome) -> str | None:
    r = checked(outcome)
    draws = [row for row in r["tape"] if row["ev"] == "draw"]
    if outcome.run.seeds is None:
        assert len({row["x"] for row in draws}) == len(draws) == 2, draws
        assert all(isinstance(episode["seed"], int) for episode in r["episodes"])
    first = {step["episode"]: float(step["obs"][0]) for step in r["steps"] if step["t"] == 0}
    for index, episode in enumerate(r["episodes"]):
        want = np.float32(outcome.run.case.truth(episode["seed"]))
        assert first[index] == want, (index, episode["seed"])
    return None
