"""A server in a process of its own: `python server_process.py KIND ADDRESS READY_FILE`."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from rollmesh.endpoint.servers.env_server import EnvServer
from rollmesh.endpoint.servers.model_server import ModelServer
from rollmesh.endpoint.servers.server_options import ServerOptions
from tests.unit.serving_toys import Counter


def note_close():
    """Write down that something was closed."""
    with Path(os.environ["CLOSED"]).open("a") as stream:
        stream.write("closed\n")


class Env(Counter):
    """Writes down when it is closed; told by its actions to end its process."""

    def step(self, action):
        if action == 5:
            os._exit(0)
        if action == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == 7:
            time.sleep(3600)
        return super().step(action)

    def close(self):
        super().close()
        note_close()


class Steals(Env):
    """Takes the signal handlers when it is built, on the main thread."""

    def __init__(self):
        super().__init__()
        assert threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: print("swallowed", flush=True))


class Hangs(Env):
    """Never comes back from close."""

    def close(self):
        time.sleep(3600)


class Policy:
    """Answers with nothing much."""

    def predict(self, observation):
        return 0

    def close(self):
        note_close()


KINDS = {"env": Env, "steals": Steals, "hangs": Hangs}


def main():
    kind, address, ready = sys.argv[1:4]
    options = ServerOptions(
        ready_file=ready,
        max_sessions=None if kind == "model" else 1,
        drain_timeout_s=float(os.environ.get("DRAIN_S", "10")),
        close_timeout_s=1.0,
        contested_grace_s=0.5,
        idle_timeout_s=1.0,
        isolate="process" if kind == "isolated" else None,
    )
    if kind == "model":
        ModelServer(Policy, address, options).serve()
    elif kind == "isolated":
        EnvServer("tests.fault.server_process:Env", address, options).serve()
    else:
        EnvServer(KINDS[kind], address, options).serve()
    print("returned", flush=True)


if __name__ == "__main__":
    main()
