"""Cancelling a route: rule R15."""

from __future__ import annotations

from typing import Any

import pytest

from rollmesh.errors import RouteCancelled
from rollmesh.limits import Limits
from rollmesh.ports import (
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.hooks import Hooks
from rollmesh.runtime.ticker import Ticker
from tests.driving import MODES, FakeClock, Run, drive, lengths
from tests.toys import ToyEnv, ToyModel


class CancelIn(Hooks):
    """Cancels at the n-th event of a name."""

    def __init__(self, cancel: CancelToken, name: str, n: int = 1) -> None:
        self.seen = 0

        def observe(event: Any) -> None:
            self.seen += 1
            if self.seen == n:
                cancel.cancel()

        setattr(self, name, observe)


class CancellingEnv(ToyEnv):
    """Cancels within the n-th call of a method, and then answers or raises."""

    cancel: CancelToken
    method = ""
    n = 1
    error: BaseException | None = None

    def reset(self, request: ResetRequest) -> ResetReply:
        if self.method == "reset" and len(self.resets) == self.n - 1:
            self._stop()
        return super().reset(request)

    def step(self, request: StepRequest) -> StepReply:
        if self.method == "step" and len(self.steps) == self.n - 1:
            self._stop()
        return super().step(request)

    def _stop(self) -> None:
        self.cancel.cancel("enough")
        if self.error is not None:
            raise self.error


def cancel_in_call(method: str, n: int, error: BaseException | None = None, **spec: Any) -> Run:
    env = CancellingEnv(1, length=lengths(3))
    env.cancel, env.method, env.n, env.error = CancelToken(), method, n, error
    return drive(env, cancel=env.cancel, max_episodes=9, **spec)


def cancelled(run: Run) -> tuple[str, int]:
    assert isinstance(run.error, RouteCancelled)
    assert run.error.route == "route"
    return run.error.operation, run.error.step


def cancel_in_hook(name: str, n: int = 1, **kwargs: Any) -> Run:
    cancel = CancelToken()
    env = ToyEnv(1, **{"length": lengths(3), **kwargs})
    return drive(env, hooks=[CancelIn(cancel, name, n)], cancel=cancel, max_episodes=9)


@pytest.mark.parametrize("mode", MODES)
def test_r15_at_the_top_it_has_the_current_step(mode):
    run = cancel_in_hook("step_completed", 2, mode=mode)
    assert cancelled(run) == ("", 2)
    assert len(run.env.steps) == 2
    assert len(run.notes.of("observation_emitted")) == 2


def test_r15_the_reason_is_the_callers():
    run = cancel_in_hook("step_completed")
    assert isinstance(run.error, RouteCancelled)
    assert run.error.reason == "cancelled by caller"
    assert "cancelled by caller" in str(run.error)
    assert run.notes.of("session_failed")[0].reason == str(run.error)
    again = cancel_in_call("step", 1)
    assert isinstance(again.error, RouteCancelled)
    assert again.error.reason == "enough"


@pytest.mark.parametrize(
    ("method", "n", "where"),
    [
        ("reset", 1, ("env.reset", 0)),
        ("step", 1, ("env.step", 1)),
        ("step", 3, ("env.step", 3)),
        ("reset", 2, ("env.reset", 3)),
    ],
)
def test_r15_it_interrupts_an_operation_and_its_result_is_discarded(method, n, where):
    run = cancel_in_call(method, n)
    assert cancelled(run) == where
    moves = sum(len(e.steps) for e in run.notes.of("step_completed"))
    assert moves == (n - 1 if method == "step" else 3 * (n - 1))
    report = run.failure.report
    assert report is not None
    assert report.total_episodes == (1 if (method, n) == ("reset", 2) else 0)


def test_r15_it_interrupts_a_predict():
    cancel = CancelToken()

    class Model(ToyModel):
        def predict(self, request: PredictRequest) -> PredictReply:
            if len(self.predicts) == 2:
                cancel.cancel()
            return super().predict(request)

    run = drive(ToyEnv(1, length=lengths(9)), Model(), cancel=cancel, max_episodes=1)
    assert cancelled(run) == ("model.predict", 2)
    assert len(run.env.steps) == 2
    assert not run.model.held, "evicted before the release"


@pytest.mark.parametrize(
    ("name", "n", "where"),
    [
        ("observation_emitted", 2, ("model.predict", 1)),
        ("action_received", 2, ("env.step", 2)),
        ("episode_completed", 1, ("env.reset", 3)),
    ],
)
def test_r15_it_prevents_the_operation_that_would_come_next(name, n, where):
    run = cancel_in_hook(name, n)
    assert cancelled(run) == where
    calls = {
        "model.predict": len(run.model.predicts),
        "env.step": len(run.env.steps),
        "env.reset": len(run.env.resets),
    }
    assert calls[where[0]] == 1
    evicted = [i for e in run.model.evictions for i in e.episode_ids]
    assert evicted == ["id-000001"]


def test_r15_it_does_not_interrupt_hooks():
    run = cancel_in_hook("step_completed", 2)
    assert run.notes.names().count("step_completed") == 2


def test_r15_an_operation_that_is_not_sent_takes_no_number():
    run = cancel_in_hook("observation_emitted", 2)
    ids = [
        *(p.context.request_id for p in run.model.predicts),
        *(e.context.request_id for e in run.model.evictions),
        *(r.context.request_id for r in run.model.releases),
    ]
    assert [one.rsplit(":", 1)[1] for one in ids] == ["000001", "000002", "000003"]


@pytest.mark.parametrize("mode", MODES)
def test_r15_cancelled_before_the_start(mode):
    cancel = CancelToken()
    cancel.cancel("never mind")
    run = drive(ToyEnv(2, mode), cancel=cancel, max_episodes=2)
    assert isinstance(run.error, RouteCancelled)
    assert (run.error.step, run.error.reason) == (0, "never mind")
    assert not run.env.resets
    assert not run.model.predicts
    assert run.notes.names() == ["session_started", "on_telemetry", "session_failed"]
    assert run.error.report is not None
    assert run.error.report.episodes == ()


def test_r49_ctrl_c_while_the_ticker_starts_is_a_cancel_before_the_start(monkeypatch):
    def struck(ticker: Ticker) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Ticker, "start", struck)
    run = drive(ToyEnv(1), max_episodes=2, close_env_on_end=True)
    assert isinstance(run.error, RouteCancelled)
    assert (run.error.step, run.error.reason) == (0, "interrupted")
    assert run.notes.names() == ["session_started", "on_telemetry", "session_failed"]
    assert len(run.model.releases) == run.env.closed == 1
    assert not run.env.resets


def test_r15_cancelled_in_session_started_sends_no_reset():
    run = cancel_in_hook("session_started")
    assert cancelled(run)[1] == 0
    assert not run.env.resets


@pytest.mark.parametrize("error", [ValueError("broke"), SystemExit(1)])
@pytest.mark.parametrize("method", ["reset", "step"])
def test_r15_it_wins_a_tie_against_a_failure(method, error):
    run = cancel_in_call(method, 1, error)
    assert isinstance(run.error, RouteCancelled)


def test_r15_it_wins_a_tie_against_a_timeout():
    clock, cancel = FakeClock(), CancelToken()

    class Env(ToyEnv):
        def step(self, request: StepRequest) -> StepReply:
            clock.pass_s(9)
            cancel.cancel()
            return super().step(request)

    run = drive(
        Env(), driver={"clock": clock}, cancel=cancel, limits=Limits(env_step_s=1), max_episodes=1
    )
    assert isinstance(run.error, RouteCancelled)


def test_r15_it_wins_a_tie_against_the_last_end():
    run = cancel_in_call("step", 27)
    assert isinstance(run.error, RouteCancelled)
    report = run.error.report
    assert report is not None
    assert report.total_episodes == 8


def test_r15_during_terminal_shutdown_it_changes_nothing():
    cancel = CancelToken()

    class Model(ToyModel):
        def release_adapter(self, request: ReleaseAdapterRequest) -> None:
            super().release_adapter(request)
            cancel.cancel()

    run = drive(ToyEnv(), Model(), cancel=cancel, max_episodes=2, close_env_on_end=True)
    assert run.ok.total_episodes == 2
    assert run.env.closed == 1
    assert run.notes.names()[-2:] == ["session_ended", "on_telemetry"]


def test_r15_in_the_last_episode_completed_it_changes_nothing():
    run = cancel_in_hook("episode_completed", 9)
    assert run.ok.total_episodes == 9


def test_r15_during_a_failed_shutdown_it_changes_nothing():
    cancel = CancelToken()

    class Env(ToyEnv):
        def step(self, request: StepRequest) -> StepReply:
            raise ValueError("broke")

    class Model(ToyModel):
        def release_adapter(self, request: ReleaseAdapterRequest) -> None:
            super().release_adapter(request)
            cancel.cancel()

    run = drive(Env(), Model(), cancel=cancel, max_episodes=2)
    assert "broke" in str(run.error)
    assert len(run.model.releases) == 1


def test_r29_a_cancelled_route_shuts_down_and_carries_its_report():
    run = cancel_in_hook("step_completed", 4)
    report = run.failure.report
    assert report is not None
    assert [(e.index, e.steps) for e in report.episodes] == [(0, 3)]
    assert report.total_steps == 3
    assert run.model.releases[0].reason == str(run.error)


def test_r26_drain_and_then_cancel():
    cancel = CancelToken()

    class DrainThenCancel(Hooks):
        def step_completed(self, event: Any) -> None:
            cancel.drain()
            if event.steps == (2,):
                cancel.cancel()

    run = drive(
        ToyEnv(1, length=lengths(3)), hooks=[DrainThenCancel()], cancel=cancel, max_episodes=5
    )
    assert cancelled(run) == ("", 2)
