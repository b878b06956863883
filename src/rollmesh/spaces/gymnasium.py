"""Converts spaces from and to Gymnasium's, losslessly (layer 2).

Gymnasium is imported when a conversion is asked for, never with the package.

What Gymnasium cannot express: a Text of any character (it becomes a subclass of Gymnasium's Text
that contains every string), Discrete with a count that its dtype cannot hold (or, in older
versions, of another dtype than int64), zero-size MultiBinary. What is not kept because it is no
part of a space's content: random state, and the difference between `MultiBinary(3)` and
`MultiBinary([3])`, which become `MultiBinary(3)`.
"""

# numpy's and gymnasium's stubs, and values of unknown origin, leave types partly unknown:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rollmesh.errors import InvalidValue
from rollmesh.spaces import space as ours

if TYPE_CHECKING:
    import gymnasium

_PRINTABLE = "".join(map(chr, range(32, 127)))


def from_gymnasium(space: gymnasium.Space[Any], path: str = "space") -> ours.Space:
    """Return our description of a Gymnasium space.

    Args:
        space: A space of one of Gymnasium's own classes, or a subclass of one that changes nothing
            about which values it contains.
        path: How errors name it.

    Raises:
        InvalidValue: The space is of another class, or cannot be described; the path says where.
    """
    from gymnasium import spaces as theirs

    if isinstance(space, ours.Space):
        return space
    foreign: Any = space
    made: ours.Space
    try:
        if isinstance(foreign, theirs.Box):
            made = ours.Box(foreign.shape, foreign.dtype, foreign.low, foreign.high)
        elif isinstance(foreign, theirs.Discrete):
            made = ours.Discrete(int(foreign.n), int(foreign.start), foreign.dtype)
        elif isinstance(foreign, theirs.MultiBinary):
            made = ours.MultiBinary(foreign.shape)
        elif isinstance(foreign, theirs.MultiDiscrete):
            made = ours.MultiDiscrete(foreign.nvec, foreign.start, foreign.dtype)
        elif isinstance(foreign, theirs.Text):
            made = _text(foreign)
        else:
            made = _composite(foreign, path)
    except InvalidValue as error:
        if error.path.startswith(path):
            raise
        raise InvalidValue(path, f"{error.path}: {error.detail}") from error
    _refuse_other_contains(foreign, made, path)
    return made


def _composite(space: Any, path: str) -> ours.Space:
    from gymnasium import spaces as theirs

    if isinstance(space, theirs.Dict):
        return ours.Dict(
            [
                (name, from_gymnasium(child, f"{path}[{name!r}]"))
                for name, child in space.spaces.items()
            ]
        )
    if isinstance(space, (theirs.Tuple, theirs.OneOf)):
        children = [
            from_gymnasium(child, f"{path}[{index}]") for index, child in enumerate(space.spaces)
        ]
        return ours.Tuple(children) if isinstance(space, theirs.Tuple) else ours.OneOf(children)
    if isinstance(space, theirs.Sequence):
        return ours.Sequence(from_gymnasium(space.feature_space, f"{path}[*]"), space.stack)
    if isinstance(space, theirs.Graph):
        edge = space.edge_space
        return ours.Graph(
            from_gymnasium(space.node_space, f"{path}.nodes"),
            None if edge is None else from_gymnasium(edge, f"{path}.edges"),
        )
    kind = f"{type(space).__module__}.{type(space).__qualname__}"
    raise InvalidValue(
        path,
        f"cannot describe a space of class {kind}; expected one of Box, Discrete, MultiBinary, "
        "MultiDiscrete, Text, Dict, Tuple, Sequence, Graph, OneOf: wrap the env and express the "
        "space with these",
    )


def _text(space: Any) -> ours.Text:
    charset = None if isinstance(space, any_text_class()) else "".join(space.character_list)
    return ours.Text(space.min_length, space.max_length, charset)


def _refuse_other_contains(space: Any, made: ours.Space, path: str) -> None:
    """Refuse a subclass with its own idea of its values: we would silently not share it."""
    own = getattr(type(space), "contains", None)
    known = _gymnasium_class(made).contains
    if own is not known and type(space) is not any_text_class():
        kind = f"{type(space).__module__}.{type(space).__qualname__}"
        raise InvalidValue(
            path,
            f"{kind} changes which values a {type(made).__name__} contains; wrap the env and "
            "express the space with Gymnasium's own classes",
        )


def _gymnasium_class(space: ours.Space) -> Any:
    from gymnasium import spaces as theirs

    return getattr(theirs, type(space).__name__)


def to_gymnasium(space: ours.Space) -> gymnasium.Space[Any]:
    """Return the Gymnasium space of the same content, freshly made.

    Raises:
        InvalidValue: Gymnasium cannot express it.
    """
    try:
        return _build(space)
    except (TypeError, ValueError, OverflowError, AssertionError) as error:
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue("space", f"Gymnasium cannot express {space!r}: {error}") from error


def _build(space: ours.Space) -> Any:
    builder = _BUILDERS.get(type(space))
    if builder is None:
        raise InvalidValue("space", f"expected a rollmesh space, got {type(space).__name__}")
    return builder(space)


def _build_discrete(space: ours.Discrete) -> Any:
    from gymnasium import spaces as theirs

    if space.dtype == np.dtype(np.int64):
        return theirs.Discrete(space.n, start=space.start)
    return theirs.Discrete(space.n, start=space.start, dtype=space.dtype.type)


def _build_multi_binary(space: ours.MultiBinary) -> Any:
    from gymnasium import spaces as theirs

    return theirs.MultiBinary(space.shape[0] if len(space.shape) == 1 else space.shape)


def _build_multi_discrete(space: ours.MultiDiscrete) -> Any:
    from gymnasium import spaces as theirs

    nvec, start = space.nvec.copy(), space.start.copy()
    return theirs.MultiDiscrete(nvec, dtype=space.dtype.type, start=start)


def _build_text(space: ours.Text) -> Any:
    from gymnasium import spaces as theirs

    make = any_text_class() if space.charset is None else theirs.Text
    charset = _PRINTABLE if space.charset is None else space.charset
    return make(space.max_length, min_length=space.min_length, charset=charset)


def _build_dict(space: ours.Dict) -> Any:
    from gymnasium import spaces as theirs

    # a list of pairs keeps its order, where a dict would be sorted
    return theirs.Dict([(name, _build(child)) for name, child in space.spaces])


def _build_tuple(space: ours.Tuple) -> Any:
    from gymnasium import spaces as theirs

    return theirs.Tuple([_build(child) for child in space.spaces])


def _build_one_of(space: ours.OneOf) -> Any:
    from gymnasium import spaces as theirs

    return theirs.OneOf([_build(child) for child in space.spaces])


def _build_sequence(space: ours.Sequence) -> Any:
    from gymnasium import spaces as theirs

    return theirs.Sequence(_build(space.space), stack=space.stack)


def _build_graph(space: ours.Graph) -> Any:
    from gymnasium import spaces as theirs

    edge = None if space.edge_space is None else _build(space.edge_space)
    return theirs.Graph(_build(space.node_space), edge)


def _build_box(space: ours.Box) -> Any:
    from gymnasium import spaces as theirs

    low, high = np.array(space.low), np.array(space.high)
    box = theirs.Box(low=low, high=high, shape=space.shape, dtype=space.dtype.type)
    if space.dtype in (np.dtype(np.int64), np.dtype(np.uint64)):
        # sampling up to the end of a 64-bit range overflows unless it counts as unbounded
        limits = np.iinfo(space.dtype)
        box.bounded_below &= box.low != limits.min
        box.bounded_above &= box.high != limits.max
    return box


@lru_cache(maxsize=1)
def any_text_class() -> Any:
    """Return the Gymnasium Text that contains every string of its lengths."""
    from gymnasium import spaces as theirs

    class AnyText(theirs.Text):
        """A Text of any characters; samples are printable ASCII."""

        def contains(self, x: Any) -> bool:
            return isinstance(x, str) and self.min_length <= len(x) <= self.max_length

        def __repr__(self) -> str:
            return f"AnyText({self.min_length}, {self.max_length})"

        def __eq__(self, other: object) -> bool:
            return (
                type(other) is type(self)
                and self.min_length == other.min_length  # pyright: ignore[reportAttributeAccessIssue]
                and self.max_length == other.max_length  # pyright: ignore[reportAttributeAccessIssue]
            )

        __hash__ = None  # type: ignore[assignment]

    return AnyText


_BUILDERS: dict[type[ours.Space], Callable[[Any], Any]] = {
    ours.Box: _build_box,
    ours.Discrete: _build_discrete,
    ours.MultiBinary: _build_multi_binary,
    ours.MultiDiscrete: _build_multi_discrete,
    ours.Text: _build_text,
    ours.Dict: _build_dict,
    ours.Tuple: _build_tuple,
    ours.OneOf: _build_one_of,
    ours.Sequence: _build_sequence,
    ours.Graph: _build_graph,
}
