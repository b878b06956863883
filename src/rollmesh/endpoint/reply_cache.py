"""Replies that a client may ask for again after its connection dropped (layer 6).

A client sends the request under way again, under the same id, once it is back. What was executed
is answered from here and not executed twice. A client has only so many requests under way, and a
later one says that it has the reply of an earlier one; so few replies need to be kept.

Where requests are executed one after the other, only the last reply is kept with what it holds: a
batch of camera images is large, and its arrays may be the env's own, which change with its next
step. Of the replies before it is known that they were given. Whoever asks for one all the same is
told that it is gone, and the request is still not executed again.
"""

from __future__ import annotations

from collections import OrderedDict

from rollmesh.wire.messages import ErrorBody, Kind, Message

_GONE = ErrorBody(
    code="session_lost",
    error_class="SessionLost",
    message="the reply is not kept any more: a later request was executed meanwhile",
    outcome="done",
)


class ReplyCache:
    """Keeps the last replies of one session. Safe to use from several threads.

    Args:
        capacity: Requests that the client may have under way at once.

    Attributes:
        keeps_one: Whether only the last reply is kept as it is.
    """

    def __init__(self, capacity: int) -> None:
        self.keeps_one = False
        self._capacity = capacity
        self._last = 0
        self._replies: OrderedDict[int, Message] = OrderedDict()
        self.get = self._replies.get
        """Return the reply to a request id, or None."""

    def keep(self, reply: Message) -> None:
        """Keep a reply; the oldest one goes where there are too many."""
        replies, last = self._replies, self._last
        request_id = self._last = reply.request_id
        replies[request_id] = reply
        if self.keeps_one and last in replies and last != request_id:
            replies[last] = Message(Kind.ERROR, last, _GONE)
        if len(replies) > self._capacity:
            replies.popitem(last=False)

    def clear(self) -> None:
        """Forget all of them."""
        self._replies.clear()

    def __len__(self) -> int:
        return len(self._replies)
