"""Checks the full history of one run: what may never happen, whatever the weather.

Reads the events that a hooks object noted, the calls that the toy ports noted and the report or
error that the driver gave back.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from rollmesh.errors import RouteError
from rollmesh.runtime.report import RouteReport
from tests.toys import Notes, ToyEnv, ToyModel

_TERMINAL = ("session_ended", "session_failed")


def check(
    notes: Notes,
    env: ToyEnv,
    model: ToyModel,
    outcome: RouteReport | RouteError,
    *,
    is_told: bool = False,
) -> None:
    """Raise AssertionError where the history breaks a promise.

    With `is_told` the report holds what was told one by one: all that ended, but for the episodes
    that the route's own end spoiled.
    """
    report = outcome if isinstance(outcome, RouteReport) else outcome.report
    assert report is not None, "every way out after validation carries a report"
    _check_frame(notes, outcome, report)
    spoiled = is_told and not isinstance(outcome, RouteReport)
    _check_episodes(notes, report, spoiled=spoiled)
    _check_steps(notes, report)
    _check_ids(notes, env, model)


def _check_frame(notes: Notes, outcome: object, report: RouteReport) -> None:
    """One start, one end, one final telemetry, nothing after the last event."""
    names = notes.names()
    assert names[0] == "session_started"
    ends = [name for name in names if name in _TERMINAL]
    finals = [e for e in notes.of("on_telemetry") if e.snapshot.horizon == "session"]
    assert len(ends) == 1
    assert len(finals) == 1
    assert finals[0].snapshot is report.telemetry
    if isinstance(outcome, RouteReport):
        assert ends == ["session_ended"]
        assert names[-1] == "on_telemetry"
        (ended,) = notes.of("session_ended")
        assert ended.total_steps == report.total_steps
        assert ended.total_episodes == report.total_episodes
    else:
        assert ends == ["session_failed"]
        assert names[-1] == "session_failed"
        (failed,) = notes.of("session_failed")
        assert failed.reason == str(outcome)


def _check_episodes(notes: Notes, report: RouteReport, *, spoiled: bool) -> None:
    """Each start has at most one end; the report holds just what ended."""
    started = {e.episode_id: e for e in notes.of("episode_started")}
    assert len(started) == len(notes.of("episode_started"))
    records = [e.record_id for e in notes.of("episode_started")]
    assert records == [f"ep-{k + 1:06d}" for k in range(len(records))]
    ended = notes.of("episode_completed", "episode_errored")
    assert max(Counter(e.episode_id for e in ended).values(), default=1) == 1
    for event in notes.of("episode_completed"):
        start = started[event.episode_id]
        assert (start.episode_index, start.env_index, start.seed) == (
            event.episode_index,
            event.env_index,
            event.seed,
        )
    indices = [summary.index for summary in report.episodes]
    assert len(indices) == len(set(indices)), "an index was reported twice"
    reported = {s.episode_id for s in report.episodes}
    missing = {e.episode_id for e in ended} - reported
    assert reported <= {e.episode_id for e in ended}
    assert (
        missing <= {e.episode_id for e in notes.of("episode_errored")} if spoiled else not missing
    )
    assert report.total_steps == sum(s.steps for s in report.episodes)


def _check_steps(notes: Notes, report: RouteReport) -> None:
    """Each episode is observed, acted on and stepped in order, between its start and its end."""
    state: dict[str, tuple[str, int]] = {}
    rewards: dict[str, float] = {}
    for name, event in notes.events:
        if name == "episode_started":
            state[event.episode_id] = ("step_completed", 0)
            rewards[event.episode_id] = 0.0
        elif name in _FOLLOWS:
            _check_rows(name, event, state, rewards)
        elif name in ("episode_completed", "episode_errored"):
            _check_end(name, event, state, rewards)
    assert all(s.steps >= 1 for s in report.episodes if s.error is None)


_FOLLOWS = {
    "observation_emitted": "step_completed",
    "action_received": "observation_emitted",
    "step_completed": "action_received",
}


def _check_rows(
    name: str, event: Any, state: dict[str, tuple[str, int]], rewards: dict[str, float]
) -> None:
    for row, episode_id in enumerate(event.episode_ids):
        before, steps = state[episode_id]
        assert before == _FOLLOWS[name], f"{name} after {before}"
        steps += name == "step_completed"
        assert event.steps[row] == steps
        state[episode_id] = (name, steps)
        if name == "step_completed":
            rewards[episode_id] += event.rewards[row]
        if name == "observation_emitted":
            assert event.is_reset[row] == (steps == 0)


def _check_end(
    name: str, event: Any, state: dict[str, tuple[str, int]], rewards: dict[str, float]
) -> None:
    if name == "episode_errored":
        state.pop(event.episode_id, None)
        return
    before, steps = state.pop(event.episode_id)
    assert before == "step_completed"
    assert event.steps == steps
    assert event.total_reward == rewards[event.episode_id]


def _check_ids(notes: Notes, env: ToyEnv, model: ToyModel) -> None:
    """Ids flow down once; requests are numbered from 1 without a gap; evictions come once."""
    pushed = [i for request in env.resets for i in request.episode_ids]
    assert len(pushed) == len(set(pushed)), "an id was given to two resets"
    evicted = [i for request in model.evictions for i in request.episode_ids]
    assert len(evicted) == len(set(evicted)), "an id was evicted twice"
    predicted = {info.episode_id for request in model.predicts for info in request.episode_info}
    started = {e.episode_id for e in notes.of("episode_started")}
    assert set(evicted) <= started  # a predict may have failed on its way to the model
    assert predicted <= started, "the model saw an id that no event named"
    calls = [r.context.request_id for r in (*model.predicts, *model.evictions, *model.releases)]
    numbers = [int(text.rsplit(":", 1)[1]) for text in calls]
    assert len(numbers) == len(set(numbers))
