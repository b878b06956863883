"""`open_model`: what a policy may be, where it lives, and when it is loaded and closed."""

from __future__ import annotations

import functools
import sys
import threading
import types
import zipfile
from dataclasses import dataclass

import numpy as np
import pytest

from rollmesh.endpoint.models.model import Model
from rollmesh.endpoint.models.model_loading import SharedPolicy, open_model
from rollmesh.endpoint.models.sb3 import check_policy_file, likely_algorithm
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.errors import EndpointFault, InvalidSpec, OperationTimeout
from rollmesh.limits import Limits
from rollmesh.ports import (
    AdapterContext,
    EpisodeInfo,
    PredictRequest,
    ReleaseAdapterRequest,
    SubmitsOperations,
)
from rollmesh.spaces.space import Box, Discrete

SPACE = Box((2,))
CONTEXT = AdapterContext("s", "r", "1")


class Policy(Model):
    made: list[Policy] = []

    def __init__(self, value=0.5):
        self.value = value
        self.tape = [("init", threading.current_thread().name)]
        Policy.made.append(self)

    def load(self):
        self.tape.append(("load", threading.current_thread().name))

    def predict(self, observation):
        self.tape.append(("predict", threading.current_thread().name))
        return np.full(2, self.value, np.float32)

    def close(self):
        self.tape.append(("close", threading.current_thread().name))


def function(observation):
    return np.full(2, 0.25, np.float32)


def make(value):
    return Policy(value)


INSTANCE = Policy()


@pytest.fixture
def module(monkeypatch):
    """A module that targets can name."""
    made = types.ModuleType("policies_for_tests")
    made.Policy, made.function, made.make, made.INSTANCE = Policy, function, make, INSTANCE
    monkeypatch.setitem(sys.modules, "policies_for_tests", made)
    Policy.made.clear()
    return "policies_for_tests"


def opened(model, **given):
    return open_model(model, observation_space=Box((3,)), action_space=SPACE, **given)


def first_action(port):
    request = PredictRequest(
        context=CONTEXT,
        observation=Box((3,)).codec.encode(np.zeros(3, np.float32)),
        episode_info=(EpisodeInfo("e", 1),),
    )
    return SPACE.codec.decode(port.predict(request).frames[0])


def release(port):
    port.release_adapter(ReleaseAdapterRequest(CONTEXT, "done", 5.0))


def test_r49_an_instance_stays_on_the_callers_thread_and_open():
    policy, here = Policy(), threading.current_thread().name
    port = opened(policy)
    assert not isinstance(port, SubmitsOperations)
    assert first_action(port).tolist() == [0.5, 0.5]
    release(port)
    assert policy.tape == [("init", here), ("load", here), ("predict", here)]


def test_an_instance_is_loaded_once_however_often_it_is_opened():
    policy = Policy()
    for _ in range(2):
        first_action(opened(policy))
    assert [entry for entry, _ in policy.tape].count("load") == 1


def test_an_instance_that_lets_nobody_set_attributes_is_loaded_once_too():
    loads = []

    @dataclass(frozen=True)
    class Frozen(Model):
        value: float = 0.5

        def load(self):
            loads.append(self)

        def predict(self, observation):
            return np.full(2, self.value, np.float32)

    policy = Frozen()
    for _ in range(2):
        assert first_action(opened(policy)).tolist() == [0.5, 0.5]
    assert loads == [policy]


class Forgets:
    """A policy with the reset that others call before an episode."""

    def predict(self, observation):
        return np.zeros(2, np.float32)

    def reset(self):
        raise AssertionError("nobody calls it")


def test_a_reset_that_nobody_calls_is_told_once(caplog):
    class Told(Forgets):
        def on_episode_start(self, context):
            pass

    shared = SharedPolicy(Forgets(), model_kwargs=None, conformance="warn")
    for _ in range(2):
        first_action(shared.port(Box((3,)), SPACE))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "Forgets has a reset method, which is not called" in record.getMessage()
    assert "on_episode_start" in record.getMessage()
    caplog.clear()
    first_action(opened(Told()))
    assert not caplog.records


@pytest.mark.parametrize("given", [Policy, "policies_for_tests:Policy"])
def test_r49_a_class_lives_and_is_closed_on_a_thread_of_its_own(module, given):
    port = opened(given, model_kwargs={"value": 0.75})
    assert isinstance(port, SubmitsOperations)
    assert first_action(port).tolist() == [0.75, 0.75]
    release(port)
    (policy,) = Policy.made
    assert [entry for entry, _ in policy.tape] == ["init", "load", "predict", "close"]
    assert {name for _, name in policy.tape} == {"rollmesh-model"}


def test_a_given_thread_is_used_and_not_stopped(module):
    thread = OwnThread("theirs")
    port = opened(Policy, thread=thread)
    first_action(port)
    release(port)
    assert {name for _, name in Policy.made[0].tape} == {"theirs"}
    assert thread.call(lambda: 5, 5.0, "a call") == 5
    thread.stop()


@pytest.mark.parametrize(
    "given", [function, lambda observation: [0.25, 0.25], "policies_for_tests:function"]
)
def test_a_function_is_the_policy(module, given):
    port = opened(given)
    assert not isinstance(port, SubmitsOperations)
    assert first_action(port).tolist() == [0.25, 0.25]


def test_a_target_may_name_an_instance(module):
    assert first_action(opened("policies_for_tests:INSTANCE")).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("given", [make, "policies_for_tests:make"])
def test_a_function_with_keyword_arguments_is_a_factory(module, given):
    port = opened(given, model_kwargs={"value": 0.125})
    assert isinstance(port, SubmitsOperations)
    assert first_action(port).tolist() == [0.125, 0.125]
    port.abandon(())


def test_random_is_inline_and_follows_the_seed():
    actions = [first_action(opened("random")).tolist() for _ in range(2)]
    assert actions[0] == actions[1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "wants a callable, a Model"),
        ("", "is empty"),
        ("grpc://gpu:6000", "unknown scheme"),
        ("CartPole-v1", "wants 'random', module:attribute, or a policy file"),
        ("weights/net.pt", "holds weights and no code"),
        ("policies_for_tests.py", "policies_for_tests:attribute"),
        ("policies_for_tests:Polic", "did you mean 'Policy'"),
        ("no_such_module_at_all:f", "no module 'no_such_module_at_all'"),
        ("missing.zip", "there is no file 'missing.zip'"),
    ],
)
def test_what_is_no_policy_is_refused(module, given, words):
    with pytest.raises(InvalidSpec, match=words):
        opened(given)


@pytest.mark.parametrize("given", ["random", INSTANCE])
def test_keyword_arguments_need_a_factory(given):
    with pytest.raises(InvalidSpec, match="model_kwargs"):
        opened(given, model_kwargs={"value": 1})


def build(value, *, scale=1):
    return Policy(value)


@pytest.mark.parametrize(
    ("given", "kwargs", "told"),
    [
        (Policy, {"valeu": 1}, "model_kwargs: Policy takes no 'valeu'; it takes: value"),
        (build, {"value": 1, "x": 2}, "model_kwargs: build takes no 'x'; it takes: value, scale"),
        (build, {}, "model: build cannot be called: it needs value; pass them in model_kwargs"),
        (function, {"value": 1}, "model_kwargs: function takes no 'value'"),
    ],
)
def test_arguments_that_a_policy_does_not_take_are_named_before_it_is_built(given, kwargs, told):
    Policy.made.clear()
    with pytest.raises(InvalidSpec, match=f"^{told}"):
        opened(given, model_kwargs=kwargs)
    with pytest.raises(InvalidSpec, match=f"^{told}"):
        SharedPolicy(given, model_kwargs=kwargs, conformance="warn")
    assert Policy.made == []


class Needs(Model):
    def __init__(self, path):
        self.path = path

    def predict(self, observation):
        return observation


def test_a_class_without_what_it_needs_is_refused():
    with pytest.raises(InvalidSpec, match=r"^model: Needs cannot be called: it needs path; pass"):
        opened(Needs)


class Configured(Policy):
    """Made by a decorator that fills in what is needed, as configuration libraries do."""

    @functools.wraps(Needs.__init__)
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


def test_what_a_decorator_wraps_does_not_say_what_is_needed():
    assert opened(Configured) is not None


class Broken(Model):
    def __init__(self, where="init"):
        self.where = where
        if where == "init":
            raise OSError("no weights")

    def load(self):
        if self.where == "exit":
            sys.exit(1)
        raise TimeoutError("the hub did not answer")

    def predict(self, observation):
        return observation


@pytest.mark.parametrize(
    ("where", "error_class", "words"),
    [
        ("init", "OSError", "no weights"),
        ("load", "TimeoutError", "the hub did not answer"),
        ("exit", "SystemExit", "sys.exit"),
    ],
)
def test_a_constructor_or_load_that_raises_is_a_fault(where, error_class, words):
    with pytest.raises(EndpointFault, match=words) as caught:
        opened(Broken, model_kwargs={"where": where})
    assert caught.value.error_class == error_class
    assert caught.value.outcome == "not_done"


def test_loading_is_bounded_on_its_own_thread():
    gate = threading.Event()

    class Hangs(Policy):
        def load(self):
            gate.wait(30)

    thread = OwnThread("hangs")
    with pytest.raises(OperationTimeout, match=r"limits\.model_connect_s") as caught:
        opened(Hangs, thread=thread, limits=Limits(model_connect_s=0.05))
    assert thread.abandoned
    assert (caught.value.operation, caught.value.timeout_s) == ("model.connect", 0.05)
    gate.set()
    assert thread.join(10)


def test_findings_about_actions_go_to_the_report():
    found = []
    port = open_model(
        lambda observation: np.full(2, 5, np.float32),
        observation_space=Box((3,)),
        action_space=Box((2,), low=-1, high=1),
        report=lambda path, detail: found.append(path),
    )
    for _ in range(3):
        assert first_action(port).tolist() == [5, 5]
    assert found == ["action"]
    strict = open_model(
        lambda observation: 9,
        observation_space=Box((3,)),
        action_space=Discrete(2),
        conformance="strict",
    )
    with pytest.raises(EndpointFault, match="outside 0 to 1"):
        first_action(strict)


def zipped(path, text):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", text)
    return path


def test_policy_files_are_looked_at_before_they_are_loaded(tmp_path):
    (tmp_path / "text.zip").write_text("no zip")
    for path in (tmp_path / "text.zip", zipped(tmp_path / "bare.zip", "{}"), tmp_path):
        with pytest.raises(InvalidSpec, match="is no policy file of Stable-Baselines3"):
            check_policy_file(path)
    with pytest.raises(InvalidSpec, match="is no policy file"):
        opened(zipped(tmp_path / "list.ZIP", "[1]"))
    saved = check_policy_file(zipped(tmp_path / "dqn.zip", '{"policy_class": {}, "n_steps": 1}'))
    assert likely_algorithm(saved) is None


@pytest.mark.parametrize(
    ("attributes", "algorithm"),
    [
        ({"clip_range": 0, "gae_lambda": 1}, "PPO"),
        ({"gae_lambda": 1}, "A2C"),
        ({"exploration_fraction": 0.1}, "DQN"),
        ({"target_entropy": "auto"}, "SAC"),
        ({"target_policy_noise": 0.2}, "TD3"),
    ],
)
def test_the_algorithm_is_told_by_what_it_saved(attributes, algorithm):
    assert likely_algorithm(attributes) == algorithm
