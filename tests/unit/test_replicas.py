"""Replicas: who is asked, where an episode lives, and what happens when one is lost."""

from __future__ import annotations

import queue
import threading

import numpy as np
import pytest

from rollmesh.endpoint.models.replica_seats import Replica
from rollmesh.endpoint.models.replicas import ReplicatedModel
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

SPACE = Box((1,), np.float32)
LIMIT_S = 10.0


class Toy:
    """A model port that answers when told to; an action is its number times the observation."""

    def __init__(self, number, frames=1):
        self.number = number
        self.frames = frames
        self.held = None
        self.failure = None
        self.asked = []
        self.reset = []
        self.released = 0
        self.abandoned = False
        self.closed = threading.Event()
        self.killed = threading.Event()

    def submit(self, method, request, callback, env_indices):
        if method == "predict":
            self.asked.append([info.episode_id for info in request.episode_info])
            if self.held is not None:
                self.held.append((request, callback))
            else:
                self.answer(request, callback)
            return
        if method == "reset_adapter":
            self.reset.append(request.episode_ids)
        else:
            self.released += 1
        callback(None)

    def answer(self, request, callback):
        if self.failure is not None:
            callback(self.failure)
            return
        rows = request.observation[0]
        frames = tuple([[rows * self.number + t] for t in range(self.frames)])
        callback(PredictReply(context=request.context, frames=frames, response_bytes=len(rows)))

    def go(self):
        held, self.held = self.held, None
        for request, callback in held:
            self.answer(request, callback)

    def abandon(self, env_indices):
        self.abandoned = True


class Rig:
    """A replicated model over toys; the n-th one that is opened has number n, from 1."""

    def __init__(self, count=2, **given):
        self.toys = []
        self.opened = queue.SimpleQueue()
        self.may_open = threading.Semaphore(count)
        self.fails = False
        self._lock = threading.Lock()
        self.model = ReplicatedModel(
            [self.open] * count, observation_space=SPACE, action_space=SPACE, **given
        )
        # they open side by side: put them into the order of their seats
        self.toys = [seat.replica.port for seat in self.model._seats]
        for _ in self.toys:
            self.opened.get(timeout=LIMIT_S)

    def open(self, cancel):
        cancel.subscribe(self.may_open.release)
        assert self.may_open.acquire(timeout=LIMIT_S)
        if self.fails:
            raise EndpointFault("cannot be opened")
        with self._lock:
            toy = Toy(len(self.toys) + 1)
            self.toys.append(toy)
        self.opened.put(toy)
        return Replica(
            port=toy, name=f"toy {toy.number}", close=toy.closed.set, kill=toy.killed.set
        )

    def allow(self):
        """Let one replica be opened again, and return it."""
        self.may_open.release()
        return self.opened.get(timeout=LIMIT_S)

    def hold(self):
        for toy in self.toys:
            toy.held = []

    def submit(self, *requests):
        boxes = [queue.SimpleQueue() for _ in requests]
        for request, box in zip(requests, boxes, strict=True):
            self.model.submit("predict", request, box.put, ())
        return lambda: [box.get(timeout=LIMIT_S) for box in boxes]

    def home(self, episode):
        """Return the toy that an episode lives on, and the other one."""
        one, other = self.toys
        return (one, other) if [episode] in one.asked else (other, one)


def await_ready(model, count):
    """Wait until so many replicas can be asked."""
    for _ in range(int(LIMIT_S * 1000)):
        if model.ready == count:
            return
        threading.Event().wait(0.001)
    raise AssertionError(f"{model.ready} replicas are ready, not {count}")


def ask(*episodes, values=None, limit_ms=0):
    values = [1.0] * len(episodes) if values is None else values
    return PredictRequest(
        context=AdapterContext("s", "r", f"q-{episodes}"),
        observation=[np.array(values, np.float32).reshape(-1, 1)],
        episode_info=tuple([EpisodeInfo(episode) for episode in episodes]),
        timeout_ms=limit_ms,
    )


def reset(model, *episodes):
    model.reset_adapter(ResetAdapterRequest(AdapterContext("s", "r", "reset"), episodes))


def release(model):
    model.release_adapter(ReleaseAdapterRequest(AdapterContext("s", "r", "release"), "done", 1.0))


@pytest.fixture
def rig():
    made = []

    def make(*args, **given):
        made.append(Rig(*args, **given))
        return made[-1]

    yield make
    for one in made:
        one.model.close()
        for _ in range(8):  # whoever waits to open one more
            one.may_open.release()


# ------------------------------------------------------------------------------ who is asked


def test_requests_go_to_the_replica_with_the_least_under_way(rig):
    rig = rig(affinity=False)
    rig.hold()
    results = rig.submit(ask("a", "b", "c"), ask("d"), ask("e"), ask("f"), ask("g"))
    busy = next(toy for toy in rig.toys if ["a", "b", "c"] in toy.asked)
    other = next(toy for toy in rig.toys if toy is not busy)
    assert other.asked[:3] == [["d"], ["e"], ["f"]]
    for toy in rig.toys:
        toy.go()
    assert all(isinstance(one, PredictReply) for one in results())


def test_an_episode_stays_with_its_replica(rig):
    rig = rig()
    for _ in range(3):
        for episode in "abcd":
            rig.model.predict(ask(episode))
    for toy in rig.toys:
        assert len({episode for (episode,) in toy.asked}) == 2
        assert len(toy.asked) == 6


def test_without_affinity_it_goes_where_there_is_room(rig):
    rig = rig(affinity=False)
    rig.model.predict(ask("a"))
    home, other = rig.home("a")
    home.held = []
    results = rig.submit(ask("x"), ask("a"))
    asked = home.asked + other.asked
    assert sorted(asked) == [["a"], ["a"], ["x"]]
    for toy in (home, other):
        if toy.held is not None:
            toy.go()
    results()
    assert home.asked
    assert other.asked


def test_answers_that_cannot_be_joined_are_a_failure_and_no_silence(rig):
    rig = rig()
    rig.model.predict(ask("a"))
    rig.model.predict(ask("b"))
    rig.home("b")[0].answer = lambda request, callback: callback(
        PredictReply(context=request.context, frames=([],))
    )
    came = queue.SimpleQueue()
    rig.model.submit("predict", ask("a", "b"), came.put, ())
    assert isinstance(came.get(timeout=LIMIT_S), IndexError)


def test_a_request_whose_episodes_live_apart_is_split_and_joined_in_order(rig):
    rig = rig()
    rig.model.predict(ask("a"))
    rig.model.predict(ask("b"))
    home = {episode: rig.home(episode)[0].number for episode in "ab"}
    assert home["a"] != home["b"]
    reply = rig.model.predict(ask("a", "b", "a2", "b", values=[1, 10, 100, 1000]))
    expected = [home["a"], 10 * home["b"], 100 * home["a"], 1000 * home["b"]]
    assert reply.frames[0][0].ravel().tolist() == expected
    assert reply.response_bytes == 4
    assert reply.context.request_id == "q-('a', 'b', 'a2', 'b')"


def test_of_joined_chunks_the_shortest_decides(rig):
    rig = rig()
    rig.model.predict(ask("a"))
    rig.model.predict(ask("b"))
    rig.home("a")[0].frames = 3
    rig.home("b")[0].frames = 2
    assert len(rig.model.predict(ask("a", "b")).frames) == 2


def test_a_failure_of_the_model_is_passed_on_and_the_replica_stays(rig):
    rig = rig(1)
    rig.toys[0].failure = EndpointFault("bad row")
    with pytest.raises(EndpointFault, match="bad row"):
        rig.model.predict(ask("a"))
    assert rig.model.ready == 1


def test_a_plain_port_is_asked_on_a_thread_of_its_own():
    names = []

    class Plain:
        def predict(self, request):
            names.append(threading.current_thread().name)
            return PredictReply(context=request.context, frames=([request.observation[0]],))

        def reset_adapter(self, request):
            names.append(request.episode_ids)

        def release_adapter(self, request):
            names.append("released")

    model = ReplicatedModel(
        [lambda _: Replica(port=Plain(), name="plain")], observation_space=SPACE, action_space=SPACE
    )
    model.predict(ask("a"))
    reset(model, "a")
    release(model)
    assert names == ["rollmesh-replica plain", ("a",), "released"]


# --------------------------------------------------------------------------------- episodes


def test_an_ended_episode_is_forgotten_where_it_lived(rig):
    rig = rig()
    rig.model.predict(ask("a"))
    home, other = rig.home("a")
    reset(rig.model, "a", "never-seen")
    assert home.reset == [("a",)]
    assert other.reset == []


def test_without_affinity_all_who_know_an_episode_forget_it(rig):
    rig = rig(affinity=False)
    rig.hold()
    results = rig.submit(ask("a"), ask("a"))
    for toy in rig.toys:
        toy.go()
    results()
    reset(rig.model, "a")
    assert [toy.reset for toy in rig.toys] == [[("a",)]] * 2


def test_a_release_reaches_all_and_closes_them(rig):
    rig = rig()
    release(rig.model)
    assert [toy.released for toy in rig.toys] == [1, 1]
    assert all(toy.closed.is_set() for toy in rig.toys)
    with pytest.raises(EndpointFault, match="released"):
        rig.model.predict(ask("a"))


# ----------------------------------------------------------------------------------- losses


def test_what_a_lost_replica_was_asked_fails_and_its_episodes_do_not_move(rig):
    rig = rig()
    rig.model.predict(ask("a"))
    rig.model.predict(ask("b"))
    home, other = rig.home("a")
    home.held = []
    results = rig.submit(ask("a"), ask("a"))
    home.failure = SessionLost("gone")
    home.go()
    assert [type(one) for one in results()] == [SessionLost] * 2
    assert home.closed.wait(LIMIT_S)
    assert home.abandoned
    with pytest.raises(SessionLost, match="lived on is lost"):
        rig.model.predict(ask("a"))
    with pytest.raises(SessionLost):
        rig.model.predict(ask("a", "b"))
    assert rig.model.predict(ask("b")).frames[0][0] == other.number
    assert rig.model.predict(ask("again")).frames[0][0] == other.number


def test_an_answer_that_comes_after_the_loss_is_dropped(rig):
    rig = rig(1)
    toy = rig.toys[0]
    toy.held = []
    results = rig.submit(ask("a"), ask("b"))
    (first, tell_first), (second, tell_second) = toy.held
    tell_first(SessionLost("gone"))
    assert [type(one) for one in results()] == [SessionLost] * 2
    toy.answer(second, tell_second)  # would be told twice
    del first
    assert rig.allow().number == 2


def test_a_lost_replica_is_opened_anew_and_used(rig):
    rig = rig(1)
    rig.toys[0].failure = SessionLost("gone")
    with pytest.raises(SessionLost):
        rig.model.predict(ask("a"))
    results = rig.submit(ask("b"))  # waits until there is one
    assert rig.model.ready == 0
    fresh = rig.allow()
    assert results()[0].frames[0][0] == fresh.number
    reset(rig.model, "a")
    assert fresh.reset == []


def test_a_late_replica_is_opened_anew_too(rig):
    rig = rig(1)
    rig.toys[0].failure = PortTimeout("late")
    with pytest.raises(SessionLost, match="late"):
        rig.model.predict(ask("a"))
    fresh = rig.allow()
    assert rig.toys[0].killed.wait(LIMIT_S)
    assert rig.model.predict(ask("b")).frames[0][0] == fresh.number


def test_without_affinity_another_replica_is_asked(rig):
    rig = rig(affinity=False)
    rig.toys[0].failure = SessionLost("gone")
    for _ in range(3):
        assert rig.model.predict(ask("a")).frames[0][0] == rig.toys[1].number
    assert rig.model.ready == 1


def test_once_all_were_given_up_the_error_says_so(rig):
    rig = rig(restarts=0)
    for toy in rig.toys:
        toy.failure = SessionLost("gone")
    for episode in "ab":
        with pytest.raises(SessionLost):
            rig.model.predict(ask(episode))
    with pytest.raises(EndpointFault, match=r"all 2 replicas.*gone") as caught:
        rig.model.predict(ask("c"))
    assert not isinstance(caught.value, SessionLost)
    assert caught.value.outcome == "not_done"


def test_a_replica_that_cannot_be_opened_is_given_up_and_those_who_wait_are_told(rig):
    rig = rig(1, restarts=1)
    rig.fails = True
    rig.toys[0].failure = SessionLost("gone")
    with pytest.raises(SessionLost):
        rig.model.predict(ask("a"))
    results = rig.submit(ask("b"))
    rig.may_open.release()
    assert "cannot be opened" in str(results()[0])


def test_a_replica_that_answers_again_has_all_its_restarts_again(rig):
    rig = rig(1, restarts=1)
    for number in range(4):
        toy = rig.toys[-1]
        assert rig.model.predict(ask(f"good{number}")).frames
        toy.failure = SessionLost("gone")
        with pytest.raises(SessionLost):
            rig.model.predict(ask(f"bad{number}"))
        rig.allow()
        results = rig.submit(ask(f"next{number}"))
        assert isinstance(results()[0], PredictReply)


# -------------------------------------------------------------------------------- hangs

LATE = r"the model's replica did not answer within 0\.05 s and was replaced \(toy \d\)"


def test_a_replica_that_hangs_is_killed_and_opened_anew_and_the_others_go_on(rig):
    rig = rig()
    rig.model.predict(ask("a"))
    rig.model.predict(ask("b"))
    home, other = rig.home("a")
    home.held = []
    waits = rig.submit(ask("a2", "a", limit_ms=60_000))
    with pytest.raises(SessionLost, match=LATE):
        rig.model.predict(ask("a", limit_ms=50))
    (neighbour,) = waits()
    assert isinstance(neighbour, SessionLost)
    assert "did not answer another request within 0.05 s" in str(neighbour)
    assert home.killed.wait(LIMIT_S)
    assert not home.closed.is_set()
    with pytest.raises(SessionLost, match="did not answer another request"):
        rig.model.predict(ask("a"))
    assert rig.model.predict(ask("b", limit_ms=60_000)).frames[0][0] == other.number
    fresh = rig.allow()
    await_ready(rig.model, 2)
    home.go()  # an answer after all is nobody's
    assert rig.model.predict(ask("new")).frames[0][0] == fresh.number


def test_without_affinity_another_replica_answers_for_one_that_hangs(rig):
    rig = rig(affinity=False)
    rig.hold()
    results = rig.submit(ask("a", limit_ms=50))
    hangs = next(toy for toy in rig.toys if toy.asked)
    answers = next(toy for toy in rig.toys if toy is not hangs)
    answers.held = None
    assert results()[0].frames[0][0] == answers.number


def test_a_model_that_always_hangs_comes_to_an_end(rig):
    rig = rig(1, restarts=2)
    for _ in range(3):
        rig.hold()
        with pytest.raises(SessionLost, match=r"0\.05 s and was (replaced|given up)"):
            rig.model.predict(ask("a", limit_ms=50))
        reset(rig.model, "a")
        if not rig.model._seats[0].is_given_up:
            rig.allow()
            await_ready(rig.model, 1)
    with pytest.raises(EndpointFault, match="given up") as caught:
        rig.model.predict(ask("b", limit_ms=50))
    assert caught.value.error_class == "ReplicasLost"


def test_a_request_that_waits_for_a_replica_is_not_late(rig):
    rig = rig(1)
    rig.toys[0].failure = SessionLost("gone")
    with pytest.raises(SessionLost):
        rig.model.predict(ask("a"))
    results = rig.submit(ask("b", limit_ms=1))
    other = rig.submit(ask("c", limit_ms=60_000))
    threading.Event().wait(0.02)  # far longer than its limit
    fresh = rig.allow()
    assert results()[0].frames[0][0] == fresh.number
    assert other()[0].frames[0][0] == fresh.number


# ---------------------------------------------------------------------------------- opening


def test_where_one_cannot_be_opened_the_others_are_closed():
    toy = Toy(1)

    def fail(cancel):
        raise EndpointFault("no such file")

    good = Replica(port=toy, close=toy.closed.set)
    with pytest.raises(EndpointFault, match="no such file"):
        ReplicatedModel([lambda _: good, fail], observation_space=SPACE, action_space=SPACE)
    assert toy.closed.is_set()


def test_there_is_at_least_one():
    with pytest.raises(InvalidSpec, match="at least one"):
        ReplicatedModel([], observation_space=SPACE, action_space=SPACE)


def test_an_abandoned_model_closes_its_replicas_and_calls_nobody_back(rig):
    rig = rig()
    rig.hold()
    called = []
    rig.model.submit("predict", ask("a"), called.append, ())
    rig.model.abandon()
    for toy in rig.toys:
        assert toy.closed.wait(LIMIT_S)
        toy.go()
    assert called == []
    assert rig.model.ready == 0
