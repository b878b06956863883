"""A policy for CartPole-v1: push right if a weighted sum of the observation is positive.

The weights lie beside this file in cartpole_policy.json and come from train_cartpole.py. Use it as
a target (`rollmesh eval CartPole-v1 --model examples.cartpole_policy:CartPolePolicy`), or run this
file: it evaluates twenty episodes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import rollmesh

WEIGHTS = Path(__file__).with_name("cartpole_policy.json")


class CartPolePolicy(rollmesh.Model):
    """Linear policy: observation (4,) float32 → action 0 or 1."""

    def load(self) -> None:
        """Read the weights, (4,)."""
        table = json.loads(WEIGHTS.read_text(encoding="utf-8"))
        self.weights = np.asarray(table["weights"])

    def predict(self, observation: Any) -> int:
        """Return 0 (left) or 1 (right)."""
        return int(self.weights @ observation > 0.0)


if __name__ == "__main__":
    print(rollmesh.evaluate(CartPolePolicy, "CartPole-v1", episodes=20, base_seed=0))
