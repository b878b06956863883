"""Streams of clients and calls of servers: both kinds of each, in every combination."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rollmesh.transport import grpc_engine, grpc_stream
from rollmesh.transport.grpc_calls import CallEnded, CallLate, ServerCall
from rollmesh.transport.grpc_common import CLIENT_OPTIONS, SERVER_OPTIONS
from rollmesh.transport.grpc_loading import chooses, grpc
from rollmesh.transport.grpc_stream import (
    DirectStream,
    JoinStream,
    PlainStream,
    StreamEnded,
    StreamLate,
)

SERVER = {"direct": grpc_engine.DirectEngine, "plain": grpc_engine.PlainEngine}
CLIENT = {"direct": DirectStream, "plain": PlainStream}
PATH = "/test.Service/Join"


class Served:
    """A server whose streams are handed to the test, and a way to it."""

    def __init__(self, engine: Any, stream: Any) -> None:
        self.calls: queue.SimpleQueue[ServerCall] = queue.SimpleQueue()
        self._engine = engine(self, SERVER_OPTIONS)
        self._stream = stream
        port = self._engine.add_port("127.0.0.1:0", None)
        self._engine.start()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", CLIENT_OPTIONS)
        self._opened: list[tuple[JoinStream, ServerCall]] = []

    def find_answer(self, path: str) -> Any:
        if not path.endswith("/Ask"):
            return None

        def answer(data: bytes, metadata: Any) -> bytes:
            if data == b"refuse":
                raise grpc_engine.CallRefused(grpc.StatusCode.NOT_FOUND, "nothing")
            return data + str(metadata.get("key", "")).encode()

        return answer

    def find_stream(self, path: str) -> Any:
        return self._take if path == PATH else None

    def _take(self, call: ServerCall) -> None:
        call.open()
        self.calls.put(call)

    def open(self, metadata: Any = ()) -> tuple[JoinStream, ServerCall]:
        stream = self._stream(self.channel, PATH, metadata)
        pair = stream, self.calls.get(timeout=10)
        self._opened.append(pair)
        return pair

    def close(self) -> None:
        for stream, call in self._opened:
            stream.cancel()
            assert stream.close(1.0)
            call.cancel()
            call.close()
        self.channel.close()
        self._engine.stop(1.0)


@pytest.fixture(params=[(s, c) for s in SERVER for c in CLIENT], ids="-".join)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    server, client = request.param
    one = Served(SERVER[server], CLIENT[client])
    yield one
    one.close()


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start some work; what is returned waits for its result, or raises what it raised."""
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put(work())
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            results.put(error)

    threading.Thread(target=run, daemon=True).start()

    def result() -> Any:
        got = results.get(timeout=10)
        if isinstance(got, Exception):
            raise got
        return got

    return result


def test_messages_come_as_they_were_sent_turn_by_turn(served):
    stream, call = served.open()
    for number in range(40):  # long enough for both ends to take turns for granted
        stream.send(b"ask %d" % number)
        assert call.read(5) == b"ask %d" % number
        call.write(b"answer %d" % number)
        assert stream.receive(time.monotonic() + 5) == b"answer %d" % number


def test_many_messages_may_be_under_way_in_both_directions(served):
    stream, call = served.open()
    for turn in range(20):
        stream.send(b"t%d" % turn)
        call.write(call.read(5))
        assert stream.receive() == b"t%d" % turn
    asked = [b"%d" % number for number in range(50)]
    for data in asked:
        in_thread(lambda data=data: stream.send(data))()
    got = sorted([call.read(5) for _ in asked], key=int)
    assert got == asked
    for data in asked:
        in_thread(lambda data=data: call.write(data, 5))()
    assert sorted([stream.receive() for _ in asked], key=int) == asked


def test_an_answer_of_another_thread_comes_while_one_reads(served):
    stream, call = served.open()
    for _ in range(20):
        stream.send(b"x")
        call.write(call.read(5))
        stream.receive()
    reading = in_thread(call.read)
    stream.send(b"1")
    assert reading() == b"1"
    reading = in_thread(call.read)
    call.write(b"late answer", 5)
    call.write(b"and another", 5)
    assert stream.receive() == b"late answer"
    assert stream.receive() == b"and another"
    stream.send(b"2")
    assert reading() == b"2"


def test_p1_a_post_waits_for_nobody_and_what_was_posted_arrives_in_order(served):
    stream, call = served.open()
    data = [bytes([number]) * 2**20 for number in range(20)]

    def post() -> None:
        for one in data:
            stream.post(one)

    in_thread(post)()  # nobody reads, and nobody receives here
    receiving = in_thread(stream.receive)
    assert [call.read(10) for _ in data] == data
    call.write(b"done")
    assert receiving() == b"done"


def test_a_wait_ends_at_its_deadline(served):
    stream, call = served.open()
    for _ in range(2):
        stream.send(b"x")
        call.read(5)
        begun = time.monotonic()
        with pytest.raises(StreamLate) as late:
            stream.receive(begun + 0.2)
        assert 0.15 < time.monotonic() - begun < 0.45
        if not late.value.is_usable:
            with pytest.raises(CallEnded):
                call.read(5)
            return
        call.write(b"late")
        assert stream.receive() == b"late"


def test_a_server_waits_no_longer_than_it_was_told(served):
    stream, call = served.open()
    begun = time.monotonic()
    with pytest.raises(CallLate) as late:
        call.read(0.2)
    assert 0.15 < time.monotonic() - begun < 0.45
    if late.value.is_usable:
        stream.send(b"x")
        assert call.read(5) == b"x"


def test_a_cancel_ends_a_wait_at_once(served):
    stream, call = served.open()
    waiting = in_thread(stream.receive)
    reading = in_thread(call.read)
    begun = time.monotonic()
    stream.cancel()
    with pytest.raises(StreamEnded):
        waiting()
    with pytest.raises(CallEnded):
        reading()
    assert time.monotonic() - begun < 0.5
    with pytest.raises((StreamEnded, StreamLate)):
        stream.receive()


def test_closing_lets_the_last_message_arrive(served):
    stream, call = served.open()
    for turn in range(12):
        stream.send(b"%d" % turn)
        call.write(call.read(5))
        stream.receive()
    stream.send(b"bye")
    assert not stream.close(0.05)
    closing = in_thread(lambda: stream.close(5.0))
    assert call.read(5) == b"bye"
    with pytest.raises(CallEnded):
        call.read(5)
    call.finish(grpc.StatusCode.OK, "")
    assert closing()


def test_a_status_comes_with_what_was_said_before_and_its_trailers(served):
    stream, call = served.open()
    for turn in range(12):
        stream.send(b"%d" % turn)
        call.write(call.read(5))
        stream.receive()
    stream.send(b"x")
    call.read(5)
    call.write(b"last")
    call.finish(grpc.StatusCode.FAILED_PRECONDITION, "no more", (("why", "test"),))
    assert stream.receive() == b"last"
    with pytest.raises(StreamEnded) as ended:
        stream.receive()
    assert (ended.value.code, ended.value.details) == ("FAILED_PRECONDITION", "no more")
    assert ended.value.trailers["why"] == "test"
    call.close()
    with pytest.raises(CallEnded):
        call.write(b"too late")


def test_a_finish_ends_a_read_of_another_thread(served):
    _, call = served.open()
    reading = in_thread(call.read)
    call.finish(grpc.StatusCode.UNAVAILABLE, "over")
    with pytest.raises(CallEnded):
        reading()


def test_a_client_that_takes_nothing_holds_up_nobody_for_long(served):
    stream, call = served.open()
    stream.send(b"x")
    call.read(5)
    begun = time.monotonic()

    def write_much() -> None:
        for _ in range(64):
            call.write(bytes(2**20), 0.3)

    with pytest.raises((CallLate, CallEnded)):
        write_much()
    assert time.monotonic() - begun < 5
    call.finish(grpc.StatusCode.UNAVAILABLE, "the client took nothing")
    call.close()
    assert time.monotonic() - begun < 8


def test_large_messages_pass_both_ways(served):
    stream, call = served.open()
    data = bytes(range(256)) * 2**13
    stream.send(data)
    assert call.read(10) == data
    call.write(data)
    assert stream.receive(time.monotonic() + 10) == data


def test_metadata_of_both_kinds_arrives(served):
    _, call = served.open((("some-bin", b"\x00\xff"), ("authorization", "secret")))
    assert call.metadata["some-bin"] == b"\x00\xff"
    assert call.metadata["authorization"] == "secret"
    assert call.peer.startswith(("ipv4:127.0.0.1", "ipv4:127%2E"))


def test_a_call_with_one_answer_is_answered_or_refused(served):
    ask = served.channel.unary_unary("/test.Service/Ask")
    assert ask(b"hello ", timeout=5, metadata=(("key", "value"),)) == b"hello value"
    with pytest.raises(grpc.RpcError) as refused:
        ask(b"refuse", timeout=5)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as unknown:
        served.channel.unary_unary("/test.Service/Nothing")(b"", timeout=5)
    assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("engine", SERVER.values(), ids=SERVER)
def test_a_server_that_never_ran_can_be_stopped(engine):
    one = engine(None, SERVER_OPTIONS)
    assert one.add_port("127.0.0.1:0", None) > 0
    one.stop(0.1)


def test_another_version_of_grpc_falls_back_to_what_is_documented(monkeypatch):
    def refuse(*_: object) -> Any:
        raise AttributeError("no such insides")

    monkeypatch.setattr(grpc_engine, "DirectEngine", refuse)
    monkeypatch.setattr(grpc_stream, "DirectStream", refuse)
    engine = grpc_engine.make_engine(None, SERVER_OPTIONS)  # type: ignore[arg-type]
    assert isinstance(engine, grpc_engine.PlainEngine)
    port = engine.add_port("127.0.0.1:0", None)
    engine.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stream = grpc_stream.open_stream(channel, PATH, ())
        assert isinstance(stream, PlainStream)
        stream.cancel()
        assert stream.close(1.0)
    engine.stop(0.1)


@pytest.mark.parametrize(
    ("version", "is_loaded", "is_set", "expected"),
    [
        ("1.60.0", False, False, True),
        ("1.85.3", False, False, True),
        ("1.86.0", False, False, False),
        ("2.0", False, False, False),
        ("", False, False, False),
        ("1.85.3", True, False, False),
        ("1.85.3", False, True, False),
    ],
)
def test_the_way_of_io_is_chosen_only_where_the_choice_is_ours(
    version, is_loaded, is_set, expected
):
    assert chooses(version, is_loaded=is_loaded, is_set=is_set) is expected
