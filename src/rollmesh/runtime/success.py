"""Success: the env's own word in the final info, never guessed (rule R32)."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollmesh.ports import Info

KEYS = ("is_success", "success", "task_success")


def read_success(info: Info) -> tuple[bool | None, str | None]:
    """Return (success, complaint): the first of `KEYS` that is there decides.

    A bool, numpy bool (an array of one included), 0 or 1 is taken; anything else is None with a
    complaint.
    """
    for key in KEYS:
        if key in info:
            value: Any = info[key]
            is_numpy = isinstance(value, (np.generic, np.ndarray))
            plain: Any = info[key].item() if is_numpy and info[key].size == 1 else info[key]
            if isinstance(plain, (bool, int)) and plain in (0, 1):
                return bool(plain), None
            return None, (
                f"info[{key!r}] is {type(plain).__name__} {str(plain)[:80]!r}, wanted a bool, 0 or "
                "1: success of that episode is unknown"
            )
    return None, None
