"""Tests of `rollmesh.wire.png`."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest

from rollmesh.errors import WireError
from rollmesh.wire.png import is_image, read_png, write_png

SHAPES = [(1, 1, 3), (5, 7), (5, 7, 1), (4, 5, 3), (3, 2, 4), (1, 300, 3)]


def image(shape):
    return np.random.default_rng(3).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_image_survives_and_others_read_it_as_we_do(shape):
    pixels = image(shape)
    data = write_png(pixels)
    expected = pixels[:, :, 0] if shape[2:] == (1,) else pixels
    assert np.array_equal(read_png(data), expected)
    pillow = pytest.importorskip("PIL.Image")
    assert np.array_equal(np.asarray(pillow.open(io.BytesIO(data))), expected)


def filtered(pixels, kind):
    """Return a PNG whose rows all have one filter."""
    height, width, step = pixels.shape
    out = []
    above = [0] * (width * step)
    for row in pixels.reshape(height, -1).tolist():
        coded = []
        for i, value in enumerate(row):
            left = row[i - step] if i >= step else 0
            corner = above[i - step] if i >= step else 0
            coded.append((value - guess(kind, left, above[i], corner)) & 255)
        out.append(bytes([kind, *coded]))
        above = row
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 2: 4, 3: 2, 4: 6}[step], 0, 0, 0)
    return png((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(out))), (b"IEND", b""))


def guess(kind, left, up, corner):
    if kind in (0, 1, 2):
        return (0, left, up)[kind]
    if kind == 3:
        return (left + up) // 2
    nearest = left + up - corner
    return min((left, up, corner), key=lambda one: abs(nearest - one))


def png(*chunks):
    parts = [b"\x89PNG\r\n\x1a\n"]
    for kind, body in chunks:
        parts.append(struct.pack(">I", len(body)) + kind + body)
        parts.append(struct.pack(">I", zlib.crc32(kind + body)))
    return b"".join(parts)


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_every_filter_is_undone(kind, channels):
    pixels = image((4, 6, channels))
    got = read_png(filtered(pixels, kind))
    assert np.array_equal(got, pixels[:, :, 0] if channels == 1 else pixels)


def header(width=2, height=2, depth=8, colour=2, interlace=0):
    return struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)


GOOD = zlib.compress(bytes(2 * 7))
BROKEN = {
    "nothing": b"",
    "another format": b"GIF89a" + bytes(50),
    "cut in a chunk": write_png(image((9, 9, 3)))[:60],
    "no header": png((b"IDAT", GOOD)),
    "short header": png((b"IHDR", b"abc"), (b"IDAT", GOOD)),
    "palette": png((b"IHDR", header(colour=3)), (b"IDAT", GOOD)),
    "16 bits": png((b"IHDR", header(depth=16)), (b"IDAT", GOOD)),
    "interlaced": png((b"IHDR", header(interlace=1)), (b"IDAT", GOOD)),
    "no pixels": png((b"IHDR", header(width=0)), (b"IDAT", GOOD)),
    "huge": png((b"IHDR", header(width=2**31 - 1, height=2**31 - 1)), (b"IDAT", GOOD)),
    "too little data": png((b"IHDR", header(height=3)), (b"IDAT", GOOD)),
    "no data": png((b"IHDR", header())),
    "not compressed": png((b"IHDR", header()), (b"IDAT", b"abc")),
    "unknown filter": png((b"IHDR", header()), (b"IDAT", zlib.compress(b"\x09" + bytes(13)))),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_png_that_we_read_is_refused(name):
    with pytest.raises(WireError, match="frame"):
        read_png(BROKEN[name])


def test_more_data_than_announced_is_left_out():
    """A small header in front of a bomb: no more is inflated than the header announced."""
    body = zlib.compress(bytes(50_000_000))
    got = read_png(png((b"IHDR", header()), (b"IDAT", body)))
    assert got.shape == (2, 2, 3)


def test_only_images_are_images():
    good = [image(shape) for shape in SHAPES]
    bad = [None, "x", np.zeros((2, 2), np.float32), image((2, 2, 2)), image((0, 3, 3)), image((4,))]
    assert [is_image(one) for one in good + bad] == [True] * len(good) + [False] * len(bad)
