"""Finds what builds an env: an id, a callable, `module:callable`, a class, an address (layer 6).

A factory is called with `env_kwargs`; one with a parameter named `lane` or `env_index` gets the
lane number there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollmesh.endpoint.calling import check_kwargs, keyword_names, name_of_factory
from rollmesh.endpoint.envs.contracts import check_no_vec_env, env_id, is_env
from rollmesh.endpoint.envs.dm_env import is_dm_env
from rollmesh.endpoint.targets import (
    Address,
    GymnasiumId,
    import_module,
    load_attribute,
    parse_target,
)
from rollmesh.errors import InvalidSpec

_BY_EXTRA = {"ALE": ("ale_py", "atari"), "dm_control": ("shimmy", "dm")}
"""Of namespaces that an extra brings: the module that registers them, and the extra."""
_LANE_PARAMETERS = ("lane", "env_index")


@dataclass(frozen=True, kw_only=True)
class EnvSource:
    """Where one env comes from.

    Attributes:
        name: How errors call it.
        make: Builds an env for a lane; None for an instance.
        instance: The env itself; None for a factory.
        always_scalar: Whether `make` is known to give scalar envs.
        address: Where a served env is; None for a local one.
    """

    name: str
    make: Callable[[int], Any] | None = None
    instance: Any = None
    always_scalar: bool = False
    address: str | None = None


def find_source(env: Any, env_kwargs: Mapping[str, Any] | None, *, field: str = "env") -> EnvSource:
    """Return the source behind anything that names an env; nothing is built.

    Raises:
        InvalidSpec: It names no env, the factory does not take `env_kwargs`, or the env is a vector
            env of Stable-Baselines3.
    """
    if isinstance(env, str):
        target = parse_target(env, field=field)
        if isinstance(target, Address):
            if env_kwargs:
                raise InvalidSpec("env_kwargs", "a served env takes none; its server has them")
            return EnvSource(name=target.text, address=target.text)
        if isinstance(target, GymnasiumId):
            return _registered(target, env_kwargs, field)
        return find_source(load_attribute(target.text, field=field), env_kwargs, field=field)
    check_no_vec_env(env, field, "is")
    if is_env(env) or is_dm_env(env):
        if env_kwargs:
            raise InvalidSpec("env_kwargs", "an env instance takes none; give its factory instead")
        return EnvSource(name=env_id(env), instance=env)
    if not callable(env):
        raise InvalidSpec(
            field,
            "wants an env (with reset and step), a factory, a Gymnasium id, module:callable, or a "
            f"list of these, got {type(env).__name__} {env!r:.100}",
        )
    return EnvSource(name=name_of_factory(env), make=_maker(env, env_kwargs, field))


def _registered(target: GymnasiumId, env_kwargs: Mapping[str, Any] | None, field: str) -> EnvSource:
    """Return the source of a registered id, checked against the registry."""
    import gymnasium

    if target.module is not None:
        import_module(target.module, field=field)
    plain = target.text.partition(":")[2] if target.module is not None else target.text
    try:
        gymnasium.spec(plain)
    except gymnasium.error.Error as exc:
        raise InvalidSpec(
            field,
            f"Gymnasium cannot make {plain!r}: {exc} ({_how_registered(plain)})",
        ) from exc
    given = dict(env_kwargs or {})

    def make(_lane: int) -> Any:
        try:
            return gymnasium.make(plain, **given)
        except gymnasium.error.DependencyNotInstalled as exc:
            raise InvalidSpec(field, f"{plain} needs what is not installed: {exc}") from exc
        except TypeError as exc:
            if given and "unexpected keyword argument" in str(exc):
                raise InvalidSpec("env_kwargs", f"{plain} does not take them: {exc}") from exc
            raise

    return EnvSource(name=plain, make=make, always_scalar=True)


def _how_registered(plain: str) -> str:
    space = plain.partition("/")[0]
    if space not in _BY_EXTRA:
        return "import the package that registers it first, or write module:Name-v0"
    module, extra = _BY_EXTRA[space]
    return f"write {module}:{plain}; the package comes with pip install 'rollmesh[{extra}]'"


def _maker(
    factory: Callable[..., Any], env_kwargs: Mapping[str, Any] | None, field: str
) -> Callable[[int], Any]:
    """Return a function that calls a factory for a lane, after checking its parameters."""
    given = dict(env_kwargs or {})
    named = keyword_names(factory)
    lane_name = next((n for n in _LANE_PARAMETERS if n in named and n not in given), None)
    check_kwargs(
        factory,
        [*given] if lane_name is None else [*given, lane_name],
        field=field,
        cure="pass them in env_kwargs, or give a factory without required parameters",
    )
    if lane_name is None:
        return lambda _: factory(**given)
    return lambda lane: factory(**given, **{lane_name: lane})
