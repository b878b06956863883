"""P4: acknowledged episodes survive `kill -9`: none is lost, none is there twice."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollmesh.runs.journal import Journal
from rollmesh.runs.reading import read_run
from tests.fault.journal_process import IDENTITY, episode_at

SCRIPT = Path(__file__).with_name("journal_process.py")
ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 0.25
WAIT_S = 30.0


def start(folder, how="plain", count=100_000):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(folder), how, str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )


def acknowledged(lines):
    return [int(w) for line in lines if line.startswith("ack ") for w in line.split()[1:]]


def kill_at_random(folder, chance, already):
    """Start a driver, kill it at a random moment, and return what it acknowledged."""
    process = start(folder)
    try:
        lines = []
        if chance.random() < 0.7:  # once it runs; the others die while they start or open
            lines.append(process.stdout.readline())
            assert lines[0] == f"open {already}\n", process.stderr.read()
        time.sleep(chance.random() * LONGEST_S)
        process.kill()
        rest, _ = process.communicate(timeout=WAIT_S)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    lines += rest.splitlines()
    return acknowledged(lines)


def check_kills(folder, kills):
    chance = random.Random(kills)
    seen: list[int] = []
    already = 0
    for _ in range(kills):
        new = kill_at_random(folder, chance, already)
        seen += new
        assert len(set(seen)) == len(seen), "an episode was acknowledged twice"
        if not (folder / "run.sqlite").exists():
            assert not seen
            continue
        episodes = read_run(folder).result.episodes
        indices = [e.index for e in episodes]
        assert not set(seen) - set(indices), "an acknowledged episode is lost"
        assert len(set(indices)) == len(indices)
        for stored in episodes[already:]:
            assert repr(stored) == repr(episode_at(stored.index))
        already = len(episodes)
    print(f"{kills} kills, {len(seen)} acknowledged, {already} kept, 0 lost, 0 doubled")
    assert seen
    with Journal.open(folder, identity=IDENTITY, facts={}) as journal:
        assert set(seen) <= set(journal.finished)
        journal.record(episode_at(already))
    assert len(read_run(folder).result.episodes) == already + 1


@pytest.mark.fault
@pytest.mark.timeout(180)
def test_p4_acknowledged_episodes_survive_20_kills(tmp_path):
    check_kills(tmp_path, 20)


@pytest.mark.fault_full
@pytest.mark.timeout(900)
def test_p4_acknowledged_episodes_survive_100_kills(tmp_path):
    check_kills(tmp_path, 100)


@pytest.mark.fault
@pytest.mark.timeout(60)
def test_p4_a_resume_scans_10_000_episodes(tmp_path):
    with Journal.open(tmp_path, identity=IDENTITY, facts={}) as journal:
        for index in range(10_000):
            journal.record(episode_at(index))
    began = time.perf_counter()
    with Journal.open(tmp_path, identity=IDENTITY, facts={}) as journal:
        took_s = time.perf_counter() - began
        assert len(journal.finished) == 10_000
        assert repr(journal.finished[9_999]) == repr(episode_at(9_999))
    print(f"10,000 episodes scanned and checked in {took_s:.3f} s (promised: 2 s)")
