"""Policies that misbehave on purpose, around any policy (layer 7).

    model = broken_model(my_policy, fault="hangs", at_call=5)

| fault | what it does at the call |
|---|---|
| `raises` | raises `ValueError` |
| `exits` | calls `sys.exit(3)` |
| `hangs` | does not come back for `seconds`, an hour by default; `release()` ends it |
| `sleeps` | comes back `seconds` late, each time; 0.05 s by default |
| `nan` | every floating number of the action is NaN |
| `wrong_shape` | every array of the action has two dimensions more |
| `returns_none` | returns None |
| `aliases` | returns the same buffers each time, overwritten by the next call |
| `writes_observation` | overwrites the observation that it was given |
| `start_raises`, `end_raises` | raises when an episode starts, or ends |
| `kills_process` | `os._exit(9)`: the process is gone without a word |
| `segfaults` | reads address 0 |
| `hogs_memory` | keeps `nbytes` more bytes a call, 64 MiB by default, up to eight times |
| `prints_noise` | writes `nbytes` bytes, 64 kB by default, to stdout and stderr |

Calls are counted from 1 over the whole life of the model. `kills_process` and `segfaults` take the
whole process with them: run them behind a server in a process of its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from rollmesh.endpoint.models.model import CORNERS, overridden
from rollmesh.errors import InvalidSpec
from rollmesh.testing.faults.misdeeds import COMMON, Fault, Misdeeds

MODEL_FAULTS: tuple[str, ...] = (
    *COMMON,
    *("returns_none", "writes_observation", "start_raises", "end_raises"),
)
"""The names of all faults."""


class BrokenModel:
    """A policy with one fault; it has the same corners as the one inside, or is a plain callable.

    Attributes:
        model: The policy inside.
        fault: What goes wrong.
        calls: Calls so far, over all corners.

    Raises:
        InvalidSpec: What is inside is no policy.
    """

    def __init__(self, model: Any, fault: Fault) -> None:
        self.model = model
        self.fault = fault
        self.calls = 0
        self._misdeeds = Misdeeds(fault)
        corners = [name for name in CORNERS if overridden(model, name) is not None]
        for name in corners:
            setattr(self, name, self._breaking(getattr(model, name)))
        if not corners:
            if not callable(model):
                raise InvalidSpec("model", f"{type(model).__name__} is no policy: it has no corner")
            self._plain = self._breaking(model)
            self.__signature__ = inspect.signature(self._plain)

    def __call__(self, observation: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Answer as the plain callable inside does, with the fault when it is due."""
        return self._plain(observation, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return what only the policy inside has."""
        if name.startswith("_") or name == "model":
            raise AttributeError(name)
        return getattr(self.model, name)

    def on_episode_start(self, context: Any) -> None:
        """Tell the policy inside that an episode begins."""
        if self.fault.name == "start_raises":
            raise ValueError("starting an episode failed on purpose")
        self._tell("on_episode_start", context)

    def on_episode_end(self, context: Any) -> None:
        """Tell the policy inside that an episode is over."""
        if self.fault.name == "end_raises":
            raise ValueError("ending an episode failed on purpose")
        self._tell("on_episode_end", context)

    def release(self) -> None:
        """End a hang, now and from here on; from another thread."""
        self._misdeeds.release()

    def _tell(self, name: str, context: Any) -> None:
        hook = getattr(self.model, name, None)
        if hook is not None:
            hook(context)

    def _breaking(self, corner: Callable[..., Any]) -> Callable[..., Any]:
        """Return the corner with the fault in it; its parameters stay visible."""

        @functools.wraps(corner)
        def broken(observation: Any, /, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if not self.fault.is_due(self.calls):
                return corner(observation, *args, **kwargs)
            self._misdeeds.act(self.calls)
            answer = corner(observation, *args, **kwargs)
            if self.fault.name == "writes_observation":
                _overwrite(observation)
            return None if self.fault.name == "returns_none" else self._misdeeds.spoil(answer)

        return broken


def broken_model(
    model: Any, *, fault: str = "raises", at_call: int = 1, **kwargs: Any
) -> BrokenModel:
    """Return a policy that misbehaves.

    Args:
        model: A callable `observation -> action`, or an object with one of the corners.
        fault: One of `MODEL_FAULTS`.
        at_call: First call that it happens at, counted from 1.
        **kwargs: `times` (at how many calls; all by default), `seconds`, `nbytes`.

    Raises:
        InvalidSpec: There is no such fault, a number is negative, or it is no policy.
    """
    return BrokenModel(model, Fault(name=fault, known=MODEL_FAULTS, at=at_call, **kwargs))


def _overwrite(observation: Any) -> None:
    if isinstance(observation, dict):
        for one in cast("dict[Any, Any]", observation).values():
            _overwrite(one)
    elif isinstance(observation, (tuple, list)):
        for one in cast("Sequence[Any]", observation):
            _overwrite(one)
    elif isinstance(observation, np.ndarray):
        observation[...] = 0
