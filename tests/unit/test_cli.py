"""The command line: results on stdout, progress on stderr, exit codes, signals."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollmesh import __version__
from rollmesh.cli import exit_codes, main
from rollmesh.cli.interrupts import Interrupts
from rollmesh.runtime.cancel import CancelToken

MODULE = """
import os, sys, time
import gymnasium as gym
import numpy as np


class Env(gym.Env):
    observation_space = gym.spaces.Box(-1e6, 1e6, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=3, breaks_on=-1, noisy=False, nap_s=0.0, hang_on=-1):
        self.length, self.breaks_on, self.noisy = length, breaks_on, noisy
        self.nap_s, self.hang_on = nap_s, hang_on
        self.resets = 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        self.resets += 1
        if self.noisy:
            print("simulator banner {")
            os.write(1, b"from C \\x00\\n")
            os.chdir("/")
            sys.stdout = None
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        if self.resets == self.breaks_on:
            raise RuntimeError("the gripper fell off")
        if self.resets == self.hang_on:
            time.sleep(60)
        time.sleep(self.nap_s)
        ended = self.t >= self.length
        return np.zeros(1, np.float32), 1.0, ended, False, {"is_success": ended}


class BadFlags(Env):
    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, "yes", False, info


def zero(observation):
    return 0


def wrong(observation):
    return [0.5, 0.5]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module of its own name, so that tests do not share it."""
    name = f"mine_{abs(hash(tmp_path.name)) % 10**8}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / name
    sys.modules.pop(name, None)


def run_eval(here: Path, *more: str, env: str = "Env", model: str = "zero") -> int:
    return main(["eval", f"{here.name}:{env}", "--model", f"{here.name}:{model}", *more])


# ------------------------------------------------------------------------------------ eval


def test_a_good_run_prints_the_result_and_exits_0(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_eval(here, "--episodes", "4", "--seed", "7", "--num-envs", "2") == exit_codes.OK
    out, err = capfd.readouterr()
    assert out.startswith("EvalResult  ")
    assert "4 episodes, 2 lanes" in out
    assert "plan seed     7" in out
    assert "4/4 episodes  mean return 3.00  success 1.000" in err
    assert "plan seed 7" in err


def test_json_is_all_that_is_on_stdout_whatever_the_env_does(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kwargs = '{"noisy": true, "length": 2}'
    assert run_eval(here, "-n", "3", "--json", "--env-kwargs", kwargs) == 0
    out, err = capfd.readouterr()
    table = json.loads(out)
    assert [e["steps"] for e in table["episodes"]] == [2, 2, 2]
    assert "from C" in err
    assert sys.stdout is not None


def test_a_drawn_plan_seed_is_shown_with_how_to_repeat(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_eval(here, "-n", "1") == 0
    out, err = capfd.readouterr()
    assert "drawn; base_seed=" in err
    assert "plan seed" in out


def test_an_env_that_breaks_keeps_what_had_ended_and_exits_1(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_eval(here, "-n", "3", "--env-kwargs", '{"breaks_on": 3}') == exit_codes.FAILED
    out, err = capfd.readouterr()
    assert "2 of 3 episodes (stopped: " in out
    assert "mean length   3.000" in out
    assert "error: EnvFailed" in err
    assert "the gripper fell off" in err


def test_a_run_that_is_not_kept_is_not_said_to_go_on(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here.parent / "runs").write_text("a file")
    monkeypatch.setenv("ROLLMESH_RUNS", str(here.parent / "runs"))
    assert run_eval(here, "-n", "1") == 0
    err = capfd.readouterr()[1]
    (said,) = [line for line in err.splitlines() if "this run is not kept" in line]
    assert said.endswith("start the same command again: that one is kept")
    assert "goes on from there" not in err


def test_a_mistyped_env_of_a_later_task_exits_2(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tasks = [
        {"name": name, "env": f"{here.name}:{env}", "episodes": 1}
        for name, env in (("good", "Env"), ("later", "Evn"))
    ]
    plan = here.parent / "plan.json"
    plan.write_text(json.dumps({"seed": 1, "tasks": tasks}))
    code = main(["eval", "--model", f"{here.name}:zero", "--plan", str(plan)])
    assert code == exit_codes.BAD_ARGUMENTS
    err = capfd.readouterr()[1]
    assert "error: env: of task 'later': " in err
    assert "has no attribute 'Evn'; did you mean 'Env'" in err


@pytest.mark.parametrize("option", ["--seed", "--episodes"])
def test_what_contradicts_a_plan_is_named_as_it_was_typed(
    here: Path, capfd: pytest.CaptureFixture[str], option: str
) -> None:
    plan = here.parent / "plan.json"
    plan.write_text(json.dumps({"seed": 1, "tasks": [{"name": "a", "episodes": 1}]}))
    words = (f"{here.name}:Env", "--model", f"{here.name}:zero", "--plan", str(plan))
    assert main(["eval", *words, option, "3"]) == exit_codes.BAD_ARGUMENTS
    err = capfd.readouterr()[1]
    assert f"error: {option}: contradicts --plan, which says which episodes there are" in err


def test_errored_episodes_exit_3(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = run_eval(here, "-n", "3", "--env-kwargs", '{"breaks_on": 2}', "--on-error", "continue")
    assert code == exit_codes.SPOILED_EPISODES
    out, err = capfd.readouterr()
    assert "errored" in out
    assert "errored: " in err


def test_a_rule_about_success_that_the_env_never_feeds_is_said(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("-n", "2", "--no-journal", "--stop-when", "width<0.5")
    assert main(["eval", "CartPole-v1", "-m", "random", *words]) == exit_codes.OK
    assert "--stop-when could not end the run" in capfd.readouterr().err
    assert run_eval(here, *words) == exit_codes.OK
    assert "--stop-when" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--episodes", "2", "--env-kwargs", "[1]"], "JSON object"),
        (["--episodes", "2", "--env-kwargs", "{length: 3}"], "JSON object"),
        (["--episodes", "2", "--env-kwargs", '{"size": 3}'], "takes no 'size'"),
        (
            ["--episodes", "2", "--model-kwargs", '{"size": 3}'],
            "zero takes no 'size'",
        ),
        (["--episodes", "2", "--limits", '{"stepMs": 3}'], "unknown limit"),
        (["--episodes", "-2"], "0 or more"),
        (["--episodes", "2", "--on-error", "ignore"], "ignore"),
        (["--episodes", "two"], "--episodes: wants a whole number, got 'two'"),
        (["--episodes", "2.5"], "wants a whole number, got '2.5'"),
        (["--episodes", "2", "--seed", "1.5"], "--seed: wants a whole number"),
        (["--episodes", "2", "--limits", '{"envStepTimeoutMs": -1}'], "more than 0 milliseconds"),
        (["--episodes", "2", "--workers", "2.5"], "wants a whole number or auto, got '2.5'"),
        (["--episodes", "2", "--workers", "many"], "wants a whole number or auto, got 'many'"),
        (["--episodes"], "--episodes requires an argument"),
        (["--episods", "3"], "Unknown option: --episods. Did you mean --episodes?"),
        ([], "error: --episodes is missing.\nsee rollmesh eval --help"),
    ],
)
def test_bad_arguments_exit_2_with_a_sentence(
    here: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run_eval(here, *arguments) == exit_codes.BAD_ARGUMENTS
    out, err = capfd.readouterr()
    assert out == ""
    assert words in err


def test_an_unknown_target_exits_2(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_eval(here, "-n", "1", env="Nope") == exit_codes.BAD_ARGUMENTS
    assert "Nope" in capfd.readouterr().err
    assert main(["eval", "NoSuchEnv-v0", "-m", "random", "-n", "1"]) == exit_codes.BAD_ARGUMENTS


def test_an_unknown_command_exits_2_and_version_exits_0(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["bogus"]) == exit_codes.BAD_ARGUMENTS
    assert main(["--version"]) == exit_codes.OK
    assert __version__ in capfd.readouterr().out


# ----------------------------------------------------------------------------------- check


def test_check_env_exits_0_or_1_with_plain_sentences(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "env", f"{here.name}:Env"]) == exit_codes.OK
    assert "passed" in capfd.readouterr().out
    assert main(["check", "env", f"{here.name}:BadFlags"]) == exit_codes.FAILED
    assert "FAIL  flags: terminated is" in capfd.readouterr().out
    assert main(["check", "env", f"{here.name}:Nope"]) == exit_codes.BAD_ARGUMENTS


def test_check_model_exits_0_or_1_with_plain_sentences(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    env = ["--env", f"{here.name}:Env"]
    assert main(["check", "model", f"{here.name}:zero", *env]) == exit_codes.OK
    assert main(["check", "model", f"{here.name}:wrong", *env]) == exit_codes.FAILED
    assert "FAIL  action" in capfd.readouterr().out


# --------------------------------------------------------------------------------- signals


def start(here: Path, *more: str) -> subprocess.Popen[str]:
    code = "import sys; from rollmesh.cli import main; sys.exit(main())"
    arguments = ["eval", f"{here.name}:Env", "-m", f"{here.name}:zero", *more]
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=here.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_first_episode(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if re.match(r"[1-9]\d*/\d+ episodes", line):
            return
    pytest.fail("no episode ended")


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, exit_codes.INTERRUPTED), (signal.SIGTERM, exit_codes.TERMINATED)],
)
def test_a_signal_stops_the_run_and_prints_what_had_ended(
    here: Path, number: signal.Signals, code: int
) -> None:
    process = start(here, "-n", "100000", "--env-kwargs", '{"nap_s": 0.001}', "--json")
    wait_for_first_episode(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code
    table = json.loads(out)
    assert 1 <= len(table["episodes"]) < 100000
    assert table["stopped"] in {"interrupted", "terminated"}
    assert "Traceback" not in err


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_ends_a_hung_env_and_keeps_what_had_ended(here: Path) -> None:
    process = start(here, "-n", "10", "--env-kwargs", '{"hang_on": 2}', "--json")
    wait_for_first_episode(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == exit_codes.INTERRUPTED
    assert len([e for e in json.loads(out)["episodes"] if e["error"] is None]) == 1
    assert "Traceback" not in err


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_what_a_second_ctrl_c_leaves_knows_what_its_episodes_were_played_under(here: Path) -> None:
    given = {"hang_on": 2, "length": 2}
    options = ["--env-kwargs", json.dumps(given), "--max-episode-steps", "9", "--workers", "1"]
    process = start(here, "-n", "3", *options, "--json", "--no-journal")
    wait_for_first_episode(process)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert any("once more" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == exit_codes.INTERRUPTED
    table = json.loads(out)
    assert len(table["episodes"]) == 1
    assert table["conditions"] == {
        "env": f"{here.name}:Env",
        "settings": {
            "env_kwargs": {name: str(value) for name, value in given.items()},
            "max_episode_steps": 9,
        },
        "tasks": {"": {}},
    }


class GaveUp(Exception):
    pass


def _give_up(code: int) -> None:
    raise GaveUp(code)


def test_a_second_signal_gives_up_with_the_code_of_the_first() -> None:
    cancel = CancelToken()
    interrupts = Interrupts(cancel, _give_up)
    interrupts.session_started(None)
    interrupts.on_signal(signal.SIGINT, None)
    assert cancel.reason == "interrupted"
    with pytest.raises(GaveUp, match="130"):
        interrupts.on_signal(signal.SIGTERM, None)


def test_a_signal_while_things_are_built_interrupts_the_wait() -> None:
    cancel = CancelToken()
    interrupts = Interrupts(cancel, _give_up)
    with pytest.raises(KeyboardInterrupt):
        interrupts.on_signal(signal.SIGTERM, None)
    assert interrupts.exit_code == exit_codes.TERMINATED


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_fork_does_not_cancel_the_run_or_print_its_result(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = CancelToken()
    interrupts = Interrupts(cancel, _give_up)
    sent: list[int] = []
    handlers: list[Any] = []
    monkeypatch.setattr(os, "getpid", lambda: -1)  # a fork has another one
    monkeypatch.setattr(os, "kill", lambda _process, number: sent.append(number))
    monkeypatch.setattr(signal, "signal", lambda _number, handler: handlers.append(handler))
    for _ in range(2):
        with contextlib.suppress(KeyboardInterrupt):
            interrupts.on_signal(number, None)
    assert cancel.reason is None
    assert interrupts.exit_code is None
    assert sent == ([] if number == signal.SIGINT else [number, number])
    assert handlers[0] == (
        signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    )


def test_a_signal_while_the_result_is_printed_only_sets_the_code() -> None:
    interrupts = Interrupts(CancelToken(), _give_up)
    interrupts.is_printing = True
    interrupts.on_signal(signal.SIGINT, None)
    interrupts.on_signal(signal.SIGTERM, None)
    assert interrupts.exit_code == exit_codes.INTERRUPTED
