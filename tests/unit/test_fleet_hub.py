"""The hub: what comes is handed over by the thread that waits, and by no other one."""

from __future__ import annotations

import socket
import threading
from threading import get_ident

import pytest

from rollmesh.fleet.hub import Hub

LIMIT_S = 10.0


@pytest.fixture
def hub():
    made = Hub(processes=2)
    yield made
    made.close()


class Reader:
    """Reads a byte whenever it is asked to."""

    def __init__(self, sock):
        self.sock = sock
        self.got = []

    def read(self):
        self.got.append((self.sock.recv(1), get_ident()))


@pytest.fixture
def reader():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        one = Reader(ours)
        one.send = theirs.send
        yield one


def wait_until(hub, is_so):
    while not is_so():
        hub.wait(LIMIT_S)


def test_what_comes_is_read_on_the_thread_that_waits(hub, reader):
    hub.add(reader.sock, reader)
    reader.send(b"a")
    hub.wait(LIMIT_S)
    assert reader.got == [(b"a", get_ident())]


def test_what_comes_during_a_wait_ends_it(hub, reader):
    hub.add(reader.sock, reader)
    timer = threading.Timer(0.02, reader.send, [b"b"])
    timer.start()
    wait_until(hub, lambda: reader.got)
    timer.join()


def test_one_that_was_removed_is_not_read(hub, reader):
    hub.add(reader.sock, reader)
    hub.remove(reader.sock)
    hub.remove(reader.sock)
    reader.send(b"a")
    hub.wait(0.01)
    assert reader.got == []


def test_one_may_remove_another_one_while_both_have_something(hub, reader):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        other = Reader(ours)

        class Selfish(Reader):
            def __init__(self, sock, rival):
                super().__init__(sock)
                self.rival = rival

            def read(self):
                super().read()
                hub.remove(self.rival)

        first, second = Selfish(reader.sock, ours), Selfish(ours, reader.sock)
        hub.add(reader.sock, first)
        hub.add(ours, second)
        reader.send(b"a")
        theirs.send(b"b")
        hub.wait(LIMIT_S)
        assert len(first.got) + len(second.got) == 1
        assert other.got == []


def test_the_post_is_carried_out_in_order_by_the_thread_that_waits(hub):
    done = []
    for number in range(3):
        thread = threading.Thread(
            target=hub.post, args=(lambda number=number: done.append((number, get_ident())),)
        )
        thread.start()
        thread.join()
    assert done == []
    wait_until(hub, lambda: len(done) == 3)
    assert done == [(number, get_ident()) for number in range(3)]


def test_a_post_ends_a_wait(hub):
    done = []
    timer = threading.Timer(0.02, hub.post, [lambda: done.append(1)])
    timer.start()
    wait_until(hub, lambda: done)
    timer.join()


def test_a_call_of_the_post_that_fails_is_logged_and_stops_nothing(hub, caplog):
    done = []
    hub.post(lambda: 1 / 0)
    hub.post(lambda: done.append(1))
    wait_until(hub, lambda: done)
    assert "call_failed" in caplog.text


def test_what_has_come_is_read_although_the_post_holds_something(hub, reader):
    hub.add(reader.sock, reader)
    done = []
    reader.send(b"a")
    hub.post(lambda: done.append("post"))
    hub.wait(LIMIT_S)
    assert done == ["post"]
    assert reader.got == [(b"a", get_ident())]


def test_a_call_is_made_when_it_is_due_although_the_post_holds_something(hub):
    done = []
    hub.call_after("due", 0.0, lambda: done.append("due"))
    hub.post(lambda: done.append("post"))
    hub.wait(LIMIT_S)
    assert done == ["post", "due"]


def test_a_call_of_the_post_that_leaves_another_one_there_keeps_nobody_waiting(hub, reader):
    hub.add(reader.sock, reader)
    done = []

    def again():
        done.append("post")
        if len(done) < 100:
            hub.post(again)

    hub.call_after("due", 0.0, lambda: done.append("due"))
    reader.send(b"a")
    hub.post(again)
    hub.wait(LIMIT_S)
    assert reader.got == [(b"a", get_ident())]
    assert "due" in done[:3]
    wait_until(hub, lambda: len(done) >= 100)


def test_wake_ends_the_wait_before_which_it_came(hub):
    for _ in range(70_000):  # more than the pipe holds
        hub.wake()
    hub.wait(LIMIT_S)


def test_calls_are_made_when_they_are_due_unless_cancelled(hub):
    done = []
    hub.call_after("now", 0.0, lambda: done.append("now"))
    hub.call_after("later", 0.01, lambda: done.append("later"))
    hub.call_after("not", 0.0, lambda: done.append("not"))
    hub.call_after("never", None, lambda: done.append("never"))
    hub.cancel("not")
    hub.cancel("unknown")
    wait_until(hub, lambda: "later" in done)
    assert done == ["now", "later"]


def test_a_call_that_cancels_another_one_that_is_due_wins(hub):
    done = []
    for mine, other in (("a", "b"), ("b", "a")):
        hub.call_after(
            mine, 0.0, lambda mine=mine, other=other: (done.append(mine), hub.cancel(other))
        )
    hub.wait(LIMIT_S)
    assert len(done) == 1


def test_a_hub_that_was_closed_can_still_be_woken(hub):
    hub.close()
    hub.close()
    reading, writing = socket.socketpair()  # takes the numbers that the pipe had
    with reading, writing:
        hub.wake()
        hub.post(lambda: None)
        reading.setblocking(False)
        with pytest.raises(BlockingIOError):
            reading.recv(1)
