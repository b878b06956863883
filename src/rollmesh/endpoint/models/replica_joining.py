"""Puts together what several replicas answered to one request (layer 6).

Part of `replicas.py`. Knows no replica.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollmesh.ports import PredictReply, PredictRequest
from rollmesh.spaces.codec import Codec


def join_replies(
    actions: Codec,
    request: PredictRequest,
    parts: Sequence[Sequence[int]],
    replies: Sequence[PredictReply],
) -> PredictReply:
    """Return one reply to a request, of those to its parts; `parts` are the rows of each."""
    where = {
        row: (place, index) for place, rows in enumerate(parts) for index, row in enumerate(rows)
    }
    order = [where[row] for row in range(len(where))]
    count = min([len(reply.frames) for reply in replies])  # the shortest chunk decides
    frames = [
        actions.gather([(replies[place].frames[t], row) for place, row in order])
        for t in range(count)
    ]
    return PredictReply(
        context=request.context,
        frames=tuple(frames),
        request_bytes=sum([reply.request_bytes for reply in replies]),
        response_bytes=sum([reply.response_bytes for reply in replies]),
    )
