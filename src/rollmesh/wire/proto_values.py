"""Values: leaves to `SpaceValue` and back, and the assembling of large messages (layer 4).

A leaf is the same bytes in memory and on the wire, so a large message is put together by hand
around the leaves, which are copied once. Protocol buffers have no order of fields: what is built
here reads as if the library had written it, and the parts that are not leaves are written by the
library.

Seen on the released peer (0.1.0). A Text that is no UTF-8 (lone surrogates included) fails the
request. Text lengths, charsets, bounds and NaN are not enforced on observations, only warned of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from rollmesh.errors import InvalidValue, WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.spaces.codec import Codec, Leaves
from rollmesh.wire._gen import rlmesh_spaces_v1_pb2 as pb

Part: TypeAlias = "bytes | memoryview"

_LENGTH_DELIMITED = 2
_LEAF_TAG = bytes([1 << 3 | _LENGTH_DELIMITED])
_MORE = 128
"""Set in a byte of a varint that is not its last."""
_ONE_BYTE = [bytes([number]) for number in range(_MORE)]


def read_leaves(
    value: pb.SpaceValue,
    codec: Codec,
    rows: int,
    what: str,
    cut: Sequence[memoryview] | None = None,
) -> Leaves:
    """Return the leaves of a value.

    Args:
        value: What the peer sent; an absent one has no leaves.
        codec: Codec of its space.
        rows: Number of rows, from outside.
        what: For the error: `observation`, `action`, ….
        cut: The leaves, where they were cut out of the message before it was parsed.

    Raises:
        InvalidValue: Another number of leaves, or a wrong length.
    """
    buffers: list[Any]
    if cut is None:
        buffers = list(value.leaves)
    else:  # a view may start anywhere, and elements of several bytes want to be aligned
        specs = codec.leaf_specs
        buffers = [
            leaf if index < len(specs) and specs[index].dtype.itemsize == 1 else bytes(leaf)
            for index, leaf in enumerate(cut)
        ]
    try:
        return codec.from_buffers(buffers, rows)
    except InvalidValue as error:
        raise InvalidValue(f"{what} {error.path}", error.detail) from None


def write_leaves(leaves: Leaves, codec: Codec, target: pb.SpaceValue) -> None:
    """Write leaves into a message; for values that are small or rare."""
    target.SetInParent()
    target.leaves.extend([bytes(buffer) for buffer in codec.to_buffers(leaves)])


# ------------------------------------------------------------------------------- assembling


def varint(number: int) -> bytes:
    """Return a whole number >= 0 as the wire has it."""
    if number < _MORE:
        return _ONE_BYTE[number]
    out = bytearray()
    while number >= _MORE:
        out.append(number & 127 | _MORE)
        number >>= 7
    out.append(number)
    return bytes(out)


def tag(field: int) -> bytes:
    """Return what stands before a field that has a length."""
    return varint(field << 3 | _LENGTH_DELIMITED)


def value_parts(leaves: Leaves, codec: Codec, field_tag: bytes) -> tuple[list[Part], int]:
    """Return the parts of a field that holds a `SpaceValue`, and their size in bytes."""
    parts: list[Part] = [field_tag, b""]
    size = 0
    for buffer in codec.to_buffers(leaves):
        length = len(buffer)
        head = _LEAF_TAG + varint(length)
        parts.append(head)
        parts.append(buffer)
        size += len(head) + length
    parts[1] = head = varint(size)
    return parts, size + len(head) + len(field_tag)


def message_with(outer: bytes, field_tag: bytes, inner: Iterable[Part], inner_size: int) -> bytes:
    """Return a message: the fields in `outer`, and one field that holds the message `inner`.

    Raises:
        WireError: It is larger than a message may be.
    """
    size = inner_size + len(outer)
    if size > SIZE_LIMITS.message_bytes:
        raise WireError(
            f"a message of {size} bytes is larger than SIZE_LIMITS.message_bytes allows "
            f"({SIZE_LIMITS.message_bytes}); send fewer rows or smaller observations"
        )
    return b"".join((field_tag, varint(inner_size), *inner, outer))


def parse(message: Any, data: bytes, what: str) -> Any:
    """Return a message of this class read from bytes.

    Raises:
        WireError: The bytes are none, or more than a message may have.
    """
    if len(data) > SIZE_LIMITS.message_bytes:
        raise WireError(f"{what} of {len(data)} bytes is larger than a message may be")
    try:
        return message.FromString(data)
    except Exception as error:  # noqa: BLE001 - the library's errors differ from version to version
        raise WireError(f"these {len(data)} bytes are no {what}: {error}") from None


# --------------------------------------------------------------------------------- cutting


class Odd(Exception):  # noqa: N818 - never leaves the mapping
    """Bytes that the library should look at."""


def cut_leaves(
    data: bytes, outer_tags: Sequence[int], inner_tag: int
) -> tuple[bytes, list[memoryview]] | None:
    """Cut the leaves out of a large message, so that they are not copied while it is parsed.

    Args:
        data: A message that holds one message (its tag among `outer_tags`), which holds a
            `SpaceValue` (at `inner_tag`).
        outer_tags: First bytes of fields, numbers below 16.
        inner_tag: Likewise.

    Returns:
        The message without the value, and views of its leaves; None where it is small or looks
        other than expected: then the library parses the whole.
    """
    if len(data) < CUT_ABOVE:
        return None
    try:
        place, start, stop = find_field(data, 0, len(data), outer_tags)
        inner_place, inner_start, inner_stop = find_field(data, start, stop, (inner_tag,))
        view = memoryview(data)
        leaves = [view[begin:end] for begin, end in leaf_spans(data, inner_start, inner_stop)]
    except (Odd, IndexError):
        return None
    shorter = stop - start - (inner_stop - inner_place)
    rest = b"".join(
        (
            data[: place + 1],
            varint(shorter),
            data[start:inner_place],
            data[inner_stop:stop],
            data[stop:],
        )
    )
    return rest, leaves


CUT_ABOVE = 32768
"""Messages of fewer bytes are not worth the cutting."""


def find_field(data: bytes, start: int, stop: int, tags: Sequence[int]) -> tuple[int, int, int]:
    """Return where the one field with such a tag stands, starts and stops.

    Raises:
        Odd: There is none, or another one, or bytes that the library should look at.
        IndexError: The bytes end too soon.
    """
    found: tuple[int, int, int] | None = None
    place = start
    while place < stop:
        first = data[place]
        begin, end = _field(data, place, stop)
        if first in tags:
            if found is not None:
                raise Odd
            found = place, begin, end
        place = end
    if found is None:
        raise Odd
    return found


def leaf_spans(data: bytes, start: int, stop: int) -> list[tuple[int, int]]:
    """Return where each leaf of a `SpaceValue` starts and stops.

    Raises:
        Odd: There is something else, or bytes that the library should look at.
        IndexError: The bytes end too soon.
    """
    spans: list[tuple[int, int]] = []
    place = start
    while place < stop:
        if data[place] != _LEAF_TAG[0]:
            raise Odd
        begin, end = _field(data, place, stop)
        spans.append((begin, end))
        place = end
    return spans


def _field(data: bytes, place: int, stop: int) -> tuple[int, int]:
    """Return where the content of a field starts and stops."""
    kind = data[place] & 7
    while data[place] & _MORE:  # the rest of a tag of several bytes
        place += 1
    place += 1
    if kind == _LENGTH_DELIMITED:
        length = shift = 0
        while True:
            byte = data[place]
            place += 1
            length |= (byte & 127) << shift
            if byte < _MORE:
                break
            shift += 7
            if shift > _LONGEST_SHIFT:
                raise Odd
        end = place + length
    elif kind == 0:
        while data[place] & _MORE:
            place += 1
        end = place + 1
    elif kind in _FIXED:
        end = place + _FIXED[kind]
    else:
        raise Odd
    if end > stop:
        raise Odd
    return place, end


_FIXED = {1: 8, 5: 4}
"""Bytes of the kinds of fields that have no length."""
_LONGEST_SHIFT = 28


def check_lanes(indices: Sequence[int], num_envs: int, what: str) -> tuple[int, ...]:
    """Return lane numbers, if they are in range and no lane is named twice.

    Raises:
        InvalidValue: They are not.
    """
    lanes = tuple(indices)
    if len(lanes) > num_envs or len(set(lanes)) != len(lanes) or any(i >= num_envs for i in lanes):
        raise InvalidValue(
            f"{what}.env_indices",
            f"expected different lanes of 0 to {num_envs - 1}, got {list(lanes[:20])}",
        )
    return lanes
