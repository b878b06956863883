"""A fleet run that tells what its process holds while workers are killed and hang (P14).

It is run in a process of its own (`Child`), and tells one JSON object a sample.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np

import rollmesh
from rollmesh.fleet.plan import Plan, Task
from rollmesh.limits import Limits
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.hooks import Hooks
from rollmesh.testing.faults.stock import left_behind, take_stock

STEP_S = 0.002
SIDE = 160
WORKERS = 3
MOST_EPISODES = 100_000
SAMPLE_S = 0.25


class Camera(gymnasium.Env):
    """Pictures large enough for shared memory, and a pause where a simulator would compute."""

    observation_space = gymnasium.spaces.Dict(
        {
            "camera": gymnasium.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
            "state": gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64),
        }
    )
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def __init__(self, *, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action):
        time.sleep(STEP_S)
        self.t += 1
        info = {"is_success": True, "t": self.t}
        return self._observe(), float(action[0]), self.t >= self.length, False, info

    def _observe(self):
        camera = np.full((SIDE, SIDE, 3), self.t % 256, np.uint8)
        return {"camera": camera, "state": self.np_random.random(3)}


class Batched:
    """Looks at the pictures of several lanes at once."""

    def predict_batch(self, observations):
        return np.stack([row[:2] for row in observations["state"]])


class Killer(Hooks):
    """Kills or stops workers in turn, one every so often, once they are ready.

    Attributes:
        counts: How often each was done.
    """

    def __init__(self, every_s):
        self.counts = {"killed": 0, "stopped": 0}
        self._every_s = every_s
        self._next_s = time.monotonic() + every_s
        self._ready = {}
        self._turn = 0

    def on_worker_changed(self, event):
        self._ready.pop(event.worker, None)
        if event.state == "ready":
            self._ready[event.worker] = event.pid

    def look(self):
        """Do what is due; on any thread."""
        if time.monotonic() < self._next_s:
            return
        pid = self._ready.pop(self._turn % WORKERS, None)
        self._turn += 1
        if pid is None:
            return
        self._next_s += self._every_s
        stops = self._turn % 4 == 0
        os.kill(pid, signal.SIGSTOP if stops else signal.SIGKILL)
        self.counts["stopped" if stops else "killed"] += 1


def sample():
    """Return what this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    stock = take_stock()
    return {
        "memory_mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        "descriptors": len(stock.descriptors),
        "threads": len(stock.threads),
        "shared_memory": len(stock.shared_memory) + len(stock.memory_files),
        "processes": len(stock.processes),
    }


def run(tell, *, seconds, folder, every_s, length):
    """Run for so long, tell samples meanwhile, and in the end what came of it."""
    rollmesh.evaluate(Batched(), Camera, episodes=1, env_kwargs={"length": 2})  # imports are done
    gc.collect()
    before = take_stock()
    token, killer, over = CancelToken(), Killer(every_s), threading.Event()

    def watch():
        begun = time.monotonic()
        while not over.wait(SAMPLE_S):
            at_s = time.monotonic() - begun
            if at_s < seconds - 2 * every_s:  # none is being replaced when the run ends
                killer.look()
            tell(json.dumps({"at_s": round(at_s, 2), **sample()}))
            if at_s > seconds:
                token.drain()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = rollmesh.evaluate(
            Batched(),
            "tests.fault.soak:Camera",
            plan=Plan(tasks=(Task(episodes=MOST_EPISODES),), seed=3),
            workers=WORKERS,
            run_dir=folder,
            env_kwargs={"length": length},
            hooks=[killer],
            limits=Limits(env_step_s=1.0, env_reset_s=5.0),
            cancel=token,
        )
    finally:
        over.set()
        watcher.join()
    ended = {
        **killer.counts,
        "episodes": len(result.episodes),
        "errors": result.num_errors,
        "retried": sum(one.attempts - 1 for one in result.episodes),
        "causes": sorted({cause[:200] for one in result.episodes for cause in one.causes})[:5],
    }
    del result
    gc.collect()
    tell(json.dumps({"ended": ended, "left": left_behind(before)[:10]}))
