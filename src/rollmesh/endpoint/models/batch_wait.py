"""How long a batch waits for more rows: learned, or fixed (layer 6).

Knows no clock, thread or port: whoever batches tells what happened and when, and asks whether to
go.

The learned wait. When the model is free and `b` rows wait, a batch that goes after τ more
nanoseconds has B(τ) = b + (rows expected within τ) rows, and takes c(B) = a + k·B. The wait chosen
is the one with the best rate of the whole turn, B(τ) / (i + τ + c(B(τ))), where i is how long the
model has been free already (a at most): where all think at once, a row left behind misses a turn
with its idle time in it, not a forward alone. It is chosen anew once B(τ) rows are there and
whenever its time is up, so that what has not come is judged by how late it is by then.

- c is a line through the medians of recent forwards, by size.
- What is expected comes from *think times*, the time from an answer to that episode's next request.
  Each episode has a few of its own, and all share a recent sample; the chance that a row comes
  within τ is that of its own sample and the shared one, given how long it has been thinking.
- An episode that ended is followed by another one in its lane, after the time that took lately, or
  that steps take where no other has been followed yet.
- One that thinks longer than any did lately is not waited for. So a lone client never waits, nor
  does a batch that everybody is in.
- In all a batch never waits longer than `a`: that is what a forward less would save.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

LIVE_NS = 1_000_000_000
"""With a fixed wait: an episode is waited for if it was answered within this time."""
_NEVER_NS = -(2**62)
"""When an episode was answered that has not been."""

OWN = 16
"""Think times kept of an episode."""
_SHARED = 16
"""Points that the shared sample is reduced to."""
_SHARED_WEIGHT = 8.0
"""What the shared sample weighs, in think times of an episode's own."""
_NEVER_WEIGHT = 0.25
"""What it weighs that an episode never asks again."""
_fmax: Any = np.fmax  # NumPy's stubs leave the arguments of its methods partly unknown
_RECENT = 128
"""Size of the shared sample."""
_OF_A_SIZE = 9
"""Forwards of one size that count."""
_BINS = 64
"""Waits that are compared."""
_LEAST_NS = 250_000
"""A forward that costs less beside its rows is not worth a wait, nor the time to think about it."""
_LEAST_WAIT_NS = 50_000
"""A shorter wait is over before a thread is asleep."""
_MOST_CLOCKS = 128
"""More episodes than this are judged by a part of them."""
_ROUNDING = 1e-6
_MOST_SUCCESSORS = 1024
"""Ended episodes of one route that a successor is expected for."""

Route = Hashable
_Floats = NDArray[np.float64]


class Pause(msgspec.Struct, frozen=True, gc=False):
    """A batch waits: look at it again after `ns`, or once `rows` wait, whatever comes first."""

    ns: int
    rows: int


class WaitPolicy(Protocol):
    """Decides when a batch goes. Times are nanoseconds of one clock that never runs back."""

    def asked(self, route: Route, episode_ids: Sequence[str], at_ns: int) -> None:
        """Take note that these episodes wait for an answer."""
        ...

    def answered(self, episode_ids: Sequence[str], at_ns: int) -> None:
        """Take note that these episodes have one."""
        ...

    def took(self, rows: int, duration_ns: int) -> None:
        """Take note of what a forward of so many rows took."""
        ...

    def ended(self, route: Route, episode_ids: Sequence[str], at_ns: int) -> None:
        """Take note that these episodes are over; others may follow."""
        ...

    def released(self, route: Route, episode_ids: Sequence[str]) -> None:
        """Take note that a route is over, with these episodes, and that nothing follows."""
        ...

    def pause(self, rows: int, oldest_ns: int, at_ns: int) -> Pause | None:
        """Return when to ask again; None is to go now.

        Args:
            rows: That wait.
            oldest_ns: Since when the first of them has waited.
            at_ns: Now.
        """
        ...


class FixedWait:
    """Waits until all live episodes have asked, but no longer than told.

    Args:
        max_wait_ns: How long, since the model was free and the first row there.
    """

    def __init__(self, max_wait_ns: int) -> None:
        self._max_wait_ns = max_wait_ns
        self._free_ns = 0
        self._answered_ns: dict[str, int] = {}

    def asked(self, route: Route, episode_ids: Sequence[str], at_ns: int) -> None:
        del route, at_ns
        for episode_id in episode_ids:
            self._answered_ns.setdefault(episode_id, _NEVER_NS)

    def answered(self, episode_ids: Sequence[str], at_ns: int) -> None:
        self._free_ns = at_ns
        known = self._answered_ns
        for episode_id in episode_ids:
            if episode_id in known:  # others have left meanwhile
                known[episode_id] = at_ns

    def took(self, rows: int, duration_ns: int) -> None:
        del rows, duration_ns

    def ended(self, route: Route, episode_ids: Sequence[str], at_ns: int) -> None:
        del at_ns
        self.released(route, episode_ids)

    def released(self, route: Route, episode_ids: Sequence[str]) -> None:
        del route
        for episode_id in episode_ids:
            self._answered_ns.pop(episode_id, None)

    def pause(self, rows: int, oldest_ns: int, at_ns: int) -> Pause | None:
        since_ns = at_ns - LIVE_NS
        live = sum([answered_ns >= since_ns for answered_ns in self._answered_ns.values()])
        left_ns = max(self._free_ns, oldest_ns) + self._max_wait_ns - at_ns
        return Pause(left_ns, live) if rows < live and left_ns > 0 else None


class CostCurve:
    """What a forward takes, as a line over its rows.

    Of each size (powers of two, in quarters) the median of the last nine counts, so that a forward
    that compiled, or was disturbed, does not.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, deque[tuple[int, int]]] = {}
        self._points: dict[int, tuple[int, float, float]] = {}
        """Of each size: how many forwards count, their rows on average, their median time."""
        self._line = (0.0, 0.0)
        self._is_stale = False

    def add(self, rows: int, duration_ns: int) -> None:
        """Take a forward into account."""
        shift = max(0, rows.bit_length() - 3)
        size = (rows >> shift) << shift
        seen = self._sizes.get(size)
        if seen is None:
            seen = self._sizes[size] = deque(maxlen=_OF_A_SIZE)
        seen.append((rows, duration_ns))
        self._points[size] = (
            len(seen),
            sum([rows for rows, _ in seen]) / len(seen),
            statistics.median([duration for _, duration in seen]),
        )
        self._is_stale = True

    @property
    def line(self) -> tuple[float, float]:
        """What a forward takes beside its rows, and what each row adds, in nanoseconds.

        Guarantees: neither is below zero.
        """
        if self._is_stale:
            self._is_stale = False
            self._line = self._fit()
        return self._line

    def _fit(self) -> tuple[float, float]:
        """Return the line of least squares, within what can be."""
        points = self._points.values()
        total = sum([n for n, _, _ in points])
        x_mean = sum([n * x for n, x, _ in points]) / total
        y_mean = sum([n * y for n, _, y in points]) / total
        spread = sum([n * (x - x_mean) ** 2 for n, x, _ in points])
        slope = 0.0  # of one size it is not known: hope that rows are free, and find out
        if spread > 0:
            slope = sum([n * (x - x_mean) * (y - y_mean) for n, x, y in points]) / spread
        slope = min(max(slope, 0.0), y_mean / x_mean)
        return max(0.0, y_mean - slope * x_mean), slope


class _Sample:
    """The latest think times of everybody, and a few points that stand for them."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_RECENT)
        self._is_stale = False
        self.points: _Floats = np.full(_SHARED, np.nan)

    @property
    def is_known(self) -> bool:
        return bool(self._times)

    def add(self, time_ns: float) -> None:
        self._times.append(time_ns)
        self._is_stale = True

    def refresh(self) -> bool:
        """Bring the points up to date; return whether they were not."""
        if not self._is_stale:
            return False
        self._is_stale = False
        ordered = np.sort(np.array(self._times))
        middles = (np.arange(_SHARED) + 0.5) * (len(ordered) / _SHARED)
        self.points = ordered[middles.astype(np.intp)]
        return True


_WEIGHTS: _Floats = np.concatenate([np.ones(OWN), np.full(_SHARED, _SHARED_WEIGHT / _SHARED)])
_EDGES: _Floats = np.minimum(np.arange(1, _BINS + 2) / _BINS, 1.0)


class LearnedWait:
    """Waits as long as it pays; see the module.

    Args:
        max_batch: Rows of one forward at most.
        sizes: What numbers of rows are filled up to, ascending; empty where they are not.

    Attributes:
        cost: What a forward takes.
    """

    def __init__(self, max_batch: int, sizes: Sequence[int] = ()) -> None:
        self.cost = CostCurve()
        self._max_batch = max_batch
        self._sizes = np.array(sizes or [1], dtype=np.float64)
        self._is_padded = bool(sizes)
        self._free_ns = 0
        # a clock per episode: since when it thinks (0: it does not), and the times to judge it by
        self._clocks: dict[str, int] = {}
        self._unused: list[int] = []
        self._since = np.zeros(0)
        self._times = np.zeros((0, OWN + _SHARED))
        self._counts: list[int] = []
        self._is_successor = np.zeros(0, dtype=np.bool_)
        self._successors: dict[Route, deque[int]] = {}
        self._coming = 0
        self._steps, self._resets = _Sample(), _Sample()

    @property
    def clocks(self) -> int:
        """How many episodes it keeps times of, those that are expected among them."""
        return len(self._clocks) + self._coming

    # --------------------------------------------------------------------------- what happens

    def asked(self, route: Route, episode_ids: Sequence[str], at_ns: int) -> None:
        for episode_id in episode_ids:
            clock = self._clocks.get(episode_id)
            if clock is None:
                self._clocks[episode_id] = self._first_time(route, at_ns)
                continue
            since = self._since[clock]
            if since:
                count = self._counts[clock]
                self._times[clock, count % OWN] = at_ns - since
                self._counts[clock] = count + 1
                self._steps.add(at_ns - since)
                self._since[clock] = 0.0

    def _first_time(self, route: Route, at_ns: int) -> int:
        """Return the clock of an episode that asks for the first time: of the one it follows."""
        waiting = self._successors.get(route)
        if not waiting:
            return self._new_clock()
        clock = waiting.popleft()
        self._coming -= 1
        self._resets.add(at_ns - self._since[clock])
        self._since[clock] = 0.0
        self._is_successor[clock] = False
        self._times[clock, OWN:] = self._steps.points
        return clock

    def answered(self, episode_ids: Sequence[str], at_ns: int) -> None:
        self._free_ns = at_ns
        for episode_id in episode_ids:
            clock = self._clocks.get(episode_id)
            if clock is not None:
                self._since[clock] = at_ns

    def took(self, rows: int, duration_ns: int) -> None:
        self.cost.add(self._padded(rows), duration_ns)

    def ended(self, route: Route, episode_ids: Sequence[str], at_ns: int) -> None:
        for episode_id in episode_ids:
            clock = self._clocks.pop(episode_id, None)
            if clock is None:
                continue
            waiting = self._successors.setdefault(route, deque())
            waiting.append(clock)
            self._coming += 1
            self._since[clock] = at_ns
            self._counts[clock] = 0
            self._is_successor[clock] = True
            self._times[clock, :OWN] = np.nan
            # before the first reset has been seen, one is taken for a step
            resets = self._resets if self._resets.is_known else self._steps
            self._times[clock, OWN:] = resets.points
            if len(waiting) > _MOST_SUCCESSORS:
                self._coming -= 1
                self._drop(waiting.popleft())

    def released(self, route: Route, episode_ids: Sequence[str]) -> None:
        for episode_id in episode_ids:
            clock = self._clocks.pop(episode_id, None)
            if clock is not None:
                self._drop(clock)
        successors = self._successors.pop(route, deque[int]())
        self._coming -= len(successors)
        for clock in successors:
            self._drop(clock)

    # ------------------------------------------------------------------------------ decisions

    def pause(self, rows: int, oldest_ns: int, at_ns: int) -> Pause | None:
        if rows >= self._max_batch or rows >= self.clocks:
            return None
        fixed_ns, row_ns = self.cost.line
        limit = fixed_ns - (at_ns - max(self._free_ns, oldest_ns))
        if limit < _LEAST_WAIT_NS or fixed_ns < _LEAST_NS:
            return None
        coming = self._expected(at_ns, limit)
        if coming is None:
            return None
        total = np.minimum(coming + rows, self._max_batch)
        waits = _EDGES * limit
        spent_ns = min(at_ns - self._free_ns, fixed_ns) + fixed_ns
        rates = total / (waits + spent_ns + row_ns * self._filled_up(total))
        best = int(rates.argmax())
        rate_now = rows / (spent_ns + row_ns * self._padded(rows))
        if rates[best] <= rate_now or waits[best] < _LEAST_WAIT_NS:
            return None
        # rows that are expected change nothing; once they are here, the rest is looked at anew
        return Pause(int(waits[best]), max(rows + 1, int(total[best])))

    def _expected(self, at_ns: int, limit: float) -> _Floats | None:
        """Return the rows expected within each of the waits, or None where nothing thinks."""
        self._refresh()
        thinking = self._since.nonzero()[0]
        scale = 1.0
        if len(thinking) > _MOST_CLOCKS:
            thinking, scale = self._part_of(thinking, at_ns)
        if not len(thinking):
            return None
        left = self._times[thinking] - (at_ns - self._since[thinking])[:, np.newaxis]
        later = left > 0.0
        weights = _WEIGHTS / (later @ _WEIGHTS + _NEVER_WEIGHT)[:, np.newaxis]
        soon = later & (left <= limit)
        bins = (left[soon] * (_BINS / limit)).astype(np.intp)
        return np.bincount(bins, weights[soon] * scale, _BINS + 1).cumsum()

    def _part_of(self, thinking: NDArray[np.intp], at_ns: int) -> tuple[NDArray[np.intp], float]:
        """Return the clocks that may still ring, or every n-th of them, and that n."""
        longest = _fmax.reduce(self._times[thinking], axis=1, initial=0.0)
        thinking = thinking[at_ns - self._since[thinking] < longest]
        stride = -(-len(thinking) // _MOST_CLOCKS) or 1
        return thinking[::stride], float(stride)

    def _refresh(self) -> None:
        """Give the clocks the shared times of now."""
        if self._steps.refresh():
            like_steps = ~self._is_successor if self._resets.is_known else slice(None)
            self._times[like_steps, OWN:] = self._steps.points
        if self._resets.refresh():
            self._times[self._is_successor, OWN:] = self._resets.points

    def _filled_up(self, rows: _Floats) -> _Floats:
        if not self._is_padded:
            return rows
        sizes = self._sizes
        place = sizes.searchsorted(rows - _ROUNDING).clip(max=len(sizes) - 1)
        return np.maximum(sizes[place], rows)

    def _padded(self, rows: int) -> int:
        if not self._is_padded:
            return rows
        place = int(self._sizes.searchsorted(rows))
        return rows if place == len(self._sizes) else int(self._sizes[place])

    # --------------------------------------------------------------------------------- clocks

    def _new_clock(self) -> int:
        if not self._unused:
            used = len(self._since)
            more = max(16, used)
            self._since = np.concatenate([self._since, np.zeros(more)])
            self._times = np.concatenate([self._times, np.full((more, OWN + _SHARED), np.nan)])
            self._is_successor = np.concatenate([self._is_successor, np.zeros(more, np.bool_)])
            self._counts.extend([0] * more)
            self._unused.extend(range(used + more - 1, used - 1, -1))
        clock = self._unused.pop()
        self._times[clock, OWN:] = self._steps.points
        return clock

    def _drop(self, clock: int) -> None:
        self._since[clock] = 0.0
        self._counts[clock] = 0
        self._is_successor[clock] = False
        self._times[clock, :OWN] = np.nan
        self._unused.append(clock)


_: type[WaitPolicy] = FixedWait
_: type[WaitPolicy] = LearnedWait
