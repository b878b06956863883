"""Events: frozen facts of a route, given to hooks (layer 2, rule R33).

Per-lane fields are tuples aligned row by row over the lanes that take part in the event. Values are
`Leaves`, as everywhere in the runtime, and read-only; `decode` methods give plain arrays and dicts.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rollmesh.ports import Info
from rollmesh.spaces.codec import Leaves
from rollmesh.spaces.conformance import OddObservations
from rollmesh.spaces.space import Space


class Route(msgspec.Struct, frozen=True, gc=False):
    """One model endpoint driving one env endpoint."""

    env_id: str
    env_component: str
    model_component: str


class Event(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What every event carries."""

    session_id: str
    route: Route


class EnvConnected(Event, frozen=True, gc=False, kw_only=True):
    """The env endpoint is ready."""


class ModelConnected(Event, frozen=True, gc=False, kw_only=True):
    """The model endpoint is ready."""


class SessionStarted(Event, frozen=True, gc=False, kw_only=True):
    """The session is valid and begins; nothing has been called yet."""

    env_id: str


class EpisodeStarted(Event, frozen=True, gc=False, kw_only=True):
    """A lane's episode begins: its first observation is there."""

    episode_id: str
    record_id: str
    episode_index: int
    env_index: int
    seed: int | None
    started_from_auto_reset: bool
    task: str = ""
    attempt: int = 1


class ObservationEmitted(Event, frozen=True, gc=False, kw_only=True):
    """The observations that this iteration acts on, after `transform_observation`."""

    env_indices: tuple[int, ...]
    episode_ids: tuple[str, ...]
    record_ids: tuple[str, ...]
    steps: tuple[int, ...]
    is_reset: tuple[bool, ...]
    num_envs: int
    observation_space: Space
    observation: Leaves

    def decode(self, row: int = 0) -> Any:
        """Return one lane's observation as plain values (a copy)."""
        return self.observation_space.codec.decode(self.observation, row, copy=True)


class ActionReceived(Event, frozen=True, gc=False, kw_only=True):
    """The actions about to be applied, after `transform_action`."""

    env_indices: tuple[int, ...]
    episode_ids: tuple[str, ...]
    record_ids: tuple[str, ...]
    steps: tuple[int, ...]
    action_space: Space
    action: Leaves

    def decode(self, row: int = 0) -> Any:
        """Return one lane's action as plain values (a copy)."""
        return self.action_space.codec.decode(self.action, row, copy=True)


class StepCompleted(Event, frozen=True, gc=False, kw_only=True):
    """A step came back; `observation` is raw: `transform_observation` has not seen it.

    Under SAME_STEP the row of a lane that ended already belongs to its next episode.
    """

    env_indices: tuple[int, ...]
    episode_ids: tuple[str, ...]
    record_ids: tuple[str, ...]
    steps: tuple[int, ...]
    rewards: tuple[float, ...]
    terminated: tuple[bool, ...]
    truncated: tuple[bool, ...]
    infos: tuple[Info, ...]
    observation_space: Space
    observation: Leaves

    def decode(self, row: int = 0) -> Any:
        """Return one lane's observation as plain values (a copy)."""
        return self.observation_space.codec.decode(self.observation, row, copy=True)


class EpisodeCompleted(Event, frozen=True, gc=False, kw_only=True):
    """A lane's episode ended; `final_observation` is a batch of one row."""

    episode_id: str
    record_id: str
    episode_index: int
    env_index: int
    seed: int | None
    steps: int
    total_reward: float
    terminated: bool
    truncated: bool
    success: bool | None
    duration_s: float
    final_info: Info
    observation_space: Space
    final_observation: Leaves
    task: str = ""
    attempts: int = 1
    odd_observations: tuple[OddObservations, ...] = ()

    def decode(self) -> Any:
        """Return the final observation as plain values (a copy)."""
        return self.observation_space.codec.decode(self.final_observation, 0, copy=True)


class EpisodeErrored(Event, frozen=True, gc=False, kw_only=True):
    """A lane's episode was spoiled by a fault of its env: neither success nor failure."""

    episode_id: str
    record_id: str
    episode_index: int
    env_index: int
    seed: int | None
    steps: int
    total_reward: float
    duration_s: float
    error: str
    task: str = ""
    attempts: int = 1
    odd_observations: tuple[OddObservations, ...] = ()


class EpisodesStored(Event, frozen=True, gc=False, kw_only=True):
    """Episodes are on disk; called from a thread of its own, which no commit waits for.

    Attributes:
        planned: Episodes of the plan.
        episodes: What is stored, as `EpisodeResult` objects.
        is_resumed: Whether they had ended in an earlier start; told once, before anything runs.
    """

    planned: int
    episodes: tuple[Any, ...]
    is_resumed: bool = False


class WorkerChanged(Event, frozen=True, gc=False, kw_only=True):
    """A worker process of a fleet changed its state.

    Attributes:
        worker: Its number, from 0.
        state: `starting`, `ready`, `lost` (it died, or was killed because it hung) or `stopped`.
        detail: Why, in words: of a lost one signal or exit code and its last lines.
        pid: Its process, where there is one on this machine.
    """

    worker: int
    state: str
    detail: str = ""
    pid: int | None = None


class Log(Event, frozen=True, gc=False, kw_only=True):
    """A line of the route's own log."""

    level: str
    message: str
    source: str


class SessionEnded(Event, frozen=True, gc=False, kw_only=True):
    """The route did what was asked."""

    reason: str
    total_steps: int
    total_episodes: int


class SessionFailed(Event, frozen=True, gc=False, kw_only=True):
    """The route ended by a failure or a cancel."""

    reason: str


class MetricRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One metric of one source over a horizon. Durations are in ms, sizes in bytes."""

    operation: str
    component: str
    metric: str
    kind: str
    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    min: float
    max: float


class TelemetrySnapshot(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Sorted rows over one horizon: `window` or `session`."""

    horizon: str
    rows: tuple[MetricRow, ...]


class TelemetryEmitted(Event, frozen=True, gc=False, kw_only=True):
    """A telemetry snapshot: windows while the route runs, one `session` at its end."""

    snapshot: TelemetrySnapshot
