"""Envs that misbehave on purpose, around any env (layer 7).

    env = broken_env("CartPole-v1", fault="hangs", at_step=5)

or from the command line, with whatever takes `module:callable`: the target is
`rollmesh.testing.faults.envs:broken_env`, and its arguments are `fault=raises at_step=3`.

| fault | what it does at the step |
|---|---|
| `raises` | raises `ValueError` |
| `exits` | calls `sys.exit(3)` |
| `hangs` | does not come back for `seconds`, an hour by default; `release()` ends it |
| `sleeps` | comes back `seconds` late, each time; 0.05 s by default |
| `nan` | every floating number of the observation, and the reward, is NaN |
| `wrong_shape` | every array of the observation has two dimensions more |
| `aliases` | returns the same buffers each time, overwritten by the next step |
| `huge_info` | the info holds `nbytes` bytes, 8 MiB by default |
| `odd_info` | the info holds a lambda, a lock, a cycle and odd keys |
| `closes_twice` | `close` closes the env twice |
| `close_raises` | `close` raises `RuntimeError` |
| `kills_process` | `os._exit(9)`: the process is gone without a word |
| `segfaults` | reads address 0 |
| `hogs_memory` | keeps `nbytes` more bytes a step, 64 MiB by default, up to eight times |
| `prints_noise` | writes `nbytes` bytes, 64 kB by default, to stdout and stderr |

The first reset is step 0; `at_step` counts the steps of the whole life of the env, not of an
episode. `kills_process` and `segfaults` take the whole process with them: run them behind a server
in a process of its own.
"""

from __future__ import annotations

from typing import Any, cast

import gymnasium

from rollmesh.testing.faults.misdeeds import COMMON, Fault, Misdeeds
from rollmesh.testing.faults.values import huge, odd_info

ENV_FAULTS: tuple[str, ...] = (
    *COMMON,
    *("huge_info", "odd_info", "closes_twice", "close_raises"),
)
"""The names of all faults."""


class BrokenEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env with one fault; all else is as the env inside does it.

    Attributes:
        fault: What goes wrong.
        steps_taken: Steps so far, over all episodes.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], fault: Fault) -> None:
        super().__init__(env)
        self.fault = fault
        self.steps_taken = 0
        self._misdeeds = Misdeeds(fault)
        self._is_fresh = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the env inside; a fault at step 0 happens at the first reset."""
        is_due = self._is_fresh and self.fault.is_due(0)
        self._is_fresh = False
        if is_due:
            self._misdeeds.act(0)
        observation, info = self.env.reset(seed=seed, options=options)
        if is_due or self.fault.name == "aliases":
            observation, _, info = self._spoil(observation, 0.0, info)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env inside, with the fault when it is due."""
        self.steps_taken += 1
        is_due = self.fault.is_due(self.steps_taken)
        if is_due:
            self._misdeeds.act(self.steps_taken)
        observation, reward, terminated, truncated, info = self.env.step(action)
        if is_due:
            observation, reward, info = self._spoil(observation, reward, info)
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the env inside, as often as the fault says."""
        self._misdeeds.forget()
        self.env.close()
        if self.fault.name == "closes_twice":
            self.env.close()
        if self.fault.name == "close_raises":
            raise RuntimeError("closing failed on purpose")

    def release(self) -> None:
        """End a hang, now and from here on; from another thread."""
        self._misdeeds.release()

    def _spoil(self, observation: Any, reward: Any, info: Any) -> tuple[Any, Any, Any]:
        """Spoil what the env inside returned."""
        name = self.fault.name
        if name == "nan":
            reward = float("nan")
        elif name == "huge_info":
            info = {**info, "huge": huge(self.fault.nbytes)}
        elif name == "odd_info":
            info = {**info, **odd_info()}
        return self._misdeeds.spoil(observation), reward, info


def broken_env(
    env: Any = "CartPole-v1", *, fault: str = "raises", at_step: int = 1, **kwargs: Any
) -> BrokenEnv:
    """Return an env that misbehaves.

    Args:
        env: A Gymnasium id, an env, or a callable that returns one.
        fault: One of `ENV_FAULTS`.
        at_step: First step that it happens at; 0 is the first reset.
        **kwargs: `times` (at how many steps; all by default), `seconds`, `nbytes`.

    Raises:
        InvalidSpec: There is no such fault, or a number is negative.
    """
    wanted = Fault(name=fault, known=ENV_FAULTS, at=at_step, **kwargs)
    if isinstance(env, str):
        env = gymnasium.make(env)
    elif not isinstance(env, gymnasium.Env):
        env = env()
    return BrokenEnv(cast("gymnasium.Env[Any, Any]", env), wanted)
