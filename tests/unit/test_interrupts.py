"""The grace after Ctrl-C: running episodes get it, and a signal may come at any moment."""

from __future__ import annotations

import signal
import threading

import pytest

from rollmesh.cli.interrupts import Interrupts
from rollmesh.runtime.cancel import CancelToken

PATIENCE_S = 30.0


def interrupted(grace_s: float) -> tuple[Interrupts, CancelToken]:
    token = CancelToken()
    interrupts = Interrupts(token, lambda _: None, grace_s)
    interrupts.session_started(None)
    interrupts.on_signal(signal.SIGINT, None)
    return interrupts, token


def test_running_episodes_are_cancelled_when_the_grace_is_over():
    _, token = interrupted(0.05)
    assert token.draining
    assert token.wait(PATIENCE_S)
    assert token.reason == "interrupted"


def test_who_interrupts_is_told_of_the_grace_and_of_the_second_time():
    told: list[str] = []
    interrupts = Interrupts(CancelToken(), lambda _: None, 30.0, tell=told.append)
    interrupts.session_started(None)
    interrupts.on_signal(signal.SIGINT, None)
    interrupts.forget()
    (said,) = told
    assert said.startswith("interrupted: no new episode starts, running ones have 30 s to end")
    assert said.endswith("once more ends the run at once")


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGINT, "interrupted (Ctrl-C)"), (signal.SIGTERM, "terminated (SIGTERM)")],
)
def test_a_run_that_ends_in_its_grace_says_which_signal_came(number, words):
    token = CancelToken()
    interrupts = Interrupts(token, lambda _: None, 30.0)
    interrupts.session_started(None)
    interrupts.on_signal(number, None)
    interrupts.forget()
    assert token.drain_reason == f"{words}: started no new episode"


def test_a_run_that_ends_in_its_grace_is_not_cancelled():
    interrupts, token = interrupted(0.1)
    interrupts.forget()
    interrupts.forget()
    assert not token.wait(0.3)


def test_a_grace_without_an_end_is_no_error():
    interrupts, token = interrupted(1e12)
    assert token.draining
    interrupts.forget()


def test_a_signal_that_comes_while_a_thread_is_started_blocks_nobody():
    """The lock is what `Thread.start` holds for a moment, on the thread that the signal stops."""
    lock = threading._active_limbo_lock
    with lock:
        _, token = interrupted(0.05)
    assert token.wait(PATIENCE_S)
