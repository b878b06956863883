"""Every step of a run as Parquet files."""

from __future__ import annotations

import logging
import threading

import gymnasium
import numpy as np
import pyarrow.parquet
import pytest

import rollmesh
from rollmesh.events import ActionReceived, EpisodeCompleted, EpisodeStarted, Route, StepCompleted
from rollmesh.runs import traces
from rollmesh.runs.traces import StepTrace
from rollmesh.spaces.space import Discrete

ROUTE = Route("env", "env", "model")
COLUMNS = [
    "plan_index", "episode_id", "attempt", "task", "seed", "t", "reward", "terminated",
    "truncated", "error", "action",
]  # fmt: skip


class Toy(gymnasium.Env):
    """Counts; episodes end after as many steps as their seed says, modulo 4, plus 1."""

    observation_space = gymnasium.spaces.Dict(
        {
            "image": gymnasium.spaces.Box(0, 255, (2, 3), np.uint8),
            "t": gymnasium.spaces.Discrete(100),
        }
    )
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.t = seed % 4 + 1, 0
        return self.observe(), {}

    def observe(self):
        return {"image": np.full((2, 3), self.t, np.uint8), "t": self.t}

    def step(self, action):
        self.t += 1
        return self.observe(), float(action[0]), self.t >= self.length, False, {}


class Fails(Toy):
    """Fails in the second step of episodes with an odd seed."""

    def step(self, action):
        if self.t == 1 and self.length % 2 == 0:
            raise RuntimeError("stuck")
        return super().step(action)


def policy(observation):
    t = observation["t"]
    return np.array([t / 10, -t / 10], np.float32)


def rows_in(folder):
    return pyarrow.parquet.read_table(folder).sort_by("plan_index").to_pylist()


def evaluate(env, trace, **arguments):
    arguments = {"episodes": 7, "base_seed": 5, "hooks": trace} | arguments
    return rollmesh.evaluate(policy, env, **arguments)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_every_step_of_every_episode_is_there(tmp_path, num_envs):
    with StepTrace(tmp_path, episodes_per_file=2, observations=True) as trace:
        result = evaluate(Toy, trace, num_envs=num_envs)
    assert len(list(tmp_path.iterdir())) == 4
    rows = rows_in(tmp_path)
    assert list(rows[0]) == [*COLUMNS, "observation"]
    for episode in result.episodes:
        own = [row for row in rows if row["plan_index"] == episode.index]
        assert [row["t"] for row in own] == list(range(episode.steps))
        assert {row["episode_id"] for row in own} == {episode.episode_id}
        assert {row["seed"] for row in own} == {episode.seed}
        assert sum(row["reward"] for row in own) == pytest.approx(episode.total_reward)
        assert [row["terminated"] for row in own] == [*[False] * (episode.steps - 1), True]
        for t, row in enumerate(own):
            assert row["action"] == pytest.approx([t / 10, -t / 10])
            assert row["observation"] == {"image": [t] * 6, "t": t}
        assert {row["error"] for row in own} == {None}
        assert {row["attempt"] for row in own} == {1}


def test_a_seed_of_more_than_64_bits_is_left_out_and_its_steps_are_there(tmp_path):
    task = rollmesh.Task(seeds=[2**64, 2**64 - 1])
    with StepTrace(tmp_path) as trace:
        evaluate(Toy, trace, plan=rollmesh.Plan(tasks=(task,)), episodes=None, base_seed=None)
    assert trace.failure is None
    rows = rows_in(tmp_path)
    assert {(row["plan_index"], row["seed"]) for row in rows} == {(0, None), (1, 2**64 - 1)}


def test_observations_are_left_out_unless_asked_for(tmp_path):
    trace = StepTrace(tmp_path)
    evaluate(Toy, trace)
    assert list(rows_in(tmp_path)[0]) == COLUMNS
    assert trace.failure is None


def test_an_errored_episode_is_there_as_far_as_it_came(tmp_path):
    with StepTrace(tmp_path) as trace:
        result = evaluate(Fails, trace, on_error="continue")
    errored = [e for e in result.episodes if e.error is not None]
    assert errored
    rows = rows_in(tmp_path)
    for episode in errored:
        own = [row for row in rows if row["plan_index"] == episode.index]
        assert len(own) == episode.steps == 1
        assert own[0]["error"] == episode.error


def test_the_end_of_a_session_writes_what_is_left(tmp_path):
    trace = StepTrace(tmp_path, episodes_per_file=1000)
    evaluate(Toy, trace)
    assert {row["plan_index"] for row in rows_in(tmp_path)} == set(range(7))
    evaluate(Toy, trace)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_failing_disk_ends_the_trace_and_not_the_run(tmp_path, monkeypatch, caplog):
    def fail(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(traces, "write_whole", fail)
    with caplog.at_level(logging.ERROR), StepTrace(tmp_path, episodes_per_file=1) as trace:
        result = evaluate(Toy, trace)
        assert not trace.flush()
    assert len(result.episodes) == 7
    assert isinstance(trace.failure, OSError)
    assert len([r for r in caplog.records if "step_trace.failed" in r.message]) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_hangs_holds_the_run_for_a_while_only(tmp_path, monkeypatch, caplog):
    go_on = threading.Event()
    monkeypatch.setattr(traces, "write_whole", lambda path, data: go_on.wait(30.0))
    monkeypatch.setattr(traces, "CLOSE_S", 0.05)
    trace = StepTrace(tmp_path, episodes_per_file=1)
    evaluate(Toy, trace)
    assert isinstance(trace.failure, TimeoutError)
    go_on.set()
    trace.flush(30.0)


def start(index, episode_id, attempt=1):
    return EpisodeStarted(
        session_id="s", route=ROUTE, episode_id=episode_id, record_id="r", episode_index=index,
        env_index=0, seed=3, started_from_auto_reset=False, attempt=attempt, task="lift",
    )  # fmt: skip


def move(trace, episode_id, reward):
    common = {
        "session_id": "s", "route": ROUTE, "env_indices": (0,), "episode_ids": (episode_id,),
        "record_ids": ("r",), "steps": (0,),
    }  # fmt: skip
    space = Discrete(5)
    trace.action_received(
        ActionReceived(**common, action_space=space, action=space.codec.encode(2))
    )
    trace.step_completed(
        StepCompleted(
            **common, rewards=(reward,), terminated=(False,), truncated=(False,), infos=({},),
            observation_space=space, observation=space.codec.encode(0),
        )
    )  # fmt: skip


def end(trace, index, episode_id):
    space = Discrete(5)
    trace.episode_completed(
        EpisodeCompleted(
            session_id="s", route=ROUTE, episode_id=episode_id, record_id="r",
            episode_index=index, env_index=0, seed=3, steps=1, total_reward=0.0, terminated=True,
            truncated=False, success=None, duration_s=0.0, final_info={},
            observation_space=space, final_observation=space.codec.encode(0),
        )
    )  # fmt: skip


def test_a_lost_attempt_is_forgotten_when_the_next_one_starts(tmp_path):
    trace = StepTrace(tmp_path)
    trace.episode_started(start(4, "first"))
    move(trace, "first", 1.0)
    trace.episode_started(start(4, "second", attempt=2))
    move(trace, "second", 2.0)
    end(trace, 4, "second")
    end(trace, 4, "first")
    assert trace.flush()
    (row,) = rows_in(tmp_path)
    assert (row["episode_id"], row["attempt"], row["reward"]) == ("second", 2, 2.0)
    assert (row["task"], row["action"]) == ("lift", 2)


def test_an_episode_without_a_step_has_no_row(tmp_path):
    trace = StepTrace(tmp_path)
    trace.episode_started(start(4, "first"))
    end(trace, 4, "first")
    assert trace.flush()
    assert list(tmp_path.iterdir()) == []


def test_shards_of_large_episodes_are_written_early(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "SHARD_BYTES", 10)
    trace = StepTrace(tmp_path)
    for index in range(4):
        trace.episode_started(start(index, f"e{index}"))
        move(trace, f"e{index}", 1.0)
        end(trace, index, f"e{index}")
    assert trace.flush()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_shard_holds_one_episode_at_least(tmp_path):
    with pytest.raises(ValueError, match="episodes_per_file wants 1 or more, got 0"):
        StepTrace(tmp_path, episodes_per_file=0)
