"""The screens: a board, plain lines and JSON lines, and the thread that paints them."""

from __future__ import annotations

import io
import json
import threading

import pytest
from rich.console import Console

from rollmesh.viewer.live.board import Board, render
from rollmesh.viewer.live.json_lines import JsonLines, result_line
from rollmesh.viewer.live.lines import PlainLines
from rollmesh.viewer.live.painter import Painter
from rollmesh.viewer.live.tally import Tally
from rollmesh.viewer.live.watching import screen_for, watching
from tests.unit.viewer_toys import (
    SetClock,
    completed,
    episode,
    errored,
    metric,
    result,
    session_started,
    telemetry,
    worker,
)


class Run:
    """A tally, its clock and a screen, painted by hand."""

    def __init__(self, planned, screen):
        self.clock = SetClock()
        self.tally = Tally(planned, clock=self.clock)
        self.screen = screen

    def paint(self):
        self.screen.paint(*self.tally.read())

    def close(self):
        self.screen.close(*self.tally.read())


def busy(tally):
    """Let a bit of everything happen."""
    tally.session_started(session_started())
    tally.episode_completed(completed(0, 4.0, success=True, task="lift"))
    tally.episode_errored(
        errored(1, "EnvFailed: \x1b[31mboom [bold]x[/bold]\nTraceback", task="lift")
    )
    tally.on_telemetry(telemetry(metric("env.step"), metric("model.predict", "group.size")))
    tally.on_worker_changed(worker(0, "ready", pid=12))
    tally.on_worker_changed(worker(1, "lost", "killed by SIGKILL\x1b[2J", 13))
    tally.note("plan seed 7")


# ------------------------------------------------------------------------------ plain lines


def test_plain_lines_come_first_every_ten_seconds_and_last():
    lines = []
    run = Run(100, PlainLines(lines.append))
    run.paint()
    assert lines == []
    for index in range(100):
        run.tally.episode_completed(completed(index, 1.0))
        run.clock.advance(0.25)
        run.paint()
    run.close()
    counts = [int(line.partition("/")[0]) for line in lines]
    assert counts[0] == 1
    assert counts[-1] == 100
    assert len(counts) == 4
    assert lines[-1].startswith("100/100 episodes  mean return 1.00")
    assert "left" not in lines[-1]


def test_a_run_in_which_nothing_ends_still_says_that_it_lives():
    lines = []
    run = Run(3, PlainLines(lines.append))
    for _ in range(101):
        run.clock.advance(0.25)
        run.paint()
    assert lines == ["0/3 episodes  after 0:10", "0/3 episodes  after 0:20"]


def test_plain_lines_tell_errors_lost_workers_and_notes_at_once_without_escape_codes():
    lines = []
    run = Run(5, PlainLines(lines.append))
    busy(run.tally)
    run.paint()
    text = "\n".join(lines)
    assert "episode 1 errored: EnvFailed: ?[31mboom [bold]x[/bold]" in lines
    assert "worker 1 (process 13) lost: killed by SIGKILL?[2J" in lines
    assert "plan seed 7" in lines
    assert "success 1.000 [0.207, 1.000]  1 errored" in text
    assert "worker 0" not in text
    assert "\x1b" not in text


def test_a_flood_of_errors_is_counted_and_not_printed():
    lines = []
    run = Run(1000, PlainLines(lines.append))
    for index in range(500):
        run.tally.episode_errored(errored(index))
    run.paint()
    assert len(lines) == 22
    assert lines[-2] == "480 more episodes errored"
    run.tally.episode_errored(errored(500))
    run.paint()
    assert lines[-1] == "episode 500 errored: EnvFailed: boom"


def test_an_episode_that_a_journal_confirms_is_told_once():
    lines = []
    run = Run(5, PlainLines(lines.append))
    run.tally.episode_errored(errored(1))
    run.tally.acknowledged([episode(1, error="EnvFailed: boom")])
    run.paint()
    assert sum("episode 1 errored" in line for line in lines) == 1


# ------------------------------------------------------------------------------- JSON lines


def objects(lines):
    return [json.loads(line) for line in lines]


def test_json_lines_are_one_object_each_with_event_and_time():
    lines = []
    run = Run(5, JsonLines(lines.append))
    busy(run.tally)
    run.paint()
    run.close()
    told = objects(lines)
    assert [one["event"] for one in told] == [
        "session",
        "episode",
        "episode",
        "error",
        "worker",
        "worker",
        "note",
        "progress",
    ]
    assert all(one["time"] == 1_790_000_000.0 for one in told)
    assert all("\n" not in line for line in lines)
    assert told[0]["version"] == 1
    assert told[1]["index"] == 0
    assert told[1]["task"] == "lift"
    assert told[3]["error"].startswith("EnvFailed")
    assert (told[5]["worker"], told[5]["state"], told[5]["losses"]) == (1, "lost", 1)
    assert told[7]["done"] == 2
    assert told[7]["success_rate"] == 1.0
    assert told[7]["phases"][0]["name"] == "step"


def test_json_lines_carry_no_number_that_json_has_not():
    lines = []
    run = Run(2, JsonLines(lines.append))
    run.tally.episode_completed(completed(0, float("nan")))
    run.close()
    told = objects(lines)
    assert told[0]["total_reward"] is None
    assert told[1]["mean_return"] is None
    assert "NaN" not in "".join(lines)


def test_with_a_journal_an_episode_is_told_once_it_is_on_disk():
    lines = []
    run = Run(2, JsonLines(lines.append, is_stored=True))
    run.tally.episode_completed(completed(0, 1.0))
    run.paint()
    assert lines == []
    run.tally.acknowledged([episode(0, causes=("SIGKILL",))])
    run.paint()
    assert [one["event"] for one in objects(lines)] == ["episode"]
    assert objects(lines)[0]["causes"] == ["SIGKILL"]


def test_progress_objects_come_every_ten_seconds():
    lines = []
    run = Run(2, JsonLines(lines.append))
    for _ in range(25):
        run.clock.advance(1)
        run.paint()
    run.close()
    assert [one["event"] for one in objects(lines)] == ["progress"] * 3


def test_the_last_line_is_the_result():
    run = result([episode(0), episode(1, float("inf"))])
    told = json.loads(result_line(run, SetClock()))
    assert told["event"] == "result"
    assert told["result"] == json.loads(run.to_json())


# ------------------------------------------------------------------------------------ board


def drawn(progress, width=110, title="model in env"):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(render(progress, title))
    return console.file.getvalue()


def test_the_board_shows_all_there_is():
    run = Run(5, PlainLines(print))
    busy(run.tally)
    run.tally.acknowledged([])
    run.clock.advance(10)
    text = drawn(run.tally.read()[0])
    for words in (
        "model in env",
        "2/5 episodes",
        "0:10, 0:15 left",
        "success 1.000 [0.207, 1.000]",
        "mean return 4.00",
        "12.0 episodes/min",
        "rows a predict 2.0 (up to 9)",
        "1 errored",
        "1.50 ms",
        "8.00 ms",
        "lift",
        "●0",
        "✕1(1✕)",
        "1 ready, 1 lost",
        "episode 1: EnvFailed: ?[31mboom [bold]x[/bold]",
    ):
        assert words in text, words
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [60, 80, 110])
def test_a_narrow_board_keeps_its_first_line_one(width):
    run = Run(5, PlainLines(print))
    busy(run.tally)
    run.clock.advance(10)
    title = "nets:Policy in my_robot:PickAndPlace-v1"
    first, second = drawn(run.tally.read()[0], width, title).splitlines()[:2]
    assert first.startswith("nets:")
    assert "2/5 episodes" in first
    assert "0:10" in first
    assert "━" in first
    assert second.startswith("success")


def test_an_empty_board_can_be_drawn_and_a_large_one_is_bounded():
    run = Run(0, PlainLines(print))
    assert "0/0 episodes" in drawn(run.tally.read()[0])
    for number in range(300):
        run.tally.on_worker_changed(worker(number, "ready"))
        run.tally.episode_completed(completed(number, 1.0, task=f"task {number}"))
    text = drawn(run.tally.read()[0])
    assert len(text.splitlines()) < 24
    assert "the last 8 of 300 tasks" in text
    assert "300 ready" in text


def test_the_board_leaves_only_the_lines_for_people():
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    run = Run(3, Board(out, console=console))
    run.screen.open()
    busy(run.tally)
    run.paint()
    for index in range(30):
        run.tally.episode_errored(errored(2 + index))
    run.close()
    text = out.getvalue()
    assert "episode 1 errored: EnvFailed: ?[31mboom [bold]x[/bold]" in text
    assert "plan seed 7" in text
    assert "10 more episodes errored" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is back"


# ---------------------------------------------------------------------------------- painter


class Screen:
    def __init__(self, fails_in=""):
        self.fails_in = fails_in
        self.calls = []
        self.news = []
        self.painted = threading.Event()

    def note(self, name, news=()):
        self.calls.append(name)
        self.news.extend(news)
        if name == self.fails_in:
            self.painted.set()
            raise OSError("the terminal is gone")
        if name == "paint":
            self.painted.set()

    def open(self):
        self.note("open")

    def paint(self, progress, news):
        self.note("paint", news)

    def close(self, progress, news):
        self.note("close", news)


def test_the_painter_opens_paints_and_closes_and_loses_no_news():
    screen = Screen()
    tally = Tally(3)
    painter = Painter(tally, [screen], period_s=0.001)
    painter.start()
    tally.episode_completed(completed(0, 1.0))
    assert screen.painted.wait(10)
    tally.episode_completed(completed(1, 1.0))
    painter.note("the last word")
    assert painter.stop()
    assert painter.stop(), "may be called again"
    assert screen.calls[0] == "open"
    assert screen.calls.count("close") == 1
    assert [one.episode.index for one in screen.news if one.episode] == [0, 1]
    assert screen.news[-1].note == "the last word"


@pytest.mark.parametrize("fails_in", ["open", "paint", "close"])
def test_a_screen_that_breaks_is_left_out_and_the_others_go_on(fails_in, caplog):
    broken, sound = Screen(fails_in), Screen()
    painter = Painter(Tally(1), [broken, sound], period_s=0.001)
    painter.start()
    assert sound.painted.wait(10)
    assert broken.painted.wait(10)
    assert painter.stop()
    assert broken.calls.count(fails_in) == 1
    assert sound.calls[-1] == "close"
    assert [r.getMessage() for r in caplog.records] == [
        "viewer.failed screen=Screen (the run goes on, unseen)"
    ]


def test_a_screen_that_hangs_does_not_hold_the_end_of_a_run(monkeypatch):
    monkeypatch.setattr("rollmesh.viewer.live.painter.PATIENCE_S", 0.05)
    gate = threading.Event()

    class Stuck(Screen):
        def paint(self, progress, news):
            self.painted.set()
            gate.wait(30)

    screen = Stuck()
    painter = Painter(Tally(1), [screen], period_s=0.001)
    painter.start()
    assert screen.painted.wait(10)
    assert not painter.stop()
    gate.set()
    painter._thread.join(10)
    assert not painter._thread.is_alive()


def test_what_is_shown_suits_where_it_goes(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(screen_for(Terminal()), Board)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(screen_for(Terminal()), PlainLines)
    assert isinstance(screen_for(io.StringIO()), PlainLines)


def test_watching_shows_a_run_on_both_streams():
    notes, lines = io.StringIO(), []
    tally = Tally(1)
    with watching(tally, notes=notes, json_lines=lines.append) as painter:
        tally.episode_completed(completed(0, 2.0))
        painter.note("hello")
    assert notes.getvalue().startswith("hello\n1/1 episodes  mean return 2.00")
    assert [one["event"] for one in objects(lines)] == ["episode", "note", "progress"]
