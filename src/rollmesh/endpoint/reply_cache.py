"""Replies that a client may ask for again after its connection dropped (layer 6).

A client sends the request under way again, under the same id, once it is back. What was executed
is answered from here and not executed twice. A client has only so many requests under way, and a
later one says that it has the reply of an earlier one; so few replies need to be kept.
"""

from __future__ import annotations

from collections import OrderedDict

from rollmesh.wire.messages import Message


class ReplyCache:
    """Keeps the last replies of one session. Safe to use from several threads.

    Args:
        capacity: Requests that the client may have under way at once.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._replies: OrderedDict[int, Message] = OrderedDict()
        self.get = self._replies.get
        """Return the reply to a request id, or None."""

    def keep(self, reply: Message) -> None:
        """Keep a reply; the oldest one goes where there are too many."""
        replies = self._replies
        replies[reply.request_id] = reply
        if len(replies) > self._capacity:
            replies.popitem(last=False)

    def clear(self) -> None:
        """Forget all of them."""
        self._replies.clear()

    def __len__(self) -> int:
        return len(self._replies)
