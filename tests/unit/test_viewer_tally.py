"""Counting a run: what hooks put in comes out as numbers, and nothing is kept alive for it."""

from __future__ import annotations

import gc
import math
import threading
import weakref

import numpy as np
import pytest

from rollmesh import events
from rollmesh.runtime.hooks import STEP_EVENTS, Dispatcher
from rollmesh.viewer.live.progress import clean, clock_text, first_line
from rollmesh.viewer.live.tally import Tally
from tests.unit.viewer_toys import (
    COMMON,
    SetClock,
    completed,
    episode,
    errored,
    metric,
    session_ended,
    session_failed,
    session_started,
    telemetry,
    worker,
)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def tally(clock):
    return Tally(10, clock=clock)


def test_it_wants_no_event_of_every_step(tally):
    wanted = Dispatcher([tally])
    assert [name for name in STEP_EVENTS if getattr(wanted, name) is not None] == []
    assert wanted.episode_completed is not None
    assert wanted.on_worker_changed is not None


def test_success_returns_errors_and_retries_are_counted_apart(tally):
    tally.episode_completed(completed(0, 4.0, success=True))
    tally.episode_completed(completed(1, 2.0, success=False, attempts=3))
    tally.episode_completed(completed(2, 9.0))
    tally.episode_errored(errored(3, attempts=2))
    progress, news = tally.read()
    assert (progress.done, progress.planned, progress.errored) == (4, 10, 1)
    assert (progress.successes, progress.judged, progress.success_rate) == (1, 2, 0.5)
    assert progress.mean_return == 5.0
    assert progress.retries == 3
    assert progress.success_interval is not None
    assert progress.success_interval.method == "wilson"
    assert [one.episode.index for one in news if one.episode] == [0, 1, 2, 3]
    assert progress.errors[0].error == "EnvFailed: boom"


def test_without_episodes_there_are_no_numbers(tally):
    progress, news = tally.read()
    assert news == ()
    assert progress.success_rate is None
    assert progress.success_interval is None
    assert progress.mean_return is None
    assert progress.eta_s is None
    assert progress.steps_per_s is None


@pytest.mark.parametrize("rewards", [(math.inf, 1.0), (math.nan, 1.0), (1.0, math.inf)])
def test_a_return_that_is_not_finite_shows_in_the_mean(tally, rewards):
    for index, reward in enumerate(rewards):
        tally.episode_completed(completed(index, reward))
    mean = tally.read()[0].mean_return
    assert math.isnan(mean) if math.isnan(rewards[0]) else mean == math.inf


def test_rates_leave_out_the_time_before_the_session(tally, clock):
    clock.advance(100)
    tally.session_started(session_started())
    for index in range(5):
        clock.advance(2)
        tally.episode_completed(completed(index, 1.0, steps=20))
    progress, _ = tally.read()
    assert progress.episodes_per_min == pytest.approx(30.0)
    assert progress.steps_per_s == pytest.approx(10.0)
    assert progress.eta_s == pytest.approx(10.0)
    assert progress.elapsed_s == 110.0


def test_rates_follow_the_last_minute(tally, clock):
    tally = Tally(10_000, clock=clock)
    tally.session_started(session_started())
    tally.read()
    for index in range(100):  # slow at first
        clock.advance(6)
        tally.episode_completed(completed(index, 1.0))
        tally.read()
    for index in range(700):  # then ten a second
        clock.advance(0.1)
        tally.episode_completed(completed(100 + index, 1.0))
        tally.read()
    assert tally.read()[0].episodes_per_min == pytest.approx(600.0, rel=0.05)


def test_a_resumed_run_counts_what_was_finished_but_not_into_its_rates(tally, clock):
    tally.resumed([episode(0, 3.0), episode(1, 5.0), episode(2, error="x")])
    tally.session_started(session_started())
    clock.advance(10)
    tally.episode_completed(completed(3, 4.0, success=True))
    progress, news = tally.read()
    assert (progress.done, progress.resumed, progress.errored) == (4, 3, 1)
    assert progress.mean_return == 4.0
    assert progress.steps == 3
    assert progress.episodes_per_min == pytest.approx(6.0)
    assert [one.episode.index for one in news if one.episode] == [3]
    assert [e.index for e in tally.episodes] == [0, 1, 2, 3]


def test_episodes_are_kept_in_plan_order_counted_or_not(tally):
    tally.episode_completed(completed(2, 1.0))
    tally.read()
    tally.episode_errored(errored(0))
    tally.episode_completed(completed(1, 1.0))
    assert [e.index for e in tally.episodes] == [0, 1, 2]
    assert tally.episodes[0].error is not None


def test_a_journaled_run_keeps_no_episodes_twice(clock):
    tally = Tally(2, keep_episodes=False, clock=clock)
    tally.episode_completed(completed(0, 1.0))
    tally.acknowledged([episode(0)])
    _, news = tally.read()
    assert [one.is_stored for one in news] == [False, True]
    assert tally.episodes == ()
    assert tally.read()[0].done == 1


def stored(*episodes, is_resumed=False):
    return events.EpisodesStored(**COMMON, planned=20, episodes=episodes, is_resumed=is_resumed)


def test_a_journal_tells_what_is_on_disk_and_what_was_before(tally):
    tally.on_episodes_stored(stored(episode(0), episode(1), is_resumed=True))
    tally.episode_completed(completed(2, 1.0))
    tally.on_episodes_stored(stored(episode(2)))
    progress, news = tally.read()
    assert (progress.planned, progress.done, progress.resumed) == (20, 3, 2)
    assert [(one.episode.index, one.is_stored) for one in news] == [(2, False), (2, True)]


def test_a_run_that_is_not_kept_counts_its_episodes_as_stored(tally):
    tally.count_as_stored()
    tally.episode_completed(completed(0, 1.0))
    tally.episode_errored(errored(1))
    _, news = tally.read()
    assert [one.episode.index for one in news if one.is_stored] == [0, 1]


def test_no_observation_outlives_its_event(tally):
    class Pixels(np.ndarray):
        pass

    pixels = np.zeros((64, 64, 3), np.uint8).view(Pixels)
    gone = weakref.ref(pixels)
    tally.episode_completed(completed(0, 1.0, final_observation=[pixels], final_info={"x": pixels}))
    del pixels
    gc.collect()
    assert gone() is None


def test_telemetry_windows_tell_phases_batches_and_rates(tally, clock):
    tally.session_started(session_started())
    clock.advance(2)
    rows = (
        metric("env.reset", count=4),
        metric("env.step", count=50, p50=0.2, p99=0.9),
        metric("model.predict", count=10),
        metric("model.predict", "group.size", kind="count", mean=7.4, max=8.0),
        metric("runner.round", "round.total"),
        metric("env.step", "request.bytes", kind="bytes"),
    )
    tally.on_telemetry(telemetry(*rows))
    progress, _ = tally.read()
    assert [phase.name for phase in progress.phases] == ["reset", "predict", "step"]
    step = progress.phases[2]
    assert (step.calls, step.p50_ms, step.p99_ms) == (50, 0.2, 0.9)
    assert step.per_s == pytest.approx(25.0)
    assert progress.batches is not None
    assert (progress.batches.mean, progress.batches.largest) == (7.4, 8)


def test_a_phase_that_was_quiet_keeps_its_last_numbers(tally, clock):
    tally.session_started(session_started())
    tally.on_telemetry(telemetry(metric("env.reset"), metric("env.step")))
    clock.advance(1)
    tally.on_telemetry(telemetry(metric("env.step", p50=3.0)))
    phases = {phase.name: phase.p50_ms for phase in tally.read()[0].phases}
    assert phases == {"reset": 1.5, "step": 3.0}


def test_workers_are_listed_by_number_with_their_losses(tally):
    tally.on_worker_changed(worker(1, "starting"))
    tally.on_worker_changed(worker(0, "ready", pid=7))
    tally.on_worker_changed(worker(1, "lost", "SIGKILL", 8))
    tally.on_worker_changed(worker(1, "starting"))
    tally.on_worker_changed(worker(1, "lost", "SIGSEGV", 9))
    progress, news = tally.read()
    assert [(w.number, w.state, w.losses) for w in progress.workers] == [
        (0, "ready", 0),
        (1, "lost", 2),
    ]
    assert [one.worker.state for one in news if one.worker].count("lost") == 2


def test_tasks_are_listed_only_where_the_plan_names_some(tally):
    tally.episode_completed(completed(0, 1.0))
    assert tally.read()[0].tasks == ()
    tally.episode_completed(completed(1, 1.0, task="lift", success=True))
    tally.episode_errored(errored(2, task="lift"))
    tasks = {t.task: t for t in tally.read()[0].tasks}
    assert (tasks["lift"].done, tasks["lift"].successes, tasks["lift"].errored) == (2, 1, 1)


def test_the_last_errors_are_bounded(tally):
    for index in range(50):
        tally.episode_errored(errored(index, "x" * 10_000))
    errors = tally.read()[0].errors
    assert [e.index for e in errors] == [45, 46, 47, 48, 49]
    assert max(len(e.error) for e in errors) <= 200


def test_sessions_and_notes_are_told(tally):
    tally.session_started(session_started())
    for source in ("evaluate", "fleet", "runtime"):
        tally.log(events.Log(**COMMON, level="info", message=f"from {source}", source=source))
    tally.note("a note")
    tally.session_ended(session_ended())
    tally.session_failed(session_failed("no\x1b[2J"))
    _, news = tally.read()
    assert [one.note for one in news if one.session is None] == [
        "from evaluate",
        "from fleet",
        "a note",
    ]
    assert [one.session for one in news if one.session] == ["started", "ended", "failed"]


def test_many_threads_may_put_while_one_reads(tally):
    def put(start):
        for index in range(start, start + 500):
            tally.episode_completed(completed(index, 1.0, success=True))

    threads = [threading.Thread(target=put, args=(i * 500,)) for i in range(4)]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        seen += sum(one.episode is not None for one in tally.read()[1])
    for thread in threads:
        thread.join()
    progress, news = tally.read()
    assert seen + len(news) == progress.done == progress.successes == 2000


def test_control_characters_are_shown_and_not_obeyed():
    assert clean("a\x1b[2Jb\rc\td") == "a?[2Jb?c\td"
    assert first_line("\n  boom\x07 \nmore") == "boom?"
    assert first_line("") == "no message"
    told = "Env: failed at step 2, episode 01a2293c-64ac-7cf4-876c-fe5ceebf3cac, seed 1: boom"
    assert first_line(told) == "Env: failed at step 2, seed 1: boom"


def test_durations_read_as_a_clock():
    assert [clock_text(s) for s in (0, 59.6, 61, 3600, 90_061)] == [
        "0:00",
        "1:00",
        "1:01",
        "1:00:00",
        "25:01:01",
    ]
