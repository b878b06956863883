"""What `RemoteEnv` and `RemoteVectorEnv` share, whatever the number of lanes."""

from __future__ import annotations

import copy
import gc
import types

import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from rollmesh.endpoint.clients.client_options import client_options
from rollmesh.endpoint.clients.env_client import connect_env
from rollmesh.endpoint.clients.env_face import (
    EnvFace,
    OtherRenderMode,
    check_options,
    check_render_mode,
    check_seed,
)
from rollmesh.endpoint.envs.gym_env import GymEnvPort
from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.errors import EndpointFault, EnvFailed, InvalidSpec, OperationTimeout
from rollmesh.limits import Limits
from rollmesh.ports import ResetRequest
from rollmesh.wire.messages import Kind
from tests.unit.serving_toys import Counter
from tests.unit.session_toys import ToyServer, mem_address, until

SECRET, OTHER = "0123456789abcdef0123456789abcdef", "f" * 32
OPTIONS = client_options(resume_grace_s=2.0, environ={})


class Face(EnvFace):
    """No more than what all faces share."""

    def __init__(self, address, *, options=OPTIONS, limits=None, port=None, **connecting):
        self._connect(address, options, connecting, limits=limits, port=port)

    def close(self):
        self._end()


@pytest.fixture
def server():
    with ToyServer(GymEnvPort(Counter())) as server:
        yield server


@pytest.fixture
def face(server):
    face = Face(server.address)
    yield face
    face.close()


# ------------------------------------------------------------------------------ connecting


def test_it_shows_what_is_served(face, server):
    assert face.address == server.address
    assert face.contract == server.port.contract
    assert face.__enter__() is face


def test_a_connection_that_is_given_is_taken_over_and_no_other_made(server):
    port = connect_env(server.address, OPTIONS)
    face = Face(server.address, port=port)
    assert face.port is port
    face.close()
    assert len(server.hellos) == 1
    assert server.closed == ["closed by caller"]


def test_one_that_never_connected_can_be_dropped():
    with pytest.raises(EndpointFault) as caught:
        Face("mem://nobody-here", limits=Limits(env_connect_s=0.01))
    assert caught.value.error_class == "ConnectFailed"
    del caught
    gc.collect()  # what its `__del__` raised would be a warning, and so an error


# ------------------------------------------------------------------------------- rendering


def test_it_renders_what_the_env_does(face):
    face.port.reset(ResetRequest(episode_ids=("e",)))
    assert np.array_equal(face.render(), np.zeros((4, 4, 3), np.uint8))


def test_rendering_may_take_as_long_as_a_step(server):
    face = Face(server.address, limits=Limits(env_step_s=0.1, env_reset_s=60.0))
    server.plan(Kind.RENDER, "silent")
    with pytest.raises(OperationTimeout, match=r"Counter: env\.render") as caught:
        face.render()
    assert caught.value.timeout_s == 0.1
    face.close()


def test_a_fault_in_rendering_names_the_env(face, server, monkeypatch):
    def broken():
        raise EndpointFault("no display", error_class="GLError")

    monkeypatch.setattr(server.port.env, "render", broken)
    with pytest.raises(EnvFailed, match=r"Counter: env\.render failed.*no display"):
        face.render()


def test_a_closed_one_renders_nothing_and_asks_nobody(face, server):
    face.close()
    before = list(server.requests)
    with pytest.raises(InvalidSpec, match="render: this env is closed"):
        face.render()
    assert server.requests == before


# --------------------------------------------------------------------------------- the end


def test_the_session_is_ended_once(face, server):
    for _ in range(3):
        face.close()
    assert server.closed == ["closed by caller"]
    del face
    gc.collect()
    assert server.closed == ["closed by caller"]


def test_one_that_is_dropped_leaves_its_place_once(server):
    face = Face(server.address)
    del face
    gc.collect()
    until(lambda: server.closed == ["left"])


def test_an_interrupt_that_came_too_late_does_not_shorten_the_end_of_the_session(server):
    def note(connection, message):
        allowed.append(message.body.timeout_ms)
        connection.send(server._execute(message))

    allowed = []
    face = Face(server.address, limits=Limits(close_s=7.0))
    server.plan(Kind.CLOSE, note)
    face.port.interrupt()
    face.close()
    assert server.closed == ["closed by caller"]
    assert allowed == [7000]


# ---------------------------------------------------------------------------------- copies


def test_a_copy_is_a_session_of_its_own_with_the_same_options_and_limits():
    limits = Limits(env_step_s=7.0)
    with EnvServer(Counter, mem_address()) as server:
        face = Face(server.address, limits=limits)
        other = copy.copy(face)
        assert type(other) is Face
        assert other.port is not face.port
        assert (other.address, other._limits) == (server.address, limits)
        assert other._options.resume_grace_s == OPTIONS.resume_grace_s
        face.close()
        assert other.port.reset(ResetRequest(episode_ids=("e",))).infos[0] == {"seed": None}
        other.close()


def test_what_is_copied_holds_no_token_and_the_copy_takes_that_of_its_environment(
    server, monkeypatch
):
    face = Face(server.address, options=client_options(token=SECRET, environ={}))
    _, arguments = face.__reduce__()
    assert arguments[2].token is None
    assert SECRET not in repr(arguments)
    monkeypatch.setenv("ROLLMESH_TOKEN", OTHER)
    copy.copy(face).close()
    face.close()
    assert [hello.token for hello in server.hellos] == [SECRET, OTHER]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"token": SECRET, "render_mode": "ansi"}, {"render_mode": "ansi"}),
        ({"options": OPTIONS}, {"options": OPTIONS}),
        (
            {"options": client_options(token=SECRET, environ={})},
            {"options": client_options(environ={})},
        ),
        ({}, {}),
    ],
)
def test_the_spec_that_gymnasium_keeps_of_it_holds_no_token(face, given, kept):
    spec = EnvSpec("rollmesh/Remote-v0", kwargs=dict(given))
    face.spec = spec
    assert face.spec.kwargs == kept
    assert face.spec.id == spec.id
    assert spec.kwargs == given  # the caller's own stays as it is


# ------------------------------------------------------------------------------ what is given


def contract(render_mode):
    return types.SimpleNamespace(render_mode=render_mode)


@pytest.mark.parametrize(("asked", "served"), [(None, "human"), (None, None), ("ansi", "ansi")])
def test_the_render_mode_that_is_served_is_fine_and_so_is_none_asked_for(asked, served):
    check_render_mode(asked, contract(served))


@pytest.mark.parametrize("served", ["rgb_array", None])
def test_another_render_mode_is_refused_as_gymnasium_expects(served):
    with pytest.raises(TypeError) as caught:  # what `make_vec_env` catches
        check_render_mode("human", contract(served))
    error = caught.value
    assert isinstance(error, InvalidSpec)
    assert error.field == "render_mode"
    assert f"wants 'human', but the served env was built with {served!r}" in str(error)
    again = OtherRenderMode(f"{error} and more")  # what `gymnasium.make` does
    assert str(again) == f"{error} and more"
    assert again.field == "render_mode"


@pytest.mark.parametrize("options", [None, {}, {"a": 1}, types.MappingProxyType({"a": 1})])
def test_reset_options_are_a_mapping_or_none(options):
    check_options(options)


@pytest.mark.parametrize("options", [[], "a", 0, [("a", 1)]])
def test_other_reset_options_are_refused_empty_ones_too(options):
    with pytest.raises(InvalidSpec, match="options: wants a mapping or None"):
        check_options(options)


@pytest.mark.parametrize("seed", [None, 0, 2**63 - 1, np.int64(3), np.uint64(2**63 - 1)])
def test_a_seed_that_fits_is_taken(seed):
    check_seed("seed", seed)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, "7", True, False, np.uint64(2**63), [1]])
def test_a_seed_that_does_not_fit_is_refused_under_its_name(seed):
    with pytest.raises(InvalidSpec, match=r"seed\[1\]: wants an int from 0 to 2\*\*63 - 1"):
        check_seed("seed[1]", seed)
