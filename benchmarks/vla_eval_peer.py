"""W5 on vla-eval, run by the python of a venv that has it: `vla_eval_peer.py w3 constant 5`.

One model server (its `PredictModelServer` with its default wait), sixteen client processes that act
and sleep. Prints one line of JSON: steps and seconds. Imports nothing of this project.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

LANES = 16
FORWARD_S, ROW_S = 0.020, 0.0005
STEP_S, STALL_S, STALLS = 0.005, 0.060, 0.05
START_S = 60.0


@dataclass(frozen=True)
class Match:
    """What a client needs to know; the queues are those of `multiprocessing`."""

    url: str
    kind: str
    thinking: str
    ready: Any
    go: Any
    counts: Any


def think_s(thinking: str, chance: random.Random) -> float:
    """Return how long a step takes."""
    if thinking == "constant":
        return STEP_S
    between = (STEP_S - STALLS * STALL_S) / (1 - STALLS)
    return STALL_S if chance.random() < STALLS else between


def observation_of(kind: str, number: int) -> dict[str, Any]:
    """Return what a client sends: the same each time."""
    if kind != "w3":
        return {"states": np.zeros(4, np.float32)}
    generator = np.random.default_rng(number)
    images = {
        name: generator.integers(0, 256, (256, 256, 3), dtype=np.uint8) for name in ("a", "b")
    }
    state = np.zeros(8, np.float32)
    return {"images": images, "states": state, "task_description": "pick up the red block"}


def serve(url: Any) -> None:
    """Serve the model, and tell where."""
    from vla_eval import api
    from vla_eval.model_servers.predict import PredictModelServer

    class Accelerator(PredictModelServer):
        """Takes the time of a forward."""

        def predict(self, obs: Any, ctx: Any) -> Any:
            """Answer one row."""
            return self.predict_batch([obs], [ctx])[0]

        def predict_batch(self, obs_batch: Any, ctx_batch: Any) -> Any:
            """Answer a batch."""
            time.sleep(FORWARD_S + ROW_S * len(ctx_batch))
            return [{"actions": np.zeros(7, np.float32)} for _ in obs_batch]

        def get_action_spec(self) -> dict[str, Any]:
            """Declare nothing."""
            return {}

        def get_observation_spec(self) -> dict[str, Any]:
            """Declare nothing."""
            return {}

    handle = api.serve_background(Accelerator(max_batch_size=LANES))
    url.put(handle.url)
    time.sleep(3600.0)


def drive(match: Match, number: int) -> None:
    """Act and sleep; tell how often within the time that counts."""
    import anyio
    from vla_eval.connection import Connection

    chance = random.Random(number)
    observation = observation_of(match.kind, number)

    async def act() -> None:
        async with Connection(match.url) as connection:
            await connection.start_episode({"task": {"name": "t"}})
            await connection.act(observation)
            match.ready.put(number)
            begins, ends = match.go.get()
            steps = 0
            while time.monotonic() < ends:
                await connection.act(observation)
                time.sleep(think_s(match.thinking, chance))  # noqa: ASYNC251 - an env steps here
                steps += begins <= time.monotonic() < ends
            match.counts.put(steps)

    anyio.run(act)


def main(kind: str, thinking: str, seconds: float) -> None:
    """Start everything, measure, print."""
    context = multiprocessing.get_context("spawn")
    url = context.Queue()
    server = context.Process(target=serve, args=(url,), daemon=True)
    server.start()
    match = Match(
        url.get(timeout=START_S), kind, thinking, context.Queue(), context.Queue(), context.Queue()
    )
    clients = [
        context.Process(target=drive, args=(match, number), daemon=True) for number in range(LANES)
    ]
    for client in clients:
        client.start()
    for _ in clients:
        match.ready.get(timeout=START_S)
    begins = time.monotonic() + 1.0
    for _ in clients:
        match.go.put((begins, begins + seconds))
    steps = sum(match.counts.get(timeout=seconds + START_S) for _ in clients)
    print(json.dumps({"steps": steps, "seconds": seconds}), flush=True)
    server.terminate()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
