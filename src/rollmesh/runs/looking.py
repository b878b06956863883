"""What can be seen of a foreign object without running code of its own (layer 7).

Kinds of values, names, attributes; arrays and tensors of any library as NumPy arrays, no library
but NumPy imported.
"""

from __future__ import annotations

import io
import logging
import random
import socket
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any, TypeAlias, cast
from uuid import UUID

import numpy as np

from rollmesh.runs.own_code import is_own

Array: TypeAlias = "np.ndarray[Any, Any]"

PLAIN: tuple[Any, ...] = (
    type(None), bool, float, complex, range, slice, type(...), date, time,
    timedelta, tzinfo, Decimal, Fraction, UUID, PurePath,
)  # fmt: skip
"""Values whose `repr` says all."""
BASES: tuple[Any, ...] = (int, float, complex, str)
"""The same for values of classes derived from these, by the `repr` of the base."""
VALUES: tuple[Any, ...] = (
    *PLAIN, *BASES, bytes, bytearray, dict, set, frozenset, list, tuple, deque, Enum, np.ndarray
)  # fmt: skip
SPEC_FIELDS = ("id", "entry_point", "kwargs", "max_episode_steps", "additional_wrappers")
"""What makes an env of Gymnasium's registry another one."""
_OPAQUE: tuple[Any, ...] = (
    io.IOBase, socket.socket, threading.Thread, random.Random, logging.Logger,
    weakref.ReferenceType, np.random.Generator, np.random.RandomState, np.random.BitGenerator,
)  # fmt: skip
"""What moves by being used, or says nothing of what it is: counts by its type alone."""
_GENERATORS = frozenset({"np_random", "_np_random", "_np_random_seed"})
"""Where Gymnasium's objects have a generator, which they make when they first need it."""
_DEEPEST_ARRAYS = 4
_SCALARS = (bool, int, float, str, type(None))
_DESCRIPTORS = (
    types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType
)  # fmt: skip
_TENSOR, _ARRAY = ("detach", "cpu", "numpy"), ("__array__", "shape", "dtype")
_THIN_BYTES = 16 * 2**20
"""The least of a large tensor that is read: models of billions of weights are looked at, too."""
_IN_MEMORY = ("__dlpack__", "__array_interface__", "numpy")
"""What arrays of other libraries have one of, unless they are read from a file when asked for."""


def class_of(value: Any) -> type[Any]:
    """Return the class of a value, whatever the value itself says of it."""
    return cast("type[Any]", type(value))


def name_of(thing: Any) -> bytes:
    """Return the name of a class or function; of one's own without its module, which may move."""
    name = getattr(thing, "__qualname__", None) or class_of(thing).__qualname__
    module = getattr(thing, "__module__", None)
    is_ours = isinstance(thing, (type, types.FunctionType)) and is_own(cast("Any", thing))
    return (name if is_ours or not module else f"{module}.{name}").encode()


def is_gymnasium_env(thing: object) -> bool:
    """Return whether something is an env, or a vector of them, of Gymnasium's own classes."""
    gymnasium: Any = sys.modules.get("gymnasium")
    if gymnasium is None:
        return False
    try:
        return issubclass(class_of(thing), (gymnasium.Env, gymnasium.vector.VectorEnv))
    except AttributeError:  # it is being imported
        return False


def has_looks(thing: Any) -> bool:
    """Return whether an object's attributes say what it is, and do not move by themselves."""
    if isinstance(thing, _OPAQUE):
        return False
    module = class_of(thing).__module__.partition(".")[0]
    if isinstance(thing, types.SimpleNamespace):
        return True
    return module not in sys.stdlib_module_names and module != "builtins"


def attributes_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that an object itself has, generators of random numbers left out."""
    found: dict[str, Any] = {}
    for cls in class_of(thing).__mro__:
        for name, member in vars(cls).items():
            if isinstance(member, types.MemberDescriptorType):  # of a slot
                try:
                    found[name] = member.__get__(thing, cls)
                except AttributeError:  # nothing is in it
                    continue
    found.update(table_of(thing))
    for name in sorted(found):
        if name not in _GENERATORS:
            yield name, found[name]


def table_of(thing: Any) -> dict[str, Any]:
    """Return the attributes in an object's `__dict__`."""
    return cast("dict[str, Any]", getattr(thing, "__dict__", {}))


def is_setting(thing: object, name: str, value: object) -> bool:
    """Return whether an attribute of one's own model with parameters is a plain setting of it."""
    is_plain = isinstance(value, _SCALARS) and not name.startswith("_") and name != "training"
    return is_plain and is_own(class_of(thing))


def is_descriptor(value: object) -> bool:
    """Return whether a class has something for its instances' slots and the like."""
    return isinstance(value, _DESCRIPTORS)


def wrapped_in(thing: Any) -> Any:
    """Return the function inside an object of an installed package that calls one (jit, cache)."""
    if isinstance(thing, type) or is_own(class_of(thing)) or not callable(thing):
        return None
    kept = table_of(thing)
    for name in ("__wrapped__", "py_func"):
        inner = kept.get(name)
        if isinstance(inner, types.FunctionType):
            return inner
    return None


def array_of(value: Any) -> Array | None:
    """Return an array, a number or a tensor of any library as a NumPy array; else None."""
    kind = class_of(value)
    if issubclass(kind, np.ndarray):
        return value
    if issubclass(kind, np.generic):
        return np.asarray(value)
    if is_tensor(kind):
        plain = _thinned(value.detach()).cpu()
        try:
            return plain.numpy()
        except (TypeError, RuntimeError):  # a type that NumPy does not have, such as bfloat16
            library: Any = sys.modules[kind.__module__.partition(".")[0]]
            return plain.contiguous().reshape(-1).view(library.uint8).numpy()
    if is_foreign_array(value) and any(hasattr(kind, name) for name in _IN_MEMORY):
        return np.asarray(value)
    return None


def is_tensor(kind: type[Any]) -> bool:
    """Return whether a class is torch's for tensors, or one like it."""
    return all(hasattr(kind, name) for name in _TENSOR)


def _thinned(tensor: Any) -> Any:
    """Return every nth number of a tensor that is large, so that as few as of a small one are read.

    A row that was trained alone is longer than the steps between two of them.
    """
    step = getattr(tensor, "nbytes", 0) // _THIN_BYTES
    return tensor.reshape(-1)[:: step + 1] if step else tensor


def is_foreign_array(value: Any) -> bool:
    """Return whether a value is an array of an installed package that is not NumPy or torch."""
    kind = class_of(value)
    return all(hasattr(kind, name) for name in _ARRAY) and not is_own(kind)


def is_of_arrays(value: Any, depth: int = 0) -> bool:
    """Return whether a value is an array, or a plain container of nothing else."""
    kind = class_of(value)
    if issubclass(kind, (np.ndarray, np.generic)) or is_foreign_array(value):
        return True
    if is_tensor(kind):
        return True
    if depth > _DEEPEST_ARRAYS or kind not in (dict, OrderedDict, list, tuple):
        return False
    several: Any = value.values() if issubclass(kind, dict) else value
    return bool(several) and all(is_of_arrays(one, depth + 1) for one in several)


def is_walked(kind: type[Any]) -> bool:
    """Return whether all attributes count: not of other objects of installed packages.

    What those keep, such as connections, clocks and caches, is another in each process.
    """
    return is_own(kind) or issubclass(kind, types.SimpleNamespace)


def is_on_disk(array: Any) -> bool:
    """Return whether an array is a file that is read where it is looked at."""
    return isinstance(array, np.memmap)


def list_of(value: Any) -> tuple[Any, ...]:
    """Return the members of a list or tuple, and none of anything else."""
    return tuple(cast("list[Any]", value)) if isinstance(value, (list, tuple)) else ()


def quietly(thing: Any, name: str) -> Any:
    """Return an attribute, or None where there is none or it cannot be had."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - a property may raise anything
        return None
