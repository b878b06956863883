"""The cancel token: first reason, each subscriber once, from threads and signal handlers."""

from __future__ import annotations

import logging
import signal
import threading
from functools import partial

import pytest

from rollmesh.runtime.cancel import CancelToken


def test_r15_a_fresh_token_has_no_reason():
    token = CancelToken()
    assert token.reason is None
    assert not token.cancelled


def test_r15_the_default_reason_is_the_callers():
    token = CancelToken()
    token.cancel()
    assert token.reason == "cancelled by caller"
    assert token.cancelled


def test_r15_the_first_reason_wins():
    token = CancelToken()
    token.cancel("first")
    token.cancel("second")
    assert token.reason == "first"


def test_r15_of_many_threads_one_reason_wins_and_all_see_it():
    for _ in range(20):
        token, seen, gate = CancelToken(), [], threading.Barrier(4)

        def cancel(name, token=token, seen=seen, gate=gate):
            gate.wait(10)
            token.cancel(name)
            seen.append(token.reason)

        threads = [threading.Thread(target=cancel, args=(f"t{i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(seen) == 4
        assert set(seen) == {token.reason}


def test_r15_subscribers_are_called_once_in_their_order():
    token, calls = CancelToken(), []
    token.subscribe(partial(calls.append, "a"))
    token.subscribe(partial(calls.append, "b"))
    assert calls == []
    token.cancel()
    token.cancel()
    assert calls == ["a", "b"]


def test_r15_a_subscriber_sees_the_reason():
    token, seen = CancelToken(), []
    token.subscribe(lambda: seen.append(token.reason))
    token.cancel("why")
    assert seen == ["why"]


def test_r15_a_late_subscriber_is_called_at_once():
    token, calls = CancelToken(), []
    token.cancel()
    token.subscribe(partial(calls.append, "late"))
    assert calls == ["late"]


def test_r15_unsubscribing_takes_back_one_subscription_and_may_be_repeated():
    token, calls = CancelToken(), []
    add = partial(calls.append, "same function")
    first, second = token.subscribe(add), token.subscribe(add)
    first()
    first()
    token.cancel()
    second()
    assert calls == ["same function"]


def test_r15_a_failing_subscriber_is_logged_and_stops_nobody(caplog):
    token, calls = CancelToken(), []

    def fail():
        raise ValueError("cannot wake")

    token.subscribe(fail)
    token.subscribe(partial(calls.append, "next"))
    with caplog.at_level(logging.ERROR):
        token.cancel()
    assert calls == ["next"]
    assert "cannot wake" in caplog.text


def test_r15_a_subscriber_may_cancel_subscribe_and_unsubscribe():
    token, calls = CancelToken(), []

    def meddle():
        token.cancel("again")
        token.subscribe(partial(calls.append, "inner"))
        take_back()

    take_back = token.subscribe(meddle)
    token.cancel("outer")
    assert token.reason == "outer"
    assert calls == ["inner"]


def test_r15_each_subscriber_is_called_once_while_threads_cancel_and_subscribe():
    for _ in range(20):
        token, calls, gate = CancelToken(), [], threading.Barrier(3)

        def cancel(token=token, gate=gate):
            gate.wait(10)
            token.cancel()

        def subscribe(token=token, calls=calls, gate=gate):
            gate.wait(10)
            for i in range(50):
                token.subscribe(partial(calls.append, i))

        threads = [threading.Thread(target=t) for t in (cancel, cancel, subscribe)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert sorted(calls) == list(range(50))


def test_r15_wait_returns_at_once_when_cancelled_and_false_in_time_when_not():
    token = CancelToken()
    assert token.wait(0) is False
    assert token.wait(-1) is False
    assert token.wait(0.001) is False
    token.cancel()
    assert token.wait(0) is True
    assert token.wait(None) is True


def test_r15_wait_leaves_no_subscriber_behind():
    token = CancelToken()
    for _ in range(5):
        token.wait(0)
    assert token._subscribers == []


def test_r15_a_wait_of_infinite_length_ends_with_the_cancel():
    token, result = CancelToken(), []
    waiter = threading.Thread(target=lambda: result.append(token.wait(float("inf"))))
    waiter.start()
    token.cancel()
    waiter.join(10)
    assert result == [True]


def test_r15_many_waiters_wake():
    token, woken = CancelToken(), []
    waiters = [threading.Thread(target=lambda: woken.append(token.wait(10))) for _ in range(5)]
    for waiter in waiters:
        waiter.start()
    token.cancel()
    for waiter in waiters:
        waiter.join(10)
    assert woken == [True] * 5


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers here")
def test_r15_a_signal_handler_may_cancel_at_any_point_of_the_same_thread():
    """The handler interrupts the main thread inside subscribe, unsubscribe, wait and cancel."""
    tokens = []

    def handle(_signum, _frame):
        for token in tokens:
            token.cancel("signal")

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        for _ in range(3000):
            token, calls = CancelToken(), []
            tokens[:] = [token]
            token.subscribe(lambda calls=calls: calls.append("kept"))
            token.subscribe(calls.clear)()
            token.wait(0)
            token.cancel("caller")
            assert calls.count("kept") <= 1
            assert token.reason in {"signal", "caller"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers here")
def test_r15_a_signal_handler_ends_the_wait_it_interrupts():
    token = CancelToken()
    before = signal.signal(signal.SIGALRM, lambda *_: token.cancel("signal"))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        assert token.wait(10) is True
        assert token.reason == "signal"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_r15_repr_says_why():
    token = CancelToken()
    token.cancel("enough")
    assert repr(token) == "CancelToken(reason='enough')"


def test_drain_asks_for_no_new_episodes_and_cancels_nothing():
    token, calls = CancelToken(), []
    token.subscribe(partial(calls.append, "woken"))
    assert not token.draining
    token.drain()
    assert token.draining
    assert token.reason is None
    assert calls == []
    token.cancel()
    assert token.draining
    assert calls == ["woken"]


def test_a_follower_is_stopped_with_its_token_and_not_the_other_way_round():
    token = CancelToken()
    with token.follower() as own, token.follower() as other:
        own.drain()
        own.cancel("enough")
        assert (own.reason, own.draining) == ("enough", True)
        assert (token.reason, token.draining, other.reason) == (None, False, None)
        token.drain()
        assert other.draining
        token.cancel("by hand")
        assert (own.reason, other.reason) == ("enough", "by hand")


def test_the_first_reason_of_a_drain_wins_and_followers_hear_it():
    token = CancelToken()
    assert token.drain_reason is None
    with token.follower() as early:
        token.drain("enough")
        token.drain("more than enough")
        assert token.drain_reason == early.drain_reason == "enough"
    with token.follower() as late:
        assert late.drain_reason == "enough"
    token = CancelToken()
    token.drain()
    assert token.drain_reason == "asked to start no new episode"


def test_a_follower_of_a_stopped_token_is_stopped():
    token = CancelToken()
    token.drain()
    with token.follower() as own:
        assert own.draining
    token.cancel("before")
    with token.follower() as own:
        assert own.reason == "before"


def test_a_token_forgets_its_followers():
    token = CancelToken()
    with token.follower() as own:
        pass
    token.drain()
    token.cancel()
    assert (own.reason, own.draining) == (None, False)
