"""The hosted engine: env and model share a thread, and the loop runs there (R15, R16, R28, R49)."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.errors import EnvFailed, ModelFailed, OperationTimeout, RouteCancelled
from rollmesh.limits import Limits
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.driver import RouteDriver
from rollmesh.runtime.engine import hosted
from rollmesh.runtime.engine.base import take
from rollmesh.runtime.engine.concurrent import ConcurrentEngine
from rollmesh.runtime.engine.hosted import HostedEngine
from rollmesh.runtime.hooks import Hooks
from tests.driving import MODES, FakeClock, Run, drive, lengths
from tests.toys import VECTOR, ToyEnv, ToyModel, spec_for
from tests.toys_threads import PATIENCE_S, Gate, ThreadedEnv, ThreadedModel, plan_of, raising

SHORT = 0.05
"""A limit in seconds that only what hangs may miss: with `late`, whose clock stands still."""


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


def pair(
    num_envs: int = 1,
    *args: Any,
    env_acts: dict[str, Any] | None = None,
    model_acts: dict[str, Any] | None = None,
    **kwargs: Any,
) -> tuple[ThreadedEnv, ThreadedModel]:
    """An env and a model on one thread."""
    thread = OwnThread("toy-both")
    kwargs.setdefault("length", lengths(*[4] * num_envs))
    return (
        ThreadedEnv(num_envs, *args, acts=plan_of(**(env_acts or {})), thread=thread, **kwargs),
        ThreadedModel(acts=plan_of(**(model_acts or {})), thread=thread),
    )


def warnings_of(run: Run) -> list[str]:
    return [event.message for event in run.notes.of("log") if event.level == "warning"]


def test_r49_a_shared_thread_is_driven_by_the_hosted_engine():
    env, model = pair()

    def engine_for(model: Any, **spec: Any) -> Any:
        return RouteDriver(spec_for(env, **spec), env, model)._engine(CancelToken(), 1)

    assert isinstance(engine_for(model), HostedEngine)
    assert isinstance(engine_for(ThreadedModel()), ConcurrentEngine), "two threads"
    assert isinstance(engine_for(model, on_error="continue"), ConcurrentEngine)


@pytest.mark.parametrize("mode", MODES)
def test_r49_everything_happens_on_the_shared_thread_and_nothing_is_lost(mode):
    env, model = pair(2, mode, length=lengths(2, 3))
    hooked: set[int] = set()

    class Seen(Hooks):
        def step_completed(self, event: Any) -> None:
            hooked.add(threading.get_ident())

    run = drive(env, model, hooks=[Seen()], max_episodes=5, close_env_on_end=True)
    assert env.ran_on == model.ran_on == hooked
    assert threading.get_ident() not in hooked
    assert env.closed == 1
    plain = drive(ToyEnv(2, mode, length=lengths(2, 3)), ToyModel(), max_episodes=5)
    assert run.notes.names() == plain.notes.names()
    assert [e.index for e in run.ok.episodes] == [e.index for e in plain.ok.episodes]


@pytest.mark.parametrize(
    ("act", "operation", "step"),
    [
        ("reset_1", "env.reset", 0),
        ("step_1", "env.step", 1),
        ("step_3", "env.step", 3),
        ("reset_2", "env.reset", 4),
    ],
)
def test_r16_r49_a_hung_env_is_left_behind_with_its_thread(late, caplog, act, operation, step):
    env, model = pair(env_acts={act: late.arrive})
    limits = Limits(env_reset_s=SHORT, env_step_s=SHORT)
    with caplog.at_level(logging.ERROR):
        run = drive(
            env,
            model,
            driver={"clock": late.clock},
            limits=limits,
            max_episodes=3,
            close_env_on_end=True,
        )
    error = run.failure
    assert isinstance(error, OperationTimeout)
    assert (error.operation, error.step, error.component) == (operation, step, "toy-env")
    assert error.report is not None
    assert env.thread is not None
    assert env.thread.abandoned
    assert env.closed == 0
    assert not model.releases
    assert len(warnings_of(run)) == 2, "R28: both endpoints lived there"
    assert len([r for r in caplog.records if "operation_abandoned" in r.getMessage()]) == 1
    assert run.notes.names()[-1] == "session_failed"
    horizons = [e.snapshot.horizon for e in run.notes.of("on_telemetry")]
    assert horizons.count("session") == 1


def test_r16_r49_a_hung_model_is_left_behind_too(late):
    env, model = pair(model_acts={"predict_3": late.arrive})
    run = drive(
        env,
        model,
        driver={"clock": late.clock},
        limits=Limits(model_predict_s=SHORT),
        max_episodes=1,
    )
    error = run.failure
    assert isinstance(error, OperationTimeout)
    assert (error.operation, error.step, error.component) == ("model.predict", 2, "toy-model")


def test_r49_what_comes_back_after_all_changes_nothing(late):
    env, model = pair(env_acts={"step_2": late.arrive})
    run = drive(
        env,
        model,
        driver={"clock": late.clock},
        limits=Limits(env_step_s=SHORT),
        max_episodes=1,
    )
    before = len(run.notes.events)
    late.open()
    assert env.thread is not None
    assert env.thread.join(5)
    assert len(run.notes.events) == before
    assert len(model.predicts) == 2


@pytest.mark.parametrize(
    ("env_act", "model_act", "where"),
    [
        ("reset_1", None, ("env.reset", 0)),
        ("step_3", None, ("env.step", 3)),
        (None, "predict_3", ("model.predict", 2)),
        ("reset_2", None, ("env.reset", 4)),
    ],
)
def test_r15_a_cancel_ends_the_wait_at_once(gate, env_act, model_act, where):
    cancel = CancelToken()
    env, model = pair(
        env_acts={env_act: gate.arrive} if env_act else None,
        model_acts={model_act: gate.arrive} if model_act else None,
    )
    gate.when_reached(lambda: cancel.cancel("seen enough"))
    limits = Limits(
        env_reset_s=None, env_step_s=None, model_predict_s=None, close_s=None, env_connect_s=None
    )
    run = drive(env, model, cancel=cancel, limits=limits, max_episodes=3)
    assert isinstance(run.error, RouteCancelled)
    assert (run.error.operation, run.error.step) == where
    assert run.error.reason == "seen enough"
    assert run.notes.names()[-1] == "session_failed"


def test_r15_a_cancel_in_a_hook_leaves_nothing_behind():
    cancel = CancelToken()

    class CancelIn(Hooks):
        def observation_emitted(self, event: Any) -> None:
            if event.steps == (2,):
                cancel.cancel()

    env, model = pair()
    run = drive(env, model, hooks=[CancelIn()], cancel=cancel, max_episodes=3)
    assert isinstance(run.error, RouteCancelled)
    assert (run.error.operation, run.error.step) == ("model.predict", 2)
    assert len(model.releases) == 1
    assert len(model.predicts) == 2


def test_r15_cancelled_before_the_start_nothing_is_called():
    cancel = CancelToken()
    cancel.cancel()
    env, model = pair()
    run = drive(env, model, cancel=cancel, max_episodes=3)
    assert isinstance(run.error, RouteCancelled)
    assert not env.resets
    assert len(model.releases) == 1


def test_r49_ctrl_c_is_a_cancel_of_the_operation_under_way(gate):
    main = threading.get_ident()
    env, model = pair(env_acts={"step_2": gate.arrive})
    gate.when_reached(lambda: signal.pthread_kill(main, signal.SIGINT))
    run = drive(env, model, limits=Limits(env_step_s=None), max_episodes=1)
    assert isinstance(run.error, RouteCancelled)
    assert (run.error.reason, run.error.operation, run.error.step) == ("interrupted", "env.step", 2)
    assert run.notes.names()[-1] == "session_failed"


def test_r49_ctrl_c_in_the_moment_the_loop_has_ended_loses_nothing(monkeypatch):
    struck: list[None] = []

    watching = threading.Event()

    def take_and_be_struck(bell: Any, timeout_s: float) -> None:
        watching.set()
        take(bell, PATIENCE_S)
        if not struck:
            struck.append(None)
            raise KeyboardInterrupt

    monkeypatch.setattr(hosted, "take", take_and_be_struck)
    env, model = pair(env_acts={"step_4": lambda: watching.wait(PATIENCE_S)})
    run = drive(env, model, max_episodes=1, close_env_on_end=True)
    assert struck
    assert [e.steps for e in run.ok.episodes] == [4]
    assert env.closed == len(model.releases) == 1


def test_r49_a_second_ctrl_c_does_not_wait_for_a_hook_that_hangs(gate):
    main = threading.get_ident()

    def twice() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        assert heard.wait(PATIENCE_S)
        signal.pthread_kill(main, signal.SIGINT)

    class Hangs(Hooks):
        def step_completed(self, event: Any) -> None:
            gate.arrive()

    cancel, heard = CancelToken(), threading.Event()
    cancel.subscribe(heard.set)
    env, model = pair()
    gate.when_reached(twice)
    run = drive(env, model, hooks=[Hangs()], cancel=cancel, max_episodes=1, close_env_on_end=True)
    assert isinstance(run.error, RouteCancelled)
    assert run.error.reason == "interrupted"
    assert run.notes.names()[-1] == "session_failed"
    gate.open()
    assert env.thread is not None
    assert env.thread.join(PATIENCE_S)
    assert len(env.steps) == 1, "R49: no further call"
    assert env.closed == 0
    assert not model.releases


@pytest.mark.parametrize("error", [ValueError("broke"), SystemExit(2)])
def test_r44_failures_are_told_as_ever(error):
    env, model = pair(env_acts={"step_2": raising(error)})
    run = drive(env, model, episode_seeds=[4])
    assert isinstance(run.error, EnvFailed)
    assert run.error.error_class == type(error).__name__
    assert (run.error.step, run.error.seed) == (2, 4)
    assert run.error.cause is error
    env, model = pair(model_acts={"predict_2": raising(error)})
    run = drive(env, model, max_episodes=1)
    assert isinstance(run.error, ModelFailed)
    assert len(model.releases) == 1


@pytest.mark.parametrize("acts", [{"env_acts": "step_2"}, {"model_acts": "predict_2"}])
def test_r49_keyboard_interrupt_of_user_code_is_a_cancel(acts):
    ((which, call),) = acts.items()
    env, model = pair(**{which: {call: raising(KeyboardInterrupt())}})
    run = drive(env, model, max_episodes=1)
    assert isinstance(run.error, RouteCancelled)
    assert run.error.reason == "interrupted"


def test_r24_a_failing_eviction_is_logged_and_the_route_goes_on():
    env, model = pair(model_acts={"reset_adapter_1": raising(ValueError("no"))})
    run = drive(env, model, max_episodes=3)
    assert run.ok.total_episodes == 3


def test_r28_a_hung_release_is_a_warning_and_so_is_the_close_that_cannot_come(late):
    env, model = pair(model_acts={"release_adapter_1": late.arrive})
    run = drive(
        env,
        model,
        driver={"clock": late.clock},
        limits=Limits(close_s=SHORT),
        max_episodes=2,
        close_env_on_end=True,
    )
    assert run.ok.total_episodes == 2
    assert env.closed == 0
    first, second = warnings_of(run)
    assert "model.release_adapter" in first
    assert "env.close" in second
    assert run.notes.names()[-2:] == ["session_ended", "on_telemetry"]


def test_r28_a_hung_eviction_at_the_end_leaves_release_and_close_to_a_warning_each(late):
    cancel = CancelToken()

    class CancelIn(Hooks):
        def action_received(self, event: Any) -> None:
            cancel.cancel()

    env, model = pair(model_acts={"reset_adapter_1": late.arrive})
    run = drive(
        env,
        model,
        hooks=[CancelIn()],
        cancel=cancel,
        driver={"clock": late.clock},
        limits=Limits(close_s=SHORT),
        max_episodes=1,
        close_env_on_end=True,
    )
    assert isinstance(run.error, RouteCancelled)
    told = warnings_of(run)
    assert len(told) == 3
    for text, operation in zip(
        told, ("model.reset_adapter", "model.release_adapter", "env.close"), strict=True
    ):
        assert text.startswith("terminal shutdown: ")
        assert operation in text


def test_r28_a_hung_close_is_a_warning(late):
    env, model = pair(env_acts={"close_1": late.arrive})
    run = drive(
        env,
        model,
        driver={"clock": late.clock},
        limits=Limits(close_s=SHORT),
        max_episodes=2,
        close_env_on_end=True,
    )
    assert run.ok.total_episodes == 2
    assert len(warnings_of(run)) == 1
    assert len(model.releases) == 1


def test_r45_partial_resets_and_chunks_work_there_too():
    env, model = pair(3, capabilities=VECTOR, length=lengths(2, 3, 4))
    model.frames = 3
    run = drive(env, model, episode_seeds=list(range(9)))
    plain = drive(
        ToyEnv(3, capabilities=VECTOR, length=lengths(2, 3, 4)),
        ToyModel(3),
        episode_seeds=list(range(9)),
    )
    assert [(e.seed, e.steps, e.env_index) for e in run.ok.episodes] == [
        (e.seed, e.steps, e.env_index) for e in plain.ok.episodes
    ]


HUNG_PROCESS = """
import threading
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.errors import OperationTimeout
from rollmesh.limits import Limits
from tests.driving import drive
from tests.toys_threads import ThreadedEnv, ThreadedModel

for shared in (True, False):
    env = ThreadedEnv(1, acts={("step", 2): threading.Event().wait}, length=lambda *_: 9)
    model = ThreadedModel(thread=env.thread if shared else None)
    run = drive(env, model, limits=Limits(env_step_s=0.2), max_episodes=1)
    assert isinstance(run.error, OperationTimeout), run.error
print("still here")
"""


def test_r49_the_process_can_still_exit(project_root: Path):
    paths = os.pathsep.join([str(project_root / "src"), str(project_root)])
    done = subprocess.run(
        [sys.executable, "-c", HUNG_PROCESS],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "still here\n"), done.stderr
