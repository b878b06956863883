"""Runs that survive: the journal of a run, its folder, and what can be read from it (layer 7)."""

from __future__ import annotations

from rollmesh.runs.facts import gather_facts
from rollmesh.runs.identity import RunIdentity
from rollmesh.runs.journal import Journal
from rollmesh.runs.reading import RunGlance, StoredRun, list_runs, read_run
from rollmesh.runs.rows import FailedAttempt

__all__ = [
    "FailedAttempt",
    "Journal",
    "RunGlance",
    "RunIdentity",
    "StoredRun",
    "gather_facts",
    "list_runs",
    "read_run",
]
