"""What tells the model and env of a run from others of the same name (layer 7).

Marks are hashes by endpoint, `model` or `env`, and part. A start notes those that it found, and
where playing moved some, those that it left behind: a run goes on with what any start of it has
seen, so that a policy with a memory can go on in the process in which it was stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from rollmesh.endpoint.clients.env_client import HasEnvPort
from rollmesh.endpoint.clients.model_client import HasModelAddress
from rollmesh.endpoint.envs.contracts import is_env
from rollmesh.endpoint.targets import ImportTarget, parse_target
from rollmesh.errors import InvalidSpec
from rollmesh.runs.checking import Start
from rollmesh.runs.fingerprint import (
    CODE,
    FACTORIES,
    PARAMETERS,
    SPEC,
    WRAPPERS,
    env_fingerprint,
    fingerprint,
)
from rollmesh.runs.own_code import module_digest
from rollmesh.runs.schema import ACCEPTED_FACT, MARKS_FACT, MOVED_FACT

Marks: TypeAlias = "Mapping[str, Mapping[str, str]]"
"""Hashes, by endpoint and part."""
Seen: TypeAlias = "Mapping[str, Mapping[str, frozenset[str]]]"
"""The same of several starts: every hash that a part had; `""` where it was not there."""

_ENTRY = " of entry "
_PLURAL = (PARAMETERS, WRAPPERS, FACTORIES)
_OWN = (CODE, SPEC, *_PLURAL)


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
    return {} if mark is None else {CODE: mark.hex()}


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


def seen_in(starts: Sequence[Start]) -> Seen:
    """Return what the starts of a run have seen, those before a change was accepted left out.

    Empty for a run of an older version, which noted nothing.
    """
    states: dict[str, list[dict[str, str]]] = {}
    for start in starts:
        marks: Marks = start.facts.get(MARKS_FACT, {})
        if ACCEPTED_FACT in start.facts:
            states = {}
        for endpoint, parts in marks.items():
            left: Mapping[str, str] = start.facts.get(MOVED_FACT, {}).get(endpoint, {})
            states.setdefault(endpoint, []).extend([{**parts}, {**parts, **left}])
    return {
        endpoint: {
            name: frozenset(state.get(name, "") for state in several)
            for name in sorted({name for state in several for name in state})
        }
        for endpoint, several in states.items()
    }


def changed_marks(seen: Seen, now: Marks) -> tuple[str, ...]:
    """Say which parts of model and env none of the earlier starts has seen."""
    told: list[str] = []
    for endpoint, known in seen.items():
        marks = now.get(endpoint, {})
        if bool(known) != bool(marks):
            told.append(f"{endpoint}: it is given in another way than in earlier starts")
            continue
        for name in sorted({**known, **marks}):
            before, mark = known.get(name, frozenset({""})), marks.get(name, "")
            if mark not in before:
                told.append(f"{endpoint}: {_words(name, before, mark)}")
    return tuple(told)


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
