"""Harness: runs subjects in turn and turns their bursts into figures and ratios.

A figure taken alone on a shared machine means little. So the subjects of a comparison take turns
(A B A B …) in short bursts, ratios are taken within a round, and the median of the rounds counts.
Knows no subject; the clock is passed in.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_NS_PER_S = 1e9
_GROWTH_LIMIT = 16


def _nothing() -> None:
    """Close or prepare what needs none of it."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One thing that is measured.

    Attributes:
        name: How the table calls it.
        run: Does `bouts` bouts of work, returns how many units (steps, calls) that was.
        close: Gives back what the subject holds; called once.
        prepare: Waits for what the subject has started, before its first run; called once.
    """

    name: str
    run: Callable[[int], int]
    close: Callable[[], None] = _nothing
    prepare: Callable[[], None] = _nothing


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long and how often to measure.

    Attributes:
        repetitions: Number of rounds; the median of fewer than five is not worth printing.
        burst_s: Length aimed at for one burst of one subject.
        warmup_s: Least length of each subject's warm-up.
    """

    repetitions: int = 7
    burst_s: float = 1.0
    warmup_s: float = 0.3

    def __post_init__(self) -> None:
        """Refuse what would not give a median."""
        if self.repetitions < 1 or self.burst_s <= 0 or self.warmup_s < 0:
            raise ValueError(
                "a timing needs at least one repetition, a burst above 0 s and a warm-up of "
                f"0 s or more, got {self}"
            )


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median, least and greatest of the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(median=statistics.median(values), low=min(values), high=max(values))


@dataclass(frozen=True, kw_only=True)
class Burst:
    """One turn of one subject."""

    units: int
    seconds: float

    @property
    def rate(self) -> float:
        """Return units per second."""
        return self.units / self.seconds

    @property
    def cost_s(self) -> float:
        """Return seconds per unit."""
        return self.seconds / self.units


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a run of several subjects in turn gave: per subject, one burst per round."""

    bursts: dict[str, tuple[Burst, ...]] = field(repr=False)

    def rate(self, name: str) -> Spread:
        """Return units per second of a subject."""
        return Spread.of([burst.rate for burst in self.bursts[name]])

    def cost_s(self, name: str) -> Spread:
        """Return seconds per unit of a subject."""
        return Spread.of([burst.cost_s for burst in self.bursts[name]])

    def speedup(self, name: str, base: str) -> Spread:
        """Return how many times faster `name` is than `base`, round by round."""
        pairs = zip(self.bursts[name], self.bursts[base], strict=True)
        return Spread.of([mine.rate / theirs.rate for mine, theirs in pairs])

    def cost_ratio(self, name: str, base: str) -> Spread:
        """Return how many times dearer a unit of `name` is than one of `base`, round by round."""
        pairs = zip(self.bursts[name], self.bursts[base], strict=True)
        return Spread.of([mine.cost_s / theirs.cost_s for mine, theirs in pairs])

    def extra_cost_s(self, name: str, base: str) -> Spread:
        """Return seconds per unit that `name` takes beyond `base`, round by round."""
        pairs = zip(self.bursts[name], self.bursts[base], strict=True)
        return Spread.of([mine.cost_s - theirs.cost_s for mine, theirs in pairs])


def compare(
    subjects: Sequence[Subject],
    timing: Timing,
    *,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Comparison:
    """Prepare and warm up every subject, then run them in turn, and close them.

    Args:
        subjects: At least one; names differ.
        timing: How long and how often.
        clock_ns: Tells the time.

    Guarantees: every subject is closed, also when one raises; each round holds one burst of each
        subject,
        in the order given; no garbage of one subject is collected in another's burst.
    """
    names = [subject.name for subject in subjects]
    if len(set(names)) != len(names):
        raise ValueError(f"subjects compared with each other need different names, got {names}")
    try:
        for subject in subjects:
            subject.prepare()
        bouts = {subject.name: _warm_up(subject, timing, clock_ns=clock_ns) for subject in subjects}
        bursts: dict[str, list[Burst]] = {name: [] for name in names}
        for _ in range(timing.repetitions):
            for subject in subjects:
                burst = _burst(subject, bouts[subject.name], clock_ns=clock_ns)
                bursts[subject.name].append(burst)
    finally:
        for subject in subjects:
            subject.close()
    return Comparison(bursts={name: tuple(each) for name, each in bursts.items()})


def _burst(subject: Subject, bouts: int, *, clock_ns: Callable[[], int]) -> Burst:
    """Time one turn."""
    gc.collect()
    started = clock_ns()
    units = subject.run(bouts)
    seconds = (clock_ns() - started) / _NS_PER_S
    if units < 1 or seconds <= 0:
        raise ValueError(
            f"subject {subject.name!r} did {units} units in {seconds} s; a burst needs at least "
            "one unit and a clock that moves"
        )
    return Burst(units=units, seconds=seconds)


def _warm_up(subject: Subject, timing: Timing, *, clock_ns: Callable[[], int]) -> int:
    """Run a subject for `warmup_s` with growing bouts; return the bouts that fill a burst."""
    bouts = 1
    spent = 0.0
    while True:
        burst = _burst(subject, bouts, clock_ns=clock_ns)
        spent += burst.seconds
        fitting = max(1, round(bouts * timing.burst_s / burst.seconds))
        if spent >= timing.warmup_s or fitting <= bouts:
            return fitting
        bouts = min(fitting, bouts * _GROWTH_LIMIT)
