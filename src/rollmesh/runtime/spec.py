"""The session spec: what one run of a route is, valid by construction (rules R1 to R5).

Knows ports and limits; calls nothing. What a spec needs of an endpoint's capabilities is checked by
`check_capabilities`, which the driver calls before it touches anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal, cast

from rollmesh.errors import InvalidSpec
from rollmesh.ids import MINT
from rollmesh.limits import Limits
from rollmesh.ports import PARTIAL_RESET, SUBSET_STEP, AutoresetMode, EnvContract, Info
from rollmesh.spaces.space import Space

EDITIONS = ("2026.06",)
"""Workflow editions that this build implements."""

Replan = Literal["lane", "batch"]
Budget = Literal["starts", "completions"]
OnError = Literal["raise", "continue"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeStart:
    """One episode of a plan that says more than a seed.

    Attributes:
        index: Its place in the plan, reported with it; need not be consecutive.
        seed: The env seed, or None for none.
        options: Reset options, or None.
        task: A label, reported with it.
        setup: What its lane must hold, where lanes are prepared (`PREPARE`).
        max_steps: Truncates it after so many moves; None leaves it to `max_episode_steps`.
    """

    index: int
    seed: int | None = None
    options: Info | None = None
    task: str = ""
    setup: str = ""
    max_steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class SessionSpec:
    """One run of a route, from the first reset to the report.

    Attributes:
        env_contract: Spaces, width and autoreset mode of the env endpoint.
        num_envs: Lanes; None takes the contract's.
        session_id: Id of this run (UUIDv7 by default).
        env_id: Id of this attachment (UUIDv7 by default); model servers key routes by it.
        env_component: Name of the env endpoint in errors and events.
        model_component: Name of the model endpoint in errors and events.
        workflow_edition: Edition of the protocol whose behaviour is meant.
        base_seed: Seeds derived per reset call and lane (rule R41); None sends no seeds.
        episode_seeds: One seed an episode, in plan order; None for no plan.
        episode_options: Reset options an episode, in plan order; None for none.
        starts: The plan in full, in place of `episode_seeds` and `episode_options`; or None.
        max_episodes: How many episodes; None runs until cancelled.
        max_episode_steps: Truncates an episode after so many moves.
        max_episode_seconds: Truncates an episode after so many seconds.
        execution_horizon: Frames of a chunk that are executed; None is all of them.
        replan: Whose queued frames an end drops: that lane's, or the whole group's.
        budget: Whether `max_episodes` bounds starts (no bias to short episodes) or completions.
        on_error: Whether a fault of an env ends the route or only its episodes; a model's failure
            ends it in any case.
        max_attempts: How often an episode is started at most whose endpoint was lost each time.
        retry_late: Whether an env operation past its limit loses the lane, so that the episode is
            started again, rather than spoiling it.
        close_env_on_end: Whether the terminal shutdown closes the env.
        limits: How long each operation may take.

    Raises:
        InvalidSpec: A field is wrong; the sentence names it and the fix.
    """

    env_contract: EnvContract
    num_envs: int | None = None
    session_id: str = field(default_factory=MINT.mint)
    env_id: str = field(default_factory=MINT.mint)
    env_component: str = "env"
    model_component: str = "model"
    workflow_edition: str = EDITIONS[-1]
    base_seed: int | None = None
    episode_seeds: Sequence[int] | None = None
    episode_options: Sequence[Info | None] | None = None
    starts: Sequence[EpisodeStart] | None = None
    max_episodes: int | None = None
    max_episode_steps: int | None = None
    max_episode_seconds: float | None = None
    execution_horizon: int | None = None
    replan: Replan = "lane"
    budget: Budget = "starts"
    on_error: OnError = "raise"
    max_attempts: int = 3
    retry_late: bool = False
    close_env_on_end: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name in ("session_id", "env_id", "env_component", "model_component"):
            value: Any = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise InvalidSpec(name, f"wants a non-empty text, got {value!r}")
        _check_contract(self.env_contract)
        if self.num_envs is None:
            object.__setattr__(self, "num_envs", self.env_contract.num_envs)
        _check_count("num_envs", self.num_envs)
        if self.num_envs != self.env_contract.num_envs:
            raise InvalidSpec(
                "num_envs",
                f"{self.num_envs} is not the env's own width {self.env_contract.num_envs}; "
                "leave it out or build the env that wide",
            )
        if self.workflow_edition not in EDITIONS:
            raise InvalidSpec(
                "workflow_edition",
                f"{self.workflow_edition!r} is not implemented; this build knows {EDITIONS}",
            )
        _check_count("max_attempts", self.max_attempts)
        for name in ("max_episodes", "max_episode_steps", "execution_horizon"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        seconds = _plain_seconds("max_episode_seconds", self.max_episode_seconds)
        object.__setattr__(self, "max_episode_seconds", seconds)
        _check_choice("replan", self.replan, ("lane", "batch"))
        _check_choice("budget", self.budget, ("starts", "completions"))
        _check_choice("on_error", self.on_error, ("raise", "continue"))
        limits: Any = self.limits
        if not isinstance(limits, Limits):
            raise InvalidSpec("limits", f"wants a Limits object, got {limits!r}")
        self._check_plan()

    def _check_plan(self) -> None:
        if self.base_seed is not None and not (
            _is_int(self.base_seed) and -(2**63) <= self.base_seed < 2**63
        ):
            raise InvalidSpec(
                "base_seed", f"wants an int of 64 bits with sign, or None, got {self.base_seed!r}"
            )
        for name, is_entry, wanted in (
            ("episode_seeds", _is_seed, "an int of 0 or more"),
            ("episode_options", _is_options, "a mapping or None"),
            ("starts", _is_start, "an EpisodeStart"),
        ):
            if getattr(self, name) is not None:
                plan = _entries(name, getattr(self, name))
                object.__setattr__(self, name, plan)
                for k, entry in enumerate(plan):
                    if not is_entry(entry):
                        raise InvalidSpec(f"{name}[{k}]", f"wants {wanted}, got {entry!r}")
                self._check_length(name, plan)

        if self.starts is not None:
            for name in ("base_seed", "episode_seeds", "episode_options"):
                if getattr(self, name) is not None:
                    raise InvalidSpec(name, "contradicts starts, which is the plan in full")

    def _check_length(self, name: str, plan: tuple[Any, ...]) -> None:
        if self.budget == "completions":
            raise InvalidSpec(
                name, 'needs budget="starts": under "completions" starts are not planned'
            )
        if not plan:
            raise InvalidSpec(name, "is empty; give one entry an episode, or None")
        if self.max_episodes is None:
            object.__setattr__(self, "max_episodes", len(plan))
        elif self.max_episodes > len(plan):
            raise InvalidSpec(
                name,
                f"has {len(plan)} entries for max_episodes={self.max_episodes}; give one each",
            )

    @property
    def width(self) -> int:
        """Number of lanes."""
        return self.env_contract.num_envs

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """The env's mode; UNSPECIFIED means DISABLED (rule R3)."""
        mode = self.env_contract.autoreset_mode
        return AutoresetMode.DISABLED if mode is AutoresetMode.UNSPECIFIED else mode

    @property
    def needs_owned_resets(self) -> bool:
        """Whether the plan only holds where the runtime itself resets ended lanes (rule R2)."""
        return not (
            self.episode_seeds is None
            and self.episode_options is None
            and self.starts is None
            and self.max_episode_steps is None
            and self.max_episode_seconds is None
        )

    def owns_resets(self, capabilities: frozenset[str]) -> bool:
        """Tell whether the runtime resets ended lanes itself, given an endpoint's capabilities."""
        mode = self.autoreset_mode
        if mode is AutoresetMode.NEXT_STEP:
            return self.needs_owned_resets and PARTIAL_RESET in capabilities
        return mode is AutoresetMode.DISABLED

    def check_capabilities(self, capabilities: frozenset[str]) -> None:
        """Refuse what an endpoint with these capabilities cannot do.

        Raises:
            InvalidSpec: Resets are wanted that the endpoint does not leave to the runtime.
        """
        mode = self.autoreset_mode
        if mode is AutoresetMode.DISABLED and not (
            self.width == 1 or capabilities & {SUBSET_STEP, PARTIAL_RESET}
        ):
            raise InvalidSpec(
                "env_contract.autoreset_mode",
                f"DISABLED with {self.width} envs needs an env that can reset some lanes "
                "(partial_reset) or step them on their own (subset_step); use num_envs=1, "
                "independent lanes, or an env that resets itself",
            )
        if self.needs_owned_resets and not self.owns_resets(capabilities):
            raise InvalidSpec(
                self._first_plan_field(),
                f"needs resets that the runtime owns, but a {mode.name} env resets itself; "
                "use AutoresetMode.DISABLED, or NEXT_STEP on an env with partial resets",
            )
        if self.budget == "completions" and SUBSET_STEP in capabilities and self.width > 1:
            raise InvalidSpec(
                "budget", '"completions" needs one group; independent lanes want budget="starts"'
            )

    def _first_plan_field(self) -> str:
        for name in ("episode_seeds", "episode_options", "starts", "max_episode_steps"):
            if getattr(self, name) is not None:
                return name
        return "max_episode_seconds"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _entries(name: str, plan: Any) -> tuple[Any, ...]:
    if not isinstance(plan, Iterable):
        raise InvalidSpec(name, f"wants one entry an episode, or None, got {plan!r}")
    return tuple(cast("Iterable[Any]", plan))


def _is_seed(value: Any) -> bool:
    return _is_int(value) and value >= 0


def _is_start(value: Any) -> bool:
    return isinstance(value, EpisodeStart)


def _is_options(value: Any) -> bool:
    return value is None or isinstance(value, Mapping)


def _check_contract(contract: Any) -> None:
    if not isinstance(contract, EnvContract):
        raise InvalidSpec("env_contract", f"wants an EnvContract, got {contract!r}")
    for name in ("observation_space", "action_space"):
        space: Any = getattr(contract, name)
        if not isinstance(space, Space):
            raise InvalidSpec(f"env_contract.{name}", f"is missing: wants a Space, got {space!r}")
    mode: Any = contract.autoreset_mode
    if not isinstance(mode, AutoresetMode):
        known = ", ".join(m.name for m in AutoresetMode)
        raise InvalidSpec(
            "env_contract.autoreset_mode", f"{mode!r} is not known to this build; it knows {known}"
        )


def _check_count(name: str, value: Any) -> None:
    if not _is_int(value) or value < 1:
        raise InvalidSpec(name, f"wants an int of 1 or more, got {value!r}")


def _plain_seconds(name: str, value: Any) -> float | None:
    """Return a positive duration as a plain number; NumPy's numbers become one."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidSpec(name, f"wants a number of seconds, got {value!r}")
    number: Any = value
    plain: float = number if type(number) in (int, float) else float(number)
    if math.isnan(plain) or plain <= 0:
        raise InvalidSpec(name, f"wants more than 0 seconds, got {value!r}")
    return plain


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidSpec(name, f"wants one of {choices}, got {value!r}")
