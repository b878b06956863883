"""What tells the model and env of a run from others of the same name (layer 7).

Marks are hashes by endpoint, `model` or `env`, and part. A start notes those that it found, and
where playing moved some, those that it left behind: a run goes on with what any start of it has
seen, so that a policy with a memory can go on in the process in which it was stopped.

A policy that is played over several folders begins the second as the first has left it, and in a
new process perhaps as it was made. So this process remembers of each object what marks playing has
taken from it, and they count like the one that it has. A change by another hand ends that.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from rollmesh.endpoint.clients.env_client import HasEnvPort
from rollmesh.endpoint.clients.model_client import HasModelAddress
from rollmesh.endpoint.envs.contracts import is_env
from rollmesh.endpoint.targets import ImportTarget, parse_target
from rollmesh.errors import InvalidSpec
from rollmesh.runs.checking import Start
from rollmesh.runs.fingerprint import (
    ALGORITHM,
    CODE,
    FACTORIES,
    OF_CODE,
    PARAMETERS,
    SPEC,
    WRAPPERS,
    env_fingerprint,
    fingerprint,
)
from rollmesh.runs.own_code import module_digest
from rollmesh.runs.schema import (
    ACCEPTED_FACT,
    EARLIER_FACT,
    MARKED_BY_FACT,
    MARKS_FACT,
    MOVED_FACT,
)

Marks: TypeAlias = "Mapping[str, Mapping[str, str]]"
"""Hashes, by endpoint and part."""
Earlier: TypeAlias = "Mapping[str, Mapping[str, Sequence[str]]]"
"""Hashes that a part had before, by endpoint and part; `""` where it was not there."""
Seen: TypeAlias = "Mapping[str, Mapping[str, frozenset[str]]]"
"""The same of several starts: every hash that a part had; `OF_CODE` is any that has code in it."""

_ENTRY = " of entry "
_MOST_EARLIER = 32
"""Earlier marks of a part that are remembered, the first ones and as many of the last."""
_PLURAL = (PARAMETERS, WRAPPERS, FACTORIES)
_OWN = (CODE, SPEC, *_PLURAL)


class _Trail(NamedTuple):
    """What playing made of one part of an object: the marks that it had, and has since."""

    earlier: tuple[str, ...]
    left: str


_trails: dict[int, tuple[weakref.ref[Any], dict[str, _Trail]]] = {}
"""By the id of an object, while it lives."""


def marked_by() -> dict[str, Any]:
    """Return what makes marks comparable: how they are made, and in which Python."""
    major, minor = sys.version_info[:2]
    return {"algorithm": ALGORITHM, "python": f"{sys.implementation.name} {major}.{minor}"}


def marks_of(model: object, env: object) -> dict[str, dict[str, str]]:
    """Return the marks of a model and an env as `evaluate` takes them.

    A model named as `module:attribute` is marked by what that module's file says. An address, a
    file and an env's name have no marks: another one there cannot be told.
    """
    return {"model": _several(model, _model_marks), "env": _several(env, _env_marks)}


def _several(target: object, marks_of_one: Any) -> dict[str, str]:
    if not isinstance(target, (list, tuple)):
        return marks_of_one(target)
    found: dict[str, str] = {}
    for number, one in enumerate(cast("Sequence[object]", target), 1):
        found |= {f"{name}{_ENTRY}{number}": mark for name, mark in marks_of_one(one).items()}
    return found


def _model_marks(model: object) -> dict[str, str]:
    if isinstance(model, str):
        return _text_marks(model)
    if isinstance(model, HasModelAddress) or hasattr(model, "__fspath__"):
        return {}
    return fingerprint(model)


def _text_marks(text: str) -> dict[str, str]:
    try:
        target = parse_target(text)
    except InvalidSpec:  # which is told where the model is opened
        return {}
    if not isinstance(target, ImportTarget):
        return {}
    mark = module_digest(target.module)
    return {} if mark is None else {CODE: mark.hex() + OF_CODE}


def _env_marks(env: object) -> dict[str, str]:
    if env is None or isinstance(env, (str, HasEnvPort)):
        return {}
    return env_fingerprint(env) if is_env(env) else fingerprint(env)


def moved_since(before: Marks, after: Marks) -> dict[str, dict[str, str]]:
    """Return the marks that are others after playing; `""` for one that is gone.

    Code does not change by being run: a file that was edited meanwhile is another one.
    """
    moved: dict[str, dict[str, str]] = {}
    for endpoint, then in before.items():
        now = after.get(endpoint, {})
        parts = {name: now.get(name, "") for name in {**then, **now}}
        parts = {
            name: mark
            for name, mark in parts.items()
            if mark != then.get(name, "") and name.partition(_ENTRY)[0] != CODE
        }
        if parts:
            moved[endpoint] = parts
    return moved


# ------------------------------------------------------------------------- what playing changed


def remember(model: object, env: object, *, before: Marks, moved: Marks) -> None:
    """Have this process remember of what marks playing has made others.

    Args:
        model: The model that was played, as `evaluate` takes it.
        env: The env.
        before: Their marks as playing began.
        moved: Those that are others since, from `moved_since`.
    """
    for endpoint, target in (("model", model), ("env", env)):
        for name, left in moved.get(endpoint, {}).items():
            part, _, entry = name.partition(_ENTRY)
            trails = _trails_of(_entry_of(target, entry), make=True)
            was, trail = before.get(endpoint, {}).get(name, ""), trails.get(part)
            earlier = (was,)
            if trail is not None and trail.left == left and was in trail.earlier:
                continue  # the same object is there twice
            if trail is not None and trail.left == was:
                earlier = tuple(dict.fromkeys((*trail.earlier, was)))
            if len(earlier) > 2 * _MOST_EARLIER:
                earlier = (*earlier[:_MOST_EARLIER], *earlier[-_MOST_EARLIER:])
            trails[part] = _Trail(earlier, left)


def earlier_of(model: object, env: object, marks: Marks) -> dict[str, dict[str, list[str]]]:
    """Return the marks that playing has taken from a model and an env that have these now.

    A part that is not as playing has left it was changed by another hand, and has none.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for endpoint, target in (("model", model), ("env", env)):
        now, several = marks.get(endpoint, {}), isinstance(target, (list, tuple))
        entries = range(1, len(cast("Sequence[object]", target)) + 1) if several else (None,)
        parts: dict[str, list[str]] = {}
        for entry in entries:
            tail = "" if entry is None else f"{_ENTRY}{entry}"
            for part, trail in _trails_of(_entry_of(target, str(entry or ""))).items():
                if trail.left == now.get(part + tail, ""):
                    parts[part + tail] = list(trail.earlier)
        if parts:
            found[endpoint] = parts
    return found


def _entry_of(target: Any, entry: str) -> object:
    return target[int(entry) - 1] if entry else target


def _trails_of(thing: object, *, make: bool = False) -> dict[str, _Trail]:
    """Return what is remembered of an object; nothing of one whose end nobody is told of."""
    if isinstance(thing, types.MethodType):  # which is made anew each time
        thing = thing.__self__
    key = id(thing)
    kept = _trails.get(key)
    if kept is not None and kept[0]() is thing:
        return kept[1]
    trails: dict[str, _Trail] = {}
    if make:
        try:
            _trails[key] = (weakref.ref(thing, lambda ended: _forget(key, ended)), trails)
        except TypeError:
            return trails
    return trails


def _forget(key: int, ended: weakref.ref[Any]) -> None:
    kept = _trails.get(key)
    if kept is not None and kept[0] is ended:
        del _trails[key]


# ---------------------------------------------------------------------------------- comparing


def seen_in(starts: Sequence[Start]) -> Seen:
    """Return what the starts of a run have seen, those before a change was accepted left out.

    Empty for a run of an older version, which noted nothing, or hashes of another kind.
    """
    states: dict[str, list[dict[str, str]]] = {}
    for start in starts:
        if ACCEPTED_FACT in start.facts:
            states = {}
        for endpoint, several in _states_of(start).items():
            states.setdefault(endpoint, []).extend(several)
    return {
        endpoint: {
            name: frozenset(state.get(name, "") for state in several)
            for name in sorted({name for state in several for name in state})
        }
        for endpoint, several in states.items()
    }


def _states_of(start: Start) -> dict[str, list[dict[str, str]]]:
    """Return the marks of one start by endpoint: as it began, as it ended, and those before."""
    facts, own = start.facts, marked_by()
    by: Mapping[str, Any] = facts.get(MARKED_BY_FACT, {})
    if by.get("algorithm") != own["algorithm"]:
        return {}
    is_same_python = by.get("python") == own["python"]
    states: dict[str, list[dict[str, str]]] = {}
    marks: Marks = facts.get(MARKS_FACT, {})
    for endpoint, parts in marks.items():
        left: Mapping[str, str] = facts.get(MOVED_FACT, {}).get(endpoint, {})
        earlier: Mapping[str, Sequence[str]] = facts.get(EARLIER_FACT, {}).get(endpoint, {})
        several = [{**parts}, {**parts, **left}]
        several += [{**parts, name: one} for name, before in earlier.items() for one in before]
        states[endpoint] = [
            {
                name: OF_CODE if mark.endswith(OF_CODE) and not is_same_python else mark
                for name, mark in state.items()
            }
            for state in several
        ]
    return states


def changed_marks(seen: Seen, now: Marks, *, earlier: Earlier | None = None) -> tuple[str, ...]:
    """Say which parts of model and env none of the earlier starts has seen.

    Args:
        seen: What they have, from `seen_in`.
        now: The marks of this start.
        earlier: Those that the same objects had before, from `earlier_of`: one that was seen will
            do.
    """
    told: list[str] = []
    for endpoint, known in seen.items():
        marks = now.get(endpoint, {})
        if bool(known) != bool(marks):
            told.append(f"{endpoint}: it is given in another way than in earlier starts")
            continue
        had = (earlier or {}).get(endpoint, {})
        for name in sorted({**known, **marks}):
            before, mark = known.get(name, frozenset({""})), marks.get(name, "")
            if not before.intersection((mark, *had.get(name, ()))) and not _is_any(before, mark):
                told.append(f"{endpoint}: {_words(name, before, mark)}")
    return tuple(told)


def _is_any(before: frozenset[str], mark: str) -> bool:
    """Return whether a mark has code in it that only another Python has seen."""
    coded = [one for one in before if one.endswith(OF_CODE)]
    return mark.endswith(OF_CODE) and coded == [OF_CODE]


def _words(name: str, before: frozenset[str], mark: str) -> str:
    kind, _, entry = name.partition(_ENTRY)
    whose = f"its {kind}" if kind in _OWN else kind
    if entry:
        whose += f" (of entry {entry})"
    if not mark:
        return f"{whose} {'are' if kind in _PLURAL else 'is'} gone"
    if not any(before):
        return f"{whose} {'are' if kind in _PLURAL else 'is'} new"
    return f"{whose} {'are others' if kind in _PLURAL else 'is another'} than in earlier starts"
