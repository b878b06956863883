"""100,000 episodes in one run: memory while it goes on, the journal's size, the time to resume.

Each is run in a process of its own, so that memory is that run's alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks import table
from benchmarks.table import Line

EPISODES = 100_000
SHORT_EPISODES = 20_000
EPISODE_STEPS = 3
MEMORY_MB = 20.0
JOURNAL_BYTES = 1000.0
SCAN_S = 2.0
_SAMPLE_EVERY = 500
_WARM = 0.1
"""Share of the episodes after which memory is first looked at."""


class Brief(gym.Env[Any, Any]):
    """Ends after three steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._observation = np.zeros(4, np.float32)
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin."""
        del seed, options
        self._steps = 0
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count one step."""
        del action
        self._steps += 1
        is_over = self._steps >= EPISODE_STEPS
        return self._observation, 1.0, is_over, False, {"is_success": True} if is_over else {}


def zero(observation: Any) -> int:
    """Do nothing."""
    del observation
    return 0


class Memory:
    """Samples this process's memory as episodes end."""

    def __init__(self, episodes: int) -> None:
        self.samples_mb: list[float] = []
        self._warm = int(episodes * _WARM)
        self._ended = 0

    def episode_completed(self, event: Any) -> None:
        """Look now and then."""
        del event
        self._ended += 1
        if self._ended >= self._warm and self._ended % _SAMPLE_EVERY == 0:
            self.samples_mb.append(memory_mb())


def memory_mb() -> float:
    """Return the resident memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def run(folder: str, episodes: int) -> dict[str, float]:
    """Run so many episodes in this process, and return what it took."""
    import rollmesh

    memory = Memory(episodes)
    begun_s = time.perf_counter()
    rollmesh.evaluate(zero, Brief(), episodes=episodes, base_seed=1, run_dir=folder, hooks=memory)
    took_s = time.perf_counter() - begun_s
    size = sum(path.stat().st_size for path in Path(folder).iterdir())
    return {
        "took_s": took_s,
        "first_mb": memory.samples_mb[0],
        "grown_mb": max(memory.samples_mb) - memory.samples_mb[0],
        "journal_bytes": size / episodes,
    }


def scan(folder: str, episodes: int) -> dict[str, float]:
    """Open the finished run again, as its command does, and return how long that took."""
    import rollmesh

    begun_s = time.perf_counter()
    result = rollmesh.evaluate(zero, Brief(), episodes=episodes, base_seed=1, run_dir=folder)
    took_s = time.perf_counter() - begun_s
    if len(result.episodes) != episodes:
        raise RuntimeError(f"{len(result.episodes)} of {episodes} episodes were found again")
    return {"scan_s": took_s}


def many_row(*, short: bool) -> list[Line]:
    """Return the lines of memory, journal and resume."""
    if not Path("/proc/self/statm").exists():
        return [table.absent("many episodes", "rollmesh", "a system with /proc")]
    episodes = SHORT_EPISODES if short else EPISODES
    with tempfile.TemporaryDirectory(prefix="rollmesh-bench-") as folder:
        ran = _in_child("run", folder, episodes)
        scanned = _in_child("scan", folder, episodes)
    row = f"{episodes:,} episodes in one run"
    scale = episodes / EPISODES
    return [
        Line(
            row=row,
            subject="rollmesh, with the default journal",
            figure=f"{episodes / ran['took_s']:,.0f} episodes/s",
            numbers=dict(ran),
        ),
        _line(row, "memory from a tenth on", ran["grown_mb"], "MB", MEMORY_MB),
        _line(row, "journal", ran["journal_bytes"], "B an episode", JOURNAL_BYTES),
        _line(row, "resume scan", scanned["scan_s"], "s", SCAN_S * scale),
    ]


def _line(row: str, subject: str, value: float, unit: str, most: float) -> Line:
    return Line(
        row=row,
        subject=subject,
        figure=f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}",
        target=f"<= {most:g} {unit}",
        verdict=table.at_most(value, most),
        numbers={"value": value, "most": most, "unit": unit},
    )


def _in_child(what: str, folder: str, episodes: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.many_episodes", what, folder, str(episodes)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{what} failed: {done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


if __name__ == "__main__":
    print(json.dumps({"run": run, "scan": scan}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
