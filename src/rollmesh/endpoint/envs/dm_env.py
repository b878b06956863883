"""dm_env-style envs in Gymnasium's shape, through Shimmy (layer 6).

Shimmy is imported when the first such env is opened. Envs of dm_control go through Shimmy's own
wrapper, which seeds them; other dm_env envs through its conversions of specs and time steps.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

from rollmesh.endpoint.reporting import Report
from rollmesh.errors import InvalidSpec

_Step: TypeAlias = tuple[Any, Any, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated and info."""


def is_dm_env(value: object) -> bool:
    """Return whether something is an env in the shape of dm_env and not in Gymnasium's."""
    return (
        not isinstance(value, type)
        and not hasattr(value, "observation_space")
        and all(
            callable(getattr(value, name, None))
            for name in ("observation_spec", "action_spec", "reset", "step")
        )
    )


def adapt_dm_env(env: Any, report: Report) -> Any:
    """Return the env in the shape of `gymnasium.Env`.

    Raises:
        InvalidSpec: Shimmy is missing, or it cannot convert a spec.
    """
    if hasattr(env, "physics"):
        return _shimmy("dm_control_compatibility").DmControlCompatibilityV0(env)
    return DmEnvAdapter(env, report)


class DmEnvAdapter:
    """A plain dm_env env in the shape of `gymnasium.Env`.

    dm_env has no seed in its reset: an env with a `seed` method gets it there, another ignores it,
    which is reported once. A discount of 0 at the end means terminated, any other truncated.
    """

    render_mode: str | None = None

    def __init__(self, env: Any, report: Report) -> None:
        """Convert the specs.

        Raises:
            InvalidSpec: Shimmy is missing, or it cannot convert a spec.
        """
        convert = _shimmy("utils.dm_env")
        self._env = env
        self._report = report
        self._convert: Callable[[Any], _Step] = convert.dm_env_step2gym_step
        self.metadata: dict[str, Any] = {}
        try:
            self.observation_space: Any = convert.dm_spec2gym_space(env.observation_spec())
            self.action_space: Any = convert.dm_spec2gym_space(env.action_spec())
        except (NotImplementedError, TypeError) as exc:
            raise InvalidSpec("env", f"Shimmy cannot convert a spec: {exc}") from exc

    @property
    def unwrapped(self) -> Any:
        """The env itself."""
        return self._env

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; `options` has no counterpart and is refused unless empty."""
        if options:
            raise ValueError(f"a dm_env env takes no reset options, got {options!r}")
        if seed is not None:
            self._seed(seed)
        observation, _, _, _, info = self._convert(self._env.reset())
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply an action."""
        return self._convert(self._env.step(action))

    def close(self) -> None:
        """Close the env, if it can be closed."""
        close = getattr(self._env, "close", None)
        if close is not None:
            close()

    def _seed(self, seed: int) -> None:
        sow = getattr(self._env, "seed", None)
        if callable(sow):
            sow(seed)
        else:
            self._report("seed", "a dm_env env without a `seed` method cannot be seeded; ignored")


def _shimmy(name: str) -> Any:
    """Return a module of Shimmy, which has no types.

    Raises:
        InvalidSpec: It is missing.
    """
    try:
        return importlib.import_module(f"shimmy.{name}")
    except ImportError as exc:
        raise InvalidSpec(
            "env",
            f"a dm_env env needs Shimmy ({exc}); install it with: pip install 'rollmesh[dm]'",
        ) from exc
