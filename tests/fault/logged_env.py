"""An env that tells of itself in a file, for runs by the command line that are killed (P7).

Each line is appended in one write: `START PID WHAT SEED`, where START is `$RUN_START`, the number
that a test gives each start of the command, and WHAT is `build`, `begin` or `end`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import gymnasium
import numpy as np

LEAST_STEPS, MORE_STEPS = 4, 8


class LoggedEnv(gymnasium.Env):
    """Episodes of 4 to 11 steps; what comes of one follows from its seed and its actions.

    Args:
        log: The file.
        step_s: How long a step takes, in seconds.
        build_s: How long building takes.
        deadly: A seed whose first episode ends this process.
        again_s: How long a step of its later ones takes.
        slow: Seeds whose steps take `slow_s`.
        slow_s: How long those are.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def __init__(
        self,
        log: str,
        *,
        step_s: float = 0.002,
        build_s: float = 0.0,
        deadly: int | None = None,
        again_s: float = 0.0,
        slow: Sequence[int] = (),
        slow_s: float = 0.0,
    ) -> None:
        self.log, self.step_s, self.deadly, self.again_s = Path(log), step_s, deadly, again_s
        self.slow, self.slow_s = set(slow), slow_s
        self.seed = self.t = self.steps = 0
        self.sum = 0.0
        self._write("build")
        time.sleep(build_s)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.t, self.sum = seed, 0, 0.0
        self.steps = LEAST_STEPS + int(self.np_random.integers(MORE_STEPS))
        self._write("begin")
        return self._observe(), {}

    def step(self, action):
        self._nap()
        self.t += 1
        self.sum += float(action[0]) * float(self.np_random.random())
        over = self.t >= self.steps
        if over:
            self._write("end")
        info = {"is_success": self.sum > self.steps / 4} if over else {}
        return self._observe(), self.sum, over, False, info

    def _observe(self):
        return np.array([self.t, self.sum, float(self.np_random.random())])

    def _nap(self):
        nap_s = self.slow_s if self.seed in self.slow else self.step_s
        if self.seed == self.deadly and self.t == 1:
            if self._is_first_time():
                os.kill(os.getpid(), signal.SIGKILL)
            nap_s = self.again_s
        time.sleep(nap_s)

    def _is_first_time(self):
        try:
            os.close(os.open(f"{self.log}.died", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _write(self, what):
        line = f"{os.environ['RUN_START']} {os.getpid()} {what} {self.seed}\n"
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, line.encode())
        os.close(descriptor)


def policy(observation):
    """Act on what is seen, and on nothing else."""
    return np.array([np.sin(observation.sum())])
