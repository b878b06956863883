"""`Model`, `EpisodeContext`, and how corners and their parameters are found."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from rollmesh.endpoint.models.corners import bind, find_corners
from rollmesh.endpoint.models.model import EpisodeContext, Model, overridden
from rollmesh.errors import InvalidSpec

CONTEXT = EpisodeContext(episode_id="e1", seed=7, policy_seed=3)


def test_context_reads_like_a_mapping():
    assert CONTEXT["episode_id"] == "e1"
    assert (CONTEXT or {}).get("episode_id") == "e1"
    assert CONTEXT.get("nothing") is None
    assert dict(CONTEXT) == {"episode_id": "e1", "seed": 7, "policy_seed": 3, "state": {}}
    with pytest.raises(KeyError):
        CONTEXT["get"]


def test_context_has_its_own_state_and_fixed_fields():
    other = EpisodeContext(episode_id="e2")
    other.state["plan"] = 1
    assert CONTEXT.state == {}
    assert other["state"] == {"plan": 1}
    with pytest.raises(AttributeError):
        other.seed = 1  # type: ignore[misc]


def test_a_context_is_known_by_identity_whatever_its_state_holds():
    one, other = EpisodeContext(episode_id="e"), EpisodeContext(episode_id="e")
    one.state["h"] = other.state["h"] = np.zeros(2)
    assert one != other
    assert [other, one].index(one) == 1
    assert {one: 1, other: 2}[one] == 1


def test_a_missing_corner_says_what_to_call():
    class Chunks(Model):
        def predict_chunk(self, observation):
            return [observation]

    with pytest.raises(NotImplementedError, match="does not override predict: call predict_chunk"):
        Chunks().predict(0)
    with pytest.raises(NotImplementedError, match="let rollmesh drive"):
        Model().predict_chunk_batch(0)


def test_overridden_sees_methods_of_class_and_instance():
    class Some(Model):
        def predict(self, observation):
            return observation

    model = Some()
    assert overridden(model, "predict") is not None
    assert overridden(model, "predict_batch") is None
    model.predict_batch = lambda observations: observations
    assert overridden(model, "predict_batch") is not None


def test_a_model_without_a_corner_is_refused():
    class Nothing(Model):
        def __call__(self, observation):
            return observation

    with pytest.raises(InvalidSpec, match=r"Nothing overrides none of predict, predict_chunk"):
        find_corners(Nothing())


@pytest.mark.parametrize("value", [None, 3, {"predict": 1}, np.zeros(2)])
def test_what_is_no_policy_is_refused(value):
    with pytest.raises(InvalidSpec, match="wants a callable, a Model, or an object with one of"):
        find_corners(value)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda o: ("o", o), ("o", 1)),
        (lambda o, context: (context, o), (CONTEXT, 1)),
        (lambda o, *, horizon=None: (horizon, o), (8, 1)),
        (lambda o, horizon, context=None: (horizon, context), (8, CONTEXT)),
        (lambda o, **given: given, {"context": CONTEXT, "horizon": 8}),
        (lambda *values: values, (1,)),
        (lambda context: context, 1),
        (functools.partial(lambda o, k, context: (k, context), k=5), (5, CONTEXT)),
        (lambda o, other=4: other, 4),
    ],
)
def test_a_corner_gets_what_it_names(function, expected):
    assert bind(function, "f")(1, CONTEXT, 8) == expected


def test_a_built_in_gets_the_observation_only():
    assert bind(abs, "abs")(-2, CONTEXT, 8) == 2
    assert bind(int, "int")("2", CONTEXT, 8) == 2


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: 0, "observation as its first parameter"),
        (lambda *, observation: 0, "observation as its first parameter"),
        (lambda **given: 0, "observation as its first parameter"),
        (lambda o, goal: 0, "needs a parameter 'goal'"),
        (lambda o, context, /: 0, "needs a parameter 'context'"),
    ],
)
def test_a_corner_that_cannot_be_called_is_refused_before_it_is(function, words):
    with pytest.raises(InvalidSpec, match=words):
        bind(function, "f")


async def _waits(observation):
    return observation


def _yields(observation):
    yield observation


@pytest.mark.parametrize("function", [_waits, _yields])
def test_a_corner_that_would_return_no_action_is_refused_before_it_is_called(function):
    with pytest.raises(InvalidSpec, match=r"f is a (coroutine|generator) function; .* plain"):
        bind(function, "f")


def test_objects_with_corners_need_no_base_class():
    class Duck:
        def predict_batch(self, observations, context):
            return len(context)

        def load(self, path):
            raise AssertionError("takes a path: is not ours to call")

        def on_episode_end(self, context):
            return "end"

    corners = find_corners(Duck())
    assert corners.name == "Duck"
    assert corners.predict is None
    assert corners.policy is None
    assert corners.load is None
    assert corners.predict_batch is not None
    assert corners.predict_batch(0, (CONTEXT, CONTEXT), None) == 2
    assert corners.on_episode_end is not None


def test_a_callable_may_carry_hooks_as_attributes():
    def policy(observation):
        return observation

    policy.on_episode_start = lambda context: None
    policy.close = lambda: None
    corners = find_corners(policy)
    assert corners.policy is not None
    assert corners.on_episode_start is policy.on_episode_start
    assert corners.close is policy.close
    assert corners.on_episode_end is None
    assert corners.name.endswith("policy")


def test_hooks_that_model_only_inherits_cost_nothing():
    class Plain(Model):
        def predict(self, observation):
            return 0

    corners = find_corners(Plain())
    hooks = (corners.on_episode_start, corners.on_episode_end, corners.close, corners.load)
    assert hooks == (None,) * 4
