"""Under which conditions two kept runs were played, and where these differ (layer 7).

A name says little of an env: what it was built with, how it was reset and when its episodes were
cut decide what a number means. Pure: takes what two runs are, says what differs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rollmesh.results.comparison import Comparison
    from rollmesh.runs.identity import RunIdentity

_OF_RUN = ("env_kwargs", "max_episode_steps", "max_episode_seconds")
_OF_TASK = (
    "env_kwargs",
    "options",
    "initial_states",
    "initial_state_option",
    "max_episode_steps",
)
_MOST_SHOWN = 60
_MOST_TOLD = 6


def with_conditions(found: Comparison, a: RunIdentity, b: RunIdentity) -> Comparison:
    """Return a comparison that also says where the conditions of the two runs differ."""
    notes = found.notes
    if a.env != b.env and found.is_same_env:  # otherwise it says so already
        notes = (*notes, f"A was started with the env {a.env}, B with {b.env}")
    return replace(found, conditions=differing_conditions(a, b), notes=notes)


def differing_conditions(a: RunIdentity, b: RunIdentity) -> tuple[str, ...]:
    """Say which conditions of an episode differ, each as `name: that of A and that of B`.

    What a run asked for as its env is no condition: an address and an id may mean the same one. Of
    the plans only tasks that both have are looked at.
    """
    told = [
        *_differing("", a.settings, b.settings, _OF_RUN),
        *(
            line
            for name, (x, y) in _tasks_of_both(a, b).items()
            for line in _differing(f"task {name!r}, " if name else "", x, y, _OF_TASK)
        ),
    ]
    if len(told) > _MOST_TOLD:
        told[_MOST_TOLD:] = [f"… and {len(told) - _MOST_TOLD} more"]
    return tuple(told)


def _tasks_of_both(
    a: RunIdentity, b: RunIdentity
) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    if a.plan_hash == b.plan_hash:
        return {}
    mine, others = _tasks(a), _tasks(b)
    return {name: (task, others[name]) for name, task in mine.items() if name in others}


def _tasks(run: RunIdentity) -> dict[str, Mapping[str, Any]]:
    try:
        plan = json.loads(run.plan_json)
        return {str(task["name"]): task for task in plan["tasks"]}
    except (ValueError, TypeError, LookupError):  # of a plan that this version cannot read
        return {}


def _differing(
    where: str, a: Mapping[str, Any], b: Mapping[str, Any], names: tuple[str, ...]
) -> Iterator[str]:
    for name in names:
        x, y = _given(a, name), _given(b, name)
        if x == y and isinstance(x, bool) == isinstance(y, bool):
            continue
        told = f"{where}{name}: {_shown(x)} and {_shown(y)}"
        if isinstance(x, dict) and isinstance(y, dict):
            inner, others = cast("dict[str, Any]", x), cast("dict[str, Any]", y)
            yield from _differing(f"{where}{name}.", inner, others, tuple({**inner, **others}))
        else:
            yield told


def _given(values: Mapping[str, Any], name: str) -> object:
    value: object = values.get(name)
    return None if value == {} else value  # no arguments are none


def _shown(value: object) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 2]} …"
