"""Policies saved by Stable-Baselines3 (layer 6).

Needs the extra `rollmesh[sb3]`, imported by the functions that use it. A saved policy is read by
Stable-Baselines3 itself, which runs code from the file: open only files that you trust. Statistics
of a `VecNormalize` are not part of such a file; a policy trained behind one must be wrapped by its
owner.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any, cast

import numpy as np

from rollmesh.endpoint.models.model import EpisodeContext, Model
from rollmesh.errors import InvalidSpec

_MEMORY = "memory"
_ALGORITHMS = ("PPO", "A2C", "DQN", "SAC", "TD3", "DDPG")
_SIGNS = (
    ("PPO", "clip_range"),
    ("DQN", "exploration_fraction"),
    ("SAC", "target_entropy"),
    ("TD3", "target_policy_noise"),
    ("A2C", "gae_lambda"),
)
"""What only that algorithm saves, in the order to look; DDPG saves what TD3 does."""


class StableBaselinesPolicy(Model):
    """A trained Stable-Baselines3 algorithm, asked for its deterministic action.

    What a recurrent one (`RecurrentPPO`) remembers of an episode is kept with the episode; it is
    asked row by row.

    Args:
        algorithm: A loaded algorithm: anything whose `predict(observation, deterministic=True)`
            returns (actions, states) and which takes states that are not None back as `state`.
    """

    def __init__(self, algorithm: Any) -> None:
        self.algorithm = algorithm
        self._is_recurrent = False

    def predict(self, observation: Any, context: EpisodeContext) -> Any:
        memory = context.state.get(_MEMORY)
        given = {} if memory is None else {"state": memory}
        action, memory = self.algorithm.predict(observation, deterministic=True, **given)
        if memory is not None:
            self._is_recurrent = True
            context.state[_MEMORY] = memory
        return action

    def predict_batch(self, observations: Any, context: tuple[EpisodeContext, ...]) -> Any:
        if not self._is_recurrent:
            actions, memories = self.algorithm.predict(observations, deterministic=True)
            if memories is None:
                return actions
        rows = [self.predict(_row(observations, row), one) for row, one in enumerate(context)]
        return np.stack(rows)


def _row(observations: Any, row: int) -> Any:
    """Return one row of a batch."""
    if isinstance(observations, dict):
        table = cast("dict[str, Any]", observations)
        return {name: _row(part, row) for name, part in table.items()}
    return observations[row]


def is_algorithm(model: object) -> bool:
    """Return whether a value is an algorithm of Stable-Baselines3, without importing it."""
    base = getattr(sys.modules.get("stable_baselines3.common.base_class"), "BaseAlgorithm", None)
    return base is not None and isinstance(model, base)


def load_policy_file(path: str | os.PathLike[str]) -> StableBaselinesPolicy:
    """Load a policy file (`ppo.zip`) on the CPU.

    Raises:
        InvalidSpec: There is no such file, it is no such file, no algorithm can load it, or
            Stable-Baselines3 is not installed.
    """
    saved = check_policy_file(path)
    try:
        stable_baselines3 = importlib.import_module("stable_baselines3")
    except ImportError as exc:
        raise InvalidSpec(
            "model", f"{path} needs stable-baselines3: pip install 'rollmesh[sb3]' ({exc})"
        ) from exc
    likely = likely_algorithm(saved)
    failures: list[str] = []
    for name in sorted(_ALGORITHMS, key=lambda name: name != likely):
        try:
            algorithm = getattr(stable_baselines3, name).load(path, device="cpu")
        except Exception as exc:  # noqa: BLE001 - foreign code; the next algorithm may fit
            failures.append(f"{name}: {type(exc).__name__}: {str(exc)[:200]}")
        else:
            return StableBaselinesPolicy(algorithm)
    raise InvalidSpec("model", f"no algorithm loads {path} ({'; '.join(failures)})")


def check_policy_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the table of saved attributes of a policy file, without running any of it.

    Raises:
        InvalidSpec: There is no such file, or it is none of Stable-Baselines3.
    """
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            table: dict[str, Any] | list[Any] | str | float | None = json.loads(
                archive.read("data")
            )
    except FileNotFoundError as exc:
        raise InvalidSpec("model", f"there is no file {os.fspath(path)!r}") from exc
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as exc:
        raise InvalidSpec(
            "model",
            f"{os.fspath(path)!r} is no policy file of Stable-Baselines3 ({exc}); wants what its "
            "`save` wrote",
        ) from exc
    if not isinstance(table, dict) or "policy_class" not in table:
        raise InvalidSpec(
            "model", f"{os.fspath(path)!r} is no policy file of Stable-Baselines3: no policy_class"
        )
    return table


def likely_algorithm(saved: dict[str, Any]) -> str | None:
    """Return the algorithm that a table of saved attributes points to, or None."""
    return next((name for name, sign in _SIGNS if sign in saved), None)
