"""Under which conditions the episodes of a kept run were played (layer 7).

Pure: takes what a run is; `rollmesh.results.conditions` says where two differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from rollmesh.results.conditions import UNTOLD, Conditions

if TYPE_CHECKING:
    from rollmesh.runs.identity import RunIdentity


def model_kwargs_of(run: RunIdentity) -> dict[str, str]:
    """Return the keyword arguments of a run's model, as JSON texts."""
    return arguments_in(run.settings, "model_kwargs")


def arguments_in(settings: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return keyword arguments out of what a store holds, as texts, without a token."""
    given = settings.get(name)
    if not isinstance(given, Mapping):
        return {}
    table = cast("Mapping[str, Any]", given)
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in table.items()}
    return {key: text for key, text in texts.items() if key != UNTOLD}


def conditions_of(run: RunIdentity) -> Conditions:
    """Return the conditions of a run; without tasks where this version cannot read its plan."""
    try:
        plan = json.loads(run.plan_json)
        return Conditions.of(env=run.env, settings=run.settings, tasks=plan["tasks"])
    except (ValueError, TypeError, LookupError):
        return Conditions.of(env=run.env, settings=run.settings, tasks=())
