"""The reply cache keeps the last replies and no more."""

from __future__ import annotations

from rollmesh.endpoint.servers.reply_cache import ReplyCache
from rollmesh.wire.messages import Done, Kind, Message


def reply(request_id):
    return Message(Kind.CLOSE, request_id, Done())


def test_a_kept_reply_is_found_by_its_id():
    cache = ReplyCache(2)
    first = reply(1)
    cache.keep(first)
    assert cache.get(1) is first
    assert cache.get(2) is None


def test_the_reply_sent_first_goes_first():
    cache = ReplyCache(2)
    for request_id in (5, 3, 9):
        cache.keep(reply(request_id))
    for request_id in (3, 5, 9):
        cache.sent(request_id)
    assert [cache.get(one) is not None for one in (5, 3, 9)] == [True, False, True]
    cache.sent(5)  # asked for again
    cache.keep(reply(10))
    cache.sent(10)
    assert [cache.get(one) is not None for one in (5, 9, 10)] == [True, False, True]
    assert len(cache) == 2


def test_p2_a_reply_that_was_not_sent_outlives_those_that_were():
    cache = ReplyCache(2)
    cache.keep(reply(1))
    for request_id in range(2, 100):
        cache.keep(reply(request_id))
        cache.sent(request_id)
    assert cache.get(1) is not None


def test_replies_that_are_never_sent_are_bounded():
    cache = ReplyCache(2)
    for request_id in range(100):
        cache.keep(reply(request_id))
    assert len(cache) == 8
    assert cache.get(99) is not None


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


def test_of_earlier_replies_it_may_keep_no_more_than_that_they_were_given():
    cache = ReplyCache(3)
    cache.keeps_one = True
    replies = [reply(request_id) for request_id in (1, 2, 3, 4)]
    for each in replies:
        cache.keep(each)
    assert cache.get(4) is replies[3]
    assert cache.get(1) is None
    for request_id in (2, 3):
        gone = cache.get(request_id)
        assert (gone.kind, gone.request_id, gone.body.code) == (
            Kind.ERROR,
            request_id,
            "session_lost",
        )
