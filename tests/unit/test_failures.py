"""The error family and what a port's exception comes to: rules R44 and R49."""

from __future__ import annotations

from typing import Any

import pytest

from rollmesh.errors import (
    EndpointFault,
    EnvFailed,
    HookFailed,
    InvalidSpec,
    ModelFailed,
    ModelRouteMismatch,
    OperationTimeout,
    ProtocolError,
    RouteCancelled,
    RouteError,
)
from rollmesh.ports import (
    SUBSET_STEP,
    PredictReply,
    PredictRequest,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.runtime.failures import explain
from rollmesh.runtime.lanes import Episode, Group
from rollmesh.runtime.operations import Operation
from tests.driving import Run, drive, lengths
from tests.toys import ToyEnv, ToyModel, spec_for


@pytest.mark.parametrize(
    "kind",
    [
        InvalidSpec,
        OperationTimeout,
        RouteCancelled,
        EnvFailed,
        ModelFailed,
        ModelRouteMismatch,
        ProtocolError,
        HookFailed,
    ],
)
def test_r44_one_family(kind):
    assert issubclass(kind, RouteError)
    assert kind.is_recoverable is False


class Raises(ToyEnv):
    """Raises at the n-th call of a method."""

    def __init__(self, error: BaseException, method: str, n: int, *args: Any, **kw: Any) -> None:
        super().__init__(*args, **kw)
        self.error, self.method, self.n = error, method, n

    def reset(self, request: ResetRequest) -> ResetReply:
        if self.method == "reset" and len(self.resets) == self.n - 1:
            raise self.error
        return super().reset(request)

    def step(self, request: StepRequest) -> StepReply:
        if self.method == "step" and len(self.steps) == self.n - 1:
            raise self.error
        return super().step(request)


class RaisingModel(ToyModel):
    """Raises at the n-th predict."""

    def __init__(self, error: BaseException, n: int) -> None:
        super().__init__()
        self.error, self.n = error, n

    def predict(self, request: PredictRequest) -> PredictReply:
        if len(self.predicts) == self.n - 1:
            raise self.error
        return super().predict(request)


def env_failure(error: BaseException, method: str, n: int, **spec: Any) -> tuple[Run, EnvFailed]:
    run = drive(Raises(error, method, n, 1, length=lengths(3)), **spec)
    assert isinstance(run.error, EnvFailed)
    return run, run.error


def test_r44_what_an_env_failure_carries():
    cause = ValueError("the arm fell off")
    run, error = env_failure(cause, "step", 2, episode_seeds=[77])
    assert (error.route, error.component, error.operation, error.step) == (
        "route",
        "toy-env",
        "env.step",
        2,
    )
    assert error.cause is cause
    assert (error.error_class, error.env_index, error.seed) == ("ValueError", 0, 77)
    assert error.episode_id == "id-000001"
    assert (error.outcome, error.is_recoverable) == ("unknown", False)
    assert error.report is not None
    assert error.report.telemetry is run.notes.of("on_telemetry")[0].snapshot


def test_r44_a_message_says_what_failed_where_and_what_to_look_at():
    _, error = env_failure(ValueError("the arm fell off"), "step", 2, episode_seeds=[77])
    text = str(error)
    for part in (
        "toy-env",
        "env.step",
        "step 2",
        "lane 0",
        "seed 77",
        "ValueError",
        "the arm fell",
    ):
        assert part in text
    assert "Traceback" in text
    assert "raise self.error" in text


@pytest.mark.parametrize(("n", "seed"), [(1, 70), (2, 80)])
def test_r44_a_failed_reset_names_the_episode_that_it_was_to_start(n, seed):
    _, error = env_failure(ValueError("no"), "reset", n, episode_seeds=[70, 80])
    assert (error.operation, error.seed, error.episode_id) == ("env.reset", seed, f"id-00000{n}")
    assert f"toy-env: env.reset failed on lane 0, episode id-00000{n}, seed {seed}: " in str(error)


def test_r44_a_failed_reset_of_some_lanes_names_the_lane_where_the_fault_does():
    fault = EndpointFault("no", env_index=2)
    run = drive(
        Raises(fault, "reset", 2, 3, length=lengths(2, 9, 2)), episode_seeds=[10, 20, 30, 40, 50]
    )
    assert isinstance(run.error, EnvFailed)
    assert (run.error.env_index, run.error.seed) == (2, 50)


def test_r44_what_the_endpoint_said_is_kept():
    fault = EndpointFault(
        "gone",
        error_class="Breakage",
        traceback_text="there",
        is_recoverable=True,
        outcome="not_done",
        env_index=0,
    )
    _, error = env_failure(fault, "step", 1, max_episodes=1)
    assert (error.is_recoverable, error.outcome) == (True, "not_done")
    assert (error.error_class, error.traceback_text) == ("Breakage", "there")
    assert "env-side traceback:\nthere" in str(error)


def test_r44_what_a_model_failure_carries():
    cause = RuntimeError("out of memory")
    run = drive(ToyEnv(2, length=lengths(3, 3)), RaisingModel(cause, 3), max_episodes=2)
    error = run.failure
    assert isinstance(error, ModelFailed)
    assert (error.route, error.component, error.operation, error.step) == (
        "route",
        "toy-model",
        "model.predict",
        2,
    )
    assert error.cause is cause
    assert error.env_index is None


@pytest.mark.parametrize("method", ["reset", "step"])
@pytest.mark.parametrize("code", [0, 1, None])
def test_r49_system_exit_of_an_env_is_env_failed(method, code):
    _, error = env_failure(SystemExit(code), method, 1, max_episodes=1)
    assert error.error_class == "SystemExit"


def test_r49_system_exit_of_a_model_is_model_failed():
    run = drive(ToyEnv(1), RaisingModel(SystemExit(2), 1), max_episodes=1)
    assert isinstance(run.error, ModelFailed)
    assert run.error.error_class == "SystemExit"


def test_r44_an_episode_at_fault_is_known_for_a_lane_alone():
    env = Raises(ValueError("no"), "step", 1, 2, capabilities=[SUBSET_STEP])
    error = drive(env, max_episodes=2).failure
    assert isinstance(error, EnvFailed)
    assert error.env_index in (0, 1)
    assert error.episode_id is not None


def test_r44_a_route_error_of_a_port_is_kept_and_is_not_its_own_cause():
    own = ProtocolError("answered nonsense", route="route", component="toy-env")
    run = drive(Raises(own, "step", 1, 1), max_episodes=1)
    assert run.error is own
    assert own.cause is None
    assert own.report is not None


def test_r44_explain_without_a_group():
    operation = Operation("model", "release_adapter", None, "model.release_adapter", 0, 5.0)
    error = explain(spec_for(ToyEnv()), None, operation, ValueError("no"))
    assert isinstance(error, ModelFailed)
    assert error.operation == "model.release_adapter"


def test_r44_a_huge_traceback_is_cut():
    group = Group([0], is_whole_env=True)
    group.lanes[0].begin(Episode(id="e", index=0), 0)
    operation = Operation("env", "step", None, "env.step", 1, 5.0)

    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError("x" * 100_000)

    try:
        deep(50)
    except ValueError as exc:
        error = explain(spec_for(ToyEnv()), group, operation, exc)
    assert isinstance(error, EnvFailed)
    assert len(error.traceback_text) <= 16_000


def test_r44_finished_episodes_are_kept():
    run = drive(Raises(ValueError("no"), "step", 8, 1, length=lengths(3)), max_episodes=9)
    report = run.failure.report
    assert report is not None
    assert [(e.index, e.steps) for e in report.episodes if e.error is None] == [(0, 3), (1, 3)]
