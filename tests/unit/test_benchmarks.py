"""Arithmetic of the benchmark harness, on fake subjects with a fake clock: no time is measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import contest, import_time, plot, subjects, table, workloads
from benchmarks.harness import Burst, Comparison, Spread, Subject, Timing, compare


class FakeClock:
    """Moves only when a subject works."""

    def __init__(self):
        self.now_ns = 0

    def __call__(self):
        return self.now_ns


class FakeSubject:
    """Takes `costs_ns[k]` per bout in its k-th turn, the last one from then on."""

    def __init__(self, name, clock, costs_ns, *, units=1, log=None):
        self.name, self.clock, self.costs_ns, self.units = name, clock, list(costs_ns), units
        self.log = [] if log is None else log
        self.closed = 0

    def run(self, bouts):
        cost_ns = self.costs_ns.pop(0) if len(self.costs_ns) > 1 else self.costs_ns[0]
        self.clock.now_ns += cost_ns * bouts
        self.log.append((self.name, bouts))
        return bouts * self.units

    def close(self):
        self.closed += 1

    def subject(self):
        return Subject(name=self.name, run=self.run, close=self.close)


MS = 1_000_000
TIMING = Timing(repetitions=5, burst_s=0.1, warmup_s=0.0)


def comparison(**seconds):
    """One unit a burst, so many seconds each."""
    return Comparison(
        bursts={
            name: tuple(Burst(units=1, seconds=each) for each in values)
            for name, values in seconds.items()
        }
    )


@pytest.fixture(autouse=True)
def no_collecting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave garbage alone: with fake clocks it only takes long, in the heap of a test run."""
    monkeypatch.setattr("benchmarks.harness.gc.collect", lambda: 0)


def test_subjects_take_turns():
    clock, log = FakeClock(), []
    fakes = [FakeSubject(name, clock, [10 * MS], log=log) for name in "AB"]
    compare([fake.subject() for fake in fakes], TIMING, clock_ns=clock)
    assert [name for name, _ in log] == ["A", "B"] + ["A", "B"] * 5


def test_bursts_are_sized_to_the_length_asked_for():
    clock, log = FakeClock(), []
    fast = FakeSubject("fast", clock, [1 * MS], log=log)
    slow = FakeSubject("slow", clock, [500 * MS], log=log)
    compare([fast.subject(), slow.subject()], TIMING, clock_ns=clock)
    assert log[2:4] == [("fast", 100), ("slow", 1)]


def test_warm_up_grows_until_it_has_lasted_long_enough():
    clock, log = FakeClock(), []
    fake = FakeSubject("A", clock, [1 * MS], log=log)
    compare([fake.subject()], Timing(repetitions=1, burst_s=1.0, warmup_s=0.2), clock_ns=clock)
    assert [bouts for _, bouts in log] == [1, 16, 256, 1000]


def test_a_slow_first_bout_does_not_size_the_bursts_when_a_warm_up_is_asked_for():
    clock, log = FakeClock(), []
    fake = FakeSubject("A", clock, [90 * MS, 1 * MS], log=log)
    compare([fake.subject()], Timing(repetitions=1, burst_s=0.4, warmup_s=0.1), clock_ns=clock)
    assert [bouts for _, bouts in log] == [1, 4, 64, 400]


def test_rates_and_costs_count_units_not_bouts():
    clock = FakeClock()
    fake = FakeSubject("A", clock, [10 * MS], units=50)
    measured = compare([fake.subject()], TIMING, clock_ns=clock)
    assert measured.rate("A").median == pytest.approx(5000)
    assert measured.cost_s("A").median == pytest.approx(0.2e-3)


def test_the_ratio_is_the_median_of_the_rounds_not_the_ratio_of_medians():
    measured = comparison(A=[1.0, 1.0, 4.0], B=[2.0, 10.0, 12.0])
    assert measured.speedup("A", "B") == Spread(median=3.0, low=2.0, high=10.0)
    assert measured.rate("A").median / measured.rate("B").median == pytest.approx(10.0)


def test_cost_ratio_is_the_speedup_turned_over():
    measured = comparison(A=[3.0, 6.0, 5.0], B=[1.0, 2.0, 1.0])
    assert measured.cost_ratio("A", "B") == Spread(median=3.0, low=3.0, high=5.0)
    assert measured.speedup("B", "A") == Spread(median=3.0, low=3.0, high=5.0)


def test_extra_cost_is_subtracted_round_by_round():
    measured = comparison(A=[5.0, 9.0, 6.0], copy=[4.0, 7.0, 2.0])
    assert measured.extra_cost_s("A", "copy") == Spread(median=2.0, low=1.0, high=4.0)


def test_a_machine_that_slows_down_changes_figures_but_not_ratios():
    clock = FakeClock()
    slowing = [10 * MS, 10 * MS, 20 * MS, 40 * MS, 80 * MS, 160 * MS]
    ours = FakeSubject("ours", clock, slowing)
    peer = FakeSubject("peer", clock, [cost * 3 for cost in slowing])
    measured = compare([ours.subject(), peer.subject()], TIMING, clock_ns=clock)
    assert measured.rate("ours").high == pytest.approx(16 * measured.rate("ours").low)
    assert measured.speedup("ours", "peer") == Spread(
        median=pytest.approx(3.0), low=pytest.approx(3.0), high=pytest.approx(3.0)
    )


def test_every_subject_is_closed_also_when_one_raises():
    clock = FakeClock()
    fine = FakeSubject("fine", clock, [1 * MS])

    def boom(bouts):
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        compare([fine.subject(), Subject(name="boom", run=boom)], TIMING, clock_ns=clock)
    assert fine.closed == 1


def test_two_subjects_of_one_name_are_refused():
    clock = FakeClock()
    twice = [FakeSubject("A", clock, [MS]).subject() for _ in range(2)]
    with pytest.raises(ValueError, match="different names"):
        compare(twice, TIMING, clock_ns=clock)


def test_a_subject_that_does_nothing_is_refused():
    clock = FakeClock()
    idle = FakeSubject("idle", clock, [MS], units=0)
    with pytest.raises(ValueError, match="'idle' did 0 units"):
        compare([idle.subject()], TIMING, clock_ns=clock)


@pytest.mark.parametrize("wrong", [{"repetitions": 0}, {"burst_s": 0.0}, {"warmup_s": -1.0}])
def test_a_timing_that_gives_no_median_is_refused(wrong):
    with pytest.raises(ValueError, match="at least one repetition"):
        Timing(**wrong)


# --------------------------------------------------------------------------------- lines


def test_a_goal_gives_a_ratio_a_target_and_a_verdict():
    measured = comparison(ours=[1.0] * 5, slow=[14.0] * 5, fast=[0.25] * 5)
    goals = [
        contest.Goal(subject="ours", base="slow", least=12.0),
        contest.Goal(subject="ours", base="fast", least=0.4),
        contest.Goal(subject="ours", base="absent", least=1.0),
    ]
    first, second = contest.lines_of("row", "ours", goals, measured)
    assert (first.subject, first.target, first.verdict) == ("ours", ">= 12 x", "met")
    assert (second.subject, second.target, second.verdict) == ("", ">= 0.4 x", "SHORT")
    assert first.ratio.startswith("14 x slow")


def test_a_peer_that_is_not_there_is_a_line_that_says_how_to_get_it():
    there = subjects.Entry(name="A", build=lambda: Subject(name="A", run=lambda bouts: bouts))
    absent = subjects.Entry(name="B", build=lambda: pytest.fail("built"), missing="pip install b")
    goals = [contest.Goal(subject="A", base="B", least=1.0)]
    timing = Timing(repetitions=1, burst_s=1e-6, warmup_s=0.0)
    first, second = contest.contest("row", [there, absent], goals, timing)
    assert (first.subject, first.ratio, first.verdict) == ("A", "", "")
    assert second.figure == "not installed: pip install b"


def test_a_subject_that_cannot_be_built_closes_those_built_before():
    fake = FakeSubject("A", FakeClock(), [MS])

    def broken():
        raise RuntimeError("no env")

    entries = [
        subjects.Entry(name="A", build=fake.subject),
        subjects.Entry(name="B", build=broken),
    ]
    with pytest.raises(RuntimeError, match="no env"):
        contest.contest("row", entries, [], TIMING)
    assert fake.closed == 1


def test_the_table_names_a_row_once_and_aligns_columns():
    lines = [
        table.Line(row="one", subject="a", figure="1 s"),
        table.Line(row="one", subject="bb", figure="2 s", verdict="met"),
        table.Line(row="two", subject="c"),
    ]
    text = table.render(lines).splitlines()
    assert [line.split()[0] for line in text[2:]] == ["one", "bb", "two"]
    assert text[2].index("1 s") == text[3].index("2 s") == text[0].index("figure")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5e-9, "5 ns"), (11.9e-6, "11.9 µs"), (0.141, "141 ms"), (2.0, "2 s"), (-2e-6, "-2 µs")],
)
def test_durations_are_printed_in_a_unit_that_fits(seconds, text):
    spread = Spread(median=seconds, low=seconds, high=seconds)
    assert table.time_text(spread).startswith(text)


def test_json_holds_the_machine_and_every_line():
    lines = [table.Line(row="r", subject="s", numbers={"median": 1.5})]
    machine = table.Machine(python="p", platform="q", cpus=2, load=(0.5, 0.4, 0.3))
    plain = json.loads(json.dumps(table.as_json(lines, machine)))
    assert plain["machine"]["cpus"] == 2
    assert plain["lines"][0]["numbers"] == {"median": 1.5}


def test_a_loaded_machine_is_called_loaded():
    busy = table.Machine(python="p", platform="q", cpus=2, load=(1.9, 1.0, 1.0))
    assert "LOADED" in busy.sentence()
    assert "LOADED" not in table.Machine(python="p", platform="q", cpus=2, load=(0.2,)).sentence()


# ------------------------------------------------------------------------ import, plots


REPORT = """import time: self [us] | cumulative | imported package
import time:        70 |         70 | site
import time:      1000 |       1000 |   numpy.core
import time:      2000 |       3000 | numpy
import time:       500 |       3500 | rollmesh
"""


def test_an_import_report_is_added_up_without_what_every_interpreter_loads():
    seen = import_time.parse(REPORT, ["site", "numpy", "rollmesh"], frozenset({"site"}))
    assert seen.total_s == pytest.approx(3.5e-3)
    assert seen.own_s["numpy.core"] == pytest.approx(1e-3)
    assert import_time._dearest(seen).startswith("numpy 3 ms")


def test_an_import_report_without_modules_is_refused():
    with pytest.raises(ValueError, match="mentions no module"):
        import_time.parse(REPORT, [], frozenset({"site", "numpy", "numpy.core", "rollmesh"}))


def test_a_text_plot_has_a_bar_a_point_longer_for_more():
    text = plot.text_plot({"a": [(1, 10.0), (10, 1000.0)]}, "steps/s").splitlines()
    assert [line.count("#") for line in text] == [1, 50]


# ------------------------------------------------------------- workloads and the command


@pytest.mark.parametrize(
    "workload",
    [workloads.scalar(7), workloads.frames(7), workloads.robot(7), workloads.payload(9, 7)],
)
def test_a_synthetic_env_keeps_its_spaces_and_its_episode_length(workload):
    env = workload.make()
    observation, _ = env.reset(seed=0)
    for step in range(1, 8):
        assert env.observation_space.contains(observation)
        action = workload.policy(observation)
        assert env.action_space.contains(np.asarray(action) if np.ndim(action) else action)
        observation, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated, info) == (1.0, False, step == 7, {})


def test_the_batched_env_resets_on_the_step_after_the_end():
    workload = workloads.scalar(2)
    env = workload.make_vector(3)
    observations, _ = env.reset()
    actions = workload.batch_policy(observations)
    assert actions.shape == (3,)
    ends = [env.step(actions)[3].tolist() for _ in range(4)]
    assert ends == [[False] * 3, [True] * 3, [False] * 3, [False] * 3]


def test_the_bare_loop_counts_steps():
    subject = subjects.bare(workloads.scalar(7)).build()
    assert subject.run(3) == 21
    subject.close()


def test_the_command_prints_a_row_that_breaks_and_exits_with_1(monkeypatch, capsys, tmp_path: Path):
    def good(options):
        return [table.Line(row="good", subject="a", figure="1 s")], "a plot"

    def bad(options):
        raise RuntimeError("no such thing")

    rows = {
        "good": command.Row(summary="works", measure=good),
        "bad": command.Row(summary="breaks", measure=bad),
        "long": command.Row(summary="left out of a short run", measure=bad, in_short=False),
    }
    monkeypatch.setattr(command, "ROWS", rows)
    target = tmp_path / "out.json"
    assert command.main(["--short", "--json", str(target)]) == 1
    printed = capsys.readouterr().out
    assert "FAILED: RuntimeError: no such thing" in printed
    assert "a plot" in printed
    assert [line["row"] for line in json.loads(target.read_text())["lines"]] == ["good", "bad"]
    assert command.main(["good"]) == 0


def test_the_command_refuses_a_row_it_does_not_know(capsys):
    with pytest.raises(SystemExit):
        command.main(["nonsense"])
    assert "nonsense" in capsys.readouterr().err
