"""P12 on a live port: any bytes are accepted or refused, and the server goes on.

Real sessions are spoiled with their structure in mind (the mutants of `test_frames_properties`):
before the hello, instead of it, and in the middle of a session. Each connection must end, the
server must serve the next client, print no traceback, and keep its memory and descriptors.
"""

from __future__ import annotations

import random
import select
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from rollmesh.ports import (
    EpisodeInfo,
    PredictRequest,
    ResetAdapterRequest,
    ResetRequest,
    StepRequest,
)
from rollmesh.transport.address import parse_address
from rollmesh.wire.contract import encode_contract
from rollmesh.wire.frames import HEADER_BYTES, read_header
from rollmesh.wire.framing import Framing
from rollmesh.wire.messages import (
    GENERATION,
    Cancel,
    Close,
    Configure,
    Hello,
    Kind,
    Message,
    Probe,
    Rebuild,
    Render,
    Resolve,
    Shutdown,
)
from tests.fault.parties import (
    ACTION,
    CONTEXT,
    CONTRACT,
    NATIVE,
    OBSERVATION,
    child_of,
    closing,
    env_port,
    model_port,
    predict,
    reset,
    step,
)
from tests.property.test_frames_properties import mutant, poke

GREETING = b"\xa7RM1\x00\x00\x00\x00"
GREETING_BYTES = len(GREETING)
MOST_GROWTH_BYTES = 50 * 2**20
END_S = 5.0
"""A spoiled connection has ended by then."""

ANSWER_S = 0.02
"""How long an answer is waited for before the next piece; not each piece has one."""

PATIENT_S = 0.5
"""The same for a good session, whose answers must come in order."""

SPOILED_GREETINGS = 0.05
MOST_OUTPUT = 2**24
everywhere = pytest.mark.parametrize("transport", NATIVE)
sides = pytest.mark.parametrize("side", ["env", "model"])


def hello(side):
    return Message(Kind.HELLO, 1, Hello(generation=GENERATION, service=side, peer={"host": "h"}))


def session_of(side):
    """Return the messages of a good session, hello first."""
    common = [
        Message(Kind.PING, 90),
        Message(Kind.PROBE, 91, Probe(b"p" * 100)),
        Message(Kind.CANCEL, 92, Cancel(reason="late")),
        Message(Kind.SHUTDOWN, 93, Shutdown(reason="please")),
    ]
    if side == "env":
        info = {"plain": 1, "array": np.arange(3), "nested": {"deep": [1, (2, None)]}}
        reset_request = ResetRequest(episode_ids=("e",), seeds=(1,), options=(info,))
        action = [np.ones((1, 1))]
        own = [
            Message(Kind.CONFIGURE, 2, Configure(edition="2026.06", settings={"a": "b"})),
            Message(Kind.RESET, 3, reset_request),
            Message(Kind.STEP, 4, StepRequest(action=action, episode_ids=("e",), timeout_ms=900)),
            Message(Kind.RENDER, 5, Render(env_indices=(0,))),
            Message(Kind.REBUILD, 6, Rebuild(env_indices=(0,))),
        ]
    else:
        request = PredictRequest(
            context=CONTEXT,
            observation=[np.zeros((2, 4))],
            episode_info=(EpisodeInfo("a", 1), EpisodeInfo("b", None)),
        )
        contract = encode_contract(CONTRACT)
        own = [
            Message(Kind.RESOLVE, 2, Resolve(context=CONTEXT, contract=contract)),
            Message(Kind.PREDICT, 3, request),
            Message(Kind.RESET_ADAPTER, 4, ResetAdapterRequest(CONTEXT, ("a",))),
        ]
    close = Message(Kind.CLOSE, 99, Close(reason="done"))
    return [hello(side), *own, *common, close]


def answers_of(side):
    """Return the kinds that a good session is answered with; a CANCEL is not."""
    swaps = {Kind.HELLO: Kind.WELCOME, Kind.PING: Kind.PONG}
    kinds = [message.kind for message in session_of(side) if message.kind is not Kind.CANCEL]
    return [swaps.get(kind, kind) for kind in kinds]


def frames_of(side):
    """Return header, payload and section of each message."""
    framing = Framing()
    framing.bind(OBSERVATION.codec, ACTION.codec, None)
    frames = [framing.encode(message) for message in session_of(side)]
    return [(frame.header(), b"".join(frame.parts), frame.section) for frame in frames]


def spoiled(chance, frames):
    """Return a session that goes wrong somewhere, as the pieces that are sent one by one."""
    whole = [b"".join(frame) for frame in frames]
    how = chance.randrange(6)
    if how == 0:  # not even a hello
        return [mutant(chance, frames)]
    if how == 1:
        return [chance.randbytes(chance.randrange(200))]
    if how == 2:
        return [poke(chance, whole[0]), *whole[1:]]
    good = whole[: chance.randrange(1, len(whole))]
    if how == 3:  # right messages in a wrong order
        return [*good, *chance.choices(whole, k=3)]
    return [*good, mutant(chance, frames), *whole[-2:]]


def send(address, pieces, answer_s=ANSWER_S):
    """Send pieces, each once there is an answer to the last, then the end; return what came back.

    Fails where the server does not end the connection.
    """
    where = parse_address(address)
    is_unix = where.family == "unix"
    family = socket.AF_UNIX if is_unix else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(END_S)
        sock.connect(where.path if is_unix else (where.host, where.port))
        back = b""
        try:
            for piece in pieces:
                sock.sendall(piece)
                if select.select([sock], [], [], answer_s)[0]:
                    back += sock.recv(65536)
            sock.shutdown(socket.SHUT_WR)
            while more := sock.recv(65536):
                back += more
        except TimeoutError:
            raise
        except OSError:  # refused in one way or another
            pass
        return back


def kinds_of(data):
    """Return the kinds of the messages in an answer, greeting left out."""
    data = data.removeprefix(data[:GREETING_BYTES] if data[:4] == GREETING[:4] else b"")
    kinds = []
    while data:
        header = read_header(data)
        kinds.append(header.kind)
        data = data[HEADER_BYTES + header.payload_bytes + header.section_bytes :]
    return kinds


def resident_bytes(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def descriptors(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def settles(pid, most):
    """Return whether a process comes to have so few descriptors: sessions end a little later."""
    expiry = time.monotonic() + END_S
    while descriptors(pid) > most:
        if time.monotonic() > expiry:
            return False
        time.sleep(0.02)
    return True


def serves(side, address):
    """Check that a good client is served."""
    if side == "env":
        with closing(env_port(address)) as port:
            assert reset(port, 4)[0].tolist() == [4, 0, 0, 0]
            assert step(port, 3)[0].tolist() == [4, 1, 3, 3]
    else:
        with closing(model_port(address)) as port:
            assert predict(port, [1, 2, 3, 0]) == 6


def attack(side, transport, count, seed):
    chance = random.Random(seed)
    frames = frames_of(side)
    with child_of(side, transport, resume_grace_s=0.0) as child:
        address = child.ready
        start = [GREETING] if transport == "unix" else []
        for pieces in ([], start, [*start, frames[0][0]]):
            send(address, pieces)
        good = send(address, [*start, *[b"".join(frame) for frame in frames]], PATIENT_S)
        assert kinds_of(good) == answers_of(side)
        serves(side, address)
        memory, held = resident_bytes(child.pid), descriptors(child.pid)
        answered = 0
        for number in range(count):
            greeting = start
            if start and chance.random() < SPOILED_GREETINGS:
                greeting = [poke(chance, GREETING)]
            answered += bool(send(address, [*greeting, *spoiled(chance, frames)]))
            if number % 50 == 49:
                serves(side, address)
        assert answered > count // 4
        assert child.is_running, child.output()
        assert resident_bytes(child.pid) - memory < MOST_GROWTH_BYTES
        assert settles(child.pid, held + 4)
        child.terminate()
        assert child.wait(20.0) == 0, child.output()
        printed = child.output(MOST_OUTPUT)
        assert "Traceback" not in printed, printed[-20_000:]


@pytest.mark.fault
@sides
@everywhere
def test_p12_any_bytes_on_a_live_port(side, transport):
    attack(side, transport, 100, 5)


@pytest.mark.fault_full
@pytest.mark.parametrize("seed", range(5))
@sides
@everywhere
def test_p12_any_bytes_on_a_live_port_full(side, transport, seed):
    attack(side, transport, 100, 100 + seed)
