"""The ticker (R39): when it pushes, and that nothing a push does stops it or the process."""

from __future__ import annotations

import logging
import math
import threading
import time

import pytest

from rollmesh.runtime.ticker import Beat, Ticker

PATIENCE_S = 20


class Pushes:
    """Counts calls, tells when, and lets a test wait for the next one."""

    def __init__(self, wanted=1, error=None):
        self.times_ns, self.reached = [], threading.Event()
        self._wanted, self._error = wanted, error

    def __call__(self):
        self.times_ns.append(time.perf_counter_ns())
        if len(self.times_ns) >= self._wanted:
            self.reached.set()
        if self._error is not None:
            raise self._error


class Parked:
    """A push that hangs until it is let go."""

    def __init__(self):
        self.entered, self.let_go = threading.Event(), threading.Event()
        self.calls = 0

    def __call__(self):
        self.calls += 1
        self.entered.set()
        assert self.let_go.wait(PATIENCE_S)


# -------------------------------------------------------------------------------- the beat


def test_r39_a_beat_is_first_due_after_one_full_interval():
    beat = Beat(100, now_ns=1000)
    assert not beat.strikes(1000)
    assert not beat.strikes(1099)
    assert beat.strikes(1100)
    assert not beat.strikes(1100)
    assert beat.strikes(1200)


def test_r39_missed_ticks_are_skipped_and_the_grid_is_kept():
    beat = Beat(100, now_ns=0)
    assert beat.strikes(570)
    assert beat.due_ns == 600
    assert not beat.strikes(599)
    assert beat.strikes(600)


# ------------------------------------------------------------------------------ the thread


def test_r39_the_first_push_comes_after_one_full_interval_and_more_follow():
    pushes = Pushes(wanted=3)
    ticker = Ticker(0.02, pushes)
    started_ns = time.perf_counter_ns()
    ticker.start()
    assert pushes.reached.wait(PATIENCE_S)
    assert ticker.stop(PATIENCE_S)
    assert pushes.times_ns[0] - started_ns >= 20_000_000


def test_r39_an_interval_under_one_ms_counts_as_one_ms():
    pushes = Pushes(wanted=5)
    ticker = Ticker(1e-9, pushes)
    started_ns = time.perf_counter_ns()
    ticker.start()
    assert pushes.reached.wait(PATIENCE_S)
    ticker.stop(PATIENCE_S)
    assert pushes.times_ns[4] - started_ns >= 5_000_000


@pytest.mark.parametrize("interval_s", [None, 0, 0.0, math.inf])
def test_r39_no_interval_is_no_thread(interval_s):
    before = threading.active_count()
    ticker = Ticker(interval_s, Pushes())
    ticker.start()
    assert threading.active_count() == before
    assert ticker.stop(PATIENCE_S)


def test_r39_without_an_interval_the_watch_is_called_all_the_same():
    pushes, watches = Pushes(), Pushes(wanted=2)
    ticker = Ticker(None, pushes, watch=watches)
    ticker.start()
    assert watches.reached.wait(PATIENCE_S)
    ticker.stop(PATIENCE_S)
    assert pushes.times_ns == []
    assert watches.times_ns[1] - watches.times_ns[0] >= 25_000_000


def test_r39_a_very_long_interval_is_waited_for_without_error():
    ticker = Ticker(1e15, Pushes())
    ticker.start()
    assert ticker.stop(PATIENCE_S)


@pytest.mark.parametrize("error", [ValueError("bad push"), SystemExit(3)])
def test_r39_a_failing_push_is_one_warning_and_ticking_goes_on(error, caplog):
    pushes = Pushes(wanted=3, error=error)
    ticker = Ticker(0.001, pushes)
    with caplog.at_level(logging.WARNING):
        ticker.start()
        assert pushes.reached.wait(PATIENCE_S)
        assert ticker.stop(PATIENCE_S)
    assert len(caplog.records) == len(pushes.times_ns)
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_r39_a_failing_watch_is_a_warning_and_ticking_goes_on(caplog):
    watches = Pushes(wanted=2, error=ValueError("bad watch"))
    ticker = Ticker(None, Pushes(), watch=watches)
    with caplog.at_level(logging.WARNING):
        ticker.start()
        assert watches.reached.wait(PATIENCE_S)
        ticker.stop(PATIENCE_S)
    assert "bad watch" in caplog.text


def test_r39_stop_waits_for_a_push_under_way():
    parked = Parked()
    ticker = Ticker(0.001, parked)
    ticker.start()
    assert parked.entered.wait(PATIENCE_S)
    threading.Timer(0.01, parked.let_go.set).start()
    assert ticker.stop(PATIENCE_S) is True
    assert parked.let_go.is_set()
    assert parked.calls == 1


def test_r39_stop_waits_no_longer_than_its_timeout():
    parked = Parked()
    ticker = Ticker(0.001, parked)
    ticker.start()
    assert parked.entered.wait(PATIENCE_S)
    assert ticker.stop(0.001) is False
    assert ticker.is_paused
    parked.let_go.set()
    assert ticker.stop(None) is True
    assert parked.calls == 1


def test_r39_ctrl_c_ends_the_wait_for_a_push_under_way():
    push = Parked()
    ticker = Ticker(0.001, push)
    ticker.start()
    assert push.entered.wait(PATIENCE_S)

    def struck(timeout=None):
        raise KeyboardInterrupt

    ticker._thread.join = struck
    try:
        assert not ticker.stop(None)
    finally:
        push.let_go.set()


def test_r39_no_push_begins_after_pause_and_the_watch_goes_on():
    pushes, watches = Pushes(), Pushes(wanted=3)
    ticker = Ticker(0.001, pushes, watch=watches)
    ticker.pause()
    ticker.start()
    assert watches.reached.wait(PATIENCE_S)
    ticker.stop(PATIENCE_S)
    assert pushes.times_ns == []


def test_r39_pause_does_not_wait_for_a_push_under_way():
    parked = Parked()
    ticker = Ticker(0.001, parked)
    ticker.start()
    assert parked.entered.wait(PATIENCE_S)
    ticker.pause()
    assert ticker.is_paused
    assert not parked.let_go.is_set()
    parked.let_go.set()
    assert ticker.stop(PATIENCE_S)
    assert parked.calls == 1


def test_r39_a_push_may_stop_its_own_ticker():
    stopped = threading.Event()

    def push():
        assert ticker.stop(PATIENCE_S)
        stopped.set()

    ticker = Ticker(0.001, push)
    ticker.start()
    assert stopped.wait(PATIENCE_S)
    assert ticker.stop(PATIENCE_S)


def test_r39_stop_may_come_first_and_again():
    ticker = Ticker(0.001, Pushes())
    assert ticker.stop(0)
    ticker.start()
    assert ticker.stop(PATIENCE_S)
    assert ticker.stop(PATIENCE_S)


def test_r39_a_ticker_starts_once():
    ticker = Ticker(None, Pushes())
    ticker.start()
    with pytest.raises(RuntimeError, match="make a new one"):
        ticker.start()


def test_r39_the_thread_does_not_keep_the_process_alive():
    parked = Parked()
    ticker = Ticker(0.001, parked)
    ticker.start()
    assert parked.entered.wait(PATIENCE_S)
    thread = ticker._thread
    assert thread is not None
    assert thread.daemon
    parked.let_go.set()
    ticker.stop(PATIENCE_S)
