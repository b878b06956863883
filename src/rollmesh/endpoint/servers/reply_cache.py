"""Replies that a client may ask for again after its connection dropped (layer 6).

A client sends the request under way again, under the same id, once it is back. What was executed
is answered from here and not executed twice. A client has only so many requests under way, and
replies arrive in the order in which they were sent; so of those that were sent only the last few
need to be kept. One that could not be sent yet stays, however many others were meanwhile.

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

_SLACK = 4
"""Replies kept in all, sent or not, for each request that may be under way."""


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
        self._sent: OrderedDict[int, None] = OrderedDict()
        self.get = self._replies.get
        """Return the reply to a request id, or None."""

    def keep(self, reply: Message) -> None:
        """Keep a reply, before it is sent."""
        replies, last = self._replies, self._last
        request_id = self._last = reply.request_id
        replies[request_id] = reply
        if self.keeps_one:
            if last in replies and last != request_id:
                replies[last] = Message(Kind.ERROR, last, _GONE)
            if len(replies) > self._capacity:
                replies.popitem(last=False)
        elif len(replies) > _SLACK * self._capacity:
            replies.popitem(last=False)  # the client gave up on it, and never asked

    def sent(self, request_id: int) -> None:
        """Take note that a reply was sent; the one sent first goes where there are too many."""
        sent = self._sent
        sent[request_id] = None
        sent.move_to_end(request_id)
        if len(sent) > self._capacity:
            self._replies.pop(sent.popitem(last=False)[0], None)

    def widen(self, capacity: int) -> None:
        """Keep more: the client may have more requests under way from now on."""
        self._capacity = max(self._capacity, capacity)

    def clear(self) -> None:
        """Forget all of them."""
        self._replies.clear()
        self._sent.clear()

    def __len__(self) -> int:
        return len(self._replies)
