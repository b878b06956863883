"""Clients of `rlmesh==0.1.0` against our servers: what they can do with a server of their own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions

grpc = pytest.importorskip("grpc")
rlmesh = pytest.importorskip("rlmesh")
rn = pytest.importorskip("rlmesh.numpy")

from tests.interop import capture_golden as capture  # noqa: E402 - needs both packages

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(50),
    pytest.mark.filterwarnings("ignore"),  # the released package warns of editions and rates
]
ADDRESS = "tcp://127.0.0.1:0"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def count() -> Iterator[EnvServer]:
    with EnvServer(capture.Count(3), ADDRESS) as server:
        yield server


def test_a_remote_env_plays_every_space_and_info():
    local = capture.Zoo()
    action = {"move": np.array([0.5, -0.5], np.float32), "say": "hellö"}
    with EnvServer(capture.Zoo(), ADDRESS) as server:
        remote = rn.RemoteEnv(server.address)
        got, info = remote.reset(seed=3, options={"trial_index": 1})
        assert_same(got, local.reset(seed=3)[0])
        assert info["options"] == {"trial_index": 1}
        for _ in range(3):
            got, reward, terminated, truncated, info = remote.step(action)
            expected, expected_reward, expected_end, _, expected_info = local.step(action)
            assert_same(got, expected)
            assert (reward, terminated, truncated) == (expected_reward, expected_end, False)
            assert info["map"] == expected_info["map"]
            assert info["none"] is None
        assert info["completed_episodes"] == 1
        assert np.array_equal(np.asarray(remote.render()), local.render())
        remote.close()


def assert_same(got: Any, expected: Any) -> None:
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(np.asarray(got[key]), value), key
        else:
            assert got[key] == value, key


def test_a_run_counts_steps_and_success_time_after_time(count):
    for _ in range(3):  # a run ends its stream without a word; the place is free at once
        result = rn.Model(lambda observation: 1).run(count.address, episodes=2, seeds=[3, 4])
        assert [episode.steps for episode in result.episodes] == [3, 3]
        assert [episode.success for episode in result.episodes] == [True, True]


def test_a_second_client_is_told_the_peers_words(count):
    first = rn.RemoteEnv(count.address)
    first.reset(seed=1)
    second = rn.RemoteEnv(count.address)  # handshakes are answered
    with pytest.raises(ConnectionError, match="already has an active Join session"):
        second.reset()
    assert first.step(1)[1] == 1.0
    first.close()
    third = rn.RemoteEnv(count.address)
    assert third.reset(seed=2)[1]["at"] == 0
    third.close()


def test_a_client_that_is_killed_frees_its_place(count):
    code = (
        "import sys, time, rlmesh.numpy as rn\n"
        "env = rn.RemoteEnv(sys.argv[1]); env.reset(seed=1); print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, count.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    process.wait(10)
    process.stdout.close()
    begun = time.monotonic()
    remote = rn.RemoteEnv(count.address)
    remote.reset(seed=1)
    remote.close()
    assert time.monotonic() - begun < 5


def test_a_vector_client_steps_through_the_ends_of_a_next_step_env():
    envs = [lambda: capture.Count(2), lambda: capture.Count(3)]
    env = SyncVectorEnv(envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    with EnvServer(env, ADDRESS) as server:
        remote = rn.RemoteVectorEnv(server.address)
        remote.reset(seed=[1, 2])
        ends = [np.asarray(remote.step(np.array([0, 1]))[2]).tolist() for _ in range(4)]
        remote.close()
        assert ends == [[False, False], [True, False], [False, True], [False, False]]
        result = capture.Batch().run(server.address, episodes=2)
        assert sorted(episode.steps for episode in result.episodes) == [2, 3]


def test_lanes_are_driven_whole_and_each_on_its_own():
    with EnvServer([capture.Count(2), capture.Count(3)], ADDRESS) as server:
        remote = rn.RemoteVectorEnv(server.address)
        remote.reset(seed=[1, 2], options={"trial_index": [0, 1]})
        observation, rewards, *_ = remote.step(np.array([0, 1]))
        assert np.asarray(observation)[:, 0].tolist() == [1, 1]
        assert np.asarray(rewards).tolist() == [1.0, 1.0]
        remote.close()
        result = capture.Batch().run(server.address, episodes=3)
        assert len(result.episodes) == 3
        assert {episode.steps for episode in result.episodes} == {2, 3}


def test_errors_of_the_env_reach_the_client_as_what_they_are():
    with EnvServer(capture.Count(9, fails_at=2), ADDRESS) as server:
        remote = rn.RemoteEnv(server.address)
        remote.reset(seed=1)
        assert remote.step(1)[1] == 1.0
        with pytest.raises(RuntimeError, match="ValueError: the door is stuck"):
            remote.step(1)
        remote.close()


def test_a_space_of_ours_is_refused_with_a_sentence():
    class Odd(capture.Count):
        observation_space = gym.spaces.Sequence(gym.spaces.Discrete(3))

    with (
        EnvServer(Odd(), ADDRESS) as server,
        pytest.raises(RuntimeError, match="cannot be sent to this peer"),
    ):
        rn.RemoteEnv(server.address)


def test_a_session_drives_an_env_of_ours_with_a_model_of_ours(count):
    with ModelServer(lambda observation: 1, ADDRESS) as model:
        env = rn.RemoteEnv(count.address)
        session = rn.RemoteModel(model.address).session(env)
        for seed in (5, 6):
            observation, _ = session.reset(seed=seed)
            steps, done = 0, False
            while not done:
                observation, _, done, *_ = session.step(session.predict(observation))
                steps += 1
            assert steps == 3
        session.close()
        env.close()


def test_a_session_runs_a_chunk_of_ours_to_its_horizon(count):
    class Chunked:
        asked = 0

        def predict_chunk(self, observation: Any) -> Any:
            type(self).asked += 1
            return [1, 2]

    with ModelServer(Chunked(), ADDRESS) as model:
        env = rn.RemoteEnv(count.address)
        session = rn.RemoteModel(model.address).session(env, execution_horizon=2)
        observation, _ = session.reset(seed=5)
        seen = []
        for _ in range(3):
            observation, *_ = session.step(session.predict(observation))
            seen.append(float(np.asarray(observation)[1]))
        session.close()
        env.close()
    assert seen == [1.0, 2.0, 1.0]
    assert Chunked.asked == 2


def test_two_sessions_ask_one_model_at_the_same_time(count):
    with (
        EnvServer(capture.Count(3), ADDRESS) as other,
        ModelServer(lambda observation: 1, ADDRESS) as model,
    ):
        sessions = []
        for address in (count.address, other.address):
            env = rn.RemoteEnv(address)
            session = rn.RemoteModel(model.address).session(env)
            sessions.append((env, session, session.reset(seed=1)[0]))
        for env, session, first in sessions:
            observation = first
            for _ in range(3):
                observation, *_ = session.step(session.predict(observation))
            session.close()
            env.close()


SECRET = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ((), "UNAUTHENTICATED"),
        ((("authorization", "wrong"),), "UNAUTHENTICATED"),
        ((("authorization", SECRET),), "OK"),
        ((("authorization", f"Bearer {SECRET}"),), "OK"),
    ],
)
def test_the_token_is_compared_before_anything_is_read(given, code):
    from rollmesh.wire import protobuf as wire
    from rollmesh.wire.handshake import offer

    with EnvServer(capture.Count(3), ADDRESS, ServerOptions(token=SECRET)) as server:
        channel = grpc.insecure_channel(server.address.removeprefix("tcp://"))
        hello = wire.write_hello("env", offer("env"))
        for data in (hello, b"\xff\xff nonsense"):
            call = channel.unary_unary(f"/{wire.ENV_SERVICE}/Handshake").with_call
            try:
                _, done = call(data, metadata=given, timeout=10)
                got = done.code().name
            except grpc.RpcError as error:
                got = error.code().name
            expected = "INVALID_ARGUMENT" if code == "OK" and data is not hello else code
            assert got == expected
        join = channel.stream_stream(f"/{wire.ENV_SERVICE}/Join")(
            iter(()), metadata=given, timeout=10
        )
        assert join.code().name == code
        channel.close()


@pytest.mark.parametrize(("service", "status"), [("", 1), ("rlmesh.env.v1.EnvService", 1)])
def test_the_health_service_answers(count, service, status):
    from rollmesh.wire.proto_health import read_health, write_health_request

    channel = grpc.insecure_channel(count.address.removeprefix("tcp://"))
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert read_health(check(write_health_request(service), timeout=10)) == "serving"
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(
        write_health_request(service), timeout=10
    )
    assert read_health(next(watch)) == "serving"
    count.close()
    assert read_health(next(watch)) == "not_serving"
    channel.close()


def test_a_client_over_a_unix_socket(tmp_path):
    with EnvServer(capture.Count(3), f"unix://{tmp_path}/env.sock") as server:
        assert (tmp_path / "env.sock").stat().st_mode & 0o777 == 0o600
        remote = rn.RemoteEnv(server.address)
        remote.reset(seed=1)
        assert remote.step(1)[1] == 1.0
        remote.close()
    assert not (tmp_path / "env.sock").exists()


def test_a_shutdown_call_is_refused_unless_allowed(count):
    from rollmesh.wire import protobuf as wire
    from rollmesh.wire.messages import Shutdown

    def ask(server: EnvServer) -> Any:
        with grpc.insecure_channel(server.address.removeprefix("tcp://")) as channel:
            call = channel.unary_unary(f"/{wire.ENV_SERVICE}/Shutdown")
            answer = call(wire.write_shutdown("env", Shutdown(reason="test")), timeout=10)
            return wire.read_shutdown_reply("env", answer)

    refused = ask(count)
    assert not refused.is_accepted
    assert refused.detail == "remote shutdown is disabled for this environment endpoint"
    options = ServerOptions(allow_remote_shutdown=True)
    with EnvServer(capture.Count(3), ADDRESS, options) as server:
        assert ask(server).is_accepted
        assert server.wait(10)
