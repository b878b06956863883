"""The concurrent engine and endpoints that behave oddly: rules R15, R29, R45, R48 and R50."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rollmesh.clock import SYSTEM_CLOCK
from rollmesh.errors import EnvFailed, OperationTimeout, ProtocolError, RouteCancelled
from rollmesh.limits import Limits
from rollmesh.ports import PredictRequest
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.engine.base import EngineParts
from rollmesh.runtime.engine.concurrent import ConcurrentEngine
from tests.driving import FakeClock, SlowEnv, drive, lengths
from tests.toys import LANES, VECTOR, ToyEnv, ToyModel
from tests.toys_threads import ThreadedEnv, ThreadedModel


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
