"""Starting with replicas that are there, late or wrong."""

from __future__ import annotations

import queue
import threading

import pytest

from rollmesh.endpoint.models import replica_start
from rollmesh.endpoint.models.replica_seats import Replica
from rollmesh.endpoint.models.replicas import ReplicatedModel
from rollmesh.errors import EndpointFault, InvalidSpec, SessionLost
from rollmesh.runtime.cancel import CancelToken
from tests.unit.test_replicas import LIMIT_S, SPACE, Toy, ask, await_ready, release


class Opening:
    """A replica that is there, late or wrong when the test says so."""

    def __init__(self, number):
        self.toy = Toy(number)
        self.outcome = queue.SimpleQueue()
        self.cancelled = threading.Event()

    def __call__(self, cancel):
        cancel.subscribe(self.cancelled.set)
        cancel.subscribe(lambda: self.outcome.put(EndpointFault("interrupted")))
        outcome = self.outcome.get(timeout=LIMIT_S)
        if isinstance(outcome, BaseException):
            raise outcome
        return Replica(port=self.toy, name=f"toy {self.toy.number}", close=self.toy.closed.set)

    def there(self):
        self.outcome.put(None)

    def fails(self, failure):
        self.outcome.put(failure)


def nobody(name):
    return EndpointFault(f"connecting to {name}: gave up", error_class="ConnectFailed")


def start(openings, **given):
    return ReplicatedModel(
        openings,
        observation_space=SPACE,
        action_space=SPACE,
        names=[f"toy {one.toy.number}" for one in openings],
        **given,
    )


@pytest.fixture
def at_once(monkeypatch):
    """Let the others of a start have no time at all once one is there."""
    monkeypatch.setattr(replica_start, "OTHERS_S", 0.0)


@pytest.mark.usefixtures("at_once")
def test_a_run_starts_with_the_first_replica_and_a_late_one_joins(caplog):
    first, late = Opening(1), Opening(2)
    first.there()
    model = start([late, first])
    assert model.ready == 1
    assert "waiting_for=toy 2" in caplog.text
    assert model.predict(ask("a")).frames[0][0] == 1
    late.there()
    await_ready(model, 2)
    assert {model.predict(ask(n)).frames[0][0].item() for n in "bcde"} == {1.0, 2.0}
    model.close()


@pytest.mark.usefixtures("at_once")
def test_a_late_replica_that_never_comes_is_given_up_and_the_run_goes_on(caplog):
    first, late = Opening(1), Opening(2)
    first.there()
    model = start([first, late], restarts=0)
    late.fails(nobody("toy 2"))
    for _ in range(1000):
        if "replica_given_up name=toy 2" in caplog.text:
            break
        threading.Event().wait(0.01)
    assert model.predict(ask("a")).frames[0][0] == 1
    first.toy.failure = SessionLost("gone")
    with pytest.raises(SessionLost):
        model.predict(ask("a"))
    with pytest.raises(EndpointFault, match="all 2 replicas"):
        model.predict(ask("b"))


@pytest.mark.usefixtures("at_once")
def test_a_replica_that_comes_after_the_end_is_closed():
    first, late = Opening(1), Opening(2)
    first.there()
    model = start([first, late])
    late.there()
    release(model)
    assert late.toy.closed.wait(LIMIT_S)
    assert first.toy.closed.is_set()
    assert model.ready == 0


def test_one_that_fails_ends_the_start_though_others_are_late():
    wrong, late = Opening(1), Opening(2)
    wrong.fails(InvalidSpec("model", "no such class"))
    with pytest.raises(InvalidSpec, match="no such class"):
        start([late, wrong])
    assert late.cancelled.wait(LIMIT_S)


def test_one_that_fails_ends_the_start_though_another_is_there():
    wrong, there = Opening(1), Opening(2)
    there.there()
    wrong.fails(EndpointFault("of another shape"))
    with pytest.raises(EndpointFault, match="of another shape"):
        start([there, wrong])
    assert there.toy.closed.wait(LIMIT_S)


def test_where_nobody_is_there_the_error_names_each():
    openings = [Opening(1), Opening(2)]
    for one in openings:
        one.fails(nobody(f"toy {one.toy.number}"))
    with pytest.raises(
        EndpointFault, match=r"(?s)2 of 2 replicas.*\n- toy 1: .*\n- toy 2: "
    ) as caught:
        start(openings)
    assert caught.value.outcome == "not_done"


def test_an_address_without_a_server_does_not_end_a_start_that_has_one():
    nobody_there, there = Opening(1), Opening(2)
    nobody_there.fails(nobody("toy 1"))
    there.there()
    model = start([nobody_there, there])
    assert model.predict(ask("a")).frames[0][0] == 2
    model.close()


def test_a_cancel_ends_a_start():
    cancel, late = CancelToken(), Opening(1)
    cancel.cancel("no time")
    with pytest.raises(EndpointFault, match="no time"):
        start([late], cancel=cancel)
    assert late.cancelled.wait(LIMIT_S)
