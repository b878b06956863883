"""A run of 100,000 episodes: memory flat, at most 1 kB an episode, and a quick resume."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollmesh.runs.journal import Journal
from rollmesh.runs.reading import read_run
from tests.fault.journal_process import IDENTITY, episode_at

EPISODES = 100_000
MOST_BYTES = 1_000
MOST_GROWTH = 16 << 20
PART = 2_000


def resident_bytes():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def record_all(folder):
    """Record all episodes, and print what memory grew by after the first tenth."""
    early = 0
    began = time.perf_counter()
    with Journal.open(folder, identity=IDENTITY, facts={}) as journal:
        for index in range(EPISODES):
            journal.record(episode_at(index))
            if index % PART == PART - 1:
                journal.flush()
            if index == EPISODES // 10:
                early = resident_bytes()
        growth = resident_bytes() - early
    print(growth, time.perf_counter() - began)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_100_000_episodes_are_small_flat_and_quick_to_resume(tmp_path):
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fault.test_journal_large", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        env={"PYTHONPATH": f"{root / 'src'}:{root}"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    growth, took_s = map(float, done.stdout.split())
    size = sum(p.stat().st_size for p in tmp_path.iterdir()) / EPISODES
    began = time.perf_counter()
    with Journal.open(tmp_path, identity=IDENTITY, facts={}) as journal:
        scan_s = time.perf_counter() - began
        assert len(journal.finished) == EPISODES
    began = time.perf_counter()
    assert len(read_run(tmp_path).result.episodes) == EPISODES
    read_s = time.perf_counter() - began
    print(
        f"{EPISODES:,} episodes: recorded in {took_s:.1f} s, {size:.0f} bytes each (promised: "
        f"{MOST_BYTES:,}), resumed in {scan_s:.2f} s (promised: 2 s), read in {read_s:.2f} s, "
        f"memory grew by {growth / 2**20:.1f} MiB over the last nine tenths"
    )
    assert size <= MOST_BYTES
    assert growth <= MOST_GROWTH


if __name__ == "__main__":
    record_all(sys.argv[1])
