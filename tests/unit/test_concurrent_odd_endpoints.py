"""The concurrent engine and endpoints that behave oddly: rules R15, R29, R45, R48 and R50."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rollmesh.clock import SYSTEM_CLOCK
from rollmesh.errors import EnvFailed, OperationTimeout, ProtocolError, RouteCancelled
from rollmesh.limits import Limits
from rollmesh.ports import SUBSET_STEP, PredictRequest
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.engine import concurrent
from rollmesh.runtime.engine.base import EngineParts, take
from rollmesh.runtime.engine.concurrent import ConcurrentEngine
from rollmesh.runtime.hooks import Hooks
from tests.driving import FakeClock, SlowEnv, drive, lengths
from tests.toys import LANES, VECTOR, ToyEnv, ToyModel
from tests.toys_threads import PATIENCE_S, Gate, ThreadedEnv, ThreadedModel, plan_of


@pytest.fixture
def gate():
    one = Gate()
    yield one
    one.open()


def test_r50_a_submit_that_raises_is_a_fault_of_its_endpoint():
    class NoStart(ThreadedEnv):
        def submit(self, method: str, *args: Any) -> None:
            if method == "step":
                raise OSError("connection lost")
            super().submit(method, *args)

    run = drive(NoStart(1), ThreadedModel(), max_episodes=1)
    assert isinstance(run.error, EnvFailed)
    assert "connection lost" in str(run.error)


def test_r50_a_second_answer_is_dropped():
    class Twice(ThreadedModel):
        def submit(
            self, method: str, request: Any, callback: Callable[[Any], None], lanes: Any
        ) -> None:
            def both(reply: Any) -> None:
                callback(reply)
                callback(ValueError("once more"))

            super().submit(method, request, both, lanes)

    assert drive(ThreadedEnv(2), Twice(), max_episodes=5).ok.total_episodes == 5


def test_r15_an_endpoint_that_never_answers_can_be_cancelled():
    cancel = CancelToken()

    class Silent(ToyModel):
        def submit(self, method: str, request: PredictRequest, *args: Any) -> None:
            cancel.cancel("waited long enough")

        def abandon(self, lanes: Any) -> None:
            return

    run = drive(
        ToyEnv(1), Silent(), cancel=cancel, limits=Limits(model_predict_s=None), max_episodes=1
    )
    assert isinstance(run.error, RouteCancelled)


def test_r48_a_route_that_cannot_go_on_says_so():
    engine = ConcurrentEngine(
        EngineParts(
            env=ThreadedEnv(1),
            model=ThreadedModel(),
            cancel=CancelToken(),
            clock=SYSTEM_CLOCK,
            env_id="route",
            env_component="toy-env",
            model_component="toy-model",
            close_s=5.0,
            shortest_limit_s=1.0,
        )
    )
    engine._running = 1
    with pytest.raises(ProtocolError, match="cannot go on"):
        engine._wait()


def test_r45_inline_lanes_take_turns():
    env = ToyEnv(3, capabilities=LANES, length=lengths(4, 4, 4))
    run = drive(env, max_episodes=3)
    assert run.ok.total_episodes == 3
    lanes = [s.env_indices[0] for s in env.steps]
    assert lanes[:6] == [0, 1, 2, 0, 1, 2]


def test_r29_inline_lanes_may_be_rebuilt():
    class Breaks(ToyEnv):
        def step(self, request: Any) -> Any:
            if request.env_indices == (1,) and not self.rebuilt:
                raise ValueError("broke")
            return super().step(request)

    env = Breaks(3, capabilities=[*LANES, *VECTOR])
    run = drive(env, on_error="continue", episode_seeds=list(range(9)))
    assert env.rebuilt == [(1,)]
    assert len([e for e in run.ok.episodes if e.error]) == 1


def test_r49_an_instance_beside_a_model_on_its_own_thread_stays_on_the_calling_thread():
    clock = FakeClock()
    env = SlowEnv(clock, 1, length=lengths(9), step_s=3.0)
    model = ThreadedModel()
    run = drive(
        env,
        model,
        driver={"clock": clock},
        limits=Limits(env_step_s=2),
        max_episodes=1,
        close_env_on_end=True,
    )
    assert isinstance(run.error, OperationTimeout)
    assert env.closed == 1, "it came back, so it can be closed"
    assert len(model.releases) == 1


# ------------------------------------------------------------ once one operation has failed


class HeldLanes(ThreadedEnv):
    """Two lanes: lane 1 hangs in its first step; lane 0 then breaks in its own."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(2, capabilities=[SUBSET_STEP], length=lengths(9, 9))
        self.gate = gate

    def step(self, request: Any) -> Any:
        if request.env_indices == (1,):
            self.gate.arrive()
            return super().step(request)
        assert self.gate.reached.wait(PATIENCE_S)
        raise ValueError("lane 0 broke")


def test_r49_without_a_close_limit_others_are_awaited_until_their_own_limit(gate):
    env = HeldLanes(gate)
    limits = Limits(close_s=None, env_step_s=0.2)
    run = drive(env, ToyModel(), limits=limits, max_episodes=2)
    assert isinstance(run.error, EnvFailed)
    assert env.abandoned == [(1,)]


def test_r15_a_cancel_ends_the_wait_for_the_others(gate):
    cancel = CancelToken()

    class CancelOnFailure(Hooks):
        def episode_errored(self, event: Any) -> None:
            cancel.cancel()

    env = HeldLanes(gate)
    limits = Limits(close_s=None, env_step_s=None)
    run = drive(
        env, ToyModel(), hooks=[CancelOnFailure()], cancel=cancel, limits=limits, max_episodes=2
    )
    assert isinstance(run.error, EnvFailed), "it came first"
    assert env.abandoned == [(1,)]


def test_r49_ctrl_c_ends_the_wait_for_the_others(gate):
    """The engine looks at the clock when it begins to wait: then comes the Ctrl-C."""

    class Impatient(ConcurrentEngine):
        def _settle_flights(self, grace_s: float | None) -> None:
            get, self._inbox = self._inbox, Interrupting()
            try:
                super()._settle_flights(grace_s)
            finally:
                self._inbox = get

    class Interrupting:
        def get(self, *args: Any, **kwargs: Any) -> Any:
            raise KeyboardInterrupt

    env = HeldLanes(gate)
    run = drive(
        env,
        ToyModel(),
        driver={"make_engine": Impatient},
        limits=Limits(close_s=None, env_step_s=None),
        max_episodes=2,
        close_env_on_end=True,
    )
    assert isinstance(run.error, RouteCancelled)
    assert env.abandoned == [(1,)]
    assert len(run.model.releases) == 1
    assert run.notes.names()[-1] == "session_failed"


def test_r49_what_a_ctrl_c_took_out_of_the_inbox_is_not_lost(monkeypatch, caplog):
    """It may come between taking an item and looking at it: here that item is an eviction's."""
    lost: list[Any] = []

    def take_and_lose(inbox: Any, timeout_s: float) -> Any:
        flight = take(inbox, timeout_s)
        if not lost and flight is not None and flight.operation.method == "reset_adapter":
            lost.append(flight)
            return None
        return flight

    monkeypatch.setattr(concurrent, "take", take_and_lose)
    limits = Limits(close_s=0.1)
    with caplog.at_level(logging.WARNING):
        run = drive(ThreadedEnv(1), ThreadedModel(), limits=limits, max_episodes=2)
    assert run.ok.total_episodes == 2
    assert lost
    assert len(run.model.releases) == 1
    assert not caplog.records


def test_r16_predicts_that_wait_behind_a_hung_one_are_not_waited_for(gate):
    """Two lanes share a model; its thread is gone with the first predict, and so is the second."""
    model = ThreadedModel(acts=plan_of(predict_1=gate.arrive))
    limits = Limits(model_predict_s=0.1, close_s=None)
    run = drive(ThreadedEnv(2, capabilities=LANES), model, limits=limits, max_episodes=2)
    assert isinstance(run.error, OperationTimeout)
    assert run.error.abandoned
    assert model.abandoned == 1


def test_r16_what_comes_back_late_while_another_group_was_served_is_late():
    """Lane 1's step takes too long, but the engine is busy with lane 0's predict meanwhile."""
    clock = FakeClock()
    stepped, asked = threading.Event(), threading.Event()

    class Env(ThreadedEnv):
        def step(self, request: Any) -> Any:
            if request.env_indices == (1,):
                assert asked.wait(PATIENCE_S)
                clock.pass_s(100)
            return super().step(request)

        def submit(self, method: str, request: Any, callback: Any, lanes: Any) -> None:
            def land(reply: Any) -> None:
                callback(reply)
                if method == "step" and lanes == (1,):
                    stepped.set()

            super().submit(method, request, land, lanes)

    class Model(ToyModel):
        def predict(self, request: PredictRequest) -> Any:
            if len(self.predicts) == 2:  # lane 0 asks again; lane 1 is in its step
                asked.set()
                assert stepped.wait(PATIENCE_S)
            return super().predict(request)

    env = Env(2, capabilities=[SUBSET_STEP], length=lengths(9, 9))
    limits = Limits(env_step_s=50, model_predict_s=None)
    run = drive(env, Model(), driver={"clock": clock}, limits=limits, max_episodes=2)
    error = run.failure
    assert isinstance(error, OperationTimeout)
    assert (error.operation, error.step) == ("env.step", 1)
    assert not error.abandoned, "it came back"
    assert not env.abandoned
