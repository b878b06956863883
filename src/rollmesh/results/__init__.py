"""Results and the statistics behind them (layer 7)."""

from __future__ import annotations

from rollmesh.results.result import EpisodeResult, EvalResult
from rollmesh.results.stats import Interval, bootstrap_interval, wilson_interval

__all__ = [
    "EpisodeResult",
    "EvalResult",
    "Interval",
    "bootstrap_interval",
    "wilson_interval",
]
