"""Steps again: messages that are like the one before, but for a few bytes (layer 4).

Nearly all messages of a run are steps, and a step differs from the one before in its leaves, its
rewards, its request id and a time. Once the protobuf library has written or read one, a `Template`
of it writes and reads those like it by putting the parts together, or by comparing what must be the
same and cutting out the rest. Whatever looks different in a single byte goes the long way, so that
nothing is understood here that the library would not understand the same.

Only for spaces whose leaves all have a fixed size, and for small messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollmesh.wire.proto_values import Odd, find_field, leaf_spans, tag

_STEP = tag(2)[0]
"""What stands before the step, in requests and responses alike."""
_ID = tag(5)[0]
"""What stands before the request id, in requests and responses alike."""
_TOTAL = bytes([6 << 3])
"""What stands before the time that an endpoint took."""
_MOST_BYTES = 8192
_MORE = 128
_LONGEST_TIME = 10


class Template:
    """A message with holes: some of a fixed size, then a request id, then perhaps a time.

    Args:
        pieces: What stands before the first hole, between holes, and after the last one.
        sizes: Bytes of each hole.
    """

    __slots__ = ("_holes", "_id_at", "_pieces", "_sizes", "_spans")

    def __init__(self, pieces: Sequence[bytes], sizes: Sequence[int]) -> None:
        self._pieces = tuple(pieces)
        self._sizes = tuple(sizes)
        at = 0
        spans: list[tuple[int, int, bytes]] = []
        holes: list[tuple[int, int]] = []
        for piece, size in zip(pieces, (*sizes, 0), strict=True):
            spans.append((at, at + len(piece), piece))
            at += len(piece)
            holes.append((at, at + size))
            at += size
        self._spans = tuple(spans)
        self._holes = tuple(holes[:-1])
        self._id_at = at

    @classmethod
    def learn(cls, data: bytes, value_tag: int, numbers_tag: int | None = None) -> Template | None:
        """Return the template of a step's request or response, or None where it has none.

        Args:
            data: The message.
            value_tag: What stands before its action or observation: each leaf is a hole.
            numbers_tag: What stands before its rewards, which are a hole too.
        """
        if len(data) > _MOST_BYTES:
            return None
        try:
            _, start, stop = find_field(data, 0, len(data), (_STEP,))
            _, value_start, value_stop = find_field(data, start, stop, (value_tag,))
            holes = leaf_spans(data, value_start, value_stop)
            if numbers_tag is not None:
                _, *numbers = find_field(data, start, stop, (numbers_tag,))
                holes.append((numbers[0], numbers[1]))
            id_at, _, id_stop = find_field(data, 0, len(data), (_ID,))
        except (Odd, IndexError):
            return None
        is_plain = stop <= id_at and all(start < stop for start, stop in holes)
        if not is_plain or holes != sorted(holes):
            return None
        if id_stop != len(data) and _read_time(data, id_stop) is None:
            return None
        pieces: list[bytes] = []
        at = 0
        for start, stop in holes:
            pieces.append(data[at:start])
            at = stop
        pieces.append(data[at:id_at])
        return cls(pieces, [stop - start for start, stop in holes])

    def match(self, data: bytes) -> tuple[list[bytes], str, int | None] | None:
        """Return what is in the holes, the request id and the time; None for another message."""
        for start, stop, piece in self._spans:
            if data[start:stop] != piece:
                return None
        at = self._id_at
        size = len(data)
        if size < at + 2 or data[at] != _ID:
            return None
        stop = at + 2 + data[at + 1]
        if stop > size or data[at + 1] >= _MORE:
            return None
        total_ns = None
        if stop != size:
            total_ns = _read_time(data, stop)
            if total_ns is None:
                return None
        try:
            name = data[at + 2 : stop].decode()
        except UnicodeDecodeError:
            return None
        return [data[start:end] for start, end in self._holes], name, total_ns

    def fill(
        self, contents: Sequence[bytes | memoryview], request_id: str, total_ns: int | None = None
    ) -> bytes | None:
        """Return the message with these contents, or None where they do not fit."""
        name = request_id.encode()
        if not 0 < len(name) < _MORE:
            return None
        parts: list[bytes | memoryview] = []
        for piece, content, size in zip(self._pieces, contents, self._sizes, strict=False):
            if len(content) != size:
                return None
            parts += (piece, content)
        if len(parts) != 2 * len(self._sizes):
            return None
        parts += (self._pieces[-1], bytes((_ID, len(name))), name)
        if total_ns is not None:
            parts.append(_write_time(total_ns))
        return b"".join(parts)


def _read_time(data: bytes, at: int) -> int | None:
    """Return the number in the field that ends a message, or None where it is another one."""
    if data[at : at + 1] != _TOTAL:
        return None
    number = shift = 0
    last = len(data) - 1
    for place in range(at + 1, last + 1):
        byte = data[place]
        number |= (byte & 127) << shift
        if byte < _MORE:
            return number if place == last and number < 2**64 else None
        shift += 7
    return None


def _write_time(number: int) -> bytes:
    out = bytearray(_TOTAL)
    while number >= _MORE:
        out.append(number & 127 | _MORE)
        number >>= 7
    out.append(number)
    return bytes(out)
