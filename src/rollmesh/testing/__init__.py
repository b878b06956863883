"""The shipped conformance suite: what is wrong with an env or a model, plainly (layer 7)."""

from __future__ import annotations

from rollmesh.testing.check_env import check_env
from rollmesh.testing.check_model import check_model
from rollmesh.testing.findings import CheckReport, Finding, Level

__all__ = ["CheckReport", "Finding", "Level", "check_env", "check_model"]
