"""Subjects: who is measured in process, each doing the same work on the same env.

Bare loop, Gymnasium's vector envs, RLMesh 0.1.0, and ours through the public door only. A
subject's bout is about one episode of each lane; the units it returns are env steps times lanes.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from benchmarks.harness import Subject
from benchmarks.workloads import Workload

RLMESH_VERSION = "0.1.0"
BARE = "bare loop"
SYNC = "Gymnasium SyncVectorEnv"
ASYNC = "Gymnasium AsyncVectorEnv"
RLMESH_RUN = "RLMesh Model.run"
RLMESH_SESSION = "RLMesh Session.run"
OURS = "rollmesh"
OURS_JOURNAL = "rollmesh, with the default journal"
OURS_FACTORY = "rollmesh, env from a factory"
OURS_BUILT = "rollmesh, env and model from factories"
OURS_LANES = "rollmesh, independent lanes"
OURS_VECTOR = "rollmesh, SyncVectorEnv"
OURS_BATCHED = "rollmesh, one batched env"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A subject that can be built.

    Attributes:
        name: Name of the subject.
        build: Builds it, env included.
        missing: What to type before it can be built, or None.
    """

    name: str
    build: Callable[[], Subject]
    missing: str | None = None


def rlmesh_missing() -> str | None:
    """Return how to get the RLMesh we compare with, or None if it is here."""
    try:
        if importlib.metadata.version("rlmesh") == RLMESH_VERSION:
            return None
    except importlib.metadata.PackageNotFoundError:
        pass
    return f"pip install rlmesh=={RLMESH_VERSION}"


# ------------------------------------------------------------------------------ the peers


def bare(workload: Workload) -> Entry:
    """Return the floor: reset, policy, step in a plain Python loop, returns added up."""

    def build() -> Subject:
        env = workload.make()
        policy = workload.policy

        def run(bouts: int) -> int:
            steps = 0
            for _ in range(bouts):
                observation, _info = env.reset()
                total, ended = 0.0, False
                while not ended:
                    observation, reward, terminated, truncated, _info = env.step(
                        policy(observation)
                    )
                    total += float(reward)
                    steps += 1
                    ended = terminated or truncated
            return steps

        return Subject(name=BARE, run=run, close=env.close)

    return Entry(name=BARE, build=build)


def _gymnasium_vector(name: str, workload: Workload, make: Callable[[], Any]) -> Entry:
    def build() -> Subject:
        env = make()
        policy = workload.batch_policy
        observation, _infos = env.reset(seed=0)
        held = [observation]

        def run(bouts: int) -> int:
            observation = held[0]
            for _ in range(bouts * 100):
                observation, *_rest = env.step(policy(observation))
            held[0] = observation
            return bouts * 100 * env.num_envs

        return Subject(name=name, run=run, close=env.close)

    return Entry(name=name, build=build)


def sync_vector(workload: Workload, num_envs: int = 1) -> Entry:
    """Return Gymnasium's SyncVectorEnv with its autoreset, stepping 100 times a bout."""
    makers = [workload.make] * num_envs
    return _gymnasium_vector(SYNC, workload, lambda: gym.vector.SyncVectorEnv(makers))


def async_vector(workload: Workload, num_envs: int = 1) -> Entry:
    """Return Gymnasium's AsyncVectorEnv (a process per lane, shared memory), 100 steps a bout."""
    makers = [workload.make] * num_envs
    return _gymnasium_vector(
        ASYNC, workload, lambda: gym.vector.AsyncVectorEnv(makers, shared_memory=True)
    )


def rlmesh_run(workload: Workload) -> Entry:
    """Return RLMesh's `Model.run(env)`: its full loop; it serves a local env on a loopback port."""

    def build() -> Subject:
        from rlmesh.numpy import Model

        env = workload.make()
        model = Model(workload.policy)

        def run(bouts: int) -> int:
            return int(model.run(env, episodes=bouts).total_steps)

        return Subject(name=RLMESH_RUN, run=run, close=env.close)

    return Entry(name=RLMESH_RUN, build=build, missing=rlmesh_missing())


def rlmesh_session(workload: Workload) -> Entry:
    """Return RLMesh's `Session.run`: it calls env and model directly, no runtime, no codec."""

    def build() -> Subject:
        from rlmesh.numpy import Model

        env = workload.make()
        model = Model(workload.policy)

        def run(bouts: int) -> int:
            with model.session(env) as session:
                return int(session.run(episodes=bouts).total_steps)

        return Subject(name=RLMESH_SESSION, run=run, close=env.close)

    return Entry(name=RLMESH_SESSION, build=build, missing=rlmesh_missing())


# ----------------------------------------------------------------------------------- ours


def _evaluated(name: str, model: Any, make: Callable[[], Any], **arguments: Any) -> Entry:
    """Return `rollmesh.evaluate`, timed as its user sees it: the whole call."""

    def build() -> Subject:
        import rollmesh

        env = make()
        width = arguments.get("num_envs") or getattr(env, "num_envs", None) or 1

        def run(bouts: int) -> int:
            result = rollmesh.evaluate(model, env, episodes=bouts * width, **arguments)
            return sum(episode.steps for episode in result.episodes)

        return Subject(name=name, run=run, close=getattr(env, "close", _nothing))

    return Entry(name=name, build=build)


def _nothing() -> None:
    """Close a factory: nothing to do."""


def ours(workload: Workload) -> Entry:
    """Return `rollmesh.evaluate` on an env instance."""
    return _evaluated(OURS, workload.policy, workload.make)


def ours_journal(workload: Workload) -> Entry:
    """Return `rollmesh.evaluate` on an env instance, kept in a folder: a new one each call."""

    def build() -> Subject:
        import rollmesh

        env = workload.make()
        place = tempfile.TemporaryDirectory(prefix="rollmesh-bench-")
        names = itertools.count()

        def run(bouts: int) -> int:
            folder = Path(place.name) / str(next(names))
            result = rollmesh.evaluate(workload.policy, env, episodes=bouts, run_dir=folder)
            return sum(episode.steps for episode in result.episodes)

        def close() -> None:
            env.close()
            place.cleanup()

        return Subject(name=OURS_JOURNAL, run=run, close=close)

    return Entry(name=OURS_JOURNAL, build=build)


def ours_factory(workload: Workload) -> Entry:
    """Return `rollmesh.evaluate` on a factory: the env lives on a thread of its own."""
    return _evaluated(OURS_FACTORY, workload.policy, lambda: workload.make)


def ours_built(workload: Workload) -> Entry:
    """Return `rollmesh.evaluate` where it builds both, as the command line does: one thread."""
    policy = workload.policy

    class BuiltModel:
        """Is built by rollmesh."""

        def predict(self, observation: Any) -> Any:
            """Return an action."""
            return policy(observation)

    return _evaluated(OURS_BUILT, BuiltModel, lambda: workload.make)


def ours_lanes(workload: Workload, num_envs: int) -> Entry:
    """Return `rollmesh.evaluate` on a factory with `num_envs` independent lanes."""
    return _evaluated(OURS_LANES, workload.policy, lambda: workload.make, num_envs=num_envs)


def batch_model(workload: Workload) -> Any:
    """Return a model that answers a batch at a time."""

    class BatchModel:
        """Has the batched corner only."""

        def predict_batch(self, observation: Any) -> Any:
            """Return an action per row."""
            return workload.batch_policy(observation)

    return BatchModel()


def ours_vector(workload: Workload, num_envs: int) -> Entry:
    """Return `rollmesh.evaluate` on a SyncVectorEnv instance."""
    makers = [workload.make] * num_envs
    return _evaluated(OURS_VECTOR, batch_model(workload), lambda: gym.vector.SyncVectorEnv(makers))


def ours_batched(workload: Workload, num_envs: int) -> Entry:
    """Return `rollmesh.evaluate` on one env object of `num_envs` lanes."""
    make_vector = workload.make_vector
    if make_vector is None:
        raise ValueError(f"workload {workload.name} has no batched env of its own")
    return _evaluated(OURS_BATCHED, batch_model(workload), lambda: make_vector(num_envs))
