"""Reads what a policy returned into action rows, or says which shape was wanted (layer 6).

A is the shape of an action, T time steps (T ≥ 1), B rows. With nested spaces the axes are those of
each leaf, and all leaves have the same T and B. Knows spaces and the codec, no policy and no port.

What is told apart by shape, and what by type:

- Array leaves (Box, Discrete, MultiBinary, MultiDiscrete): by the number of axes.
- Text: a str is one value; a list, tuple or array of str has an axis.
- Sequence, Graph, OneOf: where both are possible (a plain callable), a list is a chunk and
  anything else one value. In the chunk and batch corners a list or tuple is the axis.
- Dict and Tuple: leaf by leaf (`{"a": (T, *A)}`). A list of T dicts (of T tuples) is a chunk too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from rollmesh.errors import InvalidValue
from rollmesh.spaces import space as spaces
from rollmesh.spaces.codec import Leaves
from rollmesh.spaces.conformance import Checker
from rollmesh.spaces.reading import read_array, scores_hint
from rollmesh.spaces.space import Space

Frames: TypeAlias = "tuple[Leaves, ...]"

Axes: TypeAlias = Literal["", "T", "B", "BT"]
"""The axes in front of those of an action."""

_Given: TypeAlias = (
    "Mapping[Any, Any] | list[Any] | tuple[Any, ...] | np.ndarray[Any, Any] | str | bytes | None"
)
"""A value as a policy returned it; objects of other kinds are left to NumPy."""
_Array: TypeAlias = Any
"""A `numpy.ndarray`; NumPy's stubs lose the types of reshaped ones below Python 3.11."""
_ndarray: _Array = np.ndarray

_ROOT = "action"
_NAMES_SHOWN = 8
_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)
_NESTED_SPACES = (spaces.Dict, spaces.Tuple)


class ActionReader:
    """Turns returned values into rows of an action space, checked and copied.

    Args:
        space: The action space.
        checker: What to do with values outside the space.

    Every method raises `InvalidValue` with what was got and what was wanted.
    """

    def __init__(self, space: Space, checker: Checker) -> None:
        self.space = space
        self._codec = space.codec
        self._checker = checker
        self._all_fixed = space.codec.row_bytes is not None
        self._plain_shape: tuple[int, ...] | None = None
        self._or_one = self._or_chunk = ""
        if isinstance(space, _ARRAY_SPACES):
            self._plain_shape = shape = _shape(space)
            self._or_one, self._or_chunk = f" or {_wanted(shape, '')}", f" or {_wanted(shape, 'T')}"

    def one(self, value: Any, corner: str, also: str = "") -> Leaves:
        """Read one action (*A) as a batch of one row; `also` is what else is wanted, for errors."""
        try:
            return self._codec.encode(value, self._checker)
        except InvalidValue:
            self._flatten(value, "", corner, also)  # says it better where the shape is wrong
            raise

    def chunk(self, value: Any, corner: str, also: str = "") -> Frames:
        """Read a chunk (T, *A) as T batches of one row."""
        leaves, (count,) = self._read(value, "T", corner, also)
        return self._split(leaves, count)

    def either(self, value: Any, corner: str) -> Frames:
        """Read one action or a chunk, told apart by the number of axes."""
        if self.axes_of(value) == 0:
            return (self.one(value, corner, self._or_chunk),)
        return self.chunk(value, corner, self._or_one)

    def batch(self, value: Any, rows: int, corner: str) -> Leaves:
        """Read an action per row (B, *A) as one batch."""
        leaves, (got,) = self._read(value, "B", corner)
        self._check_rows(got, rows, corner)
        return leaves

    def chunk_batch(self, value: Any, rows: int, corner: str) -> Frames:
        """Read a chunk per row (B, T, *A) as T batches of B rows."""
        leaves, (got, count) = self._read(value, "BT", corner)
        self._check_rows(got, rows, corner)
        take = self._codec.take
        return tuple(take(leaves, range(t, rows * count, count)) for t in range(count))

    def axes_of(self, value: Any) -> int:
        """Return 0 if a value looks like one action, 1 if it has axes in front."""
        if self._plain_shape is not None:
            if isinstance(value, np.ndarray):
                return 1 if value.ndim > len(self._plain_shape) else 0
            if isinstance(value, (int, float, np.generic)):
                return 0
        return _axes_of(self.space, value)

    # ------------------------------------------------------------------------------ inside

    def _read(
        self, value: Any, axes: Axes, corner: str, also: str = ""
    ) -> tuple[Leaves, tuple[int, ...]]:
        """Return the rows of a value with front axes, and the lengths of these axes."""
        if isinstance(self.space, _NESTED_SPACES) and _is_list_of_values(self.space, value):
            return self._read_list(value, axes, corner)
        flat, counts = self._flatten(value, axes, corner, also)
        self._check_some(value, counts, axes, corner)
        return self._codec.encode_stacked(flat, prod(counts), self._checker), counts

    def _read_list(
        self, values: Sequence[Any], axes: Axes, corner: str
    ) -> tuple[Leaves, tuple[int, ...]]:
        """Read a list of nested values: `[{"a": (*A)}, …]`."""
        self._check_some(values, (len(values),), axes, corner)
        if len(axes) == 1:
            for value in values:
                self._flatten(value, "", corner)
            return self._codec.encode_many(values, self._checker), (len(values),)
        parts = [self._read(value, "T", corner) for value in values]
        counts = [count for _, (count,) in parts]
        if min(counts) != max(counts):
            raise InvalidValue(
                _ROOT,
                f"{corner} returned chunks of {min(counts)} to {max(counts)} time steps; "
                "wanted the same T in every row",
            )
        pairs = [(leaves, row) for leaves, _ in parts for row in range(counts[0])]
        return self._codec.gather(pairs), (len(values), counts[0])

    def _flatten(
        self, value: Any, axes: Axes, corner: str, also: str = ""
    ) -> tuple[Any, tuple[int, ...]]:
        """Return the value with its front axes merged into one, and their lengths."""
        shape, front = self._plain_shape, len(axes)
        if type(value) is _ndarray and shape is not None and value.shape[front:] == shape:
            counts = value.shape[:front]
            if len(counts) == front:
                return value.reshape(prod(counts), *shape), counts
        if shape is not None and _is_pair_with_none(value):
            raise InvalidValue(
                _ROOT,
                f"{corner} returned a tuple of two with None at its end; return the action alone, "
                "as in: action, _ = model.predict(observation)",
            )
        try:
            flat, counts = _flatten(self.space, value, axes, _ROOT)
        except _Misfit as misfit:
            raise InvalidValue(
                misfit.path,
                f"{corner} returned {misfit.got}, wanted {misfit.wanted}{also}{misfit.hint}",
            ) from None
        if counts is None and axes:
            raise InvalidValue(
                _ROOT,
                f"{corner} returned {_described(value)}, and a space without leaves does "
                f"not tell its {' and '.join(axes)}; return a list of values",
            )
        return flat, counts or ()

    @staticmethod
    def _check_some(value: Any, counts: tuple[int, ...], axes: Axes, corner: str) -> None:
        for axis, count in zip(axes, counts, strict=False):
            if count == 0:
                missing = "rows (B = 0)" if axis == "B" else "time steps (T = 0)"
                raise InvalidValue(
                    _ROOT,
                    f"{corner} returned {_described(value)} with no {missing}; wanted {axis} ≥ 1",
                )

    def _split(self, leaves: Leaves, count: int) -> Frames:
        if count == 1:
            return (leaves,)
        if self._all_fixed:
            return tuple([leaf[t : t + 1] for leaf in leaves] for t in range(count))
        return tuple(self._codec.take(leaves, (t,)) for t in range(count))

    @staticmethod
    def _check_rows(got: int, rows: int, corner: str) -> None:
        if got != rows:
            raise InvalidValue(
                _ROOT, f"{corner} returned {got} rows for a batch of {rows}; wanted one per row"
            )


def _is_pair_with_none(value: _Given) -> bool:
    """Return whether this is an action and no state, as Stable-Baselines3's `predict` returns."""
    return isinstance(value, tuple) and len(value) == 2 and value[1] is None  # noqa: PLR2004


class _Misfit(Exception):  # noqa: N818 - caught in this module
    def __init__(self, path: str, got: str, wanted: str, hint: str = "") -> None:
        super().__init__(path)
        self.path = path
        self.got = got
        self.wanted = wanted
        self.hint = hint


def _flatten(space: Space, value: Any, axes: Axes, path: str) -> tuple[Any, tuple[int, ...] | None]:
    """Return the value with its front axes merged, and their lengths (None: no leaf tells)."""
    if isinstance(space, _ARRAY_SPACES):
        return _flatten_array(space, value, axes, path)
    if isinstance(space, _NESTED_SPACES):
        if not axes and isinstance(value, _ndarray) and isinstance(space, spaces.Tuple):
            return value, ()  # the codec takes one apart
        return _flatten_nested(space, value, axes, path)
    return _flatten_objects(value, axes, path, space)


def _flatten_array(space: Space, value: Any, axes: Axes, path: str) -> tuple[Any, tuple[int, ...]]:
    shape, front = _shape(space), len(axes)
    try:
        array = _as_array(value, path)
    except _Misfit as misfit:
        misfit.wanted = _wanted(shape, axes)
        raise
    if array.ndim - front != len(shape) or array.shape[front:] != shape:
        if not front and array.size == 1 and not shape:  # (1,) for a scalar: the codec takes it
            return value, ()
        hint = _hint(space, array, front)
        raise _Misfit(path, f"shape {array.shape}", _wanted(shape, axes), hint)
    if front == 0:
        return value, ()
    counts = array.shape[:front]
    return array.reshape(prod(counts), *shape), counts


def _flatten_nested(
    space: spaces.Dict | spaces.Tuple, value: Any, axes: Axes, path: str
) -> tuple[Any, tuple[int, ...] | None]:
    flats: list[Any] = []
    lengths: tuple[int, ...] | None = None
    decided_by = ""
    for key, child, part in _children(space, value, path):
        where = f"{path}[{key!r}]"
        flat, counts = _flatten(child, part, axes, where)
        flats.append(flat)
        if counts is None or counts == lengths:
            continue
        if lengths is not None:
            raise _Misfit(
                where,
                f"{_lengths_told(counts, axes)} here but {_lengths_told(lengths, axes)} "
                f"at {decided_by}",
                "the same for all leaves",
            )
        lengths, decided_by = counts, where
    if isinstance(space, spaces.Dict):
        names = [name for name, _ in space.spaces]
        return {**value, **dict(zip(names, flats, strict=True))}, lengths  # the codec sees extras
    return tuple(flats), lengths


def _flatten_objects(
    value: Any, axes: Axes, path: str, space: Space
) -> tuple[Any, tuple[int, ...]]:
    """Read texts, sequences, graphs and alternatives: front axes are lists or tuples."""
    kind = type(space).__name__
    wanted = _wanted_objects(kind, axes)
    if not axes:
        if isinstance(space, spaces.Text) and not isinstance(value, str):
            raise _Misfit(path, _described(value), wanted)
        return value, ()
    items = _listed(value)
    if items is None:
        raise _Misfit(path, _described(value), wanted)
    if len(axes) == 1:
        return tuple(items), (len(items),)
    merged: list[Any] = []
    inner_count = 0
    for index, item in enumerate(items):
        inner = _listed(item)
        if inner is None or (index and len(inner) != inner_count):
            raise _Misfit(f"{path}[{index}]", _described(item), wanted)
        inner_count = len(inner)
        merged.extend(inner)
    return tuple(merged), (len(items), inner_count)


def _children(
    space: spaces.Dict | spaces.Tuple, value: _Given, path: str
) -> list[tuple[str | int, Space, Any]]:
    if isinstance(space, spaces.Dict):
        names = [name for name, _ in space.spaces]
        if not isinstance(value, Mapping):
            raise _Misfit(path, _described(value), f"a dict with the keys {_names(names)}")
        if any(name not in value for name in names):
            raise _Misfit(path, _described(value), f"a dict with the keys {_names(names)}")
        return [(name, child, value[name]) for name, child in space.spaces]
    # An array is no tuple here: its first axis could be time.
    if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
        raise _Misfit(path, _described(value), f"a tuple of {len(space.spaces)} values")
    return list(zip(range(len(value)), space.spaces, value, strict=True))


def _axes_of(space: Space, value: Any) -> int:
    """Return 0 or 1; a value that fits nothing has 0, and is refused where it is read."""
    if isinstance(space, spaces.Text):
        return int(not isinstance(value, str) and _listed(value) is not None)
    if not isinstance(space, (*_ARRAY_SPACES, *_NESTED_SPACES)):
        return int(isinstance(value, list))
    with contextlib.suppress(_Misfit):
        if isinstance(space, _ARRAY_SPACES):
            return int(_as_array(value, "").ndim > len(_shape(space)))
        if _is_list_of_values(space, value):
            return 1
        for _, child, part in _children(space, value, ""):
            return _axes_of(child, part)  # the first leaf decides, the others must agree
    return 0


def _is_list_of_values(space: spaces.Dict | spaces.Tuple, value: _Given) -> bool:
    if not isinstance(value, (list, tuple)):
        return False
    if isinstance(space, spaces.Dict):
        return all(isinstance(item, (Mapping, list)) for item in value)
    return isinstance(value, list) and all(isinstance(item, tuple) for item in value)


def _shape(space: Space) -> tuple[int, ...]:
    if isinstance(space, spaces.Discrete):
        return ()
    if isinstance(space, (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete)):
        return tuple(space.shape)
    return ()


def _as_array(value: _Given, path: str) -> _Array:
    if value is None or isinstance(value, (str, bytes, Mapping)):
        raise _Misfit(path, _described(value), "")
    try:
        if isinstance(value, (list, tuple)) and any(hasattr(item, "detach") for item in value):
            value = [read_array(item, path)[0] for item in value]
        array = read_array(value, path)[0]
    except InvalidValue as exc:
        if isinstance(value, (list, tuple)):
            told = f"{_described(value)} of unequal shape or that are no numbers"
            raise _Misfit(path, told, "") from exc
        raise
    if array.ndim == 0 and array.dtype.hasobject and not isinstance(value, np.ndarray):
        raise _Misfit(path, _described(value), "")  # an object that NumPy could not look into
    return array


def _listed(value: _Given) -> list[Any] | None:
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return list(value)
    return None


# ------------------------------------------------------------------------------- sentences


def _wanted(shape: tuple[int, ...], axes: str) -> str:
    names = [*axes, *map(str, shape)]
    told = f"({names[0]},)" if len(names) == 1 else f"({', '.join(names)})"
    return f"{told} with T ≥ 1" if "T" in axes else told


def _hint(space: Space, array: _Array, front: int) -> str:
    """Return what to do about an axis too many that may hold scores of a Discrete's values."""
    is_scores = array.dtype.kind == "f" and array.ndim == front + 1
    if not isinstance(space, spaces.Discrete) or not is_scores:
        return ""
    return f"; {scores_hint(space.start)}"


def _wanted_objects(kind: str, axes: str) -> str:
    front = {"": "one value", "T": "a list of T values with T ≥ 1", "B": "a tuple of B values"}
    told = front.get(axes, "B lists of T values with T ≥ 1")
    return f"{told} of the {kind} space"


def _described(value: _Given) -> str:
    if value is None:
        return "None"
    if isinstance(value, Mapping):
        return f"a dict with the keys {_names(list(value))}"
    if isinstance(value, (str, bytes)):
        return f"a {type(value).__name__}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)} items"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"shape {tuple(cast('tuple[int, ...]', shape))}"
    return f"a {type(value).__name__}"


def _names(names: list[Any]) -> str:
    shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN])
    return f"{shown}, …" if len(names) > _NAMES_SHOWN else shown or "(none)"


def _lengths_told(counts: tuple[int, ...], axes: str) -> str:
    return " and ".join(f"{axis} = {count}" for axis, count in zip(axes, counts, strict=False))
