"""Env contracts as bytes: what a server tells of its env, on our own wire (layer 4).

A contract is a msgpack array; each space in it is an array that starts with the name of its kind.
Bounds are raw little-endian numbers, one where all are the same. Names travel as bytes, integers
beyond 64 bits too, the metadata as `metadata.py` makes it.

What comes from a peer is read one level of spaces at a time: depth, number of children, number of
spaces, shapes and lengths are compared with the limits before anything is made of them.

`proto_env.py` has the form that released peers understand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import numpy as np

from rollmesh.errors import InvalidValue, WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.ports import NO_INFO, AutoresetMode, EnvContract
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
from rollmesh.wire.metadata import Report, decode_map, encode_map
from rollmesh.wire.sections import Number, encode_section, from_number, reader, to_number

MOST_SPACES = 2**14
"""Spaces of one contract, containers included."""

_MOST_NUMBER_BYTES = 64
_SURROGATES = "surrogatepass"
_CODES = ("?", "<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")

_Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_Dtype: TypeAlias = Any
"""A `numpy.dtype`; NumPy's stubs lose the types of its texts below Python 3.11."""


def _name(dtype: _Dtype) -> str:
    return dtype.name


_DTYPES: dict[str, np.dtype[Any]] = {_name(dtype): dtype for dtype in map(np.dtype, _CODES)}


class _Contract(msgspec.Struct, frozen=True, array_like=True):
    id: bytes
    num_envs: int
    autoreset_mode: str
    render_mode: bytes | None
    observation_space: msgspec.Raw
    action_space: msgspec.Raw
    metadata: bytes


class _Box(msgspec.Struct, frozen=True, array_like=True, tag="box"):
    shape: tuple[int, ...]
    dtype: str
    low: bytes
    high: bytes


class _Discrete(msgspec.Struct, frozen=True, array_like=True, tag="discrete"):
    n: Number
    start: Number
    dtype: str


class _MultiBinary(msgspec.Struct, frozen=True, array_like=True, tag="multi_binary"):
    shape: tuple[int, ...]


class _MultiDiscrete(msgspec.Struct, frozen=True, array_like=True, tag="multi_discrete"):
    shape: tuple[int, ...]
    dtype: str
    nvec: bytes
    start: bytes


class _Text(msgspec.Struct, frozen=True, array_like=True, tag="text"):
    min_length: Number
    max_length: Number
    charset: bytes | None


class _Dict(msgspec.Struct, frozen=True, array_like=True, tag="dict"):
    names: tuple[bytes, ...]
    spaces: tuple[msgspec.Raw, ...]


class _Tuple(msgspec.Struct, frozen=True, array_like=True, tag="tuple"):
    spaces: tuple[msgspec.Raw, ...]


class _Sequence(msgspec.Struct, frozen=True, array_like=True, tag="sequence"):
    space: msgspec.Raw
    stack: bool


class _Graph(msgspec.Struct, frozen=True, array_like=True, tag="graph"):
    node_space: msgspec.Raw
    edge_space: tuple[msgspec.Raw, ...]
    """Of none or one."""


class _OneOf(msgspec.Struct, frozen=True, array_like=True, tag="one_of"):
    spaces: tuple[msgspec.Raw, ...]


_AnySpace: TypeAlias = (
    _Box
    | _Discrete
    | _MultiBinary
    | _MultiDiscrete
    | _Text
    | _Dict
    | _Tuple
    | _Sequence
    | _Graph
    | _OneOf
)
_read_contract = reader(_Contract)
_read_space = reader(_AnySpace)


def encode_contract(contract: EnvContract, report: Report | None = None) -> bytes:
    """Return a contract as bytes.

    Args:
        contract: Any contract.
        report: Called for each piece of metadata that had to be replaced.

    Raises:
        WireError: It is over a limit of the wire, or has a space of a foreign class.
    """
    encoded = encode_section(
        _Contract(
            _to_bytes(contract.id),
            contract.num_envs,
            contract.autoreset_mode.value,
            None if contract.render_mode is None else _to_bytes(contract.render_mode),
            _encode(contract.observation_space),
            _encode(contract.action_space),
            encode_map(contract.metadata, report, "metadata"),
        )
    )
    if len(encoded) > SIZE_LIMITS.message_bytes:
        raise WireError(
            f"contract: {len(encoded)} bytes are more than SIZE_LIMITS.message_bytes allows "
            f"({SIZE_LIMITS.message_bytes}); give bounds that are the same everywhere as a number"
        )
    return encoded


def decode_contract(encoded: bytes) -> EnvContract:
    """Return the contract that `encode_contract` made these bytes of.

    Raises:
        WireError: The bytes are no contract, or are over a limit.
    """
    if len(encoded) > SIZE_LIMITS.message_bytes:
        raise WireError(f"contract: {len(encoded)} bytes are over the limit of a message")
    raw: _Contract = _read_contract(encoded)
    if not 1 <= raw.num_envs <= SIZE_LIMITS.rows:
        raise WireError(f"contract: expected 1 to {SIZE_LIMITS.rows} envs, got {raw.num_envs}")
    try:
        mode = AutoresetMode(raw.autoreset_mode)
    except ValueError:
        raise WireError(f"contract: unknown autoreset mode {raw.autoreset_mode[:80]!r}") from None
    spaces = _Spaces()
    return EnvContract(
        id=_from_bytes(raw.id, "contract.id"),
        observation_space=spaces.read(raw.observation_space, "observation", 1),
        action_space=spaces.read(raw.action_space, "action", 1),
        num_envs=raw.num_envs,
        autoreset_mode=mode,
        render_mode=(
            None if raw.render_mode is None else _from_bytes(raw.render_mode, "render_mode")
        ),
        metadata=decode_map(raw.metadata) if raw.metadata else NO_INFO,
    )


# --------------------------------------------------------------------------------- encoding


def _encode(space: Space) -> msgspec.Raw:
    write = _WRITERS.get(type(space))
    if write is None:
        raise WireError(f"{type(space).__name__} has no form on the wire")
    return msgspec.Raw(encode_section(write(space)))


def _bounds(array: _Array) -> bytes:
    """Return one number where all are the same, else all of them."""
    if array.size:
        first = array[(0,) * array.ndim]
        if not any(array.strides) or bool(np.all(array == first)):
            return first.tobytes()
    return array.tobytes()


def _write_multi(space: MultiDiscrete) -> _MultiDiscrete:
    start = _bounds(space.start)
    return _MultiDiscrete(space.shape, _name(space.dtype), space.nvec.tobytes(), start)


def _write_text(space: Text) -> _Text:
    charset = None if space.charset is None else _to_bytes(space.charset)
    return _Text(to_number(space.min_length), to_number(space.max_length), charset)


def _write_dict(space: Dict) -> _Dict:
    return _Dict(
        tuple([_to_bytes(name) for name, _ in space.spaces]),
        tuple([_encode(child) for _, child in space.spaces]),
    )


_WRITERS: dict[type[Space], Callable[[Any], Any]] = {
    Box: lambda s: _Box(s.shape, s.dtype.name, _bounds(s.low), _bounds(s.high)),
    Discrete: lambda s: _Discrete(to_number(s.n), to_number(s.start), s.dtype.name),
    MultiBinary: lambda s: _MultiBinary(s.shape),
    MultiDiscrete: _write_multi,
    Text: _write_text,
    Dict: _write_dict,
    Tuple: lambda s: _Tuple(tuple(map(_encode, s.spaces))),
    Sequence: lambda s: _Sequence(_encode(s.space), s.stack),
    Graph: lambda s: _Graph(
        _encode(s.node_space), () if s.edge_space is None else (_encode(s.edge_space),)
    ),
    OneOf: lambda s: _OneOf(tuple(map(_encode, s.spaces))),
}


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", _SURROGATES)


# --------------------------------------------------------------------------------- decoding


def _from_bytes(data: bytes, path: str) -> str:
    if len(data) > SIZE_LIMITS.text_bytes:
        raise WireError(f"{path}: {len(data)} bytes of text; at most {SIZE_LIMITS.text_bytes}")
    try:
        return data.decode("utf-8", _SURROGATES)
    except UnicodeDecodeError:
        raise WireError(f"{path}: expected UTF-8 text") from None


class _Spaces:
    """Reads the spaces of one contract and counts them."""

    def __init__(self) -> None:
        self._count = 0

    def read(self, raw: msgspec.Raw, path: str, depth: int) -> Space:
        """Return a space and all inside it."""
        if depth > SIZE_LIMITS.nesting:
            raise WireError(f"{path}: nested deeper than {SIZE_LIMITS.nesting} levels")
        self._count += 1
        if self._count > MOST_SPACES:
            raise WireError(f"contract: more than {MOST_SPACES} spaces")
        body: _AnySpace = _read_space(memoryview(raw))
        try:
            return self._make(body, path, depth + 1)
        except (InvalidValue, ValueError, OverflowError) as error:
            raise WireError(f"{path}: {error}") from None

    def _make(self, body: _AnySpace, path: str, depth: int) -> Space:
        match body:
            case _Dict():
                return self._read_dict(body, path, depth)
            case _Tuple():
                return Tuple(self._children(body.spaces, path, depth))
            case _OneOf():
                return OneOf(self._children(body.spaces, path, depth))
            case _Sequence():
                return Sequence(self.read(body.space, f"{path}.space", depth), body.stack)
            case _Graph():
                node = self.read(body.node_space, f"{path}.node_space", depth)
                edges = self._children(body.edge_space[:1], f"{path}.edge_space", depth)
                return Graph(node, *edges)
            case _:
                return _leaf(body, path)

    def _read_dict(self, body: _Dict, path: str, depth: int) -> Dict:
        if len(body.names) != len(body.spaces):
            raise WireError(f"{path}: {len(body.names)} names for {len(body.spaces)} spaces")
        if len(body.names) > SIZE_LIMITS.keys:
            raise WireError(f"{path}: {len(body.names)} spaces; at most {SIZE_LIMITS.keys}")
        names = [_from_bytes(name, path) for name in body.names]
        return Dict(
            [
                (name, self.read(raw, f"{path}[{name[:80]!r}]", depth))
                for name, raw in zip(names, body.spaces, strict=True)
            ]
        )

    def _children(
        self, spaces: tuple[msgspec.Raw, ...], path: str, depth: int
    ) -> tuple[Space, ...]:
        if len(spaces) > SIZE_LIMITS.keys:
            raise WireError(f"{path}: {len(spaces)} spaces; at most {SIZE_LIMITS.keys}")
        return tuple([self.read(raw, f"{path}[{i}]", depth) for i, raw in enumerate(spaces)])


def _leaf(body: Any, path: str) -> Space:
    """Return a space without children."""
    match body:
        case _Box():
            dtype = _dtype(body.dtype, path)
            size = _size(body.shape, dtype, path)
            low = _numbers(body.low, body.shape, (dtype, size), f"{path}.low")
            high = _numbers(body.high, body.shape, (dtype, size), f"{path}.high")
            return Box(body.shape, dtype, low, high)
        case _Discrete():
            return Discrete(
                _number(body.n, path), _number(body.start, path), _dtype(body.dtype, path)
            )
        case _MultiBinary():
            _size(body.shape, np.dtype(np.int8), path)
            return MultiBinary(body.shape)
        case _MultiDiscrete():
            dtype = _dtype(body.dtype, path)
            size = _size(body.shape, dtype, path)
            nvec = _numbers(body.nvec, body.shape, (dtype, size), f"{path}.nvec")
            start = _numbers(body.start, body.shape, (dtype, size), f"{path}.start")
            return MultiDiscrete(nvec, start, dtype)
        case _:
            charset = None if body.charset is None else _from_bytes(body.charset, path)
            return Text(_number(body.min_length, path), _number(body.max_length, path), charset)


def _number(value: Number, path: str) -> int:
    if isinstance(value, bytes) and len(value) > _MOST_NUMBER_BYTES:
        raise WireError(f"{path}: a number of {len(value)} bytes; at most {_MOST_NUMBER_BYTES}")
    return from_number(value)


def _dtype(name: str, path: str) -> np.dtype[Any]:
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise WireError(f"{path}: unknown element type {name[:80]!r}")
    return dtype


def _size(shape: tuple[int, ...], dtype: np.dtype[Any], path: str) -> int:
    """Return the bytes of a value, if they are within the limits."""
    if len(shape) > SIZE_LIMITS.dims or any(size < 0 for size in shape):
        raise WireError(f"{path}: expected up to {SIZE_LIMITS.dims} sizes of 0 or more")
    size = math.prod(shape) * dtype.itemsize
    if size > SIZE_LIMITS.message_bytes:
        raise WireError(
            f"{path}: a value has {size} bytes; at most {SIZE_LIMITS.message_bytes} are allowed"
        )
    return size


def _numbers(
    data: bytes, shape: tuple[int, ...], kind: tuple[np.dtype[Any], int], path: str
) -> _Array:
    """Return bounds: one number for all, or as many as the shape has."""
    dtype, size = kind
    if dtype.kind == "b" and not set(data) <= {0, 1}:
        raise WireError(f"{path}: expected bool bytes 0 or 1")
    if len(data) == size:
        return np.ndarray(shape, dtype, data)
    if len(data) == dtype.itemsize and size:
        return np.broadcast_to(np.ndarray((), dtype, data), shape)
    raise WireError(f"{path}: expected {size} or {dtype.itemsize} bytes, got {len(data)}")
