"""What a route does with answers: rules R8, R9, R11 to R14, R17 to R19 and R37."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from rollmesh.errors import ModelRouteMismatch, ProtocolError
from rollmesh.events import MetricRow
from rollmesh.limits import Limits
from rollmesh.ports import (
    SUBSET_STEP,
    PredictReply,
    PredictRequest,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.runtime.hooks import Hooks
from tests.driving import DISABLED, MODES, NEXT_STEP, FakeClock, Run, SlowEnv, drive, lengths
from tests.toys import ToyEnv, ToyModel


def rows_of(run: Run) -> dict[tuple[str, str], MetricRow]:
    """The final telemetry by operation and metric."""
    return {
        (row.operation, row.metric): row for row in run.notes.of("on_telemetry")[-1].snapshot.rows
    }


# ------------------------------------------------------------------------------------ R8


def test_r8_one_info_log_of_the_runtime_with_time_and_count():
    clock = FakeClock()
    env = SlowEnv(clock, 2, length=lengths(1, 2), reset_s=0.25)
    run = drive(env, driver={"clock": clock}, max_episodes=5)
    (log,) = run.notes.of("log")
    assert (log.level, log.source) == ("info", "runtime")
    assert "250.0 ms" in log.message
    assert "2 episodes" in log.message
    assert run.notes.names()[:4] == ["session_started", "log", "episode_started", "episode_started"]


@pytest.mark.parametrize("mode", MODES)
def test_r8_only_first_starts_are_not_from_an_autoreset(mode):
    run = drive(ToyEnv(2, mode, length=lengths(1, 3)), max_episodes=5)
    started = run.notes.of("episode_started")
    assert [e.started_from_auto_reset for e in started] == [False, False, True, True, True]
    assert [e.env_index for e in started[:2]] == [0, 1], "in lane order"


@pytest.mark.parametrize("mode", MODES)
def test_r8_record_ids_and_indices_are_in_start_order(mode):
    run = drive(ToyEnv(3, mode, length=lengths(1, 2, 3)), max_episodes=7)
    started = run.notes.of("episode_started")
    assert [e.record_id for e in started] == [f"ep-{k:06d}" for k in range(1, 8)]
    assert [e.episode_index for e in started] == list(range(7))


def test_r8_record_ids_are_counted_per_route_over_all_groups():
    run = drive(ToyEnv(3, capabilities=[SUBSET_STEP]), max_episodes=7)
    ids = [e.record_id for e in run.notes.of("episode_started")]
    assert ids == [f"ep-{k:06d}" for k in range(1, 8)]


def test_r8_a_record_id_stays_with_its_episode():
    run = drive(ToyEnv(2), max_episodes=6)
    record = {e.episode_id: e.record_id for e in run.notes.of("episode_started")}
    for event in run.notes.of("observation_emitted", "action_received", "step_completed"):
        assert event.record_ids == tuple(record[i] for i in event.episode_ids)
    for event in run.notes.of("episode_completed"):
        assert event.record_id == record[event.episode_id]


# ------------------------------------------------------------------------------------ R9


class Shift(Hooks):
    """Adds to every observation and action, and keeps what it gave back."""

    def __init__(self, observation: float = 0.0, action: float = 0.0) -> None:
        self.by = (np.float32(observation), np.float32(action))
        self.observations: list[Any] = []
        self.actions: list[Any] = []

    def transform_observation(self, context: Any, observation: Any) -> Any:
        self.observations.append([observation[0] + self.by[0]])
        return self.observations[-1]

    def transform_action(self, context: Any, action: Any) -> Any:
        self.actions.append([action[0] + self.by[1]])
        return self.actions[-1]


def shown(leaves):
    """Return where the arrays lie: an event shows the payload itself, through read-only views."""
    return [leaf.__array_interface__["data"][0] for leaf in leaves]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("frames", [1, 3])
def test_r9_transformed_and_emitted_once_an_iteration_also_on_replay(mode, frames):
    shift = Shift(observation=7)
    run = drive(
        ToyEnv(2, mode, length=lengths(4, 5)), ToyModel(frames), hooks=[shift], max_episodes=2
    )
    emitted = run.notes.of("observation_emitted")
    assert len(shift.observations) == len(emitted) == len(run.notes.of("action_received"))
    for event, given in zip(emitted, shift.observations, strict=True):
        assert shown(event.observation) == shown(given)
        assert [event.decode(k)[1] - 7 for k in range(len(event.steps))] == list(event.steps)


def test_r9_a_predict_carries_rows_of_the_transformed_observation():
    shift = Shift(observation=7)
    run = drive(ToyEnv(1, length=lengths(2)), hooks=[shift], max_episodes=1)
    assert [p.observation[0][0, 1] for p in run.model.predicts] == [7, 8]


def test_r9_a_partial_predict_carries_its_own_rows():
    shift = Shift(observation=7)
    run = drive(ToyEnv(2, length=lengths(2, 9)), ToyModel(3), hooks=[shift], max_episodes=3)
    assert [len(p.episode_info) for p in run.model.predicts][:2] == [2, 1]
    partial = run.model.predicts[1]
    assert partial.episode_info[0].episode_id == "id-000003"
    assert partial.observation[0].tolist() == [[1 + 7, 0 + 7]]


def test_r9_the_transform_never_reaches_the_env_or_the_step_event():
    run = drive(ToyEnv(1, length=lengths(2)), hooks=[Shift(observation=7)], max_episodes=1)
    assert [e.decode()[1] for e in run.notes.of("step_completed")] == [1, 2]
    assert run.notes.of("episode_completed")[0].decode()[1] == 2


@pytest.mark.parametrize("mode", MODES)
def test_r9_the_ending_observation_is_not_emitted(mode):
    shift = Shift()
    run = drive(ToyEnv(2, mode, length=lengths(2, 3)), hooks=[shift], max_episodes=4)
    for event in run.notes.of("observation_emitted"):
        for lane, steps in zip(event.env_indices, event.steps, strict=True):
            assert steps < 2 + lane
    assert run.notes.names()[-4:] == [
        "step_completed",
        "episode_completed",
        "session_ended",
        "on_telemetry",
    ]


# --------------------------------------------------------------------------- R11 and R12


class Wrong(ToyModel):
    """Answers one predict with another context or other frames."""

    def __init__(self, at: int = 2, **fields: Any) -> None:
        super().__init__()
        self.at, self.fields = at, fields

    def predict(self, request: PredictRequest) -> PredictReply:
        reply = super().predict(request)
        if len(self.predicts) == self.at:
            context = msgspec.structs.replace(request.context, **self.fields.get("context", {}))
            reply.context = context
            reply.frames = self.fields.get("frames", reply.frames)
        return reply


@pytest.mark.parametrize(
    "context",
    [
        {"session_id": "other"},
        {"env_id": "other"},
        {"request_id": "route:step_observation:000001"},
        {"request_id": ""},
    ],
    ids=lambda c: next(iter(c)),
)
def test_r11_another_context_is_a_mismatch_and_leaves_no_sample(context):
    run = drive(ToyEnv(1, length=lengths(9)), Wrong(context=context), max_episodes=1)
    error = run.failure
    assert isinstance(error, ModelRouteMismatch)
    assert (error.component, error.request_id) == ("toy-model", "route:step_observation:000002")
    assert (error.operation, error.step, error.route) == ("model.predict", 1, "route")
    assert rows_of(run)["model.predict", "rpc.total"].count == 1


def test_r11_an_equal_context_is_as_good_as_the_same():
    run = drive(ToyEnv(1, length=lengths(3)), Wrong(context={}), max_episodes=1)
    assert run.ok.total_episodes == 1


def test_r12_no_frames_names_the_model_and_leaves_a_sample():
    run = drive(ToyEnv(1, length=lengths(9)), Wrong(frames=()), max_episodes=1)
    error = run.failure
    assert isinstance(error, ProtocolError)
    assert (error.component, error.operation, error.step) == ("toy-model", "model.predict", 1)
    assert "toy-model" in str(error)
    assert rows_of(run)["model.predict", "rpc.total"].count == 2


def test_r12_is_checked_after_r11():
    model = Wrong(frames=(), context={"env_id": "other"})
    run = drive(ToyEnv(1, length=lengths(9)), model, max_episodes=1)
    assert isinstance(run.failure, ModelRouteMismatch)


# --------------------------------------------------------------------------- R13 and R14


def test_r13_the_transformed_frame_is_emitted_and_then_applied():
    shift = Shift(action=1000)
    run = drive(ToyEnv(2, length=lengths(2, 2)), hooks=[shift], max_episodes=2)
    received = run.notes.of("action_received")
    for event, given, step in zip(received, shift.actions, run.env.steps, strict=True):
        assert shown(event.action) == shown(given)
        assert step.action is given
        assert [event.decode(k)[0] for k in (0, 1)] == given[0][:, 0].tolist()
        assert min(given[0][:, 0]) >= 1000


def test_r13_the_filler_is_the_transformed_frame_too():
    run = drive(
        ToyEnv(2, NEXT_STEP, length=lengths(2, 9)), hooks=[Shift(action=1000)], max_episodes=3
    )
    assert all(min(step.action[0][:, 0]) >= 1000 for step in run.env.steps)


def test_r13_the_step_carries_the_per_lane_ids():
    run = drive(ToyEnv(2, length=lengths(1, 3)), max_episodes=3)
    for event, step in zip(run.notes.of("action_received"), run.env.steps, strict=True):
        assert set(event.episode_ids) <= set(step.episode_ids)


def test_r14_a_step_event_counts_its_own_move():
    run = drive(ToyEnv(1, length=lengths(3)), max_episodes=1)
    assert [e.steps for e in run.notes.of("observation_emitted")] == [(0,), (1,), (2,)]
    assert [e.steps for e in run.notes.of("action_received")] == [(0,), (1,), (2,)]
    assert [e.steps for e in run.notes.of("step_completed")] == [(1,), (2,), (3,)]


# --------------------------------------------------------------------------- R17 to R19


@pytest.mark.parametrize(
    ("frames", "horizon", "predicts"), [(4, None, 3), (4, 3, 4), (1, None, 10)]
)
def test_r17_asked_again_only_when_the_queue_is_empty(frames, horizon, predicts):
    run = drive(
        ToyEnv(1, length=lengths(10)),
        ToyModel(frames),
        execution_horizon=horizon,
        max_episodes=1,
    )
    assert len(run.model.predicts) == predicts
    assert len(run.notes.of("action_received")) == 10


def test_r17_frames_are_applied_in_order():
    run = drive(ToyEnv(1, length=lengths(5)), ToyModel(3), max_episodes=1)
    applied = [round(value, 2) for _, _, value in run.env.actions]
    assert applied == [0.0, 0.01, 0.02, 3.0, 3.01]


@pytest.mark.parametrize("horizon", [1, 2, 3, 7])
def test_r19_a_horizon_keeps_the_first_frames(horizon):
    run = drive(
        ToyEnv(1, length=lengths(6)), ToyModel(3), execution_horizon=horizon, max_episodes=1
    )
    kept = min(horizon, 3)
    applied = [round(value, 2) for _, _, value in run.env.actions]
    assert applied == [round(t - t % kept + 0.01 * (t % kept), 2) for t in range(6)]


def test_r18_an_end_drops_the_lanes_queue_and_only_that_lane_replans():
    run = drive(ToyEnv(2, length=lengths(2, 9)), ToyModel(5), max_episodes=3)
    asked = [tuple(i.episode_id for i in p.episode_info) for p in run.model.predicts]
    assert asked == [
        ("id-000001", "id-000002"),
        ("id-000003",),
        ("id-000002",),
    ]
    lane_1 = [round(v, 2) for lane, _, v in run.env.actions if lane == 1][:9]
    assert lane_1 == [0.0, 0.01, 0.02, 0.03, 0.04, 5.0, 5.01, 5.02, 5.03]


def test_r18_replan_batch_drops_the_whole_groups_queues():
    run = drive(ToyEnv(2, length=lengths(2, 9)), ToyModel(5), replan="batch", max_episodes=3)
    asked = [tuple(i.episode_id for i in p.episode_info) for p in run.model.predicts]
    assert asked[:2] == [("id-000001", "id-000002"), ("id-000003", "id-000002")]
    lane_1 = [round(v, 2) for lane, _, v in run.env.actions if lane == 1]
    assert lane_1[:4] == [0.0, 0.01, 2.0, 2.01]


@pytest.mark.parametrize("mode", MODES)
def test_r18_no_frame_outlives_its_episode(mode):
    run = drive(ToyEnv(2, mode, length=lengths(2, 3)), ToyModel(5), max_episodes=6)
    planned = {e.episode_id for e in run.ok.episodes}
    firsts: dict[str, float] = {}
    for _, episode_id, value in run.env.actions:
        if episode_id in planned:
            firsts.setdefault(episode_id, round(value % 1, 2))
    assert len(firsts) == 6
    assert set(firsts.values()) == {0.0}, "each episode begins with frame 0 of its own chunk"


# ----------------------------------------------------------------------------------- R37


class Measured(SlowEnv):
    """Says what it sent and how long it took itself."""

    def reset(self, request: ResetRequest) -> ResetReply:
        reply = super().reset(request)
        reply.request_bytes, reply.response_bytes = 11, 12
        return reply

    def step(self, request: StepRequest) -> StepReply:
        reply = super().step(request)
        reply.request_bytes, reply.response_bytes = 21, 22
        reply.endpoint_total_ns = 1_000_000
        return reply


def test_r37_sources_and_metrics():
    clock = FakeClock()
    env = Measured(clock, 2, length=lengths(2, 2), reset_s=0.5, step_s=0.25)
    run = drive(env, driver={"clock": clock}, max_episodes=4)
    rows = rows_of(run)
    assert {operation for operation, _ in rows} == {
        "env.reset",
        "env.step",
        "model.predict",
        "runner.round",
    }
    counts = {key: row.count for key, row in rows.items()}
    assert counts["env.reset", "rpc.total"] == 2
    assert counts["env.step", "rpc.total"] == 4
    assert counts["model.predict", "rpc.total"] == 4
    assert counts["runner.round", "round.total"] == 4
    assert rows["env.step", "rpc.total"].mean == pytest.approx(250)
    assert rows["env.reset", "rpc.total"].mean == pytest.approx(500)
    assert rows["env.step", "endpoint.total"].mean == pytest.approx(1)
    assert ("env.reset", "endpoint.total") not in rows, "only if the peer stamped it"
    assert rows["env.reset", "request.bytes"].mean == 11
    assert rows["env.step", "response.bytes"].mean == 22
    assert rows["model.predict", "group.size"].mean == 2
    assert {row.component for row in rows.values()} == {"toy-env", "toy-model", "runner"}


def test_r37_group_size_counts_the_rows_of_a_predict():
    run = drive(ToyEnv(2, length=lengths(2, 9)), ToyModel(5), max_episodes=3)
    size = rows_of(run)["model.predict", "group.size"]
    assert (size.count, size.min, size.max) == (3, 1, 2)


def test_r37_a_failed_call_leaves_no_sample():
    class Broken(ToyEnv):
        def step(self, request: StepRequest) -> StepReply:
            if len(self.steps) == 2:
                raise ValueError("broken")
            return super().step(request)

    run = drive(Broken(1, DISABLED, length=lengths(9)), max_episodes=1)
    rows = rows_of(run)
    assert rows["env.step", "rpc.total"].count == 2
    assert rows["model.predict", "rpc.total"].count == 3


def test_r37_a_late_call_leaves_no_sample():
    clock = FakeClock()
    env = SlowEnv(clock, 1, length=lengths(9), step_s=1.0)
    limits = Limits(env_step_s=0.5)
    run = drive(env, driver={"clock": clock}, limits=limits, max_episodes=1)
    assert not [key for key in rows_of(run) if key[0] == "env.step"]
    assert run.failure.operation == "env.step"


@pytest.mark.parametrize("field", ["infos", "rewards"])
def test_r50_a_reply_with_other_rows_is_a_protocol_error(field):
    class Short(ToyEnv):
        def step(self, request: StepRequest) -> StepReply:
            reply = super().step(request)
            setattr(reply, field, getattr(reply, field)[:1])
            return reply

    run = drive(Short(2), max_episodes=2)
    assert isinstance(run.failure, ProtocolError)
    assert (run.failure.operation, run.failure.step) == ("env.step", 1)


def test_r50_a_partial_reset_with_other_rows_is_a_protocol_error():
    class Whole(ToyEnv):
        def reset(self, request: ResetRequest) -> ResetReply:
            reply = super().reset(request)
            reply.infos = tuple([{}] * 2)
            return reply

    run = drive(Whole(2, length=lengths(1, 9)), max_episodes=3)
    assert isinstance(run.failure, ProtocolError)
    assert run.failure.operation == "env.reset"
