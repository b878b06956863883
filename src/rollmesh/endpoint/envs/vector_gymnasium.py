"""What is particular to Gymnasium's own vector envs (layer 6).

Gymnasium is looked up where it is loaded already and never imported: an env of one of its classes
cannot exist without it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

from rollmesh.endpoint.envs.contracts import unwrapped
from rollmesh.ports import AutoresetMode

_MARK = "_rollmesh_keeps_final_observation"


def keep_final_observations(env: Any) -> None:
    """Make the lanes of a SyncVectorEnv give their last observation as a copy.

    Under SAME_STEP Gymnasium holds on to the observation that ended the episode and resets the
    lane at once, which overwrites it where the env reuses its buffer. The same happens inside the
    workers of an AsyncVectorEnv, out of reach from here.
    """
    vector = sys.modules.get("gymnasium.vector")
    inner = unwrapped(env)
    if vector is None or not isinstance(inner, vector.SyncVectorEnv):
        return
    for lane in inner.envs:
        if not hasattr(lane.step, _MARK):
            lane.step = _copying(lane.step)


def _copying(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def copying(action: Any) -> Any:
        observation, reward, terminated, truncated, info = step(action)
        if terminated or truncated:
            observation = copy.deepcopy(observation)
        return observation, reward, terminated, truncated, info

    setattr(copying, _MARK, True)
    return copying


def takes_reset_mask(env: Any, mode: AutoresetMode) -> bool:
    """Return whether some lanes can be reset by `options={"reset_mask": mask}`."""
    inner = unwrapped(env)
    said = getattr(inner, "supports_reset_mask", None)
    if said is not None:
        return bool(said)
    vector = sys.modules.get("gymnasium.vector")  # not loaded: not one of its classes
    if vector is None or not hasattr(vector, "AutoresetMode"):
        return False
    if _is_normalized(env):
        return False
    if isinstance(inner, vector.SyncVectorEnv):
        return True
    if not isinstance(inner, vector.AsyncVectorEnv):
        return False
    # Without shared memory its workers keep a pending autoreset through a reset (seen up to
    # Gymnasium 1.4), so that the next step would be lost as a second reset.
    return mode is AutoresetMode.DISABLED or bool(getattr(inner, "shared_memory", True))


def _is_normalized(env: Any) -> bool:
    """Return whether a wrapper is there that refuses masked resets."""
    wrappers = sys.modules.get("gymnasium.wrappers.vector")
    refusing = getattr(wrappers, "NormalizeObservation", None)
    while refusing is not None and env is not None:
        if isinstance(env, refusing):
            return True
        env = getattr(env, "__dict__", {}).get("env")
    return False
