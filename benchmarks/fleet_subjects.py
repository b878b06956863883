"""Subjects of W5: ways to have one model drive sixteen envs.

A subject is started once, its processes wait between bursts, and a burst is measured in its middle:
from the answers of the model within a window, so that starting and running out do not count.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from benchmarks import fleet_env
from benchmarks.children import FOLDER, Child
from benchmarks.fleet_env import LANES, LIMIT, Accelerator
from benchmarks.harness import Burst
from benchmarks.workloads import Workload

SETTLE_S = 0.3
EPISODE_STEPS = 48
"""As of a short task; the window closes before lanes run out of work."""
_VLA_EVAL = "ROLLMESH_VLA_EVAL_PYTHON"
VLA_EVAL_MISSING = f"vla-eval in a venv of its own, {_VLA_EVAL}=its python"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One way to run the fleet.

    Attributes:
        name: How the table calls it.
        burst: Runs for about so many seconds and returns what it did in the middle.
    """

    name: str
    burst: Callable[[float], Burst]


def window(answered: Sequence[tuple[float, int]], seconds: float) -> Burst:
    """Return what was answered within a window that opens once everything runs.

    Raises:
        ValueError: There were fewer than two answers.
    """
    opens = answered[0][0] + SETTLE_S
    inside = [one for one in answered if opens <= one[0] <= opens + seconds]
    if len(inside) < 2:
        inside = list(answered[-3:])
    if len(inside) < 2:
        raise ValueError(f"the model was asked {len(answered)} times; a rate needs more")
    return Burst(units=sum(rows for _, rows in inside[1:]), seconds=inside[-1][0] - inside[0][0])


# ----------------------------------------------------------------------------------- ours


class Workers:
    """Sixteen env processes that wait for work, and the routes that use them in turn.

    Args:
        workload: What the envs are.
        thinking: Whether they sleep; one of `THINKING` can be changed with a reset.
        lanes: How many.
    """

    def __init__(
        self, workload: Workload, thinking: str = "constant", *, lanes: int = LANES
    ) -> None:
        from rollmesh.fleet.lanes import FleetEnvs
        from rollmesh.fleet.worker_spec import EnvTarget

        target = EnvTarget.of(fleet_env.make_env, {"key": workload.key, "thinking": thinking})
        self._fleet: Any = FleetEnvs.open({"w5": target}, workers=lanes)
        self._action = workload.policy(None)
        self._lanes = lanes
        self._drive(Accelerator(self._action), lanes, thinking, None)  # workers start with it

    def close(self) -> None:
        """End the processes."""
        self._fleet.close(5.0)

    def contender(
        self, name: str, thinking: str, *, max_wait_s: float | None = None, rate: float = LIMIT
    ) -> Contender:
        """Return a free-running fleet over these workers with one model that batches."""

        def burst(seconds: float) -> Burst:
            model = Accelerator(self._action)
            episodes = math.ceil((SETTLE_S + seconds) * rate / EPISODE_STEPS) + self._lanes
            self._drive(model, episodes, thinking, max_wait_s)
            return window(model.answered, seconds)

        return Contender(name=name, burst=burst)

    def _drive(
        self, model: Accelerator, episodes: int, thinking: str, max_wait_s: float | None
    ) -> None:
        from rollmesh.endpoint.models.batched import Batching, batched
        from rollmesh.endpoint.models.model_loading import open_model
        from rollmesh.runtime.driver import RouteDriver
        from rollmesh.runtime.spec import EpisodeStart, SessionSpec

        contract = self._fleet.contract
        spaces = {
            "observation_space": contract.observation_space,
            "action_space": contract.action_space,
        }
        port: Any = batched(open_model(model, **spaces), Batching(max_wait_s=max_wait_s), **spaces)
        starts = [
            EpisodeStart(
                index=index,
                seed=index,
                options=None if thinking == fleet_env.AWAKE else {"thinking": thinking},
                setup="w5",
                max_steps=EPISODE_STEPS,
            )
            for index in range(episodes)
        ]
        spec = SessionSpec(
            env_contract=contract, starts=starts, max_episodes=episodes, retry_late=True
        )
        try:
            RouteDriver(spec, self._fleet, port).run()
        finally:
            close = getattr(port, "close", None)
            if close is not None:
                close()


def lock_step(
    name: str, workload: Workload, thinking: str, *, lanes: int = LANES
) -> tuple[Contender, Callable[[], None]]:
    """Return one vector route: Gymnasium's AsyncVectorEnv, all lanes step by step together."""
    makers = [lambda: fleet_env.make_env(workload.key, thinking)] * lanes
    env = gym.vector.AsyncVectorEnv(makers, shared_memory=True)

    def burst(seconds: float) -> Burst:
        import rollmesh

        model = Accelerator(workload.policy(None))
        rounds = math.ceil((SETTLE_S + seconds) * LIMIT / LANES / EPISODE_STEPS)
        rollmesh.evaluate(model, env, episodes=lanes * rounds, base_seed=0)
        return window(model.answered, seconds)

    return Contender(name=name, burst=burst), env.close


# ------------------------------------------------------------------------------ the peers


def rlmesh_vector(
    name: str, workload: Workload, thinking: str, *, lanes: int = LANES
) -> tuple[Contender, Callable[[], None]]:
    """Return RLMesh's vector route: it serves an AsyncVectorEnv, its `Model.run` drives it."""
    arguments = [
        "rlmesh-fleet",
        "--workload",
        workload.key,
        "--address",
        f"unix://{FOLDER}/socket",
        "--num-envs",
        str(lanes),
        "--thinking",
        thinking,
    ]
    child = Child(arguments)

    def burst(seconds: float) -> Burst:
        from rlmesh.numpy import Model

        accelerator = Accelerator(workload.policy(None))

        class Batched(Model):
            """Answers a batch at a time."""

            workflow_edition = "2026.06"

            def predict(self, observation: Any) -> Any:
                """Answer one row."""
                return accelerator.predict(observation)

            def predict_batch(self, observations: Any) -> Any:
                """Answer a row per lane."""
                return accelerator.predict_batch(observations)

        rounds = 1
        if workload.name != "W3":  # there one round of episodes takes seconds
            rounds = math.ceil((SETTLE_S + seconds) * LIMIT / LANES / EPISODE_STEPS)
        Batched().run(child.address(), episodes=lanes * rounds)
        return window(accelerator.answered, seconds)

    return Contender(name=name, burst=burst), child.end


def vla_eval_missing() -> str | None:
    """Return how to get vla-eval, or None if a python that has it is known."""
    return None if os.environ.get(_VLA_EVAL) else VLA_EVAL_MISSING


def vla_eval(name: str, kind: str, thinking: str) -> Contender:
    """Return vla-eval's published method: its server batches, its clients are processes."""
    python = os.environ[_VLA_EVAL]
    script = Path(__file__).with_name("vla_eval_peer.py")

    def burst(seconds: float) -> Burst:
        with contextlib.ExitStack() as stack:
            process = subprocess.Popen(
                [python, str(script), kind, thinking, str(max(seconds, 3.0))],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            timer = threading.Timer(120.0, process.kill)
            stack.callback(timer.cancel)
            timer.start()
            out, words = process.communicate()
        if process.returncode != 0 or not out.strip():
            raise RuntimeError(f"vla-eval's process failed:\n{words[-2000:]}")
        told = json.loads(out.strip().splitlines()[-1])
        return Burst(units=told["steps"], seconds=told["seconds"])

    return Contender(name=name, burst=burst)
