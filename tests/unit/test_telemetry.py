"""Telemetry: the samples of R37, the horizons of R38, and R40: nothing of it reaches the route."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest

from rollmesh.runtime import telemetry as module
from rollmesh.runtime.telemetry import FOLD_AT, Telemetry

MS = 1_000_000


class FakeClock:
    def __init__(self):
        self.now_ns = 0

    def monotonic_ns(self):
        return self.now_ns

    def wall_ns(self):
        return 0


def make(clock=None):
    return Telemetry("the-env", "the-model", clock or FakeClock())


def step(telemetry, duration_ns, **changes):
    facts = {"endpoint_ns": None, "request_bytes": 8, "response_bytes": 16} | changes
    telemetry.record("env.step", 1000, 1000 + duration_ns, **facts)


def rows_of(snapshot):
    return {(row.operation, row.metric): row for row in snapshot.rows}


# ---------------------------------------------------------------------------- R37: samples


def test_r37_a_call_gives_its_duration_and_sizes():
    telemetry = make()
    telemetry.record(
        "env.reset", 5, 5 + 3 * MS, endpoint_ns=2 * MS, request_bytes=10, response_bytes=20
    )
    rows = telemetry.session().rows
    assert [(r.metric, r.kind, r.mean) for r in rows] == [
        ("endpoint.total", "duration", 2.0),
        ("request.bytes", "bytes", 10.0),
        ("response.bytes", "bytes", 20.0),
        ("rpc.total", "duration", 3.0),
    ]
    assert {(r.operation, r.component, r.count) for r in rows} == {("env.reset", "the-env", 1)}


def test_r37_endpoint_total_only_where_the_peer_stamped_it():
    telemetry = make()
    step(telemetry, MS)
    step(telemetry, MS, endpoint_ns=0)
    rows = rows_of(telemetry.session())
    assert rows["env.step", "rpc.total"].count == 2
    assert rows["env.step", "endpoint.total"].count == 1
    assert rows["env.step", "endpoint.total"].max == 0.0


def test_r37_group_size_is_a_count_of_predicts_only():
    telemetry = make()
    step(telemetry, MS)
    telemetry.record(
        "model.predict", 0, MS, endpoint_ns=None, request_bytes=1, response_bytes=1, rows=16
    )
    sizes = [r for r in telemetry.session().rows if r.metric == "group.size"]
    assert [(r.operation, r.component, r.kind, r.count, r.p50) for r in sizes] == [
        ("model.predict", "the-model", "count", 1, 16.0)
    ]


def test_r37_a_round_is_the_time_since_its_mark_also_when_rounds_interleave():
    clock = FakeClock()
    telemetry = make(clock)
    first = telemetry.mark()
    clock.now_ns += 2 * MS
    second = telemetry.mark()
    clock.now_ns += 2 * MS
    telemetry.round_ended(first)
    telemetry.round_ended(second)
    (row,) = telemetry.session().rows
    assert (row.operation, row.component, row.metric) == ("runner.round", "runner", "round.total")
    assert (row.count, row.min, row.max) == (2, 2.0, 4.0)


def test_r37_no_call_no_sample():
    assert make().session().rows == ()


# --------------------------------------------------------------------------- R38: horizons


def test_r38_rows_are_sorted_by_source_and_metric():
    telemetry = make()
    telemetry.round_ended(telemetry.mark())
    for operation in ("model.predict", "env.step", "env.reset"):
        telemetry.record(operation, 0, 1, endpoint_ns=1, request_bytes=1, response_bytes=1, rows=1)
    keys = [(r.operation, r.component, r.metric) for r in telemetry.session().rows]
    assert keys == sorted(keys)
    assert len(keys) == 16


def test_r38_a_window_is_cleared_when_taken_and_the_session_is_not():
    telemetry = make()
    step(telemetry, 1 * MS)
    first = telemetry.window()
    step(telemetry, 3 * MS)
    step(telemetry, 5 * MS)
    second, session = telemetry.window(), telemetry.session()
    assert first is not None
    assert second is not None
    assert (first.horizon, second.horizon, session.horizon) == ("window", "window", "session")
    assert rows_of(first)["env.step", "rpc.total"].mean == 1.0
    assert rows_of(second)["env.step", "rpc.total"].mean == 4.0
    assert rows_of(session)["env.step", "rpc.total"].mean == 3.0
    assert rows_of(session)["env.step", "rpc.total"].count == 3


def test_r38_an_empty_window_is_none():
    telemetry = make()
    assert telemetry.window() is None
    step(telemetry, MS)
    assert telemetry.window() is not None
    assert telemetry.window() is None


def test_r38_the_session_counts_an_open_window_and_leaves_it_open():
    telemetry = make()
    step(telemetry, MS)
    assert rows_of(telemetry.session())["env.step", "rpc.total"].count == 1
    assert rows_of(telemetry.session())["env.step", "rpc.total"].count == 1
    window = telemetry.window()
    assert window is not None
    assert rows_of(window)["env.step", "rpc.total"].count == 1


def test_r38_zero_is_exact():
    telemetry = make()
    for _ in range(100):
        step(telemetry, 0, request_bytes=0)
    row = rows_of(telemetry.session())["env.step", "rpc.total"]
    assert (row.count, row.mean, row.p50, row.p99, row.min, row.max) == (100, 0, 0, 0, 0, 0)


def test_r38_percentiles_are_nearest_rank_and_small_counts_exact():
    telemetry = make()
    for size in range(1, 101):
        step(telemetry, MS, request_bytes=size)
    row = rows_of(telemetry.session())["env.step", "request.bytes"]
    assert (row.p50, row.p95, row.p99, row.min, row.max, row.mean) == (50, 95, 99, 1, 100, 50.5)


def test_r38_percentiles_lie_between_min_and_max():
    telemetry = make()
    for _ in range(3):
        step(telemetry, 123_457)
    row = rows_of(telemetry.session())["env.step", "rpc.total"]
    assert row.p50 == row.p99 == row.min == row.max == row.mean == 123_457 / 1e6


def test_r38_counts_and_means_stay_exact_over_many_folds():
    telemetry = make()
    total = 3 * FOLD_AT + 17
    for i in range(total):
        step(telemetry, i)
    row = rows_of(telemetry.session())["env.step", "rpc.total"]
    assert row.count == total
    assert row.mean == (total - 1) / 2 / 1e6


def test_r38_memory_is_bounded_however_long_the_session():
    telemetry = make()
    for i in range(5 * FOLD_AT):
        step(telemetry, i**4 % 2**62, request_bytes=i**3)
        telemetry.round_ended(-i)
    assert all(len(pending) < 5 * FOLD_AT for pending in telemetry._pending.values())
    telemetry.window()
    buckets = [d.buckets.nbytes for d in telemetry._session.values()]
    assert max(buckets) <= 64 * 1024 + 1024
    assert len(buckets) == 4


def test_r38_sums_beyond_64_bits_are_exact():
    telemetry = make()
    for _ in range(8):
        step(telemetry, 1, request_bytes=2**62)
    assert rows_of(telemetry.session())["env.step", "request.bytes"].mean == 2**62


def test_r38_no_sample_is_lost_or_doubled_while_threads_record_and_windows_are_taken():
    telemetry, done = make(), threading.Event()
    per_thread, counted = 20_000, []

    def record():
        for i in range(per_thread):
            step(telemetry, i)
            telemetry.round_ended(0)

    def take():
        while not done.is_set():
            if window := telemetry.window():
                counted.append(window)

    threads = [threading.Thread(target=record) for _ in range(3)]
    taker = threading.Thread(target=take)
    for thread in (taker, *threads):
        thread.start()
    for thread in threads:
        thread.join(30)
    done.set()
    taker.join(30)
    if rest := telemetry.window():
        counted.append(rest)
    session = rows_of(telemetry.session())
    for key in (("env.step", "rpc.total"), ("runner.round", "round.total")):
        assert session[key].count == 3 * per_thread
        assert sum(rows_of(w)[key].count for w in counted if key in rows_of(w)) == 3 * per_thread
    samples = ("rpc.total", "request.bytes", "response.bytes")
    for window in counted:  # the samples of a call are recorded together
        rows = rows_of(window)
        counts = {rows[key].count if (key := ("env.step", m)) in rows else 0 for m in samples}
        assert len(counts) == 1


# ------------------------------------------------------------- R40: it never ends a route


@pytest.mark.parametrize("odd", ["text", None, 2**70, float("nan"), [1], object()])
def test_r40_an_odd_number_costs_its_call_only_and_is_logged_once(odd, caplog):
    telemetry = make()
    step(telemetry, MS)
    step(telemetry, MS, request_bytes=odd)
    step(telemetry, MS, response_bytes=odd)
    step(telemetry, 3 * MS)
    with caplog.at_level(logging.WARNING):
        row = rows_of(telemetry.session())["env.step", "rpc.total"]
        step(telemetry, MS, request_bytes=odd)
        telemetry.window()
    assert (row.count, row.mean) == (2, 2.0)
    assert len(caplog.records) == 1


def test_r40_an_odd_time_or_operation_is_logged_and_not_raised(caplog):
    telemetry = make()
    with caplog.at_level(logging.WARNING):
        telemetry.record("env.fly", 0, 1, endpoint_ns=None, request_bytes=0, response_bytes=0)
        telemetry.record("env.step", None, 1, endpoint_ns=None, request_bytes=0, response_bytes=0)
        telemetry.round_ended("yesterday")
    assert telemetry.session().rows == ()
    assert len(caplog.records) == 1


def test_r40_numpy_integers_count():
    telemetry = make()
    step(telemetry, np.int64(MS), request_bytes=np.uint8(4))
    assert rows_of(telemetry.session())["env.step", "request.bytes"].mean == 4.0


def test_r40_a_duration_below_zero_is_no_sample():
    telemetry = make()
    step(telemetry, -5)
    assert ("env.step", "rpc.total") not in rows_of(telemetry.session())


def test_r40_a_broken_fold_or_snapshot_is_logged_once_and_still_gives_a_session(
    monkeypatch, caplog
):
    def fail(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(module._Distribution, "add", fail)
    telemetry = make()
    with caplog.at_level(logging.WARNING):
        for i in range(FOLD_AT + 1):
            step(telemetry, i)
        assert telemetry.window() is None
        snapshot = telemetry.session()
    assert (snapshot.horizon, snapshot.rows) == ("session", ())
    assert len(caplog.records) == 1
    assert "no room" in caplog.text


def test_r40_a_broken_clock_is_logged_and_not_raised(caplog):
    clock = FakeClock()
    telemetry = make(clock)
    telemetry.mark = lambda: 1 // 0
    with caplog.at_level(logging.WARNING):
        telemetry.round_ended(0)
    assert len(caplog.records) == 1
