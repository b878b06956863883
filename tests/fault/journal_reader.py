"""Tells how many good episodes a folder holds: `python -m tests.fault.journal_reader FOLDER`."""

from __future__ import annotations

import sys

from rollmesh.runs.reading import read_run
from tests.fault.journal_process import episode_at

if __name__ == "__main__":
    episodes = read_run(sys.argv[1]).result.episodes
    assert all(repr(e) == repr(episode_at(e.index)) for e in episodes)
    print(f"kept {len(episodes)}", flush=True)
