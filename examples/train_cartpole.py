"""Train the policy in cartpole_policy.json: four weights, found by the cross-entropy method.

Draw a population of weight vectors around a mean, play a few episodes with each, move the mean and
the spread to the best ones, repeat. Takes under a minute; `--quick` runs two rounds and writes
nothing.

Source: R. Y. Rubinstein, "The cross-entropy method for combinatorial and continuous optimization",
Methodology and Computing in Applied Probability 1, 1999.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gymnasium
import numpy as np

WEIGHTS = Path(__file__).with_name("cartpole_policy.json")
POPULATION, ELITE, ROUNDS, EPISODES = 40, 8, 12, 5
SEED = 0


def play(env: gymnasium.Env, weights: np.ndarray, *, seed: int) -> float:
    """Return the total reward of one episode under linear weights, (4,)."""
    observation, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(int(weights @ observation > 0.0))
        total += float(reward)
        over = terminated or truncated
    return total


def train(rounds: int) -> np.ndarray:
    """Return the mean of the last elite, (4,) float64."""
    env = gymnasium.make("CartPole-v1")
    rng = np.random.default_rng(SEED)
    mean, spread = np.zeros(4), np.ones(4)
    for index in range(rounds):
        population = mean + spread * rng.standard_normal((POPULATION, 4))
        seeds = range(index * EPISODES, (index + 1) * EPISODES)
        returns = [np.mean([play(env, w, seed=seed) for seed in seeds]) for w in population]
        elite = population[np.argsort(returns)[-ELITE:]]
        mean, spread = elite.mean(axis=0), elite.std(axis=0) + 0.02
        score = np.sort(returns)[-ELITE:].mean()
        print(f"round {index + 1:2}: mean return of the elite {score:.1f}")
    env.close()
    return mean


def main() -> None:
    if "--quick" in sys.argv[1:]:
        train(rounds=2)
        return
    weights = train(ROUNDS)
    weights /= np.linalg.norm(weights)  # only the direction matters
    table = {"env": "CartPole-v1", "weights": [round(float(w), 6) for w in weights]}
    WEIGHTS.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {WEIGHTS.name}")


if __name__ == "__main__":
    main()
