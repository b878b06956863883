"""Puts together what several replicas answered to one request (layer 6).

Part of `replicas.py`. Knows no replica.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from rollmesh.ports import Callback, PredictReply, PredictRequest
from rollmesh.spaces.codec import Codec


class Joining:
    """Puts the replies of several replicas together, and calls back once."""

    def __init__(
        self,
        actions: Codec,
        request: PredictRequest,
        parts: Sequence[Sequence[int]],
        callback: Callback,
    ) -> None:
        self._actions = actions
        self._request = request
        self._parts = parts
        self._callback = callback
        self._results: list[Any] = [None] * len(parts)
        self._missing = itertools.count(len(parts) - 1, -1).__next__

    def landing(self, place: int) -> Callback:
        """Return the callback of one part."""

        def land(result: Any) -> None:
            self._results[place] = result
            if self._missing() == 0:
                self._callback(self._together())

        return land

    def _together(self) -> Any:
        for result in self._results:
            if isinstance(result, BaseException):
                return result
        where = {
            row: (place, index)
            for place, rows in enumerate(self._parts)
            for index, row in enumerate(rows)
        }
        order = [where[row] for row in range(len(where))]
        count = min([len(result.frames) for result in self._results])  # the shortest chunk decides
        frames = [
            self._actions.gather([(self._results[p].frames[t], row) for p, row in order])
            for t in range(count)
        ]
        return PredictReply(
            context=self._request.context,
            frames=tuple(frames),
            request_bytes=sum([result.request_bytes for result in self._results]),
            response_bytes=sum([result.response_bytes for result in self._results]),
        )
