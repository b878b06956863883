"""The session spec: rules R1 to R5."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rollmesh.errors import InvalidSpec
from rollmesh.limits import LONGEST_WAIT_S, Limits, timeout_ms
from rollmesh.ports import PARTIAL_RESET, SUBSET_STEP, AutoresetMode, EnvContract
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.spec import EDITIONS, SessionSpec
from tests.driving import DISABLED, NEXT_STEP, SAME_STEP, drive
from tests.toys import ACTION, OBSERVATION, ToyEnv, spec_for


def contract(**kwargs: Any) -> EnvContract:
    fields: dict[str, Any] = {
        "id": "toy",
        "observation_space": OBSERVATION,
        "action_space": ACTION,
        **kwargs,
    }
    return EnvContract(**fields)


def test_r1_defaults():
    spec = SessionSpec(env_contract=contract(num_envs=3))
    assert spec.num_envs == spec.width == 3
    assert spec.workflow_edition in EDITIONS
    assert (spec.execution_horizon, spec.replan, spec.budget) == (None, "lane", "starts")
    assert (spec.on_error, spec.close_env_on_end, spec.limits) == ("raise", False, Limits())
    for name in (
        "base_seed",
        "episode_seeds",
        "episode_options",
        "max_episodes",
        "max_episode_steps",
        "max_episode_seconds",
    ):
        assert getattr(spec, name) is None


def test_r1_session_and_env_ids_are_uuid7_and_unique_by_default():
    specs = [SessionSpec(env_contract=contract()) for _ in range(50)]
    ids = [one for spec in specs for one in (spec.session_id, spec.env_id)]
    assert len(set(ids)) == 100
    assert all(len(one) == 36 and one[14] == "7" for one in ids)


def test_r1_a_spec_is_frozen():
    spec = SessionSpec(env_contract=contract())
    with pytest.raises(AttributeError):
        spec.max_episodes = 3  # type: ignore[misc]


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("session_id", {"session_id": ""}),
    ("session_id", {"session_id": None}),
    ("env_id", {"env_id": ""}),
    ("env_component", {"env_component": ""}),
    ("model_component", {"model_component": ""}),
    ("num_envs", {"num_envs": 0}),
    ("num_envs", {"num_envs": 2}),
    ("num_envs", {"num_envs": -1}),
    ("num_envs", {"num_envs": "1"}),
    ("num_envs", {"num_envs": True}),
    ("num_envs", {"env_contract": contract(num_envs=0)}),
    ("env_contract", {"env_contract": None}),
    ("env_contract.observation_space", {"env_contract": contract(observation_space=None)}),
    ("env_contract.action_space", {"env_contract": contract(action_space=None)}),
    ("env_contract.autoreset_mode", {"env_contract": contract(autoreset_mode="sometimes")}),
    ("env_contract.autoreset_mode", {"env_contract": contract(autoreset_mode=17)}),
    ("workflow_edition", {"workflow_edition": "2031.01"}),
    ("workflow_edition", {"workflow_edition": ""}),
    ("max_episodes", {"max_episodes": 0}),
    ("max_episodes", {"max_episodes": -1}),
    ("max_episodes", {"max_episodes": math.nan}),
    ("max_episodes", {"max_episodes": "10"}),
    ("max_episodes", {"max_episodes": 2.5}),
    ("max_episode_steps", {"max_episode_steps": 0}),
    ("max_episode_steps", {"max_episode_steps": -5}),
    ("max_episode_steps", {"max_episode_steps": "5"}),
    ("max_episode_seconds", {"max_episode_seconds": 0}),
    ("max_episode_seconds", {"max_episode_seconds": -0.5}),
    ("max_episode_seconds", {"max_episode_seconds": math.nan}),
    ("max_episode_seconds", {"max_episode_seconds": "1s"}),
    ("execution_horizon", {"execution_horizon": 0}),
    ("execution_horizon", {"execution_horizon": -1}),
    ("execution_horizon", {"execution_horizon": "all"}),
    ("replan", {"replan": "sometimes"}),
    ("budget", {"budget": "wins"}),
    ("on_error", {"on_error": "ignore"}),
    ("limits", {"limits": 5}),
    ("base_seed", {"base_seed": 1.5}),
    ("base_seed", {"base_seed": "1"}),
    ("base_seed", {"base_seed": 2**63}),
    ("base_seed", {"base_seed": -(2**63) - 1}),
    ("episode_seeds", {"episode_seeds": []}),
    ("episode_seeds", {"episode_seeds": 5}),
    ("episode_seeds[1]", {"episode_seeds": [1, -1]}),
    ("episode_seeds[0]", {"episode_seeds": [1.0]}),
    ("episode_seeds[0]", {"episode_seeds": "12"}),
    ("episode_seeds", {"episode_seeds": [1], "max_episodes": 2}),
    ("episode_seeds", {"episode_seeds": [1], "budget": "completions"}),
    ("episode_options", {"episode_options": [None], "max_episodes": 2}),
    ("episode_options", {"episode_options": []}),
    ("episode_options", {"episode_options": 3}),
    ("episode_options[1]", {"episode_options": [None, 3]}),
    ("episode_options", {"episode_options": [None], "budget": "completions"}),
]


@pytest.mark.parametrize(("field", "kwargs"), REFUSED, ids=[f"{f}-{k}" for f, k in REFUSED])
def test_r2_refuses_and_names_the_field(field, kwargs):
    with pytest.raises(InvalidSpec) as caught:
        SessionSpec(**{"env_contract": contract(), **kwargs})
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    assert caught.value.operation == "validate"


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**63 - 1])
def test_r2_takes_every_signed_64_bit_base_seed(seed):
    env = ToyEnv(length=lambda *_: 1)
    assert drive(env, base_seed=seed, max_episodes=1).ok.episodes[0].seed is not None


PLANS: list[dict[str, Any]] = [
    {"episode_seeds": [3]},
    {"episode_options": [{"level": 1}]},
    {"max_episode_steps": 5, "max_episodes": 1},
    {"max_episode_seconds": 5.0, "max_episodes": 1},
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: next(iter(plan)))
@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP])
def test_r2_plans_and_caps_need_resets_that_the_runtime_owns(mode, plan):
    env = ToyEnv(1, mode)
    run = drive(env, **plan)
    assert isinstance(run.failure, InvalidSpec)
    assert run.failure.field == next(iter(plan))
    assert mode.name in str(run.failure)
    assert not run.notes.events
    assert not env.resets
    assert not run.model.predicts
    assert not run.model.releases


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: next(iter(plan)))
def test_r2_next_step_with_partial_resets_will_do(plan):
    assert drive(ToyEnv(1, NEXT_STEP, capabilities=[PARTIAL_RESET]), **plan).ok.total_episodes == 1


def test_r2_a_plan_beside_same_step_is_refused_even_with_partial_resets():
    run = drive(ToyEnv(1, SAME_STEP, capabilities=[PARTIAL_RESET]), episode_seeds=[1])
    assert isinstance(run.failure, InvalidSpec)


def test_r2_disabled_at_width_2_needs_a_capability():
    run = drive(ToyEnv(2, DISABLED, capabilities=[]), max_episodes=2)
    assert isinstance(run.failure, InvalidSpec)
    assert run.failure.field == "env_contract.autoreset_mode"
    assert not run.notes.events
    assert not run.env.resets
    for capability in (SUBSET_STEP, PARTIAL_RESET):
        drive(ToyEnv(2, DISABLED, capabilities=[capability]), max_episodes=2).ok  # noqa: B018


def test_r2_disabled_at_width_1_needs_none():
    assert drive(ToyEnv(1, DISABLED, capabilities=[]), max_episodes=2).ok.total_episodes == 2


def test_r2_completions_wants_one_group():
    run = drive(ToyEnv(2, capabilities=[SUBSET_STEP]), max_episodes=2, budget="completions")
    assert isinstance(run.failure, InvalidSpec)
    assert run.failure.field == "budget"


def test_r2_a_bad_spec_touches_nothing_even_when_cancelled():
    cancel = CancelToken()
    cancel.cancel()
    run = drive(ToyEnv(2, DISABLED, capabilities=[]), cancel=cancel, max_episodes=1)
    assert isinstance(run.failure, InvalidSpec)
    assert not run.notes.events


def test_r2_an_invalid_spec_is_a_value_error():
    assert issubclass(InvalidSpec, ValueError)


def test_r2_seeds_fix_the_number_of_episodes():
    assert spec_for(ToyEnv(), episode_seeds=[5, 6, 7]).max_episodes == 3
    assert spec_for(ToyEnv(), episode_seeds=[5, 6, 7], max_episodes=2).max_episodes == 2


@pytest.mark.parametrize("value", [np.float32(2.5), np.int64(3)])
def test_r27_a_cap_of_a_numpy_type_becomes_a_plain_number(value):
    seconds = spec_for(ToyEnv(), max_episode_seconds=value).max_episode_seconds
    assert (seconds, type(seconds)) == (float(value), float)
    assert type(spec_for(ToyEnv(), max_episode_seconds=3).max_episode_seconds) is int


def test_r3_unspecified_means_disabled():
    spec = SessionSpec(env_contract=contract(autoreset_mode=AutoresetMode.UNSPECIFIED))
    assert spec.autoreset_mode is AutoresetMode.DISABLED
    env = ToyEnv(2, DISABLED)
    env.contract = contract(num_envs=2, autoreset_mode=AutoresetMode.UNSPECIFIED)
    run = drive(env, max_episodes=4)
    assert run.ok.total_episodes == 4
    assert len(env.resets) > 1, "the runtime restarts ended lanes"


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


@pytest.mark.parametrize("value", [None, math.inf, LONGEST_WAIT_S * 2])
def test_r4_none_and_infinity_mean_no_limit(value):
    assert Limits(env_step_s=value).env_step_s is None


def test_r4_zero_is_for_the_telemetry_window_only():
    assert Limits(telemetry_window_s=0).telemetry_window_s == 0
    for name in Limits().to_json():
        if name != "telemetryWindowMs":
            with pytest.raises(InvalidSpec):
                Limits.from_json({name: 0})


@pytest.mark.parametrize("value", [-1, math.nan, "5", True, [], -math.inf])
def test_r4_refuses_what_is_no_duration(value):
    with pytest.raises(InvalidSpec) as caught:
        Limits(env_step_s=value)
    assert caught.value.field == "limits.env_step_s"


def test_r4_json_names():
    table = {
        "envConnectTimeoutMs": 1.0,
        "modelConnectTimeoutMs": 2.0,
        "configureRouteTimeoutMs": 3.0,
        "envResetTimeoutMs": 4.0,
        "modelPredictTimeoutMs": 5.0,
        "envStepTimeoutMs": 6.0,
        "serviceCloseTimeoutMs": 7.0,
        "telemetryWindowMs": 8.0,
    }
    limits = Limits.from_json(table)
    assert limits == Limits(
        env_connect_s=0.001,
        model_connect_s=0.002,
        configure_s=0.003,
        env_reset_s=0.004,
        model_predict_s=0.005,
        env_step_s=0.006,
        close_s=0.007,
        telemetry_window_s=0.008,
    )
    assert limits.to_json() == table
    assert Limits.from_json({"envStepTimeoutMs": None}).to_json()["envStepTimeoutMs"] is None
    with pytest.raises(InvalidSpec, match="envStepTimeout"):
        Limits.from_json({"envStepTimeout": 5})


def test_r4_timeout_ms_is_rounded_up_at_least_1_and_0_without_a_limit():
    assert timeout_ms(None) == 0
    assert timeout_ms(0.0000001) == 1
    assert timeout_ms(0.0011) == 2
    assert timeout_ms(1.5) == 1500


def test_r4_requests_carry_timeout_ms():
    env = ToyEnv(length=lambda *_: 1)
    limits = Limits(env_reset_s=0.7004, env_step_s=None, model_predict_s=2)
    run = drive(env, max_episodes=1, limits=limits)
    assert env.resets[0].timeout_ms == 701
    assert env.steps[0].timeout_ms == 0
    assert run.model.predicts[0].timeout_ms == 2000


def test_r5_every_event_carries_the_same_two_spaces():
    run = drive(ToyEnv(2), max_episodes=4)
    observations = {id(e.observation_space) for e in run.notes.of("observation_emitted")}
    actions = {id(e.action_space) for e in run.notes.of("action_received")}
    assert observations == {id(run.env.contract.observation_space)}
    assert actions == {id(run.env.contract.action_space)}
