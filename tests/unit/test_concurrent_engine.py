"""The concurrent engine, with real threads: rules R15, R16, R24, R28, R29, R45, R48 and R49."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rollmesh.errors import EnvFailed, OperationTimeout, RouteCancelled, SessionLost
from rollmesh.limits import Limits
from rollmesh.ports import SUBSET_STEP
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.driver import RouteDriver
from rollmesh.runtime.engine.concurrent import ConcurrentEngine
from rollmesh.runtime.hooks import Hooks
from tests.driving import MODES, FakeClock, Run, drive, lengths
from tests.toys import LANES, ToyEnv, ToyModel, spec_for
from tests.toys_threads import (
    Gate,
    RebuildingEnv,
    ThreadedEnv,
    ThreadedModel,
    plan_of,
    raising,
)

SHORT = 0.05
"""A limit in seconds that only what hangs may miss: with `late`, whose clock stands still."""
REAL = 0.4
"""A limit in real seconds: long enough for everything that does not hang."""


@pytest.fixture
def gate():
    one = Gate()
    yield one
    one.open()


@pytest.fixture
def late():
    one = Gate(FakeClock())
    yield one
    one.open()


def warnings_of(run: Run) -> list[str]:
    return [event.message for event in run.notes.of("log") if event.level == "warning"]


def test_r49_ports_with_submit_are_driven_by_the_concurrent_engine():
    env = ThreadedEnv(1)
    driver = RouteDriver(spec_for(env), env, ThreadedModel())
    assert isinstance(driver._engine(CancelToken(), 1), ConcurrentEngine)
    many = ToyEnv(3, capabilities=[SUBSET_STEP])
    driver = RouteDriver(spec_for(many), many, ToyModel())
    assert isinstance(driver._engine(CancelToken(), 3), ConcurrentEngine)


@pytest.mark.parametrize("mode", MODES)
def test_r49_an_endpoint_works_on_its_own_thread_and_hooks_on_the_callers(mode):
    hooked: set[int] = set()

    class Seen(Hooks):
        def step_completed(self, event: Any) -> None:
            hooked.add(threading.get_ident())

    env, model = ThreadedEnv(2, mode), ThreadedModel()
    run = drive(env, model, hooks=[Seen()], max_episodes=5, close_env_on_end=True)
    assert run.ok.total_episodes == 5
    assert len(env.ran_on) == len(model.ran_on) == 1
    assert len(env.ran_on | model.ran_on | {threading.get_ident()}) == 3
    assert hooked == {threading.get_ident()}
    assert env.closed == 1


def test_r45_a_group_never_waits_for_another(gate):
    """Lane 0 hangs in its first step until lane 1 has played three episodes."""
    done = []

    class OpenLater(Hooks):
        def episode_completed(self, event: Any) -> None:
            done.append(event.env_index)
            if done.count(1) == 3:
                gate.open()

    env = ThreadedEnv(2, capabilities=LANES, acts={}, length=lengths(2, 2))
    first = env.step

    def step(request: Any) -> Any:
        if request.env_indices == (0,) and not done.count(0) and env.lanes[0].t == 0:
            gate.arrive()
        return first(request)

    env.step = step  # type: ignore[method-assign]
    run = drive(env, ThreadedModel(), hooks=[OpenLater()], max_episodes=5)
    assert run.ok.total_episodes == 5
    assert done[:3] == [1, 1, 1]


def test_r45_each_lane_has_its_own_thread():
    env = ThreadedEnv(3, capabilities=LANES)
    assert drive(env, ToyModel(), max_episodes=9).ok.total_episodes == 9
    assert len(env.ran_on) == 3


@pytest.mark.parametrize(
    ("acts", "operation", "step"),
    [("reset_1", "env.reset", 0), ("step_1", "env.step", 1), ("step_3", "env.step", 3)],
)
def test_r16_r49_a_hung_env_times_out_and_gets_no_further_call(late, caplog, acts, operation, step):
    env = ThreadedEnv(1, acts=plan_of(**{acts: late.arrive}), length=lengths(9))
    limits = Limits(env_reset_s=SHORT, env_step_s=SHORT)
    with caplog.at_level(logging.ERROR):
        run = drive(
            env,
            ThreadedModel(),
            driver={"clock": late.clock},
            limits=limits,
            max_episodes=2,
            close_env_on_end=True,
        )
    error = run.failure
    assert isinstance(error, OperationTimeout)
    assert (error.operation, error.step, error.timeout_s) == (operation, step, SHORT)
    assert error.component == "toy-env"
    assert env.abandoned == [()]
    assert env.closed == 0
    assert len(warnings_of(run)) == 1, "R28: skipped, with a warning"
    assert len(run.model.releases) == 1, "the other endpoint is released"
    assert any("abandoned" in r.getMessage() for r in caplog.records)
    horizons = [e.snapshot.horizon for e in run.notes.of("on_telemetry")]
    assert horizons.count("session") == 1


def test_r16_r49_a_hung_model_times_out_and_is_not_released(late):
    model = ThreadedModel(acts=plan_of(predict_3=late.arrive))
    env = ThreadedEnv(1, length=lengths(9))
    run = drive(
        env,
        model,
        driver={"clock": late.clock},
        limits=Limits(model_predict_s=SHORT),
        max_episodes=1,
        close_env_on_end=True,
    )
    error = run.failure
    assert isinstance(error, OperationTimeout)
    assert (error.component, error.operation, error.step) == ("toy-model", "model.predict", 2)
    assert model.abandoned == 1
    assert not model.releases
    assert not model.evictions
    assert len(warnings_of(run)) == 1
    assert env.closed == 1


def test_r16_a_model_that_keeps_the_limit_of_a_predict_itself_is_never_left_behind(gate):
    clock = FakeClock()

    class Keeps(ThreadedModel):
        keeps_predict_limit = True

    def hangs():
        clock.pass_s(100)
        gate.reached.set()
        raise SessionLost("it did not answer and was replaced")

    model = Keeps(acts=plan_of(predict_3=hangs, predict_5=lambda: clock.pass_s(100)))
    run = drive(
        ThreadedEnv(1, length=lengths(4)),
        model,
        driver={"clock": clock},
        limits=Limits(model_predict_s=SHORT),
        episode_seeds=[7],
        max_episodes=1,
    )
    (episode,) = run.ok.episodes
    assert (episode.attempts, episode.seed) == (2, 7)
    assert "it did not answer and was replaced" in episode.causes[0]
    assert model.abandoned == 0
    assert len(model.releases) == 1


def test_r49_what_comes_back_after_all_is_dropped(late):
    env = ThreadedEnv(1, acts=plan_of(step_2=late.arrive), length=lengths(9))
    run = drive(
        env,
        ThreadedModel(),
        driver={"clock": late.clock},
        limits=Limits(env_step_s=SHORT),
        max_episodes=1,
    )
    before = len(run.notes.events)
    late.open()
    assert env.threads[0].join(5)
    assert len(run.notes.events) == before
    assert run.notes.names()[-1] == "session_failed"


@pytest.mark.parametrize(
    ("act", "operation", "step"),
    [("reset_1", "env.reset", 0), ("step_3", "env.step", 3), ("reset_2", "env.reset", 4)],
)
def test_r15_a_cancel_ends_the_wait_at_once(gate, act, operation, step):
    cancel = CancelToken()
    env = ThreadedEnv(1, acts=plan_of(**{act: gate.arrive}), length=lengths(4))
    waiter = gate.when_reached(lambda: cancel.cancel("seen enough"))
    limits = Limits(env_reset_s=None, env_step_s=None)
    run = drive(env, ThreadedModel(), cancel=cancel, limits=limits, max_episodes=3)
    waiter.join()
    assert isinstance(run.error, RouteCancelled)
    assert (run.error.operation, run.error.step) == (operation, step)
    assert run.error.reason == "seen enough"
    assert env.abandoned == [()]
    assert run.notes.names()[-1] == "session_failed"


def test_r15_a_cancel_ends_a_predict_at_once(gate):
    cancel = CancelToken()
    model = ThreadedModel(acts=plan_of(predict_2=gate.arrive))
    gate.when_reached(cancel.cancel)
    run = drive(ThreadedEnv(1, length=lengths(9)), model, cancel=cancel, max_episodes=1)
    assert isinstance(run.error, RouteCancelled)
    assert (run.error.operation, run.error.step) == ("model.predict", 1)
    assert model.abandoned == 1


def test_r15_a_cancel_stops_all_groups(gate):
    cancel = CancelToken()
    env = ThreadedEnv(3, capabilities=LANES, acts=plan_of(step_5=gate.arrive))
    gate.when_reached(cancel.cancel)
    run = drive(env, ToyModel(), cancel=cancel, episode_seeds=[4] * 30)
    assert isinstance(run.error, RouteCancelled)
    assert len(run.model.releases) == 1
    assert run.notes.names().count("session_failed") == 1


def test_r15_a_cancel_in_a_hook_abandons_nothing():
    cancel = CancelToken()

    class CancelIn(Hooks):
        def action_received(self, event: Any) -> None:
            if event.steps == (2,):
                cancel.cancel()

    env = ThreadedEnv(1, length=lengths(9))
    run = drive(env, ThreadedModel(), hooks=[CancelIn()], cancel=cancel, max_episodes=1)
    assert isinstance(run.error, RouteCancelled)
    assert (run.error.operation, run.error.step) == ("env.step", 3)
    assert not env.abandoned
    assert len(env.steps) == 2


def test_r49_ctrl_c_while_waiting_is_a_cancel_of_that_operation(gate):
    main = threading.get_ident()
    env = ThreadedEnv(1, acts=plan_of(step_2=gate.arrive), length=lengths(9))
    gate.when_reached(lambda: signal.pthread_kill(main, signal.SIGINT))
    run = drive(env, ThreadedModel(), limits=Limits(env_step_s=None), max_episodes=1)
    assert isinstance(run.error, RouteCancelled)
    assert run.error.reason == "interrupted"
    assert (run.error.operation, run.error.step) == ("env.step", 2)
    assert len(run.model.releases) == 1
    assert run.notes.names()[-1] == "session_failed"


@pytest.mark.parametrize("where", ["env", "model"])
def test_r49_keyboard_interrupt_of_user_code_is_a_cancel(where):
    act = raising(KeyboardInterrupt())
    env = ThreadedEnv(1, acts=plan_of(step_2=act) if where == "env" else None, length=lengths(9))
    model = ThreadedModel(acts=plan_of(predict_2=act) if where == "model" else None)
    run = drive(env, model, max_episodes=1)
    assert isinstance(run.error, RouteCancelled)
    assert run.error.reason == "interrupted"


def test_r49_system_exit_of_user_code_is_a_failure():
    env = ThreadedEnv(1, acts=plan_of(step_2=raising(SystemExit(3))), length=lengths(9))
    run = drive(env, ThreadedModel(), max_episodes=1)
    assert isinstance(run.error, EnvFailed)
    assert run.error.error_class == "SystemExit"
    assert isinstance(run.error.cause, SystemExit)


# ----------------------------------------------------------------------------------- R29


def test_r29_a_hung_lane_is_rebuilt_and_the_others_go_on(gate):
    cancel = CancelToken()
    env = RebuildingEnv(
        2, capabilities=LANES, acts=plan_of(step_4=gate.arrive), length=lengths(5, 5)
    )

    class DrainWhenBack(Hooks):
        def episode_completed(self, event: Any) -> None:
            if (event.env_index,) in env.rebuilt:
                cancel.drain()

    run = drive(
        env,
        ToyModel(),
        hooks=[DrainWhenBack()],
        cancel=cancel,
        limits=Limits(env_step_s=REAL),
        on_error="continue",
        close_env_on_end=True,
    )
    (errored,) = [e for e in run.ok.episodes if e.error]
    assert "did not come back" in str(errored.error)
    assert env.rebuilt == [(errored.env_index,)]
    assert {e.steps for e in run.ok.episodes if not e.error} == {5}
    assert len([e for e in run.ok.episodes if e.env_index != errored.env_index]) > 1
    assert env.closed == 1


def test_r29_the_first_failure_waits_for_operations_of_other_groups(gate):
    """Lane 1 is in a step when lane 0 breaks; it comes back in time, so nothing is abandoned."""
    env = ThreadedEnv(2, capabilities=[SUBSET_STEP])
    first = env.step

    def step(request: Any) -> Any:
        if request.env_indices == (1,):
            gate.arrive()
        else:
            assert gate.reached.wait(5)
            raise ValueError("lane 0 broke")
        return first(request)

    env.step = step  # type: ignore[method-assign]

    class OpenOnFailure(Hooks):
        def episode_errored(self, event: Any) -> None:
            gate.open()

    run = drive(env, ToyModel(), hooks=[OpenOnFailure()], max_episodes=2, close_env_on_end=True)
    assert isinstance(run.error, EnvFailed)
    assert run.error.env_index == 0
    assert not env.abandoned
    assert env.closed == 1


def test_r29_the_first_failure_waits_no_longer_than_the_close_limit(gate):
    env = ThreadedEnv(2, capabilities=[SUBSET_STEP])

    def step(request: Any) -> Any:
        if request.env_indices == (1,):
            gate.arrive()
        assert gate.reached.wait(5)
        raise ValueError("lane 0 broke")

    env.step = step  # type: ignore[method-assign]
    run = drive(env, ToyModel(), limits=Limits(close_s=SHORT), max_episodes=2)
    assert isinstance(run.error, EnvFailed)
    assert env.abandoned == [(1,)]


# --------------------------------------------------------------------------- R24 and R28


class ThreadPerCall(ToyModel):
    """Predicts here; evictions and the release work each on a thread of their own."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        self.order: list[str] = []

    def submit(
        self, method: str, request: Any, callback: Callable[[Any], None], lanes: Any
    ) -> None:
        if method == "predict":
            callback(self.predict(request))
        else:
            threading.Thread(target=lambda: callback(getattr(self, method)(request))).start()

    def abandon(self, lanes: Any) -> None:
        raise AssertionError("nothing hangs")

    def reset_adapter(self, request: Any) -> None:
        super().reset_adapter(request)
        if len(self.evictions) == 1:
            self.gate.arrive()
        self.order.append("evicted")

    def release_adapter(self, request: Any) -> None:
        self.order.append("release")
        super().release_adapter(request)


def test_r24_the_loop_does_not_wait_for_an_eviction_but_the_release_does(gate):
    class OpenAtThirdStart(Hooks):
        def episode_started(self, event: Any) -> None:
            if event.episode_index == 2:
                gate.open()

    model = ThreadPerCall(gate)
    run = drive(ToyEnv(1, length=lengths(2)), model, hooks=[OpenAtThirdStart()], max_episodes=3)
    assert run.ok.total_episodes == 3
    assert model.order == ["evicted", "evicted", "evicted", "release"]
    assert not warnings_of(run)


def test_r24_the_release_waits_for_an_eviction_no_longer_than_the_close_limit(gate, caplog):
    model = ThreadPerCall(gate)
    with caplog.at_level(logging.WARNING):
        run = drive(
            ToyEnv(1, length=lengths(2)), model, limits=Limits(close_s=REAL), max_episodes=2
        )
    assert run.ok.total_episodes == 2
    assert model.order == ["evicted", "release"]
    assert len([r for r in caplog.records if "reset_adapter" in r.getMessage()]) == 1


def test_r24_a_failing_eviction_is_logged_and_the_route_goes_on(caplog):
    model = ThreadedModel(acts=plan_of(reset_adapter_1=raising(ValueError("no"))))
    with caplog.at_level(logging.WARNING):
        run = drive(ThreadedEnv(1), model, max_episodes=3)
    assert run.ok.total_episodes == 3
    assert len([r for r in caplog.records if "reset_adapter" in r.getMessage()]) == 1


def test_r24_evictions_of_an_abandoned_model_are_not_waited_for(gate):
    """Its thread is gone, and with it whatever waited there."""
    model = ThreadedModel(acts=plan_of(reset_adapter_1=gate.arrive))
    limits = Limits(model_predict_s=REAL, close_s=None)
    run = drive(ThreadedEnv(1, length=lengths(2)), model, limits=limits, max_episodes=3)
    assert isinstance(run.error, OperationTimeout)
    assert not model.releases


@pytest.mark.parametrize(
    ("model_act", "env_act", "warnings"),
    [("release_adapter_1", None, 1), (None, "close_1", 1), ("release_adapter_1", "close_1", 2)],
)
def test_r28_a_hung_shutdown_is_bounded_by_the_close_limit(gate, model_act, env_act, warnings):
    model = ThreadedModel(acts=plan_of(**{model_act: gate.arrive}) if model_act else None)
    env = ThreadedEnv(1, acts=plan_of(**{env_act: gate.arrive}) if env_act else None)
    run = drive(env, model, limits=Limits(close_s=REAL), max_episodes=2, close_env_on_end=True)
    assert run.ok.total_episodes == 2
    assert len(warnings_of(run)) == warnings
    assert run.notes.names()[-2:] == ["session_ended", "on_telemetry"]


def test_r28_release_and_close_start_together():
    both = threading.Barrier(2, timeout=5)
    model = ThreadedModel(acts=plan_of(release_adapter_1=both.wait))
    env = ThreadedEnv(1, acts=plan_of(close_1=both.wait))
    run = drive(env, model, max_episodes=1, close_env_on_end=True)
    assert run.ok.total_episodes == 1
    assert not warnings_of(run)
