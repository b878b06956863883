"""Workloads: the envs and policies that every subject of a row drives.

W1 is a scalar counter, W2 frames, W3 a robot's observation, W4 real simulators. The synthetic
envs cost next to nothing: they hand out arrays from a small pool, so what is measured is the loop
around them. Knows Gymnasium only.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

Policy = Callable[[Any], Any]
"""Takes one observation, returns one action."""

_TEXT = "pick up the red block and put it in the left bowl"


def _draw(space: spaces.Space[Any], count: int) -> list[Any]:
    """Return so many observations, the same in every process."""
    space.seed(0)
    generator = np.random.default_rng(0)
    return [_draw_one(space, generator) for _ in range(count)]


def _draw_one(space: spaces.Space[Any], generator: np.random.Generator) -> Any:
    """Return one; images are drawn as bytes, for a space samples them eight bytes a pixel."""
    if isinstance(space, spaces.Dict):
        return {name: _draw_one(inner, generator) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Box) and space.dtype == np.uint8:
        return generator.integers(0, 256, space.shape, dtype=np.uint8)
    return space.sample()


class PoolEnv(gym.Env[Any, Any]):
    """Hands out observations from a pool; every episode is truncated after `episode_steps` steps.

    Args:
        observation_space: Space the pool is sampled from (seeded: the pool is the same in every
            process).
        action_space: Space of actions, which are ignored.
        episode_steps: Length of every episode.
        pool: Number of different observations.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        episode_steps: int,
        pool: int = 8,
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self._pool = _draw(observation_space, pool)
        self._episode_steps = episode_steps
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return the first observation of the pool."""
        del seed, options
        self._steps = 0
        return self._pool[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count one step."""
        del action
        self._steps = steps = self._steps + 1
        pool = self._pool
        return pool[steps % len(pool)], 1.0, False, steps >= self._episode_steps, {}


class PoolVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """Is a `PoolEnv` of N lanes in one object (autoreset NEXT_STEP, all lanes end together)."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        num_envs: int,
        episode_steps: int,
    ) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self._pool = _draw(self.observation_space, 4)
        self._episode_steps = episode_steps
        self._steps = 0
        self._rewards = np.ones(num_envs, np.float64)
        self._none = np.zeros(num_envs, np.bool_)
        self._all = np.ones(num_envs, np.bool_)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return the first observations of the pool."""
        del seed, options
        self._steps = 0
        return self._pool[0], {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Count one step of every lane; the step after the last one is the reset."""
        del actions
        if self._steps >= self._episode_steps:
            self._steps = 0
            return self._pool[0], np.zeros(self.num_envs), self._none, self._none, {}
        self._steps = steps = self._steps + 1
        ended = self._all if steps >= self._episode_steps else self._none
        return self._pool[steps % len(self._pool)], self._rewards, self._none, ended, {}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One kind of work, the same for every subject.

    Attributes:
        name: How rows call it.
        summary: What it is, in words.
        make: Builds one env.
        policy: One observation to one action.
        batch_policy: A batch of observations to as many actions.
        module: Module the env needs, or None.
        how: What to type when that module is missing.
        make_vector: Builds one env of N lanes, where the workload has one of its own.
        key: How another process can name it: see `named`; empty where none can.
    """

    name: str
    summary: str
    make: Callable[[], gym.Env[Any, Any]]
    policy: Policy
    batch_policy: Policy
    module: str | None = None
    how: str = ""
    make_vector: Callable[[int], gym.vector.VectorEnv[Any, Any, Any]] | None = None
    key: str = ""

    @property
    def missing(self) -> str | None:
        """Return what to type before this can run, or None."""
        if self.module is None or importlib.util.find_spec(self.module) is not None:
            return None
        return self.how


def _rows(observations: Any) -> int:
    """Return the number of rows of a batch."""
    while isinstance(observations, dict):
        observations = next(iter(observations.values()))
    return len(observations)


class _Policies(TypedDict):
    policy: Policy
    batch_policy: Policy


def _constant(action: Any) -> _Policies:
    """Return both shapes of a policy that costs nothing: always the same action."""
    row = np.asarray(action)
    batches: dict[int, Any] = {}

    def one(observation: Any) -> Any:
        del observation
        return action

    def batch(observation: Any) -> Any:
        num_envs = _rows(observation)
        if num_envs not in batches:
            batches[num_envs] = np.stack([row] * num_envs)
        return batches[num_envs]

    return {"policy": one, "batch_policy": batch}


def _lean(observation: Any) -> int:
    """Push the cart to where the pole leans (a few hundred steps an episode)."""
    return int(observation[2] + observation[3] > 0)


def _lean_batch(observation: Any) -> Any:
    """Do the same for a batch."""
    return (observation[:, 2] + observation[:, 3] > 0).astype(np.int64)


def _scalar_spaces() -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    return spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2)


def _frame_spaces() -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    return spaces.Box(0, 255, (84, 84, 4), np.uint8), spaces.Discrete(6)


def robot_space(side: int = 256) -> spaces.Dict:
    """Return W3's observation space: two (side, side, 3) uint8 images, a vector, a text."""
    image = functools.partial(spaces.Box, 0, 255, (side, side, 3), np.uint8)
    charset = "".join(sorted(set(_TEXT)))
    return spaces.Dict(
        {
            "image": image(),
            "wrist": image(),
            "state": spaces.Box(-np.inf, np.inf, (8,), np.float32),
            "instruction": spaces.Text(64, min_length=1, charset=charset),
        }
    )


def robot_row(side: int = 256) -> dict[str, Any]:
    """Return one observation of `robot_space(side)`."""
    generator = np.random.default_rng(0)
    return {
        "image": generator.integers(0, 256, (side, side, 3), dtype=np.uint8),
        "wrist": generator.integers(0, 256, (side, side, 3), dtype=np.uint8),
        "state": generator.standard_normal(8).astype(np.float32),
        "instruction": _TEXT,
    }


def _robot_spaces() -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    return robot_space(), spaces.Box(-1, 1, (7,), np.float32)


def _payload_spaces(nbytes: int) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    return spaces.Box(0, 255, (nbytes,), np.uint8), spaces.Discrete(2)


_Spaces = Callable[[], tuple[spaces.Space[Any], spaces.Space[Any]]]


def _make_pool(of: _Spaces, episode_steps: int, pool: int = 8) -> PoolEnv:
    observation_space, action_space = of()
    return PoolEnv(observation_space, action_space, episode_steps=episode_steps, pool=pool)


def _make_pool_vector(of: _Spaces, episode_steps: int, num_envs: int) -> PoolVectorEnv:
    observation_space, action_space = of()
    return PoolVectorEnv(
        observation_space, action_space, num_envs=num_envs, episode_steps=episode_steps
    )


def _make_pong() -> gym.Env[Any, Any]:
    import ale_py

    gym.register_envs(ale_py)
    return gym.make("ALE/Pong-v5")


def scalar(episode_steps: int = 2000) -> Workload:
    """Return W1: Box(4) float32, Discrete(2), a counter."""
    return Workload(
        name="W1",
        summary="Box(4) float32, Discrete(2), a counter",
        make=functools.partial(_make_pool, _scalar_spaces, episode_steps),
        make_vector=functools.partial(_make_pool_vector, _scalar_spaces, episode_steps),
        key=f"scalar:{episode_steps}",
        **_constant(0),
    )


def payload(nbytes: int, episode_steps: int) -> Workload:
    """Return W1 with an observation of `nbytes` uint8."""
    of = functools.partial(_payload_spaces, nbytes)
    return Workload(
        name=f"payload {nbytes} B",
        summary=f"Box({nbytes}) uint8, Discrete(2)",
        make=functools.partial(_make_pool, of, episode_steps, 2),
        key=f"payload:{nbytes}:{episode_steps}",
        **_constant(0),
    )


def cartpole() -> Workload:
    """Return Gymnasium's CartPole-v1 with a policy that keeps the pole up for a while."""
    return Workload(
        name="CartPole",
        summary="Gymnasium CartPole-v1, pushed to where the pole leans",
        make=functools.partial(gym.make, "CartPole-v1"),
        policy=_lean,
        batch_policy=_lean_batch,
    )


def frames(episode_steps: int = 2000) -> Workload:
    """Return W2: Box(84,84,4) uint8, Discrete(6)."""
    return Workload(
        name="W2",
        summary="Box(84, 84, 4) uint8, Discrete(6)",
        make=functools.partial(_make_pool, _frame_spaces, episode_steps),
        make_vector=functools.partial(_make_pool_vector, _frame_spaces, episode_steps),
        key=f"frames:{episode_steps}",
        **_constant(0),
    )


def robot(episode_steps: int = 200) -> Workload:
    """Return W3: two 256x256x3 images, Box(8), Text; Box(7) actions."""
    return Workload(
        name="W3",
        summary="Dict of two (256, 256, 3) uint8, Box(8) float32, Text; Box(7) float32",
        make=functools.partial(_make_pool, _robot_spaces, episode_steps),
        make_vector=functools.partial(_make_pool_vector, _robot_spaces, episode_steps),
        key=f"robot:{episode_steps}",
        **_constant(np.zeros(7, np.float32)),
    )


def half_cheetah(episode_steps: int = 1000) -> Workload:
    """Return W4a: MuJoCo HalfCheetah-v5."""
    return Workload(
        name="HalfCheetah",
        summary=f"MuJoCo HalfCheetah-v5, {episode_steps} steps an episode",
        make=functools.partial(gym.make, "HalfCheetah-v5", max_episode_steps=episode_steps),
        key=f"cheetah:{episode_steps}",
        **_constant(np.zeros(6, np.float32)),
        module="mujoco",
        how="pip install mujoco",
    )


def pong() -> Workload:
    """Return W4b: ALE Pong frames."""
    return Workload(
        name="Pong",
        summary="ALE/Pong-v5, (210, 160, 3) uint8",
        make=_make_pong,
        **_constant(0),
        module="ale_py",
        how="pip install ale-py",
    )


_BY_KEY: dict[str, Callable[..., Workload]] = {
    "scalar": scalar,
    "payload": payload,
    "frames": frames,
    "robot": robot,
    "cheetah": half_cheetah,
}


def named(key: str) -> Workload:
    """Return the workload of a `key`, such as `robot:200`, as another process spelled it.

    Raises:
        ValueError: No workload has this key.
    """
    name, *numbers = key.split(":")
    try:
        return _BY_KEY[name](*map(int, numbers))
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"no workload {key!r}; one looks like robot:200, with a name of {sorted(_BY_KEY)}"
        ) from None
