"""One run of a loaded case: what its `RUN`, an `also` entry and a variant come to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any

from rollmesh import EpisodeContext, Limits

NO_VARIANT = object()
"""The case as its functions' defaults make it."""

MODES = ("NEXT_STEP", "SAME_STEP", "DISABLED")

_KNOWN = frozenset(
    [
        "seeds",
        "episodes",
        "lanes",
        "mode",
        "modes",
        "horizon",
        "max_steps",
        "options",
        "variants",
        "also",
        "expect_error",
        "environ",
        "bad",
        "manual",
        "limits",
        "timeouts",
    ]
)
"""Keys of `RUN` that are acted upon here or by a judgement."""

_DEADLINES = {
    "step": "env_step_s",
    "reset": "env_reset_s",
    "predict": "model_predict_s",
    "close": "close_s",
    "connect": "env_connect_s",
}


@dataclass(frozen=True, kw_only=True)
class CaseRun:
    """How a case is run.

    Attributes:
        case: The module, loaded for this run alone.
        run: `RUN` with the `also` entry applied.
        variant: An entry of `variants`, or `NO_VARIANT`.
        full: Whether slow cases have their full size.
        limits: Limits that a judgement asks for; the case's own count before them.
    """

    case: ModuleType
    run: Mapping[str, Any]
    variant: Any = NO_VARIANT
    full: bool = False
    limits: Mapping[str, float] | None = None

    # ------------------------------------------------------------------------------- size

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return int(self.run.get("lanes") or 1)

    @property
    def seeds(self) -> list[Any] | None:
        """The seeds, or None where the case gives a number of episodes only."""
        seeds = self.run.get("seeds", None if "episodes" in self.run else [0])
        return None if seeds is None else list(seeds)

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        seeds = self.seeds
        return int(self.run.get("episodes") or 4) if seeds is None else len(seeds)

    @property
    def max_steps(self) -> int | None:
        """The driver's limit, if any."""
        return self.run.get("max_steps")

    @property
    def horizon(self) -> int | None:
        """How many actions of a chunk are executed."""
        return self.run.get("horizon") if "chunk" in (self.maker or "") else None

    @property
    def options(self) -> Any:
        """Reset options, one an episode, or None."""
        return self.run.get("options")

    @property
    def deadlines(self) -> dict[str, float]:
        """Limits that the case gives, by their names in `Limits`.

        `timeouts=dict(step=1)`, `step_timeout_s=1`, and `timeout_s=1` for reset, step and predict.
        """
        found: dict[str, float] = {}
        for key, value in _flat_timeouts(self.run):
            names = [name for word, name in _DEADLINES.items() if word in key]
            for name in names or ["env_step_s", "env_reset_s", "model_predict_s"]:
                found[name] = value
        return found

    @property
    def own_limits(self) -> Limits | None:
        """The limits to run with; None for the default ones."""
        given = {**(self.limits or {}), **self.deadlines}
        return Limits(**given) if given else None

    @property
    def expected_error(self) -> tuple[str, ...] | None:
        """Words of the error that must come, or None where none is announced."""
        words = self.run.get("expect_error")
        if not words:
            return None
        if words is True:
            return ()
        return (words,) if isinstance(words, str) else tuple(str(word) for word in words)

    @property
    def ignored(self) -> list[str]:
        """Keys of `RUN` that nothing here acts upon."""
        return sorted(key for key in self.run if key not in _KNOWN and "timeout" not in key)

    # ------------------------------------------------------------------------ env and model

    def make_env(self, lane: int = 0) -> Any:
        """Build a fresh env."""
        return self._call(self.case.make_env, lane)

    @property
    def factory(self) -> Callable[[int], Any]:
        """What builds the env of a lane."""

        def make_case_env(lane: int) -> Any:
            return self.make_env(lane)

        return make_case_env

    @cached_property
    def maker(self) -> str | None:
        """Name of the function that makes the case's policy, or None where it has none."""
        return next((name for name in CORNER_OF if hasattr(self.case, name)), None)

    def make_policy(self) -> Any:
        """Build a fresh policy: a callable where that can say it all, else an object."""
        if self._hooks or self.maker not in {"make_predict", "make_chunk"}:
            return self.make_model()
        return self._call(getattr(self.case, self.maker))

    def make_model(self) -> Any:
        """Build a fresh policy as an object with the corner that the case means."""
        assert self.maker is not None, "a case without a policy is not run"
        made = self._call(getattr(self.case, self.maker))
        corner = CORNER_OF[self.maker]
        return made if corner is None else SimpleNamespace(**{corner: made}, **self._hooks)

    @property
    def _hooks(self) -> dict[str, Callable[[EpisodeContext], None]]:
        names = ("on_episode_start", "on_episode_end")
        return {name: _hook(getattr(self.case, name)) for name in names if hasattr(self.case, name)}

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        if self.variant is not NO_VARIANT and takes_variant(function):
            return function(*args, variant=self.variant)
        return function(*args)

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `evaluate` that every way shares."""
        seeds = self.seeds
        plan = {"episodes": self.episodes} if seeds is None else {"seeds": seeds}
        return {
            **plan,
            "options": self.options,
            "execution_horizon": self.horizon,
            "max_episode_steps": self.max_steps,
            "limits": self.own_limits,
        }


CORNER_OF: dict[str, str | None] = {
    "make_chunk": "predict_chunk",
    "make_predict": "predict",
    "make_chunk_batch": "predict_chunk_batch",
    "make_predict_batch": "predict_batch",
    "make_model": None,
}
"""What makes a case's policy, and the corner of a model that it is; None: it makes the model."""


def takes_variant(function: Any) -> bool:
    """Return whether a function of a case has a parameter `variant`."""
    return function is not None and "variant" in inspect.signature(function).parameters


def default_variants(case: ModuleType) -> list[Any]:
    """Return what the case's functions take for the variant when none is given."""
    found: list[Any] = []
    for name in ("make_env", *CORNER_OF):
        function = getattr(case, name, None)
        if takes_variant(function):
            found.append(inspect.signature(function).parameters["variant"].default)
    return found


def _hook(function: Callable[..., Any]) -> Callable[[EpisodeContext], None]:
    names = list(inspect.signature(function).parameters)

    def hook(context: EpisodeContext) -> None:
        given: dict[str, Any] = {**context, "context": context}
        function(**{name: given[name] for name in names if name in given})

    return hook


def _flat_timeouts(run: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in run.items():
        if key in {"limits", "timeouts"} and isinstance(value, Mapping):
            found.extend(value.items())
        elif "timeout" in key and not isinstance(value, (list, tuple)):
            found.append((key, value))
    return found
