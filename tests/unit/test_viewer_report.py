"""The report page: what it says, that text stays text, and how large it can get."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from rollmesh.events import TelemetrySnapshot
from rollmesh.results.stopping import StopRule
from rollmesh.viewer.report.data import (
    LostAttempt,
    ReportData,
    cause_of,
    outcome_of,
    span_of,
)
from rollmesh.viewer.report.page import page
from rollmesh.viewer.report.style import SCRIPT, policy
from rollmesh.viewer.report.svg import (
    MINUS,
    NOTHING,
    TIMES,
    Scale,
    duration,
    esc,
    number,
    size,
    ticks,
    widened,
)
from rollmesh.viewer.report.timeline import busy_stretches, busy_words, lane_name, timeline
from tests.unit.viewer_toys import START_NS, episode, metric, result, timed

EVIL = "</title><script>alert('x')</script><img src=x onerror=\"alert(1)\"> & \x1b[2J"
VOID = {"meta", "link", "br", "img"}


class Reader(HTMLParser):
    """Collects tags and visible text, and checks that tags nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in {"script", "style"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def count(self, tag: str, **attributes: str) -> int:
        wanted = attributes.items()
        return sum(name == tag and wanted <= attrs.items() for name, attrs in self.tags)


def run_of(episodes, name="runs/mine", **changes):
    facts = {"plan_hash": "9f2c", "git": {"revision": "883b", "dirty": False}}
    facts["packages"] = {"numpy": "2.1", "zlib": "1.0"}
    return ReportData(name=name, result=result(episodes), facts=facts, **changes)


def test_a_page_of_one_run_says_what_ran_and_what_it_came_to():
    episodes = [*timed(40), episode(40, error="EnvFailed: boom\nTraceback: deep", attempts=3)]
    text = page([run_of(episodes)])
    read = Reader(text)
    assert read.open == []
    for words in (
        "toys:policy in Toy-v0",
        "runs/mine",
        "Success rate",
        "Interquartile mean",
        "1 errored",
        "Results",
        "95 % Wilson",
        "Returns",
        "Timeline",
        f"1 {TIMES} EnvFailed: boom",
        "Traceback: deep",
        "plan hash 9f2c",
        "revision 883b, dirty no",
        "versions numpy 2.1",
        "zlib 1.0",
        "plan seed 7",
        "41 episodes",
    ):
        assert words in read.text, words
    assert read.count("svg", role="img") == read.count("svg") == 3
    assert all(attrs.get("aria-label") for tag, attrs in read.tags if tag == "svg")
    assert read.count("caption") == read.count("table")
    assert text == page([run_of(episodes)]), "the same runs give the same page"


def test_text_of_others_stays_text():
    episodes = timed(4)
    episodes.append(episode(4, error=EVIL, task=EVIL, episode_id=EVIL))
    run = ReportData(
        name=EVIL,
        result=result(episodes, env=EVIL, model=EVIL, stopped=EVIL),
        facts={EVIL: EVIL, "nested": {EVIL: [EVIL]}, "packages": {EVIL: EVIL}},
        lost=(LostAttempt(episode=1, attempt=1, worker=0, cause=EVIL, last_lines=EVIL),),
    )
    for runs in ([run], [run, run]):
        text = page(runs)
        read = Reader(text)
        assert read.open == []
        assert read.count("script") == 1
        assert read.count("img") == 0
        assert not any(name.startswith("on") for _, attrs in read.tags for name in attrs)
        assert "\x1b" not in text
        assert "<script>alert('x')</script>" in read.text


def test_the_page_loads_nothing_and_forbids_it():
    text = page([run_of(timed(4))])
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert "http" not in re.sub(r"http-equiv", "", text)
    assert "@import" not in text
    assert "url(" not in text
    assert esc(policy()) in text
    assert "default-src 'none'" in policy()
    assert text.count(f"<script>{SCRIPT}</script>") == 1


def test_an_empty_run_and_one_that_only_errored_have_a_page():
    for episodes in ([], [episode(0, error="x", success=None)]):
        read = Reader(page([ReportData(name="r", result=result(episodes, planned=3))]))
        assert read.open == []
        assert f"{len(episodes)} of 3 planned episodes ended" in read.text


def test_a_run_that_only_errored_is_told_beside_one_that_did_not():
    good = ReportData(name="good", result=result([episode(0, 1.0), episode(1, 2.0)]))
    bad = ReportData(name="bad", result=result([episode(0, 0.0, error="EnvFailed: boom")]))
    for runs in ([good, bad], [bad, good]):
        text = " ".join(Reader(page(runs)).words)
        assert "bad: 0 episodes" in page(runs)
        assert "EnvFailed: boom" in text


def test_no_run_is_refused():
    with pytest.raises(ValueError, match="at least one run"):
        page([])


def test_odd_numbers_are_shown_and_not_drawn():
    rewards = [float("nan"), float("inf"), 1.0, 2.0]
    episodes = [episode(i, reward, success=None) for i, reward in enumerate(rewards)]
    read = Reader(page([run_of(episodes)]))
    assert "2 returns are not finite and left out" in read.text
    assert not any(
        "nan" in (value or "").lower() or "inf" in (value or "").split()
        for tag, attrs in read.tags
        for name, value in attrs.items()
        if name in {"x", "y", "cx", "cy", "x1", "x2", "width", "height", "d"}
    )


def test_tasks_have_a_row_each_and_their_interval_in_the_plot():
    episodes = [episode(i, task=("lift", "stack", "pour")[i % 3]) for i in range(30)]
    read = Reader(page([run_of(episodes)]))
    assert "Results by task" in read.text
    for task in ("lift", "stack", "pour"):
        assert read.words.count(task) >= 3
    assert "for all tasks of which these are a sample" in read.text.lower()


def test_the_rate_of_a_run_that_a_rule_ended_is_that_of_the_decision():
    decision = StopRule.parse("width<0.3").update(38, 38)
    ended = result([episode(i, success=i < 38) for i in range(74)])
    run = ReportData(name="runs/mine", result=replace(ended, decision=decision))
    text = Reader(page([run])).text
    assert "Success rate 1.00 [0.891, 1.00] · 38 of 38, decided by width<0.3" in text
    assert "of all played 38 of 74; 36 were played beyond." in text


def test_several_runs_are_compared_with_the_first():
    good = run_of([episode(i, success=True) for i in range(40)], "good")
    bad = run_of([episode(i, success=i % 4 == 0) for i in range(40)], "bad")
    other = ReportData(name="other", result=result([episode(i, seed=9_000 + i) for i in range(3)]))
    read = Reader(page([good, bad, other]))
    assert f"bad is worse in success rate ({MINUS}0.750" in read.text
    assert "A is good, B is bad." in read.text
    assert "no planned episode in common" in read.text
    assert "Difference from good" in read.text
    read = Reader(page([bad, good]))
    assert "bad and good" in read.text
    assert "good is better in success rate (+0.750" in read.text


def test_calls_are_told_in_their_units():
    rows = (
        metric("env.step", p50=0.25, p99=1500.0),
        metric("env.step", "request.bytes", kind="bytes", p50=1_500.0),
        metric("model.predict", "group.size", kind="count", p50=8.0),
    )
    telemetry = TelemetrySnapshot(horizon="session", rows=rows)
    text = page([ReportData(name="r", result=result(timed(4), telemetry=telemetry))])
    words = Reader(text).text
    for expected in ("250 µs", "1.5 s", "1.5 kB", "rows a call"):
        assert expected in words, expected


def test_lost_attempts_are_listed_with_their_last_lines():
    lost = LostAttempt(episode=3, attempt=1, worker=2, cause="killed by SIGKILL", last_lines="oom")
    read = Reader(page([run_of(timed(6), lost=(lost,))]))
    assert "killed by SIGKILL" in read.text
    assert "Last lines of worker 2, episode 3 oom" in read.text


# -------------------------------------------------------------------------------------- data


def test_errors_with_one_cause_are_one_group():
    ids = [timed(2)[place].episode_id for place in range(2)]
    texts = [
        f"Env: failed at step 2, lane 1, episode {ids[0]}, seed 11: RuntimeError: boom at 0x7f12",
        f"Env: failed at step 90, lane 0, episode {ids[1]}, seed 7: RuntimeError: boom at 0xabcd",
        "OperationTimeout: env.step did not come back in 5 s",
    ]
    episodes = [episode(i, error=text) for i, text in enumerate(texts)]
    causes = run_of(episodes).causes
    assert [cause.episodes for cause in causes] == [(0, 1), (2,)]
    assert causes[0].cause == ("Env: failed at step …, lane …, seed …: RuntimeError: boom at 0x…")
    assert causes[0].example == texts[0]
    assert cause_of("") == "no message"
    assert len(cause_of("x" * 999)) <= 300


def test_outcomes_have_one_word_each():
    assert outcome_of(episode(0, success=True)) == "success"
    assert outcome_of(episode(0, success=False)) == "failure"
    assert outcome_of(episode(0, success=None)) == "unjudged"
    assert outcome_of(episode(0, success=True, error="x")) == "errored"


def test_an_episode_id_tells_when_it_started():
    span = span_of(timed(3, lanes=1)[2])
    assert span is not None
    assert span.start_s == pytest.approx(START_NS / 1e9 + 2.0, abs=1e-3)
    assert span.end_s - span.start_s == pytest.approx(0.9)
    assert span_of(episode(0)) is None
    assert span_of(episode(0, episode_id="")) is None


# ---------------------------------------------------------------------------------- timeline


def test_long_idle_times_are_cut_and_marked():
    run = run_of(timed(40, gap_at=20, gap_s=7200.0))
    stretches = busy_stretches(run.spans)
    assert len(stretches) == 2
    assert stretches[1].offset_s == pytest.approx(9.9, abs=1.0)
    drawing = timeline(run)
    assert "nothing ran for 2 h 00 min" in drawing
    assert "lanes in an episode 9" in busy_words(run)
    assert busy_stretches(run_of(timed(40)).spans)[0].offset_s == 0.0


def test_lanes_have_the_names_of_their_workers():
    assert lane_name(run_of([]), 3) == "lane 3"
    assert lane_name(run_of([], lanes_per_worker=1), 3) == "worker 3"
    assert lane_name(run_of([], lanes_per_worker=2), 3) == "worker 1.1"


def test_many_episodes_make_a_page_of_bounded_size():
    episodes = timed(8_000, lanes=64)
    text = page([ReportData(name="large", result=result(episodes))])
    assert "The first 1000 of 8000" in Reader(text).text
    assert len(text) < 1_000_000


# ----------------------------------------------------------------------------------- helpers


def test_ticks_are_round_and_inside():
    assert ticks(0.0, 1.0) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(-3.0, 17.0) == pytest.approx([0.0, 5.0, 10.0, 15.0])
    assert ticks(2.0, 2.0) == [2.0]
    low, high = widened(5.0, 5.0)
    assert low < 5.0 < high
    assert Scale(0.0, 1.0, 10.0, 20.0).at(2.0) == 20.0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, NOTHING),
        (0.0, "0.000"),
        (0.51234, "0.512"),
        (-3.14159, f"{MINUS}3.14"),
        (123.456, "123.5"),
        (12_345.6, "12,346"),
        (1e9, "1e+09"),
        (float("nan"), "NaN"),
        (float("-inf"), f"{MINUS}∞"),
    ],
)
def test_numbers_read_well(value, text):
    assert number(value) == text


def test_durations_and_sizes_have_units():
    assert [duration(s) for s in (5e-5, 0.012, 2.5, 75, 7322)] == [
        "50 µs",
        "12 ms",
        "2.5 s",
        "1 min 15 s",
        "2 h 02 min",
    ]
    assert [size(n) for n in (12, 1500, 2_500_000)] == ["12 B", "1.5 kB", "2.5 MB"]
