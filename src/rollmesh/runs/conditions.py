"""Under which conditions the episodes of a kept run were played (layer 7).

Pure: takes what a run is; `rollmesh.results.conditions` says where two differ.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rollmesh.results.conditions import Conditions

if TYPE_CHECKING:
    from rollmesh.runs.identity import RunIdentity


def conditions_of(run: RunIdentity) -> Conditions:
    """Return the conditions of a run; without tasks where this version cannot read its plan."""
    try:
        plan = json.loads(run.plan_json)
        return Conditions.of(env=run.env, settings=run.settings, tasks=plan["tasks"])
    except (ValueError, TypeError, LookupError):
        return Conditions.of(env=run.env, settings=run.settings, tasks=())
