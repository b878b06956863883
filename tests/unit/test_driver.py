"""One session from validation to the report: rules R6, R16, R28 to R31 and R39."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from rollmesh.errors import EnvFailed, OperationTimeout, RouteCancelled, RouteError
from rollmesh.limits import Limits
from rollmesh.ports import (
    SUBSET_STEP,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.driver import RouteDriver, make_groups
from rollmesh.runtime.hooks import Hooks
from tests.driving import (
    MODES,
    FakeClock,
    SlowEnv,
    Tale,
    TaleEnv,
    TaleHooks,
    TaleModel,
    drive,
    lengths,
    tell,
)
from tests.toys import Notes, ToyEnv, ToyModel, spec_for


def warnings_of(notes: Notes) -> list[str]:
    return [event.message for event in notes.of("log") if event.level == "warning"]


# ------------------------------------------------------------------------------------ R6


def test_r6_a_driver_does_nothing_until_it_is_run():
    env, model, notes = ToyEnv(), ToyModel(), Notes()
    RouteDriver(spec_for(env, max_episodes=1), env, model, hooks=[notes])
    assert not notes.events
    assert not env.resets


def test_r6_a_second_run_raises():
    env, notes = ToyEnv(), Notes()
    driver = RouteDriver(spec_for(env, max_episodes=1), env, ToyModel(), hooks=[notes])
    driver.run()
    before = len(notes.events)
    with pytest.raises(RuntimeError, match="once"):
        driver.run()
    assert len(notes.events) == before


def test_r6_order_of_a_good_run():
    tale = Tale()
    env = TaleEnv(tale, 1, length=lengths(1))
    run = drive(
        env, TaleModel(tale), hooks=[TaleHooks(tale)], max_episodes=1, close_env_on_end=True
    )
    assert run.ok.total_episodes == 1
    assert tale.lines == [
        "session_started",
        "> reset all",
        "log info",
        "started 0 on 0",
        "observation 0 new 0",
        "> predict 1",
        "action 0",
        "> step all",
        "step 0 over 0",
        "completed 0 on 0",
        "> evict 1",
        "> release",
        "> close",
        "session_ended",
        "telemetry session",
    ]


def test_r6_one_info_line_a_route(caplog):
    with caplog.at_level(logging.INFO, logger="rollmesh.runtime.driver"):
        drive(ToyEnv(2), max_episodes=2)
    lines = [r.getMessage() for r in caplog.records if r.name == "rollmesh.runtime.driver"]
    (line,) = [one for one in lines if "session_id=session" in one]
    assert "env_id=route" in line
    assert "num_envs=2" in line


@pytest.mark.parametrize("mode", MODES)
def test_r6_two_equal_runs_tell_the_same_tale(mode):
    assert tell(mode, 3, max_episodes=7) == tell(mode, 3, max_episodes=7)


# ----------------------------------------------------------------------------------- R16


class SlowAt(SlowEnv):
    """Takes 5 s at the n-th call of a method; all other calls take none."""

    def __init__(self, clock: FakeClock, method: str, n: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(clock, *args, **kwargs)
        self.method, self.n = method, n

    def reset(self, request: ResetRequest) -> ResetReply:
        self.reset_s = 5.0 if self.method == "reset" and len(self.resets) == self.n - 1 else 0.0
        return super().reset(request)

    def step(self, request: StepRequest) -> StepReply:
        self.step_s = 5.0 if self.method == "step" and len(self.steps) == self.n - 1 else 0.0
        return super().step(request)


@pytest.mark.parametrize(
    ("method", "n", "operation", "step"),
    [
        ("reset", 1, "env.reset", 0),
        ("step", 1, "env.step", 1),
        ("step", 3, "env.step", 3),
        ("reset", 2, "env.reset", 4),
        ("step", 5, "env.step", 1),
    ],
)
def test_r16_an_env_operation_past_its_limit(method, n, operation, step):
    clock = FakeClock()
    env = SlowAt(clock, method, n, 1, length=lengths(4))
    limits = Limits(env_reset_s=4.5, env_step_s=4.5)
    run = drive(env, driver={"clock": clock}, limits=limits, max_episodes=3)
    error = run.failure
    assert isinstance(error, OperationTimeout)
    assert (error.route, error.component) == ("route", "toy-env")
    assert (error.operation, error.step, error.timeout_s) == (operation, step, 4.5)
    assert (error.outcome, error.is_recoverable) == ("unknown", False)
    assert operation in str(error)
    assert "4.5 s" in str(error)


def test_r16_a_later_reset_has_the_step_of_its_first_lane():
    clock = FakeClock()
    env = SlowAt(clock, "reset", 2, 2, length=lengths(9, 2))
    run = drive(env, driver={"clock": clock}, limits=Limits(env_reset_s=1), max_episodes=3)
    assert (run.failure.operation, run.failure.step) == ("env.reset", 2)


@pytest.mark.parametrize(("n", "step"), [(1, 0), (3, 2), (5, 0)])
def test_r16_a_predict_past_its_limit_has_the_current_step(n, step):
    clock = FakeClock()

    class SlowModel(ToyModel):
        def predict(self, request: PredictRequest) -> PredictReply:
            if len(self.predicts) == n - 1:
                clock.pass_s(2)
            return super().predict(request)

    run = drive(
        ToyEnv(1, length=lengths(4)),
        SlowModel(),
        driver={"clock": clock},
        limits=Limits(model_predict_s=1),
        max_episodes=3,
    )
    error = run.failure
    assert isinstance(error, OperationTimeout)
    assert (error.component, error.operation, error.step) == ("toy-model", "model.predict", step)


def test_r16_at_its_limit_an_operation_is_in_time():
    clock = FakeClock()
    env = SlowEnv(clock, 1, step_s=1.0)
    run = drive(env, driver={"clock": clock}, limits=Limits(env_step_s=1), max_episodes=1)
    assert run.ok.total_episodes == 1


def test_r16_without_a_limit_nothing_expires():
    clock = FakeClock()
    env = SlowEnv(clock, 1, step_s=1e6)
    run = drive(env, driver={"clock": clock}, limits=Limits(env_step_s=None), max_episodes=1)
    assert run.ok.total_episodes == 1


# ----------------------------------------------------------------------------------- R28


def test_r28_the_env_is_closed_only_if_it_is_ours(caplog):
    with caplog.at_level(logging.DEBUG):
        run = drive(ToyEnv(), max_episodes=1)
    assert run.env.closed == 0
    lines = [r for r in caplog.records if "env_not_closed" in r.getMessage()]
    assert [r.levelno for r in lines] == [logging.DEBUG]
    assert not warnings_of(run.notes)
    assert drive(ToyEnv(), max_episodes=1, close_env_on_end=True).env.closed == 1


class BadEnds(ToyModel):
    """A model whose release goes wrong."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def release_adapter(self, request: ReleaseAdapterRequest) -> None:
        super().release_adapter(request)
        raise self.error


class BadClose(ToyEnv):
    """An env whose close goes wrong."""

    error: BaseException = OSError("close broke")

    def close(self, timeout_s: float | None) -> None:
        super().close(timeout_s)
        raise self.error


FAULTS = [ValueError("broke"), SystemExit(1), KeyboardInterrupt()]


@pytest.mark.parametrize("error", FAULTS, ids=lambda e: type(e).__name__)
def test_r28_a_failing_release_is_one_warning_and_the_env_is_closed_all_the_same(error):
    run = drive(ToyEnv(), BadEnds(error), max_episodes=1, close_env_on_end=True)
    assert run.ok.total_episodes == 1
    assert len(warnings_of(run.notes)) == 1
    assert run.env.closed == 1


@pytest.mark.parametrize("error", FAULTS, ids=lambda e: type(e).__name__)
def test_r28_a_failing_close_is_one_warning(error):
    env = BadClose()
    env.error = error
    run = drive(env, max_episodes=1, close_env_on_end=True)
    assert run.ok.total_episodes == 1
    assert len(warnings_of(run.notes)) == 1
    assert len(run.model.releases) == 1


def test_r28_both_failing_are_two_warnings_and_the_first_error_is_raised():
    class Broken(BadClose):
        def step(self, request: StepRequest) -> StepReply:
            raise ValueError("step broke")

    run = drive(
        Broken(), BadEnds(ValueError("release broke")), max_episodes=1, close_env_on_end=True
    )
    assert "step broke" in str(run.failure)
    assert len(warnings_of(run.notes)) == 2


def test_r28_a_late_close_is_one_warning():
    clock = FakeClock()

    class SlowClose(ToyEnv):
        def close(self, timeout_s: float | None) -> None:
            super().close(timeout_s)
            clock.pass_s(9)

    run = drive(
        SlowClose(),
        driver={"clock": clock},
        limits=Limits(close_s=2),
        max_episodes=1,
        close_env_on_end=True,
    )
    assert run.ok.total_episodes == 1
    (warning,) = warnings_of(run.notes)
    assert "env.close" in warning


def test_r28_endpoints_are_told_the_close_limit():
    run = drive(ToyEnv(), limits=Limits(close_s=2.5), max_episodes=1)
    assert run.model.releases[0].timeout_s == 2.5
    assert run.model.releases[0].reason == "completed requested episodes"


# --------------------------------------------------------------------------- R29 and R30


class StopsAt(ToyEnv):
    """Does something at the third step."""

    def __init__(self, act: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, length=lengths(9), **kwargs)
        self.act = act

    def step(self, request: StepRequest) -> StepReply:
        if len(self.steps) == 2:
            self.act()
        return super().step(request)


def fail(error: BaseException) -> Any:
    def act() -> None:
        raise error

    return act


class BadTransform(Hooks):
    def transform_action(self, context: Any, action: Any) -> Any:
        raise ValueError("no")


EXITS: dict[str, dict[str, Any]] = {
    "good": {"act": lambda: None},
    "env fails": {"act": fail(ValueError("no"))},
    "env exits": {"act": fail(SystemExit(0))},
    "interrupted": {"act": fail(KeyboardInterrupt())},
    "hook fails": {"act": lambda: None, "hooks": [BadTransform()]},
    "cancelled before": {"act": lambda: None, "before": True},
    "cancelled within": {"act": None},
}


@pytest.mark.parametrize("how", EXITS.values(), ids=EXITS.keys())
def test_r30_exactly_one_final_snapshot_and_the_report_has_that_object(how):
    cancel = CancelToken()
    if how.get("before"):
        cancel.cancel()
    env = StopsAt(how["act"] or cancel.cancel, 1)
    run = drive(env, hooks=how.get("hooks", ()), cancel=cancel, max_episodes=1)
    finals = [e for e in run.notes.of("on_telemetry") if e.snapshot.horizon == "session"]
    assert len(finals) == 1
    report = run.report or run.failure.report
    assert report is not None
    assert report.telemetry is finals[0].snapshot
    names = run.notes.names()
    assert names[0] == "session_started"
    if run.error is None:
        assert names[-2:] == ["session_ended", "on_telemetry"]
        assert "session_failed" not in names
    else:
        assert names[-1] == "session_failed"
        assert names.index("on_telemetry") < names.index("session_failed")
        assert "session_ended" not in names
    assert len(run.model.releases) == 1


def test_r30_an_unforeseen_error_ends_the_route_in_good_order_too():
    class Bug(Exception):
        pass

    class BuggyMint:
        def mint(self) -> str:
            raise Bug

    run = drive(ToyEnv(), driver={"mint": BuggyMint()}, max_episodes=1)
    assert isinstance(run.error, Bug)
    assert run.notes.names() == ["session_started", "on_telemetry", "session_failed"]
    assert run.notes.of("session_failed")[0].reason == "Bug"


@pytest.mark.parametrize("interrupted", ["reset", "step", "predict"])
def test_r49_keyboard_interrupt_is_a_cancel_with_reason_interrupted(interrupted):
    class Env(ToyEnv):
        def reset(self, request: ResetRequest) -> ResetReply:
            if interrupted == "reset":
                raise KeyboardInterrupt
            return super().reset(request)

        def step(self, request: StepRequest) -> StepReply:
            if interrupted == "step":
                raise KeyboardInterrupt
            return super().step(request)

    class Model(ToyModel):
        def predict(self, request: PredictRequest) -> PredictReply:
            if interrupted == "predict":
                raise KeyboardInterrupt
            return super().predict(request)

    cancel = CancelToken()
    run = drive(Env(), Model(), cancel=cancel, max_episodes=1)
    assert isinstance(run.error, RouteCancelled)
    assert run.error.reason == cancel.reason == "interrupted"
    assert run.error.operation.endswith(interrupted)


def test_r49_keyboard_interrupt_in_a_hook_has_the_current_step():
    class Interrupt(Hooks):
        def step_completed(self, event: Any) -> None:
            if event.steps == (3,):
                raise KeyboardInterrupt

    run = drive(ToyEnv(1, length=lengths(9)), hooks=[Interrupt()], max_episodes=1)
    assert isinstance(run.error, RouteCancelled)
    assert (run.error.reason, run.error.step) == ("interrupted", 3)
    assert run.notes.names()[-1] == "session_failed"
    assert len(run.model.releases) == 1


ENDING_HOOKS = ["on_telemetry", "session_ended", "session_failed", "log"]


@pytest.mark.parametrize("event", ENDING_HOOKS)
@pytest.mark.parametrize("error", [None, ValueError("no")], ids=["good", "bad"])
def test_r15_ctrl_c_in_a_hook_of_the_end_ends_that_hook_and_nothing_else(error, event):
    class Interrupt(Hooks):
        struck = 0

    class BadRelease(ToyModel):
        def release_adapter(self, request: ReleaseAdapterRequest) -> None:
            super().release_adapter(request)
            raise ValueError("a warning in the shutdown, for `log`")

    def strike(told: Any) -> None:
        if event != "log" or told.level == "warning":
            hook.struck += 1
            raise KeyboardInterrupt

    hook: Any = Interrupt()
    setattr(hook, event, strike)
    env = StopsAt(fail(error) if error else lambda: None, 1)
    run = drive(
        env, BadRelease(), hooks=[hook, late := Notes()], max_episodes=2, close_env_on_end=True
    )
    assert hook.struck == (event != ("session_ended" if error else "session_failed"))
    assert run.env.closed == len(run.model.releases) == 1
    assert late.names() == run.notes.names()
    if error is None:
        assert run.ok.total_episodes == 2
        assert run.notes.names()[-2:] == ["session_ended", "on_telemetry"]
    else:
        assert isinstance(run.error, EnvFailed)
        assert run.error.report is not None
        assert run.notes.names()[-1] == "session_failed"
    assert "rollmesh-ticker" not in [thread.name for thread in threading.enumerate()]


def test_r45_groups():
    assert len(make_groups(3, frozenset([SUBSET_STEP]))) == 3
    assert len(make_groups(3, frozenset())) == 1
    (alone,) = make_groups(1, frozenset([SUBSET_STEP]))
    assert alone.env_indices == ()


def test_r6_many_routes_at_once_do_not_mix():
    """One thread a route; the hooks object is shared (R35)."""
    notes = Notes()
    errors: list[BaseException] = []

    def run(k: int) -> None:
        env = ToyEnv(2)
        spec = spec_for(env, session_id=f"s{k}", max_episodes=5)
        try:
            RouteDriver(spec, env, ToyModel(), hooks=[notes]).run()
        except RouteError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for k in range(4):
        own = [name for name, event in list(notes.events) if event.session_id == f"s{k}"]
        assert own.count("episode_completed") == 5
        assert own[-1] == "on_telemetry"
