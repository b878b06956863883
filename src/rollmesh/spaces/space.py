"""Spaces: frozen descriptions of observations and actions, without Gymnasium (layer 2).

Same words and meaning as Gymnasium's spaces; no sampling. A space is checked once when it is made,
compared and hashed by content, and compiles once into its `codec`. `gymnasium.py` converts.
"""

# numpy's and gymnasium's stubs, and values of unknown origin, leave types partly unknown:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from rollmesh.errors import InvalidValue
from rollmesh.limits import SIZE_LIMITS
from rollmesh.spaces.checks import (
    check_bound,
    check_count,
    check_dtype,
    check_integers,
    check_name,
    check_shape,
    content,
    fixed_spec,
    frozen,
    short,
)
from rollmesh.spaces.codec import Branch, Codec, DictBranch, TupleBranch, make_codec
from rollmesh.spaces.discrete import DiscreteLeaf
from rollmesh.spaces.leaf_codec import LeafCodec
from rollmesh.spaces.leaves import array_leaf, smallest
from rollmesh.spaces.nested import GraphLeaf, OneOfLeaf, SequenceLeaf
from rollmesh.spaces.ragged import TextLeaf

Array = np.ndarray[Any, np.dtype[Any]]


class Space:
    """Base of all spaces.

    Guarantees: immutable; equal spaces have equal content and equal hashes.
    """

    @cached_property
    def codec(self) -> Codec:
        """The codec of this space, compiled at first use."""
        leaves: list[LeafCodec] = []
        branch = self.compile("", leaves)
        return make_codec(self, leaves, branch)

    @property
    def children(self) -> tuple[Space, ...]:
        """The spaces directly inside this one."""
        return ()

    def compile(self, path: str, leaves: list[LeafCodec]) -> Branch | None:
        """Append the leaf codecs of this space; return its branch, or None if it is one leaf."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not type(self):
            return NotImplemented
        return self._key == other._key  # pyright: ignore[reportAttributeAccessIssue]

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._key))

    def __copy__(self) -> Space:
        return self

    def __deepcopy__(self, memo: object) -> Space:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        values = tuple(getattr(self, field.name) for field in fields(self))  # pyright: ignore[reportArgumentType]
        return type(self), values

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        """What makes two spaces of one type equal."""
        return tuple(getattr(self, field.name) for field in fields(self))  # pyright: ignore[reportArgumentType]

    @cached_property
    def depth(self) -> int:
        """Levels of nesting: 1 for a space without children."""
        return 1 + max((child.depth for child in self.children), default=0)

    def _check_depth(self) -> None:
        if self.depth > SIZE_LIMITS.nesting:
            raise InvalidValue(
                type(self).__name__,
                f"expected at most {SIZE_LIMITS.nesting} levels of nesting, got {self.depth}",
            )

    def _set(self, **values: Any) -> None:
        """Set fields of a frozen instance while it is being made."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, eq=False, repr=False)
class Box(Space):
    """An array whose elements lie between bounds.

    Args:
        shape: Any shape, `()` and zero-size ones included.
        dtype: bool, an integer up to 64 bits, or float16, float32, float64.
        low: Least value, a number or an array of `shape`; None is unbounded (the dtype's least).
        high: Greatest value, likewise.

    Attributes:
        low: Read-only array of `shape` and `dtype`.
        high: Likewise.

    Raises:
        InvalidValue: A bound is NaN, out of the dtype's range or of another shape; low is above
            high; the dtype or the shape is not allowed.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any] = np.dtype(np.float32)  # noqa: RUF009 - dtypes are immutable
    low: Array = None  # pyright: ignore[reportAssignmentType]
    high: Array = None  # pyright: ignore[reportAssignmentType]

    def __init__(
        self,
        shape: Iterable[int],
        dtype: DTypeLike = np.float32,
        low: ArrayLike | None = None,
        high: ArrayLike | None = None,
    ) -> None:
        checked_dtype = check_dtype("Box.dtype", dtype, kinds="biuf")
        checked_shape = check_shape("Box.shape", shape)
        bounds = [
            check_bound(f"Box.{name}", value, checked_shape, checked_dtype)
            for name, value in (("low", low), ("high", high))
        ]
        if np.any(smallest(bounds[0]) > smallest(bounds[1])):
            raise InvalidValue("Box.low", "expected low <= high everywhere")
        self._set(shape=checked_shape, dtype=checked_dtype, low=bounds[0], high=bounds[1])

    def __repr__(self) -> str:
        return f"Box({self.shape}, {self.dtype.name}, {short(self.low)}, {short(self.high)})"

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return self.shape, self.dtype, content(self.low), content(self.high)

    def compile(self, path: str, leaves: list[LeafCodec]) -> Branch | None:
        spec = fixed_spec(path, "box", self.dtype, self.shape)
        leaves.append(array_leaf(spec, self.low, self.high))
        return None


@dataclass(frozen=True, eq=False, repr=False)
class Discrete(Space):
    """One integer from `start` to `start + n - 1`.

    Raises:
        InvalidValue: n is not positive, or a value does not fit the dtype.
    """

    n: int
    start: int = 0
    dtype: np.dtype[Any] = np.dtype(np.int64)  # noqa: RUF009

    def __init__(self, n: int, start: int = 0, dtype: DTypeLike = np.int64) -> None:
        checked = check_dtype("Discrete.dtype", dtype, kinds="iu")
        first, count = int(start), int(n)
        if count <= 0:
            raise InvalidValue("Discrete.n", f"expected a positive number, got {count}")
        limits = np.iinfo(checked)
        if first < limits.min or first + count - 1 > limits.max:
            raise InvalidValue(
                "Discrete", f"values {first} to {first + count - 1} do not fit dtype {checked}"
            )
        self._set(n=count, start=first, dtype=checked)

    def __repr__(self) -> str:
        return f"Discrete({self.n}, start={self.start}, dtype={self.dtype.name})"

    def compile(self, path: str, leaves: list[LeafCodec]) -> Branch | None:
        low = np.array(self.start, self.dtype)
        high = np.array(self.start + self.n - 1, self.dtype)
        leaves.append(DiscreteLeaf(fixed_spec(path, "discrete", self.dtype, ()), low, high))
        return None


@dataclass(frozen=True, eq=False, repr=False)
class MultiBinary(Space):
    """An int8 array of zeros and ones, of any shape."""

    shape: tuple[int, ...]

    def __init__(self, shape: int | Iterable[int]) -> None:
        given = (shape,) if isinstance(shape, (int, np.integer)) else shape
        self._set(shape=check_shape("MultiBinary.shape", given))

    def __repr__(self) -> str:
        return f"MultiBinary({self.shape})"

    def compile(self, path: str, leaves: list[LeafCodec]) -> Branch | None:
        dtype = np.dtype(np.int8)
        spec = fixed_spec(path, "multi_binary", dtype, self.shape)
        low, high = np.array(0, dtype), np.array(1, dtype)
        leaves.append(array_leaf(spec, low, high, is_integer_domain=True))
        return None


@dataclass(frozen=True, eq=False, repr=False)
class MultiDiscrete(Space):
    """An array of integers, element i from `start[i]` to `start[i] + nvec[i] - 1`.

    Args:
        nvec: Number of values of each element; any shape.
        start: Least value of each element, of the same shape; None is zeros.
        dtype: Any integer dtype.

    Raises:
        InvalidValue: A count is not positive, a value does not fit the dtype, or the shapes differ.
    """

    nvec: Array
    start: Array = None  # pyright: ignore[reportAssignmentType]
    dtype: np.dtype[Any] = np.dtype(np.int64)  # noqa: RUF009

    def __init__(
        self, nvec: ArrayLike, start: ArrayLike | None = None, dtype: DTypeLike = np.int64
    ) -> None:
        checked = check_dtype("MultiDiscrete.dtype", dtype, kinds="iu")
        counts = check_integers("MultiDiscrete.nvec", nvec)
        shape = check_shape("MultiDiscrete.nvec", counts.shape)
        given = np.zeros(shape, np.int8) if start is None else start
        first = check_integers("MultiDiscrete.start", given)
        if first.shape != shape:
            raise InvalidValue(
                "MultiDiscrete.start", f"expected the shape of nvec {shape}, got {first.shape}"
            )
        limits = np.iinfo(checked)
        for count, least in zip(counts.ravel().tolist(), first.ravel().tolist(), strict=True):
            if count <= 0:
                raise InvalidValue("MultiDiscrete.nvec", f"expected positive counts, got {count}")
            if least < limits.min or max(least + count - 1, count) > limits.max:
                raise InvalidValue(
                    "MultiDiscrete",
                    f"count {count} from {least} does not fit dtype {checked}",
                )
        self._set(
            nvec=frozen(counts.astype(checked)), start=frozen(first.astype(checked)), dtype=checked
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a value."""
        return self.nvec.shape

    def __repr__(self) -> str:
        nvec, start = self.nvec.tolist(), self.start.tolist()
        return f"MultiDiscrete({nvec}, start={start}, dtype={self.dtype.name})"

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return self.shape, self.dtype, self.nvec.tobytes(), self.start.tobytes()

    def compile(self, path: str, leaves: list[LeafCodec]) -> Branch | None:
        spec = fixed_spec(path, "multi_discrete", self.dtype, self.shape)
        high = self.start + (self.nvec - self.dtype.type(1))
        leaves.append(array_leaf(spec, self.start, high, is_integer_domain=True))
        return None


@dataclass(frozen=True, eq=False, repr=False)
class Text(Space):
    """A string.

    Args:
        min_length: Least number of characters.
        max_length: Greatest number of characters.
        charset: The characters allowed, in any order (kept); None allows every character.

    Raises:
        InvalidValue: The lengths are negative or in the wrong order, or an element of the charset
            is not one character.
    """

    min_length: int
    max_length: int
    charset: str | None = None

    def __init__(
        self, min_length: int, max_length: int, charset: Iterable[str] | None = None
    ) -> None:
        least, most = int(min_length), int(max_length)
        if least < 0 or least > most:
            raise InvalidValue(
                "Text", f"expected 0 <= min_length <= max_length, got {least} and {most}"
            )
        letters = None
        if charset is not None:
            ordered = charset if isinstance(charset, str) else sorted(charset)
            odd = [letter for letter in ordered if len(letter) != 1]
            if odd:
                raise InvalidValue("Text.charset", f"expected single characters, got {odd[:5]}")
            letters = "".join(dict.fromkeys(ordered))
        self._set(min_length=least, max_length=most, charset=letters)

    def __repr__(self) -> str:
        charset = "any" if self.charset is None else repr(self.charset[:64])
        return f"Text({self.min_length}, {self.max_length}, charset={charset})"

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        letters = None if self.charset is None else frozenset(self.charset)
        return self.min_length, self.max_length, letters

    def compile(self, path: str, leaves: list[LeafCodec]) -> Branch | None:
        letters = None if self.charset is None else frozenset(self.charset)
        leaves.append(TextLeaf(path, self.min_length, self.max_length, letters))
        return None


@dataclass(frozen=True, eq=False, repr=False)
class Dict(Space):
    """Named spaces in declared order.

    Args:
        spaces: Pairs of name and space, or a mapping; any names, the empty one included.

    Attributes:
        spaces: The pairs as a tuple.

    Raises:
        InvalidValue: A name is not a string, too long or there twice; too many or too deep.
    """

    spaces: tuple[tuple[str, Space], ...]

    def __init__(self, spaces: Mapping[str, Space] | Iterable[tuple[str, Space]]) -> None:
        pairs = tuple(spaces.items() if isinstance(spaces, Mapping) else map(tuple, spaces))
        names = [name for name, _ in pairs]
        check_count("Dict", len(pairs))
        for name in names:
            check_name("Dict", name)
        if len(set(names)) != len(names):
            raise InvalidValue("Dict", f"expected each name once, got {names}")
        for name, space in pairs:
            check_space(f"Dict[{name!r}]", space)
        self._set(spaces=pairs)
        self._check_depth()

    @property
    def children(self) -> tuple[Space, ...]:
        return tuple(space for _, space in self.spaces)

    def __getitem__(self, name: str) -> Space:
        for known, space in self.spaces:
            if known == name:
                return space
        raise KeyError(name)

    def __repr__(self) -> str:
        return f"Dict({', '.join(f'{name!r}: {space!r}' for name, space in self.spaces)})"

    def compile(self, path: str, leaves: list[LeafCodec]) -> Branch | None:
        return DictBranch(
            path,
            [(name, space.compile(f"{path}[{name!r}]", leaves)) for name, space in self.spaces],
        )


class _ByPosition(Space):
    """What spaces that hold others by position have in common."""

    spaces: tuple[Space, ...]

    @property
    def children(self) -> tuple[Space, ...]:
        return self.spaces

    def __getitem__(self, index: int) -> Space:
        return self.spaces[index]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.spaces))})"


@dataclass(frozen=True, eq=False, repr=False)
class Tuple(_ByPosition):
    """Spaces by position."""

    spaces: tuple[Space, ...]

    def __init__(self, spaces: Iterable[Space]) -> None:
        self._set(spaces=_checked_spaces("Tuple", spaces))
        self._check_depth()

    def compile(self, path: str, leaves: list[LeafCodec]) -> Branch | None:
        return TupleBranch(
            path,
            [space.compile(f"{path}[{i}]", leaves) for i, space in enumerate(self.spaces)],
        )


@dataclass(frozen=True, eq=False, repr=False)
class Sequence(Space):
    """Any number of values of one space, as a tuple or (`stack`) as one batched value."""

    space: Space
    stack: bool = False

    def __post_init__(self) -> None:
        check_space("Sequence.space", self.space)
        self._set(stack=bool(self.stack))
        self._check_depth()

    @property
    def children(self) -> tuple[Space, ...]:
        return (self.space,)

    def __repr__(self) -> str:
        return f"Sequence({self.space!r}, stack={self.stack})"

    def compile(self, path: str, leaves: list[LeafCodec]) -> Branch | None:
        leaves.append(SequenceLeaf(path, self.space.codec, stack=self.stack))
        return None


@dataclass(frozen=True, eq=False, repr=False)
class Graph(Space):
    """A graph: nodes of one space, and edges of another or none."""

    node_space: Space
    edge_space: Space | None = None

    def __post_init__(self) -> None:
        check_space("Graph.node_space", self.node_space)
        if self.edge_space is not None:
            check_space("Graph.edge_space", self.edge_space)
        self._check_depth()

    @property
    def children(self) -> tuple[Space, ...]:
        return (self.node_space,) if self.edge_space is None else (self.node_space, self.edge_space)

    def __repr__(self) -> str:
        return f"Graph({self.node_space!r}, {self.edge_space!r})"

    def compile(self, path: str, leaves: list[LeafCodec]) -> Branch | None:
        edge = None if self.edge_space is None else self.edge_space.codec
        leaves.append(GraphLeaf(path, self.node_space.codec, edge))
        return None


@dataclass(frozen=True, eq=False, repr=False)
class OneOf(_ByPosition):
    """A value of one of several spaces, with the index of that space."""

    spaces: tuple[Space, ...]

    def __init__(self, spaces: Iterable[Space]) -> None:
        checked = _checked_spaces("OneOf", spaces)
        if not checked:
            raise InvalidValue("OneOf", "expected at least one space")
        self._set(spaces=checked)
        self._check_depth()

    def compile(self, path: str, leaves: list[LeafCodec]) -> Branch | None:
        leaves.append(OneOfLeaf(path, [space.codec for space in self.spaces]))
        return None


def check_space(field: str, space: object) -> None:
    """Raise `InvalidValue` unless this is a space of ours."""
    if not isinstance(space, Space):
        raise InvalidValue(
            field, f"expected a rollmesh space, got {type(space).__name__}; call from_gymnasium"
        )


def _checked_spaces(field: str, spaces: Iterable[Space]) -> tuple[Space, ...]:
    checked = tuple(spaces)
    check_count(field, len(checked))
    for index, space in enumerate(checked):
        check_space(f"{field}[{index}]", space)
    return checked
