"""Judges of cases on values, spaces, infos and actions; each follows its case's "Right: …"."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollmesh import EnvFailed, ModelFailed
from tests.cases.case_run import NO_VARIANT
from tests.cases.judging import checked, refused
from tests.cases.recording import Outcome


def judge_c23(outcome: Outcome) -> str | None:
    if outcome.run.variant is NO_VARIANT:
        checked(outcome)
        return None
    kind = {"pair": "ndarray", "text": "str", "none": "NoneType"}[outcome.run.variant]
    return refused(outcome, EnvFailed, "terminated", kind)


def judge_c25(outcome: Outcome) -> str | None:
    r = checked(outcome)
    assert all(type(episode["reward"]) is float for episode in r["episodes"])
    return None


def judge_c26(outcome: Outcome) -> str | None:
    checked(outcome)
    told = [line for line in outcome.lines if "observation" in line]
    assert len(told) <= 1, f"more than one warning a run: {told}"
    return None


def judge_c29(outcome: Outcome) -> str | None:
    r = checked(outcome)
    for step in r["steps"]:
        assert np.shape(step["action"]) == (), step
        assert -2 <= int(step["action"]) <= 2, step
    return None


def judge_c31(outcome: Outcome) -> str | None:
    """All of these spaces are carried, and what arrives is in the space and equal."""
    r = checked(outcome)
    variant = outcome.run.variant
    space, make = outcome.run.case.SPACES[variant]
    (step,) = r["steps"]
    for got, want in ((step["obs"], make(0)), (step["next_obs"], make(1))):
        assert space.contains(got), (variant, got)
        assert _same(got, want), (variant, got, want)
    return None


def _same(one: Any, other: Any) -> bool:
    if isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in other)
    if isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(_same(*pair) for pair in zip(one, other, strict=True))
    if other is None:
        return one is None
    return bool(np.array_equal(one, other)) and np.shape(one) == np.shape(other)


def judge_c33(outcome: Outcome) -> str | None:
    if outcome.error is not None and outcome.run.variant == 300:
        return refused(outcome, EnvFailed, "message_bytes")
    checked(outcome)
    return None


def judge_c34(outcome: Outcome) -> str | None:
    r = checked(outcome)
    odd = [step for step in r["steps"] if np.isnan(np.asarray(step["next_obs"])).any()]
    assert [(step["episode"], step["t"]) for step in odd] == [(0, 2)], odd
    assert odd[0]["info"]["v"] == -math.inf
    assert math.isnan(odd[0]["reward"])
    result = outcome.result
    assert result is not None
    assert result.mean_return is not None
    assert math.isnan(result.mean_return)
    assert result.num_non_finite_returns == 1
    table = json.loads(result.to_json())
    assert "mean_return" in table["non_finite"]
    return None


def judge_c36(outcome: Outcome) -> str | None:
    r = checked(outcome)
    key = outcome.run.variant
    for step in r["steps"]:
        assert step["info"]["zero_d"] == 3
        assert step["info"]["empty"] == {}
        assert type(step["info"]["i"]) is np.int64
    if key is NO_VARIANT:
        assert not outcome.lines, outcome.lines
        return None
    if key in {"fn", "obj"}:
        named = [line for line in outcome.lines if f"info['{key}']" in line]
        assert len(named) == 1, f"wanted one warning that names the key: {outcome.lines}"
        return "replaced, with a warning"
    want = outcome.run.case.HARD[key]
    for step in r["steps"]:
        got = step["info"][key]
        assert type(got) is type(want), (key, got)
        if key == "nan":
            assert math.isnan(got)
        elif key == "objarr":
            assert got.tolist() == want.tolist()
        else:
            assert got == want, (key, got)
    assert not outcome.lines, outcome.lines
    return None


# ----------------------------------------------------------------------------------- actions


def judge_c39(outcome: Outcome) -> str | None:
    variant = outcome.run.variant
    if variant in {"half", "outside"}:
        assert outcome.env_events("step") == [], "truncated, or let through"
        return refused(outcome, ModelFailed, "1.5" if variant == "half" else "7", "action")
    if variant in {"one", "float"} and outcome.error is not None:
        return refused(outcome, ModelFailed, "action")
    checked(outcome)
    return None


def judge_c40(outcome: Outcome) -> str | None:
    if outcome.error is None:
        checked(outcome)
        return None
    call = {"grad": "detach()", "cuda": "cpu()"}.get(outcome.run.variant)
    assert call is not None, "a plain tensor on the CPU must be read"
    assert outcome.env_events("step") == []
    return refused(outcome, ModelFailed, call)
