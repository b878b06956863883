"""Session messages: each kind has its bodies, and says whether it is a reply."""

from __future__ import annotations

import pytest

from rollmesh.wire.messages import REPLIES, REQUESTS, Cancel, Done, Kind, Message, is_reply
from tests.unit.frame_toys import every_message

MESSAGES = every_message()


def test_every_kind_is_a_request_or_a_reply():
    assert set(Kind) == set(REQUESTS) | set(REPLIES)


def test_the_numbers_are_those_of_the_wire():
    assert [kind.value for kind in Kind] == list(range(1, 19))
    assert (Kind.HELLO, Kind.STEP, Kind.ERROR, Kind.SHUTDOWN) == (1, 5, 15, 17)


def test_the_sample_has_every_kind_and_direction():
    seen = {(message.kind, message.is_reply) for message in MESSAGES}
    expected = {(kind, False) for kind in REQUESTS} | {(kind, True) for kind in REPLIES}
    assert seen == expected


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: f"{m.kind.name}-{m.is_reply}")
def test_a_body_tells_its_direction(message):
    table = REPLIES if message.is_reply else REQUESTS
    assert table[message.kind] is type(message.body)


def test_a_ping_is_a_request_and_a_pong_a_reply():
    assert not is_reply(Kind.PING, None)
    assert is_reply(Kind.PONG, None)
    assert is_reply(Kind.CLOSE, Done())
    assert not is_reply(Kind.CANCEL, Cancel())


def test_a_message_starts_without_lease_and_size():
    message = Message(Kind.PING, 1)
    assert (message.body, message.nbytes, message.lease) == (None, 0, None)
