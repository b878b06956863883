"""One fault, one error: what went wrong is told alike, wherever it happened."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest

import rollmesh
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.limits import Limits
from rollmesh.testing.faults import broken_env, broken_model
from tests.conformance.links import LINKS, Arm, ArmModel

ENV_CASES = {
    "raises in a step": {"fault": "raises", "at_step": 3},
    "raises in the first reset": {"fault": "raises", "at_step": 0, "times": 1},
    "raises in the second episode": {"fault": "raises", "at_step": 9},
    "exits": {"fault": "exits", "at_step": 2},
    "wrong shape": {"fault": "wrong_shape", "at_step": 2},
}
MODEL_CASES = {
    "raises": {"fault": "raises", "at_call": 3},
    "exits": {"fault": "exits", "at_call": 2},
    "wrong shape": {"fault": "wrong_shape", "at_call": 2},
    "nothing": {"fault": "returns_none", "at_call": 1},
    "start of an episode": {"fault": "start_raises"},
}
HANGS = {"env": {"fault": "hangs", "at_step": 2}, "model": {"fault": "hangs", "at_call": 2}}
SEEDS = (40, 41, 42)


@dataclass(frozen=True)
class Told:
    """What an error says that must not depend on where it happened."""

    error: str
    operation: str
    step: int
    error_class: str
    env_index: int | None
    is_recoverable: bool
    ended: int
    last_line: str


def told(model, env, limits=None):
    """Run into an error and return what it says."""
    with pytest.raises(rollmesh.RouteError) as caught:
        rollmesh.evaluate(model, env, seeds=SEEDS, limits=limits)
    error = caught.value
    traceback = getattr(error, "traceback_text", "").strip()
    return Told(
        type(error).__name__,
        error.operation,
        error.step,
        getattr(error, "error_class", ""),
        getattr(error, "env_index", None),
        error.is_recoverable,
        len(error.result.episodes),
        traceback.rpartition("\n")[2],
    )


@functools.cache
def expected(side, case):
    if side == "env":
        return told(ArmModel(), lambda: broken_env(Arm, **ENV_CASES[case]))
    return told(broken_model(ArmModel(), **MODEL_CASES[case]), Arm)


@pytest.fixture
def link(request, monkeypatch):
    """Give a link, with clients made to take it."""
    link = LINKS[request.param]
    for name, value in link.environment:
        monkeypatch.setenv(name, value)
    return link


everywhere = pytest.mark.parametrize("link", LINKS, indirect=True)


@everywhere
@pytest.mark.parametrize("case", ENV_CASES)
def test_an_env_fault_is_told_as_in_process(link, case):
    def make():
        return broken_env(Arm, **ENV_CASES[case])

    with EnvServer(make, link.place(), link.options(expose_tracebacks=True)) as server:
        assert told(ArmModel(), server.address) == expected("env", case)


@everywhere
@pytest.mark.parametrize("case", MODEL_CASES)
def test_a_model_fault_is_told_as_in_process(link, case):
    model = broken_model(ArmModel(), **MODEL_CASES[case])
    with ModelServer(model, link.place(), link.options(expose_tracebacks=True)) as server:
        assert told(server.address, Arm) == expected("model", case)


@everywhere
@pytest.mark.parametrize("side", HANGS)
def test_a_hang_is_a_timeout_as_in_process(link, side):
    limits = Limits(env_step_s=0.3, model_predict_s=0.3, close_s=0.3)
    options = link.options(close_timeout_s=0.3, drain_timeout_s=0.3)
    if side == "env":
        broken = broken_env(Arm, **HANGS["env"])
        with EnvServer(broken, link.place(), options) as server:
            found = told(ArmModel(), server.address, limits)
            broken.release()
        in_process = broken_env(Arm, **HANGS["env"])
        assert found == told(ArmModel(), lambda: in_process, limits)
        in_process.release()
    else:
        broken = broken_model(ArmModel(), **HANGS["model"])
        with ModelServer(broken, link.place(), options) as server:
            found = told(server.address, Arm, limits)
            broken.release()
        assert (found.error, found.operation, found.step) == (
            "OperationTimeout",
            "model.predict",
            1,
        )
