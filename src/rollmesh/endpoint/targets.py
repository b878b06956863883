"""Reads targets: the texts by which users name envs and models (layer 6).

In this order: `scheme://…`, `unix:path/…` and `host:digits` are addresses, `module:Name-vN` is a
Gymnasium id, `module:attribute` is a callable, and anything else is a Gymnasium id. Knows nothing
of what is behind a target.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rollmesh.errors import InvalidSpec

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|unix:[^:]*/")
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]*):\d+")
_MODULE_ID = re.compile(r"(?P<module>[A-Za-z_]\w*(\.\w+)*):(?P<id>[\w:./-]+-v\d+)")
_ATTRIBUTE = re.compile(r"(?P<module>[A-Za-z_]\w*(\.\w+)*):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")

_FILE = re.compile(r"(?P<path>[^:]*[/\\][^:]*)\.py:(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a served endpoint listens.

    Attributes:
        text: As given.
    """

    text: str


@dataclass(frozen=True, kw_only=True)
class GymnasiumId:
    """An id of Gymnasium's registry.

    Attributes:
        text: As given, which is what `gymnasium.make` takes.
        module: The module that registers the id when imported, or None.
    """

    text: str
    module: str | None = None


@dataclass(frozen=True, kw_only=True)
class ImportTarget:
    """An attribute of a module.

    Attributes:
        module: Dotted module name.
        name: Dotted attribute name.
    """

    module: str
    name: str

    @property
    def text(self) -> str:
        """The target as `module:attribute`."""
        return f"{self.module}:{self.name}"


Target: TypeAlias = "Address | GymnasiumId | ImportTarget"


def parse_target(text: str, *, field: str = "target") -> Target:
    """Say what a target is, without touching it.

    Raises:
        InvalidSpec: The text is empty, or names a file where a module's name is wanted.
    """
    text = text.strip()
    if not text:
        raise InvalidSpec(field, "is empty; give a Gymnasium id (CartPole-v1) or module:callable")
    if _SCHEME.match(text) or _HOST_PORT.fullmatch(text):
        return Address(text=text)
    if match := _MODULE_ID.fullmatch(text):
        return GymnasiumId(text=text, module=match["module"])
    if match := _ATTRIBUTE.fullmatch(text):
        return ImportTarget(module=match["module"], name=match["name"])
    if match := _FILE.fullmatch(text):
        raise InvalidSpec(field, _no_file(match["path"], match["name"]))
    return GymnasiumId(text=text)


def _no_file(path: str, name: str) -> str:
    """Say what to write instead of a file and what is in it."""
    parts = [part for part in path.replace("\\", "/").split("/") if part != "."]
    if "" in parts or ".." in parts:
        cure = f"start in its folder and write {parts[-1]}:{name}"
    else:
        cure = f"write {'.'.join(parts)}:{name}"
    return f"names a file, wants the module's name: {cure}"


def is_address(target: object) -> bool:
    """Return whether something is the text of an address: the endpoint behind it is served."""
    return isinstance(target, str) and bool(
        _SCHEME.match(target.strip()) or _HOST_PORT.fullmatch(target.strip())
    )


def import_module(name: str, *, field: str = "target") -> Any:
    """Import a module; the working directory is importable, as with pytest and uvicorn.

    Raises:
        InvalidSpec: There is no such module, or importing it failed.
    """
    _add_working_directory()
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        missing = exc.name or name
        if name != missing and not name.startswith(missing + "."):
            raise InvalidSpec(
                field, f"importing {name!r} failed: it needs {missing!r}, which is not installed"
            ) from exc
        hint = (
            f"; write {name[:-3]!r} without .py"
            if name.endswith(".py")
            else "; looked in the working directory and the installed packages"
        )
        raise InvalidSpec(field, f"there is no module {missing!r}{hint}") from exc
    except (Exception, SystemExit) as exc:
        raise InvalidSpec(field, f"importing {name!r} failed: {type(exc).__name__}: {exc}") from exc


def load_attribute(text: str, *, field: str = "target") -> Any:
    """Return what `module:attribute.sub` names.

    Raises:
        InvalidSpec: The text has another form, the module cannot be imported, or it lacks the
            attribute.
    """
    match = _ATTRIBUTE.fullmatch(text)
    if match is None:
        raise InvalidSpec(field, f"wants module:attribute, got {text!r}")
    value: Any = import_module(match["module"], field=field)
    where = f"module {match['module']!r}"
    for part in match["name"].split("."):
        try:
            value = getattr(value, part)
        except AttributeError as exc:
            raise InvalidSpec(field, _no_attribute(value, part, where)) from exc
        where = f"{where}, {part!r}"
    return value


def _no_attribute(owner: object, name: str, where: str) -> str:
    known = [key for key in dir(owner) if not key.startswith("__")]
    close = difflib.get_close_matches(name, known, n=3)
    names = ", ".join(repr(key) for key in close)
    hint = f"; did you mean {names}?" if close else "; check the spelling"
    return f"{where} has no attribute {name!r}{hint}"


def _add_working_directory() -> None:
    try:
        here = str(Path.cwd())
    except OSError:  # it was deleted
        return
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
