"""Infos and options: copies of free-form maps that are safe to keep (layer 2).

Every plain Python and NumPy value comes through equal and with its type, containers and arrays as
copies, so that an env may reuse its buffers. What has no plain form is replaced by its `repr` and
reported under its key; an odd info never ends a run.
"""

# numpy's and gymnasium's stubs, and values of unknown origin, leave types partly unknown:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from rollmesh.errors import InvalidValue
from rollmesh.limits import SIZE_LIMITS
from rollmesh.spaces.reading import read_array

Report: TypeAlias = Callable[[str, str], None]
"""Takes the path (`info['camera']['pose']`) and a sentence about it."""

_REPR_LIMIT = 200
_NUMPY_ATOMS = {np.dtype(code).type for code in "?bhilqBHILQefdgFDG"}
_ATOMS = frozenset(
    {
        *_NUMPY_ATOMS,
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        type(Ellipsis),
        dt.datetime,
        dt.date,
        dt.time,
        dt.timedelta,
        dt.timezone,
    }
)
"""Types whose values cannot change and hold nothing else."""


def carry(info: Mapping[Any, Any], report: Report, root: str = "info") -> dict[Any, Any]:
    """Return a copy of an info or options map that shares nothing mutable with it.

    Scalars, None, strings, bytes, dates, enums, NumPy scalars and arrays (object arrays of
    such values too), lists, tuples, named tuples, sets and dicts with any plain keys are kept as
    they are, type included. Subclasses become their plain base type, except named tuples and
    masked arrays; tensors (anything with `__array__` or DLPack) become arrays.

    Args:
        info: The map; left alone.
        report: Called for each value that has no plain form, with its path and what became of it,
            and again for the same path with the next info: see `ReportOnce`.
        root: First word of the paths.

    Returns:
        The copy. Values without a plain form, cycles, and what is nested deeper than
        `SIZE_LIMITS.nesting` are replaced by their `repr`, cut to 200 characters.
    """
    if not info:
        return {}
    result: dict[Any, Any] = {}
    for key, value in info.items():
        kept = key if type(key) in _ATOMS else _Carrier(report).key(key, root)
        kind = type(value)
        if kind in _ATOMS:
            result[kept] = value
        elif kind is np.ndarray and not value.dtype.hasobject:
            result[kept] = np.array(value)
        else:
            result[kept] = _Carrier(report).value(value, f"{root}[{bounded_repr(key)}]", 1)
    return result


class ReportOnce:
    """A report that passes each path on once.

    Args:
        report: What is called.
        most: Paths that are remembered; later ones are dropped, as keys may be made up at random.
    """

    def __init__(self, report: Report, most: int = 1000) -> None:
        self._report = report
        self._most = most
        self._seen: set[str] = set()

    def __call__(self, path: str, detail: str) -> None:
        """Report a path that has not been reported yet."""
        if path not in self._seen and len(self._seen) < self._most:
            self._seen.add(path)
            self._report(path, detail)


class _Carrier:
    """One walk through one value; `_open` holds the containers being walked, to see cycles."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._open: set[int] = set()

    def value(self, value: Any, path: str, depth: int) -> Any:
        if type(value) in _ATOMS or isinstance(value, enum.Enum):
            return value
        if isinstance(value, (dict, list, tuple, set, frozenset, Mapping)):
            return self._container(value, path, depth)
        if isinstance(value, np.ndarray):
            return self._array(value, path, depth)
        return self._other(value, path, depth)

    def _other(self, value: Any, path: str, depth: int) -> Any:
        """Return a value of a rarer type."""
        if isinstance(value, np.generic):
            return (
                self._array(np.asarray(value), path, depth)[()] if value.dtype.hasobject else value
            )
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        for plain in (int, float, complex, str, bytes):
            if isinstance(value, plain):  # a subclass: its value is plain, its type is not
                return _plain(plain, value)
        if hasattr(type(value), "__array__") or hasattr(type(value), "__dlpack__"):
            try:
                array, _ = read_array(value, path)
            except InvalidValue:
                pass
            else:
                return self._array(array, path, depth)
        return self._replace(value, path, f"{_kind(value)} has no plain form")

    def key(self, key: Any, path: str) -> Any:
        """Return a dict key or set element: it must stay hashable."""
        if type(key) in _ATOMS:
            return key
        if isinstance(key, tuple):
            return tuple(self.key(item, path) for item in key)
        if isinstance(key, frozenset):
            return frozenset(self.key(item, path) for item in key)
        if isinstance(key, (np.generic, enum.Enum)) and not isinstance(key, np.void):
            return key
        return self._replace(key, f"{path}[{bounded_repr(key)}]", f"key of {_kind(key)}")

    def _container(self, value: Any, path: str, depth: int) -> Any:
        if depth >= SIZE_LIMITS.nesting:
            return self._replace(value, path, f"nested deeper than {SIZE_LIMITS.nesting} levels")
        if id(value) in self._open:
            return self._replace(value, path, "contains itself")
        self._open.add(id(value))
        try:
            return self._walk(value, path, depth)
        finally:
            self._open.discard(id(value))

    def _walk(self, value: Any, path: str, depth: int) -> Any:
        inner = depth + 1
        if isinstance(value, Mapping):
            return {
                self.key(key, path): self.value(item, f"{path}[{bounded_repr(key)}]", inner)
                for key, item in value.items()
            }
        if isinstance(value, (set, frozenset)):
            items = (self.key(item, path) for item in value)
            return frozenset(items) if isinstance(value, frozenset) else set(items)
        listed = [self.value(item, f"{path}[{i}]", inner) for i, item in enumerate(value)]
        if isinstance(value, list):
            return listed
        if type(value) is not tuple and hasattr(value, "_fields"):
            return tuple.__new__(type(value), listed)
        return tuple(listed)

    def _array(self, array: np.ndarray[Any, np.dtype[Any]], path: str, depth: int) -> Any:
        if not array.dtype.hasobject:
            return np.array(array, subok=isinstance(array, np.ma.MaskedArray))
        if array.dtype.kind != "O":
            return self._replace(array, path, "a structured array that holds objects")
        if depth >= SIZE_LIMITS.nesting or id(array) in self._open:
            return self._replace(array, path, "an array nested too deep or in itself")
        self._open.add(id(array))
        try:
            result = np.empty(array.shape, object)
            for index in np.ndindex(array.shape):
                where = f"{path}{list(index)}"
                result[index] = self.value(array[index], where, depth + 1)
        finally:
            self._open.discard(id(array))
        return result

    def _replace(self, value: Any, path: str, why: str) -> str:
        text = bounded_repr(value)
        self._report(path, f"{why}; replaced by its repr {text}")
        return text


def _plain(kind: Any, value: Any) -> Any:
    """Return the value of a subclass as its plain base type."""
    if kind is str:
        return str.__str__(value)
    if kind is bytes:
        return bytes.__getitem__(value, slice(None))
    return kind.__pos__(value)


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def bounded_repr(value: Any) -> str:
    """Return a `repr` of bounded length, whatever the object does."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a broken __repr__ must not end an episode
        text = f"<{_kind(value)} whose repr raised {type(error).__name__}>"
    return text if len(text) <= _REPR_LIMIT else text[: _REPR_LIMIT - 1] + "…"
