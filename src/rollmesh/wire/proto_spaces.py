"""Spaces: `Space` to `SpaceSpec` and back (layer 4).

Towards a released peer (`Dialect.more_spaces` off):

- Sequence, Graph, OneOf, a `start` of MultiDiscrete, Box and MultiBinary and MultiDiscrete of shape
  (), a Box with a size of 0, and an empty key cannot be said and are refused.
- Gymnasium's default charset of a Text is left out, as the released peer does: instructions hold
  spaces and punctuation, which it lacks.
- A Text of 0 characters or more is sent as 1 or more, which the peer does not enforce.

Seen on the released peer (0.1.0). It sends a Box over a whole integer range as uniform bounds, and
as `unbounded` only where both float bounds are infinite; it accepts `unbounded` for every dtype,
and also `unbounded` = false, as the same. It refuses a shape of () or with a 0 for a Box (so a
zero-size Box is never sent, as unbounded or otherwise), `min_length` 0, a container with a dtype, a
Discrete with a shape, duplicate and empty keys. It takes MultiBinary of bool, uint8 and int8. All
numbers of Discrete and MultiDiscrete are plain varints.
"""

# numpy's stubs, and values of unknown origin, leave types partly unknown:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import math
import string
from collections.abc import Callable
from typing import Any

import numpy as np

from rollmesh.errors import InvalidValue, WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.spaces.space import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Space,
    Text,
    Tuple,
)
from rollmesh.wire._gen import rlmesh_spaces_v1_pb2 as pb
from rollmesh.wire.dialect import Dialect

_DTYPES: dict[int, np.dtype[Any]] = {
    number: np.dtype(name)
    for number, name in enumerate(
        [
            *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
            *("float16", "float32", "float64"),
        ],
        start=1,
    )
}
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_DEFAULT_CHARSET = frozenset(string.ascii_letters + string.digits)
"""What Gymnasium gives a Text that names no charset."""
_INT64 = 2**63
_BINARY = ("bool", "uint8", "int8")


# --------------------------------------------------------------------------------- encoding


def encode_space(space: Space, dialect: Dialect) -> pb.SpaceSpec:
    """Return a space as a peer of this dialect understands it.

    Raises:
        WireError: The peer's wire has no way to say it.
    """
    spec = pb.SpaceSpec()
    _encode(space, spec, dialect, "space")
    return spec


def _encode(space: Space, spec: pb.SpaceSpec, dialect: Dialect, path: str) -> None:
    write = _WRITERS.get(type(space))
    if write is None:
        raise WireError(f"{path}: {type(space).__name__} has no form on the wire")
    write(space, spec, dialect, path)


def _needs_more(path: str, what: str, dialect: Dialect) -> None:
    if not dialect.more_spaces:
        raise WireError(
            f"{path}: {what} cannot be sent to this peer, whose wire has no field for it; only "
            "rollmesh peers have. Wrap the env so that the space is one of Box, Discrete, "
            "MultiBinary, MultiDiscrete (start 0), Text, Dict, Tuple, with sizes of 1 or more"
        )


def _set_array(spec: pb.SpaceSpec, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    spec.dtype = _NUMBERS[dtype]  # pyright: ignore[reportAttributeAccessIssue]
    spec.shape.extend(shape)


def _check_sizes(path: str, name: str, space: Any, dialect: Dialect) -> None:
    shape: tuple[int, ...] = space.shape
    if not shape or 0 in shape:
        _needs_more(path, f"a {name} of shape {shape}", dialect)


def _encode_box(space: Box, spec: pb.SpaceSpec, dialect: Dialect, path: str) -> None:
    _check_sizes(path, "Box", space, dialect)
    _set_array(spec, space.shape, space.dtype)
    low, high = space.low, space.high
    if space.dtype.kind == "f":
        is_unbounded = bool(np.all(np.isneginf(low)) and np.all(np.isposinf(high)))
    else:
        is_unbounded = low.size == 0
    if is_unbounded:
        spec.box.unbounded = True
    elif _is_uniform(low) and _is_uniform(high):
        spec.box.uniform.low = low.flat[0].tobytes()
        spec.box.uniform.high = high.flat[0].tobytes()
    else:
        spec.box.elementwise.low = low.tobytes()
        spec.box.elementwise.high = high.tobytes()


def _is_uniform(bound: np.ndarray[Any, np.dtype[Any]]) -> bool:
    return not any(bound.strides) or bool(np.all(bound == bound.flat[0]))


def _encode_discrete(space: Discrete, spec: pb.SpaceSpec, dialect: Dialect, path: str) -> None:
    del dialect
    _set_array(spec, (), space.dtype)
    _check_int64(path, (space.n, space.start))
    spec.discrete.n = space.n
    spec.discrete.start = space.start


def _encode_binary(space: MultiBinary, spec: pb.SpaceSpec, dialect: Dialect, path: str) -> None:
    _check_sizes(path, "MultiBinary", space, dialect)
    _set_array(spec, space.shape, np.dtype(np.uint8))
    spec.multi_binary.SetInParent()


def _encode_multi(space: MultiDiscrete, spec: pb.SpaceSpec, dialect: Dialect, path: str) -> None:
    _check_sizes(path, "MultiDiscrete", space, dialect)
    _set_array(spec, space.shape, space.dtype)
    counts, starts = space.nvec.ravel().tolist(), space.start.ravel().tolist()
    _check_int64(path, (*counts, *starts))
    spec.multi_discrete.SetInParent()
    spec.multi_discrete.nvec.extend(counts)
    if any(starts):
        _needs_more(path, "a MultiDiscrete with a start other than 0", dialect)
        spec.multi_discrete.start.extend(starts)


def _check_int64(path: str, numbers: tuple[int, ...]) -> None:
    for number in numbers:
        if not -_INT64 <= number < _INT64:
            raise WireError(f"{path}: {number} does not fit the wire's 64-bit integers")


def _encode_text(space: Text, spec: pb.SpaceSpec, dialect: Dialect, path: str) -> None:
    spec.dtype = _NUMBERS[np.dtype(np.uint8)]  # pyright: ignore[reportAttributeAccessIssue]
    _check_int64(path, (space.max_length,))
    text = spec.text
    charset = space.charset
    if dialect.more_spaces:
        text.min_length = space.min_length
        text.no_characters = charset == ""
    else:
        text.min_length = max(1, space.min_length)
        if charset is not None and frozenset(charset) == _DEFAULT_CHARSET:
            charset = None
    text.max_length = max(space.max_length, text.min_length)
    try:
        text.charset = charset or ""
    except UnicodeEncodeError:
        raise WireError(f"{path}: the charset of a Text holds what is no Unicode text") from None


def _encode_dict(space: Dict, spec: pb.SpaceSpec, dialect: Dialect, path: str) -> None:
    spec.dict.SetInParent()
    for name, child in space.spaces:
        if not name:
            _needs_more(path, "a Dict with an empty key", dialect)
        try:
            spec.dict.keys.append(name)
        except UnicodeEncodeError:
            raise WireError(f"{path}: the key {name!r} is no Unicode text; rename it") from None
        _encode(child, spec.dict.spaces.add(), dialect, f"{path}[{name!r}]")


def _encode_tuple(space: Tuple, spec: pb.SpaceSpec, dialect: Dialect, path: str) -> None:
    spec.tuple.SetInParent()
    for index, child in enumerate(space.spaces):
        _encode(child, spec.tuple.spaces.add(), dialect, f"{path}[{index}]")


def _encode_sequence(space: Sequence, spec: pb.SpaceSpec, dialect: Dialect, path: str) -> None:
    _needs_more(path, "a Sequence", dialect)
    spec.sequence.stack = space.stack
    _encode(space.space, spec.sequence.space, dialect, f"{path}.space")


def _encode_graph(space: Graph, spec: pb.SpaceSpec, dialect: Dialect, path: str) -> None:
    _needs_more(path, "a Graph", dialect)
    _encode(space.node_space, spec.graph.node_space, dialect, f"{path}.node_space")
    if space.edge_space is not None:
        _encode(space.edge_space, spec.graph.edge_space, dialect, f"{path}.edge_space")


def _encode_one_of(space: OneOf, spec: pb.SpaceSpec, dialect: Dialect, path: str) -> None:
    _needs_more(path, "a OneOf", dialect)
    for index, child in enumerate(space.spaces):
        _encode(child, spec.one_of.spaces.add(), dialect, f"{path}[{index}]")


_WRITERS: dict[type[Space], Callable[[Any, pb.SpaceSpec, Dialect, str], None]] = {
    Box: _encode_box,
    Discrete: _encode_discrete,
    MultiBinary: _encode_binary,
    MultiDiscrete: _encode_multi,
    Text: _encode_text,
    Dict: _encode_dict,
    Tuple: _encode_tuple,
    Sequence: _encode_sequence,
    Graph: _encode_graph,
    OneOf: _encode_one_of,
}


# --------------------------------------------------------------------------------- decoding


def decode_space(spec: pb.SpaceSpec, path: str = "space") -> Space:
    """Return the space that a peer described.

    Fields of ours are understood whatever was negotiated.

    Raises:
        WireError: It is no valid space, of an unknown kind, or over a limit of `SIZE_LIMITS`.
    """
    return _decode(spec, path, 1)


def _decode(spec: pb.SpaceSpec, path: str, depth: int) -> Space:
    if depth > SIZE_LIMITS.nesting:
        raise WireError(f"{path}: nested deeper than {SIZE_LIMITS.nesting} levels")
    kind = spec.WhichOneof("kind")
    read = _READERS.get(kind or "")
    if read is None:
        raise WireError(f"{path}: a space of no kind that this version knows")
    if kind in _CONTAINERS and (spec.dtype or spec.shape):
        raise WireError(f"{path}: a container has neither dtype nor shape")
    try:
        return read(spec, path, depth)
    except InvalidValue as error:
        raise WireError(f"{path}: {error}") from None


def _dtype(spec: pb.SpaceSpec, path: str, kinds: str) -> np.dtype[Any]:
    dtype = _DTYPES.get(spec.dtype)
    if dtype is None or dtype.kind not in kinds:
        names = {"b": "bool", "i": "signed", "u": "unsigned", "f": "float"}
        got = f"number {spec.dtype}" if dtype is None else str(dtype)
        wants = ", ".join(names[one] for one in kinds)
        raise WireError(f"{path}: expected an element type of {wants}, got {got}")
    return dtype


def _shape(spec: pb.SpaceSpec, path: str, itemsize: int) -> tuple[int, ...]:
    if len(spec.shape) > SIZE_LIMITS.dims:
        raise WireError(
            f"{path}: {len(spec.shape)} dimensions are more than SIZE_LIMITS.dims allows "
            f"({SIZE_LIMITS.dims})"
        )
    shape = tuple(spec.shape)
    if any(size < 0 for size in shape):
        raise WireError(f"{path}: expected sizes of 0 or more, got {shape}")
    if math.prod(shape) * itemsize > SIZE_LIMITS.message_bytes:
        raise WireError(
            f"{path}: a value of shape {shape} has more bytes than SIZE_LIMITS.message_bytes "
            f"allows ({SIZE_LIMITS.message_bytes})"
        )
    return shape


def _decode_box(spec: pb.SpaceSpec, path: str, depth: int) -> Space:
    del depth
    dtype = _dtype(spec, path, "biuf")
    shape = _shape(spec, path, dtype.itemsize)
    kind = spec.box.WhichOneof("bounds")
    if kind is None:
        raise WireError(f"{path}: a Box without bounds; an endless one says `unbounded`")
    if kind == "unbounded":
        return Box(shape, dtype)
    if kind == "uniform":
        given, wanted = spec.box.uniform, ()
    else:
        given, wanted = spec.box.elementwise, shape
    low = _bound(given.low, wanted, dtype, f"{path}.low")
    high = _bound(given.high, wanted, dtype, f"{path}.high")
    return Box(shape, dtype, low, high)


def _bound(data: bytes, shape: tuple[int, ...], dtype: np.dtype[Any], path: str) -> Any:
    size = math.prod(shape) * dtype.itemsize
    if len(data) != size:
        raise WireError(f"{path}: expected {size} bytes of {dtype}, got {len(data)}")
    if dtype.kind == "b" and not set(data) <= {0, 1}:
        raise WireError(f"{path}: expected bool bytes 0 or 1")
    return np.ndarray(shape, dtype, data)


def _decode_discrete(spec: pb.SpaceSpec, path: str, depth: int) -> Space:
    del depth
    if spec.shape:
        raise WireError(f"{path}: a Discrete has no shape, got {list(spec.shape)[:9]}")
    return Discrete(spec.discrete.n, spec.discrete.start, _dtype(spec, path, "iu"))


def _decode_binary(spec: pb.SpaceSpec, path: str, depth: int) -> Space:
    del depth
    dtype = _DTYPES.get(spec.dtype)
    if dtype is None or dtype.name not in _BINARY:
        raise WireError(f"{path}: expected bytes for a MultiBinary, got number {spec.dtype}")
    return MultiBinary(_shape(spec, path, 1))


def _decode_multi(spec: pb.SpaceSpec, path: str, depth: int) -> Space:
    del depth
    dtype = _dtype(spec, path, "iu")
    shape = _shape(spec, path, dtype.itemsize)
    counts, starts = spec.multi_discrete.nvec, spec.multi_discrete.start
    if len(counts) != math.prod(shape) or len(starts) not in (0, len(counts)):
        raise WireError(
            f"{path}: expected {math.prod(shape)} counts for shape {shape}, got {len(counts)} "
            f"and {len(starts)} starts"
        )
    nvec = np.array(counts, np.int64).reshape(shape)
    start = np.array(starts, np.int64).reshape(shape) if starts else None
    return MultiDiscrete(nvec, start, dtype)


def _decode_text(spec: pb.SpaceSpec, path: str, depth: int) -> Space:
    del depth
    text = spec.text
    if spec.shape or _DTYPES.get(spec.dtype) != np.uint8:
        raise WireError(f"{path}: a Text has no shape, and bytes for elements")
    if len(text.charset) > SIZE_LIMITS.text_bytes:
        raise WireError(f"{path}: a charset over the limit of {SIZE_LIMITS.text_bytes} bytes")
    charset = text.charset or ("" if text.no_characters else None)
    return Text(text.min_length, text.max_length, charset)


def _count(path: str, count: int) -> None:
    if count > SIZE_LIMITS.keys:
        raise WireError(
            f"{path}: {count} spaces are more than SIZE_LIMITS.keys allows ({SIZE_LIMITS.keys})"
        )


def _decode_dict(spec: pb.SpaceSpec, path: str, depth: int) -> Space:
    keys, spaces = spec.dict.keys, spec.dict.spaces
    if len(keys) != len(spaces):
        raise WireError(f"{path}: {len(keys)} keys for {len(spaces)} spaces")
    _count(path, len(keys))
    return Dict(
        [
            (key, _decode(space, f"{path}[{key[:80]!r}]", depth + 1))
            for key, space in zip(keys, spaces, strict=True)
        ]
    )


def _children(spaces: Any, path: str, depth: int) -> list[Space]:
    _count(path, len(spaces))
    return [_decode(space, f"{path}[{index}]", depth + 1) for index, space in enumerate(spaces)]


def _decode_tuple(spec: pb.SpaceSpec, path: str, depth: int) -> Space:
    return Tuple(_children(spec.tuple.spaces, path, depth))


def _decode_sequence(spec: pb.SpaceSpec, path: str, depth: int) -> Space:
    return Sequence(_decode(spec.sequence.space, f"{path}.space", depth + 1), spec.sequence.stack)


def _decode_graph(spec: pb.SpaceSpec, path: str, depth: int) -> Space:
    graph = spec.graph
    node = _decode(graph.node_space, f"{path}.node_space", depth + 1)
    edge = None
    if graph.HasField("edge_space"):
        edge = _decode(graph.edge_space, f"{path}.edge_space", depth + 1)
    return Graph(node, edge)


def _decode_one_of(spec: pb.SpaceSpec, path: str, depth: int) -> Space:
    return OneOf(_children(spec.one_of.spaces, path, depth))


_READERS: dict[str, Callable[[pb.SpaceSpec, str, int], Space]] = {
    "box": _decode_box,
    "discrete": _decode_discrete,
    "multi_binary": _decode_binary,
    "multi_discrete": _decode_multi,
    "text": _decode_text,
    "dict": _decode_dict,
    "tuple": _decode_tuple,
    "sequence": _decode_sequence,
    "graph": _decode_graph,
    "one_of": _decode_one_of,
}
_CONTAINERS = frozenset(["dict", "tuple", "sequence", "graph", "one_of"])
