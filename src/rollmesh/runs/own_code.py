"""What code is the user's own, and what a piece of it does, as a hash (layer 7).

Own is what lies in no folder of installed packages, of Python itself or of rollmesh. Hashes are of
what runs: neither comments, docstrings, line numbers nor file names count. (How an expression is
broken into lines may count in a function: since 3.12 Python orders its instructions by that.)
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

_DIGEST_BYTES = 8
_MOST_KEPT = 8192
"""Code objects of which it is kept what they do: each class that uses some meets them again."""
_PACKAGES = ("site-packages", "dist-packages")
_UNSEEN = ("NOP", "EXTENDED_ARG", "CACHE")
"""Instructions that come and go with the layout of the source."""
_NOTES = ("__doc__", "__firstlineno__", "__static_attributes__")
"""What a class body stores about its own source."""
_READS_NAME = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_READS_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_SHAPING_FLAGS = 0x04 | 0x08 | 0x20 | 0x80 | 0x200
"""Of a code object: `*args`, `**kwargs`, and what makes a generator or coroutine of it."""


def digest(*pieces: bytes | bytearray | memoryview) -> bytes:
    """Return the hash of some bytes; where one ends and the next begins counts."""
    hasher = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for piece in pieces:
        hasher.update(len(piece).to_bytes(8, "little"))
        hasher.update(piece)
    return hasher.digest()


def is_own(thing: type | FunctionType) -> bool:
    """Return whether a class or function is the user's own."""
    if isinstance(thing, FunctionType):
        file = thing.__code__.co_filename
        if not file.startswith("<"):
            return is_own_file(file)
        if file.startswith("<frozen"):
            return False
    return is_own_module(getattr(thing, "__module__", None))


def is_own_module(name: object) -> bool:
    """Return whether a module, by its name, is the user's own; one that nobody knows is."""
    if not isinstance(name, str) or name == "__main__":
        return True
    if name.partition(".")[0] in sys.stdlib_module_names:
        return False
    module = sys.modules.get(name) or sys.modules.get(name.partition(".")[0])
    file = getattr(module, "__file__", None)
    return not isinstance(file, str) or is_own_file(file)


@functools.lru_cache(maxsize=4096)
def is_own_file(path: str) -> bool:
    """Return whether a file lies outside of what is installed."""
    absolute = os.path.realpath(path)
    if any(name in Path(place).parts for name in _PACKAGES for place in (path, absolute)):
        return False
    return not any(absolute.startswith(folder + os.sep) for folder in _installed())


@functools.cache
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [*(paths[name] for name in names if name in paths), Path(__file__).parent.parent]
    return tuple(dict.fromkeys(os.path.realpath(folder) for folder in folders))


# ------------------------------------------------------------------------------------ bytecode


@functools.lru_cache(maxsize=_MOST_KEPT)
def code_digest(code: CodeType) -> bytes:
    """Return the hash of what a code object does, those inside it included."""
    instructions = _instructions(code)
    offsets = [one.offset for one in instructions]
    places = {offset: place for place, offset in enumerate(offsets)}
    said = [
        code.co_name,
        repr((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)),
        repr(code.co_flags & _SHAPING_FLAGS),
        repr(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]),
    ]
    pieces = [text.encode("utf-8", "surrogatepass") for text in said]
    for one in instructions:
        pieces += [one.opname.encode(), _argument(one, places)]
    return digest(*pieces, getattr(code, "co_exceptiontable", b""))


@functools.lru_cache(maxsize=_MOST_KEPT)
def names_read(code: CodeType) -> tuple[tuple[str, str | None], ...]:
    """Return the global names that code reads, each with the attribute that is read of it then."""
    return tuple(dict.fromkeys(_names_read(code)))


def _names_read(code: CodeType) -> Iterator[tuple[str, str | None]]:
    instructions = _instructions(code)
    for one, after in zip(instructions, [*instructions[1:], None], strict=True):
        if one.opname in _READS_NAME and isinstance(one.argval, str):
            has_more = after is not None and after.opname in _READS_ATTRIBUTE
            yield one.argval, str(after.argval) if after is not None and has_more else None
        elif isinstance(one.argval, CodeType):
            yield from names_read(one.argval)


def _instructions(code: CodeType) -> list[dis.Instruction]:
    kept: list[dis.Instruction] = []
    for one in dis.get_instructions(code):
        if one.opname == "STORE_NAME" and one.argval in _NOTES and kept:
            kept.pop()  # what is stored there
        elif one.opname not in _UNSEEN:
            kept.append(one)
    return kept


def _argument(one: dis.Instruction, places: dict[int, int]) -> bytes:
    value = one.argval
    if one.opcode in dis.hasconst:
        return _constant(value)
    if one.opcode in _JUMPS:
        return repr(places.get(value, -1)).encode()
    return repr(value if isinstance(value, str) else one.arg).encode("utf-8", "surrogatepass")


def _constant(value: Any) -> bytes:
    if isinstance(value, CodeType):
        return code_digest(value)
    if isinstance(value, tuple):
        return digest(b"tuple", *map(_constant, cast("tuple[Any, ...]", value)))
    if isinstance(value, frozenset):
        return digest(b"frozenset", *sorted(map(_constant, cast("frozenset[Any]", value))))
    text = hex(value) if type(value) is int else repr(value)  # repr refuses very long ints
    return digest(type(value).__name__.encode(), text.encode("utf-8", "surrogatepass"))


# --------------------------------------------------------------------------------------- files


def module_digest(name: str) -> bytes | None:
    """Return the hash of what the file of a module says, or None where it is not one's own.

    Nothing is imported. Comments, layout and docstrings do not count.
    """
    file = _file_of(name)
    if file is None or not file.endswith(".py") or not is_own_file(file):
        return None
    try:
        source = Path(file).read_bytes()
    except OSError:
        return None
    try:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            _drop_docstring(node)
        return digest(ast.dump(tree).encode("utf-8", "surrogatepass"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return digest(source)


def _drop_docstring(node: ast.AST) -> None:
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        first = node.body[0] if node.body else None
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            del node.body[0]


def _file_of(name: str) -> str | None:
    """Return where a module lies, found as an import would, parents not imported."""
    path: Sequence[str] = sys.path
    with contextlib.suppress(OSError):  # the working directory was deleted
        here = str(Path.cwd())
        path = path if here in path or "" in path else [here, *path]
    spec: ModuleSpec | None = None
    PathFinder.invalidate_caches()
    for part in name.split("."):  # alone: of a dotted name Python wants the parents imported
        try:
            spec = PathFinder.find_spec(part, path)
        except (ImportError, AttributeError, ValueError, OSError):
            spec = None
        if spec is None:
            break
        path = list(spec.submodule_search_locations or ())
    if spec is not None:
        return spec.origin
    module: ModuleType | None = sys.modules.get(name)  # made in another way
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else None
