"""The report of a route: what each planned episode came to (rule R31)."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollmesh.errors import RouteError
from rollmesh.events import TelemetrySnapshot
from rollmesh.spaces.conformance import OddObservations


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeSummary:
    """One ended episode.

    Attributes:
        index: Plan index (start order without a plan), from 0.
        env_index: The lane it ran on.
        episode_id: Its UUIDv7.
        seed: The seed sent for it, if any.
        steps: Moves.
        total_reward: Float sum of the rewards.
        terminated: As the env said.
        truncated: As the env said, or by a cap.
        success: The env's own word, or None.
        duration_s: From the reset's reply to the last step's, monotonic.
        error: What spoiled it, or None. A spoiled episode is neither success nor failure.
        attempts: How often it was started; more than 1 where a worker or the session with a served
            endpoint was lost.
        causes: Why the earlier attempts came to nothing, one line each.
        task: The task of the plan it belongs to; `""` without tasks.
        odd_observations: How many observations their space did not hold, by kind and path.
        ended_ns: When its last reply came, on the monotonic clock; 0 where none did.
    """

    index: int
    env_index: int
    episode_id: str
    seed: int | None
    steps: int
    total_reward: float
    terminated: bool
    truncated: bool
    success: bool | None
    duration_s: float
    error: str | None = None
    attempts: int = 1
    causes: tuple[str, ...] = ()
    task: str = ""
    odd_observations: tuple[OddObservations, ...] = ()
    ended_ns: int = field(default=0, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class LostAttempt:
    """One try at an episode that came to nothing and is made again.

    Attributes:
        index: The episode's plan index.
        attempt: Which try it was, from 1.
        error: What became of it; its `__cause__` is the endpoint's own fault.
    """

    index: int
    attempt: int
    error: RouteError


@dataclass(frozen=True, kw_only=True)
class RouteReport:
    """What one session came to; partial when it is carried by an error.

    Attributes:
        session_id: The session.
        env_id: The attachment.
        total_steps: Moves of the reported episodes.
        total_episodes: Number of reported episodes, errored ones included.
        episodes: Summaries in plan order (completion order under `budget="completions"`); none
            where somebody was told of each as it ended.
        telemetry: The final session snapshot.
    """

    session_id: str
    env_id: str
    total_steps: int
    total_episodes: int
    episodes: tuple[EpisodeSummary, ...]
    telemetry: TelemetrySnapshot = field(repr=False)
