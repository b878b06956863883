"""When an episode ran, as the report's timeline shows it: from its first reply to its last one."""

from __future__ import annotations

import time

import pytest

from rollmesh import evaluate
from rollmesh.runs.journal import Journal
from rollmesh.runs.reading import read_run
from rollmesh.viewer.report.data import ReportData, span_of
from tests.unit.env_toys import Count
from tests.unit.runs_toys import StillClock, episode, identity

AT_S = 1_000_000_000.0


def spans(folder):
    return {span.index: span for span in ReportData.from_run(read_run(folder)).spans}


def test_a_stored_episode_ran_until_its_last_reply_for_as_long_as_it_took(tmp_path):
    clock = StillClock(AT_S)
    with Journal.open(tmp_path, identity=identity(), facts={}, clock=clock) as journal:
        clock.wall_s += 300.0  # it was given up long after its last reply
        journal.record(episode(0, duration_s=2.0, error="it hung"), ended_ns=int((AT_S + 5) * 1e9))
        journal.record(episode(1, duration_s=2.0))
    run = spans(tmp_path)
    assert (run[0].start_s, run[0].end_s) == pytest.approx((AT_S + 3.0, AT_S + 5.0), abs=1e-5)
    assert (run[1].start_s, run[1].end_s) == pytest.approx((AT_S + 298.0, AT_S + 300.0), abs=1e-5)


def test_when_an_episode_ended_is_kept_and_read_again(tmp_path):
    clock = StillClock(AT_S)
    with Journal.open(tmp_path, identity=identity(), facts={}, clock=clock) as journal:
        for index in (2, 0, 1):
            clock.wall_s += 10.0
            journal.record(episode(index))
    assert read_run(tmp_path).ended_at == {2: AT_S + 10, 0: AT_S + 20, 1: AT_S + 30}


class SlowStart(Count):
    """An env whose first reset takes a moment."""

    ready_s: list[float] = []

    def reset(self, *, seed=None, options=None):
        began = time.monotonic()
        while not self.ready_s and time.monotonic() - began < 0.05:
            pass
        self.ready_s.append(time.time())
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize("how", [{}, {"num_envs": 2}])
def test_the_first_bar_begins_where_its_reset_came_back(tmp_path, how):
    SlowStart.ready_s.clear()
    evaluate("random", SlowStart, episodes=4, base_seed=1, run_dir=tmp_path, **how)
    stored = read_run(tmp_path).result.episodes
    run = spans(tmp_path)
    claimed = span_of(stored[0])
    assert claimed is not None
    assert claimed.start_s < SlowStart.ready_s[0] - 0.04  # what its id tells
    assert run[0].start_s > SlowStart.ready_s[0] - 0.02
    assert run[0].end_s - run[0].start_s == pytest.approx(stored[0].duration_s, abs=1e-5)


def test_an_episode_that_an_error_ended_begins_there_too(tmp_path):
    class Fails(SlowStart):
        def step(self, action):
            raise ValueError("the door is stuck")

    SlowStart.ready_s.clear()
    evaluate("random", Fails, episodes=1, base_seed=1, run_dir=tmp_path, on_error="continue")
    assert spans(tmp_path)[0].start_s > SlowStart.ready_s[0] - 0.02
