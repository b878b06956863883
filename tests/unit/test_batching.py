"""Batching: what goes together, when it goes, who gets which rows, and who may end what."""

from __future__ import annotations

import queue
import threading

import msgspec
import numpy as np
import pytest

from rollmesh.endpoint.models.batch_wait import LearnedWait
from rollmesh.endpoint.models.batching import BatchingModel
from rollmesh.endpoint.own_thread import OwnThread
from rollmesh.errors import EndpointFault, InvalidSpec, PortTimeout, SessionLost
from rollmesh.ports import (
    AdapterContext,
    EpisodeInfo,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
)
from rollmesh.spaces.space import Box

WIDTHS = (1, 9000)
"""Of a row: a small one is copied when its batch goes, a large one as soon as it comes."""
SPACES = {width: Box((width,), np.float32) for width in WIDTHS}
SPACE = SPACES[1]
LIMIT_S = 10.0


class Doubler:
    """A model port: each action is twice the observation, of elements all the same.

    Notes its calls; may be held up.
    """

    def __init__(self, frames=1, width=1):
        self.width = width
        self.calls = []
        self.requests = []
        self.reset = []
        self.released = []
        self.frames = frames
        self.bad = None
        self.failure = None
        self.odd = {}
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)

    def predict(self, request):
        self.requests.append(request)
        ids = [info.episode_id for info in request.episode_info]
        self.calls.append(ids)
        self.entered.release()
        assert self.gate.wait(LIMIT_S)
        if self.bad in ids:
            raise self.failure or ValueError(f"bad row {self.bad}")
        if ids[0] in self.odd:
            return self.odd.pop(ids[0])
        rows = request.observation[0]
        assert rows.shape == (len(ids), self.width)
        assert (rows == rows[:, :1]).all()
        rows = rows[:, :1]
        frames = tuple([[rows * 2 + t] for t in range(self.frames)])
        return PredictReply(context=request.context, frames=frames)

    def reset_adapter(self, request):
        self.reset.append(request.episode_ids)

    def release_adapter(self, request):
        self.released.append(request.context.env_id)


def ask(route, *episodes, value=1.0, horizon=None, session="s"):
    return PredictRequest(
        context=AdapterContext(session, route, f"{route}-{episodes}"),
        observation=[np.full((len(episodes), current["width"]), value, np.float32)],
        episode_info=tuple([EpisodeInfo(episode) for episode in episodes]),
        execution_horizon=horizon,
    )


current = {"width": 1}


@pytest.fixture(params=WIDTHS, ids=["small", "large"])
def rig(request, monkeypatch):
    """Give a function that makes a batching model over a doubler; ends its threads."""
    width = request.param
    monkeypatch.setitem(current, "width", width)
    made = []

    def make(max_batch=8, max_wait_s=0.02, bucket_sizes=None, **given):
        port = Doubler(width=width, **given)
        model = BatchingModel(
            port,
            max_batch,
            max_wait_s,
            observation_space=SPACES[width],
            action_space=SPACE,
            bucket_sizes=bucket_sizes,
        )
        made.append(model)
        return port, model

    yield make
    for model in made:
        model.close()


def submit(model, *requests):
    """Submit requests; return a function that waits for all their results, in order."""
    boxes = [queue.SimpleQueue() for _ in requests]
    for request, box in zip(requests, boxes, strict=True):
        model.submit("predict", request, box.put, ())
    return lambda: [box.get(timeout=LIMIT_S) for box in boxes]


def busy(port, model, *episodes):
    """Hold the model up in a call; return what lets it go and waits for the answer."""
    port.gate.clear()
    results = submit(model, ask("holder", *(episodes or ("holder",))))
    assert port.entered.acquire(timeout=LIMIT_S)

    def go():
        port.gate.set()
        return results()

    return go


def test_a_lone_client_never_waits(rig):
    port, model = rig(max_wait_s=60.0)
    for step in range(3):
        reply = model.predict(ask("a", "e", value=step))
        assert reply.frames[0][0].tolist() == [[2 * step]]
    assert port.calls == [["e"]] * 3


def test_the_next_batch_is_collected_while_the_model_is_busy(rig):
    port, model = rig()
    go = busy(port, model)
    results = submit(
        model,
        ask("a", "a1", value=1),
        ask("b", "b1", "b2", value=2),
        ask("c", "c1", value=3, session="other"),
    )
    go()
    replies = results()
    assert port.calls[1:] == [["a1", "b1", "b2", "c1"]]
    assert [reply.frames[0][0].tolist() for reply in replies] == [[[2]], [[4], [4]], [[6]]]
    assert [reply.context.env_id for reply in replies] == ["a", "b", "c"]
    assert (model.batches, model.rows) == (2, 5)


def test_chunks_are_split_by_row(rig):
    port, model = rig(frames=3)
    go = busy(port, model)
    results = submit(model, ask("a", "a1", value=1), ask("b", "b1", value=5))
    go()
    assert [[frame[0].tolist() for frame in reply.frames] for reply in results()] == [
        [[[2]], [[3]], [[4]]],
        [[[10]], [[11]], [[12]]],
    ]


def test_a_batch_is_never_larger_than_allowed(rig):
    port, model = rig(max_batch=2)
    go = busy(port, model)
    results = submit(model, *[ask(route, route) for route in "abcde"])
    go()
    assert len(results()) == 5
    assert [len(ids) for ids in port.calls[1:]] == [2, 2, 1]


def test_a_request_with_more_rows_than_a_batch_goes_alone(rig):
    port, model = rig(max_batch=2)
    go = busy(port, model)
    results = submit(model, ask("a", "a1"), ask("b", "b1", "b2", "b3"), ask("c", "c1"))
    go()
    assert [len(reply.frames[0][0]) for reply in results()] == [1, 3, 1]
    assert sorted(map(len, port.calls[1:])) == [2, 3]


def test_routes_take_turns(rig):
    port, model = rig(max_batch=3)
    go = busy(port, model)
    results = submit(
        model, *[ask("many", f"m{i}") for i in range(6)], ask("few", "f1"), ask("other", "o1")
    )
    go()
    results()
    assert port.calls[1] == ["m0", "f1", "o1"]


def test_different_horizons_do_not_go_together(rig):
    port, model = rig()
    go = busy(port, model)
    results = submit(model, ask("a", "a1", horizon=2), ask("b", "b1"), ask("c", "c1", horizon=2))
    go()
    results()
    assert sorted(port.calls[1:]) == [["a1", "c1"], ["b1"]]


def test_it_waits_until_every_live_episode_has_asked(rig):
    port, model = rig(max_wait_s=60.0)
    go = busy(port, model, "a1", "a2")
    go()
    first = submit(model, ask("holder", "a1"))
    second = submit(model, ask("holder", "a2"))
    assert len(first() + second()) == 2
    assert port.calls[1:] == [["a1", "a2"]]


def test_it_does_not_wait_longer_than_allowed(rig):
    port, model = rig(max_wait_s=0.02)
    model.predict(ask("a", "a1", "a2"))
    model.predict(ask("a", "a1"))
    assert port.calls == [["a1", "a2"], ["a1"]]


def test_an_episode_that_is_over_is_not_waited_for(rig):
    port, model = rig(max_wait_s=60.0)
    model.predict(ask("a", "a1", "a2"))
    model.reset_adapter(ResetAdapterRequest(AdapterContext("s", "a", "r"), ("a2",)))
    model.predict(ask("a", "a1"))
    assert port.reset == [("a2",)]
    assert port.calls[1:] == [["a1"]]


def test_one_bad_request_does_not_spoil_the_others(rig):
    port, model = rig()
    go = busy(port, model)
    port.bad = "b1"
    results = submit(model, ask("a", "a1"), ask("b", "b1"))
    go()
    good, bad = results()
    assert good.frames[0][0].tolist() == [[2]]
    assert isinstance(bad, ValueError)


@pytest.mark.parametrize("failure", [SessionLost("gone"), PortTimeout("late")])
def test_a_lost_or_late_model_is_not_asked_again_and_all_are_told(rig, failure):
    port, model = rig()
    go = busy(port, model)
    results = submit(model, ask("a", "a1"), ask("b", "b1"))
    port.bad, port.failure = "a1", failure
    go()
    told = results()
    assert [type(one) for one in told] == [type(failure)] * 2
    assert [str(one) for one in told] == [str(failure)] * 2
    assert told[0] is not told[1]
    assert len(port.calls) == 2


@pytest.mark.parametrize("bad", ["no reply", "no rows"])
def test_a_reply_that_cannot_be_handed_out_is_told_to_all_and_stops_nothing(rig, bad):
    port, model = rig()
    go = busy(port, model)
    results = submit(model, ask("a", "a1"), ask("b", "b1"))
    port.odd["a1"] = None if bad == "no reply" else PredictReply(context=None, frames=(None,))
    go()
    told = results()
    assert all(isinstance(one, Exception) for one in told)
    assert told[0] is not told[1]
    assert model.predict(ask("a", "a1", value=3)).frames[0][0].tolist() == [[6]]


def test_a_fault_of_the_wait_is_told_and_stops_nothing(rig):
    class Unlucky(LearnedWait):
        def answered(self, episode_ids, at_ns):
            model._wait_policy = LearnedWait(8)
            raise RuntimeError("no clock")

    _, model = rig()
    model._wait_policy = Unlucky(8)
    with pytest.raises(RuntimeError, match="no clock"):
        model.predict(ask("a", "a1"))
    assert model.predict(ask("a", "a1", value=3)).frames[0][0].tolist() == [[6]]


def test_a_caller_whose_callback_fails_spoils_nothing_for_the_others(rig, caplog):
    port, model = rig()
    go = busy(port, model)
    model.submit("predict", ask("a", "a1"), lambda result: 1 / 0, ())
    results = submit(model, ask("b", "b1", value=2))
    go()
    assert results()[0].frames[0][0].tolist() == [[4]]
    assert model.predict(ask("a", "a1", value=3)).frames[0][0].tolist() == [[6]]
    assert "callback_failed" in caplog.text


def test_to_the_port_all_is_one_route(rig):
    port, model = rig()
    model.predict(ask("a", "a1"))
    reply = model.predict(ask("b", "b1", session="other"))
    assert reply.context.env_id == "b"
    assert {(r.context.session_id, r.context.env_id) for r in port.requests} == {("batch", "batch")}
    assert len({request.context.request_id for request in port.requests}) == 2


@pytest.mark.parametrize(("limits_ms", "given"), [((100, 300), 300), ((100, 0), 0)])
def test_a_batch_has_as_long_as_the_most_patient_request(rig, limits_ms, given):
    port, model = rig()
    go = busy(port, model)
    requests = [ask(str(ms), f"e{ms}") for ms in limits_ms]
    for request, ms in zip(requests, limits_ms, strict=True):
        msgspec.structs.force_setattr(request, "timeout_ms", ms)
    results = submit(model, *requests)
    go()
    results()
    assert port.requests[1].timeout_ms == given


def test_batches_are_filled_up_with_the_last_row_and_cut_again(rig):
    port, model = rig(bucket_sizes=(1, 4, 8))
    go = busy(port, model)
    results = submit(model, ask("a", "a1", "a2", value=3), ask("b", "b1", value=5))
    go()
    assert [reply.frames[0][0].tolist() for reply in results()] == [[[6], [6]], [[10]]]
    assert port.calls == [["holder"], ["a1", "a2", "b1", "b1"]]
    assert port.requests[1].observation[0][:, 0].tolist() == [3, 3, 5, 5]
    assert (model.batches, model.rows) == (2, 4)


def test_a_single_request_is_filled_up_too(rig):
    port, model = rig(bucket_sizes=(4,))
    assert model.predict(ask("a", "a1", value=2)).frames[0][0].tolist() == [[4]]
    assert port.calls == [["a1"] * 4]


def test_the_largest_size_bounds_a_batch(rig):
    port, model = rig(bucket_sizes=(1, 2))
    go = busy(port, model)
    results = submit(model, *[ask(route, route) for route in "abc"])
    go()
    results()
    assert [len(ids) for ids in port.calls] == [1, 2, 1]


@pytest.mark.parametrize("sizes", [(0, 4), (4, 4), (8, 4)])
def test_sizes_that_do_not_ascend_are_refused(sizes):
    with pytest.raises(InvalidSpec, match="ascending"):
        BatchingModel(Doubler(), observation_space=SPACE, action_space=SPACE, bucket_sizes=sizes)


def test_the_wait_is_learned_unless_told(rig):
    port, model = rig(max_wait_s=None)
    for _ in range(3):
        reply = model.predict(ask("a", "e"))
    assert reply.frames[0][0].tolist() == [[2]]
    assert isinstance(model._wait_policy, LearnedWait)
    assert len(port.calls) == 3


def test_no_route_can_use_or_end_the_episode_of_another(rig):
    port, model = rig()
    model.predict(ask("a", "a1"))
    with pytest.raises(EndpointFault, match="another route"):
        model.predict(ask("b", "a1"))
    model.reset_adapter(ResetAdapterRequest(AdapterContext("s", "b", "r"), ("a1", "zz")))
    assert port.reset == []
    model.release_adapter(ReleaseAdapterRequest(AdapterContext("t", "a", "r"), "", None))
    assert port.reset == []


def test_a_release_ends_the_routes_episodes_and_the_last_one_releases_the_model(rig):
    port, model = rig()
    model.predict(ask("a", "a1", "a2"))
    model.predict(ask("b", "b1"))
    model.release_adapter(ReleaseAdapterRequest(AdapterContext("s", "a", "r"), "done", None))
    assert port.reset == [("a1", "a2")]
    assert port.released == []
    model.release_adapter(ReleaseAdapterRequest(AdapterContext("s", "b", "r"), "done", None))
    assert port.reset == [("a1", "a2"), ("b1",)]
    assert port.released == ["batch"]


def test_what_waits_for_a_route_that_is_released_is_answered(rig):
    port, model = rig()
    go = busy(port, model)
    results = submit(model, ask("a", "a1"))
    done = queue.SimpleQueue()
    port_thread = model._thread
    # the release stands in line before the next batch is taken
    port_thread.submit(
        model._release,
        done.put,
        ReleaseAdapterRequest(AdapterContext("s", "a", "r"), "gone", None),
    )
    go()
    (result,) = results()
    assert isinstance(result, (EndpointFault, PredictReply))
    assert done.get(timeout=LIMIT_S) is None


def test_a_shared_thread_that_ends_fails_what_waits():
    thread = OwnThread("shared")
    model = BatchingModel(
        Doubler(), 8, 0.0, observation_space=SPACE, action_space=SPACE, thread=thread
    )
    model.predict(ask("a", "a1"))
    model.close()
    assert not thread.stopped
    thread.stop()
    with pytest.raises(EndpointFault, match="stopped"):
        model.predict(ask("a", "a1"))


def test_an_abandoned_model_takes_no_further_call(rig):
    port, model = rig()
    go = busy(port, model)
    model.abandon(())
    port.gate.set()
    with pytest.raises(EndpointFault, match="abandoned"):
        model.predict(ask("a", "a1"))
    del go


def test_many_threads_get_their_own_rows_and_fewer_calls(rig):
    _, model = rig(max_wait_s=0.01)
    wrong = []

    def client(number):
        for step in range(30):
            value = number * 1000 + step
            reply = model.predict(ask(f"r{number}", f"e{number}", value=value))
            if reply.frames[0][0].tolist() != [[2 * value]]:
                wrong.append(value)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not wrong
    assert model.rows == 180
    assert model.batches < 120
