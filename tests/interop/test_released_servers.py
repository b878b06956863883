"""Our clients against servers of `rlmesh==0.1.0`: what we can do with a server of our own."""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import rollmesh
from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.env_client import connect_env
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.errors import EndpointFault, EnvFailed, ModelFailed, PortTimeout
from rollmesh.ports import ResetRequest, StepRequest
from rollmesh.results.odd import OddPlace

grpc = pytest.importorskip("grpc")
rlmesh = pytest.importorskip("rlmesh")
rn = pytest.importorskip("rlmesh.numpy")

from tests.interop import capture_golden as capture  # noqa: E402 - needs both packages
from tests.unit.odd_toys import OddEnv  # noqa: E402

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(50),
    pytest.mark.filterwarnings("ignore"),  # the released package warns of editions and rates
]


def one(observation: Any) -> int:
    del observation
    return 1


@contextlib.contextmanager
def released(env: Any) -> Iterator[str]:
    server = rlmesh.EnvServer(env, "tcp://127.0.0.1:0")
    server.start()
    try:
        yield server.address
    finally:
        server.shutdown()


@contextlib.contextmanager
def released_model(kind: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    process = subprocess.Popen(
        [sys.executable, capture.__file__, "model", kind, address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield address
    finally:
        process.kill()
        process.wait(10)


def test_evaluate_plays_a_released_env_time_after_time():
    with released(capture.Count(5)) as address:
        for _ in range(2):
            result = rollmesh.evaluate(one, address, episodes=3)
            assert [episode.steps for episode in result.episodes] == [5, 5, 5]
            assert [episode.success for episode in result.episodes] == [True, True, True]


def test_evaluate_is_the_same_as_on_the_env_itself():
    with released(capture.Count(4)) as address:
        remote = rollmesh.evaluate(one, address, episodes=3, seeds=[7, 8, 9])
    local = rollmesh.evaluate(one, capture.Count(4), episodes=3, seeds=[7, 8, 9])
    for there, here in zip(remote.episodes, local.episodes, strict=True):
        assert (there.seed, there.steps, there.total_reward) == (
            here.seed,
            here.steps,
            here.total_reward,
        )


@pytest.mark.parametrize("how", ["alone", "lanes", "list", "workers"])
def test_observations_out_of_bounds_are_counted_here(how):
    """The released server lets them pass, and refuses NaN by itself: seeds are even."""
    with contextlib.ExitStack() as stack:
        envs = [OddEnv(), OddEnv()] if how == "lanes" else OddEnv()
        address: Any = stack.enter_context(released(envs))
        if how in ("list", "workers"):
            address = [address, stack.enter_context(released(OddEnv()))]
        workers = 2 if how == "workers" else None
        plan: dict[str, Any] = {"seeds": [0, 2, 4, 6], "workers": workers}
        result = rollmesh.evaluate(one, address, **plan)
        unwatched = rollmesh.evaluate(one, address, conformance="off", **plan)
        with pytest.raises(EnvFailed, match=r"5\.0 at \[0\].*outside \[-1\.0, 1\.0\]"):
            rollmesh.evaluate(one, address, conformance="strict", on_error="raise", **plan)
    assert result.odd_observations == (
        OddPlace(kind="bounds", path="observation['wrist']", count=4, episodes=(0, 1, 2, 3)),
    )
    assert unwatched.odd_observations == ()


@pytest.mark.parametrize("lanes", [1, 2])
def test_observations_of_an_env_that_was_connected_before_are_counted_here_too(lanes):
    plan: dict[str, Any] = {"seeds": [0, 2, 4, 6]}
    served = OddEnv() if lanes == 1 else [OddEnv(), OddEnv()]
    with released(served) as address, rollmesh.connect(address) as env:
        result = rollmesh.evaluate(one, env, **plan)
        unwatched = rollmesh.evaluate(one, env, conformance="off", **plan)
        with pytest.raises(EnvFailed, match=r"5\.0 at \[0\].*outside \[-1\.0, 1\.0\]"):
            rollmesh.evaluate(one, env, conformance="strict", on_error="raise", **plan)
        # by hand nothing is looked at, whatever a run wanted
        env.reset(seed=0 if lanes == 1 else [0, 2])
    assert result.odd_observations == (
        OddPlace(kind="bounds", path="observation['wrist']", count=4, episodes=(0, 1, 2, 3)),
    )
    assert unwatched.odd_observations == ()


def test_evaluate_drives_released_lanes_each_on_its_own():
    with released([capture.Count(2 + lane) for lane in range(3)]) as address:
        result = rollmesh.evaluate(one, address, episodes=7)
    assert len(result.episodes) == 7
    for episode in result.episodes:
        assert episode.steps == 2 + episode.env_index


def test_evaluate_drives_a_released_next_step_vector():
    envs = [lambda: capture.Count(2), lambda: capture.Count(3)]
    env = SyncVectorEnv(envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    with released(env) as address:
        result = rollmesh.evaluate(one, address, episodes=4)
    assert [episode.steps for episode in result.episodes] == [
        2 + episode.env_index for episode in result.episodes
    ]


def test_remote_env_plays_every_space_and_info():
    local = capture.Zoo()
    action = {"move": np.array([0.5, -0.5], np.float32), "say": "hellö"}
    with released(capture.Zoo()) as address, rollmesh.RemoteEnv(address) as remote:
        got, info = remote.reset(seed=3, options={"trial_index": 1, "deep": {"a": [1, None]}})
        expected, _ = local.reset(seed=3)
        assert set(got) == set(expected)
        for key in expected:
            assert np.array_equal(got[key], expected[key]), key
        assert info["options"] == {"trial_index": 1, "deep": {"a": [1, None]}}
        for _ in range(3):
            got, reward, terminated, *_, info = remote.step(action)
            expected, expected_reward, expected_end, *_ = local.step(action)
            assert np.array_equal(got["image"], expected["image"])
            assert got["text"] == expected["text"]
            assert (reward, terminated) == (expected_reward, expected_end)
            assert info["none"] is None
        assert np.array_equal(remote.render(), local.render())


def test_a_released_env_that_raises_fails_the_episode_with_its_words():
    with released(capture.Count(9, fails_at=2)) as address:
        port = connect_env(address)
        ids = ("a",)
        port.reset(ResetRequest(episode_ids=ids, seeds=(1,)))
        action = port.contract.action_space.codec.encode_many([1])
        port.step(StepRequest(action=action, episode_ids=ids))
        with pytest.raises(EndpointFault, match="the door is stuck") as caught:
            port.step(StepRequest(action=action, episode_ids=ids))
        assert caught.value.error_class == "ValueError"
        assert not caught.value.is_recoverable
        port.close(2)
        with pytest.raises(EnvFailed, match="the door is stuck"):
            rollmesh.evaluate(one, address, episodes=1)


def test_an_action_that_does_not_fit_is_refused_and_the_session_goes_on():
    with released(capture.Count(9)) as address:
        port = connect_env(address)
        port.reset(ResetRequest(episode_ids=("a",), seeds=(1,)))
        with pytest.raises(EndpointFault) as caught:
            port.step(StepRequest(action=[np.zeros((2,), np.int64)], episode_ids=("a",)))
        assert caught.value.is_recoverable
        assert caught.value.outcome == "not_done"
        action = port.contract.action_space.codec.encode_many([1])
        assert port.step(StepRequest(action=action, episode_ids=("a",))).rewards == (1.0,)
        port.close(2)


def test_a_released_env_that_is_taken_is_waited_for():
    with released(capture.Count(5)) as address:
        port = connect_env(address)
        results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        thread = threading.Thread(
            target=lambda: results.put(rollmesh.evaluate(one, address, episodes=1)), daemon=True
        )
        thread.start()
        thread.join(0.4)
        assert thread.is_alive()
        port.close(2)
        assert results.get(timeout=20).episodes[0].steps == 5
        thread.join(10)


class Sleepy(capture.Count):
    """Takes its time with every step."""

    def step(self, action: Any) -> Any:
        time.sleep(1.5)
        return super().step(action)


def test_a_deadline_holds_although_the_released_server_answers_late():
    with released(Sleepy(5)) as address:
        port = connect_env(address)
        port.reset(ResetRequest(episode_ids=("a",), seeds=(1,)))
        action = port.contract.action_space.codec.encode_many([1])
        begun = time.monotonic()
        with pytest.raises(PortTimeout):
            port.step(StepRequest(action=action, episode_ids=("a",), timeout_ms=300))
        assert time.monotonic() - begun < 0.55


def test_an_interrupt_ends_a_call_at_once():
    with released(Sleepy(5)) as address:
        port = connect_env(address)
        port.reset(ResetRequest(episode_ids=("a",), seeds=(1,)))
        action = port.contract.action_space.codec.encode_many([1])
        timer = threading.Timer(0.2, port.interrupt)
        begun = time.monotonic()
        timer.start()
        with pytest.raises(EndpointFault, match="interrupted"):
            port.step(StepRequest(action=action, episode_ids=("a",)))
        assert time.monotonic() - begun < 0.5
        timer.join()
        port.close(0.1)


@pytest.mark.parametrize("kind", ["plain", "batch"])
def test_evaluate_asks_a_released_model(kind):
    with released_model(kind) as model:
        result = rollmesh.evaluate(model, capture.Count(3), episodes=2)
        assert [episode.steps for episode in result.episodes] == [3, 3]


def test_evaluate_runs_the_chunks_of_a_released_model():
    seen: list[float] = []

    class Watched(capture.Count):
        def step(self, action: Any) -> Any:
            seen.append(float(action))
            return super().step(action)

    with released_model("chunks") as model:
        rollmesh.evaluate(model, Watched(4), episodes=1, execution_horizon=2)
    assert seen == [1.0, 2.0, 1.0, 2.0]


def test_both_ends_may_be_released():
    with released_model("plain") as model, released(capture.Count(3)) as env:
        result = rollmesh.evaluate(model, env, episodes=3)
    assert [episode.steps for episode in result.episodes] == [3, 3, 3]


def test_a_released_model_that_raises_is_told_as_it_is():
    with (
        released_model("fails") as model,
        pytest.raises(ModelFailed, match=r"ZeroDivisionError|division by zero"),
    ):
        rollmesh.evaluate(model, capture.Count(3), episodes=1)


def test_a_client_of_ours_takes_the_fastest_path_that_a_server_of_ours_offers():
    addresses = ["tcp://127.0.0.1:0", "rollmesh+unix://", "rollmesh+tcp://127.0.0.1:0"]
    with EnvServer(capture.Count(3), addresses) as server:
        for transport, expected in [
            ("auto", "rollmesh+unix://"),
            ("native", "rollmesh+unix://"),
            ("grpc", "tcp://"),
        ]:
            port = connect_env(server.address, client_options(transport=transport))
            connection = port.session._connection
            assert connection.address.startswith(expected)
            port.close(2)
        result = rollmesh.evaluate(one, server.address, episodes=2)
        assert [episode.steps for episode in result.episodes] == [3, 3]
