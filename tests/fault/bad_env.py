"""Envs of which one misbehaves: the process that holds a lock; the others count their steps."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import struct
import time
from pathlib import Path

import gymnasium
import numpy as np

from rollmesh.testing.faults import broken_env
from rollmesh.testing.faults.stock import descendants
from tests.unit.fleet_toys import HOUR_S

STEP_S = 0.02
EPISODE_STEPS = 20
AT_STEP = 5
KIT = {
    "raises": {},
    "raises in reset": {"fault": "raises", "at_step": 0},
    "nan": {},
    "wrong_shape": {},
    "hangs": {},
    "hangs in reset": {"fault": "hangs", "at_step": 0},
    "exits": {},
    "kills_process": {},
    "segfaults": {},
    "huge_info": {},
    "hogs_memory": {"nbytes": 32 * 2**20},
}
"""What the kit does; the rest is done here."""
MISDEEDS = (*KIT, "sigkill", "closes files", "forks")

_locks = {}


def is_bad(folder):
    """Return whether this process is the bad one: the only one that holds the lock."""
    if folder not in _locks:
        _locks[folder] = (Path(folder) / "bad").open("w")
    try:
        fcntl.lockf(_locks[folder], fcntl.LOCK_EX | fcntl.LOCK_NB)  # not handed on to forks
    except OSError:
        return False
    return True


class Sleeper(gymnasium.Env):
    """Sleeps; counts its steps in a file named by its process, if it is told a folder."""

    def __init__(self, folder=None):
        self.observation_space = gymnasium.spaces.Box(-1e9, 1e9, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._t = 0
        self._count = None
        if folder is not None:
            with (Path(folder) / str(os.getpid())).open("w+b") as file:
                file.write(bytes(8))
                file.flush()
                self._count = mmap.mmap(file.fileno(), 8)

    def reset(self, *, seed=None, options=None):
        self._t = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        time.sleep(STEP_S)
        self._t += 1
        if self._count is not None:
            (steps,) = struct.unpack("q", self._count[:])
            self._count[:] = struct.pack("q", steps + 1)
        observation = np.full(4, self._t, np.float32)
        return observation, 1.0, self._t >= EPISODE_STEPS, False, {}


class Odd(gymnasium.Wrapper):
    """Does what the kit does not, to the process that it lives in."""

    def __init__(self, env, misdeed):
        super().__init__(env)
        self._misdeed = misdeed
        self._steps = 0

    def step(self, action):
        self._steps += 1
        if self._steps % AT_STEP == 0:
            if self._misdeed == "sigkill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self._misdeed == "closes files":
                for number in range(3):
                    with_nothing(os.close, number)
            elif len(descendants(os.getpid())) < 8 and os.fork() == 0:
                time.sleep(HOUR_S)
                os._exit(0)
        return self.env.step(action)


def with_nothing(call, *args):
    """Make a call that may have nothing to do."""
    try:
        call(*args)
    except OSError:
        return


def make(folder, misdeed):
    """Return a good env, or the bad one where this process is."""
    if not is_bad(folder):
        return Sleeper(folder)
    if misdeed in KIT:
        given = {"fault": misdeed, "at_step": AT_STEP, **KIT[misdeed]}
        return broken_env(Sleeper(), **given)
    return Sleeper() if misdeed == "none" else Odd(Sleeper(), misdeed)
