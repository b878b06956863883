"""Says whether a factory can be called with the keyword arguments that were given (layer 6).

Used before anything is built, for envs and models alike. It calls nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rollmesh.errors import InvalidSpec

_KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_OPEN_KINDS = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def keyword_names(factory: Callable[..., Any]) -> list[str]:
    """Return the parameters that can be given by name; none where a builtin does not tell."""
    found = _parameters(factory) or {}
    return [name for name, one in found.items() if one.kind in _KEYWORD_KINDS]


def check_kwargs(
    factory: Callable[..., Any], given: Collection[str], *, field: str, cure: str
) -> None:
    """Refuse names that a factory does not take, and a call without those that it needs.

    Args:
        factory: A function, a class, or anything else that is called.
        given: The names of the keyword arguments that it is to be called with.
        field: What errors call the factory: `env`, `env[1]`, `model`.
        cure: What an error adds where some are missing.

    Raises:
        InvalidSpec: It cannot be called so. What does not tell its parameters is not refused.
    """
    parameters = _parameters(factory)
    if parameters is None:
        return
    named = keyword_names(factory)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for key in given:
        if key not in named and not takes_any:
            known = ", ".join(named) or "none"
            raise InvalidSpec(
                f"{field.partition('[')[0]}_kwargs",
                f"{name_of_factory(factory)} takes no {key!r}; it takes: {known}",
            )
    missing = [
        name
        for name, one in parameters.items()
        if one.default is one.empty and one.kind not in _OPEN_KINDS and name not in given
    ]
    if missing:
        raise InvalidSpec(
            field,
            f"{name_of_factory(factory)} cannot be called: it needs {', '.join(missing)}; {cure}",
        )


def name_of_factory(factory: Any) -> str:
    """Return what errors call a factory."""
    name = getattr(factory, "__qualname__", None) or type(factory).__name__
    return name.replace("<locals>.", "")


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    try:
        # not what a decorator wraps: it may fill in what that needs
        return inspect.signature(factory, follow_wrapped=False).parameters
    except (TypeError, ValueError):  # some builtins have none
        return None
