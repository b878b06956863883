"""What envs and policies do wrong on purpose, whichever of the two they are (layer 7).

A `Fault` is a name, when it is due and how much of it; `Misdeeds` carries it out. What a name means
for an env or a policy stands in `envs.py` and `models.py`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollmesh.errors import InvalidSpec
from rollmesh.testing.faults.values import aliased, with_nan, with_wrong_shape

EXIT_CODE = 9
"""What `kills_process` ends the process with."""
SYS_EXIT_CODE = 3
"""What `exits` calls `sys.exit` with."""

COMMON: tuple[str, ...] = (
    *("raises", "exits", "hangs", "sleeps", "nan", "wrong_shape", "aliases", "kills_process"),
    *("segfaults", "hogs_memory", "prints_noise"),
)
"""The names that envs and policies share."""

_HOUR_S = 3600.0
_NAP_S = 0.05
_HOG_BYTES = 64 * 2**20
_MOST_HOGGED = 8
_NOISE = "noise \x1b[31m\x00"
_NOISE_BYTES = 64_000


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong, when, and how much of it.

    Attributes:
        name: What goes wrong.
        known: The names there are.
        at: The first count that it happens at.
        times: At how many counts; None is at all from there on.
        seconds: For what waits; None is the fault's own default.
        nbytes: For what takes room; None is the fault's own default.

    Raises:
        InvalidSpec: There is no fault of this name, or a number is negative.
    """

    name: str
    known: tuple[str, ...] = COMMON
    at: int = 1
    times: int | None = None
    seconds: float | None = None
    nbytes: int | None = None

    def __post_init__(self) -> None:
        if self.name not in self.known:
            raise InvalidSpec("fault", f"wants one of {', '.join(self.known)}, got {self.name!r}")
        for field in ("at", "times", "seconds", "nbytes"):
            value = getattr(self, field)
            if value is not None and value < 0:
                raise InvalidSpec(field, f"wants 0 or more, got {value}")

    def is_due(self, count: int) -> bool:
        """Return whether it happens at this count."""
        since = count - self.at
        return since >= 0 and (self.times is None or since < self.times)


class Misdeeds:
    """Carries out one fault.

    Args:
        fault: The fault; names that are not in `COMMON` do nothing here.
    """

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._buffers: dict[str, Any] = {}
        self._hogged: list[Any] = []
        self._released = threading.Event()

    def act(self, count: int) -> None:
        """Do what happens before the real thing is asked; it may not come back."""
        fault = self._fault
        if fault.name == "raises":
            raise ValueError(f"broken on purpose at {count}")
        if fault.name == "exits":
            sys.exit(SYS_EXIT_CODE)
        if fault.name in ("hangs", "sleeps"):
            default_s = _HOUR_S if fault.name == "hangs" else _NAP_S
            self._released.wait(default_s if fault.seconds is None else fault.seconds)
        elif fault.name == "kills_process":
            os._exit(EXIT_CODE)
        elif fault.name == "segfaults":
            ctypes.string_at(0)
        elif fault.name == "hogs_memory" and len(self._hogged) < _MOST_HOGGED:
            self._hogged.append(np.ones(self._nbytes(_HOG_BYTES), np.uint8))
        elif fault.name == "prints_noise":
            for stream in (sys.stdout, sys.stderr):
                stream.write(_NOISE * (self._nbytes(_NOISE_BYTES) // len(_NOISE)) + "\n")
                stream.flush()

    def spoil(self, value: Any) -> Any:
        """Return a value as the fault makes it."""
        name = self._fault.name
        if name == "nan":
            return with_nan(value)
        if name == "wrong_shape":
            return with_wrong_shape(value)
        return aliased(value, self._buffers) if name == "aliases" else value

    def release(self) -> None:
        """End a hang, now and from here on; from another thread."""
        self._released.set()

    def forget(self) -> None:
        """Give back the memory that was hogged."""
        self._hogged.clear()

    def _nbytes(self, default: int) -> int:
        return default if self._fault.nbytes is None else self._fault.nbytes
