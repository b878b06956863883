"""Under which conditions episodes were played, and where those of two evaluations differ (layer 7).

A name says little of an env: what it was built with, how it was reset and when its episodes were
cut decide what a number means. Pure: takes values that JSON can carry, says what differs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias, cast

_OF_RUN = ("env_kwargs", "max_episode_steps", "max_episode_seconds")
_OF_TASK = (
    "env_kwargs",
    "options",
    "initial_states",
    "initial_state_option",
    "max_episode_steps",
)
UNTOLD = "token"
"""An argument that decides nothing of what is played, and is not to be told; see `RemoteEnv`."""
_MOST_SHOWN = 60
_MOST_TOLD = 6

_Argument: TypeAlias = (
    "Mapping[Any, Any] | list[Any] | tuple[Any, ...] | type[Any] | str | float | None"
)
"""An argument of a run; an object of any other kind is called by its class, as functions are."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What an evaluation's episodes were played under, as plain JSON values.

    Attributes:
        env: What was asked for as env. It is no condition: an address and an id may mean the same.
        settings: `env_kwargs` and caps that hold for all episodes.
        tasks: By the name of each task its own arguments, reset options, initial states and caps.
    """

    env: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])

    @classmethod
    def of(
        cls, *, env: str, settings: Mapping[str, Any], tasks: Iterable[Mapping[str, Any]]
    ) -> Conditions:
        """Take what is a condition out of all that decides about a run.

        Args:
            env: What was asked for as env.
            settings: Of the run, plain values.
            tasks: Of the plan, as its JSON has them.
        """
        return cls(
            env=env,
            settings=_chosen(settings, _OF_RUN),
            tasks={str(task["name"]): _chosen(task, _OF_TASK) for task in tasks},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, table: Any) -> Conditions | None:
        """Build some from what `to_dict` returned; None where it is nothing of the kind."""
        if not isinstance(table, Mapping):
            return None
        given = cast("Mapping[str, Any]", table)
        values: list[Any] = [given.get("settings"), given.get("tasks")]
        if not all(isinstance(value, Mapping) for value in values):
            return None
        settings, tasks = cast("list[Mapping[str, Any]]", values)
        if not all(isinstance(task, Mapping) for task in tasks.values()):
            return None
        return cls(env=str(given.get("env", "")), settings=dict(settings), tasks=dict(tasks))


def differing_conditions(a: Conditions | None, b: Conditions | None) -> tuple[str, ...]:
    """Say which conditions of an episode differ, each as `name: that of A and that of B`.

    Of the plans only tasks that both have are looked at; nothing is said where one is not known.
    """
    if a is None or b is None:
        return ()
    told = list(_differing("", a.settings, b.settings, _OF_RUN))
    for name, task in a.tasks.items():
        if name in b.tasks:
            where = f"task {name!r}, " if name else ""
            told += _differing(where, task, b.tasks[name], _OF_TASK)
    if len(told) > _MOST_TOLD:
        told[_MOST_TOLD:] = [f"… and {len(told) - _MOST_TOLD} more"]
    return tuple(told)


def written(arguments: Mapping[str, Any] | None) -> dict[str, str]:
    """Return keyword arguments as texts that can be compared: of an object, what it is.

    A token is left out: a result is printed, and kept in files that others read.
    """
    return {key: _text_of(value) for key, value in _without_token(arguments or {}).items()}


def called(name: str, arguments: Mapping[str, Any] | None) -> str:
    """Return a name with what it was built with: `my:Noisy(eps=0.7)`; cut off where that is long.

    Args:
        name: Of a model or an env.
        arguments: As `written` gives them, or plain values; a token is not shown.
    """
    given = _without_token(arguments or {})
    text = ", ".join(f"{key}={_shown(value)}" for key, value in given.items())
    return f"{name}({_cut(text)})" if text else name


def _text_of(value: _Argument) -> str:
    try:
        return json.dumps(_plain(value), sort_keys=True)
    except RecursionError:  # it holds itself
        return json.dumps(type(value).__qualname__)


def _without_token(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key != UNTOLD}


def _plain(value: _Argument) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    name = getattr(value, "__qualname__", None)  # of any object: not always a text
    return name if isinstance(name, str) and name else type(value).__qualname__


def _chosen(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    found = {name: _given(values, name) for name in names}
    return {name: _same_for_all(value) for name, value in found.items() if value is not None}


def _same_for_all(value: object) -> object:
    """Return the one value of a list that has the same for each episode."""
    if not isinstance(value, list):
        return value
    items = cast("list[object]", value)
    return items[0] if items and all(one == items[0] for one in items) else items


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
    if name == "env_kwargs" and isinstance(value, Mapping):
        value = _without_token(cast("Mapping[str, Any]", value))
    # no arguments are none, and a cap of infinity, which JSON has no number for, is none
    return None if value in ({}, math.inf) else value


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return _cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 2]} …"
