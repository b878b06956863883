"""Commits that a damaged write-ahead log lost (layer 7).

SQLite reads its log up to the first frame that does not fit and drops the rest without a word: that
is right for a tail that a crash tore. A whole commit behind that frame was damaged later, and
somebody should know.

Source: sqlite.org/fileformat2.html, section 4 (the layout of header and frames).
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct(">4I2I2I")
_FRAME = struct.Struct(">2I2I2I")


def count_lost_commits(log: Path, num_frames: int) -> int:
    """Return how many commits stand in a log behind the frames that SQLite took.

    Args:
        log: The log; where there is none, nothing is lost.
        num_frames: How many frames SQLite took.
    """
    try:
        with log.open("rb") as stream:
            header = stream.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return 0
            _, _, page_bytes, _, *salts, _, _ = _HEADER.unpack(header)
            whole = (log.stat().st_size - _HEADER.size) // (_FRAME.size + page_bytes)
            lost = 0
            for number in range(max(num_frames, 0), whole):
                stream.seek(_HEADER.size + number * (_FRAME.size + page_bytes))
                _, size_after_commit, *found, _, _ = _FRAME.unpack(stream.read(_FRAME.size))
                lost += found == salts and size_after_commit > 0
            return lost
    except (OSError, struct.error):
        return 0
