"""What an object of the user's is, as a few named hashes: is it the same as last time? (layer 7).

    fingerprint(Policy(eps=0.1))  # {"code": "93c1…", "attribute eps": "0c5e…"}

Equal in every process for an object that was made alike. Calls no code of the user's but
`state_dict` or `get_parameters`; never raises. Knows neither models nor runs.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from re import Pattern
from typing import Any, NamedTuple, cast

import numpy as np

from rollmesh.runs import looking
from rollmesh.runs.looking import class_of, is_gymnasium_env, name_of, wrapped_in
from rollmesh.runs.own_code import code_digest, digest, is_own, is_own_module, names_read

MOST_PARTS = 24
REST = "the rest"
"""The part that stands for all others, where there are more than so many."""
ALGORITHM = 3
"""Which way of hashing this is: hashes of another one cannot be compared."""
OF_CODE = "+code"
"""What a hash ends in that code of the user's went into: it is another one in another Python."""
CODE, PARAMETERS, SPEC, WRAPPERS, FACTORIES = "code", "parameters", "spec", "wrappers", "factories"
_MOST_OBJECTS = 20_000
"""Objects looked at for one part."""
_MOST_CODE = 2000
"""Classes and functions looked at for one object's code."""
_DEEPEST = 6
_END_BYTES = 1 << 20
"""Of an array on disk, or of a huge one, so much of its beginning and its end counts."""
_HUGE_BYTES = 1 << 30
_LEAST_SHARE = 32
"""Objects looked at for each member of a set at least."""
_CODE: tuple[Any, ...] = (type, types.FunctionType, types.BuiltinFunctionType)
_WRITTEN = {float, bool, str, type(None), int}


def fingerprint(thing: object) -> dict[str, str]:
    """Return hashes of what an object, class or function is, by the names of its parts.

    `code` is that of the user's own functions and classes, `parameters` what `state_dict` or
    `get_parameters` gives, `attribute x` an attribute, `variable x` what a function reads from
    outside, `argument x` one of a `partial`, and `spec`, `wrappers` and `factories` are those of a
    Gymnasium env. What cannot be looked at counts by its type.

    Of an object of an installed package that is no model, only its type and arrays in its
    attributes count. A hash that code went into ends in `OF_CODE`.

    Guarantees: at most `MOST_PARTS` parts, some ten thousand objects each. Arrays in memory are
    read whole up to 1 GiB, and of tensors above 16 MiB evenly spread 8 to 16 MiB; of arrays on disk
    a little is read, or nothing.
    """
    return _written(thing, lambda look: look.parts(thing))


def env_fingerprint(env: object) -> dict[str, str]:
    """Return the same of an env: what it is made of, and not the state that it is in.

    Of one that is not Gymnasium's that is the code of its class.
    """
    if is_gymnasium_env(env):
        return fingerprint(env)
    return _written(env, lambda look: look.parts(type(env)))


def _written(thing: object, look_at: Callable[[_Look], dict[str, bytes]]) -> dict[str, str]:
    look = _Look()
    try:
        parts = look_at(look)
    except Exception:  # noqa: BLE001 - anything may hide behind an attribute
        parts = {CODE: digest(name_of(class_of(thing)))}
    names = sorted(parts)
    if len(names) > MOST_PARTS:
        names, rest = names[: MOST_PARTS - 1], names[MOST_PARTS - 1 :]
        others = digest(*(piece for name in rest for piece in (name.encode(), parts[name])))
        parts[REST] = others
        names.append(REST)
        if look.coded.intersection(rest):
            look.coded.add(REST)
    return {name: parts[name].hex() + OF_CODE * (name in look.coded) for name in names}


class _Parts:
    """What is found of one object: pieces of code, and named values."""

    def __init__(self) -> None:
        self.code: list[bytes] = []
        self.values: dict[str, list[object]] = {}
        self.waiting: deque[Any] = deque()
        self._seen: set[int] = set()

    def take(self, code: Any) -> None:
        """Have a class or function looked at, once; not at once, as chains of them are long."""
        if id(code) not in self._seen and len(self._seen) < _MOST_CODE:
            self._seen.add(id(code))
            self.waiting.append(code)

    def add(self, name: str, value: object) -> None:
        self.values.setdefault(name, []).append(value)


class _Known(NamedTuple):
    """What was looked at: the object, which has to live as long, its hash, and more."""

    value: object
    hashed: bytes
    depth: int
    has_code: bool = False


class _Memory:
    """What is known by now, by the id of the object; one can be put on another and thrown away."""

    def __init__(self, below: _Memory | None = None) -> None:
        self.below = below
        self.kept: dict[int, _Known] = {}

    def get(self, value: object) -> _Known | None:
        memory: _Memory | None = self
        while memory is not None:
            if (known := memory.kept.get(id(value))) is not None:
                return known
            memory = memory.below
        return None

    def put(self, known: _Known) -> None:
        self.kept[id(known.value)] = known


class _Look:
    """One walk; what was looked at once is not looked at again.

    Attributes:
        coded: The parts that code of the user's went into.
    """

    def __init__(self) -> None:
        self.coded: set[str] = set()
        self._memory = _Memory()
        self._left = _MOST_OBJECTS
        self._num_code = 0

    def parts(self, thing: object, depth: int = 0) -> dict[str, bytes]:
        """Return the hashes of an object's parts."""
        self._memory.put(_Known(thing, b"itself", -1))
        found = _Parts()
        before = self._num_code
        hashes = self._fill(found, thing)
        coded = set(hashes) if self._num_code > before else set[str]()
        before = self._num_code
        while found.waiting:
            code = found.waiting.popleft()
            look_at = self._add_class if isinstance(code, type) else self._add_function
            look_at(found, code)
        if self._num_code > before:
            coded.add(CODE)
        for name in sorted(found.values):
            if depth == 0:
                self._left = _MOST_OBJECTS
            before = self._num_code
            hashes[name] = digest(*(self.of(one, depth + 1) for one in found.values[name]))
            if self._num_code > before:
                coded.add(name)
        if found.code:
            hashes[CODE] = digest(*found.code)
        if depth == 0:
            self.coded |= coded
        return hashes

    def _fill(self, found: _Parts, thing: Any) -> dict[str, bytes]:
        """Collect what an object consists of; what is a hash already is returned."""
        hashes: dict[str, bytes] = {}
        if isinstance(thing, _CODE):
            found.take(thing)
        elif isinstance(thing, types.MethodType):
            found.take(thing.__func__)
            hashes = self._fill(found, thing.__self__)
        elif isinstance(thing, functools.partial):
            partial = cast("functools.partial[Any]", thing)
            hashes = self._fill(found, partial.func)
            for name, value in (*enumerate(partial.args), *partial.keywords.items()):
                found.add(f"argument {name}", value)
        elif (inner := wrapped_in(thing)) is not None:
            hashes = self._fill(found, inner)
        elif is_gymnasium_env(thing):
            hashes = self._add_env(found, thing)
        else:
            hashes = self._add_object(found, thing)
        return hashes

    # ------------------------------------------------------------------------------- kinds

    def _add_object(self, found: _Parts, thing: object) -> dict[str, bytes]:
        found.take(type(thing))
        parameters = self._parameters(thing)
        is_value = isinstance(thing, looking.VALUES) or not looking.has_looks(thing)
        if parameters is None and is_value:
            return {"value": self._value(thing, 1)}
        for name, value in looking.attributes_of(thing):
            if parameters is None or looking.is_setting(thing, name, value):
                found.add(f"attribute {name}", value)
        return {} if parameters is None else {PARAMETERS: parameters}

    def _add_class(self, found: _Parts, cls: type) -> None:
        if not is_own(cls):
            found.code.append(name_of(cls))
            return
        found.code.append(cls.__qualname__.encode())
        for name, value in sorted(vars(cls).items()):
            if isinstance(value, (staticmethod, classmethod)):
                self._add_variable(found, name, cast("Any", value).__func__)
            elif isinstance(value, property):
                for part in filter(None, (value.fget, value.fset, value.fdel)):
                    self._add_variable(found, name, part)
            elif isinstance(value, functools.cached_property):
                self._add_variable(found, name, cast("Any", value).func)
            elif isinstance(value, types.FunctionType):
                found.take(value)
            elif not name.startswith(("__", "_abc_")) and not looking.is_descriptor(value):
                self._add_variable(found, name, value, kind="attribute")
        for base in cls.__bases__:
            found.take(base)

    def _add_function(self, found: _Parts, function: Any) -> None:
        if not isinstance(function, types.FunctionType):
            found.code.append(name_of(function))
            owner = getattr(function, "__self__", None)
            if owner is not None and not isinstance(owner, (types.ModuleType, type)):
                found.add("variable self", owner)
            return
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:  # also of one that a package has put around one's own
                self._add_variable(found, name, cell.cell_contents)
            except ValueError:  # nothing is in it yet
                continue
        if not is_own(function):
            found.code.append(name_of(function))
            return
        self._num_code += 1
        found.code.append(code_digest(code))
        defaults = (function.__defaults__, function.__kwdefaults__)
        found.code.append(digest(*(self.of(one, 1) for one in defaults)))
        for name, attribute in names_read(code):
            self._add_global(found, function.__globals__, name, attribute)
        for name, value in vars(function).items():
            if name != "__wrapped__":  # which its closure holds
                self._add_variable(found, name, value, kind="attribute")

    def _add_global(
        self, found: _Parts, known: Mapping[str, Any], name: str, attribute: str | None
    ) -> None:
        value = known.get(name, known)
        if isinstance(value, types.ModuleType):
            if attribute is None or not is_own_module(value.__name__):
                return
            name, value = f"{name}.{attribute}", vars(value).get(attribute, known)
        if value is not known:
            self._add_variable(found, name, value)

    def _add_variable(
        self, found: _Parts, name: str, value: object, *, kind: str = "variable"
    ) -> None:
        """Take up what code refers to: other code, or a value."""
        if isinstance(value, _CODE):
            found.take(value)
        elif not isinstance(value, types.ModuleType):
            found.add(f"{kind} {name}", value)

    def _add_env(self, found: _Parts, env: Any) -> dict[str, bytes]:
        """Take up what a Gymnasium env is, not the state that it is in."""
        hashes: dict[str, bytes] = {}
        if (spec := looking.quietly(env, "spec")) is not None:
            fields = [getattr(spec, name, None) for name in looking.SPEC_FIELDS]
            hashes[SPEC] = digest(*(self.of(one, 1) for one in fields))
        wrappers: list[bytes] = []
        layer: Any = env
        bottom: Any = env
        for _ in range(64):
            found.take(class_of(layer))
            kept = looking.table_of(layer)
            inner = kept.get("env", next(iter(looking.list_of(kept.get("envs"))), None))
            if inner is None:
                bottom = layer
                break
            arguments = kept.get("_saved_kwargs")
            wrappers += [class_of(layer).__qualname__.encode(), self.of(arguments, 1)]
            layer = inner
        if wrappers:
            hashes[WRAPPERS] = digest(*wrappers, class_of(bottom).__qualname__.encode())
        if factories := looking.list_of(looking.table_of(env).get("env_fns")):
            hashes[FACTORIES] = digest(*sorted({self.of(one, 1) for one in factories}))
        return hashes

    def _parameters(self, thing: Any) -> bytes | None:
        """Return the hash of what a model has learned, or None where it has no such thing."""
        for name in ("get_parameters", "state_dict"):
            if not callable(getattr(class_of(thing), name, None)):
                continue
            try:
                state = getattr(thing, name)()
            except Exception:  # noqa: BLE001, S112 - the other one may do
                continue
            if isinstance(state, Mapping):
                items = cast("Mapping[Any, Any]", state).items()
                kept = {k: v for k, v in items if "optimizer" not in str(k)}
                left, self._left = self._left, sys.maxsize
                try:
                    return self.of(kept, 0)
                finally:
                    self._left = left
        return None

    # ------------------------------------------------------------------------------ values

    def of(self, value: Any, depth: int) -> bytes:
        """Return the hash of any value."""
        if (plain := _plain(value)) is not None:
            return plain
        known = self._memory.get(value)
        if known is not None and known.depth <= depth:
            self._num_code += known.has_code
            return known.hashed
        self._left -= 1
        if depth > _DEEPEST or self._left < 0:
            return name_of(class_of(value))
        self._memory.put(_Known(value, b"inside itself", -1))
        before = self._num_code
        try:
            result = self._value(value, depth)
        except Exception:  # noqa: BLE001 - a foreign type may refuse anything
            result = name_of(class_of(value))
        self._memory.put(_Known(value, result, depth, self._num_code > before))
        return result

    def _value(self, value: Any, depth: int) -> bytes:
        name, deeper = name_of(class_of(value)), depth + 1
        if (array := looking.array_of(value)) is not None:
            is_huge = isinstance(value, np.ndarray) and array.nbytes > _HUGE_BYTES
            said = self._array(array, depth, only_ends=is_huge or looking.is_on_disk(array))
            if looking.is_tensor(class_of(value)):  # of a large one `array` has not all
                said += repr(tuple(cast("Any", value).shape)).encode()
        elif looking.is_foreign_array(value):  # which reading would fetch from where it is kept
            said = repr((str(value.dtype), tuple(value.shape))).encode()
        elif isinstance(value, Enum):
            said = str(value.name).encode()
        elif isinstance(value, Pattern):
            said = repr(value.flags).encode() + self.of(cast("Any", value).pattern, deeper)
        elif isinstance(value, (bytes, bytearray)):
            said = digest(memoryview(value))
        elif (base := _first(looking.BASES, value)) is not None:
            said = base.__repr__(value).encode("utf-8", "surrogatepass")
        elif isinstance(value, (dict, types.MappingProxyType)):
            said = self._mapping(dict(cast("Any", value)), deeper)
        elif (base := _first((set, frozenset), value)) is not None:
            said = self._set(list(base.__iter__(value)), deeper)
        elif (base := _first((list, tuple, deque), value)) is not None:
            said = self._sequence(list(base.__iter__(value)), deeper)
        else:
            return self._other(value, depth)
        return digest(name, said)

    def _other(self, value: Any, depth: int) -> bytes:
        if isinstance(value, types.ModuleType):
            return digest(b"module", value.__name__.encode())
        is_code = isinstance(value, (*_CODE, types.MethodType, functools.partial))
        if is_code or wrapped_in(value) is not None or is_gymnasium_env(value):
            return _sum(self.parts(value, depth))
        kind = class_of(value)
        if (parameters := self._parameters(value)) is not None:
            return digest(name_of(kind), parameters)
        if not looking.has_looks(value):
            return name_of(kind)
        called = "" if is_own(kind) else getattr(value, "__name__", "")
        pieces = [name_of(kind), repr(called).encode() if isinstance(called, str) else b""]
        pieces.append(self.of(kind, depth))
        is_walked = looking.is_walked(kind)
        for key, one in looking.attributes_of(value):
            if not is_walked and not looking.is_of_arrays(one):
                continue
            pieces += [key.encode(), self.of(one, depth + 1)]
        return digest(*pieces)

    def _mapping(self, value: dict[Any, Any], depth: int) -> bytes:
        pairs = self._within(list(value.items()))
        pieces = sorted(self.of(k, depth) + self.of(v, depth) for k, v in pairs)
        return digest(repr(len(value)).encode(), *pieces)

    def _sequence(self, members: list[Any], depth: int) -> bytes:
        if len(members) > 1 and set(map(class_of, members)) <= _WRITTEN:  # cheaper all at once
            with contextlib.suppress(ValueError):  # repr refuses very long ints
                return digest(repr(members).encode("utf-8", "surrogatepass"))
        pieces = [self.of(one, depth) for one in self._within(members)]
        return digest(repr(len(members)).encode(), *pieces)

    def _within(self, members: list[Any]) -> Iterator[Any]:
        """Yield members until the budget is spent."""
        for one in members:
            if self._left < 0:
                return
            yield one

    def _set(self, members: list[Any], depth: int) -> bytes:
        """Hash a set, whose order is another in each process: no budget may end inside it."""
        if len(members) > _MOST_OBJECTS:
            return digest(b"set", repr(len(members)).encode())
        left, memory = self._left, self._memory
        share = max(_LEAST_SHARE, _MOST_OBJECTS // max(1, len(members)))
        pieces: list[bytes] = []
        try:
            for one in members:  # none may know what the one before it has found
                self._left, self._memory = share, _Memory(memory)
                pieces.append(self.of(one, depth))
        finally:
            self._left, self._memory = left, memory
        return digest(b"set", *sorted(pieces))

    def _array(self, array: Any, depth: int, *, only_ends: bool) -> bytes:
        about = repr((array.dtype.str, array.dtype.names, array.shape)).encode()
        if array.dtype.hasobject:
            return digest(about, *(self.of(one, depth + 1) for one in array.ravel().tolist()))
        if only_ends:
            flat: Any = array.flat
            most = max(1, _END_BYTES // max(1, array.itemsize))
            return digest(about, flat[:most].tobytes(), flat[-most:].tobytes())
        whole: Any = cast("Any", np.ascontiguousarray(array)).reshape(-1)
        data = whole.view(np.uint8).data if whole.size and whole.itemsize else b""
        return digest(about, data)


def _plain(value: Any) -> bytes | None:
    """Return the hash of a value that holds no others, or None."""
    kind = class_of(value)
    if kind is str:
        return digest(b"str", value.encode("utf-8", "surrogatepass"))
    if kind is int:
        return digest(b"int", hex(value).encode())
    if kind in (bytes, bytearray):
        return digest(name_of(kind), value)
    if issubclass(kind, looking.PLAIN) and not is_own(kind):
        return digest(name_of(kind), repr(value).encode("utf-8", "surrogatepass"))
    return None


def _first(bases: tuple[Any, ...], value: object) -> Any:
    """Return the first of some classes that a value is one of: its methods are not the value's."""
    return next((base for base in bases if issubclass(class_of(value), base)), None)


def _sum(parts: Mapping[str, bytes]) -> bytes:
    return digest(*(piece for name in sorted(parts) for piece in (name.encode(), parts[name])))
