"""PNG: rendered frames as the released wire carries them (layer 4).

Writes 8-bit grey, RGB and RGBA images, and reads them back, with the standard library and NumPy
only. Fast enough for a rendering now and then; a stream of frames belongs in a video.

Source: Portable Network Graphics specification, third edition (W3C, 2025), sections 5, 9 and 11.
"""

# numpy's stubs, and values of unknown origin, leave types partly unknown:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

from rollmesh.errors import WireError
from rollmesh.limits import SIZE_LIMITS

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
"""Channels by colour type: grey, RGB, grey with alpha, RGBA."""
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
_LEFT, _UP, _MEAN, _PAETH = 1, 2, 3, 4
"""Row filters."""
_DEPTH = 8
"""Bits of a channel."""
_GREY_DIMS, _COLOUR_DIMS = 2, 3
"""Dimensions of an image without and with channels."""
_HEADER = struct.Struct(">IIBBBBB")

Image = np.ndarray[Any, np.dtype[np.uint8]]


def is_image(value: object) -> bool:
    """Return whether something is an image that `write_png` takes."""
    return (
        isinstance(value, np.ndarray)
        and value.dtype == np.uint8
        and value.size > 0
        and (
            value.ndim == _GREY_DIMS
            or (value.ndim == _COLOUR_DIMS and value.shape[2] in _COLOUR_TYPES)
        )
    )


def write_png(image: Image) -> bytes:
    """Return an image as PNG.

    Args:
        image: uint8 of shape (H, W) or (H, W, C), C one of 1, 3, 4.
    """
    pixels = image[:, :, None] if image.ndim == _GREY_DIMS else image
    height, width, channels = pixels.shape
    rows = np.ascontiguousarray(pixels).reshape(height, width * channels)
    filtered = np.empty((height, 1 + width * channels), np.uint8)
    filtered[:, 0] = _UP
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    header = _HEADER.pack(width, height, _DEPTH, _COLOUR_TYPES[channels], 0, 0, 0)
    data = zlib.compress(filtered.tobytes(), 1)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return _SIGNATURE + b"".join([_chunk(kind, body) for kind, body in chunks])


def _chunk(kind: bytes, body: bytes) -> bytes:
    return b"".join(
        (struct.pack(">I", len(body)), kind, body, struct.pack(">I", zlib.crc32(kind + body)))
    )


def read_png(data: bytes) -> Image:
    """Return the image in a PNG: uint8 (H, W, C), or (H, W) where it is grey.

    Raises:
        WireError: It is no PNG, or of a kind that is not read here (palettes, other depths than 8
            bits, interlaced), or larger than a message may be.
    """
    try:
        width, height, channels, body = _read_chunks(data)
    except (struct.error, zlib.error, IndexError) as error:
        raise WireError(f"a frame of {len(data)} bytes is no PNG: {error}") from None
    stride = width * channels
    raw = np.frombuffer(body, np.uint8).reshape(height, 1 + stride)
    filters = raw[:, 0].tolist()
    rows = raw[:, 1:].copy()
    above = np.zeros(stride, np.uint8)
    for index, kind in enumerate(filters):
        _undo(kind, rows[index], above, channels)
        above = rows[index]
    return rows.reshape(height, width) if channels == 1 else rows.reshape(height, width, channels)


def _read_chunks(data: bytes) -> tuple[int, int, int, bytes]:
    """Return width, height, channels and the filtered rows."""
    if data[:8] != _SIGNATURE:
        raise WireError("a frame is no PNG: its first bytes are others")
    header, parts, place = b"", [b""], 8
    while place < len(data):
        size, kind = struct.unpack_from(">I4s", data, place)
        body = data[place + 8 : place + 8 + size]
        if len(body) != size:
            raise WireError("a frame is no PNG: it ends within a chunk")
        if kind == b"IHDR":
            header = body
        elif kind == b"IDAT":
            parts.append(body)
        place += 12 + size
    width, height, depth, colour, compression, filtering, interlace = _HEADER.unpack(header)
    channels = _CHANNELS.get(colour)
    if (
        channels is None
        or depth != _DEPTH
        or compression
        or filtering
        or interlace
        or not width * height
    ):
        raise WireError(
            f"a frame is a PNG of colour type {colour} with {depth} bits; expected 8-bit grey, RGB "
            "or RGBA, not interlaced"
        )
    size = height * (1 + width * channels)
    if size > SIZE_LIMITS.message_bytes:
        raise WireError(f"a frame of {width} x {height} pixels is larger than a message may be")
    inflate = zlib.decompressobj()
    body = inflate.decompress(b"".join(parts), size)
    if len(body) != size:
        raise WireError(f"a frame holds {len(body)} bytes, expected {size}")
    return width, height, channels, body


def _undo(kind: int, row: Image, above: Image, step: int) -> None:
    """Undo the filter of one row, in place."""
    if kind == 0:
        return
    if kind == _LEFT:
        pixels = row.reshape(-1, step)
        np.cumsum(pixels, axis=0, dtype=np.uint8, out=pixels)
    elif kind == _UP:
        row += above
    elif kind in (_MEAN, _PAETH):
        _undo_slowly(kind, row, above, step)
    else:
        raise WireError(f"a frame is no PNG: row filter {kind}")


def _undo_slowly(kind: int, row: Image, above: Image, step: int) -> None:
    """Undo the filters that look at three neighbours, byte by byte."""
    out, up = row.tolist(), above.tolist()
    for i, value in enumerate(out):
        left = out[i - step] if i >= step else 0
        if kind == _MEAN:
            guess = (left + up[i]) // 2
        else:
            corner = up[i - step] if i >= step else 0
            guess = _nearest(left, up[i], corner)
        out[i] = (value + guess) & 255
    row[:] = out


def _nearest(left: int, up: int, corner: int) -> int:
    """Return whichever neighbour is nearest to left + up - corner."""
    to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
    if to_left <= to_up and to_left <= to_corner:
        return left
    return up if to_up <= to_corner else corner
