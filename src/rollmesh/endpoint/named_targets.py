"""Names by which another process finds what builds an env or a model (layer 6).

Nothing is pickled: a process that is to build something imports it by name. What no module holds
under its own name is refused here, before a process is started.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rollmesh.endpoint.child_process import MAIN_NAME
from rollmesh.errors import InvalidSpec


@dataclass(frozen=True, kw_only=True)
class NamedTarget:
    """What builds an env or a model, by name.

    Attributes:
        text: An id, or `module:attribute`.
        main_file: The script that holds it, where it is the parent's main one.
    """

    text: str
    main_file: str | None = None


def find_target(
    factory: str | Callable[..., Any], *, field: str = "isolate", kwargs: str = "env_kwargs"
) -> NamedTarget:
    """Return the name by which another process finds a factory.

    Args:
        factory: The factory, or its name.
        field: What an error calls it.
        kwargs: Where its arguments are given.

    Raises:
        InvalidSpec: No module holds it under its own name.
    """
    if isinstance(factory, str):
        return NamedTarget(text=factory)
    module_name = getattr(factory, "__module__", "") or ""
    path = getattr(factory, "__qualname__", "") or ""
    module = sys.modules.get(module_name)
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
    if module is None or found is not factory:
        raise InvalidSpec(
            field,
            f"{factory!r:.100} cannot be found by name from another process (a lambda, an inner "
            "function, a partial): put the factory at the top of a module, and its arguments into "
            f"{kwargs}",
        )
    if module_name == MAIN_NAME:
        raise InvalidSpec(
            field,
            "the script that holds the factory starts a run whenever it is loaded, and each "
            'process that looks for the factory loads it; put the run under `if __name__ == "__'
            'main__":`',
        )
    if module_name == "__main__":
        return _in_main_script(module, path, field)
    return NamedTarget(text=f"{module_name}:{path}")


def _in_main_script(main: ModuleType, path: str, field: str) -> NamedTarget:
    """Return the name of what this process's main script holds."""
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # it runs as `python -m`
        return NamedTarget(text=f"{spec.name}:{path}")
    file = getattr(main, "__file__", None)
    if file is None or not Path(file).is_file():  # a session, `python -c`, or standard input
        raise InvalidSpec(field, "the factory was typed in by hand; put it into a module")
    return NamedTarget(text=f"{MAIN_NAME}:{path}", main_file=str(Path(file).absolute()))
