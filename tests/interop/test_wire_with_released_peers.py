"""The rlmesh-wire-v1 mapping against the released peers, over plain gRPC calls.

Not our servers and clients, which have tests of their own: here a few lines of gRPC stand between
the mapping and `rlmesh==0.1.0`, to prove that each side understands each field.
"""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmesh.endpoint.envs.env_loading import open_env
from rollmesh.ports import (
    AdapterContext,
    EnvContract,
    EpisodeInfo,
    PredictReply,
    PredictRequest,
    ResetRequest,
    StepRequest,
)
from rollmesh.spaces.space import Box, Discrete, MultiDiscrete
from rollmesh.wire import messages as ours
from rollmesh.wire import protobuf as wire
from rollmesh.wire._gen import rlmesh_env_v1_pb2 as env_pb
from rollmesh.wire._gen import rlmesh_model_v1_pb2 as model_pb
from rollmesh.wire.dialect import FOREIGN, ROLLMESH
from rollmesh.wire.handshake import Offer, offer
from rollmesh.wire.messages import Kind
from rollmesh.wire.proto_handshake import Service

grpc = pytest.importorskip("grpc")
rlmesh = pytest.importorskip("rlmesh")
rn = pytest.importorskip("rlmesh.numpy")

from tests.interop import capture_golden as capture  # noqa: E402 - needs both packages

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore"),  # the released package warns of editions and rates
]
WAIT_S = 20
ROOT = Path(__file__).resolve().parents[2]


class Joined:
    """An open Join with a released server: one request, one response."""

    def __init__(self, address: str, service: Service) -> None:
        name = wire.ENV_SERVICE if service == "env" else wire.MODEL_SERVICE
        self._channel = grpc.insecure_channel(address.removeprefix("tcp://"))
        shake = self._channel.unary_unary(f"/{name}/Handshake")
        answer = shake(wire.write_hello(service, offer(service)), timeout=WAIT_S)
        self.said, self.contract = wire.read_welcome(service, answer)
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        join = self._channel.stream_stream(f"/{name}/Join")
        self._responses = join(iter(self._requests.get, None), timeout=WAIT_S)

    def __call__(self, request: bytes) -> bytes:
        self._requests.put(request)
        return next(self._responses)

    def close(self) -> None:
        self._requests.put(None)
        self._channel.close()


@pytest.fixture
def lanes() -> Iterator[Joined]:
    server = rlmesh.EnvServer([capture.Count(2 + i) for i in range(3)], "tcp://127.0.0.1:0")
    server.start()
    joined = Joined(server.address, "env")
    yield joined
    joined.close()
    server.shutdown()


def refuse(path: str, detail: str) -> None:
    raise AssertionError(f"{path}: {detail}")


# ---------------------------------------------------------------- our client, released env server


class Caller:
    """Our client side of a Join."""

    def __init__(self, joined: Joined, dialect: Any = FOREIGN) -> None:
        assert joined.contract is not None
        self._joined = joined
        self.contract = joined.contract
        self._wire = wire.EnvClientWire(self.contract, dialect, refuse)
        self.raw: Any = None

    def __call__(self, body: Any) -> Any:
        data = self._joined(self._wire.write("any id", body))
        self.raw = env_pb.JoinResponse.FromString(data)
        envelope = self._wire.open(data)
        assert envelope.request_id == "any id"
        return self._wire.read(envelope, body)

    def step(self, *values: int, ids: tuple[str, ...], lanes: tuple[int, ...] = ()) -> Any:
        action = self.contract.action_space.codec.encode_many(list(values))
        return self(StepRequest(action=action, episode_ids=ids, env_indices=lanes))


def test_a_released_env_of_lanes_is_driven_whole_and_in_part(lanes):
    call = Caller(lanes)
    assert lanes.said.granted == {"subset_step"}
    assert call.contract.num_envs == 3
    assert call(ours.Configure(edition="2026.06")) == ours.Done()
    options = tuple({"trial_index": i} for i in range(3))
    got = call(ResetRequest(episode_ids=("a", "b", "c"), seeds=(1, 2, 3), options=options))
    assert [info["options"] for info in got.infos] == [str(one) for one in options]
    assert got.observation[0][:, 1].tolist() == [1, 2, 3]

    got = call(ResetRequest(episode_ids=("d", "e"), seeds=(4, 5), env_indices=(2, 0)))
    assert got.observation[0][:, 1].tolist() == [4, 5]
    assert len(got.infos) == 2
    got = call.step(1, 2, ids=("d", "e"), lanes=(2, 0))
    assert [tuple(row) for row in got.observation[0].tolist()] == [(1, 1), (1, 2)]
    assert got.infos == ({"at": 1}, {"at": 1})
    interrupted = [one.episode_id for one in call.raw.step.completed_episodes]
    assert sorted(interrupted) == ["a", "c"]
    assert got.completions == ()

    got = call.step(0, 0, 0, ids=("e", "b", "d"))
    [end] = got.completions
    assert (end.env_index, end.episode_id, end.step_count) == (0, "e", 2)
    assert end.final_info == {"at": 2, "is_success": True} == got.infos[0]
    assert got.infos[1] == {"at": 1}
    assert call(ours.Close(reason="bye")) == ours.Done()
    assert sorted(one.episode_id for one in call.raw.close.final_episodes) == ["b", "d"]


def test_a_released_env_says_what_is_wrong_with_a_request(lanes):
    call = Caller(lanes)
    call(ResetRequest(episode_ids=("a", "b", "c")))
    cases = [
        (lambda: call.step(1, ids=("a",), lanes=(7,)), "invalid_action"),
        (lambda: call.step(1, ids=("a",)), "invalid_action"),
        (lambda: call(ours.Render(env_indices=(0, 1))), "unsupported"),
    ]
    for ask, code in cases:
        error = ask()
        assert (error.code, error.is_recoverable, error.outcome) == (code, True, "not_done")
    assert call.step(0, 0, 0, ids=("a", "b", "c")).rewards == (1.0, 1.0, 1.0)


def test_a_released_env_passes_over_fields_of_ours(lanes):
    call = Caller(lanes, ROLLMESH)
    options = ({"x": (1, 2)}, None, {})
    got = call(ResetRequest(episode_ids=("a", "b", "c"), options=options))
    assert [info["options"] for info in got.infos] == ["None"] * 3
    error = call(ours.Probe(b"x"))
    assert (error.code, error.is_recoverable) == ("unsupported", True)


# ---------------------------------------------------------------- our client, released model


@pytest.fixture(scope="module")
def chunks() -> Iterator[str]:
    with capture.model_relay("chunks") as relay:
        yield relay.address


def test_a_released_model_is_resolved_asked_in_groups_and_released(chunks):
    contract = EnvContract(id="x", observation_space=Box((2,)), action_space=Discrete(3))
    joined = Joined(chunks, "model")
    route = wire.ResolveRoute(
        context=AdapterContext("s", "e", "r"),
        contract=contract,
        edition="2026.06",
        execution_horizon=2,
    )
    predict = PredictRequest(
        context=AdapterContext("s", "e", "p"),
        observation=contract.observation_space.codec.encode(np.zeros(2, np.float32)),
        episode_info=(EpisodeInfo("e1", 4),),
    )

    def ask(body: Any) -> Any:
        data = joined(wire.write_model_request("id", body, FOREIGN, refuse, contract))
        return wire.read_model_reply(wire.open_model_response(data), body, contract)

    try:
        assert "not resolved" in ask(predict).message
        assert ask(route) == ours.ResolveReply(context=route.context)
        got = ask(predict)
        assert got.context == predict.context
        assert [frame[0].tolist() for frame in got.frames] == [[1], [2]]

        one = model_pb.JoinRequest.FromString(
            wire.write_model_request("id", predict, FOREIGN, refuse, contract)
        ).predict
        other = model_pb.PredictRequest.FromString(one.SerializeToString())
        other.context.env_id = "nobody"
        grouped = model_pb.JoinRequest(request_id="g")
        grouped.grouped_predict.groups.extend([one, other])
        answer = model_pb.JoinResponse.FromString(joined(grouped.SerializeToString()))
        results = answer.grouped_predict.results
        assert [result.WhichOneof("outcome") for result in results] == ["response", "error"]

        one.step = 5
        history = one.history.add(step=4)
        history.observation.CopyFrom(one.observation)
        history.episode_info.add(episode_id="e1")
        with_history = model_pb.JoinRequest(request_id="h", predict=one)
        answer = model_pb.JoinResponse.FromString(joined(with_history.SerializeToString()))
        assert answer.WhichOneof("response") == "predict"
    finally:
        joined.close()


# ---------------------------------------------------------------- released client, our server


class OneEnv(grpc.GenericRpcHandler):
    """The least that serves a port to one released client."""

    def __init__(self, port: Any, *, fails: Callable[[], ours.ErrorBody | None]) -> None:
        self._port = port
        self._fails = fails
        self._server = grpc.server(ThreadPoolExecutor(4), [self])
        number = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"tcp://127.0.0.1:{number}"
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait(WAIT_S)

    def service(self, details: Any) -> Any:
        if details.method.endswith("/Handshake"):
            return grpc.unary_unary_rpc_method_handler(self._handshake)
        return grpc.stream_stream_rpc_method_handler(self._join)

    def _handshake(self, data: bytes, context: Any) -> bytes:
        del context
        said = wire.read_hello("env", data)
        try:
            return wire.write_welcome(
                "env", offer("env"), contract=self._port.contract, dialect=said.dialect
            )
        except Exception as error:  # noqa: BLE001 - the client is told
            return wire.write_welcome("env", Offer(is_compatible=False, error=str(error)))

    def _join(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        context.send_initial_metadata(())
        speak = wire.EnvServerWire(self._port.contract, FOREIGN)
        ledger = wire.EpisodeLedger(self._port.contract)
        for data in requests:
            envelope = wire.open_env_request(data)
            body = speak.read(envelope)
            failure = self._fails()
            answer = self._answer(body) if failure is None else failure
            facts: Any = {}
            if envelope.kind is Kind.STEP and failure is None:
                facts = ledger.step(body, answer)
            elif envelope.kind is Kind.RESET and failure is None:
                ledger.reset(body)
            left = ledger.close() if failure is not None else ledger.take_interrupted()
            yield speak.write(
                envelope.request_id,
                answer,
                body,
                ended=facts,
                interrupted=left,
                timing_ns={"endpoint_total_ns": 1, "user_ns": 1, "queue_ns": 0},
            )

    def _answer(self, body: Any) -> Any:
        match body:
            case ResetRequest():
                return self._port.reset(body)
            case StepRequest():
                return self._port.step(body)
            case ours.Render():
                return ours.RenderReply(frame=np.arange(60, dtype=np.uint8).reshape(4, 5, 3))
            case _:
                return ours.Done()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    opened: list[OneEnv] = []

    def start(env: Any, fails: Callable[[], ours.ErrorBody | None] = lambda: None) -> str:
        port = open_env(env)
        opened.append(OneEnv(port, fails=fails))
        return opened[-1].address

    yield start
    for one in opened:
        one.close()


def test_a_released_client_plays_every_space_and_info(serve):
    remote = rn.RemoteEnv(serve(capture.Zoo()))
    local = capture.Zoo()
    action = {"move": np.array([0.5, -0.5], np.float32), "say": "hellö"}
    got, info = remote.reset(seed=3, options={"trial_index": 1})
    expected, _ = local.reset(seed=3)
    assert_same(got, expected)
    assert info["options"] == {"trial_index": 1}
    for _ in range(3):
        got, reward, terminated, truncated, info = remote.step(action)
        expected, expected_reward, expected_end, _, expected_info = local.step(action)
        assert_same(got, expected)
        assert (reward, terminated, truncated) == (expected_reward, expected_end, False)
        assert info["map"] == expected_info["map"]
        assert info["tuple"] == [1, 2]
        assert info["array"] == [[0.0, 1.0], [2.0, 3.0]]
        assert info["none"] is None
    assert info["is_success"] is True
    assert np.array_equal(np.asarray(remote.render()).ravel(), np.arange(60))
    assert remote.metadata["rlmesh.env.v1.reset_options"] == ["trial_index"]
    remote.close()


def assert_same(got: Any, expected: Any) -> None:
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(np.asarray(got[key]), value), key
        else:
            assert got[key] == value, key


def test_a_released_run_counts_episodes_served_by_us(serve):
    result = rn.Model(lambda observation: 1).run(serve(capture.Count(3)), episodes=2, seeds=[3, 4])
    assert [episode.steps for episode in result.episodes] == [3, 3]
    assert [episode.success for episode in result.episodes] == [True, True]


def test_a_released_client_reads_every_field_of_an_error(serve):
    error = ours.ErrorBody(
        code="invalid_action",
        error_class="ValueError",
        message="no such move",
        traceback_text="File …",
        is_recoverable=True,
        error_id="E7",
    )
    failures = iter([None, None, error])
    remote = rn.RemoteEnv(serve(capture.Count(9), lambda: next(failures, None)))
    remote.reset(seed=1)
    with pytest.raises(ValueError, match="ValueError: no such move"):
        remote.step(1)
    assert remote.step(1)[1] == 1.0
    remote.close()


@pytest.mark.parametrize(
    "space",
    [MultiDiscrete([3, 4], [1, 1]), Box((), np.float32, -1, 1), Box((0, 2), np.float32)],
    ids=repr,
)
def test_a_released_client_is_told_why_it_cannot_play(serve, space):
    from rollmesh.spaces.gymnasium import to_gymnasium

    env = capture.Count(3)
    env.observation_space = to_gymnasium(space)
    with pytest.raises(RuntimeError, match="cannot be sent to this peer"):
        rn.RemoteEnv(serve(env))


# ---------------------------------------------------------------- released session, our model


class OneModel(grpc.GenericRpcHandler):
    """The least that serves a model of ours: action 1, for ever."""

    def __init__(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(4), [self])
        number = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"tcp://127.0.0.1:{number}"
        self.forgotten: list[str] = []
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait(WAIT_S)

    def service(self, details: Any) -> Any:
        if details.method.endswith("/Handshake"):
            return grpc.unary_unary_rpc_method_handler(
                lambda data, _: (
                    wire.write_welcome("model", offer("model"))
                    if wire.read_hello("model", data)
                    else b""
                )
            )
        return grpc.stream_stream_rpc_method_handler(self._join)

    def _join(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        context.send_initial_metadata(())
        contract: EnvContract | None = None
        for data in requests:
            envelope = wire.open_model_request(data)
            body: Any
            if envelope.kind is Kind.PREDICT and contract is not None:
                body = wire.read_predict(envelope.message, contract, None, envelope.leaves)
                rows = len(body.episode_info)
                frame = contract.action_space.codec.encode_many([1] * rows)
                reply: Any = PredictReply(context=body.context, frames=(frame,))
            else:
                body = wire.read_model_request(envelope)
                reply = ours.Done()
            if isinstance(body, wire.ResolveRoute):
                contract = body.contract
                reply = ours.ResolveReply(context=body.context)
            self.forgotten += getattr(body, "episode_ids", ())
            yield wire.write_model_reply(
                envelope.request_id, reply, FOREIGN, request=body, contract=contract
            )


def test_a_released_session_asks_a_model_of_ours():
    model = OneModel()
    server = rlmesh.EnvServer(capture.Count(3), "tcp://127.0.0.1:0")
    server.start()
    try:
        env = rn.RemoteEnv(server.address)
        session = rn.RemoteModel(model.address).session(env)
        observation, _ = session.reset(seed=5)
        steps = 0
        done = False
        while not done:
            action = session.predict(observation)
            assert action == 1
            observation, _, done, _, _ = session.step(action)
            steps += 1
        session.close()
        env.close()
    finally:
        server.shutdown()
        model.close()
    assert steps == 3


def test_recording_again_gives_what_is_read_here(tmp_path):
    """The recorder still works; what it records differs in ids and times only."""
    code = (
        "import pathlib, sys, warnings; warnings.simplefilter('ignore')\n"
        f"sys.path.insert(0, {str(ROOT / 'tests' / 'interop')!r})\n"
        "import capture_golden as capture\n"
        f"capture.GOLDEN = pathlib.Path({str(tmp_path)!r})\n"
        "capture.main(['env_scalar_run'])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50, capture_output=True)
    lines = (tmp_path / "env_scalar_run.jsonl").read_text().splitlines()
    golden = (capture.GOLDEN / "env_scalar_run.jsonl").read_text().splitlines()
    assert len(lines) == len(golden)
