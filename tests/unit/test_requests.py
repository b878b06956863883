"""Requests: rules R7, R10, R19, R22, R24 and R41."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollmesh.errors import EndpointFault
from rollmesh.ids import MINT
from rollmesh.ports import REBUILD, SUBSET_STEP, PredictReply, PredictRequest
from rollmesh.runtime.seeds import session_seed
from tests.driving import DISABLED, MODES, NEXT_STEP, SAME_STEP, drive, lengths
from tests.toys import ToyEnv, ToyModel


def contexts(model: ToyModel) -> list[Any]:
    """Every context that the model got, in the order of its sequence number."""
    found = [r.context for r in (*model.predicts, *model.evictions, *model.releases)]
    return sorted(found, key=lambda context: int(context.request_id.rsplit(":", 1)[1]))


def phases(model: ToyModel) -> list[str]:
    return [context.request_id.split(":")[-2] for context in contexts(model)]


@pytest.mark.parametrize("mode", MODES)
def test_r7_the_first_reset_names_no_lane_and_pushes_an_id_a_lane(mode):
    env = ToyEnv(3, mode)
    drive(env, max_episodes=3)
    first = env.resets[0]
    assert first.env_indices == ()
    assert len(set(first.episode_ids)) == 3
    assert first.seeds == ()
    assert first.options == ()
    assert first.timeout_ms == 300_000


def test_r7_ids_are_uuid7_by_default():
    env = ToyEnv(2)
    drive(env, driver={"mint": MINT}, max_episodes=2)
    ids = env.resets[0].episode_ids
    assert all(len(one) == 36 and one[14] == "7" for one in ids)
    assert list(ids) == sorted(ids)


def test_r7_options_only_where_an_episode_has_some():
    env = ToyEnv(1, length=lengths(1))
    drive(env, episode_options=[None, {"level": 2}, None])
    assert [r.options for r in env.resets] == [(), ({"level": 2},), ()]


def test_r7_options_are_aligned_with_lanes():
    env = ToyEnv(2, length=lengths(1, 1))
    drive(env, episode_options=[None, {"level": 2}])
    assert env.resets[0].options == (None, {"level": 2})


def test_r7_an_echoed_id_is_never_adopted():
    env = ToyEnv(1, length=lengths(1))
    run = drive(env, max_episodes=2)
    assert [e.episode_id for e in run.ok.episodes] == [r.episode_ids[0] for r in env.resets]


@pytest.mark.parametrize("mode", MODES)
def test_r10_seq_counts_requests_over_all_phases_from_1_without_gaps(mode):
    run = drive(ToyEnv(2, mode), max_episodes=5)
    numbers = [c.request_id.rsplit(":", 1)[1] for c in contexts(run.model)]
    assert numbers == [f"{k + 1:06d}" for k in range(len(numbers))]
    assert phases(run.model)[-1] == "release_adapter"


def test_r10_context_and_phases():
    run = drive(ToyEnv(1, DISABLED, length=lengths(2)), max_episodes=2)
    assert [c.request_id for c in contexts(run.model)] == [
        "route:reset_observation:000001",
        "route:step_observation:000002",
        "route:reset_adapter:000003",
        "route:reset_observation:000004",
        "route:step_observation:000005",
        "route:reset_adapter:000006",
        "route:release_adapter:000007",
    ]
    assert {(c.session_id, c.env_id) for c in contexts(run.model)} == {("session", "route")}


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_r10_an_env_that_resets_itself_is_no_reset_of_the_runtime(mode):
    run = drive(ToyEnv(1, mode, length=lengths(1)), max_episodes=3)
    assert [p.context.request_id.split(":")[1] for p in run.model.predicts] == [
        "reset_observation",
        "step_observation",
        "step_observation",
    ]


def test_r10_a_reset_counts_for_the_next_predict_though_frames_are_replayed_first():
    # The unscored lane 0 restarts at each step while lane 1 replays: a reset is a reset.
    run = drive(ToyEnv(2, length=lengths(1, 4)), ToyModel(frames=3), max_episodes=3)
    assert [
        (p.context.request_id.split(":")[1], len(p.episode_info)) for p in run.model.predicts
    ] == [("reset_observation", 2), ("reset_observation", 1), ("reset_observation", 1)]


def test_r10_the_counter_is_shared_by_all_groups():
    run = drive(ToyEnv(3, capabilities=[SUBSET_STEP]), max_episodes=6)
    numbers = [int(c.request_id.rsplit(":", 1)[1]) for c in contexts(run.model)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_r10_seq_has_more_digits_when_it_needs_them():
    run = drive(ToyEnv(1, length=lengths(1)), max_episodes=1)
    assert run.model.predicts[0].context.request_id.endswith(":000001")


def test_r10_one_episode_info_a_row_with_the_seed_sent():
    run = drive(ToyEnv(2, length=lengths(1, 2)), episode_seeds=[11, 12, 13])
    rows = [[(info.episode_id, info.seed) for info in p.episode_info] for p in run.model.predicts]
    assert rows == [
        [("id-000001", 11), ("id-000002", 12)],
        [("id-000003", 13), ("id-000002", 12)],
    ]
    for predict in run.model.predicts:
        assert np.asarray(predict.observation[0]).shape[0] == len(predict.episode_info)


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_r10_an_episode_that_the_env_started_has_no_seed(mode):
    run = drive(ToyEnv(1, mode, length=lengths(1)), base_seed=5, max_episodes=2)
    seeds = [p.episode_info[0].seed for p in run.model.predicts]
    assert seeds == [session_seed(5, "session", 0, 0), None]
    assert [e.seed for e in run.ok.episodes] == seeds


@pytest.mark.parametrize(("horizon", "wire"), [(None, None), (2, 2)])
def test_r19_the_horizon_goes_with_the_predict(horizon, wire):
    run = drive(ToyEnv(1), ToyModel(3), execution_horizon=horizon, max_episodes=1)
    assert {p.execution_horizon for p in run.model.predicts} == {wire}


def test_r41_reset_requests_carry_derived_seeds_with_their_generation():
    env = ToyEnv(2, length=lengths(1, 3))
    run = drive(env, base_seed=42, max_episodes=4)

    def derived(generation: int, lane: int) -> int:
        return session_seed(42, "session", generation, lane)

    assert [(r.env_indices, r.seeds) for r in env.resets] == [
        ((), (derived(0, 0), derived(0, 1))),
        ((0,), (derived(1, 0),)),
        ((0,), (derived(2, 0),)),
    ]
    assert [(e.index, e.seed) for e in run.ok.episodes] == [
        (0, derived(0, 0)),
        (1, derived(0, 1)),
        (2, derived(1, 0)),
        (3, derived(2, 0)),
    ]


def test_r41_the_generation_is_counted_per_group():
    env = ToyEnv(2, capabilities=[SUBSET_STEP], length=lengths(1, 1))
    drive(env, base_seed=42, max_episodes=4)
    seeds = {(r.env_indices[0], r.seeds[0]) for r in env.resets}
    assert seeds == {(i, session_seed(42, "session", g, i)) for i in (0, 1) for g in (0, 1)}


def test_r41_vectors():
    assert session_seed(0, "session", 0, 0) == 4938540681838044035
    assert session_seed(42, "session", 0, 1) == 1547581752591798236
    assert session_seed(-1, "séance", 3, 7) == 3901647208474408047
    assert session_seed(9223372036854775807, "s", 4294967296, 255) == 7167343777576788318


def test_r24_one_eviction_a_step_with_its_ended_ids_and_none_for_ids_never_seen():
    run = drive(ToyEnv(3, length=lengths(2, 2, 1)), max_episodes=2)
    assert [e.episode_ids for e in run.model.evictions] == [("id-000001", "id-000002")]


@pytest.mark.parametrize("kind", ["env", "model"])
def test_r24_after_a_failure_ids_alive_are_evicted_before_the_release(kind):
    class Env(ToyEnv):
        def step(self, request: Any) -> Any:
            if len(self.steps) == 2 and kind == "env":
                raise EndpointFault("broken")
            return super().step(request)

    class Model(ToyModel):
        def predict(self, request: PredictRequest) -> PredictReply:
            if len(self.predicts) == 2 and kind == "model":
                self.held.update(i.episode_id for i in request.episode_info)
                raise EndpointFault("broken")
            return super().predict(request)

    run = drive(Env(2, length=lengths(9, 9)), Model(), max_episodes=2)
    assert run.failure.step in (2, 3)
    evicted = [i for e in run.model.evictions for i in e.episode_ids]
    assert sorted(evicted) == ["id-000001", "id-000002"]
    assert len(run.model.releases) == 1
    assert not run.notes.of("log")[1:], "no warning: the toy model asserts the order"


def test_r24_an_errored_episode_is_evicted_once_and_the_route_goes_on():
    class Env(ToyEnv):
        def step(self, request: Any) -> Any:
            if len(self.steps) == 1 and not self.rebuilt:
                raise EndpointFault("broken")
            return super().step(request)

    env = Env(2, length=lengths(2, 2), capabilities=["partial_reset", REBUILD])
    run = drive(env, on_error="continue", max_episodes=4)
    evicted = [i for e in run.model.evictions for i in e.episode_ids]
    assert sorted(evicted) == sorted({e.episode_id for e in run.ok.episodes})
