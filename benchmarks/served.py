"""A process that serves one thing: `python -m benchmarks.served KIND --workload KEY …`.

It prints `READY address` when it can be reached, serves until it is terminated, and ends by itself
when the process that started it is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from benchmarks import bare, fleet_env, workloads
from benchmarks.children import READY
from benchmarks.workloads import Workload

_LOOK_S = 1.0


def ready(address: str) -> None:
    """Tell the process that started this one where to go."""
    print(f"{READY}{address}", flush=True)


def _end_with(parent: int) -> None:
    """End this process when its parent is another one than it was."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


# ------------------------------------------------------------------------------ the peers


def rlmesh_env(workload: Workload, asked: argparse.Namespace) -> None:
    """Serve an env with RLMesh."""
    import rlmesh

    server = rlmesh.EnvServer(workload.make(), asked.address)
    server.start()
    ready(str(server.address))
    server.wait()


def rlmesh_fleet(workload: Workload, asked: argparse.Namespace) -> None:
    """Serve many lanes with RLMesh: Gymnasium's AsyncVectorEnv, a process each."""
    import rlmesh

    makers = [lambda: fleet_env.make_env(workload.key, asked.thinking)] * asked.num_envs
    server = rlmesh.EnvServer(gym.vector.AsyncVectorEnv(makers), asked.address)
    server.start()
    ready(str(server.address))
    server.wait()


def rlmesh_model(workload: Workload, asked: argparse.Namespace) -> None:
    """Serve a model with RLMesh, which does not tell its port: choose one."""
    from rlmesh.numpy import Model

    del asked
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    threading.Thread(target=_ready_when_reached, args=(port,), daemon=True).start()
    Model(workload.policy).serve(f"tcp://127.0.0.1:{port}")


def _ready_when_reached(port: int) -> None:
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            break
        time.sleep(0.05)
    ready(f"tcp://127.0.0.1:{port}")


# ----------------------------------------------------------------------------------- ours


def env_of(workload: Workload, asked: argparse.Namespace) -> Callable[[], Any]:
    """Return a factory of one env, or of many lanes in one process.

    Many lanes are one env object that is batched itself, or a SyncVectorEnv.
    """
    num_envs, make_vector = asked.num_envs, workload.make_vector
    if num_envs == 1:
        return workload.make
    if asked.makes == "sync":
        return lambda: gym.vector.SyncVectorEnv([workload.make] * num_envs)
    if make_vector is None:
        raise ValueError(f"workload {workload.name} has no batched env of its own")
    return lambda: make_vector(num_envs)


def _serve(server_type: type[Any], target: Any, asked: argparse.Namespace) -> None:
    from rollmesh.endpoint.servers.server_options import ServerOptions

    usual = ServerOptions().connection
    options = ServerOptions(
        native=False,  # what is measured is the address that was asked for
        connection=dataclasses.replace(usual, spin=asked.spin, processes=asked.processes),
    )
    with server_type(target, asked.address, options) as server:
        ready(server.address)
        server.wait()


def rollmesh_env(workload: Workload, asked: argparse.Namespace) -> None:
    """Serve an env with rollmesh."""
    from rollmesh.endpoint.servers.env_server import EnvServer

    _serve(EnvServer, env_of(workload, asked), asked)


def rollmesh_model(workload: Workload, asked: argparse.Namespace) -> None:
    """Serve a model with rollmesh."""
    from rollmesh.endpoint.servers.model_server import ModelServer

    _serve(ModelServer, workload.policy, asked)


KINDS: dict[str, Callable[[Workload, argparse.Namespace], None]] = {
    "rlmesh-env": rlmesh_env,
    "rlmesh-fleet": rlmesh_fleet,
    "rlmesh-model": rlmesh_model,
    "rollmesh-env": rollmesh_env,
    "rollmesh-model": rollmesh_model,
    "bare": lambda workload, asked: bare.serve(workload, asked.address, asked.spin, ready),
    "bare-grpc": lambda workload, asked: bare.serve_grpc(workload, asked.address, ready),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until terminated."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.served", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--workload", required=True, type=workloads.named, help="as robot:200")
    parser.add_argument("--address", default="tcp://127.0.0.1:0")
    parser.add_argument("--num-envs", type=int, default=1)
    parser.add_argument("--makes", default="batched", choices=("batched", "sync"))
    parser.add_argument("--thinking", default=fleet_env.AWAKE, help="how the envs of a fleet sleep")
    parser.add_argument("--processes", type=int, default=2, help="that take turns with this one")
    parser.add_argument("--spin", default="auto", choices=("auto", "always", "never"))
    asked = parser.parse_args(arguments)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    logging.getLogger("rollmesh").setLevel(logging.ERROR)
    KINDS[asked.kind](asked.workload, asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
