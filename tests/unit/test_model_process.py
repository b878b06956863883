"""Models in processes of their own: they start, fail with a reason, serve, and end with us."""

from __future__ import annotations

import os
import signal
import threading
import warnings

import numpy as np
import pytest

from rollmesh.endpoint.clients.model_route import ModelRoute
from rollmesh.endpoint.models.model_process import ModelProcess, ModelProcessOptions, replica_of
from rollmesh.endpoint.models.replicas import ReplicatedModel
from rollmesh.errors import EndpointFault, InvalidSpec, SessionLost
from rollmesh.ports import (
    AdapterContext,
    EnvContract,
    EpisodeInfo,
    PredictRequest,
    ReleaseAdapterRequest,
)
from rollmesh.spaces.space import Box

SPACE = Box((1,), np.float32)
ROUTE = ModelRoute(
    contract=EnvContract(id="e", observation_space=SPACE, action_space=SPACE, num_envs=4),
    session_id="s",
    env_id="r",
)
START_S = 60.0


class Scaled:
    """A policy: the observation times a factor; ends its process where it is told to."""

    def __init__(self, factor=2.0):
        self.factor = factor

    def predict_batch(self, observation):
        if (observation < 0).any():
            os._exit(3)
        return (observation * self.factor).astype(np.float32)


class Broken:
    """Cannot be built."""

    def __init__(self):
        raise ValueError("no weights here")


class Dying:
    """Ends its process while it is built."""

    def __init__(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Slow:
    """Takes for ever to be built."""

    def __init__(self):
        signal.pause()


def ask(episode, value=1.0):
    return PredictRequest(
        context=AdapterContext("s", "r", f"q-{episode}"),
        observation=[np.array([[value]], np.float32)],
        episode_info=(EpisodeInfo(episode),),
    )


def is_gone(pid):
    """Return whether a process of ours is gone, and was waited for, within ten seconds."""
    pause = threading.Event()
    for _ in range(1000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        pause.wait(0.01)
    return False


def test_replicas_in_processes_answer_die_and_come_back():
    options = ModelProcessOptions(model_kwargs={"factor": 3.0}, environment={"MODEL_GPU": "0"})
    opener = replica_of(Scaled, ROUTE, options=options)
    model = ReplicatedModel([opener] * 2, observation_space=SPACE, action_space=SPACE, restarts=1)
    pids = [int(seat.replica.name.split()[-1]) for seat in model._seats]
    assert len(set(pids)) == 2
    assert model.predict(ask("a", 2.0)).frames[0][0].tolist() == [[6.0]]
    assert model.predict(ask("b", 3.0)).frames[0][0].tolist() == [[9.0]]
    with pytest.raises(SessionLost):
        model.predict(ask("a", -1.0))  # its process is gone
    assert model.predict(ask("b", 1.0)).frames[0][0].tolist() == [[3.0]]
    with pytest.raises(SessionLost):
        model.predict(ask("b", -1.0))
    # whichever comes back first takes it
    assert model.predict(ask("c", 1.0)).frames[0][0].tolist() == [[3.0]]
    assert all(is_gone(pid) for pid in pids)
    context = AdapterContext("s", "r", "release")
    now = [seat.replica.name for seat in model._seats if seat.replica is not None]
    model.release_adapter(ReleaseAdapterRequest(context, "done", 10.0))
    assert now
    assert all(is_gone(int(name.split()[-1])) for name in now)


def test_why_a_model_cannot_be_built_comes_through():
    with pytest.raises(EndpointFault, match="no weights here") as caught:
        ModelProcess(Broken).start(START_S)
    assert caught.value.error_class == "ValueError"
    assert "in __init__" in caught.value.traceback_text


def test_a_process_that_dies_while_its_model_is_built_is_told_of():
    process = ModelProcess(Dying)
    with pytest.raises(EndpointFault, match="SIGKILL"):
        process.start(START_S)
    assert process.pid is None


def test_a_model_that_takes_too_long_is_killed():
    process = ModelProcess(Slow)
    with pytest.raises(EndpointFault, match=r"within 0\.5 s.*model_connect_s"):
        process.start(0.5)
    assert process.pid is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_of_a_process_that_has_started_one_starts_others():
    first = ModelProcess(Scaled)
    first.start(START_S)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads
        child = os.fork()
    if child == 0:
        code = 9
        try:
            signal.alarm(30)  # nothing else would end it where it waits for ever
            second = ModelProcess(Scaled)
            second.start(START_S)
            code = 0 if second.close(START_S) else 8
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert first.close(START_S)


def test_closing_ends_the_process_and_closing_again_does_nothing():
    process = ModelProcess(f"{__name__}:Scaled")
    process.start(START_S)
    pid = process.pid
    assert process.address.startswith("rollmesh+unix://")
    assert process.close(10.0)
    assert is_gone(pid)
    assert process.close(10.0)
    with pytest.raises(InvalidSpec, match="not started"):
        process.address  # noqa: B018 - it raises


@pytest.mark.parametrize("model", [Scaled(), lambda observation: observation])
def test_what_has_no_name_is_refused_with_what_to_do(model):
    with pytest.raises(InvalidSpec, match="model_kwargs"):
        replica_of(model, ROUTE)
