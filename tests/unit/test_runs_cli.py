"""`rollmesh runs`, `show`, `export` and `retry`: what they print, and their exit codes."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import gymnasium as gym
import pytest

from rollmesh.cli import exit_codes, main
from rollmesh.cli.retry_command import again
from rollmesh.events import MetricRow, TelemetrySnapshot
from rollmesh.results.stopping import StopRule
from rollmesh.runs.journal import Journal
from rollmesh.runs.reading import read_run
from rollmesh.runs.schema import DECISION_FACT
from tests.unit.runs_toys import StillClock, episode, identity

SNAPSHOT = TelemetrySnapshot(
    horizon="session",
    rows=(
        MetricRow(
            operation="model.predict", component="m", metric="rpc.total", kind="duration",
            count=1234, mean=50.0, p50=48.0, p95=60.0, p99=71.5, min=1.0, max=99.0,
        ),
    ),
)  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROLLMESH_RUNS", raising=False)
    return tmp_path


def make(name="a", *, count=4, errors=(), facts=None, clock=None):
    opened = Journal.open(
        f"runs/{name}", identity=identity(), facts=facts or {}, clock=clock or StillClock()
    )
    with opened as journal:
        for index in range(count):
            changes = {"task": "ab"[index % 2]}
            if index in errors:
                changes |= {"error": f"EnvFailed: stuck at {index}", "success": None}
            if index == 3:
                changes |= {"attempts": 3, "causes": ("SIGKILL", "SIGKILL")}
            journal.record(episode(index, **changes))
        journal.note_outcome(stopped="enough", elapsed_s=12.5, telemetry=SNAPSHOT)


def said(capfd, *words):
    code = main(list(words))
    out, err = capfd.readouterr()
    return code, out, err


def test_runs_are_listed_the_latest_first(capfd):
    make("old", clock=StillClock(1000.0))
    make("new", count=20, errors=(1,), clock=StillClock(2000.0))
    code, out, err = said(capfd, "runs")
    head, new, old = out.splitlines()
    assert (code, err) == (exit_codes.OK, "")
    assert head.split() == [
        "run",
        "status",
        "episodes",
        "success",
        "return",
        "last",
        "written",
        "env",
        "model",
    ]
    assert new.startswith("new  finished  20/20 (1 errored)  0.474 [0.273, 0.683]")
    assert old.startswith("old  stopped ")
    assert new.endswith("Toy-v0  toy:policy")


def test_runs_as_json(capfd):
    make("a", errors=(0,))
    (glance,) = json.loads(said(capfd, "runs", "runs", "--json")[1])
    assert glance["folder"].endswith("/runs/a")
    assert (glance["status"], glance["num_errors"]) == ("stopped", 1)
    assert glance["last_at"] == "2001-09-09T01:46:40.000Z"


def test_damaged_runs_are_in_the_list(capfd, home):
    make("a")
    (home / "runs" / "b").mkdir()
    (home / "runs" / "b" / "run.sqlite").write_text("no database" * 100)
    code, out, _ = said(capfd, "runs")
    assert code == exit_codes.OK
    assert "b    unreadable" in out
    assert "file is not a database" in out


def test_no_runs_and_no_folder(capfd, home):
    code, out, err = said(capfd, "runs")
    assert (code, out) == (exit_codes.FAILED, "")
    assert "No such file or directory" in err
    (home / "runs").mkdir()
    assert said(capfd, "runs") == (exit_codes.OK, "", "no runs in runs\n")


def test_show_has_tasks_causes_attempts_and_phases(capfd):
    make("a", count=6, errors=(2, 4))
    code, out, err = said(capfd, "show", "a")
    assert (code, err) == (exit_codes.OK, "")
    assert "a: toy:policy in Toy-v0\n" in out
    assert "  stopped (enough), 6 of 20 episodes, last written " in out
    assert ", 12.5 s of work\n" in out
    assert "  plan 0123456789abcdef, seed 7\n" in out
    lines = out.splitlines()
    (all_tasks,) = [line for line in lines if line.startswith("(all)")]
    assert all_tasks.split()[:4] == ["(all)", "6", "2", "0.750"]
    assert any(line.startswith("a  ") for line in lines)
    assert "    2  EnvFailed: stuck at 2  2, 4" in lines
    assert any(line.split() == ["2", "SIGKILL", "3"] for line in lines)
    assert any(line.split() == ["3", "b", "3", "finished"] for line in lines)
    (phase,) = [line for line in lines if line.startswith("model.predict")]
    assert phase.split() == ["model.predict", "1,234", "61.7", "48.000", "71.500", "99.0"]


def test_runs_and_show_give_the_rate_that_a_decision_is_of(capfd):
    decision = StopRule.parse("width<0.95").update(2, 2)
    facts = {DECISION_FACT: asdict(decision)}
    with Journal.open("runs/a", identity=identity(), facts=facts) as journal:
        for index in range(4):
            journal.record(episode(index, task="", success=index < 2))
    ends = f"[{decision.interval.low:.3f}, {decision.interval.high:.3f}]"
    assert f"1.000 {ends}" in said(capfd, "runs")[1]
    out = said(capfd, "show", "a")[1]
    (row,) = [line for line in out.splitlines() if line.startswith("(all)")]
    assert row.split()[1:5] == ["4", "1.000", *ends.split()]
    told = "  success is 2 of 2, decided by width<0.95; of all played 0.500, 2 of 4; 2 were played"
    assert told in out
    (task,) = json.loads(said(capfd, "show", "a", "--json")[1])["tasks"].values()
    assert (task["success_rate"], task["success_rate_of_all"]) == (1.0, 0.5)


def test_show_says_which_starts_its_durations_are_of(capfd):
    def line():
        return said(capfd, "show", "a")[1].splitlines()[-1]

    make("a", count=2)
    assert line().startswith("model.predict")
    make("a", count=0)
    assert line() == "  of all 2 starts; p50 and p99 of the one with most calls"
    with Journal.open("runs/a", identity=identity(), facts={}):
        pass
    assert line() == "  of 2 of 3 starts; p50 and p99 of the one with most calls"


def test_runs_and_show_tell_what_a_model_and_an_env_were_built_with(capfd):
    given = {"eps": "0.8", "token": '"hush"'}
    settings = {"model_kwargs": given, "env_kwargs": {"slow": '"a"', "token": '"hush"'}}
    with Journal.open("runs/a", identity=identity(settings=settings), facts={}) as journal:
        journal.record(episode(0))
    listed, shown = said(capfd, "runs")[1], said(capfd, "show", "a")[1]
    assert listed.rstrip().endswith("toy:policy(eps=0.8)")
    assert shown.startswith('a: toy:policy(eps=0.8) in Toy-v0(slow="a")\n')
    assert "hush" not in listed + shown + said(capfd, "runs", "--json")[1]
    table = json.loads(said(capfd, "show", "a", "--json")[1])
    assert (table["result"]["model"], table["result"]["model_kwargs"]) == (
        "toy:policy",
        {"eps": "0.8"},
    )


def test_show_takes_a_path_and_a_run_that_goes_on(capfd, home):
    with Journal.open(home / "else where", identity=identity(), facts={}) as journal:
        journal.record(episode(0))
        journal.flush()
        code, out, _ = said(capfd, "show", str(home / "else where"))
    assert code == exit_codes.OK
    assert "  running, 1 of 20 episodes" in out
    assert "Errored" not in out


def test_show_says_what_may_have_ended_a_run_without_a_word(capfd, home):
    journal = Journal.open("runs/live", identity=identity(), facts={})
    journal.record(episode(0))
    journal.flush()
    shutil.copytree(home / "runs" / "live", home / "runs" / "dead")
    journal.close()
    out = said(capfd, "show", "dead")[1]
    assert "  killed (it ended without a word: killed, or its disk was full), 1 of " in out


def test_show_as_json(capfd):
    make("a", errors=(1,))
    code, out, _ = said(capfd, "show", "a", "--json")
    table = json.loads(out)
    assert code == exit_codes.OK
    assert table["errors"][0]["text"] == "EnvFailed: stuck at 1"
    assert list(table["tasks"]) == ["a", "b"]


def test_many_causes_and_episodes_are_cut(capfd, home):
    with Journal.open(home / "runs" / "a", identity=identity(planned=None), facts={}) as journal:
        for index in range(40):
            kind = "abcdefghijklmn"[index % 14]
            journal.record(episode(index, error=f"Fault{kind}", attempts=2, causes=("SIGKILL",)))
    out = said(capfd, "show", "a")[1]
    assert "… 4 more causes" in out
    assert "… 30 more" in out
    assert "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …" in out


def test_retried_episodes_and_starts_are_told(capfd, home):
    make("a", errors=(1,))
    from rollmesh.runs.moving import retry_errored

    retry_errored(home / "runs" / "a")
    Journal.open("runs/a", identity=identity(), facts={}).close()
    out = said(capfd, "show", "a")[1]
    assert "  started 2 times, first " in out
    assert "  1 errored episode was set aside to be run again" in out


@pytest.mark.parametrize("command", ["show", "export", "retry"])
def test_a_run_that_is_not_there_is_named(capfd, command):
    more = ["-f", "csv"] if command == "export" else []
    code, out, err = said(capfd, command, "nowhere", *more)
    assert (code, out) == (exit_codes.FAILED, "")
    assert "runs/nowhere: holds no run" in err


def test_any_name_of_a_folder_is_a_name_and_a_path_is_none(capfd):
    make("HalfCheetah-v5.ppo")
    assert said(capfd, "show", "HalfCheetah-v5.ppo")[0] == exit_codes.OK
    assert "/x/HalfCheetah-v5.ppo: holds no run" in said(capfd, "show", "x/HalfCheetah-v5.ppo")[2]


@pytest.mark.parametrize("command", ["show", "export", "retry"])
def test_a_damaged_run_is_named(capfd, home, command):
    make("a")
    path = home / "runs" / "a" / "run.sqlite"
    path.write_bytes(path.read_bytes()[:5000])
    more = ["-f", "json"] if command == "export" else []
    code, out, err = said(capfd, command, "a", *more)
    assert (code, out) == (exit_codes.FAILED, "")
    assert "run.sqlite is damaged" in err


def test_export_writes_to_standard_output_or_a_file(capfd, home):
    make("a")
    code, out, err = said(capfd, "export", "a", "--format", "csv")
    assert (code, err) == (exit_codes.OK, "")
    assert len(list(csv.DictReader(io.StringIO(out)))) == 4
    assert said(capfd, "export", "a", "-f", "csv", "-o", "a.csv") == (
        exit_codes.OK,
        "",
        "wrote a.csv\n",
    )
    assert (home / "a.csv").read_text() == out
    assert json.loads(said(capfd, "export", "a", "-f", "json")[1])["status"] == "stopped"
    code, _, err = said(capfd, "export", "a", "-f", "csv", "-o", "nowhere/a.csv")
    assert code == exit_codes.FAILED
    assert (
        err == "error: cannot write nowhere/a.csv: No such file or directory; name a file with -o\n"
    )


def test_export_to_parquet_wants_a_file(capfd, home):
    make("a")
    code, _, err = said(capfd, "export", "a", "-f", "parquet")
    assert code == exit_codes.BAD_ARGUMENTS
    assert "name a file" in err
    assert said(capfd, "export", "a", "-f", "parquet", "-o", "a.parquet")[0] == exit_codes.OK
    assert (home / "a.parquet").read_bytes()[:4] == b"PAR1"


def test_export_without_pyarrow_names_the_extra(capfd, home, monkeypatch):
    make("a")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, err = said(capfd, "export", "a", "-f", "parquet", "-o", "a.parquet")
    assert code == exit_codes.BAD_ARGUMENTS
    assert "rollmesh[parquet]" in err


def test_export_to_a_place_that_is_not_there_is_an_error(capfd):
    make("a")
    code, _, err = said(capfd, "export", "a", "-f", "csv", "-o", "no/where.csv")
    assert code == exit_codes.FAILED
    assert "No such file or directory" in err


def test_retry_of_a_run_without_errors_does_nothing(capfd):
    make("a")
    assert said(capfd, "retry", "a") == (exit_codes.OK, "", "no episode of a errored\n")


def test_retry_of_a_run_that_no_command_started_says_so(capfd, home):
    make("a", errors=(1,))
    code, _, err = said(capfd, "retry", "a")
    assert code == exit_codes.BAD_ARGUMENTS
    assert "was not started by a command" in err
    assert read_run(home / "runs" / "a").result.num_errors == 1


def test_retry_wants_the_folder_that_the_command_was_started_in(capfd, home):
    make("a", errors=(1,), facts={"command": ["probe"], "working_folder": str(home / "gone")})
    code, _, err = said(capfd, "retry", "a")
    assert code == exit_codes.BAD_ARGUMENTS
    assert f"was started in {home / 'gone'}, which is gone" in err
    assert read_run(home / "runs" / "a").result.num_errors == 1


def test_retry_of_a_run_that_is_driven_is_refused(capfd, home):
    make("a", errors=(1,), facts={"command": ["probe"]})
    with Journal.open("runs/a", identity=identity(), facts={}):
        code, _, err = said(capfd, "retry", "a")
    assert code == exit_codes.FAILED
    assert f"process {os.getpid()} on " in err


def test_retry_sets_errored_episodes_aside_and_starts_the_command(capfd, home, monkeypatch):
    make("a", errors=(1, 2), facts={"command": ["export", "x"], "working_folder": str(home)})
    started = []
    monkeypatch.setattr(
        "rollmesh.cli.retry_command._main", lambda words: started.append(words) or 7
    )
    (home / "inner").mkdir()
    monkeypatch.chdir(home / "inner")
    code, _, err = said(capfd, "retry", "../runs/a")
    assert code == 7
    assert started == [["export", "x", "--run-dir", str(home / "runs" / "a")]]
    assert Path.cwd() == home
    assert "2 errored episodes of a will be run again" in err
    run = read_run(home / "runs" / "a")
    assert [e.index for e in run.retried] == [1, 2]
    assert sorted(e.index for e in run.result.episodes) == [0, 3]


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "x", "--run-dir", "old", "--new", "-n", "5"],
        ["eval", "--run-dir=old", "x", "-n", "5"],
        ["eval", "x", "-n", "5", "--new=true"],
        ["eval", "x", "-n", "5"],
    ],
)
def test_retry_goes_on_in_the_run_and_never_starts_over(words, tmp_path):
    assert again(words, tmp_path) == ["eval", "x", "-n", "5", "--run-dir", str(tmp_path)]


class Failing(gym.Env):
    """Its first step fails until there is a file `fixed`."""

    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        if not Path("fixed").exists():
            raise RuntimeError("out of order")
        return self.observation_space.sample(), 1.0, True, False, {}


def test_a_run_can_be_retried_again_and_again(capfd, home):
    words = ("eval", f"{__name__}:Failing", "-m", "random", "-n", "3", "--on-error", "continue")
    assert said(capfd, *words, "--run-dir", "r")[0] == exit_codes.SPOILED_EPISODES
    for _ in range(2):
        assert said(capfd, "retry", "r")[0] == exit_codes.SPOILED_EPISODES
    (home / "fixed").touch()
    assert said(capfd, "retry", "r")[0] == exit_codes.OK
    run = read_run(home / "r")
    assert (len(run.retried), run.result.num_errors, len(run.starts)) == (9, 0, 4)
    assert {start.facts["command"][0] for start in run.starts} == {"eval"}


def test_a_run_that_is_refused_prints_no_result(capfd, home):
    (home / "fixed").touch()
    words = ("eval", f"{__name__}:Failing", "-m", "random", "--run-dir", "r", "-n")
    said(capfd, *words, "2")
    code, out, err = said(capfd, *words, "3")
    assert (code, out) == (exit_codes.FAILED, "")
    assert "RunChanged" in err
    assert "2 -> 3" in err


def test_runs_are_looked_for_where_they_are_kept(capfd, home, monkeypatch):
    make("a")
    (home / "runs").rename(home / "elsewhere")
    monkeypatch.setenv("ROLLMESH_RUNS", str(home / "elsewhere"))
    assert "toy:policy" in said(capfd, "runs")[1]
    assert said(capfd, "show", "a")[0] == exit_codes.OK
    assert said(capfd, "compare", "a", "a", "--metric", "return")[0] == exit_codes.OK
    assert said(capfd, "report", "a")[0] == exit_codes.OK


def test_runs_are_listed_by_what_was_typed_and_with_their_mean_return(capfd):
    make("a", facts={"env": "Inner-v0"}, count=3, clock=StillClock(1000.0))
    with Journal.open("runs/nan", identity=identity(), facts={}) as journal:
        journal.record(episode(0, total_reward=float("nan"), success=None))
        journal.record(episode(1, success=None))
    out = said(capfd, "runs")[1]
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert lines["a"].endswith("  Toy-v0  toy:policy")
    assert "Inner-v0" not in out
    assert "0.3333" in lines["a"].split()
    assert lines["nan"].split()[2:5] == ["2/20", "-", "nan"]
    values = {
        one["folder"].rpartition("/")[2]: one
        for one in json.loads(said(capfd, "runs", "--json")[1])
    }
    assert (values["a"]["env"], values["a"]["typed"]) == ("Inner-v0", "Toy-v0")
    assert values["nan"]["mean_return"] is None
