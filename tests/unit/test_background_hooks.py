"""BackgroundHooks (R33): what may be dropped, what never is, and that order and names are kept."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import numpy as np
import pytest

from rollmesh import events
from rollmesh.runtime.background_hooks import BackgroundHooks
from rollmesh.runtime.hooks import (
    EVENTS,
    STEP_EVENTS,
    TRANSFORMS,
    Dispatcher,
    Hooks,
    TransformContext,
    TransformFault,
)
from rollmesh.spaces.space import Box

PATIENCE_S = 20
ROUTE = events.Route("env-1", "the-env", "the-model")


class Slow(Hooks):
    """Notes what it sees; hangs in its first event until it is let go."""

    def __init__(self):
        self.seen, self.threads = [], set()
        self.entered, self.let_go = threading.Event(), threading.Event()

    def _note(self, name, event):
        self.entered.set()
        assert self.let_go.wait(PATIENCE_S)
        self.threads.add(threading.current_thread())
        self.seen.append((name, event))

    def step_completed(self, event):
        self._note("step_completed", event)

    def observation_emitted(self, event):
        self._note("observation_emitted", event)

    def episode_started(self, event):
        self._note("episode_started", event)

    def episode_completed(self, event):
        self._note("episode_completed", event)

    def session_ended(self, event):
        self._note("session_ended", event)


class Quick(Slow):
    def __init__(self):
        super().__init__()
        self.let_go.set()


def emit(hooks, name, event):
    emitter = getattr(Dispatcher([hooks]), name)
    assert emitter is not None
    emitter(event)


def hold(hooks, inner):
    """Park the background thread in an event, so that the queue stands still."""
    emit(hooks, "episode_started", "parked")
    assert inner.entered.wait(PATIENCE_S)


def test_r33_events_are_handed_on_in_order_on_one_other_thread():
    inner = Quick()
    hooks = BackgroundHooks(inner)
    dispatcher = Dispatcher([hooks])
    sent = [(n, i) for i in range(100) for n in ("observation_emitted", "step_completed")]
    for name, event in sent:
        getattr(dispatcher, name)(event)
    assert hooks.flush(PATIENCE_S)
    assert inner.seen == sent
    assert len(inner.threads) == 1
    assert threading.current_thread() not in inner.threads
    assert hooks.close(PATIENCE_S)


def test_r33_step_events_are_dropped_when_the_queue_is_full_and_counted():
    inner = Slow()
    hooks = BackgroundHooks(inner, max_queue=3)
    hold(hooks, inner)
    for i in range(10):
        emit(hooks, "step_completed", i)
    emit(hooks, "observation_emitted", "late")
    assert hooks.dropped == {"observation_emitted": 1, "action_received": 0, "step_completed": 7}
    inner.let_go.set()
    assert hooks.close(PATIENCE_S)
    assert inner.seen[1:] == [("step_completed", i) for i in range(3)]


def test_r33_episode_and_session_events_are_never_dropped():
    inner = Slow()
    hooks = BackgroundHooks(inner, max_queue=1)
    hold(hooks, inner)
    for i in range(50):
        emit(hooks, "step_completed", i)
        emit(hooks, "episode_completed", i)
    emit(hooks, "session_ended", "end")
    inner.let_go.set()
    assert hooks.close(PATIENCE_S)
    completed = [event for name, event in inner.seen if name == "episode_completed"]
    assert completed == list(range(50))
    assert inner.seen[-1] == ("session_ended", "end")
    assert hooks.dropped["step_completed"] == 49


def test_r33_a_crowded_queue_is_one_warning(caplog):
    inner = Slow()
    hooks = BackgroundHooks(inner, max_queue=1)
    hold(hooks, inner)
    with caplog.at_level(logging.WARNING):
        for i in range(100):
            emit(hooks, "episode_completed", i)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    inner.let_go.set()
    assert hooks.close(PATIENCE_S)


def test_r33_what_is_taken_and_dropped_adds_up_while_threads_send():
    inner = Quick()
    hooks = BackgroundHooks(inner, max_queue=5)
    dispatcher = Dispatcher([hooks])
    step_completed, episode_completed = dispatcher.step_completed, dispatcher.episode_completed
    assert step_completed is not None
    assert episode_completed is not None

    def send(sender):
        for i in range(1000):
            step_completed((sender, i))
            if i % 10 == 0:
                episode_completed((sender, i))

    threads = [threading.Thread(target=send, args=(s,)) for s in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert hooks.close(PATIENCE_S)
    names = [name for name, _ in inner.seen]
    assert names.count("episode_completed") == 300
    assert names.count("step_completed") + hooks.dropped["step_completed"] == 3000
    for sender in range(3):
        order = [i for _, (s, i) in inner.seen if s == sender]
        assert order == sorted(order)


def test_r36_only_what_the_inner_hooks_override_is_handed_on():
    class One(Hooks):
        def episode_completed(self, event):
            pass

    dispatcher = Dispatcher([BackgroundHooks(One())])
    wanted = [n for n in (*EVENTS, *TRANSFORMS) if getattr(dispatcher, n) is not None]
    assert wanted == ["episode_completed"]
    idle = Dispatcher([BackgroundHooks(Hooks())])
    assert all(getattr(idle, n) is None for n in (*EVENTS, *TRANSFORMS))


def test_r33_any_object_with_hook_methods_can_be_wrapped_and_others_are_refused():
    class Plain:
        def __init__(self):
            self.seen = []

        def log(self, event):
            self.seen.append(event)

    plain = Plain()
    with BackgroundHooks(plain) as hooks:
        emit(hooks, "log", "line")
    assert plain.seen == ["line"]
    with pytest.raises(TypeError, match="none of the hook methods"):
        BackgroundHooks(object())
    with pytest.raises(ValueError, match="max_queue"):
        BackgroundHooks(plain, max_queue=0)


def test_r34_transforms_stay_on_the_callers_thread_and_name_the_inner_hooks():
    space = Box((1,), "float32", -1.0, 1.0)
    context = TransformContext(
        session_id="s", route=ROUTE, env_indices=(0,), episode_ids=("e",), steps=(0,), space=space
    )
    threads = []

    class Inner(Hooks):
        def transform_observation(self, context, observation):
            threads.append(threading.current_thread())
            return observation

        def transform_action(self, context, action):
            return None

    dispatcher = Dispatcher([BackgroundHooks(Inner())])
    leaves = space.codec.encode_many([np.zeros(1, "float32")])
    assert dispatcher.transform_observation is not None
    assert dispatcher.transform_action is not None
    assert dispatcher.transform_observation(context, leaves, 1) is leaves
    assert threads == [threading.current_thread()]
    with pytest.raises(TransformFault) as caught:
        dispatcher.transform_action(context, leaves, 1)
    assert caught.value.hook_name == "Inner"


def test_r33_a_failing_inner_hook_is_logged_by_its_own_name_and_the_next_event_comes(caplog):
    class Fragile(Hooks):
        def __init__(self):
            self.seen = []

        def episode_completed(self, event):
            self.seen.append(event)
            if event != "fine":
                raise event

    inner = Fragile()
    failures = [ValueError("broken"), SystemExit(2), KeyboardInterrupt()]
    with caplog.at_level(logging.ERROR), BackgroundHooks(inner) as hooks:
        for event in (*failures, "fine"):
            emit(hooks, "episode_completed", event)
    assert inner.seen == [*failures, "fine"]
    assert len(caplog.records) == 3
    assert "Fragile" in caplog.records[0].getMessage()


# -------------------------------------------------------------------- the thread's lifetime


def test_r33_the_thread_starts_with_the_first_event_and_is_a_daemon():
    hooks = BackgroundHooks(Quick())
    assert hooks._thread is None
    emit(hooks, "episode_started", 1)
    thread = hooks._thread
    assert thread is not None
    assert thread.daemon
    assert hooks.close(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_r33_flush_and_close_of_an_unused_object_return_at_once():
    hooks = BackgroundHooks(Quick())
    assert hooks.flush(0)
    assert hooks.close(0)
    assert hooks.close(0)


def test_r33_flush_and_close_wait_no_longer_than_their_timeout():
    inner = Slow()
    hooks = BackgroundHooks(inner)
    hold(hooks, inner)
    assert hooks.flush(0.001) is False
    assert hooks.close(0.001) is False
    inner.let_go.set()
    assert hooks.flush(PATIENCE_S) is True
    assert hooks.close(PATIENCE_S) is True


def test_r33_close_drains_what_was_queued():
    inner = Slow()
    hooks = BackgroundHooks(inner)
    hold(hooks, inner)
    for i in range(5):
        emit(hooks, "step_completed", i)
    threading.Timer(0.01, inner.let_go.set).start()
    assert hooks.close(PATIENCE_S)
    assert len(inner.seen) == 6


def test_r35_it_serves_another_route_after_a_close():
    inner = Quick()
    hooks = BackgroundHooks(inner)
    for i in range(3):
        emit(hooks, "episode_started", i)
        assert hooks.close(PATIENCE_S)
    assert [event for _, event in inner.seen] == [0, 1, 2]
    assert len(inner.threads) == 3


def test_r33_a_hook_that_flushes_or_closes_does_not_wait_for_itself():
    answers = []

    class Closes(Hooks):
        def episode_completed(self, event):
            answers.append((hooks.flush(), hooks.close()))

    hooks = BackgroundHooks(Closes())
    emit(hooks, "episode_completed", 1)
    assert hooks.flush(PATIENCE_S)
    assert answers == [(False, False)]
    assert hooks.close(PATIENCE_S)


def test_r33_dropped_is_a_copy():
    hooks = BackgroundHooks(Quick())
    hooks.dropped["step_completed"] = 99
    assert hooks.dropped == dict.fromkeys(STEP_EVENTS, 0)


HANGS = """
import sys, threading
sys.path[:0] = {path!r}
from rollmesh.runtime.background_hooks import BackgroundHooks
from rollmesh.runtime.hooks import Dispatcher, Hooks

class Hangs(Hooks):
    def episode_completed(self, event):
        print("entered", flush=True)
        threading.Event().wait()

hooks = BackgroundHooks(Hangs())
Dispatcher([hooks]).episode_completed("event")
assert not hooks.flush(0.2)
"""


def test_r33_a_hook_that_hangs_does_not_keep_the_process_from_exiting():
    done = subprocess.run(
        [sys.executable, "-c", HANGS.format(path=sys.path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "entered\n", "")
