"""Episodes as a released peer wants them reported by an env server (layer 4).

It expects with each end the id it pushed when the episode began, the seed, steps, reward and times,
and, with the next step, each episode that a reset cut short. A port of ours tells none of this: the
ledger stands beside it and keeps count. Ends are named by the port; nothing is decided here.

Time is passed in.
"""

from __future__ import annotations

from collections import deque

from rollmesh.clock import SYSTEM_CLOCK, Clock
from rollmesh.ports import AutoresetMode, EnvContract, ResetRequest, StepReply, StepRequest
from rollmesh.wire.proto_env import EpisodeFacts

_MOST_INTERRUPTED = 100
"""Interrupted episodes that wait to be reported; the oldest are dropped, as the peer does."""


class _Running:
    """An episode under way."""

    __slots__ = ("episode_id", "reward", "seed", "started_ns", "steps")

    def __init__(self, episode_id: str, seed: int | None, started_ns: int) -> None:
        self.episode_id = episode_id
        self.seed = seed
        self.started_ns = started_ns
        self.steps = 0
        self.reward = 0.0


class EpisodeLedger:
    """Counts the episodes of one session.

    Args:
        contract: What is served.
        clock: Tells the wall time of starts and ends.
    """

    def __init__(self, contract: EnvContract, clock: Clock = SYSTEM_CLOCK) -> None:
        self._lanes: list[_Running | None] = [None] * contract.num_envs
        self._rolls = contract.autoreset_mode is AutoresetMode.NEXT_STEP
        self._same_step = contract.autoreset_mode is AutoresetMode.SAME_STEP
        self._ended = [False] * contract.num_envs
        self._interrupted: deque[EpisodeFacts] = deque(maxlen=_MOST_INTERRUPTED)
        self._clock = clock

    def reset(self, request: ResetRequest) -> None:
        """Begin the episodes of a reset that succeeded; running ones are interrupted."""
        now = self._clock.wall_ns()
        for row, lane in enumerate(request.env_indices or range(len(self._lanes))):
            self._interrupt(lane, now)
            seed = request.seeds[row] if request.seeds else None
            self._lanes[lane] = _Running(request.episode_ids[row], seed, now)
            self._ended[lane] = False

    def step(self, request: StepRequest, reply: StepReply) -> dict[int, EpisodeFacts]:
        """Count a step that succeeded; return the facts of the episodes it ended, by lane."""
        now = 0
        for row, lane in enumerate(request.env_indices or range(len(self._lanes))):
            running = self._lanes[lane]
            if running is not None:
                running.steps += 1
                running.reward += reply.rewards[row]
            elif self._rolls and self._ended[lane]:  # the step that resets the lane
                now = now or self._clock.wall_ns()
                self._lanes[lane] = _Running(request.episode_ids[row], None, now)
                self._ended[lane] = False
        if not reply.completions:
            return {}
        return self._end(request, reply, self._clock.wall_ns())

    def _end(self, request: StepRequest, reply: StepReply, now: int) -> dict[int, EpisodeFacts]:
        facts: dict[int, EpisodeFacts] = {}
        for completion in reply.completions:
            lane = completion.env_index
            running = self._lanes[lane] if 0 <= lane < len(self._lanes) else None
            if running is None:
                continue
            facts[lane] = _facts(
                running, lane, now, terminated=completion.terminated, truncated=completion.truncated
            )
            self._lanes[lane] = None
            self._ended[lane] = True
            if self._same_step and request.next_episode_ids:
                row = request.env_indices.index(lane) if request.env_indices else lane
                self._lanes[lane] = _Running(request.next_episode_ids[row], None, now)
                self._ended[lane] = False
        return facts

    def take_interrupted(self) -> tuple[EpisodeFacts, ...]:
        """Return the interrupted episodes that were not reported yet, and forget them."""
        taken = tuple(self._interrupted)
        self._interrupted.clear()
        return taken

    def close(self) -> tuple[EpisodeFacts, ...]:
        """Return every episode that is left: interrupted ones, and those still running."""
        now = self._clock.wall_ns()
        for lane in range(len(self._lanes)):
            self._interrupt(lane, now)
        return self.take_interrupted()

    def _interrupt(self, lane: int, now: int) -> None:
        running = self._lanes[lane]
        if running is not None:
            self._interrupted.append(_facts(running, lane, now, terminated=False, truncated=True))
            self._lanes[lane] = None


def _facts(
    running: _Running, lane: int, now: int, *, terminated: bool, truncated: bool
) -> EpisodeFacts:
    return EpisodeFacts(
        episode_id=running.episode_id,
        env_index=lane,
        seed=running.seed,
        step_count=running.steps,
        cumulative_reward=running.reward,
        terminated=terminated,
        truncated=truncated,
        started_ns=running.started_ns,
        ended_ns=now,
    )
