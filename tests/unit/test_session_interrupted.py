"""`Session`: calls at the wrong moment, a Ctrl-C in its hooks, and one that nobody closes."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from rollmesh.endpoint.envs.hosted_env import end_unwaited
from rollmesh.errors import InvalidSpec, RouteCancelled
from rollmesh.opening import Endpoints
from rollmesh.runtime.hooks import Hooks
from rollmesh.runtime.ticker import Ticker
from rollmesh.session import Session, StepResult
from tests.unit.test_session import Chunks, Recorder, Walk


class Meets(Walk):
    """A step waits until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.go_on = threading.Event(), threading.Event()

    def step(self, action: Any) -> Any:
        self.began.set()
        assert self.go_on.wait(20)
        return super().step(action)


@pytest.mark.parametrize("call", ["reset", "predict", "step", "close"])
@pytest.mark.parametrize("is_built", [False, True])
def test_a_second_thread_is_refused_and_hurts_nothing(call: str, is_built: bool) -> None:
    env = Meets()
    results: list[StepResult] = []
    with Session(Chunks(), (lambda: env) if is_built else env) as session:
        session.reset(seed=1)
        thread = threading.Thread(target=lambda: results.append(session.step()), daemon=True)
        thread.start()
        assert env.began.wait(20)
        with pytest.raises(InvalidSpec, match=f"{call}: .*another call of this session"):
            getattr(session, call)()
        env.go_on.set()
        thread.join(20)
        assert [one.reward for one in results] == [1.0]
        while not session.done:
            session.step()
        assert [(one.steps, one.error) for one in session.episodes] == [(6, None)]
    assert env.log.count("closed") == is_built


def test_an_error_is_not_hidden_by_a_call_of_another_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = Meets()
    with Session(Chunks(), env) as session:
        session.reset(seed=1)
        thread = threading.Thread(target=session.step, daemon=True)
        thread.start()
        assert env.began.wait(20)
        with pytest.raises(ZeroDivisionError), session:
            raise ZeroDivisionError
        env.go_on.set()
        thread.join(20)
    assert "session_not_closed" in caplog.text


def test_a_hook_that_turns_its_own_session_is_refused_and_hurts_nothing() -> None:
    refused: list[InvalidSpec] = []

    class Turns(Hooks):
        def step_completed(self, event: Any) -> None:
            try:
                session.step()
            except InvalidSpec as error:
                refused.append(error)

    with Session(Chunks(), Walk(length=2), hooks=Turns()) as session:
        session.reset(seed=1)
        session.step()
        session.step()
        assert session.done
    assert len(refused) == 2
    assert [one.steps for one in session.episodes] == [2]


class Strikes(Hooks):
    """A Ctrl-C in the hook of this name."""

    def __init__(self, event: str) -> None:
        def strike(_: Any) -> None:
            raise KeyboardInterrupt

        setattr(self, event, strike)


def _tickers() -> int:
    return [one.name for one in threading.enumerate()].count("rollmesh-ticker")


def test_ctrl_c_as_the_session_begins_closes_everything() -> None:
    built: list[Any] = []
    recorder = Recorder()
    before = _tickers()
    with pytest.raises(RouteCancelled, match="interrupted"):
        Session(
            Chunks(), Walk, env_kwargs={"log": built}, hooks=[Strikes("session_started"), recorder]
        )
    assert built.count("closed") == 1
    assert recorder.names[-1] == "session_failed"
    assert _tickers() == before


@pytest.mark.parametrize("event", ["episode_errored", "session_ended", "on_telemetry"])
def test_ctrl_c_in_a_hook_of_the_close_ends_that_hook_and_nothing_else(event: str) -> None:
    built: list[Any] = []
    model, recorder = Chunks(), Recorder()
    before = _tickers()
    session = Session(model, Walk, env_kwargs={"log": built}, hooks=[Strikes(event), recorder])
    session.reset(seed=1)
    session.step()
    session.close()
    assert built.count("closed") == len(model.ended) == 1
    assert recorder.names[-3:] == ["episode_errored", "session_ended", "on_telemetry"]
    assert [one.error for one in session.episodes] == ["interrupted"]
    assert _tickers() == before


class Closes(Chunks):
    """A policy that tells when it is closed."""

    closed = threading.Event()

    def close(self) -> None:
        Closes.closed.set()


def test_a_session_that_nobody_closes_is_let_go_once_it_is_forgotten(caplog: Any) -> None:
    others = set(threading.enumerate())
    closed = threading.Event()

    class Told(Walk):
        def close(self) -> None:
            closed.set()

    session = Session(Closes, Told)
    session.reset(seed=1)
    session.step()
    threads = set(threading.enumerate()) - others
    assert len(threads) == 3
    del session
    gc.collect()
    assert closed.wait(20)
    assert Closes.closed.wait(20)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert [one.levelname for one in caplog.records if "never_closed" in one.message] == ["WARNING"]


def test_a_forgotten_session_that_cannot_be_let_go_is_told_of_once(
    caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> None:
        raise ValueError("not now")

    monkeypatch.setattr(Endpoints, "let_go", fail)
    others = set(threading.enumerate())
    session = Session(Chunks(), Walk())
    (ticker,) = set(threading.enumerate()) - others
    del session
    gc.collect()
    ticker.join(20)
    assert not ticker.is_alive()
    assert [one.message for one in caplog.records].count("session_not_let_go") == 1


def test_what_was_built_is_closed_where_the_ticker_cannot_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    env = Walk()
    monkeypatch.setattr(Ticker, "start", fail)
    with pytest.raises(RuntimeError, match="can't start"):
        Session(Chunks(), lambda: env)
    assert env.log.count("closed") == 1


def test_a_forgotten_session_calls_nothing_of_an_instance() -> None:
    model, env = Chunks(), Walk()
    others = set(threading.enumerate())
    session = Session(model, env)
    session.reset(seed=1)
    session.step()
    (ticker,) = set(threading.enumerate()) - others
    del session
    gc.collect()
    ticker.join(20)
    assert not ticker.is_alive()
    assert "closed" not in env.log
    assert model.ended == []


def test_a_connection_is_let_go_and_a_thread_that_was_left_behind_is_no_error() -> None:
    class Served:
        left = 0

        def leave(self) -> None:
            self.left += 1

    class Abandoned:
        def submit(self, *_: Any) -> None:
            raise RuntimeError("it takes no further call")

        def abandon(self, *_: Any) -> None:
            raise AssertionError

    port = Served()
    end_unwaited(port, "close", 1.0)
    end_unwaited(Abandoned(), "close", 1.0)
    end_unwaited(None, "close", 1.0)
    assert port.left == 1
