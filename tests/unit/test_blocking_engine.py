"""The blocking engine, in the calling thread: rules R15, R24, R47 and R49."""

from __future__ import annotations

import logging
import signal
import threading
from queue import SimpleQueue
from typing import Any

import pytest

from rollmesh.errors import EndpointFault, OperationTimeout, RouteCancelled
from rollmesh.limits import Limits
from rollmesh.ports import (
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.driver import RouteDriver
from rollmesh.runtime.engine.base import EngineParts, Task, take
from rollmesh.runtime.engine.blocking import BlockingEngine
from rollmesh.runtime.failures import explain
from rollmesh.runtime.hooks import Hooks
from rollmesh.runtime.operations import Operation
from tests.driving import FakeClock, SlowEnv, drive, lengths
from tests.toys import ToyEnv, ToyModel, spec_for
from tests.toys_threads import PATIENCE_S

OVERDUE = "operation_overdue"


class LogWatch(logging.Handler):
    """Tells when a line of the runtime's log was written."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.came = threading.Event()
        self.lines: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            self.lines.append(record)
            self.came.set()


@pytest.fixture
def overdue():
    watch = LogWatch(OVERDUE)
    logger = logging.getLogger("rollmesh.runtime")
    logger.addHandler(watch)
    yield watch
    logger.removeHandler(watch)


def parts_for(env: Any, clock: Any, cancel: CancelToken | None = None) -> EngineParts:
    return EngineParts(
        env=env,
        model=ToyModel(),
        cancel=cancel or CancelToken(),
        clock=clock,
        env_id="route",
        env_component="toy-env",
        model_component="toy-model",
        close_s=5.0,
        shortest_limit_s=1.0,
    )


def test_r49_an_instance_runs_on_the_thread_that_called_run():
    idents: set[int] = set()

    class Env(ToyEnv):
        def step(self, request: StepRequest) -> StepReply:
            idents.add(threading.get_ident())
            return super().step(request)

    class Model(ToyModel):
        def predict(self, request: PredictRequest) -> PredictReply:
            idents.add(threading.get_ident())
            return super().predict(request)

    class Seen(Hooks):
        def step_completed(self, event: Any) -> None:
            idents.add(threading.get_ident())

    drive(Env(2), Model(), hooks=[Seen()], max_episodes=3)
    assert idents == {threading.get_ident()}


def test_r49_one_group_of_plain_ports_is_driven_by_the_blocking_engine():
    env = ToyEnv(2)
    driver = RouteDriver(spec_for(env, max_episodes=1), env, ToyModel())
    assert isinstance(driver._engine(CancelToken(), 1), BlockingEngine)


def test_r47_replies_are_stamped_around_the_call():
    clock = FakeClock()
    clock.pass_s(3)
    env = SlowEnv(clock, 1, reset_s=2.0)
    engine = BlockingEngine(parts_for(env, clock))
    got: list[Any] = []

    def loop() -> Any:
        request = ResetRequest(episode_ids=("e",))
        got.append((yield Operation("env", "reset", request, "env.reset", 0, None)))

    engine.run([Task(loop(), lambda op, exc: explain(spec_for(env), None, op, exc))])
    assert (got[0].started_ns, got[0].ended_ns) == (3_000_000_000, 5_000_000_000)


def test_r49_a_late_call_ends_the_route_when_it_returns_and_its_result_is_discarded(overdue):
    class Env(ToyEnv):
        def step(self, request: StepRequest) -> StepReply:
            assert overdue.came.wait(PATIENCE_S), "it is named while it still runs"
            return super().step(request)

    run = drive(Env(1), limits=Limits(env_step_s=0.01), max_episodes=1, close_env_on_end=True)
    assert isinstance(run.error, OperationTimeout)
    assert not run.notes.of("step_completed")
    (line,) = overdue.lines
    assert line.levelno == logging.ERROR
    assert "env.step" in line.getMessage()
    assert "toy-env" in line.getMessage()
    assert "Give a factory instead of an instance" in line.getMessage()
    assert run.env.closed == 1, "it came back: it can be closed"


def test_r49_a_cancelled_call_is_named_too_and_the_route_ends_when_it_returns(overdue):
    cancel = CancelToken()

    class Env(ToyEnv):
        def step(self, request: StepRequest) -> StepReply:
            cancel.cancel()
            assert overdue.came.wait(PATIENCE_S)
            return super().step(request)

    run = drive(Env(1), cancel=cancel, limits=Limits(env_step_s=None), max_episodes=1)
    assert isinstance(run.error, RouteCancelled)
    assert len(overdue.lines) == 1
    assert not run.notes.of("step_completed")


def test_r49_of_an_overdue_call_that_is_served_elsewhere_no_instance_is_told(overdue):
    class Env(ToyEnv):
        def interrupt(self) -> None:
            """End the call under way, as what is served elsewhere can."""

        def step(self, request: StepRequest) -> StepReply:
            assert overdue.came.wait(PATIENCE_S)
            return super().step(request)

    drive(Env(1), limits=Limits(env_step_s=0.01), max_episodes=1)
    (line,) = overdue.lines
    assert "its client gives it up by itself" in line.getMessage()
    assert "instance" not in line.getMessage()


def test_r49_an_overdue_call_is_named_once(overdue):
    clock = FakeClock()
    engines: list[BlockingEngine] = []

    def make(parts: EngineParts) -> BlockingEngine:
        engines.append(BlockingEngine(parts))
        return engines[0]

    class Env(ToyEnv):
        def step(self, request: StepRequest) -> StepReply:
            for seconds in (1, 5, 5, 5):
                clock.pass_s(seconds)
                engines[0].overdue()
            return super().step(request)

    limits = Limits(env_step_s=2, telemetry_window_s=0)
    run = drive(Env(1), driver={"clock": clock, "make_engine": make}, limits=limits, max_episodes=1)
    assert isinstance(run.error, OperationTimeout)
    assert len(overdue.lines) == 1
    engines[0].overdue()
    assert len(overdue.lines) == 1, "nothing runs any more"


class BadEviction(ToyModel):
    """Fails to forget."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def reset_adapter(self, request: ResetAdapterRequest) -> None:
        super().reset_adapter(request)
        raise self.error


@pytest.mark.parametrize("error", [ValueError("no"), EndpointFault("no"), SystemExit(1)])
def test_r24_a_failing_eviction_is_logged_and_the_route_goes_on(caplog, error):
    with caplog.at_level(logging.WARNING):
        run = drive(ToyEnv(1, length=lengths(2)), BadEviction(error), max_episodes=3)
    assert run.ok.total_episodes == 3
    assert len([r for r in caplog.records if "reset_adapter" in r.getMessage()]) == 3
    assert len(run.model.evictions) == 3


def test_r49_keyboard_interrupt_in_an_eviction_is_a_cancel():
    run = drive(ToyEnv(1, length=lengths(2)), BadEviction(KeyboardInterrupt()), max_episodes=3)
    assert isinstance(run.error, RouteCancelled)
    assert run.error.reason == "interrupted"


def test_r24_a_late_eviction_is_no_timeout():
    clock = FakeClock()

    class Slow(ToyModel):
        def reset_adapter(self, request: ResetAdapterRequest) -> None:
            clock.pass_s(60)
            super().reset_adapter(request)

    run = drive(ToyEnv(), Slow(), driver={"clock": clock}, max_episodes=2)
    assert run.ok.total_episodes == 2


def test_r28_release_and_close_come_one_after_the_other():
    order: list[str] = []

    class Env(ToyEnv):
        def close(self, timeout_s: float | None) -> None:
            order.append("close")

    class Model(ToyModel):
        def release_adapter(self, request: ReleaseAdapterRequest) -> None:
            order.append("release")

    drive(Env(), Model(), max_episodes=1, close_env_on_end=True)
    assert order == ["release", "close"]


# --------------------------------------------------------------------------------- inbox


def test_an_inbox_keeps_order_and_wakes_its_reader():
    inbox: SimpleQueue[int] = SimpleQueue()
    for k in range(3):
        inbox.put(k)
    assert [take(inbox, 0.0) for _ in range(3)] == [0, 1, 2]
    assert take(inbox, 0.0) is None
    writer = threading.Thread(target=lambda: [inbox.put(k) for k in range(1000)])
    writer.start()
    assert [take(inbox, PATIENCE_S) for _ in range(1000)] == list(range(1000))
    writer.join()
    assert take(inbox, 0.001) is None
    assert take(inbox, -5) is None


def test_r49_a_signal_handler_may_put_in_the_middle_of_a_take():
    inbox: SimpleQueue[int] = SimpleQueue()
    before = signal.signal(signal.SIGINT, lambda *_: inbox.put(7))
    try:
        writer = threading.Timer(0.02, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
        writer.start()
        assert take(inbox, PATIENCE_S) == 7
        writer.join()
    finally:
        signal.signal(signal.SIGINT, before)
