"""Toy ports: an env and a model that note every call and are strict about the contract.

The env's observation is `[episode number on this lane or seed, t]`; its episodes last `length(seed,
lane, n)` steps. It asserts what the runtime promises: no step of a lane that is over, ids pushed
down, one action row per lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rollmesh import ports
from rollmesh.ports import (
    PARTIAL_RESET,
    REBUILD,
    SUBSET_STEP,
    AutoresetMode,
    Completion,
    EnvContract,
    PredictReply,
    PredictRequest,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.runtime.hooks import Hooks
from rollmesh.runtime.spec import SessionSpec
from rollmesh.spaces.space import Box

OBSERVATION = Box(shape=(2,), dtype="float32")
ACTION = Box(shape=(1,), dtype="float32")

Length = Callable[[int | None, int, int], int]


def by_seed(seed: int | None, lane: int, n: int) -> int:
    """Return 1 + seed % 5 steps, or 2 + lane without a seed."""
    del n
    return 2 + lane if seed is None else 1 + seed % 5


class ToyLane:
    """One sub-environment."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.seed: int | None = None
        self.n = -1
        self.t = 0
        self.over = True
        self.episode_id = ""


class ToyEnv:
    """A strict env port in any mode."""

    def __init__(
        self,
        num_envs: int = 1,
        mode: AutoresetMode = AutoresetMode.DISABLED,
        *,
        capabilities: Sequence[str] | None = None,
        length: Length = by_seed,
        reward: float = 1.0,
        info: Callable[[ToyLane], dict[str, Any]] | None = None,
    ) -> None:
        self.contract = EnvContract(
            id="toy",
            observation_space=OBSERVATION,
            action_space=ACTION,
            num_envs=num_envs,
            autoreset_mode=mode,
        )
        if capabilities is None:
            capabilities = [PARTIAL_RESET] if mode is AutoresetMode.DISABLED else []
        self.capabilities = frozenset(capabilities)
        self.length = length
        self.reward = reward
        self.info = info or (lambda lane: {"t": lane.t, "lane": lane.index})
        self.lanes = [ToyLane(i) for i in range(num_envs)]
        self.resets: list[ResetRequest] = []
        self.steps: list[StepRequest] = []
        self.actions: list[tuple[int, str, float]] = []
        self.closed = 0
        self.rebuilt: list[tuple[int, ...]] = []

    # -- the port

    def reset(self, request: ResetRequest) -> ResetReply:
        self.resets.append(request)
        lanes = self._named(request.env_indices)
        assert len(request.episode_ids) == len(lanes)
        assert len(request.seeds) in (0, len(lanes))
        for row, lane in enumerate(lanes):
            seed = request.seeds[row] if request.seeds else None
            self._begin(lane, seed, request.episode_ids[row])
        return ResetReply(observation=self._observe(lanes), infos=self._infos(lanes))

    def step(self, request: StepRequest) -> StepReply:
        self.steps.append(request)
        lanes = self._named(request.env_indices)
        (action,) = request.action
        assert action.shape == (len(lanes), 1), action.shape
        assert len(request.episode_ids) == len(lanes)
        rewards: list[float] = []
        completions: list[Completion] = []
        for row, lane in enumerate(lanes):
            rewards.append(self._step_lane(lane, row, request, completions))
        return StepReply(
            observation=self._observe(lanes),
            rewards=tuple(rewards),
            infos=self._infos(lanes),
            completions=tuple(completions),
        )

    def close(self, timeout_s: float | None) -> None:
        del timeout_s
        self.closed += 1

    def rebuild(self, env_indices: tuple[int, ...]) -> None:
        self.rebuilt.append(env_indices)
        for lane in self._named(env_indices):
            lane.over, lane.t = True, 0

    # -- inside

    def _step_lane(
        self, lane: ToyLane, row: int, request: StepRequest, completions: list[Completion]
    ) -> float:
        mode = self.contract.autoreset_mode
        if lane.over:
            assert mode is AutoresetMode.NEXT_STEP, f"lane {lane.index} stepped after its end"
            assert request.episode_ids[row] != lane.episode_id
            self._begin(lane, None, request.episode_ids[row])
            return 0.0
        assert request.episode_ids[row] == lane.episode_id, "a step carries its episode's id"
        self.actions.append((lane.index, lane.episode_id, float(request.action[0][row, 0])))
        lane.t += 1
        if lane.t >= self.length(lane.seed, lane.index, lane.n):
            lane.over = True
            self._end(lane, row, request, completions)
        return self.reward

    def _end(
        self, lane: ToyLane, row: int, request: StepRequest, completions: list[Completion]
    ) -> None:
        same = self.contract.autoreset_mode is AutoresetMode.SAME_STEP
        completions.append(
            Completion(
                env_index=lane.index,
                terminated=True,
                truncated=False,
                final_info=self.info(lane) if same else None,
                final_observation=self._observe([lane]) if same else None,
                episode_id=lane.episode_id,
            )
        )
        if same:
            self._begin(lane, None, request.next_episode_ids[row])

    def _begin(self, lane: ToyLane, seed: int | None, episode_id: str) -> None:
        assert episode_id, "ids flow down"
        lane.seed, lane.n, lane.t, lane.over = seed, lane.n + 1, 0, False
        lane.episode_id = episode_id

    def _named(self, env_indices: tuple[int, ...]) -> list[ToyLane]:
        if not env_indices:
            return self.lanes
        assert list(env_indices) == sorted(set(env_indices))
        return [self.lanes[i] for i in env_indices]

    def _observe(self, lanes: Sequence[ToyLane]) -> list[np.ndarray]:
        rows = [[lane.n if lane.seed is None else lane.seed % 10_000, lane.t] for lane in lanes]
        return [np.array(rows, np.float32)]

    def _infos(self, lanes: Sequence[ToyLane]) -> tuple[dict[str, Any], ...]:
        return tuple([self.info(lane) for lane in lanes])


class ToyModel:
    """A model port whose action depends on the row: `100 · obs[0] + obs[1] + 0.01 · frame`."""

    def __init__(self, frames: int = 1) -> None:
        self.frames = frames
        self.predicts: list[PredictRequest] = []
        self.evictions: list[ResetAdapterRequest] = []
        self.releases: list[ReleaseAdapterRequest] = []
        self.held: set[str] = set()
        self.evicted: set[str] = set()

    def predict(self, request: PredictRequest) -> PredictReply:
        assert not self.releases, "predict after the release"
        self.predicts.append(request)
        self.held.update(info.episode_id for info in request.episode_info)
        observation = np.asarray(request.observation[0])
        assert observation.shape == (len(request.episode_info), 2)
        base = 100 * observation[:, :1] + observation[:, 1:]
        frames = tuple([[(base + 0.01 * k).astype(np.float32)] for k in range(self.frames)])
        return PredictReply(context=request.context, frames=frames)

    def reset_adapter(self, request: ResetAdapterRequest) -> None:
        self.evictions.append(request)
        for episode_id in request.episode_ids:
            assert episode_id not in self.evicted, "evicted twice"
            self.evicted.add(episode_id)
            self.held.discard(episode_id)

    def release_adapter(self, request: ReleaseAdapterRequest) -> None:
        self.releases.append(request)


class Notes(Hooks):
    """Hooks that note every event, as (name, event), in order."""

    def __init__(self, *, steps: bool = True) -> None:
        self.events: list[tuple[str, Any]] = []
        for name in _EVENTS:
            if steps or name not in ("observation_emitted", "action_received", "step_completed"):
                setattr(self, name, self._noter(name))

    def _noter(self, name: str) -> Callable[[Any], None]:
        return lambda event: self.events.append((name, event))

    def names(self) -> list[str]:
        """Return the names of the events in order."""
        return [name for name, _ in self.events]

    def of(self, *names: str) -> list[Any]:
        """Return the events of these names in order."""
        return [event for name, event in self.events if name in names]


_EVENTS = (
    "session_started",
    "episode_started",
    "observation_emitted",
    "action_received",
    "step_completed",
    "episode_completed",
    "episode_errored",
    "log",
    "session_ended",
    "session_failed",
    "on_telemetry",
)


class CountingMint:
    """Predictable ids: `id-000001`…"""

    def __init__(self) -> None:
        self.count = 0

    def mint(self) -> str:
        self.count += 1
        return f"id-{self.count:06d}"


def spec_for(env: ToyEnv, **kwargs: Any) -> SessionSpec:
    """Return a spec for a toy env, with plain ids."""
    defaults: dict[str, Any] = {
        "session_id": "session",
        "env_id": "route",
        "env_component": "toy-env",
        "model_component": "toy-model",
    }
    return SessionSpec(env_contract=env.contract, **{**defaults, **kwargs})


LANES = (SUBSET_STEP, REBUILD)
VECTOR = (PARTIAL_RESET, REBUILD)
__all__ = ["LANES", "VECTOR", "CountingMint", "Notes", "ToyEnv", "ToyModel", "by_seed", "ports"]
