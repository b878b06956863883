"""Envs and drivers for the fault tests of the fleet."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import rollmesh
from rollmesh.fleet.pool import LocalPool
from rollmesh.testing.faults.stock import descendants
from tests.unit.fleet_toys import HANG, HOUR_S, KILL, Walker, misbehave, policy

GUARD = "guard.py"


def start_lingering():
    """Start processes that stay: of this group, of a session of its own, and an orphan."""
    sleep = [sys.executable, "-c", f"import time; time.sleep({HOUR_S})"]
    pids = [subprocess.Popen(sleep, start_new_session=own).pid for own in (False, True)]
    reading, writing = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.setsid()
        orphan = os.fork()
        if orphan == 0:
            time.sleep(HOUR_S)
            os._exit(0)
        os.write(writing, str(orphan).encode())
        os._exit(0)
    os.waitpid(middle, 0)
    pids.append(int(os.read(reading, 64)))
    os.close(reading)
    os.close(writing)
    return pids


class Parent(Walker):
    """Starts processes that outlive it, notes their pids in a folder, and may misbehave then.

    Args:
        folder: A file for each process, named by its pid.
        then: What it does at the first step: see `fleet_toys`.
    """

    def __init__(self, folder, then=0, length=10):
        super().__init__(length=length)
        self._then = then
        for pid in [os.getpid(), *start_lingering()]:
            (Path(folder) / str(pid)).touch()

    def step(self, action):
        """Misbehave, or step."""
        then, self._then = self._then, 0
        misbehave(then)
        return super().step(action)


class Landlord(Walker):
    """Can be built by one process only: the others die of it."""

    def __init__(self, flag, fault=KILL):
        owner = Path(flag)
        try:
            with owner.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            if owner.read_text() != str(os.getpid()):
                misbehave(fault)
        super().__init__(length=3)

    def step(self, action):
        """Step, and take some time for it: another lane fails meanwhile."""
        time.sleep(0.1)
        return super().step(action)


class Impatient:
    """A pool that kills its first workers before they can report."""

    def __init__(self, kills):
        self.pool = LocalPool()
        self.kills = kills

    def start(self, spec, ended):
        """Start a worker, and kill it."""
        process = self.pool.start(spec, ended)
        if self.kills > 0:
            self.kills -= 1
            threading.Thread(target=self._kill, args=(process,)).start()
        return process

    def _kill(self, process):
        while process.pid is None:
            time.sleep(0.001)
        process.kill()

    def close(self):
        """Close the pool."""
        self.pool.close()


def drive(tell, *, folder, workers):
    """Evaluate over workers whose envs hang, once each has started all it starts."""

    def watch():
        while len(list(Path(folder).iterdir())) < 4 * workers:
            time.sleep(0.005)
        tell(" ".join(str(pid) for pid in descendants(os.getpid())))

    threading.Thread(target=watch, daemon=True).start()
    kwargs = {"folder": str(folder), "then": HANG}
    rollmesh.evaluate(policy, Parent, episodes=workers, workers=workers, env_kwargs=kwargs)
