"""Reads the arguments of `evaluate` and `Session` before anything is touched (layer 8).

Whatever can be wrong without an env is refused here with the name of the argument; the rest is
checked once the env's contract is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from rollmesh.endpoint.envs.contracts import is_env
from rollmesh.endpoint.models.model import CORNERS
from rollmesh.errors import InvalidSpec
from rollmesh.limits import Limits
from rollmesh.ports import Info
from rollmesh.runtime.cancel import CancelToken
from rollmesh.runtime.hooks import Dispatcher, gather_hooks
from rollmesh.runtime.seeds import episode_seed
from rollmesh.spaces.conformance import Policy

_POLICIES = ("warn", "strict", "off")
_TASK = ""
_ENV_ID = re.compile(r"[\w:./-]+-v\d+")
_LARGEST_SENT_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class EpisodePlan:
    """Which episodes are asked for.

    Attributes:
        count: How many.
        seeds: The caller's own seeds in plan order, or None.
        base_seed: The number that seeds are to follow from, or None where there is none yet.
        options: Reset options in plan order, or None.
    """

    count: int
    seeds: tuple[int, ...] | None
    base_seed: int | None
    options: tuple[Info | None, ...] | None

    @property
    def is_seeded(self) -> bool:
        """Whether the caller asked for certain seeds."""
        return self.seeds is not None or self.base_seed is not None


def derived_seeds(plan_seed: int, count: int) -> tuple[int, ...]:
    """Return the seeds of the first `count` episodes of a plan (rule R41)."""
    return tuple([episode_seed(plan_seed, _TASK, k) for k in range(count)])


def read_plan(
    *,
    episodes: int | None,
    seeds: Iterable[int] | None,
    base_seed: int | None,
    options: Info | Sequence[Info | None] | None,
) -> EpisodePlan:
    """Return the plan that these arguments describe.

    Raises:
        InvalidSpec: One of them is wrong, or two contradict each other.
    """
    read = None if seeds is None else _seeds(seeds)
    count = _episode_count(episodes, read)
    if base_seed is not None:
        base_seed = plain_int("base_seed", base_seed)
        if base_seed < 0:
            raise InvalidSpec("base_seed", f"wants an int of 0 or more, got {base_seed}")
        if read is not None:
            raise InvalidSpec(
                "base_seed", "contradicts seeds: give the seeds, or the number they follow from"
            )
    return EpisodePlan(
        count=count, seeds=read, base_seed=base_seed, options=_options(options, count)
    )


def _episode_count(episodes: int | None, seeds: tuple[int, ...] | None) -> int:
    if episodes is None:
        if seeds is None:
            raise InvalidSpec("episodes", "is missing: say how many (episodes=100) or give seeds")
        return len(seeds)
    count = plain_int("episodes", episodes)
    if count < 0:
        raise InvalidSpec("episodes", f"wants 0 or more, got {count}")
    if seeds is not None and count != len(seeds):
        raise InvalidSpec(
            "episodes",
            f"{count} contradicts the {len(seeds)} seeds: leave it out, the seeds fix the number",
        )
    return count


def _seeds(seeds: Any) -> tuple[int, ...]:
    if isinstance(seeds, (str, bytes, Mapping)) or not isinstance(seeds, Iterable):
        raise InvalidSpec("seeds", f"wants a list of ints, one an episode, got {seeds!r}")
    return tuple(
        [read_seed(f"seeds[{k}]", seed) for k, seed in enumerate(cast("Iterable[object]", seeds))]
    )


def read_seed(field: str, seed: object) -> int:
    """Return one env seed as an exact Python int.

    Raises:
        InvalidSpec: It is no int, or negative.
    """
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, (int, np.integer)):
        raise InvalidSpec(field, f"{seed!r} is no seed: wants an int of 0 or more, of any size")
    value = int(cast("int", seed))
    if value < 0:
        raise InvalidSpec(field, f"{value} is no seed: wants an int of 0 or more, of any size")
    return value


def with_order(error: InvalidSpec, model: object, env: object) -> InvalidSpec:
    """Return a refusal with a hint, where model and env look as if they had changed places."""
    if error.field not in {"env", "model"} or not (_looks_like_env(model) or _is_policy(env)):
        return error
    detail = str(error).removeprefix(f"{error.field}: ")
    return InvalidSpec(
        error.field, f"{detail}; are the two swapped? The model comes first, then the env"
    )


def _looks_like_env(value: object) -> bool:
    if isinstance(value, type):
        return all([callable(getattr(value, name, None)) for name in ("reset", "step")])
    return is_env(value) or (isinstance(value, str) and bool(_ENV_ID.fullmatch(value)))


def _is_policy(value: object) -> bool:
    if isinstance(value, str):
        return value == "random" or value.lower().endswith(".zip")
    return not is_env(value) and any([hasattr(value, corner) for corner in CORNERS])


def check_sendable(seeds: Sequence[int] | None) -> None:
    """Refuse seeds that a served env or model cannot be given.

    Raises:
        InvalidSpec: One is 2**63 or more.
    """
    for k, seed in enumerate(seeds or ()):
        if seed > _LARGEST_SENT_SEED:
            raise InvalidSpec(
                f"seeds[{k}]",
                f"{seed} cannot be sent to a served env or model, whose seeds are below 2**63; "
                "use a smaller one, or a local env and model",
            )


def _options(options: Any, count: int) -> tuple[Info | None, ...] | None:
    if options is None:
        return None
    if isinstance(options, Mapping):
        return (cast("Info", options),) * count
    if isinstance(options, (str, bytes)) or not isinstance(options, Sequence):
        raise InvalidSpec(
            "options", f"wants one mapping for all episodes or a list of them, got {options!r}"
        )
    given = cast("Sequence[Info | None]", options)
    for k, one in enumerate(cast("Sequence[object]", given)):
        if one is not None and not isinstance(one, Mapping):
            raise InvalidSpec(f"options[{k}]", f"wants a mapping or None, got {one!r}")
    if len(given) != count:
        raise InvalidSpec(
            "options", f"has {len(given)} entries for {count} episodes; give one an episode"
        )
    return tuple(given)


def plain_int(field: str, value: object) -> int:
    """Return an int as a Python int; numpy's ints pass, bools and floats do not.

    Raises:
        InvalidSpec: It is no int.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise InvalidSpec(field, f"wants an int, got {value!r}")
    return int(cast("int", value))


def optional_count(field: str, value: int | None) -> int | None:
    """Return a count of 1 or more, or None.

    Raises:
        InvalidSpec: It is no int, or below 1.
    """
    if value is None:
        return None
    count = plain_int(field, value)
    if count < 1:
        raise InvalidSpec(field, f"wants 1 or more, or None, got {count}")
    return count


def read_conformance(conformance: Policy | Mapping[str, Policy]) -> tuple[Policy, Policy]:
    """Return the policies for the env's and the model's values.

    Raises:
        InvalidSpec: A policy or an endpoint is unknown.
    """
    if not isinstance(conformance, Mapping):
        policy = _policy("conformance", conformance)
        return policy, policy
    unknown = set(conformance) - {"env", "model"}
    if unknown:
        raise InvalidSpec(
            "conformance", f'wants the keys "env" and "model", got {sorted(map(repr, unknown))}'
        )
    return (
        _policy("conformance['env']", conformance.get("env", "warn")),
        _policy("conformance['model']", conformance.get("model", "warn")),
    )


def _policy(field: str, value: Any) -> Policy:
    if value not in _POLICIES:
        raise InvalidSpec(field, f"wants one of {', '.join(_POLICIES)}, got {value!r}")
    return value


def read_hooks(hooks: object) -> tuple[object, ...]:
    """Return the hooks in order.

    Raises:
        InvalidSpec: One of them is no hooks object.
    """
    gathered = gather_hooks(hooks)
    try:
        Dispatcher(gathered)
    except TypeError as error:
        raise InvalidSpec("hooks", str(error).removeprefix("hooks ")) from None
    return gathered


def read_limits(limits: object) -> Limits:
    """Return the limits, the default ones for None.

    Raises:
        InvalidSpec: That is no `Limits`.
    """
    if limits is None:
        return Limits()
    if not isinstance(limits, Limits):
        raise InvalidSpec("limits", f"wants a Limits object (Limits(env_step_s=5)), got {limits!r}")
    return limits


def read_cancel(cancel: object) -> CancelToken:
    """Return the token, a fresh one for None.

    Raises:
        InvalidSpec: That is no `CancelToken`.
    """
    if cancel is None:
        return CancelToken()
    if not isinstance(cancel, CancelToken):
        raise InvalidSpec("cancel", f"wants a CancelToken, got {cancel!r}")
    return cancel


def read_kwargs(field: str, kwargs: object) -> dict[str, Any] | None:
    """Return keyword arguments as a dict of their own, or None.

    Raises:
        InvalidSpec: That is no mapping from names.
    """
    if kwargs is None:
        return None
    if not isinstance(kwargs, Mapping) or not all(
        isinstance(key, str) for key in cast("Mapping[object, Any]", kwargs)
    ):
        raise InvalidSpec(field, f"wants a mapping from parameter names, got {kwargs!r}")
    return dict(cast("Mapping[str, Any]", kwargs))
