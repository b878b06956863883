"""The fault proxy: bytes pass as they are until something is done to them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from rollmesh.errors import ConnectionLost, InvalidSpec
from rollmesh.ports import StepReply
from rollmesh.testing.faults import FaultProxy, LinkFaults, PipeFaults, seeded_plan
from rollmesh.transport.connection import ConnectionOptions
from rollmesh.transport.dialing import dial, listen
from rollmesh.wire.messages import Kind, Message, Probe
from tests.unit.frame_toys import ARM, CAMERA, same

LIMIT_S = 10.0
ADDRESSES = ["rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0", "rollmesh+tcp://[::1]:0"]
everywhere = pytest.mark.parametrize("address", ADDRESSES)
UNIX, TCP = ADDRESSES[:2]


def to_unix(path):
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.settimeout(LIMIT_S)
        sock.connect(path)
        stack.pop_all()
        return sock


def to_tcp(where):
    return socket.create_connection((where.host, where.port), LIMIT_S)


class Ends:
    """A client's and a server's plain socket with a proxy between them."""

    def __init__(self, address, plan=None):
        self.listener = listen(address)
        self.proxy = FaultProxy(self.listener.address, plan)

    def connect(self):
        where = self.proxy.address
        client = to_unix(where.path) if where.family == "unix" else to_tcp(where)
        server = self.listener.accept_socket(LIMIT_S)
        if server is not None:
            server.settimeout(LIMIT_S)
        return client, server


@contextlib.contextmanager
def between(address, plan=None):
    ends = Ends(address, plan)
    with ends.listener, ends.proxy:
        yield ends


def read(sock, nbytes):
    data = bytearray()
    while len(data) < nbytes and (more := sock.recv(nbytes - len(data))):
        data += more
    return bytes(data)


def refused_plan(number):
    return LinkFaults(is_refused=number == 0)


def read_to_end(sock):
    """Return what comes until the end, and whether that was a reset."""
    data = bytearray()
    try:
        while more := sock.recv(65536):
            data += more
    except ConnectionResetError:
        return bytes(data), True
    return bytes(data), False


@everywhere
def test_bytes_pass_both_ways_and_ends_are_passed_on(address):
    data = bytes(range(256)) * 4000
    with between(address) as ends:
        client, server = ends.connect()
        with client, server:
            sender = threading.Thread(target=client.sendall, args=(data,))
            sender.start()
            assert read(server, len(data)) == data
            sender.join()
            server.sendall(b"answer")
            assert read(client, 6) == b"answer"
            client.shutdown(socket.SHUT_WR)
            assert read_to_end(server) == (b"", False)
            server.sendall(b"last words")
            server.close()
            assert read_to_end(client) == (b"last words", False)
        assert ends.proxy.wait_for(lambda links: not links[0].is_open, LIMIT_S)
        (state,) = ends.proxy.links
        assert (state.up_bytes, state.down_bytes) == (len(data), 16)
        assert state.ended == "both ends done"


@everywhere
@pytest.mark.parametrize("then", ["reset", "close"])
@pytest.mark.parametrize("at_byte", [0, 1, 100, 5000])
def test_a_cut_lets_exactly_so_many_bytes_pass(address, then, at_byte):
    plan = lambda number: LinkFaults(up=PipeFaults(at_byte=at_byte, then=then))  # noqa: E731
    with between(address, plan) as ends:
        try:
            client, server = ends.connect()
        except ConnectionResetError:  # before connecting came back
            assert (at_byte, then) == (0, "reset")
            return
        with client, server:
            with contextlib.suppress(OSError):
                client.sendall(b"x" * 9000)
            data, was_reset = read_to_end(server)
            assert data == b"x" * at_byte
            assert was_reset == (then == "reset" and ends.proxy.address.family == "tcp")
        assert ends.proxy.links[0].up_bytes == at_byte
        assert ends.proxy.links[0].ended == f"{then} at byte {at_byte} up"


def test_cut_after_counts_from_now():
    with between(TCP) as ends:
        client, server = ends.connect()
        with client, server:
            server.sendall(b"12345")
            assert read(client, 5) == b"12345"
            ends.proxy.cut_after(3, "down", "close")
            server.sendall(b"67890")
            assert read_to_end(client)[0] == b"678"


@everywhere
def test_pieces_come_in_order(address):
    data = bytes(range(200))
    with between(address) as ends:
        ends.proxy.change("down", piece_bytes=7, bytes_per_s=2000)
        client, server = ends.connect()
        with client, server:
            server.sendall(data)
            sizes = []
            got = b""
            while len(got) < len(data):
                more = client.recv(4096)
                sizes.append(len(more))
                got += more
            assert got == data
            assert len(sizes) > 1


@everywhere
def test_a_stall_lasts_until_resume_and_loses_nothing(address):
    with between(address) as ends:
        client, server = ends.connect()
        with client, server:
            ends.proxy.stall("up")
            client.sendall(b"held")
            server.sendall(b"passes")
            assert read(client, 6) == b"passes"
            server.settimeout(0.05)
            with pytest.raises(TimeoutError):
                server.recv(4)
            server.settimeout(LIMIT_S)
            ends.proxy.resume("up")
            assert read(server, 4) == b"held"


def test_a_stall_also_holds_for_links_to_come():
    with between(TCP) as ends:
        ends.proxy.stall()
        client, server = ends.connect()
        with client, server:
            client.sendall(b"held")
            server.settimeout(0.05)
            with pytest.raises(TimeoutError):
                server.recv(4)
            ends.proxy.resume()
            server.settimeout(LIMIT_S)
            assert read(server, 4) == b"held"


def test_a_stall_at_a_byte_ends_by_itself():
    plan = lambda number: LinkFaults(down=PipeFaults(at_byte=2, then="stall", stall_s=0.1))  # noqa: E731
    with between(TCP, plan) as ends:
        client, server = ends.connect()
        with client, server:
            server.sendall(b"abcd")
            assert read(client, 2) == b"ab"
            begun = time.monotonic()
            assert read(client, 2) == b"cd"
            assert time.monotonic() - begun > 0.05


def test_delay_and_bandwidth_take_their_time():
    with between(TCP) as ends:
        client, server = ends.connect()
        with client, server:
            ends.proxy.change("up", delay_s=0.1)
            begun = time.monotonic()
            client.sendall(b"late")
            assert read(server, 4) == b"late"
            assert time.monotonic() - begun >= 0.1
            ends.proxy.change("up", delay_s=0.0, bytes_per_s=20_000)
            begun = time.monotonic()
            client.sendall(b"x" * 4000)
            assert read(server, 4000) == b"x" * 4000
            assert time.monotonic() - begun >= 0.15


@everywhere
def test_half_close_ends_one_direction(address):
    with between(address) as ends:
        client, server = ends.connect()
        with client, server:
            ends.proxy.half_close("down")
            assert read_to_end(client) == (b"", False)
            client.sendall(b"still here")
            assert read(server, 10) == b"still here"


@everywhere
def test_an_outage_resets_refuses_and_comes_back_at_the_same_address(address):
    with between(address) as ends:
        before = ends.proxy.address
        client, server = ends.connect()
        with client, server:
            ends.proxy.outage()
            assert read_to_end(client)[0] == b""
            with pytest.raises(ConnectionRefusedError):
                ends.connect()
            ends.proxy.restore()
        assert ends.proxy.address == before
        client, server = ends.connect()
        with client, server:
            client.sendall(b"again")
            assert read(server, 5) == b"again"
        assert ends.proxy.links[0].ended == "outage"


def test_an_outage_ends_by_itself():
    with between(UNIX) as ends:
        ends.proxy.outage(0.05)
        expiry = time.monotonic() + LIMIT_S
        while time.monotonic() < expiry:
            with contextlib.suppress(ConnectionRefusedError):
                client, server = ends.connect()
                break
        with client, server:
            client.sendall(b"again")
            assert read(server, 5) == b"again"


def test_refuse_leaves_links_alone():
    with between(UNIX) as ends:
        client, server = ends.connect()
        with client, server:
            ends.proxy.refuse()
            with pytest.raises(ConnectionRefusedError):
                ends.connect()
            client.sendall(b"fine")
            assert read(server, 4) == b"fine"


def test_a_target_that_is_down_resets_the_link_and_may_be_exchanged():
    with between(TCP) as ends, listen(TCP) as other:
        dead = listen(TCP)
        dead.close()
        ends.proxy.retarget(dead.address)
        with contextlib.suppress(ConnectionResetError), to_tcp(ends.proxy.address) as client:
            assert read_to_end(client)[0] == b""
        assert ends.proxy.wait_for(len, LIMIT_S)
        assert ends.proxy.links[0].ended == "the target did not answer"
        ends.proxy.retarget(str(other.address))
        with to_tcp(ends.proxy.address) as client:
            server = other.accept_socket(LIMIT_S)
            with server:
                client.sendall(b"hello")
                assert read(server, 5) == b"hello"


def test_a_seeded_plan_is_the_same_each_time_and_differs_by_link():
    first, second = (seeded_plan(7, most_bytes=1000) for _ in range(2))
    drawn = [first(number) for number in range(50)]
    assert drawn == [second(number) for number in reversed(range(50))][::-1]
    assert len(set(drawn)) > 40
    assert all((one.up.at_byte is None) != (one.down.at_byte is None) for one in drawn)
    clean = [seeded_plan(7, most_bytes=9, clean_share=1.0)(number) for number in range(9)]
    assert set(clean) == {LinkFaults()}


def test_a_refused_link_never_reaches_the_server():
    with between(UNIX, refused_plan) as ends:
        with to_unix(ends.proxy.address.path) as client:
            assert read_to_end(client)[0] == b""
        assert ends.listener.accept_socket(0.0) is None
        client, server = ends.connect()
        with client, server:
            client.sendall(b"in")
            assert read(server, 2) == b"in"


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("piece_bytes", [None, 1000])
def test_native_connections_pass_with_their_shared_memory(shared, piece_bytes):
    options = ConnectionOptions(shared_memory=shared, spin="never")
    with listen(UNIX, options) as listener, FaultProxy(listener.address) as proxy:
        proxy.change(piece_bytes=piece_bytes)
        client, server = dial(proxy.address, options), listener.accept(LIMIT_S)
        with client, server:
            for end in (client, server):
                end.admit()
                end.framing.bind(CAMERA.codec, ARM.codec, 1)
            client.send(Message(Kind.PROBE, 1, Probe(b"hi")), LIMIT_S)
            assert server.receive(LIMIT_S).body == Probe(b"hi")
            image = np.full((1, 256, 256, 3), 9, np.uint8)
            reply = StepReply(observation=[image], rewards=(1.0,), infos=({},))
            for number in (1, 2):
                server.send(Message(Kind.STEP, number, reply), LIMIT_S)
                assert same(client.receive(LIMIT_S).body, reply)
            # a descriptor that was passed on carries the payload, not the proxy
            assert (proxy.links[0].down_bytes < 10_000) == shared
            proxy.reset()
            with pytest.raises(ConnectionLost):
                client.receive(LIMIT_S)


def test_close_leaves_no_file_and_no_thread_and_ends_links():
    with between(UNIX) as ends:
        client, server = ends.connect()
        path = Path(ends.proxy.address.path)
        assert path.exists()
        ends.proxy.close()
        ends.proxy.close()
        with client, server:
            assert read_to_end(client)[0] == b""
            assert read_to_end(server)[0] == b""
        assert not path.parent.exists()
        assert not [one for one in threading.enumerate() if one.name == "fault-proxy"]
        with pytest.raises(RuntimeError, match="closed"):
            ends.proxy.stall()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"at_byte": -1}, "at_byte"),
        ({"then": "explode"}, "then"),
        ({"piece_bytes": 0}, "piece_bytes"),
        ({"bytes_per_s": 0}, "bytes_per_s"),
        ({"delay_s": -1.0}, "delay_s"),
    ],
)
def test_faults_that_mean_nothing_are_refused(fields, field):
    with pytest.raises(InvalidSpec) as refusal:
        PipeFaults(**fields)
    assert refusal.value.field == field


def test_memory_has_no_bytes_to_break():
    with pytest.raises(InvalidSpec, match="no bytes to break"):
        FaultProxy("mem://here")
