"""Episode, session and env ids: UUIDv7 strings (layer 1).

Source: RFC 9562 section 5.7, with method 3 of section 6.2 (the 12 bits after the version hold the
fraction of the millisecond). A library call would be faster, but gives no promise for a clock that
steps back, and ids are minted once an episode.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol

from rollmesh.clock import SYSTEM_CLOCK, Clock

_VERSION_7 = 0x7 << 76
_VARIANT = 0b10 << 62
_RANDOM_BITS = (1 << 62) - 1


class MintsIds(Protocol):
    """What mints ids; the runtime is given one, tests give a predictable one."""

    def mint(self) -> str:
        """Return a fresh id."""
        ...


class Uuid7Mint:
    """Mints UUIDv7 strings.

    Guarantees: ids of one mint sort in the order they were made, also when the wall clock steps
    back or stands still; ids of different processes and mints differ (62 random bits).
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def mint(self) -> str:
        """Return a fresh id in the usual 8-4-4-4-12 spelling."""
        millis, rest_ns = divmod(self._clock.wall_ns(), 1_000_000)
        now = (millis << 12) | (rest_ns * 4096 // 1_000_000)
        with self._lock:
            stamp = self._last = max(now, self._last + 1)
        random = int.from_bytes(os.urandom(8), "little") & _RANDOM_BITS
        value = (stamp >> 12 << 80) | _VERSION_7 | ((stamp & 0xFFF) << 64) | _VARIANT | random
        text = f"{value:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


MINT = Uuid7Mint()
"""The process's own mint: every id of one process comes from here unless a test passes another."""
