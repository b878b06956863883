"""The benchmark of many episodes in one run: it runs, and what it measures is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import many_episodes


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_a_run_is_kept_and_found_again(tmp_path):
    figures = many_episodes.run(str(tmp_path), 1000)
    assert set(figures) == {"took_s", "first_mb", "grown_mb", "journal_bytes"}
    assert figures["journal_bytes"] > 50
    assert many_episodes.scan(str(tmp_path), 1000)["scan_s"] > 0


def test_a_figure_beyond_its_target_is_short():
    line = many_episodes._line("row", "journal", 1200.0, "B an episode", 1000.0)
    assert (line.figure, line.target, line.verdict) == (
        "1,200 B an episode",
        "<= 1000 B an episode",
        "SHORT",
    )
