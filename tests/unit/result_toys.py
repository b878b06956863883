"""Results of evaluations that never ran, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rollmesh.results.result import EpisodeResult, EvalResult


def episode(index: int, **more: Any) -> EpisodeResult:
    given: dict[str, Any] = {
        "seed": index,
        "env_index": 0,
        "episode_id": f"id-{index}",
        "steps": 3,
        "total_reward": 0.0,
        "terminated": True,
        "truncated": False,
        **more,
    }
    return EpisodeResult(index=index, **given)


def successes(
    outcomes: Sequence[bool | None],
    *,
    tasks: Sequence[str] | None = None,
    errors: Collection[int] = (),
    **more: Any,
) -> EvalResult:
    """A result whose episodes ended so, those named in `errors` with a fault."""
    return EvalResult(
        episodes=tuple(
            episode(
                i,
                success=said,
                total_reward=float(bool(said)),
                task=tasks[i] if tasks else "",
                error="RuntimeError: boom" if i in errors else None,
            )
            for i, said in enumerate(outcomes)
        ),
        planned=len(outcomes),
        **more,
    )


def returns(
    values: Sequence[float], *, tasks: Sequence[str] | None = None, **more: Any
) -> EvalResult:
    """A result whose env never says success."""
    return EvalResult(
        episodes=tuple(
            episode(i, total_reward=value, task=tasks[i] if tasks else "")
            for i, value in enumerate(values)
        ),
        planned=len(values),
        **more,
    )


def table(both: int, lost: int, won: int, neither: int) -> tuple[EvalResult, EvalResult]:
    """A and B with so many pairs of each kind; `lost` are those that only A won."""
    a = [True] * (both + lost) + [False] * (won + neither)
    b = [True] * both + [False] * lost + [True] * won + [False] * neither
    return successes(a), successes(b)
