"""Small envs for the endpoint tests."""

from __future__ import annotations

import threading

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rollmesh.ports import ResetRequest, StepRequest


class Count(gym.Env):
    """Observation [t, seed]; reward 1 a step; an episode lasts `length` steps."""

    def __init__(self, length=3, lane=0, end="terminated", high=1e6):
        self.observation_space = spaces.Box(-1e6, high, (2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.length, self.lane, self.end = length, lane, end
        self.t, self.seed, self.options, self.actions = 0, None, None, []
        self.buffer = np.zeros(2, np.float32)
        self.threads = {threading.get_ident()}
        self.closed = 0

    def _obs(self):
        self.threads.add(threading.get_ident())
        self.buffer[:] = (self.t, -1 if self.seed is None else self.seed)
        return self.buffer

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.seed, self.options = 0, seed, options
        return self._obs(), {"lane": self.lane}

    def step(self, action):
        self.t += 1
        self.actions.append(action)
        done = self.t >= self.length
        info = {"t": self.t}
        if done:
            info["is_success"] = self.lane == 0
        return (
            self._obs(),
            1.0,
            done and self.end != "truncated",
            done and self.end != "terminated",
            info,
        )

    def close(self):
        self.threads.add(threading.get_ident())
        self.closed += 1


def reset_request(n=1, **fields):
    return ResetRequest(episode_ids=tuple(f"e{i}" for i in range(n)), **fields)


def step_request(port, *actions, **fields):
    codec = port.contract.action_space.codec
    return StepRequest(
        action=codec.encode_many(actions),
        episode_ids=tuple(f"e{i}" for i in range(len(actions))),
        **fields,
    )


def observations(port, reply, rows=1):
    codec = port.contract.observation_space.codec
    return [np.asarray(codec.decode(reply.observation, row)).tolist() for row in range(rows)]
