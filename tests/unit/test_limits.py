"""Limits (R4): defaults, what they refuse, their JSON names, and how a request carries them."""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import FrozenInstanceError, fields
from fractions import Fraction

import numpy as np
import pytest

import rollmesh
from rollmesh.errors import InvalidSpec, OperationTimeout
from rollmesh.limits import LONGEST_WAIT_S, Limits, check_duration, timeout_ms

NAMES = [field.name for field in fields(Limits)]
WAITS = [name for name in NAMES if name not in {"telemetry_window_s", "model_first_predict_s"}]


def test_r4_defaults():
    assert Limits() == Limits(
        env_connect_s=60,
        model_connect_s=600,
        configure_s=600,
        env_reset_s=300,
        model_predict_s=300,
        env_step_s=300,
        close_s=5,
        telemetry_window_s=1,
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("endless", [None, math.inf, 1e12, 1e308, 10**400])
def test_r4_none_infinity_and_longer_than_any_wait_mean_no_limit(name, endless):
    assert getattr(Limits(**{name: endless}), name) is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [-1, -0.001, math.nan, -math.inf, -(10**400), "5", True, [1], 1j])
def test_r4_what_is_no_duration_is_refused_with_its_field(name, bad):
    with pytest.raises(InvalidSpec, match=f"limits.{name}: wants") as caught:
        Limits(**{name: bad})
    assert caught.value.field == f"limits.{name}"


@pytest.mark.parametrize("name", WAITS)
@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_r4_zero_is_refused_for_what_waits(name, zero):
    with pytest.raises(InvalidSpec, match="more than 0 seconds"):
        Limits(**{name: zero})


def test_the_first_predict_has_a_limit_of_its_own_where_one_is_given():
    same, longer = Limits(model_predict_s=2), Limits(model_predict_s=2, model_first_predict_s=60)
    assert (same.predict_s(is_first=True), same.predict_s(is_first=False)) == (2.0, 2.0)
    assert (longer.predict_s(is_first=True), longer.predict_s(is_first=False)) == (60.0, 2.0)
    assert Limits(model_first_predict_s=None).predict_s(is_first=True) is None
    assert Limits.from_json(longer.to_json()) == longer
    assert "modelFirstPredictTimeoutMs" not in same.to_json()


def test_r4_zero_is_allowed_for_the_telemetry_window():
    assert Limits(telemetry_window_s=0).telemetry_window_s == 0.0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("good", [1e-9, 0.5, 5, LONGEST_WAIT_S])
def test_r4_other_durations_are_kept_as_floats(name, good):
    kept = getattr(Limits(**{name: good}), name)
    assert kept == good
    assert isinstance(kept, float)


def test_r4_every_finite_limit_can_be_waited_for():
    assert LONGEST_WAIT_S < threading.TIMEOUT_MAX


def test_r4_limits_are_frozen_and_keyword_only():
    with pytest.raises(FrozenInstanceError):
        Limits().close_s = 1.0
    with pytest.raises(TypeError):
        Limits(1.0)


# ------------------------------------------------------------------------------------ JSON

JSON_DEFAULTS = {
    "envConnectTimeoutMs": 60_000,
    "modelConnectTimeoutMs": 600_000,
    "configureRouteTimeoutMs": 600_000,
    "envResetTimeoutMs": 300_000,
    "modelPredictTimeoutMs": 300_000,
    "envStepTimeoutMs": 300_000,
    "serviceCloseTimeoutMs": 5_000,
    "telemetryWindowMs": 1_000,
}


def test_r4_json_names_and_defaults_in_milliseconds():
    assert Limits().to_json() == JSON_DEFAULTS
    assert Limits.from_json(JSON_DEFAULTS) == Limits()
    assert Limits.from_json({}) == Limits()


@pytest.mark.parametrize("name", NAMES)
def test_r4_python_names_are_in_seconds(name):
    limits = Limits.from_json({name: 2.5})
    assert limits == Limits(**{name: 2.5})
    assert Limits.from_json({name: None}) == Limits(**{name: None})


def test_r4_a_limit_by_both_its_names_is_refused():
    with pytest.raises(InvalidSpec, match=r"envStepTimeoutMs.*is given twice"):
        Limits.from_json({"env_step_s": 1, "envStepTimeoutMs": 1000})
    with pytest.raises(InvalidSpec, match="env_step_s: wants more than 0 seconds"):
        Limits.from_json({"env_step_s": 0})


@pytest.mark.parametrize("json_name", JSON_DEFAULTS)
def test_r4_each_json_name_sets_its_own_limit(json_name):
    limits = Limits.from_json({json_name: 250})
    assert limits.to_json() == JSON_DEFAULTS | {json_name: 250}
    assert [v for v in vars_of(limits) if v == 0.25] == [0.25]


def test_r4_limits_survive_json():
    limits = Limits(env_step_s=0.25, close_s=math.inf, telemetry_window_s=0)
    assert Limits.from_json(json.loads(json.dumps(limits.to_json()))) == limits


def test_r4_a_long_limit_in_milliseconds_stays_one():
    assert Limits.from_json({"envStepTimeoutMs": 1e10}).env_step_s == 1e7


@pytest.mark.parametrize("name", ["envStepTimeout", "env_step", "ENVSTEPTIMEOUTMS", ""])
def test_r4_an_unknown_json_name_is_refused_and_the_known_ones_are_listed(name):
    with pytest.raises(InvalidSpec, match="unknown limit") as caught:
        Limits.from_json({name: 1})
    assert all(known in str(caught.value) for known in (*JSON_DEFAULTS, *NAMES))


@pytest.mark.parametrize("bad", [0, -1, "5", math.nan, True])
def test_r4_a_bad_json_value_is_refused_by_its_json_name(bad):
    with pytest.raises(InvalidSpec, match=r"limits\.envStepTimeoutMs"):
        Limits.from_json({"envStepTimeoutMs": bad})


# ------------------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("timeout_s", "expected"),
    [(None, 0), (1e-9, 1), (0.0005, 1), (0.001, 1), (0.0011, 2), (0.5, 500), (300.0, 300_000)],
)
def test_r4_a_request_carries_milliseconds_rounded_up_and_at_least_one(timeout_s, expected):
    assert timeout_ms(timeout_s) == expected


def test_r4_the_longest_limit_fits_the_wire():
    assert timeout_ms(LONGEST_WAIT_S) < 2**63


def test_r4_a_check_takes_the_name_of_any_field():
    assert check_duration("max_episode_seconds", 3) == 3.0
    with pytest.raises(InvalidSpec, match=r"^max_episode_seconds: wants more than 0"):
        check_duration("max_episode_seconds", 0)


@pytest.mark.parametrize("value", [np.float32(2.5), np.float16(2.5), Fraction(5, 2)])
def test_r4_numbers_of_other_types_are_durations_too(value):
    limit = Limits(env_step_s=value).env_step_s
    assert (limit, type(limit)) == (2.5, float)
    assert Limits(env_step_s=np.int64(3)).env_step_s == 3.0
    with pytest.raises(InvalidSpec, match="wants a number"):
        Limits(env_step_s=np.bool_(True))


def vars_of(limits):
    return [getattr(limits, name) for name in NAMES]


# --------------------------------------------------------------------------------- in a run


class Warming:
    """Takes its time for the first answer; the second one never comes in time if told so."""

    def __init__(self, later_s=0.0):
        self.later_s = later_s
        self.calls = 0

    def predict(self, observation):
        self.calls += 1
        time.sleep(0.3 if self.calls == 1 else self.later_s)
        return 0


LIMITED = {"limits": Limits(model_predict_s=0.1, model_first_predict_s=30.0)}


def test_a_model_may_take_longer_for_its_first_answer():
    result = rollmesh.evaluate(Warming, "CartPole-v1", episodes=2, **LIMITED)
    assert len(result.episodes) == 2


def test_later_answers_have_the_usual_limit():
    with pytest.raises(OperationTimeout, match=r"0\.1 s"):
        rollmesh.evaluate(
            Warming, "CartPole-v1", model_kwargs={"later_s": 5.0}, episodes=2, **LIMITED
        )


def test_without_a_limit_of_its_own_the_first_answer_has_the_usual_one():
    with pytest.raises(OperationTimeout, match=r"0\.1 s"):
        rollmesh.evaluate(Warming, "CartPole-v1", episodes=2, limits=Limits(model_predict_s=0.1))
