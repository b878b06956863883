"""Reads the contract of an env-shaped object: spaces, id, metadata (layer 6).

Works on anything with Gymnasium's shape; Gymnasium itself is imported only to convert its own
spaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollmesh.endpoint.reporting import Report
from rollmesh.errors import InvalidSpec, InvalidValue
from rollmesh.ports import NO_INFO, AutoresetMode, EnvContract, Info
from rollmesh.spaces.gymnasium import from_gymnasium
from rollmesh.spaces.metadata import carry
from rollmesh.spaces.space import Space


def is_env(value: object) -> bool:
    """Return whether something has the shape of an env instance."""
    return (
        not isinstance(value, type)
        and callable(getattr(value, "reset", None))
        and callable(getattr(value, "step", None))
    )


def is_vector_env(value: object) -> bool:
    """Return whether an env instance steps several lanes at once."""
    return hasattr(value, "num_envs") and hasattr(value, "single_observation_space")


def check_no_vec_env(env: object, field: str, verb: str) -> None:
    """Refuse a vector env of Stable-Baselines3's kind, whose `step` returns four values.

    Args:
        env: What may be one.
        field: What the error calls it.
        verb: What comes before its name: `is`, `the factory returned`.

    Raises:
        InvalidSpec: It is one.
    """
    is_one = is_env(env) and hasattr(env, "step_wait") and hasattr(env, "num_envs")
    if not is_one or is_vector_env(env):
        return
    raise InvalidSpec(
        field,
        f"{verb} a {type(env).__name__}, a vector env of Stable-Baselines3, which resets itself "
        "and cannot be given seeds per episode; give an id or a factory with num_envs, or the list "
        "of its envs",
    )


def scalar_contract(env: Any, report: Report) -> EnvContract:
    """Return the contract of a scalar env.

    Raises:
        InvalidSpec: A space is missing or cannot be carried.
    """
    return EnvContract(
        id=env_id(env),
        observation_space=_space(env, "observation_space"),
        action_space=_space(env, "action_space"),
        render_mode=_render_mode(env),
        metadata=_metadata(env, report),
    )


def vector_contract(env: Any, report: Report) -> EnvContract:
    """Return the contract of a vector env.

    Raises:
        InvalidSpec: A space is missing or cannot be carried, or the autoreset mode is unknown.
    """
    return EnvContract(
        id=env_id(env),
        observation_space=_space(env, "single_observation_space"),
        action_space=_space(env, "single_action_space"),
        num_envs=int(env.num_envs),
        autoreset_mode=_autoreset_mode(env, report),
        render_mode=_render_mode(env),
        metadata=_metadata(env, report),
    )


def env_id(env: Any) -> str:
    """Return the env's registered id, else its class name."""
    spec = getattr(env, "spec", None)
    name = getattr(spec, "id", None)
    return name if isinstance(name, str) and name else type(unwrapped(env)).__name__


def unwrapped(env: Any) -> Any:
    """Return the env inside its wrappers."""
    inner = getattr(env, "unwrapped", None)
    return env if inner is None else inner


def contract_difference(ours: EnvContract, theirs: EnvContract) -> str:
    """Say where two contracts of exchangeable envs differ; an empty text where they do not."""
    if ours.observation_space != theirs.observation_space:
        return difference(ours.observation_space, theirs.observation_space, "observation")
    if ours.action_space != theirs.action_space:
        return difference(ours.action_space, theirs.action_space, "action")
    if ours.num_envs != theirs.num_envs:
        return f"num_envs: {ours.num_envs} and {theirs.num_envs}"
    if ours.autoreset_mode is not theirs.autoreset_mode:
        return f"autoreset mode: {ours.autoreset_mode.name} and {theirs.autoreset_mode.name}"
    return ""


def difference(ours: Space, theirs: Space, path: str) -> str:
    """Say where two unequal spaces differ first, as in `observation['arm']: Box(…) and Box(…)`."""
    for key, one, other in _children(ours, theirs):
        if one != other:
            return difference(one, other, f"{path}[{key!r}]")
    return f"{path}: {ours!r} and {theirs!r}"


def _children(ours: Space, theirs: Space) -> list[tuple[Any, Space, Space]]:
    """Pair the children of two spaces that have the same form; nothing where the forms differ."""
    one, other = getattr(ours, "spaces", None), getattr(theirs, "spaces", None)
    if type(ours) is not type(theirs) or not one or not other or len(one) != len(other):
        return []
    if isinstance(one[0], Space):
        return [(i, a, b) for i, (a, b) in enumerate(zip(one, other, strict=True))]
    if [name for name, _ in one] != [name for name, _ in other]:
        return []
    return [(name, a, b) for (name, a), (_, b) in zip(one, other, strict=True)]


def _space(env: Any, name: str) -> Space:
    value = getattr(env, name, None)
    if value is None:
        raise InvalidSpec(
            f"env.{name}",
            f"{type(unwrapped(env)).__name__} has none; set it when the env is built",
        )
    if isinstance(value, Space):
        return value
    try:
        return from_gymnasium(value)
    except InvalidSpec:
        raise
    except (InvalidValue, TypeError, ValueError, NotImplementedError) as exc:
        raise InvalidSpec(f"env.{name}", str(exc)) from exc


def _render_mode(env: Any) -> str | None:
    mode = getattr(env, "render_mode", None)
    return mode if isinstance(mode, str) else None


def _metadata(env: Any, report: Report) -> Info:
    metadata: Mapping[str, Any] | str | None = getattr(env, "metadata", None)
    if not isinstance(metadata, Mapping) or not metadata:
        return NO_INFO
    return carry(metadata, lambda path, detail: report(f"metadata, {path}", detail))


def read_autoreset_mode(declared: Any) -> AutoresetMode:
    """Return the mode that a vector env declares, as a member of an enum or as a text.

    Raises:
        InvalidSpec: It is no known one.
    """
    name = str(getattr(declared, "value", declared))
    plain = name.replace("_", "").replace("-", "").replace(" ", "").lower()
    for mode in AutoresetMode:
        if mode.value.replace("_", "") == plain:
            return AutoresetMode.DISABLED if mode is AutoresetMode.UNSPECIFIED else mode
    raise InvalidSpec(
        "env.metadata['autoreset_mode']",
        f"wants NEXT_STEP, SAME_STEP or DISABLED, got {declared!r}",
    )


def _autoreset_mode(env: Any, report: Report) -> AutoresetMode:
    """Read the declared mode; a vector env that declares none has Gymnasium's old NEXT_STEP."""
    metadata: Mapping[str, Any] | str | None = getattr(env, "metadata", None)
    declared: Any = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
    if declared is None:
        declared = getattr(env, "autoreset_mode", None)
    if declared is None:
        report(
            "metadata['autoreset_mode']",
            f"{env_id(env)} declares none; taken as NEXT_STEP, as Gymnasium does",
        )
        return AutoresetMode.NEXT_STEP
    return read_autoreset_mode(declared)
