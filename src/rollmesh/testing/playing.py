"""Plays one episode of a scalar env by hand and notes what breaks (layer 7).

Works on the user's own object, without ports or runtime, so that it sees what they would smooth
over: reused buffers, odd flags, foreign infos.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np

from rollmesh.errors import InvalidValue
from rollmesh.spaces.conformance import Checker
from rollmesh.spaces.gymnasium import to_gymnasium
from rollmesh.spaces.metadata import carry

if TYPE_CHECKING:
    from rollmesh.spaces.space import Space
    from rollmesh.testing.findings import CheckReport


class Broken(Exception):  # noqa: N818 - internal: the check cannot go on
    """The env cannot be played any further; the report says why."""


@dataclass
class Played:
    """What one episode looked like.

    Attributes:
        observations: Encoded observations, the reset's first.
        rewards: One a step.
        terminated: Whether the env ended it.
        truncated: Whether a limit of its own ended it.
    """

    observations: list[bytes] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False

    @property
    def ended(self) -> bool:
        """Whether it ended by itself."""
        return self.terminated or self.truncated

    def first_difference(self, other: Played) -> str | None:
        """Say where two episodes part, or None if they are the same."""
        for t, (mine, theirs) in enumerate(zip(self.observations, other.observations)):  # noqa: B905
            if mine != theirs:
                return (
                    "the first observation differs" if t == 0 else f"step {t} observes differently"
                )
        for t, (mine, theirs) in enumerate(zip(self.rewards, other.rewards), start=1):  # noqa: B905
            if mine != theirs and not (math.isnan(mine) and math.isnan(theirs)):
                return f"step {t} is rewarded differently ({mine!r} and {theirs!r})"
        if len(self.rewards) != len(other.rewards):
            return f"one lasts {len(self.rewards)} steps and the other {len(other.rewards)}"
        if (self.terminated, self.truncated) != (other.terminated, other.truncated):
            return "they end with different flags"
        return None


class Player:
    """Plays episodes of one scalar env with random actions that follow their seed."""

    def __init__(
        self, env: Any, *, spaces: tuple[Space, Space], report: CheckReport, max_steps: int
    ) -> None:
        self._env = env
        self._report = report
        self._max_steps = max_steps
        self._codec = spaces[0].codec
        self._actions: Any = to_gymnasium(spaces[1])
        self._checker = Checker(
            root="observation", policy="warn", nan="policy", report=self._on_observation
        )
        self._held: tuple[Any, bytes] | None = None

    def play(self, *, seed: int | None, action_seed: int = 0) -> Played:
        """Play one episode, at most `max_steps` long.

        Raises:
            Broken: The env raised or answered something that cannot be read.
        """
        played = Played()
        self._actions.seed(action_seed)
        self._held = None
        played.observations.append(self._reset(seed))
        while not played.ended and len(played.rewards) < self._max_steps:
            self._step(played)
        return played

    def step_once(self) -> None:
        """Step once more, whatever comes back; what the env warns of is no news here."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._env.step(self._actions.sample())

    def _reset(self, seed: int | None) -> bytes:
        try:
            answer = self._env.reset(seed=seed)
        except (Exception, SystemExit) as exc:
            hint = "; it must take seed and options" if isinstance(exc, TypeError) else ""
            self._report.fail("reset", f"reset(seed={seed}) raised {told(exc)}{hint}")
            raise Broken from exc
        if not is_reset_answer(answer):
            self._report.fail(
                "reset", f"reset returned {kind(answer)} where (observation, info) is wanted"
            )
            raise Broken
        observation, info = answer
        self._info(info, "reset")
        return self._observe(observation)

    def _step(self, played: Played) -> None:
        t = len(played.rewards) + 1
        action = self._actions.sample()
        try:
            answer = self._env.step(action)
        except (Exception, SystemExit) as exc:
            self._report.fail("step", f"step {t} raised {told(exc)} on an action of its own space")
            raise Broken from exc
        if not is_step_answer(answer):
            self._report.fail(
                "step",
                f"step returned {kind(answer)} where (observation, reward, terminated, truncated, "
                "info) is wanted",
            )
            raise Broken
        observation, reward, terminated, truncated, info = answer
        played.observations.append(self._observe(observation))
        played.rewards.append(self._reward(reward))
        played.terminated = self._flag("terminated", terminated)
        played.truncated = self._flag("truncated", truncated)
        self._info(info, "step")

    def _observe(self, observation: Any) -> bytes:
        try:
            leaves = self._codec.encode(observation, self._checker)
        except InvalidValue as exc:
            self._report.fail("observation", str(exc))
            raise Broken from exc
        encoded = b"".join(bytes(part) for part in self._codec.to_buffers(leaves))
        self._compare_held()
        self._held = (observation, encoded)
        return encoded

    def _compare_held(self) -> None:
        """Tell whether the step wrote into the observation that was given out before."""
        if self._held is None:
            return
        value, before = self._held
        try:
            now = self._codec.to_buffers(self._codec.encode(value))
        except InvalidValue:
            now = []
        if b"".join(bytes(part) for part in now) != before:
            self._report.warn(
                "buffers",
                "the env writes into observations it gave out before; rollmesh copies them, but "
                "other code that keeps one sees it change: return a copy",
            )

    def _on_observation(self, path: str, detail: str) -> None:
        self._report.fail("observation", f"{path}: {detail}")

    def _reward(self, reward: Any) -> float:
        try:
            value = np.asarray(reward, dtype=np.float64).item()
        except (TypeError, ValueError) as exc:
            self._report.fail("reward", f"is {kind(reward)} where a single number is wanted")
            raise Broken from exc
        if not math.isfinite(value):
            self._report.warn(
                "reward", f"is {value!r}: the episode's return and every mean over it become that"
            )
        return value

    def _flag(self, name: str, value: Any) -> bool:
        if isinstance(value, (bool, np.bool_)):
            return bool(cast("bool", value))
        if np.ndim(value) == 0 and not isinstance(value, str) and value in (0, 1):
            self._report.warn(
                "flags", f"{name} is {kind(value)}; it is read as a bool, return bool(…)"
            )
            return bool(value)
        self._report.fail("flags", f"{name} is {kind(value)} where a bool is wanted")
        raise Broken

    def _info(self, info: Any, where: str) -> None:
        if not isinstance(info, Mapping):
            self._report.fail("info", f"{where} returned {kind(info)} as info; a dict is wanted")
            return
        given = dict(cast("Mapping[str, Any]", info))
        carry(given, lambda path, detail: self._report.warn("info", f"{path}: {detail}"))


def is_reset_answer(answer: object) -> TypeGuard[tuple[Any, Any]]:
    """Return whether it is (observation, info)."""
    return isinstance(answer, tuple) and len(cast("tuple[Any, ...]", answer)) == 2  # noqa: PLR2004


def is_step_answer(answer: object) -> TypeGuard[tuple[Any, Any, Any, Any, Any]]:
    """Return whether it is (observation, reward, terminated, truncated, info)."""
    return isinstance(answer, tuple) and len(cast("tuple[Any, ...]", answer)) == 5  # noqa: PLR2004


def told(exc: BaseException) -> str:
    """Return an exception as one would say it: its class and its message."""
    text = str(exc).strip()
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def kind(value: Any) -> str:
    """Describe a value shortly enough for one sentence."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__} of shape {tuple(shape)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(cast('tuple[Any, ...]', value))}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 40 else text[:37] + '...'}"  # noqa: PLR2004
