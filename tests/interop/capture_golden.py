"""Record what the released peers say to each other: `python tests/interop/capture_golden.py`.

Starts servers and clients of `rlmesh==0.1.0` with a relay between them that passes every gRPC
message on unread and keeps it. One file per scenario is written to `tests/interop/golden`: a JSON
object per line with the method, the number of the call, the direction and the bytes in base64.

Ids and times differ from one recording to the next, so record again only when a newer release is to
be supported. The scenarios are small; a message is kept once per call unless it is needed twice.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import gymnasium as gym
import numpy as np
import rlmesh
import rlmesh.numpy as rn
from gymnasium.vector import AutoresetMode, SyncVectorEnv

GOLDEN = Path(__file__).parent / "golden"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
UNARY = ("Handshake", "Shutdown")


class Relay(grpc.GenericRpcHandler):
    """A gRPC server that records what it passes on to `target`."""

    def __init__(self, target: str) -> None:
        self.records: list[dict[str, Any]] = []
        self._calls = 0
        self._lock = threading.Lock()
        self._channel = grpc.insecure_channel(target.removeprefix("tcp://"), OPTIONS)
        self._server = grpc.server(ThreadPoolExecutor(32), [self], options=OPTIONS)
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"tcp://127.0.0.1:{port}"
        self._server.start()

    def close(self) -> None:
        self._server.stop(1).wait()
        self._channel.close()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = details.method
        if method.rpartition("/")[2] in UNARY or method.startswith("/grpc.health"):
            return grpc.unary_unary_rpc_method_handler(self._unary(method))
        return grpc.stream_stream_rpc_method_handler(self._stream(method))

    def _begin(self) -> int:
        with self._lock:
            self._calls += 1
            return self._calls

    def _keep(self, method: str, call: int, way: str, data: bytes) -> bytes:
        text = base64.b64encode(data).decode()
        record = {"method": method, "call": call, "way": way, "data": text}
        with self._lock:
            self.records.append(record)
        return data

    def _unary(self, method: str) -> Callable[..., bytes]:
        pass_on = self._channel.unary_unary(method)

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            call = self._begin()
            self._keep(method, call, "request", request)
            try:
                return self._keep(method, call, "response", pass_on(request))
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())

        return answer

    def _stream(self, method: str) -> Callable[..., Iterator[bytes]]:
        pass_on = self._channel.stream_stream(method)

        def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            call = self._begin()
            context.send_initial_metadata(())  # the released client waits for it
            kept = (self._keep(method, call, "request", request) for request in requests)
            try:
                for response in pass_on(kept):
                    yield self._keep(method, call, "response", response)
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())

        return answer


# ------------------------------------------------------------------------------ what is served


class Zoo(gym.Env):
    """Every space that the released wire has, and infos of every kind it takes."""

    metadata = {"render_modes": ["rgb_array"], "rlmesh.env.v1.reset_options": ["trial_index"]}
    render_mode = "rgb_array"
    observation_space = gym.spaces.Dict(
        {
            "unbounded": gym.spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
            "uniform": gym.spaces.Box(-1, 1, (3,), np.float32),
            "elementwise": gym.spaces.Box(
                np.array([0, -2], np.float32), np.array([np.inf, 2], np.float32)
            ),
            "image": gym.spaces.Box(0, 255, (2, 2, 3), np.uint8),
            "partly": gym.spaces.Box(0, 100, (2,), np.uint8),
            "half": gym.spaces.Box(-1, 1, (2,), np.float16),
            "int16": gym.spaces.Box(-300, 300, (2,), np.int16),
            "int64": gym.spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64),
            "uint64": gym.spaces.Box(0, 2**64 - 1, (2,), np.uint64),
            "flags": gym.spaces.Box(0, 1, (3,), np.bool_),
            "discrete": gym.spaces.Discrete(5, start=-2),
            "binary": gym.spaces.MultiBinary((2, 2)),
            "multi": gym.spaces.MultiDiscrete([[3, 4], [5, 6]]),
            "text": gym.spaces.Text(20),
            "letters": gym.spaces.Text(5, charset="abü"),
            "pair": gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Text(9)]),
        }
    )
    action_space = gym.spaces.Dict(
        {"move": gym.spaces.Box(-1, 1, (2,), np.float32), "say": gym.spaces.Text(30)}
    )

    def __init__(self, length: int = 3) -> None:
        self._length = length
        self._count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = 0
        return self._see(), {"options": dict(options or {}), "seed": seed, "empty": {}}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._count += 1
        info = {
            "none": None,
            "yes": True,
            "int": -7,
            "float": 1.5,
            "nan": float("nan"),
            "text": "grüße",
            "bytes": b"\x00\xff",
            "list": [1, [2.0, "three"]],
            "tuple": (1, 2),
            "map": {"inner": {"deep": False}},
            "array": np.arange(4, dtype=np.float32).reshape(2, 2),
            "scalar": np.int32(5),
            "said": str(action["say"]),
            "is_success": self._count == self._length,
        }
        return self._see(), 0.5 * self._count, self._count == self._length, False, info

    def render(self) -> np.ndarray:
        return np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)

    def _see(self) -> dict[str, Any]:
        k = self._count
        return {
            "unbounded": np.full((2, 3), k, np.float64),
            "uniform": np.array([0.0, 0.5, -0.5], np.float32),
            "elementwise": np.array([k, 1.0], np.float32),
            "image": np.arange(12, dtype=np.uint8).reshape(2, 2, 3),
            "partly": np.array([1, k], np.uint8),
            "half": np.array([0.5, -0.5], np.float16),
            "int16": np.array([-300, k], np.int16),
            "int64": np.array([-(2**63), k], np.int64),
            "uint64": np.array([2**64 - 1, k], np.uint64),
            "flags": np.array([True, False, True]),
            "discrete": k - 2,
            "binary": np.array([[1, 0], [0, 1]], np.int8),
            "multi": np.array([[0, 1], [2, k]], np.int64),
            "text": f"step {k}",
            "letters": "aüb",
            "pair": (k % 3, "p" * k),
        }


class Count(gym.Env):
    """Counts to `length`; raises at step `fails_at`."""

    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, length: int = 3, fails_at: int | None = None) -> None:
        self._length = length
        self._fails_at = fails_at
        self._count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = 0
        return np.array([0, seed or 0], np.float32), {"at": 0, "options": str(options)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._count += 1
        if self._count == self._fails_at:
            raise ValueError("the door is stuck")
        done = self._count == self._length
        info: dict[str, Any] = {"at": self._count}
        if done:
            info["is_success"] = True
        observation = np.array([self._count, float(action)], np.float32)
        return observation, 1.0, done, False, info


class Chunks(rn.Model):
    """Answers with two actions, whatever is asked."""

    def predict_chunk(self, observation: Any) -> Any:
        return [1, 2]


class Batch(rn.Model):
    """Answers a batch at once."""

    def predict_batch(self, observations: Any) -> Any:
        return np.zeros(len(observations), np.int64)


def serve_model(kind: str, address: str) -> None:
    """Serve a model until killed (in a process of its own)."""
    models = {
        "plain": lambda: rn.Model(lambda observation: 1),
        "fails": lambda: rn.Model(lambda observation: 1 // 0),
        "chunks": Chunks,
        "batch": Batch,
    }
    models[kind]().serve(address)


# --------------------------------------------------------------------------------- scenarios


@contextlib.contextmanager
def env_relay(env: Any) -> Iterator[Relay]:
    server = rlmesh.EnvServer(env, "tcp://127.0.0.1:0")
    server.start()
    relay = Relay(server.address)
    try:
        yield relay
    finally:
        relay.close()
        server.shutdown()


@contextlib.contextmanager
def model_relay(kind: str) -> Iterator[Relay]:
    with contextlib.closing(grpc_port()) as probe:
        address = f"tcp://127.0.0.1:{probe.port}"
    process = subprocess.Popen([sys.executable, __file__, "model", kind, address])
    relay = Relay(address)
    try:
        grpc.channel_ready_future(relay._channel).result(20)
        yield relay
    finally:
        relay.close()
        process.kill()
        process.wait()


class grpc_port:
    """A free port."""

    def __init__(self) -> None:
        import socket

        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()


def scalar() -> Relay:
    """RemoteEnv plays an episode, resets over a running one, renders and closes."""
    with env_relay(Zoo()) as relay:
        env = rn.RemoteEnv(relay.address)
        action = {"move": np.array([0.5, -0.5], np.float32), "say": "hellö"}
        env.reset(seed=7, options={"trial_index": 3, "nested": {"a": [1, None]}})
        for _ in range(3):
            env.step(action)
        env.reset()
        env.step(action)
        env.reset(seed=8)
        env.step(action)
        env.render()
        env.close()
    return relay


def scalar_run() -> Relay:
    """Model.run plays two episodes with seeds and trial indices."""
    with env_relay(Count()) as relay:
        rn.Model(lambda observation: 1).run(relay.address, episodes=2, seeds=[3, 4])
    return relay


def vector() -> Relay:
    """RemoteVectorEnv steps a NEXT_STEP vector env through the ends of its episodes."""
    env = SyncVectorEnv(
        [lambda: Count(2), lambda: Count(3)], autoreset_mode=AutoresetMode.NEXT_STEP
    )
    with env_relay(env) as relay:
        remote = rn.RemoteVectorEnv(relay.address)
        remote.reset(seed=[1, 2])
        for _ in range(4):
            remote.step(np.array([0, 1]))
        remote.close()
    return relay


def vector_run() -> Relay:
    """Model.run drives a NEXT_STEP vector env."""
    env = SyncVectorEnv(
        [lambda: Count(2), lambda: Count(3)], autoreset_mode=AutoresetMode.NEXT_STEP
    )
    with env_relay(env) as relay:
        Batch().run(relay.address, episodes=2)
    return relay


def lanes() -> Relay:
    """RemoteVectorEnv steps an env of lanes."""
    with env_relay([Count(2), Count(3)]) as relay:
        remote = rn.RemoteVectorEnv(relay.address)
        remote.reset(seed=[1, 2], options={"trial_index": [0, 1]})
        for _ in range(2):
            remote.step(np.array([0, 1]))
        remote.close()
    return relay


def lanes_run() -> Relay:
    """Model.run drives an env of lanes, each on its own."""
    with env_relay([Count(2), Count(3)]) as relay:
        Batch().run(relay.address, episodes=3)
    return relay


def env_fails() -> Relay:
    """The env raises; then an action does not fit."""
    with env_relay(Count(5, fails_at=2)) as relay:
        env = rn.RemoteEnv(relay.address)
        env.reset(seed=1)
        env.step(1)
        with contextlib.suppress(Exception):
            env.step(1)
    return relay


def model_session(kind: str, horizon: int) -> Relay:
    """A RemoteModel session drives an env; the model's side is recorded."""
    server = rlmesh.EnvServer(Count(3), "tcp://127.0.0.1:0")
    server.start()
    with model_relay(kind) as relay:
        env = rn.RemoteEnv(server.address)
        session = rn.RemoteModel(relay.address).session(env, execution_horizon=horizon)
        with contextlib.suppress(RuntimeError):
            for seed in (5, 6):
                observation, _ = session.reset(seed=seed)
                for _ in range(3):
                    observation, *_ = session.step(session.predict(observation))
        session.close()
        env.close()
    server.shutdown()
    return relay


SCENARIOS: dict[str, Callable[[], Relay]] = {
    "env_scalar": scalar,
    "env_scalar_run": scalar_run,
    "env_vector": vector,
    "env_vector_run": vector_run,
    "env_lanes": lanes,
    "env_lanes_run": lanes_run,
    "env_fails": env_fails,
    "model_plain": lambda: model_session("plain", 1),
    "model_chunks": lambda: model_session("chunks", 2),
    "model_batch": lambda: model_session("batch", 1),
    "model_fails": lambda: model_session("fails", 1),
}


def main(names: list[str]) -> None:
    """Record the named scenarios, or all."""
    GOLDEN.mkdir(exist_ok=True)
    for name in names or SCENARIOS:
        started = time.monotonic()
        relay = SCENARIOS[name]()
        lines = [json.dumps(record) for record in relay.records]
        (GOLDEN / f"{name}.jsonl").write_text("\n".join([*lines, ""]))
        print(f"{name}: {len(lines)} messages in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1:2] == ["model"]:
        serve_model(*sys.argv[2:])
    else:
        main(sys.argv[1:])
