"""The ledger of a run: what is kept beside episodes, who is told, what a rule decided."""

from __future__ import annotations

import threading

from rollmesh import Plan, Task, evaluate, ledger
from rollmesh.results.result import EvalResult
from rollmesh.runs.reading import list_runs, read_run
from rollmesh.runtime.hooks import Hooks
from tests.toys import Notes
from tests.unit.test_running import Walk, zero

WALKS = "tests.unit.test_running"


def test_a_seed_that_is_taken_over_is_not_called_drawn(tmp_path):
    first, again = Notes(), Notes()
    evaluate(zero, Walk, episodes=2, run_dir=tmp_path, hooks=first)
    evaluate(zero, Walk, episodes=2, run_dir=tmp_path, hooks=again)
    told = [e.message for notes in (first, again) for e in notes.of("log")]
    seeds = [message for message in told if message.startswith("plan seed")]
    assert ["drawn" in message for message in seeds] == [True, False]


def test_a_stored_result_is_the_one_that_was_returned(tmp_path):
    envs = {"list": [Walk(), Walk(), Walk()], "name": f"{WALKS}:Walk", "class": Walk}
    for place, env in envs.items():
        result = evaluate(zero, env, episodes=4, base_seed=5, run_dir=tmp_path / place)
        stored = read_run(tmp_path / place).result
        assert (stored.env, stored.num_envs) == (result.env, result.num_envs)
        again = evaluate(zero, env, episodes=4, base_seed=5, run_dir=tmp_path / place)
        assert (again.env, again.num_envs) == (result.env, result.num_envs)
        (glance,) = [one for one in list_runs(tmp_path) if one.folder.name == place]
        assert glance.env == result.env == "Walk"
    assert read_run(tmp_path / "list").result.num_envs == 3


def test_a_rule_that_stopped_a_run_gives_its_interval(tmp_path):
    folder = tmp_path / "run"
    arguments = {"episodes": 400, "base_seed": 5, "stop_when": "width<0.4", "run_dir": folder}
    result = evaluate(zero, Walk, **arguments)
    assert result.decision is not None
    assert result.stopped == result.decision.reason
    assert result.success_interval == result.decision.interval
    counts = f"{result.decision.successes} of {result.decision.n}"
    assert f"{counts} episodes, decided by width<0.4" in repr(result)
    assert result.success_counts == (result.decision.successes, result.decision.n)
    assert "sequential Clopper-Pearson" in repr(result)
    stored = read_run(folder).result
    assert stored.decision == result.decision
    (glance,) = list_runs(tmp_path)
    assert glance.decision == result.decision
    assert EvalResult.from_json(stored.to_json()).decision == result.decision
    again = evaluate(zero, Walk, **arguments)
    assert again.decision == result.decision
    del arguments["stop_when"]
    whole = evaluate(zero, Walk, **arguments)
    assert (whole.decision, len(whole.episodes)) == (None, 400)
    assert read_run(folder).result.decision is None


class Noisy:
    """A model that is told how noisy it is to be."""

    def __init__(self, eps: float = 0.0) -> None:
        self.eps = eps

    def predict(self, observation) -> int:
        del observation
        return 0


def test_a_result_knows_what_its_model_was_built_with(tmp_path):
    for kept in ({}, {"run_dir": tmp_path}):
        given = {"model_kwargs": {"eps": 0.7}, **kept}
        result = evaluate(f"{__name__}:Noisy", Walk, episodes=2, base_seed=5, **given)
        assert result.model_called == f"{__name__}:Noisy(eps=0.7)"
        assert EvalResult.from_json(result.to_json()).model_called == result.model_called
    assert read_run(tmp_path).result.model_called == result.model_called


class Stuck(Hooks):
    """Does not come back from the first episodes that it is told of."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.told: list[int] = []

    def on_episodes_stored(self, event) -> None:
        self.told += [episode.index for episode in event.episodes]
        if event.episodes:
            assert self.may_go_on.wait(60)


def test_p10_a_hook_that_hangs_when_told_of_stored_episodes_holds_up_no_commit(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(ledger, "TOLD_S", 0.1)
    hook = Stuck()
    result = evaluate(zero, Walk, episodes=40, base_seed=5, run_dir=tmp_path, hooks=hook)
    assert len(read_run(tmp_path).result.episodes) == len(result.episodes) == 40
    assert hook.told
    assert "hook_hangs event=on_episodes_stored" in caplog.text
    hook.may_go_on.set()


def test_a_suite_of_several_envs_bears_all_their_names(tmp_path):
    envs = f"{WALKS}:Walk", f"{WALKS}:Stroll"
    tasks = tuple(Task(name=env, env=env, episodes=1) for env in envs)
    result = evaluate(zero, plan=Plan(tasks=tasks), workers=1, run_dir=tmp_path)
    assert result.env == read_run(tmp_path).result.env == ", ".join(envs)
