"""Train the policy in half_cheetah.json: a linear map, found by augmented random search.

Try pairs of small steps in opposite directions, keep the directions that made the largest
difference, move along them weighted by that difference. Observations are normalised by the
statistics of all that were seen; in the end that is folded into the weights. Takes some minutes on
one core; `--quick` runs one short round and writes nothing.

Source: H. Mania, A. Guy, B. Recht, "Simple random search of static linear policies is competitive
for reinforcement learning", NeurIPS 2018 (there V2-t).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np

WEIGHTS = Path(__file__).with_name("half_cheetah.json")
DIRECTIONS, BEST, ROUNDS, STEP_SIZE, NOISE, SEED = 16, 8, 150, 0.03, 0.03, 2


class Normaliser:
    """Running mean and spread of observations, (17,) each."""

    def __init__(self, size: int) -> None:
        self.count, self.mean, self.squares = 0, np.zeros(size), np.zeros(size)

    def add(self, observations: np.ndarray) -> None:
        """Take a batch (N, 17) into the statistics."""
        count = len(observations)
        mean = observations.mean(axis=0)
        shift = mean - self.mean
        total = self.count + count
        self.squares += ((observations - mean) ** 2).sum(axis=0)
        self.squares += shift**2 * self.count * count / total
        self.mean += shift * count / total
        self.count = total

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation, 1 where nothing is known."""
        if self.count < 2:
            return np.ones_like(self.mean)
        return np.maximum(np.sqrt(self.squares / self.count), 1e-3)


def play(
    env: gymnasium.Env, weights: np.ndarray, bias: np.ndarray, *, seed: int, steps: int
) -> tuple[float, list[np.ndarray]]:
    """Return the total reward of one rollout of a linear policy, and the observations it saw."""
    observation, _ = env.reset(seed=seed)
    total, seen = 0.0, []
    for _ in range(steps):
        seen.append(observation)
        action = np.clip(weights @ observation + bias, -1.0, 1.0)
        observation, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        if terminated or truncated:
            break
    return total, seen


def train(rounds: int, *, directions: int = DIRECTIONS, steps: int = 1000) -> dict[str, object]:
    """Return weights (6, 17) and bias (6,) for raw observations, as lists."""
    env = gymnasium.make("HalfCheetah-v5").unwrapped
    rng = np.random.default_rng(SEED)
    normaliser = Normaliser(17)
    matrix, started = np.zeros((6, 17)), time.perf_counter()
    best, kept = -np.inf, (matrix.copy(), np.zeros(6))
    for index in range(rounds):
        spread, mean = normaliser.spread, normaliser.mean.copy()
        deltas = rng.standard_normal((directions, 6, 17))
        pairs = np.zeros((directions, 2))
        for row, delta in enumerate(deltas):
            for column, sign in enumerate((1.0, -1.0)):
                weights = (matrix + sign * NOISE * delta) / spread
                seed = int(rng.integers(2**31))
                pairs[row, column], seen = play(
                    env, weights, -weights @ mean, seed=seed, steps=steps
                )
                normaliser.add(np.asarray(seen))
        order = np.argsort(pairs.max(axis=1))[-min(BEST, directions) :]
        used = pairs[order]
        move = np.tensordot(used[:, 0] - used[:, 1], deltas[order], axes=1)
        matrix += STEP_SIZE / (len(order) * (used.std() + 1e-6)) * move
        weights = matrix / normaliser.spread
        bias = -weights @ normaliser.mean
        score = np.mean([play(env, weights, bias, seed=s, steps=steps)[0] for s in range(2)])
        if score > best:
            best, kept = score, (weights, bias)
        if index % 10 == 0 or index == rounds - 1:
            took_s = time.perf_counter() - started
            print(f"round {index + 1:3}: return {score:8.1f}, best {best:8.1f}, {took_s:.0f} s")
    env.close()
    return {
        "env": "HalfCheetah-v5",
        "weights": [[round(float(w), 4) for w in row] for row in kept[0]],
        "bias": [round(float(b), 4) for b in kept[1]],
    }


def main() -> None:
    if "--quick" in sys.argv[1:]:
        train(rounds=1, directions=2, steps=50)
        return
    table = train(ROUNDS)
    WEIGHTS.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {WEIGHTS.name}")


if __name__ == "__main__":
    main()
