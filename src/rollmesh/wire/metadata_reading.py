"""The reading half of `metadata.py`: bytes of a peer to a map (layer 4).

Every length is compared with what is there and with `SIZE_LIMITS` before anything is allocated or
looped over; whatever does not hold together is a `WireError`. No class is imported and no code of
a peer's choice is run.
"""

from __future__ import annotations

import datetime as dt
import enum
import math
import re
import struct
import sys
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np

from rollmesh.errors import WireError
from rollmesh.limits import SIZE_LIMITS

FLAT_KINDS = "?biufcmMSUV"
"""Kinds of dtypes whose elements are plain bytes."""

_Array: TypeAlias = Any
"""A `numpy.ndarray`; NumPy's stubs lose the types of its copies and views below Python 3.11."""
_new_array: Callable[..., _Array] = np.ndarray
_new_tuple: Callable[[Any, list[Any] | tuple[Any, ...]], Any] = cast(
    "type[tuple[Any, ...]]", tuple
).__new__

_U32 = struct.Struct("<I").unpack_from
_INT = struct.Struct("<q").unpack_from
_FLOAT = struct.Struct("<d").unpack_from
_COMPLEX = struct.Struct("<dd").unpack_from
_DATE_TIME = struct.Struct("<HBBBBBIB")
_TIME = struct.Struct("<BBBIB")
_DELTA = struct.Struct("<iII")
_DTYPE_NAME = re.compile(r"[<>|=](?:[?biufcSUV]\d{1,9}|[mM]8(?:\[\d{0,9}[A-Za-z]{1,2}\])?)")
_MOST_NAMES = 4096
_SURROGATES = "surrogatepass"
_LAST_CODE_POINT = 0x10FFFF


def decode_map(encoded: bytes) -> dict[Any, Any]:
    """Return the map that `encode_map` made these bytes of; its values are the caller's own.

    Raises:
        WireError: The bytes are no such map, or are over a limit.
    """
    if not encoded:
        return {}
    reader = _Reader(encoded)
    try:
        if encoded[0] != _MAP:
            raise WireError("metadata: expected a map")
        reader.pos = 1
        values = reader.mapping(0)
    except (ValueError, TypeError, OverflowError, struct.error, IndexError) as error:
        raise WireError(f"metadata: {error}") from None
    if reader.pos != len(encoded):
        raise WireError(f"metadata: {len(encoded) - reader.pos} bytes too many")
    return values


class _Reader:
    """Reads values, one after the other, from `pos` on."""

    __slots__ = ("data", "end", "pos")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 0
        self.end = len(data)

    def mapping(self, depth: int) -> dict[Any, Any]:
        """Read the count and the entries of a map."""
        count = self.count(SIZE_LIMITS.keys, 2)
        data, read_text = self.data, self._key
        result: dict[Any, Any] = {}
        for _ in range(count):
            key = read_text() if data[self.pos] == _TEXT else self.value(depth + 1)
            result[key] = self.value(depth + 1)
        return result

    def value(self, depth: int) -> Any:
        """Read any value."""
        pos = self.pos
        tag = self.data[pos]
        self.pos = pos + 1
        read = _READ.get(tag)
        if read is not None:
            return read(self)
        nested = _NESTED.get(tag)
        if nested is None:
            raise WireError(f"metadata: unknown tag {tag}")
        if depth > SIZE_LIMITS.nesting:
            raise WireError(f"metadata: nested deeper than {SIZE_LIMITS.nesting} levels")
        return nested(self, depth)

    def take(self, size: int) -> bytes:
        """Return the next bytes, all of them."""
        start = self.skip(size)
        return self.data[start : self.pos]

    def skip(self, size: int) -> int:
        """Go on behind the next bytes, which are all there; return where they start."""
        start = self.pos
        stop = start + size
        if stop > self.end:
            raise WireError(f"metadata: {size} bytes announced, {self.end - start} left")
        self.pos = stop
        return start

    def u32(self) -> int:
        """Read a count or size."""
        number = _U32(self.data, self.pos)[0]
        self.pos += 4
        return number

    def count(self, most: int, least_bytes: int) -> int:
        """Read a count of things that take at least so many bytes each."""
        number = self.u32()
        if number > most or number * least_bytes > self.end - self.pos:
            raise WireError(
                f"metadata: {number} entries announced; at most {most} are allowed, and "
                f"{self.end - self.pos} bytes are left"
            )
        return number

    def text(self) -> str:
        """Read the size and body of a text."""
        size = self.u32()
        if size > SIZE_LIMITS.text_bytes:
            raise WireError(f"metadata: a text of {size} bytes is over the limit")
        return self.take(size).decode("utf-8", _SURROGATES)

    def tagged_text(self) -> str:
        """Read a text with its tag."""
        if self.take(1)[0] != _TEXT:
            raise WireError("metadata: expected a text")
        return self.text()

    def _key(self) -> str:
        start = self.pos
        size = _U32(self.data, start + 1)[0]
        if size > SIZE_LIMITS.key_bytes:
            raise WireError(f"metadata: a key of {size} bytes is over the limit")
        self.pos = start + 5
        body = self.take(size)
        key = _KEYS.get(body)
        if key is None:
            key = body.decode("utf-8", _SURROGATES)
            if len(_KEYS) < _MOST_NAMES:
                _KEYS[body] = key
        return key


_KEYS: dict[bytes, str] = {}
"""Keys seen before."""


def _read_int(reader: _Reader) -> int:
    number = _INT(reader.data, reader.pos)[0]
    reader.pos += 8
    return number


def _read_big(reader: _Reader) -> int:
    size = reader.u32()
    if size > SIZE_LIMITS.text_bytes:
        raise WireError(f"metadata: an integer of {size} bytes is over the limit")
    return int.from_bytes(reader.take(size), "little", signed=True)


def _read_float(reader: _Reader) -> float:
    number = _FLOAT(reader.data, reader.pos)[0]
    reader.pos += 8
    return number


def _read_complex(reader: _Reader) -> complex:
    return complex(*_COMPLEX(reader.take(16)))


def _read_bytes(reader: _Reader) -> bytes:
    return reader.take(reader.u32())


def _read_date(reader: _Reader) -> dt.date:
    return dt.date.fromordinal(reader.u32())


def _read_delta(reader: _Reader) -> dt.timedelta:
    days, seconds, micros = _DELTA.unpack(reader.take(_DELTA.size))
    return dt.timedelta(days, seconds, micros)


def _read_zone(reader: _Reader) -> dt.timezone:
    if reader.take(1)[0] != _SPAN:
        raise WireError("metadata: expected an offset")
    offset, name = _read_delta(reader), reader.tagged_text()
    zone = dt.timezone(offset)
    if zone.tzname(None) == name:
        return dt.timezone.utc if zone == dt.timezone.utc else zone
    return dt.timezone(offset, name)


def _read_zone_or_none(reader: _Reader) -> dt.timezone | None:
    tag = reader.take(1)[0]
    if tag == _NONE:
        return None
    if tag != _ZONE:
        raise WireError("metadata: expected a time zone")
    return _read_zone(reader)


def _read_date_time(reader: _Reader) -> dt.datetime:
    *fields, fold = _DATE_TIME.unpack(reader.take(_DATE_TIME.size))
    return dt.datetime(*fields, tzinfo=_read_zone_or_none(reader), fold=fold)


def _read_time(reader: _Reader) -> dt.time:
    *fields, fold = _TIME.unpack(reader.take(_TIME.size))
    return dt.time(*fields, tzinfo=_read_zone_or_none(reader), fold=fold)


def _read_scalar(reader: _Reader) -> Any:
    data, pos = reader.data, reader.pos
    if data[pos : pos + 5] == b"1\3<f8":  # by far the most frequent one
        reader.pos = pos + 13
        return np.float64(_FLOAT(data, pos + 5)[0])
    dtype = _read_dtype(reader, 0)
    body = reader.take(dtype.itemsize)
    value = _new_array((), dtype, body)
    if dtype.kind in "bUV":
        _check_content(value)
        return value.copy()[()]  # a structured scalar would be a view
    return value[()]


def _read_array(reader: _Reader) -> Any:
    dtype = _read_dtype(reader, 0)
    shape = _read_shape(reader)
    size = math.prod(shape)
    if not dtype.itemsize and size > SIZE_LIMITS.rows:
        raise WireError(f"metadata: {size} elements of no size are over the limit")
    start = reader.skip(size * dtype.itemsize)
    array = _new_array(shape, dtype, reader.data, start).copy()
    if dtype.kind in "bUV":
        _check_content(array)
    return array


def _read_dtype(reader: _Reader, depth: int) -> np.dtype[Any]:
    form = reader.take(1)
    if form == b"1":
        return _named_dtype(reader.take(reader.take(1)[0]))
    if depth > SIZE_LIMITS.nesting or form not in (b"2", b"3"):
        raise WireError("metadata: no dtype")
    if form == b"3":
        base = _read_dtype(reader, depth + 1)
        shape = _read_shape(reader)
        if math.prod(shape) * base.itemsize > SIZE_LIMITS.message_bytes:
            raise WireError("metadata: a dtype over the limit")
        return np.dtype((base, shape))
    itemsize = reader.u32()
    if itemsize > SIZE_LIMITS.message_bytes:
        raise WireError("metadata: a dtype over the limit")
    names: list[str] = []
    offsets: list[int] = []
    formats: list[np.dtype[Any]] = []
    for _ in range(reader.count(SIZE_LIMITS.keys, 9)):
        names.append(reader.tagged_text())
        offsets.append(reader.u32())
        formats.append(_read_dtype(reader, depth + 1))
        if offsets[-1] + formats[-1].itemsize > itemsize:
            # NumPy's own check overflows
            raise WireError(f"metadata: field {names[-1][:40]!r} ends beyond its dtype")
    fields: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize}
    return np.dtype(fields)


_DTYPES: dict[bytes, np.dtype[Any]] = {}
"""Dtypes seen before, by name."""


def _named_dtype(name: bytes) -> np.dtype[Any]:
    dtype = _DTYPES.get(name)
    if dtype is None:
        text = name.decode("ascii")
        if _DTYPE_NAME.fullmatch(text) is None:
            raise WireError(f"metadata: {text[:40]!r} names no dtype")
        dtype = np.dtype(text)
        if dtype.itemsize > SIZE_LIMITS.message_bytes:
            raise WireError("metadata: a dtype over the limit")
        if len(_DTYPES) < _MOST_NAMES:
            _DTYPES[name] = dtype
    return dtype


def _read_shape(reader: _Reader) -> tuple[int, ...]:
    dims = reader.take(1)[0]
    if dims > SIZE_LIMITS.dims:
        raise WireError(f"metadata: {dims} dimensions are over the limit")
    shape = struct.unpack(f"<{dims}Q", reader.take(8 * dims))
    if max(shape, default=0) > SIZE_LIMITS.message_bytes:
        raise WireError(f"metadata: a dimension of {max(shape)} is over the limit")
    return shape


def _check_content(array: _Array) -> None:
    """Refuse elements that NumPy itself could not have made."""
    dtype = array.dtype
    if dtype.names is not None:
        for name in dtype.names:
            _check_content(array[name])
    elif array.size and dtype.kind == "b":
        if int(array.view(np.uint8).max()) > 1:
            raise WireError("metadata: expected bool bytes 0 or 1")
    elif array.size and dtype.kind == "U" and dtype.itemsize:
        words = np.frombuffer(array.tobytes(), np.dtype(f"{dtype.byteorder}u4"))
        if int(words.max()) > _LAST_CODE_POINT:
            raise WireError("metadata: no Unicode text")


def _read_list(reader: _Reader, depth: int) -> list[Any]:
    return [reader.value(depth + 1) for _ in range(reader.count(SIZE_LIMITS.message_bytes, 1))]


def _read_tuple(reader: _Reader, depth: int) -> tuple[Any, ...]:
    return tuple(_read_list(reader, depth))


def _read_set(reader: _Reader, depth: int) -> set[Any]:
    return {reader.value(depth + 1) for _ in range(reader.count(SIZE_LIMITS.keys, 1))}


def _read_frozenset(reader: _Reader, depth: int) -> frozenset[Any]:
    return frozenset(_read_set(reader, depth))


def _read_object_array(reader: _Reader, depth: int) -> Any:
    shape = _read_shape(reader)
    size = math.prod(shape)
    if size > reader.end - reader.pos:
        raise WireError(f"metadata: an array of {size} announced, too few bytes left")
    array = np.empty(shape, object)
    flat = array.ravel()
    for index in range(size):
        flat[index] = reader.value(depth + 1)
    return array


def _read_masked(reader: _Reader) -> Any:
    arrays: list[_Array] = []
    for _ in range(2):
        if reader.take(1)[0] != _ARRAY:
            raise WireError("metadata: expected an array")
        arrays.append(_read_array(reader))
    mask, data = arrays
    return np.ma.MaskedArray(data, mask=mask)


def _read_class(reader: _Reader) -> tuple[Any, list[str]]:
    """Return a class that is loaded already, or None, and the names sent with it."""
    module, qualname = reader.tagged_text(), reader.tagged_text()
    names = [reader.tagged_text() for _ in range(reader.count(SIZE_LIMITS.keys, 5))]
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        # vars() runs no code of the module, which getattr might
        space = getattr(found, "__dict__", None)
        found = None if space is None else space.get(part)
    return (found if isinstance(found, type) else None), names


def _read_enum(reader: _Reader, depth: int) -> Any:
    kind, names = _read_class(reader)
    value = reader.value(depth + 1)
    if isinstance(kind, enum.EnumMeta) and names:
        member: Any = kind.__members__.get(names[0])
        if member is None and issubclass(kind, enum.Flag) and isinstance(value, int):
            member = _flag(kind, value)
        return value if member is None else member
    return value


def _flag(kind: type[enum.Flag], value: int) -> enum.Flag | None:
    """Return a combination of flags, if it is one of known flags only."""
    known = 0
    for member in kind.__members__.values():
        known |= member.value
    return kind(value) if value >= 0 and value & ~known == 0 else None


def _read_named_tuple(reader: _Reader, depth: int) -> Any:
    kind, names = _read_class(reader)
    if reader.take(1)[0] != _TUPLE:
        raise WireError("metadata: expected a tuple")
    items = _read_tuple(reader, depth)
    if (
        kind is not None
        and issubclass(kind, tuple)
        and kind.__dict__.get("_fields") == tuple(names)
        and len(names) == len(items)
    ):
        return _new_tuple(kind, items)
    return items


_MAP, _TEXT, _NONE, _ZONE, _SPAN, _ARRAY, _TUPLE = b"msNzhnt"

_FLAT: dict[str, Callable[[_Reader], Any]] = {
    "N": lambda _: None,
    "T": lambda _: True,
    "F": lambda _: False,
    "E": lambda _: Ellipsis,
    "i": _read_int,
    "I": _read_big,
    "d": _read_float,
    "c": _read_complex,
    "s": _Reader.text,
    "b": _read_bytes,
    "a": _read_date,
    "h": _read_delta,
    "z": _read_zone,
    "D": _read_date_time,
    "o": _read_time,
    "g": _read_scalar,
    "n": _read_array,
    "M": _read_masked,
}
_READ = {ord(tag): read for tag, read in _FLAT.items()}
"""Values that hold no others."""

_NESTED: dict[int, Callable[[_Reader, int], Any]] = {
    ord(tag): read
    for tag, read in {
        "m": _Reader.mapping,
        "l": _read_list,
        "t": _read_tuple,
        "e": _read_set,
        "f": _read_frozenset,
        "O": _read_object_array,
        "x": _read_enum,
        "p": _read_named_tuple,
    }.items()
}
