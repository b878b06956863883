"""Envs, pools and drivers for the tests of the fleet."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np

from rollmesh.fleet.lanes import FleetEnvs
from rollmesh.fleet.worker_options import WorkerOptions
from rollmesh.fleet.worker_spec import EnvTarget
from rollmesh.ports import PrepareRequest, ResetRequest, StepRequest

WALKER = "tests.unit.fleet_toys:Walker"
LIMIT_S = 20.0
HOUR_S = 3600.0

RAISE, EXIT, KILL, CRASH, HANG, QUIT, FREEZE = range(1, 8)


def misbehave(what):
    """Do what an env should not."""
    if what == RAISE:
        raise ValueError("the door is stuck")
    if what == EXIT:
        os.write(2, b"the simulator has lost its licence\n")
        os._exit(7)
    if what == KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == CRASH:
        ctypes.string_at(0)
    if what == HANG:
        time.sleep(HOUR_S)
    if what == QUIT:
        sys.exit(3)
    if what == FREEZE:
        os.kill(os.getpid(), signal.SIGSTOP)


class Walker(gymnasium.Env):
    """Draws its rewards from its seed; told by its actions to do what envs should not.

    Args:
        length: Steps of an episode.
        where: `build`, `reset` or `step` (in the middle of an episode): where `fault` happens.
        fault: What happens there.
        flag: A path; files that start with it count how often `where` was passed, in all processes.
        turn: At which of these times it happens, from 0.
        shape: Of its observations.
    """

    def __init__(self, length=10, where="", fault=0, flag="", turn=0, shape=(4,)):
        self.observation_space = gymnasium.spaces.Box(-1e9, 1e9, shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(8)
        self.length = length
        self._where, self._fault, self._flag, self._turn = where, fault, flag, turn
        self._shape = shape
        self._t = 0
        self._once("build")

    def _once(self, where):
        if where != self._where:
            return
        for turn in itertools.count():
            try:
                Path(f"{self._flag}{turn}").touch(exist_ok=False)
            except FileExistsError:
                continue
            if turn == self._turn:
                misbehave(self._fault)
            return

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._once("reset")
        self._t = 0
        return np.zeros(self._shape, np.float32), {"pid": os.getpid(), "seed": seed}

    def step(self, action):
        misbehave(int(action))
        self._t += 1
        if self._t == self.length // 2:
            self._once("step")
        reward = float(self.np_random.integers(1000))
        observation = np.full(self._shape, self._t, np.float32)
        return observation, reward, self._t >= self.length, False, {}


class Unclosable(Walker):
    """Raises as it is closed."""

    def close(self):
        misbehave(RAISE)


def policy(observation):
    """Return the action that does nothing odd."""
    return 0


def open_fleet(*, workers=1, lanes_per_worker=1, options=None, tell=None, **env_kwargs):
    """Open a fleet of walkers."""
    return FleetEnvs.open(
        {"": EnvTarget.of(WALKER, env_kwargs)},
        workers=workers,
        lanes_per_worker=lanes_per_worker,
        options=options or WorkerOptions(),
        tell=tell,
    )


def prepare(fleet, *lanes, setup=""):
    """Have lanes hold an env."""
    fleet.prepare(PrepareRequest(lanes, setup))


def reset(fleet, lane=0, seed=0, limit_s=LIMIT_S):
    """Reset a lane."""
    return fleet.reset(
        ResetRequest(
            episode_ids=("e",),
            seeds=(seed,),
            env_indices=(lane,),
            timeout_ms=int(limit_s * 1000),
        )
    )


def step_request(action=0, lane=0, limit_s=LIMIT_S):
    """Return a step of one lane."""
    return StepRequest(
        action=[np.full(1, action, np.int64)],
        episode_ids=("e",),
        env_indices=(lane,),
        timeout_ms=int(limit_s * 1000),
    )


def step(fleet, action=0, lane=0, limit_s=LIMIT_S):
    """Step a lane."""
    return fleet.step(step_request(action, lane, limit_s))


class FakeProcess:
    """A worker that a test plays itself."""

    def __init__(self, spec, ended):
        self.spec, self.ended = spec, ended
        self.pid = 1000 + spec.start
        self.killed = 0

    def kill(self):
        self.killed += 1


class FakePool:
    """Starts nothing, and notes what it was to start."""

    def __init__(self, fault=None):
        self.started = []
        self.fault = fault
        self.closed = 0

    def start(self, spec, ended):
        if self.fault is not None:
            raise self.fault
        self.started.append(FakeProcess(spec, ended))
        return self.started[-1]

    def close(self):
        self.closed += 1
