"""Runs of a plan: resumed, stopped by rules, kept in folders, spread over workers."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import rollmesh
from rollmesh import Plan, Task, evaluate
from rollmesh.errors import InvalidSpec, JournalError, RunChanged, RunLocked
from rollmesh.fleet.settings import FleetSettings
from rollmesh.results.result import EvalResult
from rollmesh.run_arguments import RunArguments
from rollmesh.runs.reading import read_run
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.hooks import Hooks
from rollmesh.runtime.trace import TraceHash


class Walk(gym.Env):
    """Pays its seed's remainder for seed % 4 + 1 steps; succeeds on even seeds; fails on demand."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, *, fail_on: int | None = None, name: str = "") -> None:
        self.fail_on = fail_on
        self.name = name

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.t = seed or 0, 0
        self.state = (options or {}).get("initial_state", 0)
        return self._observe(), {}

    def _observe(self):
        return np.array([self.t / 8, self.state / 8], np.float32)

    def step(self, action):
        self.t += 1
        if self.fail_on is not None and self.seed % self.fail_on == 0:
            raise RuntimeError(f"seed {self.seed} is out of order")
        over = self.t > self.seed % 4
        info = {"is_success": self.seed % 2 == 0} if over else {}
        return self._observe(), float(self.seed % 7), over, False, info


class Stroll(Walk):
    """The same under another name."""


class Batched:
    """A policy that takes several rows at once."""

    def predict_batch(self, observations, contexts=None):
        return np.zeros(len(observations), np.int64)


def zero(observation):
    return 0


def outcomes(result: EvalResult) -> list[tuple]:
    return [(e.index, e.seed, e.steps, e.total_reward, e.success, e.task) for e in result.episodes]


class StopAfter(Hooks):
    """Cancels once so many episodes ended."""

    def __init__(self, token: CancelToken, count: int) -> None:
        self.token, self.count = token, count

    def episode_completed(self, event) -> None:
        self.count -= 1
        if self.count == 0:
            self.token.cancel()


# ------------------------------------------------------------------------------------ folders


def test_a_run_that_was_cut_short_goes_on_where_it_stopped(tmp_path):
    whole = evaluate(zero, Walk, episodes=12, base_seed=5)
    token = CancelToken()
    with pytest.raises(rollmesh.RouteCancelled) as caught:
        evaluate(
            zero,
            Walk,
            episodes=12,
            base_seed=5,
            run_dir=tmp_path,
            cancel=token,
            hooks=StopAfter(token, 5),
        )
    assert caught.value.result is not None
    assert len(caught.value.result.episodes) == 5
    assert caught.value.result.num_not_run == 7
    stored = read_run(tmp_path)
    assert (stored.status, len(stored.result.episodes)) == ("stopped", 5)
    again = evaluate(zero, Walk, episodes=12, base_seed=5, run_dir=tmp_path)
    assert outcomes(again) == outcomes(whole)
    assert again.run_dir == str(tmp_path)
    assert read_run(tmp_path).status == "finished"


def test_a_finished_run_is_not_run_again(tmp_path):
    first = evaluate(zero, Walk, episodes=4, run_dir=tmp_path)

    def never(**_):
        pytest.fail("an env was built")

    def policy(_):
        pytest.fail("the model was asked")

    never.__name__, policy.__name__ = "Walk", "zero"
    stored = read_run(tmp_path)
    assert first.plan_seed == stored.result.plan_seed
    again = evaluate(zero, Walk, episodes=4, run_dir=tmp_path)
    assert outcomes(again) == outcomes(first)
    assert again.plan_seed == first.plan_seed, "a drawn seed is taken over"


def test_a_suite_is_kept_under_the_names_of_its_envs(tmp_path):
    names = ("a", f"{__name__}:Walk"), ("b", "nowhere:make")
    tasks = tuple(Task(name=name, env=env, episodes=1) for name, env in names)
    with pytest.raises(InvalidSpec, match="no module 'nowhere'"):
        evaluate(zero, plan=Plan(tasks=tasks[1:]), workers=1, run_dir=tmp_path)
    assert read_run(tmp_path).result.env == "nowhere:make"
    assert evaluate(zero, plan=Plan(tasks=tasks[:1]), workers=1, run_dir=tmp_path).resumed == 0
    assert read_run(tmp_path).identity.env == f"{__name__}:Walk"
    assert read_run(tmp_path).result.env == "Walk"


def test_another_run_is_refused_with_what_differs(tmp_path):
    evaluate(zero, Walk, episodes=4, base_seed=1, run_dir=tmp_path)
    with pytest.raises(RunChanged, match=r"episodes.*4 -> 5"):
        evaluate(zero, Walk, episodes=5, base_seed=1, run_dir=tmp_path)
    with pytest.raises(RunChanged, match="model"):
        evaluate(Batched(), Walk, episodes=4, base_seed=1, run_dir=tmp_path)
    with pytest.raises(RunChanged, match="max_episode_steps"):
        evaluate(zero, Walk, episodes=4, base_seed=1, run_dir=tmp_path, max_episode_steps=2)
    assert evaluate(zero, Walk, episodes=5, base_seed=1, run_dir=tmp_path, new=True).planned == 5


def test_a_folder_has_one_driver(tmp_path):
    class Second(Hooks):
        error = None

        def episode_completed(self, event) -> None:
            code = (
                "import sys; from rollmesh import evaluate; from tests.unit.test_running import *\n"
                f"evaluate(zero, Walk, episodes=2, base_seed=1, run_dir={str(tmp_path)!r})"
            )
            if self.error is None:
                root = Path(__file__).parent.parent.parent
                path = os.pathsep.join([str(root), *filter(None, sys.path)])
                done = subprocess.run(
                    [sys.executable, "-c", code],
                    env={**os.environ, "PYTHONPATH": path},
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                Second.error = done.stderr

    evaluate(zero, Walk, episodes=2, base_seed=1, run_dir=tmp_path, hooks=Second())
    assert "RunLocked" in (Second.error or "")
    assert RunLocked.__name__ in (Second.error or "")


def test_what_is_stored_is_told_after_it_is_on_disk(tmp_path):
    class Told(Hooks):
        def __init__(self) -> None:
            self.stored: list[tuple[bool, list[int]]] = []

        def on_episodes_stored(self, event) -> None:
            self.stored.append((event.is_resumed, [e.index for e in event.episodes]))
            on_disk = {e.index for e in read_run(tmp_path).result.episodes}
            assert {e.index for e in event.episodes} <= on_disk

    first = Told()
    evaluate(zero, Walk, episodes=3, base_seed=1, run_dir=tmp_path, hooks=first)
    assert first.stored[0] == (True, [])
    assert sorted(k for _, part in first.stored for k in part) == [0, 1, 2]
    second = Told()
    evaluate(zero, Walk, episodes=3, base_seed=1, run_dir=tmp_path, hooks=second)
    assert second.stored == [(True, [0, 1, 2])]


def test_a_run_whose_folder_vanishes_ends_with_what_it_has(tmp_path):
    folder = tmp_path / "run"

    class Remove(Hooks):
        def episode_completed(self, event) -> None:
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()

    with pytest.raises(JournalError) as caught:
        evaluate(zero, Walk, episodes=5000, base_seed=1, run_dir=folder, hooks=Remove())
    assert caught.value.result is not None
    assert 1 <= len(caught.value.result.episodes) <= 5000


def test_an_env_that_resets_itself_cannot_be_kept(tmp_path):
    env = gym.vector.SyncVectorEnv([Walk, Walk], autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    with pytest.raises(InvalidSpec, match="resets itself"):
        evaluate(zero, env, episodes=4, run_dir=tmp_path)


def test_what_ended_a_run_early_is_told_by_every_later_start_and_by_the_folder(tmp_path):
    arguments = {"seeds": range(0, 80, 2), "stop_when": "width<0.6", "run_dir": tmp_path}
    first = evaluate(zero, Walk, **arguments)
    again = evaluate(zero, Walk, **arguments)
    assert (again.stopped, again.elapsed_s) == (first.stopped, first.elapsed_s)
    stored = read_run(tmp_path)
    assert (stored.status, stored.result.stopped) == ("stopped", first.stopped)


def test_seeds_that_were_named_follow_from_no_number(tmp_path):
    result = evaluate(zero, Walk, seeds=[4, 9], run_dir=tmp_path)
    assert result.plan_seed is None
    assert read_run(tmp_path).result.plan_seed is None


def test_the_cause_of_disk_trouble_is_not_replaced_by_what_followed_from_it(tmp_path):
    folder = tmp_path / "run"

    class Remove(Hooks):
        def episode_completed(self, event) -> None:
            if event.episode_index == 3:
                for file in folder.iterdir():
                    file.unlink()
                folder.rmdir()

    with pytest.raises(JournalError) as caught:
        evaluate(zero, Walk, episodes=5000, base_seed=1, run_dir=folder, hooks=Remove())
    assert isinstance(caught.value.__cause__, (OSError, sqlite3.Error))


def test_arguments_of_any_kind_can_be_kept(tmp_path):
    arguments = {"name": {(0, 1): "wall", 2: "door"}}
    for _ in range(2):
        result = evaluate(zero, Walk, episodes=2, env_kwargs=arguments, run_dir=tmp_path)
        assert result.num_not_run == 0


# -------------------------------------------------------------------------------------- rules


def test_a_rule_of_one_run_stops_no_other_run_of_its_token():
    token = CancelToken()
    rule = {"seeds": range(0, 80, 2), "stop_when": "width<0.6", "cancel": token}
    assert evaluate(zero, Walk, **rule).num_not_run > 0
    assert not token.draining
    assert evaluate(zero, Walk, seeds=range(5), cancel=token).num_not_run == 0


@pytest.mark.parametrize(
    ("share", "planned", "most"), [(0.29, 100, 29), (0.57, 100, 57), (0.1, 30, 3), (0.07, 10, 0)]
)
def test_a_share_of_the_plan_is_counted_exactly(share, planned, most):
    assert RunArguments(max_errors=share).read_max_errors(planned) == most


def test_more_errors_than_the_budget_end_the_run():
    result = evaluate(
        zero,
        Walk,
        seeds=range(20),
        env_kwargs={"fail_on": 2},
        on_error="continue",
        max_errors=3,
    )
    assert result.num_errors == 4
    assert result.stopped is not None
    assert result.stopped.startswith("failure budget spent: 4 of ")
    assert result.num_not_run == 20 - len(result.episodes)
    share = evaluate(
        zero,
        Walk,
        seeds=range(20),
        env_kwargs={"fail_on": 2},
        on_error="continue",
        max_errors=0.5,
    )
    assert (share.num_errors, share.stopped) == (10, None)


def test_a_rule_ends_the_run_once_it_is_decided(tmp_path):
    arguments = {"seeds": range(0, 4000, 2), "stop_when": "width<0.2", "run_dir": tmp_path}
    result = evaluate(zero, Walk, **arguments)
    assert result.success_rate == 1.0
    assert 10 < len(result.episodes) < 400
    assert result.stopped is not None
    assert "width" in result.stopped
    again = evaluate(zero, Walk, **arguments)
    assert len(again.episodes) == len(result.episodes), "what was decided stays decided"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"episodes": 2, "workers": 0}, "workers"),
        ({"episodes": 2, "workers": "many"}, "workers"),
        ({"episodes": 2, "max_errors": -1}, "max_errors"),
        ({"episodes": 2, "max_errors": 1.5}, "max_errors"),
        ({"episodes": 2, "stop_when": "soon"}, "soon"),
        ({"episodes": 2, "new": True}, "run_dir"),
        ({"episodes": 2, "fleet": FleetSettings()}, "workers"),
        ({"episodes": 2, "plan": Plan(tasks=[Task(episodes=1)])}, "contradicts plan"),
        ({"plan": "nowhere.json"}, "cannot be read"),
        ({"episodes": 4, "workers": 2, "num_envs": 2}, "--lanes-per-worker"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments, word):
    with pytest.raises(InvalidSpec, match=word):
        evaluate(zero, Walk, **arguments)


def test_an_env_is_needed_unless_every_task_names_one():
    with pytest.raises(InvalidSpec, match="names none"):
        evaluate(zero, plan=Plan(tasks=[Task(name="a", episodes=1)]))
    with pytest.raises(InvalidSpec, match="env: is missing: give a Gymnasium id"):
        evaluate(zero, plan=Plan(tasks=[Task(episodes=1)]))


def test_a_task_without_workers_has_its_arguments():
    plan = Plan(seed=3, tasks=(Task(name="hard", env_kwargs={"fail_on": 1}, episodes=3),))
    result = evaluate(zero, Walk, plan=plan, on_error="continue", env_kwargs={"name": "x"})
    assert result.num_errors == 3
    with pytest.raises(InvalidSpec, match="env_kwargs"):
        evaluate(zero, Walk(), plan=plan)


def test_no_more_lanes_than_a_plan_has_episodes():
    assert evaluate(zero, Walk, plan=Plan(tasks=(Task(episodes=2),)), num_envs=5).num_envs == 2


def test_a_plan_of_no_episodes_builds_nothing(tmp_path):
    plan = Plan(tasks=(Task(episodes=0),))
    result = evaluate(zero, "nowhere:make", plan=plan, workers=4, num_envs=None, run_dir=tmp_path)
    assert (result.episodes, result.planned, result.stopped) == ((), 0, None)


# ------------------------------------------------------------------------------------ workers


def test_workers_change_nothing_but_the_time(tmp_path):
    alone, spread = TraceHash(), TraceHash()
    one = evaluate(Batched(), Walk, episodes=30, base_seed=5, hooks=alone)
    three = evaluate(
        Batched(), Walk, episodes=30, base_seed=5, hooks=spread, workers=3, run_dir=tmp_path
    )
    assert outcomes(three) == outcomes(one)
    assert spread.hexdigest() == alone.hexdigest()
    assert three.num_envs == 3
    assert json.loads(three.to_json())["num_not_run"] == 0


def test_a_suite_runs_each_task_in_its_own_env():
    plan = Plan(
        seed=3,
        tasks=(
            Task(name="easy", env_kwargs={"name": "e"}, episodes=4, initial_states=2),
            Task(name="hard", env_kwargs={"fail_on": 1}, episodes=3),
            Task(name="short", env_kwargs={"name": "e"}, episodes=5, max_episode_steps=1),
        ),
    )
    result = evaluate(zero, Walk, plan=plan, workers=2)
    assert {task: len(part.episodes) for task, part in result.tasks.items()} == {
        "easy": 4,
        "hard": 3,
        "short": 5,
    }
    assert result.tasks["hard"].num_errors == 3
    assert {e.steps for e in result.tasks["short"].episodes} == {1}
    assert result.plan_hash == plan.hash
    assert outcomes(evaluate(zero, Walk, plan=plan, workers=1)) == outcomes(result)


def test_an_env_that_no_worker_can_find_is_refused():
    with pytest.raises(InvalidSpec, match="cannot be found by name"):
        evaluate(zero, lambda: Walk(), episodes=2, workers=2)  # noqa: PLW0108


def test_workers_are_told_of():
    class Told(Hooks):
        def __init__(self) -> None:
            self.states: list[tuple[int, str]] = []

        def on_worker_changed(self, event) -> None:
            self.states.append((event.worker, event.state))

    told = Told()
    evaluate(zero, Walk, episodes=6, workers=2, hooks=told)
    for worker in (0, 1):
        states = [state for number, state in told.states if number == worker]
        assert states[:2] in (["starting", "ready"], [])
    assert (0, "ready") in told.states


def test_a_fleet_leaves_no_thread_behind():
    before = set(threading.enumerate())
    evaluate(Batched, Walk, episodes=2, workers=2)
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert set(threading.enumerate()) <= before


class Dying(Walk):
    """Ends its process on seed 1, or kills it on seed 2."""

    def step(self, action):
        if self.seed == 1:
            print("no more", file=sys.stderr, flush=True)
            os._exit(3)
        if self.seed == 2:
            os.kill(os.getpid(), 9)
        return super().step(action)


def test_how_a_worker_ended_is_kept(tmp_path):
    fleet = FleetSettings(max_attempts=2)
    result = evaluate(zero, Dying, seeds=range(3), workers=1, fleet=fleet, run_dir=tmp_path)
    assert [e.error is None for e in result.episodes] == [True, False, False]
    assert [e.attempts for e in result.episodes] == [1, 2, 2]
    failed = read_run(tmp_path).failed_attempts
    assert [(a.index, a.attempt, a.exit_code, a.signal) for a in failed] == [
        (1, 1, 3, None),
        (2, 1, None, 9),
    ]
    assert "no more" in failed[0].stderr


# ------------------------------------------------------------------------------------- models


def test_a_model_in_processes_of_its_own_gives_the_same(tmp_path):
    alone = evaluate(Batched, Walk, episodes=12, base_seed=5)
    settings = FleetSettings(model_workers=2)
    spread = evaluate(Batched, Walk, episodes=12, base_seed=5, workers=2, fleet=settings)
    assert outcomes(spread) == outcomes(alone)


def test_a_list_of_served_models_shares_the_lanes():
    with (
        rollmesh.ModelServer(Batched, "rollmesh+unix://") as one,
        rollmesh.ModelServer(Batched, "rollmesh+unix://") as two,
    ):
        spread = evaluate([one.address, two.address], Walk, episodes=12, base_seed=5, workers=2)
    assert outcomes(spread) == outcomes(evaluate(Batched, Walk, episodes=12, base_seed=5))


def test_an_instance_cannot_go_to_another_process():
    with pytest.raises(InvalidSpec, match="instance"):
        evaluate(Batched(), Walk, episodes=2, workers=2, fleet=FleetSettings(model_workers=2))


def test_an_episode_whose_fault_ended_the_run_is_played_again(tmp_path):
    broken = {"seeds": range(1, 7), "run_dir": tmp_path}

    def fails_on_four(observation):
        raise RuntimeError("the checkpoint is of another shape")

    fails_on_four.__qualname__ = zero.__qualname__
    with pytest.raises(rollmesh.ModelFailed) as caught:
        evaluate(fails_on_four, Walk, **broken)
    assert caught.value.result is not None
    assert (caught.value.result.num_errors, caught.value.result.num_not_run) == (0, 6)
    mended = evaluate(zero, Walk, **broken)
    assert (len(mended.episodes), mended.num_errors) == (6, 0)


# ------------------------------------------------------- faults of a model under `continue` (R29)


class GivesUp:
    """A model that raises at its third predict, or once it is mended does not."""

    def __init__(self, *, is_mended=False):
        self.left = None if is_mended else 3

    def __call__(self, observation):
        del observation
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("out of memory")
        return 0


@pytest.mark.parametrize("workers", [None, 1])
def test_r29_a_model_that_raises_ends_the_run_and_the_error_names_the_way_out(tmp_path, workers):
    """Without workers too the episodes that are left are played by the same call again."""
    given = {"seeds": [4, 1, 2], "workers": workers, "run_dir": tmp_path / "run"}
    with pytest.raises(rollmesh.ModelFailed, match="out of memory") as caught:
        evaluate(GivesUp(), Walk, on_error="continue", **given)
    first, hint, *_ = str(caught.value).splitlines()
    assert "out of memory" in first
    assert "for faults of envs" in hint
    assert "start the same run again" in hint
    assert "Traceback" in str(caught.value)
    assert caught.value.result.stopped == first
    assert [e.error for e in caught.value.result.episodes] == [None]
    assert "accept_changes=True" in hint
    with pytest.raises(RunChanged, match="model: attribute left is another"):
        evaluate(GivesUp(is_mended=True), Walk, on_error="continue", **given)
    given["accept_changes"] = True
    result = evaluate(GivesUp(is_mended=True), Walk, on_error="continue", **given)
    assert [e.error for e in result.episodes] == [None] * 3
    assert result.resumed == 1


def test_r29_without_a_folder_the_error_of_a_model_names_run_dir():
    with pytest.raises(rollmesh.ModelFailed, match=r"kept run \(run_dir="):
        evaluate(GivesUp(), Walk, seeds=[4, 1, 2], on_error="continue")


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("on_error", ["raise", "continue"])
def test_what_was_played_when_a_model_fails_counts_as_not_run(tmp_path, is_kept, on_error):
    """An exception of the policy spoils no rate as a fault of the env does; the error names it."""
    kept = {"run_dir": tmp_path} if is_kept else {}
    with pytest.raises(rollmesh.ModelFailed, match="seed 1") as caught:
        evaluate(GivesUp(), Walk, seeds=[4, 1, 2], on_error=on_error, **kept)
    result = caught.value.result
    assert (len(result.episodes), result.num_errors, result.num_not_run) == (1, 0, 2)
    assert result.success_bounds == (1.0, 1.0)
    assert caught.value.episode_id


def test_r29_errors_of_envs_and_of_runs_that_raise_say_nothing_of_the_model():
    with pytest.raises(rollmesh.ModelFailed) as caught:
        evaluate(GivesUp(), Walk, seeds=[4, 1, 2])
    assert "faults of envs" not in str(caught.value)
    with pytest.raises(rollmesh.EnvFailed) as failed:
        evaluate(lambda seen: 0, Walk(fail_on=2), seeds=[2], on_error="continue")
    assert "faults of envs" not in str(failed.value)
