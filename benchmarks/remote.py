"""Subjects across processes: RLMesh's servers and ours, driven the ways their users drive them.

A subject's bout is about one episode of each lane, its units are env steps times lanes, and the
whole call counts, connecting included, as in process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.children import FOLDER, Drive, driven
from benchmarks.subjects import Entry, batch_model, rlmesh_missing
from benchmarks.workloads import Workload

TCP = "tcp://127.0.0.1:0"
UNIX = f"unix://{FOLDER}/socket"
NATIVE_TCP = "rollmesh+tcp://127.0.0.1:0"
NATIVE_UNIX = "rollmesh+unix://"

RLMESH_RUN = "RLMesh Model.run"
RLMESH_ENV = "RLMesh RemoteEnv"
RLMESH_BOTH = "RLMesh, both served"
OURS_UNIX = "rollmesh, unix"
OURS_UNIX_BLOCKING = "rollmesh, unix, no spinning"
OURS_TCP = "rollmesh, TCP"
OURS_GRPC = "rollmesh, gRPC"
OUR_ENV = "rollmesh RemoteEnv, unix"


def _arguments(kind: str, workload: Workload, address: str, *more: str) -> Sequence[str]:
    return [kind, "--workload", workload.key, "--address", address, *more]


def _gymnasium_episodes(env: Any, workload: Workload) -> Callable[[int], int]:
    """Return a loop that a user of a Gymnasium env writes by hand."""
    policy = workload.policy

    def run(bouts: int) -> int:
        steps = 0
        for _ in range(bouts):
            observation, _info = env.reset(seed=0)
            ended = False
            while not ended:
                observation, _reward, terminated, truncated, _info = env.step(policy(observation))
                steps += 1
                ended = terminated or truncated
        return steps

    return run


# ------------------------------------------------------------------------------ the peers


def _rlmesh(name: str, servers: Sequence[Sequence[str]], connect: Callable[..., Drive]) -> Entry:
    return Entry(name=name, build=lambda: driven(name, servers, connect), missing=rlmesh_missing())


def rlmesh_run(workload: Workload, address: str = TCP, name: str = RLMESH_RUN) -> Entry:
    """Return RLMesh's `Model.run` against a served env: its native loop."""

    def connect(where: str) -> Drive:
        from rlmesh.numpy import Model

        model = Model(workload.policy)
        return Drive(run=lambda bouts: int(model.run(where, episodes=bouts).total_steps))

    return _rlmesh(name, [_arguments("rlmesh-env", workload, address)], connect)


def rlmesh_env(workload: Workload, address: str = TCP, name: str = RLMESH_ENV) -> Entry:
    """Return RLMesh's `RemoteEnv` in a loop by hand."""

    def connect(where: str) -> Drive:
        from rlmesh.numpy import RemoteEnv

        env = RemoteEnv(where)
        return Drive(run=_gymnasium_episodes(env, workload), close=env.close)

    return _rlmesh(name, [_arguments("rlmesh-env", workload, address)], connect)


def rlmesh_both(workload: Workload, name: str = RLMESH_BOTH) -> Entry:
    """Return RLMesh's `run` with a served model and a served env; its models take TCP only."""

    def connect(env_address: str, model_address: str) -> Drive:
        import rlmesh
        from rlmesh.numpy import RemoteEnv, RemoteModel

        model = RemoteModel(model_address)

        def run(bouts: int) -> int:
            env = RemoteEnv(env_address)
            try:
                return int(rlmesh.run(model, env, episodes=bouts).total_steps)
            finally:
                env.close()

        return Drive(run=run)

    servers = [
        _arguments("rlmesh-env", workload, TCP),
        _arguments("rlmesh-model", workload, TCP),
    ]
    return _rlmesh(name, servers, connect)


# ----------------------------------------------------------------------------------- ours


def _client(address: str, *, spins: bool = True) -> Any:
    """Return the options of a client, or None for the default ones.

    At a gRPC address it is kept from changing to a faster transport.
    """
    from rollmesh.endpoint.clients.client_options import client_options
    from rollmesh.transport.connection import ConnectionOptions

    if not address.startswith("rollmesh+"):
        return client_options(transport="grpc")
    if spins:
        return None
    return client_options(connection=ConnectionOptions(lent=True, spin="never"))


def ours(
    name: str,
    workload: Workload,
    *,
    address: str = NATIVE_UNIX,
    spins: bool = True,
    num_envs: int = 1,
    makes: str = "batched",
) -> Entry:
    """Return `rollmesh.evaluate` with the address of a served env, or of many lanes.

    Args:
        name: Name of the subject.
        workload: What the env is.
        address: Where to serve it.
        spins: Whether both ends may spin (where measuring says that it pays), as is the default.
        num_envs: Lanes.
        makes: What stands for many lanes: see `served.env_of`.
    """

    def connect(where: str) -> Drive:
        import rollmesh
        from rollmesh.endpoint.clients.remote_env import RemoteEnv

        model = workload.policy if num_envs == 1 else batch_model(workload)
        options = _client(where, spins=spins)
        env: Any = where if options is None else RemoteEnv(where, options=options)

        def run(bouts: int) -> int:
            result = rollmesh.evaluate(model, env, episodes=bouts * num_envs)
            return sum(episode.steps for episode in result.episodes)

        return Drive(run=run, close=getattr(env, "close", lambda: None))

    more = ["--num-envs", str(num_envs), "--makes", makes, "--spin", "auto" if spins else "never"]
    server = _arguments("rollmesh-env", workload, address, *more)
    return Entry(name=name, build=lambda: driven(name, [server], connect))


def our_env(name: str, workload: Workload, *, address: str = NATIVE_UNIX) -> Entry:
    """Return our `RemoteEnv` in a loop by hand."""

    def connect(where: str) -> Drive:
        from rollmesh.endpoint.clients.remote_env import RemoteEnv

        env = RemoteEnv(where)
        return Drive(run=_gymnasium_episodes(env, workload), close=env.close)

    server = _arguments("rollmesh-env", workload, address)
    return Entry(name=name, build=lambda: driven(name, [server], connect))


def ours_both(name: str, workload: Workload, *, address: str = NATIVE_UNIX) -> Entry:
    """Return `rollmesh.evaluate` with two addresses: env and model each in a process."""

    def connect(env_address: str, model_address: str) -> Drive:
        import rollmesh
        from rollmesh.endpoint.clients.remote_env import RemoteEnv
        from rollmesh.endpoint.clients.remote_model import RemoteModel

        options = _client(env_address)
        model: Any = model_address
        env: Any = env_address
        if options is not None:
            model, env = RemoteModel(model, options=options), RemoteEnv(env, options=options)

        def run(bouts: int) -> int:
            result = rollmesh.evaluate(model, env, episodes=bouts)
            return sum(episode.steps for episode in result.episodes)

        return Drive(run=run, close=getattr(env, "close", lambda: None))

    servers = [
        _arguments("rollmesh-env", workload, address),
        _arguments("rollmesh-model", workload, address),
    ]
    return Entry(name=name, build=lambda: driven(name, servers, connect))
