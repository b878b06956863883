"""The native connection over unix and TCP sockets: order, deadlines, cancel, loss, attacks."""

from __future__ import annotations

import contextlib
import random
import resource
import signal
import socket
import threading
import time

import numpy as np
import pytest

from rollmesh.errors import ConnectFailed, ConnectionLost, InvalidSpec, TransportTimeout, WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.ports import StepReply
from rollmesh.transport import native, spin
from rollmesh.transport.connection import ConnectionOptions
from rollmesh.transport.dialing import dial, listen
from rollmesh.transport.native import NativeConnection
from rollmesh.transport.security import Peer
from rollmesh.transport.spin import NEVER_NS
from rollmesh.transport.stream import WrappedStream, remaining
from rollmesh.wire.frames import HEADER, HEADER_BYTES, MAGIC, VERSION
from rollmesh.wire.framing import Framing
from rollmesh.wire.messages import Cancel, ErrorBody, Kind, Message, Probe, ProbeReply
from tests.unit.frame_toys import (
    ARM,
    CAMERA,
    ROBOT,
    every_message,
    on_thread,
    same,
    step_reply,
    step_request,
)

MESSAGES = every_message()
ADDRESSES = ["rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0", "rollmesh+tcp://[::1]:0"]
everywhere = pytest.mark.parametrize("address", ADDRESSES)
LIMIT_S = 10.0


@contextlib.contextmanager
def connected(address=ADDRESSES[0], options=None, observation=ROBOT):
    """Give both ends of a connection, admitted and bound."""
    options = options or ConnectionOptions()
    with listen(address, options) as listener:
        client = dial(listener.address, options)
        server = listener.accept(LIMIT_S)
    with client, server:
        for end in (client, server):
            end.admit()
            end.framing.bind(observation.codec, ARM.codec, 64)
        yield client, server


def camera_reply(request_id=1, shade=7, rows=1):
    image = np.full((rows, 256, 256, 3), shade, np.uint8)
    body = StepReply(observation=[image], rewards=(1.0,) * rows, infos=({},) * rows)
    return Message(Kind.STEP, request_id, body)


@contextlib.contextmanager
def raw_tcp():
    """Give a plain socket and the connection at its other end."""
    with listen(ADDRESSES[1]) as listener:
        raw = socket.create_connection((listener.address.host, listener.address.port), LIMIT_S)
        server = listener.accept(LIMIT_S)
    with raw, server:
        yield raw, server


def receive_all(connection):
    while True:
        connection.receive(LIMIT_S)


def to_bytes(messages, observation=ROBOT):
    framing = Framing()
    framing.bind(observation.codec, ARM.codec, 64)
    frames = [framing.encode(message) for message in messages]
    return [b"".join([frame.header(), *frame.parts, frame.section]) for frame in frames]


# ----------------------------------------------------------------------------------- messages


@everywhere
@pytest.mark.parametrize("spin", ["never", "auto", "always"])
def test_every_message_arrives_as_it_was_and_in_order(address, spin):
    with connected(address, ConnectionOptions(spin=spin)) as (client, server):
        for sender, receiver in ((client, server), (server, client)):
            for message in MESSAGES * 2:
                sent = sender.send(message, LIMIT_S)
                got = receiver.receive(LIMIT_S)
                assert (got.kind, got.request_id) == (message.kind, message.request_id)
                assert same(got.body, message.body)
                assert got.nbytes + HEADER_BYTES == sent


@everywhere
@pytest.mark.parametrize("shared", [True, False])
def test_large_and_small_messages_in_any_order(address, shared):
    chance = random.Random(4)
    options = ConnectionOptions(shared_memory=shared, spin="never")
    messages = []
    for number in range(1, 60):
        make = chance.choice([camera_reply, camera_reply, camera_reply, Message])
        if make is Message:
            body = Probe(b"p" * chance.choice([0, 10, 5_000, 20_000, 200_000]))
            messages.append(Message(Kind.PROBE, number, body))
        else:
            messages.append(make(number, number, chance.choice([1, 1, 1, 2])))

    def send_all(sender):
        for message in messages:
            sender.send(message, LIMIT_S)

    with (
        connected(address, options, CAMERA) as (client, server),
        on_thread(send_all, server),
    ):
        for message in messages:
            got = client.receive(LIMIT_S)
            assert got.request_id == message.request_id
            assert same(got.body, message.body)


def test_large_messages_with_infos_and_one_of_another_size_in_between():
    info = {"note": "x" * 100_000, "pose": np.arange(3.0)}
    big = camera_reply(1)
    big.body.infos = (info,)
    plan = [camera_reply(1), camera_reply(2), big, camera_reply(3), camera_reply(4, rows=3)]
    plan += [Message(Kind.PROBE, 5, Probe(b"small")), camera_reply(6), Message(Kind.PING, 7)]
    with (
        connected(ADDRESSES[1], observation=CAMERA) as (client, server),
        on_thread(lambda: [server.send(message, LIMIT_S) for message in plan * 2]),
    ):
        for message in plan * 2:
            assert same(client.receive(LIMIT_S).body, message.body)


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_messages_may_come_in_any_pieces(most):
    chance = random.Random(most)
    plan = MESSAGES if most < 1000 else [camera_reply(1), *MESSAGES[:3], camera_reply(2)]
    space = ROBOT if most < 1000 else CAMERA
    data = b"".join(to_bytes(plan, space))

    def drip(raw):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        place = 0
        while place < len(data):
            size = chance.randint(1, most)
            raw.sendall(data[place : place + size])
            place += size

    with raw_tcp() as (raw, server), on_thread(drip, raw):
        server.admit()
        server.framing.bind(space.codec, ARM.codec, 64)
        for message in plan:
            assert same(server.receive(LIMIT_S).body, message.body)


def test_a_stream_without_scatter_gather_carries_the_same(monkeypatch):
    monkeypatch.setattr(native, "open_stream", WrappedStream)
    plan = [*MESSAGES, Message(Kind.PROBE, 50, Probe(b"x" * 3_000_000)), *MESSAGES]
    with (
        connected(ADDRESSES[1]) as (client, server),
        on_thread(lambda: [client.send(message, LIMIT_S) for message in plan]),
    ):
        for message in plan:
            assert same(server.receive(LIMIT_S).body, message.body)


def test_a_wrapper_sees_the_sockets_of_both_ends():
    seen = []

    def wrap(sock):
        seen.append(sock.gettimeout())
        return sock

    with listen(ADDRESSES[1], wrap=wrap) as listener:
        client = dial(listener.address, wrap=wrap)
        server = listener.accept(LIMIT_S)
        with client, server:
            client.send(Message(Kind.PING, 1))
            assert server.receive(LIMIT_S).kind is Kind.PING
    assert len(seen) == 2
    assert all(0 < timeout_s <= 10 for timeout_s in seen)


def test_a_wrapper_that_refuses_is_no_connection():
    def refuse(sock):
        raise OSError("certificate of another host")

    with listen(ADDRESSES[1], wrap=refuse) as listener:
        with pytest.raises(ConnectFailed, match="certificate of another host"):
            dial(listener.address, wrap=refuse)
        raw = socket.create_connection((listener.address.host, listener.address.port))
        with raw:
            assert listener.accept(0.2) is None


def test_many_threads_may_send():
    with connected() as (client, server):
        bodies = [Probe(bytes([k]) * (20_000 * k + 1)) for k in range(4)]
        with contextlib.ExitStack() as stack:
            for k, body in enumerate(bodies):
                send = [Message(Kind.PROBE, 100 * k + n + 1, body) for n in range(25)]
                stack.enter_context(on_thread(lambda s=send: [client.send(m, LIMIT_S) for m in s]))
            got = [server.receive(LIMIT_S) for _ in range(100)]
    for message in got:
        assert message.body == bodies[message.request_id // 100]
    for k in range(4):
        ids = [m.request_id for m in got if m.request_id // 100 == k]
        assert ids == sorted(ids)


# --------------------------------------------------------------------------------------- call


def test_call_returns_the_reply_drops_stale_ones_and_answers_pings():
    def serve(server):
        request = server.receive(LIMIT_S)
        server.send(step_reply(request.request_id + 1000))
        server.send(Message(Kind.PING, request.request_id))
        server.send(step_reply(request.request_id))
        pong = server.receive(LIMIT_S)
        assert (pong.kind, pong.request_id) == (Kind.PONG, request.request_id)

    with connected() as (client, server), on_thread(serve, server):
        reply = client.call(step_request(client.next_id()), LIMIT_S)
        assert same(reply.body, step_reply().body)


def test_call_returns_an_error_as_a_message():
    def serve(server):
        request = server.receive(LIMIT_S)
        server.send(Message(Kind.ERROR, request.request_id, ErrorBody(code="internal")))

    with connected() as (client, server), on_thread(serve, server):
        reply = client.call(step_request(client.next_id()))
        assert reply.body == ErrorBody(code="internal")


def test_call_ends_at_its_deadline_also_while_other_messages_come():
    with connected() as (client, server):
        stop = threading.Event()

        def chatter():
            number = 10
            while not stop.is_set():
                number += 1
                server.send(Message(Kind.PROBE, number, ProbeReply(b"")))

        with on_thread(chatter):
            begun = time.monotonic()
            try:
                with pytest.raises(TransportTimeout) as caught:
                    client.call(step_request(1), 0.2)
            finally:
                stop.set()
            assert time.monotonic() - begun < 0.2 + 0.25
            assert caught.value.timeout_s == pytest.approx(0.2, abs=0.2)


def test_request_ids_are_never_0_and_never_the_same():
    with connected() as (client, _):
        ids = [client.next_id() for _ in range(100)]
    assert ids[0] == 1
    assert len(set(ids)) == 100


# ---------------------------------------------------------------------------------- deadlines


@everywhere
def test_p1_a_receive_ends_at_its_deadline_and_the_connection_lives_on(address):
    with connected(address) as (client, server):
        begun = time.monotonic()
        for timeout_s in (0.05, 0):
            with pytest.raises(TransportTimeout, match="nothing came within") as caught:
                client.receive(timeout_s)
            assert caught.value.is_usable
            assert isinstance(caught.value, TimeoutError)
        assert 0.05 <= time.monotonic() - begun < 0.05 + 0.25
        server.send(Message(Kind.PING, 1))
        assert client.receive(LIMIT_S).kind is Kind.PING


@pytest.mark.parametrize("cut", [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 100, -1])
def test_p1_a_message_that_stops_ends_at_the_deadline_too(cut):
    data = to_bytes([camera_reply()], CAMERA)[0]
    with raw_tcp() as (raw, server):
        server.admit()
        server.framing.bind(CAMERA.codec, ARM.codec, 64)
        raw.sendall(data[:cut])
        begun = time.monotonic()
        with pytest.raises(TransportTimeout) as caught:
            server.receive(0.1)
        assert time.monotonic() - begun < 0.1 + 0.25
        assert not caught.value.is_usable
        assert not server.is_open
        with pytest.raises(ConnectionLost, match="cut at its deadline"):
            server.receive(0.1)


def test_p1_a_slow_peer_cannot_stretch_the_deadline():
    data = to_bytes([MESSAGES[0]])[0]
    with raw_tcp() as (raw, server):
        done = threading.Event()

        def drip():
            for place in range(len(data)):
                if done.wait(0.01):
                    return
                raw.sendall(data[place : place + 1])

        with on_thread(drip):
            begun = time.monotonic()
            with pytest.raises(TransportTimeout):
                server.receive(0.1)
            assert time.monotonic() - begun < 0.1 + 0.25
            done.set()


def test_p1_a_send_waits_for_its_turn_no_longer_than_its_limit():
    taken, enough = threading.Event(), threading.Event()
    with connected() as (client, server):

        def send_for_long():
            with client._send_lock:
                taken.set()
                enough.wait(LIMIT_S)

        with on_thread(send_for_long):
            assert taken.wait(LIMIT_S)
            with pytest.raises(TransportTimeout, match="others are still sending") as late:
                client.send(Message(Kind.PROBE, 1, Probe(b"a")), 0.05)
            enough.set()
        assert late.value.is_usable
        client.send(Message(Kind.PROBE, 2, Probe(b"b")), 0.05)
        assert server.receive(LIMIT_S).request_id == 2


@everywhere
def test_an_end_knows_without_waiting_that_the_other_one_has_left(address):
    with connected(address) as (client, server):
        assert not server.is_gone()
        client.send(Message(Kind.PROBE, 1, Probe(b"a")))
        assert not server.is_gone()
        client.close()
        assert server.is_gone()
        assert client.is_gone()
        assert server.receive(LIMIT_S).request_id == 1, "looking takes nothing away"


def test_p1_signals_cannot_stretch_the_deadline():
    ticks = []
    before = signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
    try:
        with connected() as (client, _):
            signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
            begun = time.monotonic()
            with pytest.raises(TransportTimeout) as caught:
                client.receive(0.15)
            assert time.monotonic() - begun < 0.15 + 0.25
            assert caught.value.is_usable
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(ticks) > 3


@everywhere
def test_signals_do_not_disturb_messages(address):
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    big = Message(Kind.PROBE, 1, Probe(bytes(8_000_000)))
    try:
        with connected(address) as (client, server):
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            with on_thread(lambda: [server.receive(LIMIT_S) for _ in range(5)]):
                for _ in range(5):
                    client.send(big, LIMIT_S)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@everywhere
def test_p1_a_send_ends_at_its_deadline_when_nobody_reads(address):
    big = Message(Kind.PROBE, 1, Probe(bytes(50_000_000)))
    with connected(address) as (client, _):
        begun = time.monotonic()
        with pytest.raises(TransportTimeout, match="did not take") as caught:
            client.send(big, 0.1)
        assert time.monotonic() - begun < 0.1 + 0.5
        assert not caught.value.is_usable
        with pytest.raises(ConnectionLost):
            client.send(Message(Kind.PING, 1))


# --------------------------------------------------------------------------- cancel and close


@everywhere
@pytest.mark.parametrize("how", ["shutdown", "close"])
def test_another_thread_ends_a_receive_at_once(address, how):
    with connected(address) as (client, _):

        def wait():
            with pytest.raises(ConnectionLost, match=r"cancelled by caller|closed here"):
                client.receive()

        with on_thread(wait):
            if how == "shutdown":
                client.shutdown("cancelled by caller")
            else:
                client.close()
        assert not client.is_open


def test_another_thread_ends_a_send_at_once():
    with connected() as (client, _):

        def push():
            with pytest.raises(ConnectionLost):
                client.send(Message(Kind.PROBE, 1, Probe(bytes(50_000_000))))

        with on_thread(push):
            client.shutdown()


def test_a_signal_handler_may_close_what_its_thread_waits_for():
    with connected() as (client, _):
        before = signal.signal(signal.SIGALRM, lambda *_: client.close())
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(ConnectionLost, match="closed here"):
                client.receive(LIMIT_S)
        finally:
            signal.signal(signal.SIGALRM, before)


@everywhere
def test_the_other_end_hears_of_a_close_after_all_that_was_sent(address):
    with connected(address) as (client, server):
        server.send(Message(Kind.PROBE, 1, Probe(b"last words")))
        server.close()
        assert client.receive(LIMIT_S).body == Probe(b"last words")
        with pytest.raises(ConnectionLost, match="the peer closed") as caught:
            client.receive(LIMIT_S)
        assert caught.value.address == client.address
        assert isinstance(caught.value, ConnectionError)
        with pytest.raises(ConnectionLost):
            client.send(Message(Kind.PING, 1))
        client.close()
        client.close()


def test_a_peer_that_dies_in_the_middle_of_a_message_is_lost():
    data = to_bytes([camera_reply()], CAMERA)[0]
    with raw_tcp() as (raw, server):
        server.admit()
        server.framing.bind(CAMERA.codec, ARM.codec, 64)
        raw.sendall(data[:100_000])
        raw.close()
        with pytest.raises(ConnectionLost, match="middle of a message"):
            server.receive(LIMIT_S)


def test_a_message_that_has_no_form_leaves_the_connection_as_it_was():
    with connected() as (client, server):
        with pytest.raises(WireError):
            client.send(Message(Kind.STEP, 1, Cancel()))
        client.send(step_request())
        assert same(server.receive(LIMIT_S).body, step_request().body)


# ------------------------------------------------------------------------------ hostile peers


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n" * 10, bytes(100), b"\xa7\x09" + bytes(100), b"PRI * HTTP/2.0" * 9],
)
def test_p12_a_stranger_is_refused_with_a_sentence(data):
    with raw_tcp() as (raw, server):
        raw.sendall(data)
        with pytest.raises(WireError, match=r"no rollmesh message|frame version"):
            server.receive(LIMIT_S)
        with pytest.raises(ConnectionLost):
            server.receive(LIMIT_S)


def test_p12_a_stranger_at_a_socket_file_is_refused():
    with listen(ADDRESSES[0]) as listener, socket.socket(socket.AF_UNIX) as raw:
        raw.connect(listener.address.path)
        with listener.accept(LIMIT_S) as server:
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises(WireError, match="no rollmesh greeting"):
                server.receive(LIMIT_S)


def test_before_admission_messages_are_small():
    with raw_tcp() as (raw, server):
        raw.sendall(to_bytes([Message(Kind.PROBE, 1, Probe(bytes(16 * 2**10 - 4)))])[0])
        assert server.receive(LIMIT_S).nbytes == 16 * 2**10
    with raw_tcp() as (raw, server):
        raw.sendall(to_bytes([Message(Kind.PROBE, 1, Probe(bytes(16 * 2**10)))])[0])
        with pytest.raises(WireError, match="at most 16384"):
            server.receive(LIMIT_S)


@pytest.mark.parametrize(("payload", "section"), [(0, 2**28), (2**28, 0), (2**27, 2**27)])
def test_p12_what_is_announced_but_never_comes_takes_no_memory(payload, section):
    fields = [MAGIC, VERSION, Kind.STEP, 1, 1, 0, 4, 0, payload, section, 0, 1, 0]
    with raw_tcp() as (raw, server):
        server.admit()
        server.framing.bind(ROBOT.codec, ARM.codec, 64)
        raw.sendall(HEADER.pack(*fields) + bytes(2**16))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises((TransportTimeout, WireError)):
            server.receive(0.1)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown * 1024 < 50 * 2**20


def test_p12_random_bytes_on_a_live_connection():
    chance = random.Random(9)
    good = b"".join(to_bytes(MESSAGES))
    for _ in range(150):
        data = bytearray(good)
        for _ in range(3):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with raw_tcp() as (raw, server):
            server.admit()
            server.framing.bind(ROBOT.codec, ARM.codec, 64)
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            with pytest.raises((WireError, ConnectionLost)):
                receive_all(server)


def test_a_payload_in_shared_memory_needs_shared_memory():
    fields = [MAGIC, VERSION, Kind.STEP, 3, 1, 0, 1, 0, 8 + 256 * 256 * 3, 0, 1, 1, 0]
    with raw_tcp() as (raw, server):
        server.admit()
        server.framing.bind(CAMERA.codec, ARM.codec, 64)
        raw.sendall(HEADER.pack(*fields))
        with pytest.raises(WireError, match="none was set up"):
            server.receive(LIMIT_S)


def test_the_largest_message_passes_and_one_byte_more_does_not():
    # as sizes only: a quarter of a gigabyte is not moved
    with connected() as (client, _):
        assert client.most_bytes == SIZE_LIMITS.message_bytes
        with pytest.raises(WireError, match="at most"):
            client.send(Message(Kind.PROBE, 1, Probe(bytes(SIZE_LIMITS.message_bytes))))


# -------------------------------------------------------------------------------------- dialing


def test_nobody_there_is_a_clear_error_that_may_be_retried(tmp_path):
    with listen(ADDRESSES[1]) as listener:
        port = listener.address.port
    for address in (f"rollmesh+tcp://127.0.0.1:{port}", "rollmesh+unix:///tmp/nobody.sock"):
        with pytest.raises(ConnectFailed, match="is the server running") as caught:
            dial(address)
        assert caught.value.address == address


def test_other_protocols_are_refused():
    for text in ("tcp://127.0.0.1:5", "unix:///x.sock"):
        with pytest.raises(InvalidSpec, match="speaks grpc"):
            dial(text)
        with pytest.raises(InvalidSpec, match="speaks grpc"):
            listen(text)


@pytest.mark.parametrize("address", ADDRESSES[1:])
def test_c69_no_delay_on_both_ends(address):
    with connected(address) as (client, server):
        for end in (client, server):
            assert end._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_localhost_reaches_either_loopback_without_a_wait():
    for host in ("127.0.0.1", "[::1]", "localhost"):
        with listen(f"rollmesh+tcp://{host}:0") as listener:
            begun = time.monotonic()
            client = dial(f"rollmesh+tcp://localhost:{listener.address.port}")
            with client, listener.accept(LIMIT_S):
                assert client.is_open
            assert time.monotonic() - begun < 1


def test_remaining_parts_after_a_short_write():
    parts = [b"abc", b"", np.arange(4, dtype=np.uint8), b"xyz"]
    whole = b"abc\0\1\2\3xyz"
    for sent in range(len(whole) + 1):
        assert b"".join(remaining(parts, sent)) == whole[sent:]
    assert remaining(parts, len(whole)) == []


def test_it_takes_any_connected_socket():
    left, right = socket.socketpair()
    with NativeConnection(left, "left") as one, NativeConnection(right, "right") as other:
        one.send(Message(Kind.PING, 3))
        assert other.receive(LIMIT_S).request_id == 3


_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", 0)


@pytest.mark.skipif(not _USER_TIMEOUT, reason="this system has no such option")
def test_tcp_notices_a_machine_that_is_gone():
    with listen("rollmesh+tcp://127.0.0.1:0") as listener, dial(listener.address) as ours:
        theirs = listener.accept(5)
        for end in (ours, theirs):
            assert end._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            # an answer that is waited for on a way that is gone: the system asks nobody then
            unheard_ms = end._sock.getsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT)
            assert 10_000 < unheard_ms < 60_000
        theirs.close()


@pytest.mark.parametrize(("peer", "spins"), [(Peer.SAME_MACHINE, False), (Peer.STRANGER, True)])
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_server_on_a_machine_with_too_few_cores_leaves_spinning_to_its_client(
    monkeypatch, address, peer, spins
):
    monkeypatch.setattr(spin, "usable_cores", lambda: 2)
    with connected(address, ConnectionOptions(spin="auto")) as (client, server):
        assert server.peer is not Peer.STRANGER
        server.peer = peer
        server.share(2)
        assert server._spinner.resume_ns < NEVER_NS
        server.share(3)
        assert (server._spinner.resume_ns < NEVER_NS) is spins
        client.send(Message(Kind.PING, 1))
        assert server.receive(LIMIT_S).kind is Kind.PING
