"""Telemetry against the plain truth: the sorted list of all samples (R38)."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from rollmesh.runtime.telemetry import Telemetry

small = st.integers(min_value=0, max_value=300)
durations = st.one_of(small, st.integers(min_value=0, max_value=2**50))
samples = st.lists(durations, min_size=1, max_size=200)


def filled(values, telemetry=None):
    telemetry = telemetry or Telemetry("env", "model")
    for value in values:
        telemetry.record(
            "env.step", 7, 7 + value, endpoint_ns=None, request_bytes=value, response_bytes=0
        )
    return telemetry


def row_of(snapshot, metric):
    return next(row for row in snapshot.rows if row.metric == metric)


def nearest_rank(values, percent):
    return sorted(values)[math.ceil(percent * len(values) / 100) - 1]


@given(samples)
def test_r38_count_mean_min_and_max_are_exact(values):
    row = row_of(filled(values).session(), "request.bytes")
    assert row.count == len(values)
    assert row.mean == sum(values) / len(values)
    assert (row.min, row.max) == (min(values), max(values))


@given(samples)
def test_r38_percentiles_are_within_one_percent_and_zero_is_exact(values):
    row = row_of(filled(values).session(), "request.bytes")
    for percent, got in ((50, row.p50), (95, row.p95), (99, row.p99)):
        truth = nearest_rank(values, percent)
        assert abs(got - truth) <= 0.004 * truth
    assert row.min <= row.p50 <= row.p95 <= row.p99 <= row.max


@given(st.lists(small.filter(lambda v: v <= 256), min_size=1, max_size=200))
def test_r38_percentiles_of_small_counts_are_exact(values):
    row = row_of(filled(values).session(), "request.bytes")
    assert row.p50 == nearest_rank(values, 50)
    assert row.p95 == nearest_rank(values, 95)
    assert row.p99 == nearest_rank(values, 99)


@given(st.lists(samples, min_size=1, max_size=8))
def test_r38_the_session_is_the_same_however_it_was_cut_into_windows(windows):
    cut, whole = Telemetry("env", "model"), Telemetry("env", "model")
    counts = []
    for values in windows:
        filled(values, cut)
        filled(values, whole)
        snapshot = cut.window()
        assert snapshot is not None
        counts.append(row_of(snapshot, "rpc.total").count)
    assert counts == [len(values) for values in windows]
    assert cut.session() == whole.session()


@given(st.lists(st.integers(min_value=0, max_value=2**40), min_size=1, max_size=50))
def test_r38_durations_are_the_same_samples_in_milliseconds(values):
    snapshot = filled(values).session()
    in_ms, plain = row_of(snapshot, "rpc.total"), row_of(snapshot, "request.bytes")
    assert in_ms.p95 == plain.p95 / 1e6
    assert in_ms.max == plain.max / 1e6
