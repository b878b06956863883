"""What is wrong with a run is said before its first episode."""

from __future__ import annotations

import pytest

import rollmesh
from rollmesh import Hooks, Plan, Task, evaluate
from rollmesh.errors import InvalidSpec, RouteError
from tests.unit.fleet_toys import WALKER, Walker, policy


class Counted(Hooks):
    def __init__(self) -> None:
        self.episodes = 0

    def episode_started(self, event) -> None:
        self.episodes += 1


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("CartPole-v9", "Gymnasium cannot make 'CartPole-v9'"),
        ("tests.unit.nowhere:Walker", "there is no module 'tests.unit.nowhere'"),
        ("tests.unit.fleet_toys:Wlaker", "did you mean"),
    ],
)
def test_a_mistyped_env_of_a_later_task_is_refused_before_any_episode(
    tmp_path, target, reason, workers
):
    def plan_of(env):
        good = Task(name="good", env=WALKER, episodes=1)
        return Plan(seed=3, tasks=(good, Task(name="later", env=env, episodes=1)))

    counted = Counted()
    with pytest.raises(InvalidSpec) as caught:
        evaluate(policy, plan=plan_of(target), workers=workers, run_dir=tmp_path, hooks=counted)
    assert str(caught.value).startswith("env: of task 'later': ")
    assert reason in str(caught.value)
    assert counted.episodes == 0
    if workers is None:  # the plan may be corrected
        good = plan_of(WALKER)
        assert len(evaluate(policy, plan=good, run_dir=tmp_path).episodes) == 2


def test_arguments_that_a_later_env_does_not_take_are_refused_before_any_episode():
    later = Task(name="later", env_kwargs={"nmae": "e"}, episodes=1)
    plan = Plan(seed=3, tasks=(Task(name="good", episodes=1), later))
    with pytest.raises(InvalidSpec, match=r"^env_kwargs: of task 'later': Walker takes no 'nmae'"):
        evaluate(policy, Walker, plan=plan)


@pytest.mark.parametrize("workers", [None, 2])
def test_a_task_that_names_a_served_env_is_told_where_the_address_goes(workers):
    with rollmesh.EnvServer(Walker, "rollmesh+unix://") as server:
        later = Task(name="later", env=server.address, episodes=1)
        tasks = (Task(name="good", env=WALKER, episodes=1), later)
        told = r"^env: of task 'later': \S+ is the address of a served env.*env of the run$"
        with pytest.raises(InvalidSpec, match=told):
            evaluate(policy, plan=Plan(seed=3, tasks=tasks), workers=workers)
        there = Plan(seed=3, tasks=(Task(name="later", episodes=1),))
        assert len(evaluate(policy, server.address, plan=there).episodes) == 1


def test_workers_for_a_served_env_are_told_what_to_give_instead(caplog):
    with rollmesh.EnvServer(Walker, "rollmesh+unix://") as server:
        one = evaluate(policy, server.address, episodes=2, workers=2)
        (said,) = [r.getMessage() for r in caplog.records if "no worker" in r.getMessage()]
        several = evaluate(policy, server.address, episodes=2, num_envs=2)
    assert "give --num-envs N (num_envs=N) for N sessions" in said
    assert (one.num_envs, several.num_envs) == (1, 2)


def test_a_worker_that_dies_looking_for_an_env_refuses_nothing(tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    good = Task(name="good", env=WALKER, episodes=1)
    plan = Plan(seed=3, tasks=(good, Task(name="deadly", env="deadly:make", episodes=1)))
    with pytest.raises(RouteError) as caught:
        evaluate(policy, plan=plan)
    assert not isinstance(caught.value, InvalidSpec)
    assert [one.error for one in caught.value.result.tasks["good"].episodes] == [None]
