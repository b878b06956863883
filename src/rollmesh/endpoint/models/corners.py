"""Reads what a policy can do: its corners, its hooks and the parameters they take (layer 6).

Takes a `Model`, a plain callable, or any object with one of the corners. Knows nothing of spaces
or ports; it calls nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from rollmesh.endpoint.models.model import CORNERS, EpisodeContext, Model, overridden
from rollmesh.errors import InvalidSpec

Corner: TypeAlias = Callable[[Any, Any, "int | None"], Any]
"""Takes observation(s), context(s) and horizon; passes on what the user's function asks for."""

EpisodeHook: TypeAlias = Callable[[EpisodeContext], object]

_PASSED = ("context", "horizon")
_HOOKS = ("on_episode_start", "on_episode_end", "load", "close")


@dataclass(frozen=True, kw_only=True)
class Corners:
    """What a policy can be asked for; None where it has no such function of its own.

    Attributes:
        name: What errors call the policy.
        policy: A plain callable, which answers with one action or a chunk.
        predict: One action for one observation.
        predict_chunk: A chunk for one observation.
        predict_batch: One action per row.
        predict_chunk_batch: A chunk per row.
        on_episode_start: Called before the first predict of an episode.
        on_episode_end: Called once when the episode is over.
        load: Called once before the first predict.
        close: Called once at the end, where rollmesh built the model.
    """

    name: str
    policy: Corner | None = None
    predict: Corner | None = None
    predict_chunk: Corner | None = None
    predict_batch: Corner | None = None
    predict_chunk_batch: Corner | None = None
    on_episode_start: EpisodeHook | None = None
    on_episode_end: EpisodeHook | None = None
    load: Callable[[], object] | None = None
    close: Callable[[], object] | None = None


def find_corners(model: object) -> Corners:
    """Return what a policy can do.

    A `Model` and an object with corners are asked through these, also if they can be called.

    Raises:
        InvalidSpec: There is no corner, or a corner has a parameter that nothing is passed for.
    """
    name = _name_of(model)
    found: dict[str, Any] = {
        corner: bind(method, f"{name}.{corner}")
        for corner in CORNERS
        if (method := overridden(model, corner)) is not None
    }
    if not found:
        found["policy"] = _plain(model, name)
    for hook in _HOOKS:
        count = 1 if hook.startswith("on_") else 0
        method = overridden(model, hook)
        if method is not None and (isinstance(model, Model) or _takes(method, count)):
            found[hook] = method
    return Corners(name=name, **found)


def bind(function: Callable[..., Any], name: str) -> Corner:
    """Return the function as a corner: `context` and `horizon` are passed if it names them.

    Raises:
        InvalidSpec: It cannot take an observation, needs something else, or is no plain function.
    """
    for is_one, kind in (
        (inspect.iscoroutinefunction, "coroutine"),
        (inspect.isgeneratorfunction, "generator"),
    ):
        if is_one(function):
            raise InvalidSpec(
                "model", f"{name} is a {kind} function; give a plain one, which returns the action"
            )
    context, horizon = _wanted(function, name)
    if context and horizon:
        return lambda observation, c, h: function(observation, context=c, horizon=h)
    if context:
        return lambda observation, c, _: function(observation, context=c)
    if horizon:
        return lambda observation, _, h: function(observation, horizon=h)
    return lambda observation, _c, _h: function(observation)


def _plain(model: object, name: str) -> Corner:
    if isinstance(model, Model):
        raise InvalidSpec(
            "model", f"{name} overrides none of {', '.join(CORNERS)}; override at least one"
        )
    if not callable(model):
        raise InvalidSpec(
            "model",
            f"wants a callable, a Model, or an object with one of {', '.join(CORNERS)}, "
            f"got {type(model).__name__}",
        )
    return bind(model, name)


def _wanted(function: Callable[..., Any], name: str) -> tuple[bool, bool]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # built in: it cannot be asked
        return False, False
    if (
        not parameters
        or parameters[0].kind is parameters[0].KEYWORD_ONLY
        or (parameters[0].kind is parameters[0].VAR_KEYWORD)
    ):
        raise InvalidSpec("model", f"{name} must take the observation as its first parameter")
    rest = parameters if parameters[0].kind is parameters[0].VAR_POSITIONAL else parameters[1:]
    wanted: set[str] = set()
    for parameter in rest:
        if parameter.kind is parameter.VAR_KEYWORD:
            wanted.update(_PASSED)
        elif parameter.name in _PASSED and parameter.kind is not parameter.POSITIONAL_ONLY:
            wanted.add(parameter.name)
        elif parameter.default is parameter.empty and parameter.kind != parameter.VAR_POSITIONAL:
            raise InvalidSpec(
                "model",
                f"{name} needs a parameter {parameter.name!r} that nothing is passed for; it gets "
                "the observation, and by name `context` and `horizon`; give others a default",
            )
    return "context" in wanted, "horizon" in wanted


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Return whether a function can be called with so many positional arguments and no more."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True


def _name_of(model: object) -> str:
    named = getattr(model, "__qualname__", None) or getattr(model, "__name__", None)
    return named if isinstance(named, str) else type(model).__name__
