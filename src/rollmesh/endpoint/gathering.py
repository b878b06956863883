"""Puts together what several calls came to (layer 6): of lanes, or of the replicas of a model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rollmesh.ports import Callback


class Gathering:
    """Waits for the results of several calls and calls back once, when all have come.

    Args:
        count: How many.
        join: Puts the replies together, in order.
        callback: Gets that, or the first failure: of a call, or of `join`.
    """

    def __init__(self, count: int, join: Callable[[list[Any]], Any], callback: Callback) -> None:
        self._results: list[Any] = [None] * count
        self._missing = count
        self._join = join
        self._callback = callback
        self._lock = threading.Lock()

    def landing(self, row: int) -> Callback:
        """Return the callback of one call."""

        def land(result: Any) -> None:
            with self._lock:
                self._results[row] = result
                self._missing -= 1
                if self._missing:
                    return
            self._callback(self._together())

        return land

    def _together(self) -> Any:
        for result in self._results:
            if isinstance(result, BaseException):
                return result
        try:
            return self._join(self._results)
        except Exception as exc:  # noqa: BLE001 - given to the caller, who waits
            return exc
