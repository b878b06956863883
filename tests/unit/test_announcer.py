"""Events and hooks of a route: rules R33 to R36."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rollmesh import events
from rollmesh.errors import HookFailed
from rollmesh.ports import SUBSET_STEP
from rollmesh.runtime.announcer import Announcer
from rollmesh.runtime.driver import RouteDriver
from rollmesh.runtime.hooks import Dispatcher, Hooks
from tests.driving import MODES, drive, lengths
from tests.toys import CountingMint, Notes, ToyEnv, ToyModel, spec_for

ROUTE = events.Route("route", "toy-env", "toy-model")


@pytest.mark.parametrize("mode", MODES)
def test_r33_every_event_carries_session_and_route(mode):
    run = drive(ToyEnv(2, mode), max_episodes=4)
    assert len(run.notes.events) > 20
    for _, event in run.notes.events:
        assert event.session_id == "session"
        assert event.route == ROUTE


def test_r33_the_fields_of_events_of_the_session():
    run = drive(ToyEnv(1, length=lengths(2)), max_episodes=3)
    (started,) = run.notes.of("session_started")
    (ended,) = run.notes.of("session_ended")
    assert started.env_id == "route"
    assert (ended.reason, ended.total_steps, ended.total_episodes) == (
        "completed requested episodes",
        6,
        3,
    )


def test_r33_the_fields_of_an_episode():
    env = ToyEnv(2, length=lengths(3, 3), info=lambda lane: {"success": lane.index == 0})
    run = drive(env, episode_seeds=[7, 8])
    first, second = run.notes.of("episode_started")
    assert (first.episode_id, first.record_id, first.episode_index, first.env_index) == (
        "id-000001",
        "ep-000001",
        0,
        0,
    )
    assert (second.seed, second.started_from_auto_reset) == (8, False)
    done, other = run.notes.of("episode_completed")
    assert (done.episode_id, done.record_id, done.episode_index, done.env_index, done.seed) == (
        "id-000001",
        "ep-000001",
        0,
        0,
        7,
    )
    assert (done.steps, done.total_reward, done.terminated, done.truncated) == (3, 3.0, True, False)
    assert (done.success, other.success) == (True, False)
    assert done.final_info == {"success": True}
    assert done.decode().tolist() == [7, 3]
    assert other.decode().tolist() == [8, 3]
    assert done.duration_s >= 0


def test_r33_per_lane_fields_are_row_aligned_over_the_lanes_that_take_part():
    run = drive(ToyEnv(3, length=lengths(2, 3, 4)), max_episodes=7)
    for event in run.notes.of("observation_emitted", "action_received", "step_completed"):
        rows = len(event.env_indices)
        per_lane = ["episode_ids", "record_ids", "steps"]
        if isinstance(event, events.ObservationEmitted):
            per_lane += ["is_reset"]
            assert event.num_envs == 3
        if isinstance(event, events.StepCompleted):
            per_lane += ["rewards", "terminated", "truncated", "infos"]
        for name in per_lane:
            assert isinstance(getattr(event, name), tuple)
            assert len(getattr(event, name)) == rows


def test_r33_each_lanes_info_is_its_own():
    run = drive(ToyEnv(3, length=lengths(2, 3, 4)), max_episodes=5)
    for event in run.notes.of("step_completed"):
        assert [info["lane"] for info in event.infos] == list(event.env_indices)
        assert [info["t"] for info in event.infos] == list(event.steps)


def test_r33_is_reset_is_per_row():
    run = drive(ToyEnv(2, length=lengths(1, 3)), max_episodes=4)
    assert [e.is_reset for e in run.notes.of("observation_emitted")] == [
        (True, True),
        (True, False),
        (True, False),
    ]


class Failing(Hooks):
    """Observers that all fail, each in its own way."""

    def __init__(self, error: BaseException) -> None:
        def fail(event: Any) -> None:
            raise error

        for name in (
            "session_started",
            "episode_started",
            "observation_emitted",
            "action_received",
            "step_completed",
            "episode_completed",
            "log",
            "session_ended",
            "on_telemetry",
        ):
            setattr(self, name, fail)


@pytest.mark.parametrize("error", [ValueError("broken hook"), SystemExit(3)])
def test_r33_a_failing_observer_is_logged_with_its_name_and_the_route_goes_on(caplog, error):
    with caplog.at_level(logging.ERROR):
        run = drive(ToyEnv(2), hooks=[Failing(error)], max_episodes=3)
    assert run.ok.total_episodes == 3
    assert any("Failing" in record.getMessage() for record in caplog.records)
    assert run.notes.names()[-1] == "on_telemetry", "the others are called all the same"


class Returns(Hooks):
    """Transforms that give back something wrong at the third call."""

    def __init__(self, which: str, wrong: Any) -> None:
        self.which, self.wrong, self.calls = which, wrong, 0

    def transform_observation(self, context: Any, observation: Any) -> Any:
        return self._turn("observation", observation)

    def transform_action(self, context: Any, action: Any) -> Any:
        return self._turn("action", action)

    def _turn(self, which: str, leaves: Any) -> Any:
        if which != self.which:
            return leaves
        self.calls += 1
        if self.calls < 3:
            return leaves
        if isinstance(self.wrong, BaseException):
            raise self.wrong
        return self.wrong(leaves) if callable(self.wrong) else self.wrong


WRONG = {
    "raises": ValueError("no"),
    "exits": SystemExit(1),
    "none": None,
    "rows": lambda leaves: [leaves[0][:1]],
    "leaves": lambda leaves: [*leaves, *leaves],
    "no leaves": lambda leaves: [],
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("which", ["observation", "action"])
def test_r34_a_bad_transform_ends_the_route_and_is_not_logged_too(caplog, which, wrong):
    with caplog.at_level(logging.WARNING):
        run = drive(ToyEnv(2, length=lengths(9, 9)), hooks=[Returns(which, wrong)], max_episodes=2)
    error = run.failure
    assert isinstance(error, HookFailed)
    assert (error.hook, error.operation) == ("Returns", f"transform_{which}")
    assert (error.step, error.route) == (2, "route")
    if isinstance(wrong, BaseException):
        assert error.cause is wrong
    assert not [r for r in caplog.records if "hooks" in r.name]
    assert run.notes.names()[-1] == "session_failed"


class Times(Hooks):
    """Multiplies, then adds: the order of two of them shows."""

    def __init__(self, factor: int, term: int) -> None:
        self.factor, self.term = factor, term

    def transform_observation(self, context: Any, observation: Any) -> Any:
        return [observation[0] * self.factor + self.term]


def test_r35_transforms_apply_left_to_right_and_observers_see_the_result_only():
    run = drive(ToyEnv(1, length=lengths(2)), hooks=[Times(2, 1), Times(10, 0)], max_episodes=1)
    seen = [event.decode()[1] for event in run.notes.of("observation_emitted")]
    assert seen == [(0 * 2 + 1) * 10, (1 * 2 + 1) * 10]
    assert [p.observation[0][0, 1] for p in run.model.predicts] == seen


def test_r35_several_hooks_get_every_event_in_their_order():
    order: list[str] = []

    class Named(Hooks):
        def __init__(self, name: str) -> None:
            self.name = name

        def step_completed(self, event: Any) -> None:
            order.append(self.name)

    drive(ToyEnv(1, length=lengths(2)), hooks=[Named("a"), Named("b")], max_episodes=1)
    assert order == ["a", "b", "a", "b"]


def test_r35_one_hooks_object_serves_many_routes():
    notes = Notes()
    for session in ("s1", "s2"):
        env = ToyEnv(1)
        spec = spec_for(env, session_id=session, max_episodes=2)
        RouteDriver(spec, env, ToyModel(), hooks=[notes], mint=CountingMint()).run()
    for session in ("s1", "s2"):
        own = [name for name, event in notes.events if event.session_id == session]
        assert own[0] == "session_started"
        assert own.count("episode_completed") == 2


STEP_EVENTS = ("ObservationEmitted", "ActionReceived", "StepCompleted")
ALL_EVENTS = (
    *STEP_EVENTS,
    "SessionStarted",
    "EpisodeStarted",
    "EpisodeCompleted",
    "Log",
    "SessionEnded",
    "TelemetryEmitted",
)


@pytest.mark.parametrize("mode", MODES)
def test_r36_an_event_that_no_hook_overrides_is_not_built(monkeypatch, mode):
    class NeverBuilt:
        def __init__(self, **fields: Any) -> None:
            raise AssertionError("built for nobody")

    for name in ALL_EVENTS:
        monkeypatch.setattr(events, name, NeverBuilt)

    class OnlyTransforms(Hooks):
        def transform_action(self, context: Any, action: Any) -> Any:
            return action

    for hooks in ((), (Hooks(),), (OnlyTransforms(),)):
        env = ToyEnv(2, mode)
        driver = RouteDriver(spec_for(env, max_episodes=3), env, ToyModel(), hooks=hooks)
        assert driver.run().total_episodes == 3


def test_r36_step_events_are_not_built_for_hooks_of_episodes(monkeypatch):
    def never(**fields: Any) -> None:
        raise AssertionError("built for nobody")

    for name in STEP_EVENTS:
        monkeypatch.setattr(events, name, never)
    env, notes = ToyEnv(2), Notes(steps=False)
    RouteDriver(spec_for(env, max_episodes=3), env, ToyModel(), hooks=[notes]).run()
    assert notes.names().count("episode_completed") == 3


def test_r33_independent_lanes_have_events_of_one_row():
    run = drive(ToyEnv(3, capabilities=[SUBSET_STEP]), max_episodes=6)
    for event in run.notes.of("observation_emitted", "action_received", "step_completed"):
        assert len(event.env_indices) == 1
        assert event.decode(0).size


def test_r33_a_log_line_goes_to_the_log_and_to_the_hooks(caplog):
    env, notes = ToyEnv(1), Notes()
    announcer = Announcer(spec_for(env), Dispatcher([notes]))
    with caplog.at_level(logging.INFO):
        announcer.log("warning", "mind the gap")
    (event,) = notes.of("log")
    assert (event.level, event.message, event.source) == ("warning", "mind the gap", "runtime")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "mind the gap" in record.getMessage()
