"""Client and server connections over gRPC, between each other and with what a stranger may send."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rollmesh.errors import (
    ConnectFailed,
    ConnectionLost,
    InvalidValue,
    ListenFailed,
    TransportTimeout,
    WireError,
)
from rollmesh.ports import (
    AdapterContext,
    Completion,
    EnvContract,
    EpisodeInfo,
    PredictReply,
    PredictRequest,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.spaces.space import Box, Discrete
from rollmesh.transport import grpc_server
from rollmesh.transport.address import parse_address
from rollmesh.transport.connection import ConnectionOptions
from rollmesh.transport.grpc_client import GrpcConnection, dial_grpc
from rollmesh.transport.grpc_common import BUSY
from rollmesh.transport.grpc_listener import GrpcListener
from rollmesh.transport.grpc_loading import grpc
from rollmesh.transport.security import Peer, Token
from rollmesh.wire import protobuf as wire
from rollmesh.wire._gen import rlmesh_env_v1_pb2 as env_pb
from rollmesh.wire._gen import rlmesh_model_v1_pb2 as model_pb
from rollmesh.wire.contract import decode_contract, encode_contract
from rollmesh.wire.dialect import FOREIGN
from rollmesh.wire.messages import (
    GENERATION,
    Cancel,
    Close,
    Done,
    ErrorBody,
    Hello,
    Kind,
    Message,
    Probe,
    ProbeReply,
    Render,
    Resolve,
    ResolveReply,
    Shutdown,
    ShutdownReply,
    Welcome,
)
from rollmesh.wire.proto_health import read_health, write_health_request

CONTRACT = EnvContract(id="toy", observation_space=Box((2,)), action_space=Discrete(4), num_envs=2)
OBSERVATION = [np.array([[1, 2], [3, 4]], np.float32)]
ACTION = [np.array([1, 2], np.int64)]
IDS = ("e1", "e2")
TOKEN = Token("0123456789abcdef0123456789abcdef")


class Toy:
    """A host that hands its connections to the test."""

    def __init__(self, service: Any = "env", token: Token | None = None) -> None:
        self.service = service
        self.token = token
        self.joined: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.healthy = True
        self.refusal: ErrorBody | None = None
        self.asked: list[Hello] = []
        self.peer: Peer | None = None

    def describe(self, hello: Hello) -> Welcome | ErrorBody:
        self.asked.append(hello)
        if self.refusal is not None:
            return self.refusal
        contract = encode_contract(CONTRACT) if self.service == "env" else b""
        return Welcome(generation=GENERATION, contract=contract, capabilities={"can": "true"})

    def join(self, connection: Any, peer: Peer) -> None:
        self.peer = peer
        self.joined.put(connection)

    def shutdown(self, request: Shutdown) -> ShutdownReply:
        return ShutdownReply(is_accepted=request.reason == "please", detail="no")

    def is_serving(self) -> bool:
        return self.healthy


class Pair:
    """A listener, and connections through it."""

    def __init__(self, service: Any = "env", token: Token | None = None) -> None:
        self.host = Toy(service, token)
        self.listener = GrpcListener(parse_address("tcp://127.0.0.1:0", "bind"), self.host)
        self.listener.open()
        self.opened: list[Any] = []

    def dial(self, **options: Any) -> GrpcConnection:
        connection = dial_grpc(self.listener.address, ConnectionOptions(**options), timeout_s=5)
        self.opened.append(connection)
        return connection

    def accept(self) -> Any:
        connection = self.host.joined.get(timeout=5)
        self.opened.append(connection)
        return connection

    def meet(self, **options: Any) -> tuple[GrpcConnection, Any]:
        """Return both ends once the hello is done."""
        client = self.dial(**options)
        client.send(hello(self.host.service), 5)
        server = self.accept()
        assert server.receive(5).kind is Kind.HELLO
        server.admit()
        server.send(welcome(server))
        assert client.receive(5).body.session_id == "s1"
        return client, server

    def channel(self) -> Any:
        return grpc.insecure_channel(str(self.listener.address).removeprefix("tcp://"))

    def close(self) -> None:
        for connection in self.opened:
            connection.close()
        self.listener.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    one = Pair()
    yield one
    one.close()


@pytest.fixture
def model_pair() -> Iterator[Pair]:
    one = Pair("model")
    yield one
    one.close()


def hello(service: str = "env", session_id: str = "", token: str = "") -> Message:
    body = Hello(generation=GENERATION, service=service, session_id=session_id, token=token)
    return Message(Kind.HELLO, 1, body)


def welcome(server: Any, **given: Any) -> Message:
    contract = encode_contract(CONTRACT) if server._service == "env" else b""
    given = {"session_id": "s1", "contract": contract, **given}
    return Message(Kind.WELCOME, server._hello_id, Welcome(generation=GENERATION, **given))


def step() -> StepRequest:
    return StepRequest(action=ACTION, episode_ids=IDS, timeout_ms=500)


# ----------------------------------------------------------------------------------- the hello


def test_the_hello_and_the_welcome_say_all_there_is(pair):
    client = pair.dial()
    client.send(hello(session_id="old"), 5)
    server = pair.accept()
    got = server.receive(5).body
    assert (got.generation, got.service, got.session_id) == (GENERATION, "env", "old")
    assert got.capabilities["rollmesh.details.v1"] == "true"
    assert not server.is_foreign
    server.send(welcome(server, is_resumed=True, capabilities={"subset_step": "true"}))
    said = client.receive(5)
    assert (said.kind, said.request_id) == (Kind.WELCOME, 1)
    assert (said.body.session_id, said.body.is_resumed) == ("s1", True)
    assert said.body.capabilities["subset_step"] == "true"
    assert decode_contract(said.body.contract) == CONTRACT
    assert pair.host.peer is Peer.SAME_MACHINE


def test_a_client_in_the_queue_hears_its_position_each_time(pair):
    client = pair.dial()
    client.send(hello(), 5)
    server = pair.accept()
    server.receive(5)
    for position, detail in ((3, ""), (1, ""), (1, "its env is being built")):
        server.send(welcome(server, position=position, detail=detail, contract=b""))
        said = client.receive(5).body
        assert (said.is_compatible, said.position, said.detail) == (True, position, detail)
    server.send(welcome(server))
    assert client.receive(5).body.position == 0
    client.send(Message(Kind.PROBE, 7, Probe(b"x")))
    server.admit()
    assert server.receive(5).body == Probe(b"x")


@pytest.mark.parametrize("code", ["busy", "draining", "unauthenticated", "odd_one"])
def test_a_refusal_keeps_its_code_and_words(pair, code):
    client = pair.dial()
    client.send(hello(), 5)
    server = pair.accept()
    server.receive(5)
    server.send(Message(Kind.ERROR, 1, ErrorBody(code=code, message="try later")))
    refused = client.receive(5)
    assert (refused.kind, refused.body.code, refused.body.message) == (
        Kind.ERROR,
        code,
        "try later",
    )
    with pytest.raises(ConnectionLost):
        client.receive(5)


def test_a_server_that_ends_is_as_good_as_gone(pair):
    client = pair.dial()
    pair.host.refusal = ErrorBody(code="draining", message="about to end")
    with pytest.raises(ConnectionLost, match="about to end"):
        client.send(hello(), 5)


def test_a_wrong_token_is_an_answer_to_the_hello():
    pair = Pair(token=TOKEN)
    try:
        client = pair.dial()
        client.send(hello(token="wrong"), 5)
        assert client.receive(5).body.code == "unauthenticated"
        assert pair.host.asked == []
        client = pair.dial()
        client.send(hello(token=TOKEN.secret), 5)
        assert pair.accept().receive(5).body.token == TOKEN.secret
    finally:
        pair.close()


def test_another_service_is_told_by_name(model_pair):
    client = model_pair.dial()
    client.send(hello("env"), 5)
    refused = client.receive(5).body
    assert refused.code == "incompatible"
    assert "no env is served there" in refused.message


def test_another_generation_is_not_compatible(pair):
    with pair.channel() as channel:
        message = env_pb.HandshakeRequest()
        message.base.protocol_generation = "rlmesh-wire-v9"
        call = channel.unary_unary(f"/{wire.ENV_SERVICE}/Handshake")
        said, contract = wire.read_welcome("env", call(message.SerializeToString(), timeout=5))
        assert not said.is_compatible
        assert "rlmesh-wire-v9" in said.error
        assert contract is None
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=5)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details() == wire.MISSING_BASE


# --------------------------------------------------------------------------------- operations


def test_every_operation_of_an_env_passes_with_its_id(pair):
    client, server = pair.meet()
    reset = ResetReply(observation=OBSERVATION, infos=({"t": (1, 2)}, {}))
    over = Completion(env_index=1, terminated=True, truncated=False, final_info={"k": 1})
    stepped = StepReply(
        observation=OBSERVATION, rewards=(1.0, 2.0), infos=({}, {}), completions=(over,)
    )
    cases: list[tuple[Kind, Any, Any]] = [
        (Kind.RESET, ResetRequest(episode_ids=IDS, seeds=(1, 2), options=({"a": 1}, None)), reset),
        (Kind.STEP, step(), stepped),
        (Kind.RENDER, Render(env_indices=(1,)), None),
        (Kind.PROBE, Probe(b"abc"), ProbeReply(b"abc")),
        (Kind.CLOSE, Close(reason="bye", timeout_ms=3, close_env=True), Done()),
    ]
    for number, (kind, request, reply) in enumerate(cases, 2**40):
        client.send(Message(kind, number, request), 5)
        got = server.receive(5)
        assert (got.kind, got.request_id) == (kind, number)
        assert got.nbytes > 0
        if kind is Kind.RENDER:
            continue
        server.send(Message(kind, number, reply), 5)
        back = client.receive(5)
        assert (back.kind, back.request_id, type(back.body)) == (kind, number, type(reply))
        if kind is Kind.STEP:
            assert back.body.completions == (over,)
            assert back.body.endpoint_total_ns is not None
            assert got.body.episode_ids == IDS
            assert np.array_equal(got.body.action[0], ACTION[0])


def test_an_error_keeps_all_that_it_says(pair):
    client, server = pair.meet()
    client.send(Message(Kind.STEP, 5, step()), 5)
    server.receive(5)
    body = ErrorBody(
        code="invalid_value",
        error_class="KeyError",
        message="no door",
        traceback_text="File …",
        is_recoverable=True,
        outcome="done",
        env_index=1,
        error_id="E1",
    )
    server.send(Message(Kind.ERROR, 5, body), 5)
    got = client.receive(5)
    assert (got.kind, got.request_id, got.body) == (Kind.ERROR, 5, body)


def test_ping_is_answered_by_the_other_end(pair):
    client, server = pair.meet()
    client.send(Message(Kind.PING, 9), 5)
    asked = server.receive(5)
    server.send(Message(Kind.PROBE, asked.request_id, ProbeReply(asked.body.payload)), 5)
    got = client.receive(5)
    assert (got.kind, got.request_id, got.body) == (Kind.PONG, 9, None)


def test_a_cancel_names_the_request_under_way(pair):
    client, server = pair.meet()
    client.send(Message(Kind.STEP, 5, step()), 5)
    assert server.receive(5).request_id == 5
    client.send(Message(Kind.CANCEL, 5, Cancel(reason="late")), 5)
    got = server.receive(5)
    assert (got.kind, got.request_id, got.body) == (Kind.CANCEL, 5, Cancel(reason="late"))
    assert client.send(Message(Kind.CANCEL, 77, Cancel(reason="never asked")), 5) == 0


def test_leaves_can_be_written_to_where_that_was_asked_for(pair):
    for writable in (False, True):
        client, server = pair.meet(writable=writable)
        client.send(Message(Kind.STEP, 5, step()), 5)
        server.receive(5)
        reply = StepReply(observation=OBSERVATION, rewards=(1.0, 2.0), infos=({}, {}))
        server.send(Message(Kind.STEP, 5, reply), 5)
        leaf = client.receive(5).body.observation[0]
        assert leaf.flags.writeable is writable
        assert np.array_equal(leaf, OBSERVATION[0])


def test_a_reply_that_does_not_fit_its_request_is_an_error_of_the_endpoint(pair):
    client, server = pair.meet()
    client.send(Message(Kind.RENDER, 5, Render()), 5)
    server.receive(5)
    server._speech._asked[5].body = Close()
    server.send(Message(Kind.CLOSE, 5, Done()), 5)
    got = client.receive(5)
    assert got.kind is Kind.ERROR
    assert "answered a Render with CLOSE" in got.body.message


def test_a_shutdown_is_a_call_of_its_own(pair):
    client, _ = pair.meet()
    for reason, is_accepted in (("please", True), ("now", False)):
        got = client.call(Message(Kind.SHUTDOWN, 3, Shutdown(reason=reason)), 5)
        assert got.body.is_accepted is is_accepted


def test_a_request_that_has_no_form_is_refused_and_nothing_is_sent(pair):
    client, server = pair.meet()
    with pytest.raises(InvalidValue, match="64 bits"):
        client.send(Message(Kind.RESET, 5, ResetRequest(episode_ids=IDS, seeds=(2**70, 1))), 5)
    client.send(Message(Kind.PROBE, 6, Probe(b"")), 5)
    assert server.receive(5).request_id == 6


# ------------------------------------------------------------------------------------- endings


def test_a_late_reply_is_known_by_its_id(pair):
    client, server = pair.meet()
    client.send(Message(Kind.PROBE, 5, Probe(b"slow")), 5)
    server.receive(5)
    begun = time.monotonic()
    with pytest.raises(TransportTimeout) as late:
        client.receive(0.2)
    assert time.monotonic() - begun < 0.5
    assert late.value.is_usable
    server.send(Message(Kind.PROBE, 5, ProbeReply(b"slow")), 5)
    assert client.receive(5).request_id == 5


def test_a_client_that_gives_up_can_still_say_so(pair):
    client, server = pair.meet()
    client.send(Message(Kind.STEP, 5, step()), 5)
    server.receive(5)
    with pytest.raises(TransportTimeout):
        client.receive(0.1)
    client.send(Message(Kind.CANCEL, 5, Cancel(reason="late")), 0.05)
    client.send(Message(Kind.CLOSE, 6, Close(reason="left")), 0.05)
    client.close()
    assert [server.receive(5).kind for _ in range(2)] == [Kind.CANCEL, Kind.CLOSE]


def test_a_shutdown_here_ends_a_wait_at_once(pair):
    for index in range(2):
        one = pair.meet()[index]
        timer = threading.Timer(0.1, one.shutdown, args=("enough",))
        timer.start()
        begun = time.monotonic()
        with pytest.raises(ConnectionLost, match="enough"):
            one.receive(5)
        assert time.monotonic() - begun < 0.5
        timer.join()
        with pytest.raises(ConnectionLost, match="enough"):
            one.send(Message(Kind.PROBE, 9, Probe(b"")))


def test_a_client_that_left_is_lost_and_may_come_back(pair):
    client, server = pair.meet()
    client.send(Message(Kind.STEP, 5, step()), 5)
    server.receive(5)
    client.shutdown()
    with pytest.raises(ConnectionLost):
        server.receive(5)
    with pytest.raises(ConnectionLost):
        server.send(Message(Kind.STEP, 5, StepReply(observation=[], rewards=(), infos=())), 5)


def test_p1_a_send_waits_for_its_turn_no_longer_than_its_limit(pair):
    client, server = pair.meet()
    client.send(Message(Kind.PROBE, 5, Probe(b"x")), 5)
    server.receive(5)
    reply = Message(Kind.PROBE, 5, ProbeReply(b"x"))
    with server._lock, pytest.raises(TransportTimeout, match="others are still") as late:
        server.send(reply, 0.05)
    assert late.value.is_usable
    server.send(reply, 0.05)
    assert client.receive(5).body == ProbeReply(b"x")


def test_a_server_knows_without_waiting_that_a_client_has_left(pair):
    client, server = pair.meet()
    assert not server.is_gone()
    client.shutdown()
    end = time.monotonic() + 5
    while not server.is_gone():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_nothing_larger_than_allowed_is_read(pair):
    client, server = pair.meet()
    server.most_bytes = 100
    client.send(Message(Kind.PROBE, 5, Probe(bytes(200))), 5)
    with pytest.raises(WireError, match="100 are allowed"):
        server.receive(5)
    with pytest.raises(ConnectionLost):
        client.receive(5)


def test_nobody_at_an_address_is_told_soon():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = parse_address(f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        begun = time.monotonic()
        with pytest.raises(ConnectFailed, match="is the server running"):
            dial_grpc(address, timeout_s=5)
        assert time.monotonic() - begun < 3


def test_a_peer_that_says_nothing_is_not_waited_for():
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = parse_address(f"tcp://127.0.0.1:{mute.getsockname()[1]}")
        begun = time.monotonic()
        with pytest.raises(ConnectFailed):
            dial_grpc(address, timeout_s=0.4)
        assert time.monotonic() - begun < 1


def test_proxies_are_not_followed(pair, monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    pair.dial()


# ----------------------------------------------------------------------------------- listening


def test_an_address_in_use_is_refused(pair, tmp_path):
    with pytest.raises(ListenFailed, match="in use"):
        GrpcListener(pair.listener.address, Toy())
    path = parse_address(f"unix://{tmp_path}/s.sock", "bind")
    first = GrpcListener(path, Toy())
    first.open()
    with pytest.raises(ListenFailed, match="in use"):
        GrpcListener(path, Toy())
    dial_grpc(path, timeout_s=5).close()
    first.close()
    assert not (tmp_path / "s.sock").exists()


def test_a_socket_file_is_its_users_alone_and_a_leftover_is_replaced(tmp_path):
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    listener = GrpcListener(parse_address(f"unix://{path}", "bind"), Toy())
    assert path.stat().st_mode & 0o777 == 0o600
    listener.close()


def test_health_follows_the_host(pair):
    with pair.channel() as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=20)
        assert read_health(next(watch)) == "serving"
        assert read_health(check(write_health_request(), timeout=5)) == "serving"
        pair.host.healthy = False
        assert read_health(check(write_health_request(), timeout=5)) == "not_serving"
        assert read_health(next(watch)) == "not_serving"
        with pytest.raises(grpc.RpcError) as unknown:
            check(write_health_request("some.Other"), timeout=5)
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        watch.cancel()


# -------------------------------------------------------------------------- what strangers send


class Stranger:
    """A released client's Join, by hand."""

    def __init__(self, pair: Pair, module: Any = env_pb) -> None:
        self._module = module
        service = wire.ENV_SERVICE if module is env_pb else wire.MODEL_SERVICE
        self._channel = pair.channel()
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        join = self._channel.stream_stream(f"/{service}/Join")
        self.responses = join(iter(self._requests.get, None), timeout=20)
        self.server = pair.accept()
        got = self.server.receive(5)
        assert (got.kind, got.body.capabilities) == (Kind.HELLO, {})
        assert self.server.is_foreign
        self.server.admit()

    def say(self, message: Any) -> None:
        self._requests.put(message if isinstance(message, bytes) else message.SerializeToString())

    def hear(self) -> Any:
        return self._module.JoinResponse.FromString(next(self.responses))

    def leave(self) -> None:
        self._requests.put(None)

    def close(self) -> None:
        self.leave()
        self.responses.cancel()
        self._channel.close()


@pytest.fixture
def stranger(pair: Pair) -> Iterator[Stranger]:
    one = Stranger(pair)
    one.server.send(welcome(one.server))
    yield one
    one.close()


def test_a_strangers_ids_come_back_as_they_were_whatever_they_are(stranger):
    for wire_id in ("grpc-req-1", "", "", "17", "x" * 5000):
        stranger.say(env_pb.JoinRequest(request_id=wire_id, render=env_pb.RenderRequest()))
    asked = [stranger.server.receive(5).request_id for _ in range(5)]
    assert len(set(asked)) == 5
    busy = ErrorBody(code="busy", is_recoverable=True)
    for number in reversed(asked):
        stranger.server.send(Message(Kind.ERROR, number, busy), 5)
    heard = [stranger.hear().request_id for _ in asked]
    assert heard == ["x" * 5000, "17", "", "", "grpc-req-1"]


def test_an_error_that_is_not_recoverable_ends_a_strangers_stream(stranger):
    stranger.say(env_pb.JoinRequest(request_id="a", render=env_pb.RenderRequest()))
    number = stranger.server.receive(5).request_id
    body = ErrorBody(code="invalid_value", error_class="ValueError", message="odd", outcome="done")
    stranger.server.send(Message(Kind.ERROR, number, body), 5)
    error = stranger.hear().error
    assert (error.code, error.is_recoverable) == (10, False)
    with pytest.raises(StopIteration):
        next(stranger.responses)
    assert stranger.server.receive(5).kind is Kind.CLOSE


def test_a_strangers_session_ends_with_its_stream(stranger):
    stranger.leave()
    got = stranger.server.receive(5)
    assert got.kind is Kind.CLOSE
    assert stranger.server.send(Message(Kind.CLOSE, got.request_id, Done()), 5) == 0
    with pytest.raises(ConnectionLost):
        stranger.server.receive(5)


def test_what_cannot_be_read_is_answered_without_the_session(stranger):
    stranger.say(env_pb.JoinRequest(request_id="empty"))
    bad = env_pb.JoinRequest(request_id="lanes")
    bad.step.env_indices.extend([0, 0])
    stranger.say(bad)
    short = env_pb.JoinRequest(request_id="short")
    short.step.action.leaves.append(b"\0" * 3)
    stranger.say(short)
    good = env_pb.JoinRequest(request_id="good", close=env_pb.CloseEnvsRequest())
    stranger.say(good)
    assert stranger.server.receive(5).kind is Kind.CLOSE
    answers = [stranger.hear() for _ in range(3)]
    codes = [(answer.request_id, answer.error.code) for answer in answers]
    assert codes == [("empty", 5), ("lanes", 2), ("short", 2)]


def test_bytes_that_are_no_message_end_the_connection(stranger):
    stranger.say(b"\xff\xff\xff")
    with pytest.raises(WireError):
        stranger.server.receive(5)
    with pytest.raises(grpc.RpcError):
        next(stranger.responses)


def test_a_stranger_that_finds_no_place_is_told_in_its_own_words(pair):
    for body in (ErrorBody(code="busy", message="all places are taken"), None):
        stranger = Stranger(pair)
        if body is not None:
            stranger.server.send(Message(Kind.ERROR, 1, body))
        else:  # it may wait for a moment, but cannot be told that it waits
            stranger.server.send(welcome(stranger.server, position=1, contract=b""))
        with pytest.raises(grpc.RpcError) as refused:
            next(stranger.responses)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert refused.value.details() == BUSY
        stranger.close()


@pytest.mark.parametrize("queued", [False, True])
def test_a_stranger_whose_env_is_being_built_is_told_nothing_and_may_wait(
    pair, queued, monkeypatch
):
    monkeypatch.setattr(grpc_server, "_PATIENCE_S", 0.1)
    stranger = Stranger(pair)
    if queued:
        stranger.server.send(welcome(stranger.server, position=1, contract=b""))
    stranger.server.send(welcome(stranger.server, position=1, contract=b"", detail="is built"))
    time.sleep(0.3)  # its patience would be over by now
    stranger.server._out_of_patience()  # as of a timer that had gone off before
    stranger.server.send(welcome(stranger.server))
    stranger.say(env_pb.JoinRequest(request_id="a", render=env_pb.RenderRequest()))
    number = stranger.server.receive(5).request_id
    stranger.server.send(Message(Kind.ERROR, number, ErrorBody(code="busy")), 5)
    assert stranger.hear().request_id == "a"
    stranger.close()


def test_a_strangers_episodes_are_kept_count_of(stranger):
    server = stranger.server
    reset = env_pb.JoinRequest(request_id="r")
    reset.reset.seeds.extend([7, 8])
    reset.reset.episode_ids.extend(IDS)
    stranger.say(reset)
    number = server.receive(5).request_id
    server.send(Message(Kind.RESET, number, ResetReply(observation=OBSERVATION, infos=({}, {}))))
    assert stranger.hear().WhichOneof("response") == "reset"
    asked = env_pb.JoinRequest(request_id="s")
    asked.step.action.leaves.append(ACTION[0].tobytes())
    asked.step.episode_ids.extend(IDS)
    stranger.say(asked)
    number = server.receive(5).request_id
    over = Completion(env_index=1, terminated=True, truncated=False)
    reply = StepReply(
        observation=OBSERVATION, rewards=(1.0, 2.0), infos=({}, {}), completions=(over,)
    )
    server.send(Message(Kind.STEP, number, reply))
    [ended] = stranger.hear().step.completed_episodes
    assert (ended.episode_id, ended.seed, ended.step_count) == ("e2", 8, 1)
    assert ended.cumulative_reward == 2.0


# --------------------------------------------------------------------------------------- models


def context(env_id: str, request_id: str) -> AdapterContext:
    return AdapterContext("session", env_id, request_id)


def resolve(env_id: str, horizon: int | None = None) -> Resolve:
    return Resolve(
        context=context(env_id, "r"),
        contract=encode_contract(CONTRACT),
        execution_horizon=horizon,
    )


def predict(env_id: str, number: int) -> PredictRequest:
    return PredictRequest(
        context=context(env_id, f"p{number}"),
        observation=OBSERVATION,
        episode_info=(EpisodeInfo("e1", 3), EpisodeInfo("e2")),
        timeout_ms=900,
    )


def test_a_model_is_resolved_and_asked(model_pair):
    client, server = model_pair.meet()
    client.send(Message(Kind.RESOLVE, 2, resolve("a", 3)), 5)
    got = server.receive(5)
    assert decode_contract(got.body.contract) == CONTRACT
    assert got.body.execution_horizon == 3
    server.send(Message(Kind.RESOLVE, 2, ResolveReply(context=got.body.context, native_chunk=4)))
    assert client.receive(5).body.native_chunk == 4
    client.send(Message(Kind.PREDICT, 3, predict("a", 1)), 5)
    got = server.receive(5)
    assert (got.request_id, got.body.execution_horizon, got.body.timeout_ms) == (3, 3, 900)
    assert np.array_equal(got.body.observation[0], OBSERVATION[0])
    reply = PredictReply(context=got.body.context, frames=(ACTION, ACTION))
    server.send(Message(Kind.PREDICT, 3, reply), 5)
    back = client.receive(5).body
    assert back.context == context("a", "p1")
    assert [frame[0].tolist() for frame in back.frames] == [[1, 2], [1, 2]]
    client.send(Message(Kind.PREDICT, 4, predict("a", 2)), 5)
    late = ErrorBody(code="timeout", message="it was late")
    server.send(Message(Kind.ERROR, server.receive(5).request_id, late), 5)
    assert client.receive(5).body == late


def test_spaces_that_were_bound_stand_for_a_resumed_session(model_pair):
    client, server = model_pair.meet()
    codecs = CONTRACT.observation_space.codec, CONTRACT.action_space.codec
    with pytest.raises(WireError, match="not made known"):
        client.send(Message(Kind.PREDICT, 3, predict("a", 1)), 5)
    client.framing.bind(*codecs)
    server.framing.bind(*codecs)
    client.send(Message(Kind.PREDICT, 3, predict("a", 1)), 5)
    assert server.receive(5).body.context.env_id == "a"


def test_grouped_predicts_are_taken_apart_and_answered_together(model_pair):
    stranger = Stranger(model_pair, model_pb)
    try:
        server = stranger.server
        server.send(welcome(server))
        route = wire.ResolveRoute(context=context("a", "r"), contract=CONTRACT)
        stranger.say(wire.write_model_request("r", route, FOREIGN, lambda *_: None))
        number = server.receive(5).request_id
        server.send(Message(Kind.RESOLVE, number, ResolveReply(context=context("a", "r"))))
        assert stranger.hear().WhichOneof("response") == "resolve_adapter"
        grouped = model_pb.JoinRequest(request_id="g")
        for env_id, index in (("a", 1), ("nobody", 2), ("a", 3)):
            data = wire.write_model_request(
                "x", predict(env_id, index), FOREIGN, lambda *_: None, CONTRACT
            )
            part = model_pb.JoinRequest.FromString(data).predict
            grouped.grouped_predict.groups.append(part)
        stranger.say(grouped)
        parts = [server.receive(5) for _ in range(2)]
        for part in reversed(parts):
            reply = PredictReply(context=part.body.context, frames=(ACTION,))
            server.send(Message(Kind.PREDICT, part.request_id, reply))
        answer = stranger.hear()
        assert answer.request_id == "g"
        results = answer.grouped_predict.results
        assert [one.WhichOneof("outcome") for one in results] == ["response", "error", "response"]
        assert results[0].response.context.request_id == "p1"
        assert results[1].error.code == 3
        assert results[2].response.context.request_id == "p3"
    finally:
        stranger.close()
