"""The spaces that a policy declares are compared with the env's before anything is played."""

from __future__ import annotations

import types
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

import rollmesh
from rollmesh.endpoint.models.declared_spaces import check_declared, misfit
from rollmesh.endpoint.models.model_loading import open_model
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.errors import InvalidSpec, ModelFailed
from rollmesh.fleet.settings import FleetSettings
from rollmesh.spaces.gymnasium import from_gymnasium
from rollmesh.spaces.space import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

SEEN = Box((3,), np.dtype(np.float32), -1.0, 1.0)
ACTED = Discrete(4)


class Env:
    """Two steps an episode."""

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)
        self.t = 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(3, np.float32), 1.0, self.t == 2, False, {}

    def close(self):
        pass


class Fitting(rollmesh.Model):
    observation_space = gymnasium.spaces.Box(-9, 9, (3,), np.float64)
    action_space = ACTED
    loads: ClassVar = []

    def load(self):
        self.loads.append(1)

    def predict(self, observation):
        return 0


class OtherObservations(Fitting):
    observation_space = gymnasium.spaces.Box(-1, 1, (7,), np.float32)
    loads: ClassVar = []


class OtherActions(Fitting):
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    loads: ClassVar = []


class ToldByLoad(Fitting):
    """Knows its spaces once it is loaded, as one does that reads a file."""

    observation_space = None
    loads: ClassVar = []

    def load(self):
        super().load()
        self.observation_space = OtherObservations.observation_space


WRONG = [
    (OtherObservations, "observation", r"Box\(\(7,\).*Box\(\(3,\)"),
    (OtherActions, "action", r"Box\(\(2,\).*Discrete\(4"),
    (ToldByLoad, "observation", r"Box\(\(7,\).*Box\(\(3,\)"),
]


def played(model, **options):
    return rollmesh.evaluate(model, Env, episodes=1, seeds=[3], **options)


def refused(model, which, words, **options):
    """Return the refusal, which names both spaces and what to do."""
    with pytest.raises(InvalidSpec, match=words) as told:
        played(model, **options)
    text = str(told.value)
    assert text.startswith(f"model.{which}_space: "), text
    assert "; play it in an env with the spaces it was made for" in text, text
    assert told.value.field == f"model.{which}_space"
    return text


# ------------------------------------------------------------------------------ in process


@pytest.mark.parametrize("kind", [Fitting, Fitting()], ids=["class", "instance"])
def test_spaces_that_fit_are_played_whatever_their_bounds(kind):
    assert len(played(kind).episodes) == 1


@pytest.mark.parametrize(("kind", "which", "words"), WRONG)
@pytest.mark.parametrize("given", ["class", "instance"])
def test_other_spaces_are_refused_before_the_first_reset(kind, which, words, given):
    kind.loads.clear()
    refused(kind if given == "class" else kind(), which, words)
    assert kind.loads == ([1] if kind is ToldByLoad else [])


def test_a_session_refuses_them_too():
    with (
        pytest.raises(InvalidSpec, match=r"model\.action_space"),
        rollmesh.Session(OtherActions(), Env),
    ):
        pass


def test_what_is_no_space_declares_nothing():
    class Odd(Fitting):
        observation_space = "camera"

        @property
        def action_space(self):
            raise RuntimeError("not loaded yet")

    assert len(played(Odd()).episodes) == 1


def test_a_callable_may_declare_spaces():
    def policy(observation):
        return 0

    policy.observation_space = OtherObservations.observation_space
    refused(policy, "observation", "policy")


# ------------------------------------------------------------------------------ served


@pytest.mark.parametrize("address", ["rollmesh+unix://", "tcp://127.0.0.1:0"])
@pytest.mark.parametrize(("kind", "which", "words"), WRONG)
def test_a_served_model_refuses_them_when_it_is_told_of_the_env(address, kind, which, words):
    options = rollmesh.ServerOptions(native=False) if address.startswith("tcp") else None
    with ModelServer(kind(), address, options) as server:
        served = refused(server.address, which, words)
    local = refused(kind(), which, words)
    assert served.removesuffix(f" (served at {server.address})") == local


def test_a_refusing_server_serves_the_next_env_and_loads_once():
    model = ToldByLoad()
    model.loads.clear()
    with ModelServer(model, "rollmesh+unix://") as server:
        for _ in range(2):
            refused(server.address, "observation", "Box")
    assert model.loads == [1]
    fitting = Fitting()
    fitting.loads.clear()
    with ModelServer(fitting, "rollmesh+unix://") as server:
        with rollmesh.RemoteModel(server.address) as other, pytest.raises(InvalidSpec, match="Box"):
            other.configure(gymnasium.spaces.Discrete(3), gymnasium.spaces.Discrete(4))
        assert fitting.loads == []
        assert len(played(server.address).episodes) == 1
    assert fitting.loads == [1]


def test_a_model_in_processes_of_its_own_refuses_them():
    options = FleetSettings(model_workers=1)
    refused(OtherActions, "action", "Box", workers=1, fleet=options)


def test_another_failure_of_a_served_model_stays_one():
    class Broken(Fitting):
        def load(self):
            raise RuntimeError("no weights")

    with (
        ModelServer(Broken(), "rollmesh+unix://") as server,
        pytest.raises(ModelFailed, match="no weights"),
    ):
        played(server.address)


# ------------------------------------------------------------------------------ what fits


def image(shape, dtype=np.uint8):
    return Box(shape, np.dtype(dtype), 0, 255)


@pytest.mark.parametrize(
    ("declared", "given"),
    [
        (Box((2,), np.dtype(np.float64), -1, 1), Box((2,), np.dtype(np.float32), -2, 2)),
        (Discrete(4, dtype=np.dtype(np.int32)), Discrete(4)),
        (Text(0, 5), Text(1, 90)),
        (Dict((("a", SEEN), ("b", ACTED))), Dict((("b", ACTED), ("a", SEEN)))),
        (Tuple((SEEN, ACTED)), Tuple((SEEN, ACTED))),
    ],
)
def test_bounds_precision_and_order_of_names_are_no_misfit(declared, given):
    assert misfit(declared, given, "observation") is None


@pytest.mark.parametrize(
    ("declared", "given", "path"),
    [
        (Discrete(4), Discrete(5), "observation:"),
        (Discrete(4), Discrete(4, 1), "observation:"),
        (image((2, 2, 3)), image((2, 2, 3), np.float32), "observation:"),
        (MultiBinary((2,)), MultiBinary((3,)), "observation:"),
        (MultiDiscrete(np.array([2, 3])), MultiDiscrete(np.array([3, 2])), "observation:"),
        (Dict((("a", SEEN),)), Dict((("b", SEEN),)), "observation:"),
        (Dict((("a", SEEN),)), Dict((("a", ACTED),)), "observation['a']:"),
        (Tuple((SEEN, SEEN)), Tuple((SEEN,)), "observation:"),
        (Tuple((SEEN, SEEN)), Tuple((SEEN, ACTED)), "observation[1]:"),
        (image((3, 2, 2)), image((2, 2, 3)), "observation:"),
    ],
)
def test_another_form_is_a_misfit_and_is_told_where(declared, given, path):
    told = misfit(declared, given, "observation")
    assert told is not None
    assert told.startswith(path)
    assert misfit(given, given, "observation") is None


@pytest.mark.parametrize("kind", ["Sequence", "Graph", "OneOf"])
def test_ragged_spaces_are_compared_by_their_parts(kind):
    spaces = gymnasium.spaces
    one, other = spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (3,))

    def of(inner):
        made = {
            "Sequence": lambda: spaces.Sequence(inner),
            "Graph": lambda: spaces.Graph(inner, None),
            "OneOf": lambda: spaces.OneOf((inner, spaces.Discrete(2))),
        }[kind]
        return from_gymnasium(made())

    assert misfit(of(one), of(one), "observation") is None
    assert misfit(of(one), of(other), "observation") is not None


def test_a_channel_first_image_fits_where_the_policy_turns_images_itself():
    model = types.SimpleNamespace(observation_space=image((3, 2, 2)), action_space=None)
    check_declared(model, image((2, 2, 3)), ACTED, name="PPO", turns_images=True)
    with pytest.raises(InvalidSpec, match="PPO"):
        check_declared(model, image((2, 2, 3)), ACTED, name="PPO")
    with pytest.raises(InvalidSpec, match="PPO"):
        check_declared(model, image((4, 2, 3)), ACTED, name="PPO", turns_images=True)


def test_the_check_comes_before_the_thread_of_a_class_is_used_for_anything_else():
    with pytest.raises(InvalidSpec, match="OtherActions"):
        open_model(OtherActions, observation_space=SEEN, action_space=ACTED)


def test_check_model_finds_it():
    from rollmesh.testing import check_model

    report = check_model(OtherActions, Env)
    failed = [finding for finding in report.findings if finding.level.value == "FAIL"]
    assert [finding.rule for finding in failed] == ["spaces"]
    assert "OtherActions" in failed[0].sentence
