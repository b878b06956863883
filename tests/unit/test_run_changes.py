"""A kept run whose model or env is another under the same name: refused, or accepted and noted."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import gymnasium as gym
import pytest

import rollmesh
from rollmesh import evaluate, ledger
from rollmesh.cli import exit_codes, main
from rollmesh.errors import InvalidSpec, RunChanged
from rollmesh.runs.reading import read_run
from rollmesh.runtime.cancel import CancelToken
from tests.unit.test_running import StopAfter, Walk, zero


class Gain(rollmesh.Model):
    """Counts what it was asked."""

    def __init__(self, gain: float) -> None:
        self.gain, self.asked = gain, 0

    def predict(self, observation):
        self.asked += 1
        return int(observation[0] > self.gain)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (lambda: Gain(0.5), lambda: Gain(-0.5), "model: attribute gain is another than in earlier"),
        (lambda: lambda _: 0, lambda: lambda _: 1, "model: its code is another than in earlier"),
    ],
)
def test_a_model_of_the_same_name_that_is_another_is_refused(tmp_path, first, second, words):
    given = {"episodes": 4, "base_seed": 1, "run_dir": tmp_path}
    evaluate(first(), Walk, **given)
    assert evaluate(first(), Walk, **given).resumed == 4
    with pytest.raises(RunChanged, match=words) as caught:
        evaluate(second(), Walk, **given)
    assert caught.value.can_be_accepted
    assert "accept_changes=True" in str(caught.value)
    assert "->" not in str(caught.value)


def test_an_env_of_the_same_name_that_is_another_is_refused(tmp_path):
    def make(steps):
        return lambda: gym.wrappers.TimeLimit(Walk(), steps)

    for place, built in (("factory", make), ("instance", lambda steps: make(steps)())):
        given = {"episodes": 4, "base_seed": 1, "run_dir": tmp_path / place}
        evaluate(zero, built(20), **given)
        assert evaluate(zero, built(20), **given).resumed == 4
        with pytest.raises(RunChanged, match=r"env: .* than in earlier starts"):
            evaluate(zero, built(30), **given)


def test_a_policy_that_was_trained_meanwhile_is_refused(tmp_path):
    sb3 = pytest.importorskip("stable_baselines3")
    model = sb3.PPO("MlpPolicy", "CartPole-v1", device="cpu", seed=1, n_steps=32, batch_size=32)
    given = {"episodes": 2, "base_seed": 1, "run_dir": tmp_path, "max_episode_steps": 5}
    evaluate(model, "CartPole-v1", **given)
    assert evaluate(model, "CartPole-v1", **given).resumed == 2
    model.learn(32)
    with pytest.raises(RunChanged, match="model: its parameters are others than in earlier"):
        evaluate(model, "CartPole-v1", **given)


def test_a_policy_that_moves_by_playing_goes_on_in_its_own_process_and_in_another(tmp_path):
    given = {"episodes": 6, "base_seed": 5, "run_dir": tmp_path}
    model, token = Gain(0.5), CancelToken()
    with pytest.raises(rollmesh.RouteCancelled):
        evaluate(model, Walk, cancel=token, hooks=StopAfter(token, 2), **given)
    asked = model.asked
    assert asked > 0
    token = CancelToken()
    with pytest.raises(rollmesh.RouteCancelled):
        evaluate(model, Walk, cancel=token, hooks=StopAfter(token, 2), **given)
    assert model.asked > asked
    result = evaluate(Gain(0.5), Walk, **given)
    assert (result.resumed, result.num_not_run) == (4, 0)


def test_a_policy_that_moves_by_playing_goes_on_over_several_folders(tmp_path):
    given = {"episodes": 3, "base_seed": 5}

    def loop(model, change=lambda _: None):
        for folder in ("a", "b", "c"):
            yield evaluate(model, Walk, run_dir=tmp_path / folder, **given).resumed
            change(model)

    model = Gain(0.5)
    assert list(loop(model)) == [0, 0, 0]
    assert list(loop(Gain(0.5))) == [3, 3, 3], "as in a new process"
    assert list(loop(model)) == [3, 3, 3], "as it was left"

    def reset(model):
        model.gain = 0.6

    again = loop(Gain(0.5), reset)
    assert next(again) == 3
    with pytest.raises(RunChanged, match="model: attribute gain is another"):
        next(again)
    with pytest.raises(RunChanged, match="model: attribute gain is another"):
        evaluate(Gain(0.6), Walk, run_dir=tmp_path / "c", **given)


def test_a_policy_that_moves_goes_on_in_the_second_folder_that_was_interrupted(tmp_path):
    given = {"episodes": 6, "base_seed": 5}
    model, token = Gain(0.5), CancelToken()
    evaluate(model, Walk, run_dir=tmp_path / "a", **given)
    with pytest.raises(rollmesh.RouteCancelled):
        evaluate(
            model, Walk, run_dir=tmp_path / "b", cancel=token, hooks=StopAfter(token, 2), **given
        )
    result = evaluate(Gain(0.5), Walk, run_dir=tmp_path / "b", **given)
    assert (result.resumed, result.num_not_run) == (2, 0)


def test_the_look_at_an_interrupted_model_is_given_up_soon(monkeypatch):
    begun, may_end = threading.Event(), threading.Event()

    def look(journal):
        begun.set()
        may_end.wait(60)

    monkeypatch.setattr(ledger, "LOOK_S", 0.01)
    try:
        one = SimpleNamespace(journal=object(), _look_what_moved=look)
        ledger.Ledger.note_moved(one, is_sound=False)
        assert begun.wait(10)
    finally:
        may_end.set()


def test_an_accepted_change_is_noted_with_how_much_was_played_before(tmp_path, caplog):
    given = {"episodes": 6, "base_seed": 5, "run_dir": tmp_path}
    token = CancelToken()
    with pytest.raises(rollmesh.RouteCancelled):
        evaluate(Gain(0.5), Walk, cancel=token, hooks=StopAfter(token, 2), **given)
    result = evaluate(Gain(0.6), Walk, accept_changes=True, **given)
    assert (result.resumed, result.num_not_run) == (2, 0)
    words = "model: attribute gain is another than in earlier starts"
    assert read_run(tmp_path).facts["accepted"] == {"after": 2, "changes": [words]}
    assert f"after_episodes=2 changes={words}" in caplog.text
    assert evaluate(Gain(0.6), Walk, **given).resumed == 6, "now it is that one"
    with pytest.raises(RunChanged, match="gain"):
        evaluate(Gain(0.5), Walk, **given)


def test_accepting_is_for_models_and_envs_alone(tmp_path):
    evaluate(zero, Walk, episodes=4, base_seed=1, run_dir=tmp_path)
    with pytest.raises(RunChanged, match="4 -> 5") as caught:
        evaluate(zero, Walk, episodes=5, base_seed=1, run_dir=tmp_path, accept_changes=True)
    assert not caught.value.can_be_accepted
    with pytest.raises(InvalidSpec, match="run_dir"):
        evaluate(zero, Walk, episodes=5, accept_changes=True)


def test_where_no_episode_has_ended_another_model_begins(tmp_path):
    def fails(_):
        raise RuntimeError("not yet")

    with pytest.raises(rollmesh.ModelFailed):
        evaluate(fails, Walk, episodes=4, base_seed=1, run_dir=tmp_path)
    mended = lambda _: 0  # noqa: E731
    mended.__qualname__ = fails.__qualname__
    assert evaluate(mended, Walk, episodes=4, base_seed=1, run_dir=tmp_path).num_not_run == 0
    assert not (tmp_path / "run-1.sqlite").exists()


# --------------------------------------------------------------------------- the command line

POLICY = """
def act(observation):
    return {}
"""


class Breaks(Walk):
    """Fails while there is a file of that name."""

    def step(self, action):
        with open("broken") as file:  # noqa: PTH123 - relative, as an env would
            is_broken = file.read() == "yes"
        if is_broken and self.seed % 2:
            raise RuntimeError("out of order")
        return super().step(action)


@pytest.fixture
def said(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken").write_text("yes")
    (tmp_path / "edited_policy.py").write_text(POLICY.format(0))

    def say(*words):
        code = main(list(words))
        out, err = capfd.readouterr()
        return code, out, err

    yield say
    sys.modules.pop("edited_policy", None)


def test_an_edited_model_is_refused_until_the_change_is_accepted(said, tmp_path):
    words = ("eval", f"{__name__}:Breaks", "-m", "edited_policy:act", "--run-dir", "r", "-n", "6")
    words = (*words, "--seed", "1", "--on-error", "continue")
    assert said(*words)[0] == exit_codes.SPOILED_EPISODES
    errored = read_run("r").result.num_errors
    assert 0 < errored < 6
    (tmp_path / "edited_policy.py").write_text("# another comment\n" + POLICY.format(0))
    assert said(*words)[0] == exit_codes.SPOILED_EPISODES, "a comment is no change"
    (tmp_path / "edited_policy.py").write_text(POLICY.format(1))
    (tmp_path / "broken").write_text("no")
    for _ in range(2):  # what a refused retry has set aside is there for the next one
        code, out, err = said("retry", "r")
        assert (code, out) == (exit_codes.FAILED, "")
        assert "model: its code is another than in earlier starts" in err
        assert "--accept-changes" in err
    code, _, err = said("retry", "r", "--accept-changes")
    assert code == exit_codes.OK
    assert f"after_episodes={6 - errored}" in err
    assert len(read_run("r").result.episodes) == 6
    assert f"changed after {6 - errored} episodes, and accepted: model: its code" in said(
        "show", "r"
    )[1]  # fmt: skip
    assert said("retry", "r")[2] == "no episode of r errored\n"


def test_an_unfinished_run_of_an_edited_model_goes_on_where_that_is_accepted(said, tmp_path):
    words = ("eval", f"{__name__}:Breaks", "-m", "edited_policy:act", "--run-dir", "r", "-n", "6")
    assert said(*words, "--seed", "1")[0] == exit_codes.FAILED
    (tmp_path / "broken").write_text("no")
    played = len(read_run("r").result.episodes)
    assert 0 < played < 6
    (tmp_path / "edited_policy.py").write_text(POLICY.format(1))
    assert said(*words, "--seed", "1")[0] == exit_codes.FAILED
    assert said(*words, "--seed", "1", "--accept-changes")[0] == exit_codes.OK
    assert read_run("r").facts["accepted"]["after"] == played
    assert said(*words, "--seed", "1", "--accept-changes", "--no-journal")[0] == 2
