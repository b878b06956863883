"""The reply cache keeps the last replies and no more."""

from __future__ import annotations

from rollmesh.endpoint.reply_cache import ReplyCache
from rollmesh.wire.messages import Done, Kind, Message


def reply(request_id):
    return Message(Kind.CLOSE, request_id, Done())


def test_a_kept_reply_is_found_by_its_id():
    cache = ReplyCache(2)
    first = reply(1)
    cache.keep(first)
    assert cache.get(1) is first
    assert cache.get(2) is None


def test_the_oldest_reply_goes_first():
    cache = ReplyCache(2)
    for request_id in (5, 3, 9):
        cache.keep(reply(request_id))
    assert [cache.get(one) is not None for one in (5, 3, 9)] == [False, True, True]
    assert len(cache) == 2


def test_a_later_reply_to_the_same_request_counts():
    cache = ReplyCache(2)
    cache.keep(reply(1))
    instead = reply(1)
    cache.keep(instead)
    assert cache.get(1) is instead
    assert len(cache) == 1


def test_it_can_be_cleared():
    cache = ReplyCache(2)
    cache.keep(reply(1))
    cache.clear()
    assert cache.get(1) is None
