"""When telemetry comes: rules R30 and R39."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from rollmesh.errors import EnvFailed
from rollmesh.events import TelemetryEmitted
from rollmesh.limits import Limits
from rollmesh.ports import ReleaseAdapterRequest, StepReply, StepRequest
from rollmesh.runtime.driver import RouteDriver
from rollmesh.runtime.hooks import Hooks
from tests.driving import drive, lengths
from tests.toys import Notes, ToyEnv, ToyModel, spec_for
from tests.toys_threads import PATIENCE_S

TICKING = Limits(telemetry_window_s=0.001, close_s=5)


class Windows(Hooks):
    """Tells when the first window came, and does something then."""

    def __init__(self, act: Any = None) -> None:
        self.came = threading.Event()
        self.act = act
        self.horizons: list[str] = []
        self.threads: set[int] = set()

    def on_telemetry(self, event: TelemetryEmitted) -> None:
        if event.snapshot.horizon == "window":
            self.came.set()
            self.threads.add(threading.get_ident())
            if self.act is not None:
                self.act()
        self.horizons.append(event.snapshot.horizon)


class Parked(ToyEnv):
    """Hangs in its second step until an event is set; then perhaps breaks."""

    def __init__(self, until: threading.Event, error: BaseException | None = None) -> None:
        super().__init__(1, length=lengths(3))
        self.until, self.error = until, error

    def step(self, request: StepRequest) -> StepReply:
        if len(self.steps) == 1:
            assert self.until.wait(PATIENCE_S)
            if self.error is not None:
                raise self.error
        return super().step(request)


def test_r39_windows_come_while_the_route_is_parked_in_an_operation():
    windows = Windows()
    run = drive(Parked(windows.came), hooks=[windows], limits=TICKING, max_episodes=1)
    assert run.ok.total_episodes == 1
    assert windows.horizons[0] == "window"
    assert windows.horizons[-1] == "session"
    assert threading.get_ident() not in windows.threads


def test_r39_an_empty_window_is_not_pushed():
    run = drive(ToyEnv(), limits=Limits(telemetry_window_s=1000), max_episodes=2)
    assert [e.snapshot.horizon for e in run.notes.of("on_telemetry")] == ["session"]
    windows = Windows()
    drive(Parked(windows.came), hooks=[windows], limits=TICKING, max_episodes=1)
    for event in run.notes.of("on_telemetry"):
        assert event.snapshot.rows


@pytest.mark.parametrize("window_s", [0, None])
def test_r39_zero_turns_windows_off(window_s):
    run = drive(ToyEnv(3), limits=Limits(telemetry_window_s=window_s), max_episodes=50)
    assert [e.snapshot.horizon for e in run.notes.of("on_telemetry")] == ["session"]


def test_r39_a_window_under_1_ms_counts_as_1_ms():
    windows = Windows()
    limits = Limits(telemetry_window_s=1e-9)
    run = drive(Parked(windows.came), hooks=[windows], limits=limits, max_episodes=1)
    assert run.ok.total_episodes == 1


def test_r39_the_final_snapshot_covers_what_windows_took():
    windows = Windows()
    run = drive(Parked(windows.came), hooks=[windows], limits=TICKING, max_episodes=1)
    final = {
        (row.operation, row.metric): row.count
        for row in run.notes.of("on_telemetry")[-1].snapshot.rows
    }
    assert final["env.step", "rpc.total"] == 3


def test_r39_a_failing_push_is_logged_and_ticking_goes_on(caplog):
    pushes = []
    twice = threading.Event()

    class Failing(Hooks):
        def on_telemetry(self, event: TelemetryEmitted) -> None:
            pushes.append(event.snapshot.horizon)
            if event.snapshot.horizon == "session":
                return
            if len(pushes) >= 2:
                twice.set()
            raise ValueError("push broke")

    class Busy(ToyEnv):
        """Steps until two windows were pushed: each needs samples of its own."""

        def step(self, request: StepRequest) -> StepReply:
            if len(self.steps) > 5 and not twice.is_set():
                twice.wait(0.0005)
            return super().step(request)

    env = Busy(1, length=lambda *_: 10**9 if not twice.is_set() else 1)
    with caplog.at_level(logging.WARNING):
        run = drive(env, hooks=[Failing()], limits=TICKING, max_episodes=1)
    assert run.ok.total_episodes == 1
    assert pushes[-1] == "session"
    assert any("Failing" in r.getMessage() for r in caplog.records)


def test_r39_stopping_waits_for_a_push_under_way():
    releasing = threading.Event()

    class Model(ToyModel):
        def release_adapter(self, request: ReleaseAdapterRequest) -> None:
            super().release_adapter(request)
            releasing.set()

    windows = Windows(act=lambda: releasing.wait(PATIENCE_S))
    drive(Parked(windows.came), Model(), hooks=[windows], limits=TICKING, max_episodes=1)
    assert windows.horizons == ["window", "session"], "the push that began before has ended before"


def test_r39_a_push_that_hangs_holds_nothing_up_for_longer_than_the_close_limit():
    go = threading.Event()
    windows = Windows(act=lambda: go.wait(PATIENCE_S))
    limits = Limits(telemetry_window_s=0.001, close_s=0.05)
    run = drive(Parked(windows.came), hooks=[windows], limits=limits, max_episodes=1)
    go.set()
    assert run.ok.total_episodes == 1
    assert [e.snapshot.horizon for e in run.notes.of("on_telemetry")][-1] == "session"


class Struck:
    """A lock whose every wait is ended by a Ctrl-C."""

    def acquire(self, timeout: float) -> bool:
        raise KeyboardInterrupt


@pytest.mark.parametrize("error", [None, ValueError("broke")])
def test_r30_ctrl_c_in_the_wait_for_a_push_loses_neither_telemetry_nor_end(error):
    came = threading.Event()
    came.set()
    env, notes = Parked(came, error), Notes()
    spec = spec_for(env, max_episodes=1, limits=Limits(telemetry_window_s=0))
    driver = RouteDriver(spec, env, ToyModel(), hooks=[notes])
    driver._pushing = Struck()  # type: ignore[assignment]
    if error is None:
        assert driver.run().total_episodes == 1
    else:
        with pytest.raises(EnvFailed):
            driver.run()
    assert notes.names().count("session_ended" if error is None else "session_failed") == 1
    assert [e.snapshot.horizon for e in notes.of("on_telemetry")] == ["session"]


@pytest.mark.parametrize("error", [None, ValueError("broke")])
def test_r39_no_telemetry_comes_after_the_final_one(error):
    windows = Windows()
    quiet = threading.Event()

    class Model(ToyModel):
        def release_adapter(self, request: ReleaseAdapterRequest) -> None:
            super().release_adapter(request)
            quiet.wait(0.02)  # nobody sets it: a failed shutdown that takes some windows' time

    run = drive(
        Parked(windows.came, error), Model(), hooks=[windows], limits=TICKING, max_episodes=1
    )
    horizons = [e.snapshot.horizon for e in run.notes.of("on_telemetry")]
    assert horizons.count("session") == 1
    assert horizons[-1] == "session"
    names = run.notes.names()
    assert names[-1] == ("on_telemetry" if error is None else "session_failed")


def test_r39_it_runs_during_a_good_shutdown():
    release_began = threading.Event()
    pushed = threading.Event()

    class InRelease(Hooks):
        def on_telemetry(self, event: TelemetryEmitted) -> None:
            if event.snapshot.horizon == "window":
                release_began.wait(PATIENCE_S)
                pushed.set()

    class Model(ToyModel):
        def release_adapter(self, request: ReleaseAdapterRequest) -> None:
            super().release_adapter(request)
            release_began.set()
            assert pushed.wait(PATIENCE_S)

    limits = Limits(telemetry_window_s=0.02, close_s=PATIENCE_S)
    run = drive(ToyEnv(), Model(), hooks=[InRelease()], limits=limits, max_episodes=1)
    assert run.ok.total_episodes == 1
    assert not [e for e in run.notes.of("log") if e.level == "warning"]
