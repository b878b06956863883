"""Ports: all that the runtime knows of the world (layer 2, rule R50).

An *env port* answers `reset`, `step`, `close` for a fixed number of lanes; a *model port* answers
`predict`, `reset_adapter`, `release_adapter`. Whoever implements these methods can be driven by the
runtime: a local endpoint, a client of a served one, a toy in a test.

Values cross a port as `Leaves`: one buffer per leaf of the space, rows (lanes) along the first
axis. The number of rows always comes from outside: from `num_envs`, `len(env_indices)` or
`len(episode_info)`, never from the sizes of the buffers.

How a port is called. A port without a `submit` method is called straight on the engine's thread.
A port with one (`SubmitsOperations`) does its work elsewhere (its own thread, a socket) and calls
back, from any thread; it can be abandoned, after which it gets no further call for those lanes.

What a port raises. `EndpointFault` with what it knows; any other exception is taken as one. The
runtime adds route, operation, step and seed.

Replies are mutable: the engine stamps `started_ns` and `ended_ns` around the call.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from rollmesh.spaces.codec import Leaves
from rollmesh.spaces.space import Space

Info: TypeAlias = Mapping[str, Any]
"""One lane's info: its own values only."""

NO_INFO: Info = MappingProxyType({})

SUBSET_STEP = "subset_step"
"""Capability: each lane can be reset and stepped on its own."""
PARTIAL_RESET = "partial_reset"
"""Capability: some lanes can be reset without the others; steps still take all lanes."""
REBUILD = "rebuild"
"""Capability: lanes can be built anew from their factory (`Rebuilds`)."""
PREPARE = "prepare"
"""Capability: lanes want to be told what to hold before an episode starts (`Prepares`)."""


class AutoresetMode(enum.Enum):
    """Who resets a lane whose episode ended, and when (as in Gymnasium)."""

    UNSPECIFIED = "unspecified"
    NEXT_STEP = "next_step"
    SAME_STEP = "same_step"
    DISABLED = "disabled"


@dataclass(frozen=True, kw_only=True)
class EnvContract:
    """What an env endpoint is, fixed when it starts.

    Attributes:
        id: The env's own name (`"CartPole-v1"`), a label.
        observation_space: Space of one lane's observation.
        action_space: Space of one lane's action.
        num_envs: Number of lanes.
        autoreset_mode: Who resets an ended lane.
        render_mode: As in Gymnasium, or None.
        metadata: The env's metadata.
    """

    id: str
    observation_space: Space
    action_space: Space
    num_envs: int = 1
    autoreset_mode: AutoresetMode = AutoresetMode.DISABLED
    render_mode: str | None = None
    metadata: Info = field(default_factory=lambda: NO_INFO, hash=False)


# ------------------------------------------------------------------------------ requests


class ResetRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Reset all lanes (`env_indices` empty) or just the named ones (ascending, no duplicates).

    `episode_ids` has one id per lane concerned; `seeds` and `options` have one entry per lane or
    are empty (a `None` in `options` is "none for this lane").
    """

    episode_ids: tuple[str, ...]
    seeds: tuple[int, ...] = ()
    options: tuple[Info | None, ...] = ()
    timeout_ms: int = 0
    env_indices: tuple[int, ...] = ()


class PrepareRequest(msgspec.Struct, frozen=True, gc=False):
    """Have these lanes ready for an episode of this setup (`""` where there is only one)."""

    env_indices: tuple[int, ...]
    setup: str


class StepRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Step all lanes (`env_indices` empty) or just the named ones.

    `action` has a row per lane concerned. `next_episode_ids` is set under SAME_STEP only: the id
    that the lane's next episode will carry.
    """

    action: Leaves
    episode_ids: tuple[str, ...]
    timeout_ms: int = 0
    env_indices: tuple[int, ...] = ()
    next_episode_ids: tuple[str, ...] = ()


class AdapterContext(msgspec.Struct, frozen=True, gc=False):
    """Which route and request a call to a model belongs to; a reply must echo it exactly."""

    session_id: str
    env_id: str
    request_id: str


class EpisodeInfo(msgspec.Struct, frozen=True, gc=False):
    """The episode that a row of a predict belongs to, and the seed sent for it, if any."""

    episode_id: str
    seed: int | None = None


class PredictRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Ask for actions; `observation` has a row per entry of `episode_info`."""

    context: AdapterContext
    observation: Leaves
    episode_info: tuple[EpisodeInfo, ...]
    timeout_ms: int = 0
    execution_horizon: int | None = None


class ResetAdapterRequest(msgspec.Struct, frozen=True, gc=False):
    """These episodes are over: the model may forget them."""

    context: AdapterContext
    episode_ids: tuple[str, ...]


class ReleaseAdapterRequest(msgspec.Struct, frozen=True, gc=False):
    """The route is over: the model may forget all of it."""

    context: AdapterContext
    reason: str
    timeout_s: float | None


# ------------------------------------------------------------------------------- replies


class OddValue(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A row of an observation was delivered although its space does not hold it.

    Attributes:
        row: Its row in the reply.
        kind: `nan`, `bounds`, `length` or `charset`.
        path: Where: `observation['wrist'][2]`.
        is_final: Whether it is in the completion's own final observation (SAME_STEP).
    """

    row: int
    kind: str
    path: str
    is_final: bool = False


class ResetReply(msgspec.Struct, gc=False, kw_only=True):
    """Observation and infos, a row per lane concerned, in the order of the request.

    `odd` is sparse.
    """

    observation: Leaves
    infos: tuple[Info, ...]
    odd: tuple[OddValue, ...] = ()
    endpoint_total_ns: int | None = None
    request_bytes: int = 0
    response_bytes: int = 0
    started_ns: int = 0
    ended_ns: int = 0


class Completion(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A lane's episode ended with this step.

    `final_observation` is a batch of one row; it is required under SAME_STEP (elsewhere the step's
    own row is it). `episode_id` is an echo, compared and never adopted; `step_count` and
    `cumulative_reward` are the env's own count, compared and logged.
    """

    env_index: int
    terminated: bool
    truncated: bool
    final_info: Info | None = None
    final_observation: Leaves | None = None
    episode_id: str | None = None
    step_count: int | None = None
    cumulative_reward: float | None = None


class StepReply(msgspec.Struct, gc=False, kw_only=True):
    """Observation, rewards and infos, a row per lane concerned.

    `completions` and `odd` are sparse.
    """

    observation: Leaves
    rewards: tuple[float, ...]
    infos: tuple[Info, ...]
    completions: tuple[Completion, ...] = ()
    odd: tuple[OddValue, ...] = ()
    endpoint_total_ns: int | None = None
    request_bytes: int = 0
    response_bytes: int = 0
    started_ns: int = 0
    ended_ns: int = 0


class PredictReply(msgspec.Struct, gc=False, kw_only=True):
    """The chunk: `frames` in order, each an action batch with a row per row asked."""

    context: AdapterContext
    frames: tuple[Leaves, ...]
    endpoint_total_ns: int | None = None
    request_bytes: int = 0
    response_bytes: int = 0
    started_ns: int = 0
    ended_ns: int = 0


Reply: TypeAlias = "ResetReply | StepReply | PredictReply | None"


# --------------------------------------------------------------------------------- ports


class EnvPort(Protocol):
    """An env endpoint as the runtime sees it.

    Attributes:
        contract: Spaces, width and autoreset mode.
        capabilities: Any of `SUBSET_STEP`, `PARTIAL_RESET`, `REBUILD`, `PREPARE`.
    """

    @property
    def contract(self) -> EnvContract: ...
    @property
    def capabilities(self) -> frozenset[str]: ...
    def reset(self, request: ResetRequest) -> ResetReply:
        """Reset lanes and return their first observations."""
        ...

    def step(self, request: StepRequest) -> StepReply:
        """Apply one action per lane and return what came of it."""
        ...

    def close(self, timeout_s: float | None) -> None:
        """Close the env; called at most once."""
        ...


class ModelPort(Protocol):
    """A model endpoint as the runtime sees it."""

    def predict(self, request: PredictRequest) -> PredictReply:
        """Return at least one frame of actions, a row per row asked, and the request's context."""
        ...

    def reset_adapter(self, request: ResetAdapterRequest) -> None:
        """Forget ended episodes."""
        ...

    def release_adapter(self, request: ReleaseAdapterRequest) -> None:
        """Forget the route."""
        ...


Callback: TypeAlias = Callable[[Any], None]
"""Takes the reply, or the exception that the call raised; called once, from any thread."""


@runtime_checkable
class SubmitsOperations(Protocol):
    """A port that does its work elsewhere and calls back."""

    def submit(
        self, method: str, request: Any, callback: Callback, env_indices: tuple[int, ...]
    ) -> None:
        """Start `method(request)` for these lanes (empty = all) and return at once."""
        ...

    def abandon(self, env_indices: tuple[int, ...]) -> None:
        """Leave the operation under way behind: those lanes get no further call, close included."""
        ...


@runtime_checkable
class ReadByWaiter(Protocol):
    """A port with `submit` whose answers are read by the thread that waits for them.

    No other thread calls back, so that an answer costs no handover; whoever submits must wait here.
    """

    def wait(self, timeout_s: float) -> None:
        """Call back for what has come; where nothing has, wait for it or `wake`, so long."""
        ...

    def wake(self) -> None:
        """End a wait, the one under way or the next. Any thread may, also a signal handler."""
        ...


@runtime_checkable
class KeepsLimits(Protocol):
    """A model port with `submit` that answers each predict itself when its limit is over.

    It can make up for what hangs; the engine sets no deadline of its own.
    """

    keeps_predict_limit: bool


@runtime_checkable
class Interruptible(Protocol):
    """A port called on the engine's thread whose wait can be ended from another one."""

    def interrupt(self) -> None:
        """End the call under way at once: it raises. Called on cancel, maybe by a signal."""
        ...


@runtime_checkable
class Rebuilds(Protocol):
    """An env port that can build lanes anew (capability `REBUILD`)."""

    def rebuild(self, env_indices: tuple[int, ...]) -> None:
        """Close these lanes (empty = all) unless abandoned, and build them from their factory."""
        ...


@runtime_checkable
class Prepares(Protocol):
    """An env port whose lanes may have to be started or changed first (capability `PREPARE`)."""

    def prepare(self, request: PrepareRequest) -> None:
        """Make sure that these lanes are alive and hold the env of the setup; cheap if they do."""
        ...
