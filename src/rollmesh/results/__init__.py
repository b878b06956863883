"""Results and the statistics behind them (layer 7)."""

from __future__ import annotations

from rollmesh.results.comparison import Comparison
from rollmesh.results.result import EpisodeResult, EvalResult
from rollmesh.results.stats import Interval, bootstrap_interval, wilson_interval
from rollmesh.results.stopping import PlanPrefix, StopDecision, StopRule

__all__ = [
    "Comparison",
    "EpisodeResult",
    "EvalResult",
    "Interval",
    "PlanPrefix",
    "StopDecision",
    "StopRule",
    "bootstrap_interval",
    "wilson_interval",
]
