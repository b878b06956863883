"""Episodes and identities that the tests of runs share."""

from __future__ import annotations

from rollmesh.results.result import EpisodeResult
from rollmesh.runs.identity import RunIdentity

PLANNED = 20


def identity(**changes):
    """Return what a run is, with some fields changed."""
    fields = {
        "plan_json": '{"seed": 7, "tasks": [{"name": "lift", "episodes": 20}]}',
        "plan_hash": "0123456789abcdef",
        "env": "Toy-v0",
        "model": "toy:policy",
        "settings": {"max_episode_steps": 100},
        "planned": PLANNED,
    }
    return RunIdentity(**(fields | changes))


def episode(index, **changes):
    """Return the episode at a place of the plan, with some fields changed."""
    fields = {
        "index": index,
        "seed": 1000 + index,
        "env_index": index % 4,
        "episode_id": f"0199f0c4-0000-7000-8000-{index:012d}",
        "steps": 10 + index,
        "total_reward": index / 3,
        "terminated": True,
        "truncated": False,
        "success": bool(index % 2),
        "duration_s": 0.25,
        "task": "lift",
    }
    return EpisodeResult(**(fields | changes))


class StillClock:
    """A clock that is told the time."""

    def __init__(self, wall_s=1_000_000_000.0):
        self.wall_s = wall_s

    def monotonic_ns(self):
        """Return the same."""
        return int(self.wall_s * 1e9)

    def wall_ns(self):
        """Return what it was told."""
        return int(self.wall_s * 1e9)
