"""What a run is: the things that must not change between two starts of it (layer 7).

Pure: takes values, says what differs. The plan comes as JSON text and a hash; what its keys mean is
not known here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

_MOST_CHANGES = 8
_MOST_SHOWN = 120
_ABSENT: Any = object()

Json: TypeAlias = "Mapping[str, Any] | list[Any] | str | float | None"
"""A value read from JSON, or one that can be written as such."""


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What makes two starts the same run.

    Attributes:
        plan_json: The plan, as canonical JSON.
        plan_hash: Its hash: equal hashes are equal plans.
        env: Name of the env.
        model: Name of the model.
        settings: Whatever else decides what an episode comes to; plain JSON values. How many
            workers there are, and what is shown of them, does not belong here.
        planned: Number of episodes of the plan; follows from it, and is not compared.
        marks: Hashes of what model and env are beyond their names, by endpoint and part. Not
            compared here and no part of `to_dict`: each start notes its own.
        earlier: Those that the same objects had before playing elsewhere has changed them.

    Raises:
        TypeError: A setting cannot be written as JSON.
    """

    plan_json: str
    plan_hash: str
    env: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    planned: int | None = None
    marks: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Any])
    earlier: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        plain: dict[str, Any] = {}
        for name, value in self.settings.items():
            try:
                plain[name] = json.loads(json.dumps(value))
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"settings[{name!r}] wants a value that JSON can carry, got {value!r}: {error}"
                ) from error
        object.__setattr__(self, "settings", plain)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the two of marks as JSON values."""
        return {
            "plan_json": self.plan_json,
            "plan_hash": self.plan_hash,
            "env": self.env,
            "model": self.model,
            "settings": dict(self.settings),
            "planned": self.planned,
        }

    def changes_since(self, old: RunIdentity) -> tuple[str, ...]:
        """Say what differs from an older identity, each as `name: old -> new`; `()` if nothing."""
        changes = [
            *_changes("env", old.env, self.env),
            *_changes("model", old.model, self.model),
            *_changes("settings", old.settings, self.settings),
            *self._plan_changes(old),
        ]
        more = len(changes) - _MOST_CHANGES
        if more > 0:
            changes[_MOST_CHANGES:] = [f"… and {more} more"]
        return tuple(changes)

    def _plan_changes(self, old: RunIdentity) -> list[str]:
        if old.plan_hash == self.plan_hash:
            return []
        try:
            found = list(_changes("plan", json.loads(old.plan_json), json.loads(self.plan_json)))
        except ValueError:
            found = []
        return found or [f"plan: hash {old.plan_hash} -> {self.plan_hash}"]


def _changes(path: str, old: Json, new: Json) -> Iterator[str]:
    """Yield one line for each leaf in which two JSON values differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in {**old, **new}:
            yield from _changes(f"{path}.{name}", old.get(name, _ABSENT), new.get(name, _ABSENT))
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{path}: {len(old)} entries -> {len(new)} entries"
        for index, (a, b) in enumerate(zip(old, new, strict=False)):
            yield from _changes(f"{path}[{index}]", a, b)
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        yield f"{path}: {_shown(old)} -> {_shown(new)}"


def _shown(value: object) -> str:
    text = "(nothing)" if value is _ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 2] + " …"
