"""A process that keeps a journal and tells what was acknowledged, for P4 and P6.

    python journal_process.py FOLDER HOW COUNT

Lines on standard output: `open FINISHED`, `ack INDEX INDEX …`, `failed ERRNO ACKNOWLEDGED`,
`closed`. It is killed, starved or cut off in between.
"""

from __future__ import annotations

import math
import os
import random
import resource
import sys
import threading
import time
from pathlib import Path

from rollmesh.errors import JournalError
from rollmesh.results.result import EpisodeResult
from rollmesh.runs.identity import RunIdentity
from rollmesh.runs.journal import Journal

PLANNED = 1_000_000
IDENTITY = RunIdentity(
    plan_json='{"seed": 7}', plan_hash="0123", env="Toy", model="toy", planned=PLANNED
)
SIZE_LIMIT = 1 << 17


def episode_at(index):
    """Return the episode that belongs at an index: anybody can check it."""
    chance = random.Random(index)
    return EpisodeResult(
        index=index,
        seed=chance.randrange(2**31),
        env_index=index % 8,
        episode_id=f"episode-{index:012d}",
        steps=chance.randrange(1000),
        total_reward=math.nan if index % 11 == 0 else chance.gauss(0.0, 100.0),
        terminated=bool(index % 2),
        truncated=not index % 2,
        success=(None, True, False)[index % 3],
        duration_s=chance.random(),
        error=f"EnvFailed: step {index} failed" if index % 17 == 0 else None,
        attempts=1 + index % 2,
        causes=("SIGKILL",) * (index % 2),
        task=f"task-{index % 4}",
    )


def tell(*words):
    """Write one whole line, so that a kill cuts none."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def swap_log(folder, path, flags):
    """Put another file behind the descriptor of SQLite's log."""
    log = os.path.realpath(Path(folder) / "run.sqlite-wal")
    other = os.open(path, flags)
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        if os.path.realpath(descriptor) == log:
            os.dup2(other, int(descriptor.name))


def main():
    folder, how, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    pace = random.Random(os.getpid())
    failed = threading.Event()
    try:
        journal = Journal.open(folder, identity=IDENTITY, facts={"how": how})
    except JournalError as error:
        tell("failed", error.errno, error.acknowledged)
        print(error, file=sys.stderr)
        return
    tell("open", len(journal.finished))
    journal.subscribe(
        lambda episodes: tell("ack", *(e.index for e in episodes)), failed=lambda _: failed.set()
    )
    todo = (i for i in range(PLANNED) if i not in journal.finished)
    for number, index in zip(range(count), todo, strict=False):
        try:
            journal.record(episode_at(index))
        except JournalError:
            break
        if number == 50 and how != "plain":
            journal.flush()
            if how == "small files":
                resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE_LIMIT, SIZE_LIMIT))
            elif how == "full":
                swap_log(folder, "/dev/full", os.O_RDWR)
            elif how == "broken":
                swap_log(folder, "/dev/null", os.O_RDONLY)
        if pace.random() < 0.1:
            time.sleep(pace.random() * 0.002)
    if how != "plain":
        failed.wait(10.0)
    failure = journal.failure
    journal.close()
    if failure is not None:
        tell("failed", failure.errno, failure.acknowledged)
        print(failure, file=sys.stderr)
    tell("closed")


if __name__ == "__main__":
    main()
