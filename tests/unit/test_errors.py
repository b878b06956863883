"""The error tree (R44): one base, what each error carries, and that copies carry it too."""

from __future__ import annotations

import copy
import pickle

import pytest

from rollmesh.errors import (
    EndpointFailed,
    EndpointFault,
    EnvFailed,
    HookFailed,
    InvalidSpec,
    InvalidValue,
    ModelFailed,
    ModelRouteMismatch,
    OperationTimeout,
    ProtocolError,
    RollmeshError,
    RouteCancelled,
    RouteError,
)

FAULT = EndpointFault(
    "arm stuck",
    error_class="ValueError",
    traceback_text="Traceback …",
    env_index=3,
    is_recoverable=True,
    outcome="not_done",
)
WHERE = {"route": "env-1", "component": "the-env", "operation": "env.step", "step": 7}
FAMILY = {
    "InvalidSpec": InvalidSpec("num_envs", "wants 1 or more, got 0"),
    "OperationTimeout": OperationTimeout("env.step took longer than 0.5 s", timeout_s=0.5, **WHERE),
    "RouteCancelled": RouteCancelled("enough", route="env-1", operation="env.step", step=7),
    "EnvFailed": EnvFailed("env.step failed", fault=FAULT, episode_id="e", seed=5, **WHERE),
    "ModelFailed": ModelFailed("model.predict failed", fault=FAULT, **WHERE),
    "ModelRouteMismatch": ModelRouteMismatch(
        "answered another request", request_id="r:1", route="env-1", component="m", step=7
    ),
    "ProtocolError": ProtocolError("no action frames", **WHERE),
    "HookFailed": HookFailed("Mine failed", hook="Mine", route="env-1", operation="", step=7),
}
ALL = FAMILY | {"InvalidValue": InvalidValue("action[2]", "got NaN"), "EndpointFault": FAULT}
family = pytest.mark.parametrize("error", FAMILY.values(), ids=FAMILY)


@family
def test_r44_the_family_has_one_base(error):
    assert isinstance(error, RouteError)
    assert isinstance(error, RollmeshError)


@family
def test_r44_all_carry_route_component_operation_step_cause_and_report(error):
    assert isinstance(error.route, str)
    assert isinstance(error.component, str)
    assert isinstance(error.operation, str)
    assert isinstance(error.step, int)
    assert error.report is None
    assert error.cause is None


@family
def test_r44_is_recoverable_is_what_the_endpoint_said_and_else_false(error):
    assert error.is_recoverable is isinstance(error, EndpointFailed)


@family
def test_r44_outcome_is_carried_where_it_is_known(error):
    expected = {"EnvFailed": "not_done", "ModelFailed": "not_done", "OperationTimeout": "unknown"}
    assert error.outcome == expected.get(type(error).__name__)


def test_r44_where_it_happened():
    error = FAMILY["EnvFailed"]
    assert {name: getattr(error, name) for name in WHERE} == WHERE
    mismatch = FAMILY["ModelRouteMismatch"]
    assert (mismatch.operation, mismatch.component, mismatch.step) == ("model.predict", "m", 7)


def test_r44_the_cause_is_the_error_that_led_to_it():
    cause = KeyError("x")
    with pytest.raises(ProtocolError) as caught:
        raise ProtocolError("odd answer") from cause
    assert caught.value.cause is cause


def test_r44_an_endpoint_failure_carries_what_the_endpoint_said():
    for error in (FAMILY["EnvFailed"], FAMILY["ModelFailed"]):
        assert error.error_class == "ValueError"
        assert error.traceback_text == "Traceback …"
        assert error.env_index == 3
    assert (FAMILY["EnvFailed"].episode_id, FAMILY["EnvFailed"].seed) == ("e", 5)
    assert (FAMILY["ModelFailed"].episode_id, FAMILY["ModelFailed"].seed) == (None, None)


def test_r44_a_fault_that_says_nothing_is_unknown_and_not_recoverable():
    error = EnvFailed("env.step failed", fault=EndpointFault("?"))
    assert (error.outcome, error.is_recoverable, error.env_index) == ("unknown", False, None)
    assert (error.component, error.route, error.operation, error.step) == ("runner", "", "", 0)


def test_r15_a_cancel_says_route_operation_step_and_reason():
    assert str(FAMILY["RouteCancelled"]) == (
        "route env-1 cancelled during env.step at step 7: enough"
    )
    assert str(RouteCancelled("enough")) == "route ? cancelled at step 0: enough"
    assert FAMILY["RouteCancelled"].reason == "enough"


def test_r2_a_bad_spec_names_its_field():
    error = FAMILY["InvalidSpec"]
    assert str(error) == "num_envs: wants 1 or more, got 0"
    assert error.field == "num_envs"


def test_r16_a_timeout_carries_its_limit_and_says_it_left_the_endpoint_behind():
    error = FAMILY["OperationTimeout"]
    assert (error.timeout_s, error.abandoned) == (0.5, True)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [("InvalidSpec", ValueError), ("OperationTimeout", TimeoutError), ("InvalidValue", ValueError)],
)
def test_r44_an_error_is_also_the_builtin_that_a_caller_expects(error, builtin):
    assert isinstance(ALL[error], builtin)


def test_r44_an_invalid_value_says_where_and_what():
    error = ALL["InvalidValue"]
    assert str(error) == "action[2]: got NaN"
    assert (error.path, error.detail) == ("action[2]", "got NaN")
    assert not isinstance(error, RouteError)


@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize("error", ALL.values(), ids=ALL)
def test_r44_a_copy_carries_the_same_also_from_another_process(error, copied):
    twin = copied(error)
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert vars(twin) == vars(error)
