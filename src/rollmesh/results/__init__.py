"""Results and the statistics behind them (layer 7)."""

from __future__ import annotations

from rollmesh.results.comparison import Comparison
from rollmesh.results.conditions import Conditions
from rollmesh.results.odd import OddPlace
from rollmesh.results.result import EpisodeResult, EvalResult
from rollmesh.results.stats import Interval, bootstrap_interval, wilson_interval
from rollmesh.results.stopping import PlanPrefix, StopDecision, StopRule

__all__ = [
    "Comparison",
    "Conditions",
    "EpisodeResult",
    "EvalResult",
    "Interval",
    "OddPlace",
    "PlanPrefix",
    "StopDecision",
    "StopRule",
    "bootstrap_interval",
    "wilson_interval",
]
