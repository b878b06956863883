"""Frames: one message as bytes (layer 4). Pure; no sockets, no sessions.

    header   48 bytes, `HEADER`, little-endian
    payload  rewards of a step reply (one float64 a row), then, where a leaf is ragged, the length
             of each ragged leaf (u64), then the leaves in canonical order, each at a multiple of 16
    section  a msgpack tuple of what the header and the leaves cannot carry; often nothing

| header field | type | meaning |
|---|---|---|
| magic, version | u8, u8 | `MAGIC`, `VERSION` |
| kind | u8 | `Kind` |
| flags | u8 | `REPLY`, `SHARED`, `ONE_LANE`, `TIMED` |
| rows | u32 | rows of the main group of leaves |
| lane | u32 | the lane that a request is for (`ONE_LANE`), else 0 |
| leaves | u16 | number of leaves over all groups |
| slot | u16 | slot of the payload (`SHARED`), else 0 |
| payload bytes | u64 | |
| section bytes | u32 | |
| page | u32 | where the slot starts in the shared file, in 4 KiB pages (`SHARED`), else 0 |
| request id | u64 | |
| time | u64 | request: limit in ms, 0 for none; reply: time at the endpoint in ns (`TIMED`) |

All but the last two, the first `PREFIX_BYTES`, are the same for one step after another, which both
ends make use of.

Why 16: arrays lie at multiples of 16, too, and where source and target of a copy differ by 1 to 15
bytes within their pages, some processors (AMD's of 2021 and later) take fifteen times as long.

`SHARED` payloads are not in the stream: they lie in shared memory, laid out in the same way.

A `Layout` knows the sizes of a batch of one space beforehand. What a peer claims is compared with
it, and with the limits, before anything is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy import ndarray

from rollmesh.errors import InvalidValue, WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.spaces.codec import Codec, Leaves
from rollmesh.wire.messages import Kind

HEADER = struct.Struct("<BBBBIIHHQIIQQ")
HEADER_BYTES = HEADER.size
TAIL = struct.Struct("<QQ")
PREFIX_BYTES = HEADER_BYTES - TAIL.size
MAGIC = 0xA7
VERSION = 1

REPLY = 1
SHARED = 2
ONE_LANE = 4
TIMED = 8
_ALL_FLAGS = REPLY | SHARED | ONE_LANE | TIMED

PAGE_BYTES = 4096
MOST_LEAVES = 2**16 - 1
MOST_SECTION_BYTES = 2**32 - 1
_LENGTH = struct.Struct("<Q")

Buffer: TypeAlias = Any
"""`bytes`, `bytearray`, a `memoryview` or an array of bytes."""

_KINDS: tuple[Kind | None, ...] = tuple(
    Kind(number) if number in Kind.__members__.values() else None for number in range(256)
)
_Array: TypeAlias = Any
"""A `numpy.ndarray`; NumPy's stubs lose the types of its views below Python 3.11."""
_MOST_KNOWN = 64
_MOST_KNOWN_BYTES = 4096
"""Ragged leaves that were found right are remembered: instructions come again and again."""
_GRAIN = 16
_PADS = tuple(bytes(size) for size in range(_GRAIN))
_unpack_header = HEADER.unpack_from


class Frame(msgspec.Struct, gc=False):
    """A message ready to be sent: `parts` are the buffers of its payload, not joined.

    Attributes:
        kind: `Kind` as a number.
        flags: Of the header, without `SHARED`, which the transport sets.
        request_id: As in the message.
        rows: Of the header.
        lane: Of the header.
        leaves: Number of leaves.
        time: Of the header.
        parts: Buffers of the payload; they are read when the frame is sent.
        payload_bytes: Their total.
        section: The msgpack section.
    """

    kind: int
    flags: int
    request_id: int
    rows: int = 0
    lane: int = 0
    leaves: int = 0
    time: int = 0
    parts: list[Any] = []
    payload_bytes: int = 0
    section: bytes = b""

    def header(self, slot: int = 0, page: int = 0, *, is_shared: bool = False) -> bytes:
        """Return the header; with `is_shared` the payload lies in that slot.

        Raises:
            WireError: A number does not fit its field.
        """
        try:
            return HEADER.pack(
                MAGIC,
                VERSION,
                self.kind,
                self.flags | SHARED if is_shared else self.flags,
                self.rows,
                self.lane,
                self.leaves,
                slot,
                self.payload_bytes,
                len(self.section),
                page,
                self.request_id,
                self.time,
            )
        except struct.error as error:
            raise WireError(f"message of kind {self.kind} does not fit a header: {error}") from None


class Header(msgspec.Struct, gc=False):
    """A header as received, within the limits; see the module for its fields."""

    kind: Kind
    flags: int
    rows: int
    lane: int
    leaves: int
    slot: int
    payload_bytes: int
    section_bytes: int
    page: int
    request_id: int
    time: int


def read_header(buffer: Buffer, offset: int = 0, most_bytes: int | None = None) -> Header:
    """Return the header at this place.

    Args:
        buffer: Holds at least `HEADER_BYTES` from there on.
        offset: Where it starts.
        most_bytes: How large a message may be; None is `SIZE_LIMITS.message_bytes`.

    Raises:
        WireError: These bytes are no header, or it announces more than is allowed.
    """
    number: int
    (magic, version, number, flags, rows, lane, leaves, slot, payload, section, page, *tail) = (
        _unpack_header(buffer, offset)
    )
    kind = _KINDS[number]
    if magic != MAGIC or version != VERSION or kind is None or flags & ~_ALL_FLAGS:
        raise _no_header(magic, version, number, flags)
    if most_bytes is None:
        most_bytes = SIZE_LIMITS.message_bytes
    if payload + section > most_bytes:
        raise WireError(
            f"{kind.name} message of {payload + section} bytes; at most {most_bytes} are allowed"
        )
    if rows > SIZE_LIMITS.rows or lane >= SIZE_LIMITS.rows:
        raise WireError(
            f"{kind.name} message of {rows} rows for lane {lane}; at most {SIZE_LIMITS.rows} "
            "are allowed"
        )
    if (slot or page) and not flags & SHARED:
        raise WireError(f"{kind.name} message names a slot but is not shared")
    return Header(kind, flags, rows, lane, leaves, slot, payload, section, page, *tail)


def header_prefix(header: Header) -> bytes:
    """Return the first `PREFIX_BYTES` of a header."""
    h = header
    return HEADER.pack(
        MAGIC, VERSION, h.kind, h.flags, h.rows, h.lane, h.leaves, h.slot, h.payload_bytes,
        h.section_bytes, h.page, 0, 0,
    )[:PREFIX_BYTES]  # fmt: skip


def check_start(first: int) -> None:
    """Refuse the first byte of what is no message, before the rest of a header has come.

    Raises:
        WireError: It is.
    """
    if first != MAGIC:
        raise _no_header(first, VERSION, 0, 0)


def _no_header(magic: int, version: int, kind: int, flags: int) -> WireError:
    if magic != MAGIC:
        return WireError(
            f"no rollmesh message: it starts with {magic:#04x}, expected {MAGIC:#04x}; is the peer "
            "a rollmesh end, and this its native address?"
        )
    if version != VERSION:
        return WireError(f"frame version {version}, expected {VERSION}; update the older side")
    return WireError(f"no header: unknown kind {kind} or flags {flags:#04x}")


# ---------------------------------------------------------------------------------- leaves


class Layout:
    """Where the leaves of a batch of `rows` rows lie.

    Guarantees: safe to use from several threads at once.

    Args:
        codec: Of the space.
        rows: Rows of the batch.

    Attributes:
        nbytes: Bytes of the batch, padding included, or None where a leaf is ragged.
        ragged: Number of ragged leaves.
        count: Number of leaves.
    """

    def __init__(self, codec: Codec, rows: int) -> None:
        specs = codec.leaf_specs
        self._codec = codec
        self._rows = rows
        self.count = len(specs)
        self.ragged = sum(spec.row_bytes is None for spec in specs)
        # shape, dtype, bytes (None where ragged), bytes to the next leaf, whether it is bool
        self._leaves = [
            (
                (rows, *spec.shape),
                spec.dtype,
                None if spec.row_bytes is None else spec.row_bytes * rows,
                0 if spec.row_bytes is None else padded(spec.row_bytes * rows),
                spec.dtype.kind == "b",
            )
            for spec in specs
        ]
        self.least_bytes = sum(leaf[3] for leaf in self._leaves)
        self.nbytes = None if self.ragged else self.least_bytes
        self._known: list[set[bytes]] = [set() for _ in specs]
        self._single: tuple[int, bytes] | None = None
        if self.count == 1 and self.nbytes:
            size = self._leaves[0][2] or 0
            self._single = size, _PADS[self.nbytes - size]

    def write(self, leaves: Leaves, parts: list[Any], lengths: list[int]) -> int:
        """Append the buffers of a batch, and the lengths of its ragged leaves; return its bytes.

        Raises:
            WireError: The leaves are not what the space declares.
        """
        if len(leaves) != self.count:
            raise WireError(f"expected {self.count} leaves, got {len(leaves)}")
        total = self.least_bytes
        for leaf, (_, _, nbytes, step, _) in zip(leaves, self._leaves, strict=True):
            if nbytes is None:
                if not isinstance(leaf, bytes):
                    raise WireError(f"expected bytes for a ragged leaf, got {type(leaf).__name__}")
                size = len(leaf)
                lengths.append(size)
                pad = -size % _GRAIN
                total += size + pad
            elif isinstance(leaf, bytes) or leaf.nbytes != nbytes or not leaf.flags.c_contiguous:
                raise WireError(f"a leaf is not {nbytes} contiguous bytes for {self._rows} rows")
            else:
                size, pad = nbytes, step - nbytes
            if size:
                parts.append(leaf)
                if pad:
                    parts.append(_PADS[pad])
        return total

    def join(self, head: bytes, leaves: Leaves, end: bytes = b"") -> bytes | None:
        """Return a batch without ragged leaves between two parts, in one piece.

        None where it is no such batch.
        """
        try:
            if self._single is not None and len(leaves) == 1:
                nbytes, pad = self._single
                leaf: Any = leaves[0]
                return b"".join((head, leaf, pad, end)) if leaf.nbytes == nbytes else None
            parts: list[Any] = [head]
            self.write(leaves, parts, [])
            parts.append(end)
            return b"".join(parts)
        except (AttributeError, BufferError, WireError):
            return None

    def read(
        self, buffer: Buffer, offset: int, lengths: Iterator[int] | None = None
    ) -> tuple[Leaves, int]:
        """Return the batch that starts at this place, and where it ends.

        The leaves are views of the buffer, read-only if it is. The caller has checked that the
        buffer holds `nbytes` from there on, or what the lengths sum up to.

        Args:
            buffer: Holds the payload.
            offset: Where the batch starts, a multiple of 16 from an aligned start.
            lengths: Bytes of the ragged leaves that come next.

        Raises:
            WireError: The content of a leaf does not hold together.
        """
        if self.ragged:
            return self._read_ragged(buffer, offset, lengths or iter(()))
        return self.fixed(buffer, offset), offset + self.least_bytes

    def fixed(self, buffer: Buffer, offset: int) -> Leaves:
        """Return the batch that starts at this place, as `read`, where no leaf is ragged.

        Raises:
            WireError: The content of a leaf does not hold together.
        """
        leaves: Leaves = []
        for shape, dtype, nbytes, step, is_bool in self._leaves:
            if nbytes:
                leaf = ndarray(shape, dtype, buffer, offset)
                if is_bool:
                    _check_bool(leaf)
            else:
                leaf = ndarray(shape, dtype, b"")
            leaves.append(leaf)
            offset += step
        return leaves

    def whole(self, buffer: Buffer, offset: int, stop: int) -> Leaves:
        """Return the batch, with the lengths of its ragged leaves before it, that fills this place.

        Raises:
            WireError: It ends elsewhere, or does not hold together.
        """
        if not self.ragged:
            return self.fixed(buffer, padded(offset))
        sizes = read_lengths(buffer, offset, self.ragged, stop)
        offset = padded(offset + 8 * self.ragged)
        total = self.least_bytes + padded_total(sizes)
        if offset + total != stop:
            raise WireError(f"leaves of {total} bytes in a payload of {stop - offset}")
        return self._read_ragged(buffer, offset, iter(sizes))[0]

    def _read_ragged(
        self, buffer: Buffer, offset: int, lengths: Iterator[int]
    ) -> tuple[Leaves, int]:
        leaves: list[Any] = []
        view = memoryview(buffer)
        known, is_known = self._known, True
        for index, (shape, dtype, nbytes, step, is_bool) in enumerate(self._leaves):
            if nbytes is None:
                size = next(lengths)
                leaf: Any = bytes(view[offset : offset + size])
                offset += padded(size)
                is_known = is_known and leaf in known[index]
            else:
                leaf = ndarray(shape, dtype, buffer if nbytes else b"", offset if nbytes else 0)
                offset += step
                if nbytes and is_bool:
                    _check_bool(leaf)
            leaves.append(leaf)
        if not is_known:
            self._check_ragged(leaves)
        return leaves, offset

    def _check_ragged(self, leaves: list[Any]) -> None:
        """Let the codec look at ragged leaves, and remember short ones that are right."""
        buffers: list[Any] = [
            leaf if isinstance(leaf, bytes) else memoryview(leaf).cast("B") if leaf.nbytes else b""
            for leaf in leaves
        ]
        try:
            self._codec.from_buffers(buffers, self._rows)
        except InvalidValue as error:
            raise WireError(str(error)) from None
        for leaf, known in zip(leaves, self._known, strict=True):
            if isinstance(leaf, bytes) and len(leaf) <= _MOST_KNOWN_BYTES:
                if len(known) >= _MOST_KNOWN:
                    known.clear()
                known.add(leaf)


def read_lengths(buffer: Buffer, offset: int, count: int, stop: int) -> Sequence[int]:
    """Return the lengths of ragged leaves that stand at this place.

    Raises:
        WireError: They do not fit before `stop`.
    """
    if offset + 8 * count > stop:
        raise WireError(f"a payload of {stop} bytes is too short for {count} lengths")
    return struct.unpack_from(f"<{count}Q", buffer, offset)


def padded_total(lengths: Sequence[int]) -> int:
    """Return the bytes that leaves of these lengths take."""
    return sum(map(padded, lengths))


def padded(nbytes: int) -> int:
    """Return the next multiple of 16."""
    return (nbytes + _GRAIN - 1) & -_GRAIN


def padding(nbytes: int) -> bytes:
    """Return what fills so many bytes up to the next multiple of 16."""
    return _PADS[-nbytes % _GRAIN]


def _check_bool(leaf: _Array) -> None:
    if int(leaf.view(np.uint8).max()) > 1:
        raise WireError("expected bool bytes 0 or 1")
