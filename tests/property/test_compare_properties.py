"""What holds of every comparison, whatever the episodes."""

from __future__ import annotations

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from rollmesh.results.compare import compare
from rollmesh.results.comparison import Comparison
from rollmesh.results.result import EpisodeResult, EvalResult
from tests.unit.result_toys import episode

OPPOSITE = {"better": "worse", "worse": "better"}

finite = st.floats(-1e6, 1e6)
anything = st.one_of(finite, st.sampled_from([math.nan, math.inf, -math.inf, 1e308, 0.0, 1.0]))


@st.composite
def episodes(draw: st.DrawFn, reward: st.SearchStrategy[float]) -> tuple[EpisodeResult, ...]:
    size = draw(st.integers(1, 9))
    return tuple(
        episode(
            i,
            seed=draw(st.sampled_from([None, 0, 1, 2, 3])),
            task=draw(st.sampled_from(["", "pick", "place"])),
            success=draw(st.sampled_from([None, True, False, True, False])),
            error=draw(st.sampled_from([None, None, None, "boom"])),
            total_reward=draw(reward),
        )
        for i in range(size)
    )


def _result(some: tuple[EpisodeResult, ...]) -> EvalResult:
    return EvalResult(episodes=some, planned=len(some))


def _compared(a: EvalResult, b: EvalResult, metric: str) -> Comparison | None:
    try:
        return compare(a, b, metric=metric)  # pyright: ignore[reportArgumentType]
    except ValueError:
        return None


metrics = st.sampled_from(["success", "return", "auto"])


@settings(max_examples=35, deadline=None)
@given(episodes(anything), episodes(anything), metrics)
def test_every_episode_is_accounted_for(
    some: tuple[EpisodeResult, ...], others: tuple[EpisodeResult, ...], metric: str
) -> None:
    found = _compared(_result(some), _result(others), metric)
    if found is None:
        return
    assert found.pairs + found.left_out + found.only_in_a == len(some)
    assert found.pairs + found.left_out + found.only_in_b == len(others)
    assert found.won + found.lost == found.discordant <= found.pairs
    assert sum(count for _, count in found.left_out_because) == found.left_out
    values = json.loads(found.to_json())
    assert values["verdict"] == found.verdict
    assert found.explanation
    assert repr(found)


@settings(max_examples=35, deadline=None)
@given(episodes(finite), episodes(finite))
def test_success_turned_round_is_mirrored(
    some: tuple[EpisodeResult, ...], others: tuple[EpisodeResult, ...]
) -> None:
    there = _compared(_result(some), _result(others), "success")
    back = _compared(_result(others), _result(some), "success")
    assert (there is None) == (back is None)
    if there is None or back is None or there.interval is None or back.interval is None:
        return
    assert back.verdict == OPPOSITE.get(there.verdict, there.verdict)
    assert back.p_value == there.p_value
    assert (back.won, back.lost) == (there.lost, there.won)
    assert (-back.interval.high, -back.interval.low) == tuple(there.interval)


@settings(max_examples=35, deadline=None)
@given(episodes(anything), metrics)
def test_nothing_is_better_than_itself(some: tuple[EpisodeResult, ...], metric: str) -> None:
    found = _compared(_result(some), _result(some), metric)
    assert found is not None
    assert found.verdict in {"equivalent", "underpowered"}
    assert found.discordant == 0
    assert found.p_value in {None, 1.0}


@settings(max_examples=35, deadline=None)
@given(episodes(finite), episodes(finite), metrics)
def test_interval_and_bounds_hold_the_difference(
    some: tuple[EpisodeResult, ...], others: tuple[EpisodeResult, ...], metric: str
) -> None:
    found = _compared(_result(some), _result(others), metric)
    if found is None or found.difference is None:
        return
    if found.interval is not None and found.interval.method in {"tango", "t", "identical"}:
        slack = 1e-9 * max(1.0, abs(found.difference))
        assert found.interval.low - slack <= found.difference <= found.interval.high + slack
    if found.bounds is not None:
        low, high = found.bounds
        share = found.pairs / (found.pairs + found.left_out)
        assert low - 1e-12 <= found.difference * share <= high + 1e-12
        assert -1.0 <= low <= high <= 1.0
