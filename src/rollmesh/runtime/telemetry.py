"""What a route measures about itself (layer 3, rules R37, R38, R40).

`Telemetry` takes the samples of a call on the hot path by extending a list (one atomic operation)
and folds them into log buckets in bulk: when a list is full, and when somebody wants a snapshot.
It starts no thread and knows no route, hook or port; whoever owns a ticker calls `window`.

Two horizons over the same samples: folding goes into the window, and a window that is taken is
poured into the session. Memory is bounded by the pending lists and by 64 kB of buckets for each
metric of each operation and horizon, however long the session.

Nothing in here reaches the route: what goes wrong is logged once and costs samples, not episodes.
"""

from __future__ import annotations

import logging
import math
import operator
import sys
import threading
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from rollmesh.clock import SYSTEM_CLOCK, Clock
from rollmesh.events import MetricRow, TelemetrySnapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_logger = logging.getLogger(__name__)

FOLD_AT = 4096
"""Pending calls of one operation that are folded at once, on the thread that adds the last."""

_ROUND = "runner.round"
_DURATION = "duration"
_CALL_METRICS = (
    ("rpc.total", _DURATION),
    ("endpoint.total", _DURATION),
    ("request.bytes", "bytes"),
    ("response.bytes", "bytes"),
    ("group.size", "count"),
)
"""Name and kind of the values of one recorded call, in order."""
_CALLS_FOLD_AT = FOLD_AT * len(_CALL_METRICS)
_ROUND_METRICS = (("round.total", _DURATION),)

_NOT_GIVEN = -1
_NS_PER_MS = 1_000_000
_PERCENTS = (50, 95, 99)


class Telemetry:
    """Takes the samples of one route and answers with snapshots.

    Guarantees: `record`, `round_ended`, `window` and `session` raise nothing and may be called from
    any thread; a sample recorded before a snapshot is in it; counts, means, minima and maxima are
    exact; a percentile is within 0.4 % of the nearest-rank sample, and exact for values up to 256
    and where all samples are equal.

    Attributes:
        mark: Returns the clock's nanoseconds: the start of a round, for `round_ended`.
    """

    def __init__(
        self, env_component: str, model_component: str, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.mark: Callable[[], int] = clock.monotonic_ns
        self._components = {
            "env.reset": env_component,
            "env.step": env_component,
            "model.predict": model_component,
            _ROUND: "runner",
        }
        self._pending: dict[str, list[int]] = {operation: [] for operation in self._components}
        self._rounds: list[int] = self._pending[_ROUND]
        self._window: _Distributions = {}
        self._session: _Distributions = {}
        self._lock = threading.RLock()
        self._has_complained = False

    # ------------------------------------------------------------------------ the hot path

    def record(
        self,
        operation: str,
        started_ns: int,
        ended_ns: int,
        *,
        endpoint_ns: int | None,
        request_bytes: int,
        response_bytes: int,
        rows: int | None = None,
    ) -> None:
        """Take the samples of one call that came back, together.

        Args:
            operation: `env.reset`, `env.step` or `model.predict`.
            started_ns: When the call began, on a monotonic clock.
            ended_ns: When it came back, on the same clock.
            endpoint_ns: The time the endpoint says it took, or None.
            request_bytes: What the port says it sent.
            response_bytes: What the port says it received.
            rows: Rows of a predict; None for other operations.
        """
        try:
            pending = self._pending[operation]
            pending.extend(
                (
                    ended_ns - started_ns,
                    _NOT_GIVEN if endpoint_ns is None else endpoint_ns,
                    request_bytes,
                    response_bytes,
                    _NOT_GIVEN if rows is None else rows,
                )
            )
            if len(pending) >= _CALLS_FOLD_AT:
                self._fold_unless_busy()
        except Exception:  # noqa: BLE001 - nothing in here may reach the route
            self._complain("record")

    def round_ended(self, mark: int) -> None:
        """Take one `round.total` sample: the time since `mark()` returned `mark`."""
        try:
            rounds = self._rounds
            rounds.append(self.mark() - mark)
            if len(rounds) >= FOLD_AT:
                self._fold_unless_busy()
        except Exception:  # noqa: BLE001 - as above
            self._complain("round_ended")

    # --------------------------------------------------------------------------- snapshots

    def window(self) -> TelemetrySnapshot | None:
        """Return the samples since the last window and begin a new one; None if there are none.

        Taking and clearing are one critical section; the rows are worked out after it.
        """
        try:
            with self._lock:
                self._fold()
                taken, self._window = self._window, {}
                _pour(taken, self._session)
            return self._snapshot("window", taken) if taken else None
        except Exception:  # noqa: BLE001 - as above
            self._complain("window")
            return None

    def session(self) -> TelemetrySnapshot:
        """Return all samples so far; the window goes on undisturbed."""
        try:
            whole: _Distributions = {}
            with self._lock:
                self._fold()
                _pour(self._session, whole)
                _pour(self._window, whole)
            return self._snapshot("session", whole)
        except Exception:  # noqa: BLE001 - as above
            self._complain("session")
            return TelemetrySnapshot(horizon="session", rows=())

    def _snapshot(self, horizon: str, distributions: _Distributions) -> TelemetrySnapshot:
        return TelemetrySnapshot(
            horizon=horizon,
            rows=tuple(
                distributions[source].row(source, self._components[source[0]])
                for source in sorted(distributions)
            ),
        )

    # ----------------------------------------------------------------------------- folding

    def _fold_unless_busy(self) -> None:
        """Fold, unless another thread is at it: the next sample tries again."""
        if self._lock.acquire(blocking=False):
            try:
                self._fold()
            finally:
                self._lock.release()

    def _fold(self) -> None:
        """Move all pending samples into the window; the caller holds the lock.

        The lists stay the same objects and shrink from the front, so that a thread which has just
        looked one up may append to it at any moment and no sample is lost.
        """
        for operation, pending in self._pending.items():
            count = len(pending)
            batch = pending[:count]
            del pending[:count]
            metrics = _ROUND_METRICS if pending is self._rounds else _CALL_METRICS
            numbers = self._numbers(batch, len(metrics))
            for position, (metric, kind) in enumerate(metrics):
                column = numbers[position :: len(metrics)]
                given = column[column >= 0]
                if given.size:
                    source = (operation, metric, kind)
                    self._window.setdefault(source, _Distribution()).add(given)

    def _numbers(self, values: list[int], width: int) -> NDArray[np.int64]:
        """Return pending values as an array; calls (`width` values) with odd ones are left out."""
        try:
            return np.fromiter(values, dtype=np.int64, count=len(values))
        except (TypeError, ValueError, OverflowError):
            self._complain("fold")
        rows = (values[start : start + width] for start in range(0, len(values), width))
        sound = chain.from_iterable(row for row in rows if all(map(_is_whole, row)))
        return np.fromiter(sound, dtype=np.int64)

    def _complain(self, where: str) -> None:
        """Log the error being handled, the first time only."""
        if not self._has_complained:
            self._has_complained = True
            _logger.warning(
                "telemetry.failed where=%s (samples are lost, the route goes on; "
                "further failures are not logged)",
                where,
                exc_info=sys.exc_info(),
            )


# ------------------------------------------------------------------------------- buckets

_PER_OCTAVE = 128
_SAFE_TO_SUM = 1 << 40
_LARGEST = (1 << 63) - 1


class _Distribution:
    """Counts whole numbers ≥ 0 in buckets: 128 of equal width from each power of two to the next.

    Bucket 0 is the number 0, bucket 1 begins at 1; up to 256 a bucket holds one number only.
    """

    __slots__ = ("buckets", "count", "high", "low", "total")

    def __init__(self) -> None:
        self.buckets: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        self.count = 0
        self.total = 0
        self.low = _LARGEST
        self.high = 0

    def add(self, values: NDArray[np.int64]) -> None:
        """Count values (n ≥ 1, each ≥ 0)."""
        high = int(values.max())
        self.count += values.size
        self.total += int(values.sum()) if high < _SAFE_TO_SUM else sum(values.tolist())
        self.low = min(self.low, int(values.min()))
        self.high = max(self.high, high)
        mantissas, exponents = np.frexp(values)  # value = mantissa · 2^exponent, mantissa ≥ 1/2
        steps = (mantissas * (2 * _PER_OCTAVE)).astype(np.int64)  # 128 … 255
        indices = exponents * _PER_OCTAVE + steps - (2 * _PER_OCTAVE - 1)
        self.buckets = _add_padded(self.buckets, np.bincount(np.maximum(indices, 0)))

    def merge(self, other: _Distribution) -> None:
        """Count what another distribution has counted."""
        self.count += other.count
        self.total += other.total
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)
        self.buckets = _add_padded(self.buckets, other.buckets)

    def row(self, source: _Source, component: str) -> MetricRow:
        """Return the distribution as a row of a snapshot: durations in ms."""
        operation, metric, kind = source
        unit = _NS_PER_MS if kind == _DURATION else 1
        ranks = [-(-percent * self.count // 100) for percent in _PERCENTS]
        indices = np.searchsorted(np.cumsum(self.buckets), ranks)
        p50, p95, p99 = (
            min(max(_middle(int(index)), self.low), self.high) / unit for index in indices
        )
        return MetricRow(
            operation=operation,
            component=component,
            metric=metric,
            kind=kind,
            count=self.count,
            mean=self.total / (self.count * unit),
            p50=p50,
            p95=p95,
            p99=p99,
            min=self.low / unit,
            max=self.high / unit,
        )


_Source: TypeAlias = tuple[str, str, str]
"""Operation, metric, kind."""
_Distributions: TypeAlias = dict[_Source, _Distribution]


def _pour(source: _Distributions, target: _Distributions) -> None:
    """Merge every distribution of `source` into its namesake in `target`."""
    for key, distribution in source.items():
        target.setdefault(key, _Distribution()).merge(distribution)


def _middle(index: int) -> float:
    """Return the middle of the whole numbers in a bucket."""
    if index == 0:
        return 0.0
    octave, step = divmod(index - 1, _PER_OCTAVE)
    width = math.ldexp(1 / _PER_OCTAVE, octave)
    return (_PER_OCTAVE + step) * width + max(0.0, (width - 1.0) / 2.0)


def _add_padded(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum of two arrays, the shorter one padded with zeros."""
    shorter, longer = (one, other) if len(one) < len(other) else (other, one)
    total = longer.astype(np.int64)
    total[: len(shorter)] += shorter
    return total


def _is_whole(value: object) -> bool:
    """Whether a value is an integer that fits 64 bits."""
    try:
        return -_LARGEST <= operator.index(cast("int", value)) <= _LARGEST
    except TypeError:
        return False
