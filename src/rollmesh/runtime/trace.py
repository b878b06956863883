"""The trace hash: one digest of everything that happened in the episodes of a run (rule R46).

Two runs of the same plan have the same hash, however many lanes they had and whichever engine drove
them, where envs follow their seed and a model's row does not depend on its batch.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

from rollmesh.events import (
    ActionReceived,
    EpisodeCompleted,
    EpisodeErrored,
    ObservationEmitted,
    StepCompleted,
)
from rollmesh.runtime.hooks import Hooks
from rollmesh.spaces.codec import Leaves
from rollmesh.spaces.space import Space

_DIGEST_BYTES = 16
_REWARD = struct.Struct("<d")


class TraceHash(Hooks):
    """Hooks that hash a run; `hexdigest` is read after the session ended.

    The digest is BLAKE2b over the episodes in plan order: seed, then for each step the observation
    leaves, action leaves, reward bits and flags, then total reward, step count, flags and success.
    Episodes that did not complete are not part of it.
    """

    def __init__(self) -> None:
        self._open: dict[str, Any] = {}
        self._done: dict[int, bytes] = {}

    def hexdigest(self) -> str:
        """Return the digest of the episodes completed so far."""
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for index in sorted(self._done):
            digest.update(self._done[index])
        return digest.hexdigest()

    def observation_emitted(self, event: ObservationEmitted) -> None:
        """Add each row to its episode."""
        self._add_rows(event.episode_ids, event.observation_space, event.observation)

    def action_received(self, event: ActionReceived) -> None:
        """Add each row to its episode."""
        self._add_rows(event.episode_ids, event.action_space, event.action)

    def step_completed(self, event: StepCompleted) -> None:
        """Add rewards and flags."""
        for row, episode_id in enumerate(event.episode_ids):
            digest = self._open[episode_id]
            digest.update(_REWARD.pack(event.rewards[row]))
            digest.update(bytes([event.terminated[row], event.truncated[row]]))

    def episode_completed(self, event: EpisodeCompleted) -> None:
        """Close an episode's digest."""
        digest = self._open.pop(event.episode_id)
        digest.update(_REWARD.pack(event.total_reward))
        tail = (event.steps, event.terminated, event.truncated, event.success)
        digest.update(repr(tail).encode())
        self._done[event.episode_index] = repr(event.seed).encode() + digest.digest()

    def episode_errored(self, event: EpisodeErrored) -> None:
        """Forget an episode that did not complete."""
        self._open.pop(event.episode_id, None)

    def _add_rows(self, episode_ids: tuple[str, ...], space: Space, leaves: Leaves) -> None:
        for row, episode_id in enumerate(episode_ids):
            digest = self._open.get(episode_id)
            if digest is None:
                digest = self._open[episode_id] = hashlib.blake2b(digest_size=_DIGEST_BYTES)
            part = leaves if len(episode_ids) == 1 else space.codec.take(leaves, [row])
            for buffer in space.codec.to_buffers(part):
                digest.update(buffer)
