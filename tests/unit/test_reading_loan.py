"""Loans of reading: who has it, and when it comes back."""

from __future__ import annotations

import threading

import pytest

from rollmesh.endpoint.servers import reading_loan
from rollmesh.endpoint.servers.reading_loan import Loan
from rollmesh.errors import ConnectionLost
from rollmesh.wire.messages import Kind, Message

LIMIT_S = 10.0
PING = Message(Kind.PING, 1)


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    monkeypatch.setattr(reading_loan, "PATIENCE_S", 0.005)


def waiting(loan):
    """Wait for a loan on another thread; give a function that returns what came of it."""
    outcome = []

    def wait():
        try:
            outcome.append(loan.wait())
        except ConnectionLost as lost:
            outcome.append(lost)

    thread = threading.Thread(target=wait)
    thread.start()

    def result():
        thread.join(LIMIT_S)
        return outcome[0]

    return thread, result


@pytest.mark.parametrize("outcome", [None, PING, ConnectionLost("there", "gone")])
def test_what_came_last_comes_back_with_it(outcome):
    loan = Loan()
    _, result = waiting(loan)
    assert loan.begin_reading()
    loan.give_back(outcome)
    assert result() is outcome


def test_it_is_not_taken_back_from_who_receives():
    loan = Loan()
    assert loan.begin_reading()
    thread, result = waiting(loan)
    thread.join(0.05)
    assert thread.is_alive()
    loan.give_back(PING)
    assert result() is PING


def test_it_is_taken_back_from_who_calls_a_slow_model():
    loan = Loan()
    assert loan.begin_reading()
    loan.end_reading()
    assert loan.wait() is None
    assert not loan.begin_reading()
    loan.give_back(PING)  # changes nothing
    assert not loan.begin_reading()


def test_it_is_not_taken_back_from_who_calls_a_quick_model_again_and_again():
    loan = Loan()
    looks = []

    class Back:
        """Stands for the wait: in the time of each look the model is called once more."""

        def acquire(self, timeout):
            looks.append(timeout)
            if len(looks) > 5:
                return True
            assert loan.begin_reading()
            loan.end_reading()
            return False

    loan._back = Back()
    assert loan.wait() is None
    assert len(looks) == 6, "and not earlier"
    assert loan.begin_reading()


def test_what_was_given_back_before_anybody_waits_is_there():
    loan = Loan()
    loan.give_back(PING)
    assert loan.wait() is PING
