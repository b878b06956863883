"""Infos and options as bytes: lossless for what `spaces.metadata.carry` lets through (layer 4).

A tagged binary form: one byte says what a value is, then lengths and content, little-endian. Python
and NumPy values come back equal and with their types: tuples, sets, bytes, integers of any size,
dates, keys of any plain kind, arrays and NumPy scalars with dtype and shape.

Known losses. An enum or named tuple comes back as such only where its class is loaded on the other
side already (nothing is imported on a peer's word), else as its value or as a tuple. A `tzinfo`
comes back as a fixed offset of the same name. Arrays come back C-contiguous.

What is over a limit of `SIZE_LIMITS` is replaced by its `repr` when encoded, and reported: an odd
info never ends an episode. When decoded it is refused, before anything is allocated for it.

`metadata_reading.py` is the other direction. This module knows no messages.
"""

from __future__ import annotations

import base64
import datetime as dt
import enum
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from rollmesh.errors import WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.spaces.metadata import bounded_repr
from rollmesh.wire.metadata_reading import FLAT_KINDS, decode_map

__all__ = ["Report", "decode_map", "encode_map", "map_from_text", "map_to_text"]

Report: TypeAlias = Callable[[str, str], None]
"""Takes the path (`info['camera']['pose']`) and a sentence about it."""

_Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_Container: TypeAlias = (
    "Mapping[Any, Any] | list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any]"
)
_Value: TypeAlias = "_Container | enum.Enum | _Array | np.generic[Any] | str | complex | None"
"""What has a form of its own; any other object is told from these, and refused."""
_Dtype: TypeAlias = Any
"""A `numpy.dtype`; NumPy's stubs lose the types of its texts below Python 3.11."""

_U32 = struct.Struct("<I").pack
_INT = struct.Struct("<cq").pack
_FLOAT = struct.Struct("<cd").pack
_SIZED = struct.Struct("<cI").pack
_DATE_TIME = struct.Struct("<HBBBBBIB").pack
_TIME = struct.Struct("<BBBIB").pack
_DELTA = struct.Struct("<iII").pack
_MOST_KEYS = 4096
_SURROGATES = "surrogatepass"


def encode_map(
    values: Mapping[Any, Any], report: Report | None = None, root: str = "info"
) -> bytes:
    """Return a map as bytes; an empty one as none.

    Args:
        values: What `carry` returned, or any map of such values; left alone.
        report: Called for each value that had to be replaced, with its path and why.
        root: First word of the paths.

    Raises:
        WireError: The whole is larger than a message may be.
    """
    if not values:
        return b""
    writer = _Writer(report)
    if len(values) > SIZE_LIMITS.keys:
        values = dict(list(values.items())[: SIZE_LIMITS.keys])
        writer.tell(root, f"more than {SIZE_LIMITS.keys} keys; the rest is left out")
    writer.mapping(values, 0, root)
    encoded = b"".join(writer.out)
    if len(encoded) > SIZE_LIMITS.message_bytes:
        raise WireError(
            f"{root}: {len(encoded)} bytes are more than SIZE_LIMITS.message_bytes allows "
            f"({SIZE_LIMITS.message_bytes}); send less in an info"
        )
    return encoded


def map_to_text(values: Mapping[Any, Any]) -> str:
    """Return a map as ASCII text, for what is told as JSON."""
    return base64.b64encode(encode_map(values)).decode()


def map_from_text(text: str) -> dict[Any, Any]:
    """Return the map that a text of `map_to_text` stands for.

    Raises:
        WireError: It stands for no map.
    """
    return decode_map(base64.b64decode(text))


class _TooMuch(Exception):  # noqa: N818 - never leaves this module
    """A value that is over a limit, or of no known type; the text says why."""


class _Writer:
    """Writes values, one after the other, to `out`."""

    def __init__(self, report: Report | None) -> None:
        self.out: list[bytes] = []
        self._report = report

    def tell(self, path: str, why: str) -> None:
        """Report that something is not sent as it is."""
        if self._report is not None:
            self._report(path, why)

    def mapping(self, values: Mapping[Any, object], depth: int, path: str) -> None:
        """Write a map; keys that cannot be written are left out with their values."""
        if len(values) > SIZE_LIMITS.keys:
            raise _TooMuch(f"more than {SIZE_LIMITS.keys} keys")
        out = self.out
        start = len(out)
        out.append(b"")
        count = 0
        for key, value in values.items():
            known = _KEYS.get(key) if type(key) is str else None
            if known is not None:
                out.append(known)
            elif not self._key(key, depth, path):
                continue
            count += 1
            write = _WRITE.get(type(value))
            if write is not None:
                mark = len(out)
                try:
                    write(out, value)
                    continue
                except _TooMuch:
                    del out[mark:]
            self.value(value, depth + 1, path, key)
        out[start] = _SIZED(b"m", count)

    def value(self, value: Any, depth: int, path: str, key: Any) -> None:
        """Write any value, or its `repr` where it cannot be written."""
        start = len(self.out)
        try:
            self._any(value, depth, path, key)
        except _TooMuch as why:
            del self.out[start:]
            text = bounded_repr(value)
            _text(self.out, text)
            self.tell(f"{path}[{bounded_repr(key)}]", f"{why}; replaced by its repr {text}")

    def _key(self, key: Any, depth: int, path: str) -> bool:
        """Write a key; False where it cannot be written."""
        start = len(self.out)
        try:
            if type(key) is str:
                self.out.append(_key_bytes(key))
            else:
                self._any(key, depth + 1, path, key)
        except _TooMuch as why:
            del self.out[start:]
            self.tell(path, f"key {bounded_repr(key)}: {why}; left out with its value")
            return False
        return True

    def _any(self, value: _Value, depth: int, path: str, key: Any) -> None:
        kind = type(value)
        write = _WRITE.get(kind)
        if write is not None:
            write(self.out, value)
        elif isinstance(value, enum.Enum):
            self._enum(value, depth, path, key)
        elif isinstance(value, (Mapping, list, tuple, set, frozenset)):
            if depth >= SIZE_LIMITS.nesting:
                raise _TooMuch(f"nested deeper than {SIZE_LIMITS.nesting} levels")
            self._container(value, depth, f"{path}[{bounded_repr(key)}]")
        elif isinstance(value, np.ndarray):
            self._array(value, depth, f"{path}[{bounded_repr(key)}]")
        elif isinstance(value, np.generic):
            self._scalar(value)
        else:
            raise _TooMuch(f"{kind.__module__}.{kind.__qualname__} has no form on the wire")

    def _container(self, value: _Container, depth: int, path: str) -> None:
        if isinstance(value, Mapping):
            self.mapping(value, depth, path)
            return
        if isinstance(value, (set, frozenset)):
            if len(value) > SIZE_LIMITS.keys:
                raise _TooMuch(f"a set of more than {SIZE_LIMITS.keys}")
            self.out.append(_SIZED(b"e" if isinstance(value, set) else b"f", len(value)))
            for item in value:
                self._any(item, depth + 1, path, item)
            return
        names = getattr(value, "_fields", None)
        if isinstance(value, tuple) and type(value) is not tuple and names is not None:
            self.out.append(b"p")
            _names(self.out, type(value), names)
        self.out.append(_SIZED(b"l" if isinstance(value, list) else b"t", len(value)))
        for index, item in enumerate(value):
            self.value(item, depth + 1, path, index)

    def _enum(self, value: enum.Enum, depth: int, path: str, key: Any) -> None:
        self.out.append(b"x")
        _names(self.out, type(value), [value.name or ""])
        self._any(value.value, depth + 1, path, key)

    def _scalar(self, value: Any) -> None:
        """Write a `numpy.generic`."""
        self.out.append(b"g")
        _dtype(self.out, value.dtype)
        self.out.append(value.tobytes())

    def _array(self, array: _Array, depth: int, path: str) -> None:
        if array.ndim > SIZE_LIMITS.dims:
            raise _TooMuch(f"more than {SIZE_LIMITS.dims} dimensions")
        if isinstance(array, np.ma.MaskedArray):
            self.out.append(b"M")
            self._array(np.ma.getmaskarray(array), depth, path)
            self._array(np.ma.getdata(array), depth, path)
            return
        array = np.asarray(array)
        if array.dtype.kind == "O":
            if depth >= SIZE_LIMITS.nesting:
                raise _TooMuch(f"nested deeper than {SIZE_LIMITS.nesting} levels")
            self.out.append(b"O")
            _shape(self.out, array.shape)
            for index, item in enumerate(array.ravel()):
                self.value(item, depth + 1, path, index)
            return
        self.out.append(b"n")
        _dtype(self.out, array.dtype)
        _shape(self.out, array.shape)
        self.out.append(array.tobytes())


def _none(out: list[bytes], value: None) -> None:
    del value
    out.append(b"N")


def _bool(out: list[bytes], value: bool) -> None:  # noqa: FBT001 - a value like any other
    out.append(b"T" if value else b"F")


def _int(out: list[bytes], value: int) -> None:
    if -(2**63) <= value < 2**63:
        out.append(_INT(b"i", value))
        return
    size = value.bit_length() // 8 + 1
    if size > SIZE_LIMITS.text_bytes:
        raise _TooMuch(f"an integer of {size} bytes")
    out.append(_SIZED(b"I", size) + value.to_bytes(size, "little", signed=True))


def _float(out: list[bytes], value: float) -> None:
    out.append(_FLOAT(b"d", value))


def _complex(out: list[bytes], value: complex) -> None:
    out.append(b"c" + struct.pack("<dd", value.real, value.imag))


def _text(out: list[bytes], value: str) -> None:
    body = value.encode("utf-8", _SURROGATES)
    if len(body) > SIZE_LIMITS.text_bytes:
        raise _TooMuch(f"a text of {len(body)} bytes")
    out.append(_SIZED(b"s", len(body)) + body)


def _bytes(out: list[bytes], value: bytes) -> None:
    out.append(_SIZED(b"b", len(value)))
    out.append(value)


def _ellipsis(out: list[bytes], value: object) -> None:
    del value
    out.append(b"E")


def _date(out: list[bytes], value: dt.date) -> None:
    out.append(_SIZED(b"a", value.toordinal()))


def _delta(out: list[bytes], value: dt.timedelta) -> None:
    out.append(b"h" + _DELTA(value.days, value.seconds, value.microseconds))


def _zone(out: list[bytes], value: dt.tzinfo) -> None:
    _offset(out, value.utcoffset(None), value.tzname(None))


def _offset(out: list[bytes], offset: dt.timedelta | None, name: str | None) -> None:
    if offset is None:
        out.append(b"N")
        return
    out.append(b"z")
    _delta(out, offset)
    _text(out, name or "")


def _date_time(out: list[bytes], value: dt.datetime) -> None:
    v = value
    out.append(
        b"D" + _DATE_TIME(v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.fold)
    )
    _offset(out, value.utcoffset(), value.tzname())


def _time(out: list[bytes], value: dt.time) -> None:
    out.append(b"o" + _TIME(value.hour, value.minute, value.second, value.microsecond, value.fold))
    _offset(out, value.utcoffset(), value.tzname())


def _dtype(out: list[bytes], dtype: _Dtype) -> None:
    """Write a dtype: `1` and its name, or `2`, size and fields, or `3`, a base and a shape."""
    if dtype.hasobject or dtype.kind not in FLAT_KINDS:
        raise _TooMuch(f"dtype {dtype} has no form on the wire")
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        out.append(b"3")
        _dtype(out, base)
        _shape(out, shape)
    elif dtype.fields is not None and dtype.names is not None:
        out.append(b"2" + _U32(dtype.itemsize) + _U32(len(dtype.names)))
        for name in dtype.names:
            field = dtype.fields[name]
            _text(out, name)
            out.append(_U32(field[1]))
            _dtype(out, field[0])
    else:
        name = dtype.str.encode()
        out.append(b"1" + bytes((len(name),)) + name)


def _shape(out: list[bytes], shape: tuple[int, ...]) -> None:
    if len(shape) > SIZE_LIMITS.dims:
        raise _TooMuch(f"more than {SIZE_LIMITS.dims} dimensions")
    out.append(bytes((len(shape),)) + struct.pack(f"<{len(shape)}Q", *shape))


def _names(out: list[bytes], kind: type, names: Any) -> None:
    """Write where a class lives and some names in it."""
    _text(out, kind.__module__)
    _text(out, kind.__qualname__)
    out.append(_U32(len(names)))
    for name in names:
        _text(out, str(name))


_WRITE: dict[type[Any], Callable[[list[bytes], Any], None]] = {
    type(None): _none,
    bool: _bool,
    int: _int,
    float: _float,
    complex: _complex,
    str: _text,
    bytes: _bytes,
    type(Ellipsis): _ellipsis,
    dt.datetime: _date_time,
    dt.date: _date,
    dt.time: _time,
    dt.timedelta: _delta,
    dt.timezone: _zone,
}
"""How values of exactly these types are written; they hold nothing else."""


def _numpy_scalar(dtype: _Dtype) -> Callable[[list[bytes], Any], None]:
    name = dtype.str.encode()
    head = b"g1" + bytes((len(name),)) + name

    def write(out: list[bytes], value: Any) -> None:
        out.append(head + value.tobytes())

    return write


_WRITE.update({dtype.type: _numpy_scalar(dtype) for dtype in map(np.dtype, "?bhilqBHILQefdgFDG")})

_KEYS: dict[str, bytes] = {}
"""Keys seen before, as they are written; infos repeat theirs."""


def _key_bytes(key: str) -> bytes:
    body = key.encode("utf-8", _SURROGATES)
    if len(body) > SIZE_LIMITS.key_bytes:
        raise _TooMuch(f"longer than {SIZE_LIMITS.key_bytes} bytes")
    encoded = _SIZED(b"s", len(body)) + body
    if len(_KEYS) < _MOST_KEYS:
        _KEYS[key] = encoded
    return encoded
