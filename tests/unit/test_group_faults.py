"""Faults of an env, and what a group makes of them: rules R29, R31 and R45."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rollmesh.errors import (
    EndpointFault,
    EnvFailed,
    ModelFailed,
    OperationTimeout,
    ProtocolError,
)
from rollmesh.limits import Limits
from rollmesh.ports import (
    PARTIAL_RESET,
    PredictReply,
    PredictRequest,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from tests.driving import (
    DISABLED,
    MODES,
    NEXT_STEP,
    FakeClock,
    Tale,
    TaleEnv,
    TaleHooks,
    TaleModel,
    drive,
    lengths,
)
from tests.toys import LANES, VECTOR, ToyEnv, ToyModel

Breaks = Callable[[Any, Any], bool]


class FragileEnv(TaleEnv):
    """Breaks where it is told to; a broken lane works again once it is rebuilt."""

    def __init__(self, *args: Any, breaks: Breaks, tale: Tale | None = None, **kwargs: Any) -> None:
        super().__init__(tale or Tale(), *args, **kwargs)
        self.breaks = breaks

    def reset(self, request: ResetRequest) -> ResetReply:
        if self.breaks(self, request):
            raise EndpointFault("reset broke", error_class="Breakage")
        return super().reset(request)

    def step(self, request: StepRequest) -> StepReply:
        if self.breaks(self, request):
            raise EndpointFault("step broke", error_class="Breakage")
        return super().step(request)

    def rebuild(self, env_indices: tuple[int, ...]) -> None:
        self.tale.say(f"> rebuild {env_indices or 'all'}")
        super().rebuild(env_indices)


def at_step(n: int) -> Breaks:
    """Break the n-th step of the env, once."""
    return lambda env, request: (
        isinstance(request, StepRequest) and (not env.rebuilt and len(env.steps) == n - 1)
    )


def at_reset(n: int) -> Breaks:
    """Break the n-th reset of the env, once."""
    return lambda env, request: (
        isinstance(request, ResetRequest) and (not env.rebuilt and len(env.resets) == n - 1)
    )


def in_lane(lane: int, seed: int) -> Breaks:
    """Break the first step of an episode with that seed on that lane."""
    return lambda env, request: (
        isinstance(request, StepRequest)
        and (request.env_indices == (lane,) and env.lanes[lane].seed == seed)
    )


def test_r29_by_default_the_first_failure_ends_the_route():
    env = FragileEnv(2, breaks=at_step(4), capabilities=VECTOR, length=lengths(2, 9))
    run = drive(env, max_episodes=5)
    error = run.failure
    assert isinstance(error, EnvFailed)
    assert not env.rebuilt
    assert error.report is not None
    assert [(e.index, e.error) for e in error.report.episodes if e.error is None] == [(0, None)]
    assert error.report.telemetry is run.notes.of("on_telemetry")[0].snapshot


def test_r29_order_of_a_failure():
    tale = Tale()
    env = FragileEnv(1, breaks=at_step(2), tale=tale, length=lengths(9))
    drive(env, TaleModel(tale), hooks=[TaleHooks(tale)], max_episodes=1, close_env_on_end=True)
    after = tale.lines[tale.lines.index("telemetry session") :]
    assert after == ["telemetry session", "> evict 1", "> release", "> close", "session_failed"]


def test_r29_one_reason_for_release_and_session_failed():
    run = drive(FragileEnv(1, breaks=at_step(2), length=lengths(9)), max_episodes=1)
    (failed,) = run.notes.of("session_failed")
    assert failed.reason == run.model.releases[0].reason == str(run.error)


@pytest.mark.parametrize("mode", MODES)
def test_r29_continue_errors_the_running_episodes_and_rebuilds_for_those_left(mode):
    env = FragileEnv(2, mode, breaks=at_step(4), capabilities=VECTOR, length=lengths(3, 5))
    run = drive(env, on_error="continue", max_episodes=6)
    episodes = run.ok.episodes
    assert [e.index for e in episodes] == list(range(6))
    assert env.rebuilt == [()]
    errored = [e for e in episodes if e.error is not None]
    assert [e.index for e in errored] == [1, 2]
    assert all("step broke" in str(e.error) for e in errored)
    assert {(e.success, e.terminated, e.truncated) for e in errored} == {(None, False, False)}
    assert run.ok.total_episodes == 6
    assert run.ok.total_steps == sum(e.steps for e in episodes)
    assert [e.episode_index for e in run.notes.of("episode_errored")] == [2, 1], "in lane order"
    assert [e.episode_index for e in run.notes.of("episode_completed")] == [0, 3, 4, 5]
    assert run.notes.names()[-2:] == ["session_ended", "on_telemetry"]


def test_r29_continue_event_by_event():
    tale = Tale()
    env = FragileEnv(1, breaks=at_step(2), tale=tale, capabilities=VECTOR, length=lengths(2))
    drive(env, TaleModel(tale), hooks=[TaleHooks(tale)], on_error="continue", max_episodes=2)
    lines = tale.lines
    assert lines[lines.index("errored 0 on 0") :][:5] == [
        "errored 0 on 0",
        "> evict 1",
        "> rebuild all",
        "> reset all",
        "started 1 on 0 auto",
    ]
    assert lines.count("log info") == 1, "R8: later resets log nothing"


def test_r29_an_errored_episode_keeps_its_steps_and_reward():
    env = FragileEnv(1, breaks=at_step(3), capabilities=VECTOR, length=lengths(5), reward=2.0)
    run = drive(env, on_error="continue", max_episodes=2)
    first, second = run.ok.episodes
    assert (first.steps, first.total_reward) == (2, 4.0)
    assert (second.steps, second.error) == (5, None)


def test_r29_other_groups_are_not_disturbed():
    env = FragileEnv(3, breaks=in_lane(1, 11), capabilities=LANES)
    run = drive(env, on_error="continue", episode_seeds=[10, 11, 12, 13, 14, 15, 16])
    episodes = run.ok.episodes
    assert [e.index for e in episodes if e.error] == [1]
    assert env.rebuilt == [(1,)]
    good = [e for e in episodes if not e.error]
    assert all(e.steps == 1 + (e.seed or 0) % 5 for e in good)


def test_r29_without_a_factory_continue_raises():
    env = FragileEnv(2, breaks=at_step(2), capabilities=[PARTIAL_RESET], length=lengths(9, 9))
    run = drive(env, on_error="continue", max_episodes=4)
    assert isinstance(run.failure, EnvFailed)


class FragileModel(ToyModel):
    """Breaks at the third predict."""

    def predict(self, request: PredictRequest) -> PredictReply:
        if len(self.predicts) == 2:
            raise EndpointFault("model broke")
        return super().predict(request)


def test_r29_a_model_failure_raises_all_the_same():
    env = ToyEnv(2, capabilities=VECTOR, length=lengths(9, 9))
    run = drive(env, FragileModel(), on_error="continue", max_episodes=2)
    assert isinstance(run.failure, ModelFailed)
    assert not env.rebuilt


def test_r29_a_model_timeout_raises_all_the_same():
    clock = FakeClock()

    class SlowModel(ToyModel):
        def predict(self, request: PredictRequest) -> PredictReply:
            clock.pass_s(5)
            return super().predict(request)

    env = ToyEnv(2, capabilities=VECTOR)
    run = drive(
        env,
        SlowModel(),
        driver={"clock": clock},
        limits=Limits(model_predict_s=1),
        on_error="continue",
        max_episodes=2,
    )
    assert isinstance(run.failure, OperationTimeout)
    assert not env.rebuilt


@pytest.mark.parametrize("operation", ["step", "reset"])
def test_r29_an_env_timeout_is_a_fault_like_another(operation):
    clock = FakeClock()

    class Slow(ToyEnv):
        def _late(self, calls: int) -> None:
            clock.pass_s(5 if not self.rebuilt and calls == 2 else 0.1)

        def reset(self, request: ResetRequest) -> ResetReply:
            if operation == "reset":
                self._late(len(self.resets) + 1)
            return super().reset(request)

        def step(self, request: StepRequest) -> StepReply:
            if operation == "step":
                self._late(len(self.steps) + 1)
            return super().step(request)

    env = Slow(1, capabilities=VECTOR, length=lengths(3))
    run = drive(
        env,
        driver={"clock": clock},
        limits=Limits(env_step_s=1, env_reset_s=1),
        on_error="continue",
        max_episodes=3,
    )
    assert env.rebuilt == [()]
    assert len([e for e in run.ok.episodes if e.error]) == 1
    assert run.ok.total_episodes == 3


def test_r29_a_protocol_error_raises_all_the_same():
    class Odd(ToyEnv):
        def step(self, request: StepRequest) -> StepReply:
            reply = super().step(request)
            reply.rewards = ()
            return reply

    run = drive(Odd(1, capabilities=VECTOR), on_error="continue", max_episodes=2)
    assert isinstance(run.failure, ProtocolError)


@pytest.mark.parametrize("n", [1, 2])
def test_r29_a_failing_reset_errors_the_episodes_that_it_was_to_start(n):
    env = FragileEnv(2, breaks=at_reset(n), capabilities=VECTOR, length=lengths(1, 1))
    run = drive(env, on_error="continue", max_episodes=6)
    errored = [e.index for e in run.ok.episodes if e.error]
    assert errored == [2 * n - 2, 2 * n - 1]
    assert [e.index for e in run.ok.episodes] == list(range(6))
    assert {e.steps for e in run.ok.episodes if e.error} == {0}


def test_r29_a_failing_partial_reset_errors_the_healthy_lanes_too():
    env = FragileEnv(2, breaks=at_reset(2), capabilities=VECTOR, length=lengths(1, 3))
    run = drive(env, on_error="continue", max_episodes=4)
    assert [(e.index, e.steps) for e in run.ok.episodes if e.error] == [(1, 1), (2, 0)]


def test_r29_a_failing_rebuild_raises():
    class NoFactory(FragileEnv):
        def rebuild(self, env_indices: tuple[int, ...]) -> None:
            raise EndpointFault("cannot build")

    env = NoFactory(1, breaks=at_step(2), capabilities=VECTOR, length=lengths(9))
    run = drive(env, on_error="continue", max_episodes=2)
    assert isinstance(run.failure, EnvFailed)
    assert run.failure.operation == "env.rebuild"


def test_r29_nothing_is_rebuilt_when_no_episode_is_left():
    env = FragileEnv(1, breaks=at_step(2), capabilities=VECTOR, length=lengths(3))
    run = drive(env, on_error="continue", max_episodes=1)
    assert [e.error is not None for e in run.ok.episodes] == [True]
    assert not env.rebuilt


def test_r29_a_fault_during_a_roll_errors_the_episode_to_be():
    env = FragileEnv(2, NEXT_STEP, breaks=at_step(2), capabilities=VECTOR, length=lengths(1, 9))
    run = drive(env, on_error="continue", max_episodes=4)
    assert [(e.index, e.steps) for e in run.ok.episodes if e.error] == [(1, 1), (2, 0)]
    evicted = [i for e in run.model.evictions for i in e.episode_ids]
    assert len(evicted) == len(set(evicted))


def test_r29_an_unscored_lane_is_never_errored():
    env = FragileEnv(3, breaks=at_step(2), capabilities=VECTOR, length=lengths(3, 3, 3))
    run = drive(env, on_error="continue", max_episodes=2)
    assert [e.index for e in run.ok.episodes] == [0, 1]
    assert len(run.notes.of("episode_errored")) == 2


def test_r29_reset_seeds_after_a_rebuild_go_on_counting_generations():
    env = FragileEnv(1, DISABLED, breaks=at_step(2), capabilities=VECTOR, length=lengths(3))
    run = drive(env, on_error="continue", base_seed=3, max_episodes=3)
    assert len({e.seed for e in run.ok.episodes}) == 3


def test_r31_the_report():
    env = ToyEnv(2, length=lengths(2, 3), info=lambda lane: {"is_success": lane.index == 1})
    run = drive(env, episode_seeds=[5, 6, 7])
    report = run.ok
    assert (report.session_id, report.env_id) == ("session", "route")
    assert (report.total_steps, report.total_episodes) == (7, 3)
    first, second, third = report.episodes
    assert [e.index for e in report.episodes] == [0, 1, 2]
    assert (first.env_index, first.episode_id, first.seed) == (0, "id-000001", 5)
    assert (second.steps, second.total_reward) == (3, 3.0)
    assert (third.terminated, third.truncated, third.error) == (True, False, None)
    assert [e.success for e in report.episodes] == [False, True, False]
    assert report.telemetry is run.notes.of("on_telemetry")[-1].snapshot


def test_r31_duration_runs_from_the_resets_reply_to_the_last_steps():
    clock = FakeClock()

    class Slow(ToyEnv):
        def reset(self, request: ResetRequest) -> ResetReply:
            clock.pass_s(100)
            return super().reset(request)

        def step(self, request: StepRequest) -> StepReply:
            clock.pass_s(2)
            return super().step(request)

    run = drive(Slow(1, length=lengths(3)), driver={"clock": clock}, max_episodes=2)
    assert [e.duration_s for e in run.ok.episodes] == [6.0, 6.0]
