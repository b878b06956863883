"""How many workers, and how large a batch, two measured curves speak for (layer 7).

Pure arithmetic: `tuning.py` measures the curves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_NEARLY = 0.95
"""Fewer workers, or smaller batches, that give so much of the most are preferred."""


@dataclass(frozen=True, kw_only=True)
class SupplyPoint:
    """What so many workers give, without a model: env steps per second, resets included."""

    workers: int
    steps_per_s: float


@dataclass(frozen=True, kw_only=True)
class CallPoint:
    """What a call of the model with so many rows takes, in seconds (median)."""

    rows: int
    call_s: float

    @property
    def rows_per_s(self) -> float:
        """Rows per second of calls one after the other."""
        return self.rows / self.call_s


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is best, and why.

    Attributes:
        workers: How many.
        max_batch: Rows of a call at most.
        steps_per_s: What this is predicted to give.
        reason: Why not more and not less, in a sentence.
    """

    workers: int
    max_batch: int
    steps_per_s: float
    reason: str


def predicted(supply: SupplyPoint, call: CallPoint, *, lanes: int, frames: int) -> float:
    """Return the env steps per second that workers and a batch size would give together.

    A lane in turn steps through the frames of a chunk and waits for the next one; the model makes
    one call after the other.
    """
    step_s = lanes / supply.steps_per_s
    by_envs = lanes * frames / (frames * step_s + call.call_s)
    by_model = frames * call.rows_per_s
    return min(by_envs, by_model)


def choose(
    supply: Sequence[SupplyPoint],
    calls: Sequence[CallPoint],
    *,
    lanes_per_worker: int = 1,
    frames: int = 1,
) -> Choice:
    """Return the fewest workers, and then the smallest batch, that give nearly the most.

    A batch is judged by the rows per second of the model alone: it is a limit, and one that is
    larger than needed costs less than one that is too small.

    Args:
        supply: At least one point, ascending.
        calls: At least one point, ascending.
        lanes_per_worker: Envs in each worker.
        frames: Actions of a call that are executed.
    """

    def rate(point: SupplyPoint, call: CallPoint) -> float:
        return predicted(point, call, lanes=point.workers * lanes_per_worker, frames=frames)

    def fitting(point: SupplyPoint) -> list[CallPoint]:
        return [one for one in calls if one.rows <= point.workers * lanes_per_worker] or [calls[0]]

    best_of = {point: max(rate(point, call) for call in fitting(point)) for point in supply}
    best = max(best_of.values())
    point = next(one for one in supply if best_of[one] >= _NEARLY * best)
    most_rows_per_s = max(one.rows_per_s for one in fitting(point))
    call = next(one for one in fitting(point) if one.rows_per_s >= _NEARLY * most_rows_per_s)
    steps_per_s = rate(point, call)
    is_models = steps_per_s >= frames * call.rows_per_s
    limit = "the model takes no more" if is_models else "the envs give no more"
    is_most = best_of[point] >= best
    more = "" if is_most else f"; more workers would give {best:,.0f} at most"
    reason = (
        f"{point.workers} worker{'s' * (point.workers != 1)} and batches of up to {call.rows}: "
        f"about {steps_per_s:,.0f} steps/s, where {limit}{more}"
    )
    return Choice(
        workers=point.workers, max_batch=call.rows, steps_per_s=steps_per_s, reason=reason
    )
