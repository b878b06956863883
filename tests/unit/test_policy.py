"""`LocalModel`: which corner is asked, what it gets, and which episodes it is told of."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from rollmesh.endpoint.models.corners import find_corners
from rollmesh.endpoint.models.model import Model
from rollmesh.endpoint.models.policy import LocalModel, ThreadedModel, derived_policy_seed
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.errors import EndpointFault
from rollmesh.ports import (
    AdapterContext,
    EpisodeInfo,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
    SubmitsOperations,
)
from rollmesh.spaces.conformance import Checker
from rollmesh.spaces.space import Box

OBSERVATION = Box((3,))
ACTION = Box((2,))


def port(model, **given):
    given = {"observation_space": OBSERVATION, "action_space": ACTION, **given}
    checker = Checker("action", "warn", "refuse", lambda path, detail: None)
    return LocalModel(find_corners(model), checker=checker, **given)


def context(route="route", name="r1"):
    return AdapterContext("session", route, name)


def request(*episodes, horizon=None, route="route", space=OBSERVATION, observation=None):
    rows = [np.full(3, float(i), np.float32) for i in range(len(episodes))]
    infos = tuple(EpisodeInfo(*(e if isinstance(e, tuple) else (e,))) for e in episodes)
    return PredictRequest(
        context=context(route),
        observation=space.codec.encode_many(rows) if observation is None else observation,
        episode_info=infos,
        execution_horizon=horizon,
    )


def actions(reply, rows):
    return np.stack([ACTION.codec.decode_stacked(f, rows) for f in reply.frames], axis=1)


class Tape(Model):
    def __init__(self):
        self.tape = []

    def load(self):
        self.tape.append("load")

    def on_episode_start(self, context):
        self.tape.append(("start", context.episode_id))

    def on_episode_end(self, context):
        self.tape.append(("end", context.episode_id))

    def close(self):
        self.tape.append("close")


def corner(name):
    """Return a corner that notes its call and answers with as many axes as it promises."""

    def answer(self, observation):
        self.tape.append(name)
        front = {"predict": (), "predict_chunk": (4,), "predict_batch": (-1,)}
        rows = np.shape(observation)[0] if "batch" in name else None
        axes = front.get(name, (-1, 4))
        return np.zeros([*(rows if axis == -1 else axis for axis in axes), 2], np.float32)

    return answer


P, C, B, CB = "predict", "predict_chunk", "predict_batch", "predict_chunk_batch"


@pytest.mark.parametrize(
    ("overridden", "rows", "asked", "frames"),
    [
        ([P], 1, [P], 1),
        ([P], 3, [P] * 3, 1),
        ([B], 1, [B], 1),
        ([B], 3, [B], 1),
        ([P, B], 1, [P], 1),
        ([P, B], 3, [B], 1),
        ([C], 1, [C], 4),
        ([C], 3, [C] * 3, 4),
        ([CB], 1, [CB], 4),
        ([CB], 3, [CB], 4),
        ([C, CB], 1, [C], 4),
        ([C, CB], 3, [CB], 4),
        ([P, C], 1, [C], 4),
        ([P, B, C], 3, [C] * 3, 4),
        ([P, B, CB], 1, [CB], 4),
        ([P, B, C, CB], 1, [C], 4),
        ([P, B, C, CB], 3, [CB], 4),
    ],
)
def test_the_richest_corner_that_fits_is_asked(overridden, rows, asked, frames):
    model = type("Some", (Tape,), {name: corner(name) for name in overridden})()
    reply = port(model).predict(request(*"abc"[:rows]))
    assert [entry for entry in model.tape if entry in (P, C, B, CB)] == asked
    assert len(reply.frames) == frames
    for leaves in reply.frames:
        ACTION.codec.verify(leaves, rows)


def test_r11_the_reply_echoes_the_context_and_counts_bytes():
    asked = request("a", "b")
    reply = port(lambda observation: np.zeros((3, 2), np.float32)).predict(asked)
    assert reply.context == asked.context
    assert (reply.request_bytes, reply.response_bytes) == (2 * 3 * 4, 3 * 2 * 2 * 4)
    assert reply.endpoint_total_ns is None


def test_r17_every_frame_is_returned_and_the_horizon_told():
    seen = []

    def policy(observation, horizon, context):
        seen.append((horizon, context.episode_id))
        return np.tile(observation[:2], (16, 1))

    reply = port(policy).predict(request("a", "b", horizon=4))
    assert seen == [(4, "a"), (4, "b")]
    assert actions(reply, 2).shape == (2, 16, 2)
    assert actions(reply, 2)[1].tolist() == [[1, 1]] * 16


def test_batch_corners_get_contexts_and_stacked_observations():
    class Batched(Model):
        def predict_chunk_batch(self, observations, context, horizon):
            assert observations.shape == (2, 3)
            assert [c.episode_id for c in context] == ["a", "b"]
            assert [c.seed for c in context] == [5, None]
            observations[:] = 9  # its own copy
            return np.zeros((2, horizon, 2))

    asked = request(("a", 5), "b", horizon=3)
    assert len(port(Batched()).predict(asked).frames) == 3
    np.testing.assert_array_equal(OBSERVATION.codec.decode(asked.observation, 1), [1, 1, 1])


def test_a_policy_may_write_into_its_observation():
    def policy(observation):
        observation /= 255.0
        observation[0] = -1
        return observation[:2]

    asked = request("a", "b")
    reply = port(policy).predict(asked)
    assert actions(reply, 2)[0, 0, 0] == -1
    np.testing.assert_array_equal(OBSERVATION.codec.decode(asked.observation, 0), [0, 0, 0])


def test_unequal_chunks_of_several_rows_are_cut_to_the_shortest():
    def policy(observation):
        return np.zeros((3 + 2 * int(observation[0]), 2))

    assert len(port(policy).predict(request("a", "b", "c")).frames) == 3


# --------------------------------------------------------------------------------- episodes


class Counting(Tape):
    def predict(self, observation, context):
        self.tape.append(("predict", context.episode_id))
        context.state["steps"] = context.state.get("steps", 0) + 1
        return np.full(2, context.state["steps"], np.float32)


def test_r24_each_episode_starts_and_ends_once():
    model = Counting()
    local = port(model)
    for ids in (["a", "b"], ["a", "b"], ["b"]):
        local.predict(request(*ids))
    assert local.episodes == ("a", "b")
    local.reset_adapter(ResetAdapterRequest(context(), ("a", "never")))
    local.reset_adapter(ResetAdapterRequest(context(), ("a",)))
    local.release_adapter(ReleaseAdapterRequest(context(), "done", 5.0))
    told = [entry for entry in model.tape if entry[0] != "predict"]
    assert told == [("start", "a"), ("start", "b"), ("end", "a"), ("end", "b")]
    assert model.tape.index(("start", "b")) < model.tape.index(("predict", "b"))
    assert local.episodes == ()


def test_state_belongs_to_the_episode():
    local = port(Counting())
    local.predict(request("a"))
    local.predict(request("a"))
    assert actions(local.predict(request("a", "b")), 2)[:, 0, 0].tolist() == [3, 1]


def test_a_release_ends_only_its_own_routes_episodes():
    model = Counting()
    local = port(model, closes=True)
    local.predict(request("a", route="one"))
    local.predict(request("b", route="two"))
    local.release_adapter(ReleaseAdapterRequest(context("one"), "done", 5.0))
    assert [e for e in model.tape if e[0] == "end"] == [("end", "a")]
    assert not local.is_closed
    local.release_adapter(ReleaseAdapterRequest(context("two"), "done", 5.0))
    local.release_adapter(ReleaseAdapterRequest(context("two"), "done", 5.0))
    assert model.tape[-2:] == [("end", "b"), "close"]
    assert model.tape.count("close") == 1
    with pytest.raises(EndpointFault, match="is closed"):
        local.predict(request("c"))


def test_r49_an_instance_is_not_closed():
    model = Counting()
    local = port(model)
    local.predict(request("a"))
    local.release_adapter(ReleaseAdapterRequest(context(), "done", 5.0))
    assert "close" not in model.tape


def test_a_failing_end_hook_does_not_keep_the_others_from_ending():
    class Bad(Counting):
        def on_episode_end(self, context):
            super().on_episode_end(context)
            raise ValueError(f"no end for {context.episode_id}")

    model = Bad()
    local = port(model, closes=True)
    local.predict(request("a", "b"))
    with pytest.raises(EndpointFault, match="no end for a"):
        local.release_adapter(ReleaseAdapterRequest(context(), "done", 5.0))
    assert model.tape[-3:] == [("end", "a"), ("end", "b"), "close"]


def test_an_episode_whose_start_failed_has_no_end():
    class Bad(Counting):
        def on_episode_start(self, context):
            raise ValueError("not today")

    local = port(model := Bad())
    with pytest.raises(EndpointFault, match="not today") as caught:
        local.predict(request("a"))
    assert caught.value.error_class == "ValueError"
    local.release_adapter(ReleaseAdapterRequest(context(), "done", 5.0))
    assert model.tape == []


def test_policy_seeds_depend_on_the_seed_alone():
    seen = {}

    def policy(observation, context):
        seen[context.episode_id] = context.policy_seed
        return np.zeros(2)

    local = port(policy)
    local.predict(request(("a", 7), ("b", 7), ("c", 8), ("d", None)))
    assert seen["a"] == seen["b"] == derived_policy_seed(7)
    assert seen["c"] != seen["a"]
    assert seen["d"] is None
    assert 0 <= derived_policy_seed(2**70) < 2**31
    port(policy, policy_seed_of=lambda seed: 99).predict(request(("e", 7)))
    assert seen["e"] == 99


# ----------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("model", "error_class", "words"),
    [
        (lambda o: 1 / 0, "ZeroDivisionError", "division"),
        (lambda o: sys.exit(3), "SystemExit", r"called sys.exit\(3\) in model.predict"),
        (lambda o: np.zeros((4, 3)), "InvalidValue", r"returned shape \(4, 3\), wanted \(T, 2\)"),
        (lambda o: None, "InvalidValue", "returned None, wanted"),
        (lambda o: np.full(2, np.nan), "InvalidValue", "NaN"),
    ],
)
@pytest.mark.parametrize("rows", [1, 2])
def test_whatever_a_policy_does_wrong_is_one_fault(model, error_class, words, rows):
    with pytest.raises(EndpointFault, match=words) as caught:
        port(model).predict(request(*"ab"[:rows]))
    assert caught.value.error_class == error_class


def test_a_fault_carries_the_users_traceback():
    def broken(observation):
        raise KeyError("wrist")

    with pytest.raises(EndpointFault) as caught:
        port(broken).predict(request("a"))
    assert "in broken" in caught.value.traceback_text
    assert caught.value.is_recoverable


def test_a_keyboard_interrupt_is_no_fault():
    def interrupted(observation):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        port(interrupted).predict(request("a"))


def test_load_faults_name_load():
    class Bad(Counting):
        def load(self):
            raise FileNotFoundError("weights.bin")

    with pytest.raises(EndpointFault, match=r"weights\.bin") as caught:
        port(Bad()).load()
    assert caught.value.outcome == "not_done"


# ----------------------------------------------------------------------------------- thread


class Home(Counting):
    def __init__(self):
        super().__init__()
        self.threads = set()

    def predict(self, observation, context):
        self.threads.add(threading.current_thread().name)
        return super().predict(observation, context)


def answers(threaded, method, asked):
    box, ready = [], threading.Event()

    def callback(reply):
        box.append(reply)
        ready.set()

    threaded.submit(method, asked, callback, ())
    assert ready.wait(10)
    return box[0]


def test_r49_a_threaded_model_calls_back_from_its_own_thread():
    thread = OwnThread("home")
    threaded = ThreadedModel(port(model := Home(), closes=True), thread, owns_thread=True)
    assert isinstance(threaded, SubmitsOperations)
    assert len(answers(threaded, "predict", request("a")).frames) == 1
    assert len(threaded.predict(request("b")).frames) == 1
    assert answers(threaded, "reset_adapter", ResetAdapterRequest(context(), ("a",))) is None
    release = ReleaseAdapterRequest(context(), "done", 5.0)
    assert answers(threaded, "release_adapter", release) is None
    assert model.threads == {"home"}
    assert model.tape[-1] == "close"
    assert thread.join(10)
    late = answers(threaded, "predict", request("c"))
    assert isinstance(late, EndpointFault)
    assert late.outcome == "not_done"


def test_r28_a_direct_release_is_bounded():
    gate = threading.Event()

    class Hangs(Home):
        def close(self):
            gate.wait(30)

    thread = OwnThread("home")
    threaded = ThreadedModel(port(Hangs(), closes=True), thread, owns_thread=True)
    with pytest.raises(TimeoutError, match="releasing the model"):
        threaded.release_adapter(ReleaseAdapterRequest(context(), "done", 0.05))
    assert thread.abandoned
    gate.set()
    assert thread.join(10)


def test_a_model_that_no_route_used_is_closed_by_a_release():
    thread = OwnThread("home")
    threaded = ThreadedModel(port(model := Home(), closes=True), thread, owns_thread=True)
    threaded.release_adapter(ReleaseAdapterRequest(context(), "opening failed", 10))
    assert model.tape == ["close"]
    assert thread.join(10)


def test_r49_faults_and_interrupts_reach_the_callback():
    def policy(observation):
        raise KeyboardInterrupt if observation[0] else ValueError("bad")

    threaded = ThreadedModel(port(policy), thread := OwnThread("home"), owns_thread=True)
    assert isinstance(answers(threaded, "predict", request("a")), EndpointFault)
    ones = OBSERVATION.codec.encode(np.ones(3, np.float32))
    asked = request("a", observation=ones)
    assert isinstance(answers(threaded, "predict", asked), KeyboardInterrupt)
    threaded.abandon(())
    assert thread.abandoned
    assert isinstance(answers(threaded, "predict", asked), EndpointFault)
