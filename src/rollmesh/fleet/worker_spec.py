"""What a worker is told: data only, so that any pool can start one anywhere (layer 7).

A worker is described by a `WorkerSpec` when it is started, and then told over its connection which
env each of its lanes is to hold (`EnvTarget`). Both have a JSON form; nothing is pickled, envs are
found by name. This module starts nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmesh.endpoint.named_targets import find_target
from rollmesh.endpoint.targets import is_address
from rollmesh.errors import InvalidSpec
from rollmesh.spaces.conformance import Policy
from rollmesh.wire.metadata import encode_map, map_from_text, map_to_text

if TYPE_CHECKING:
    from typing_extensions import Self

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""What numeric libraries read their number of threads from."""


@dataclass(frozen=True, kw_only=True)
class EnvTarget:
    """An env by name: what builds it, and with which arguments.

    Attributes:
        text: An id, or `module:callable`.
        env_kwargs: Keyword arguments of the factory; what `encode_map` carries.
        main_file: The script that holds the factory, where that is the main one.
    """

    text: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    main_file: str | None = None

    @classmethod
    def of(
        cls,
        env: str | Callable[..., Any],
        env_kwargs: Mapping[str, Any] | None = None,
        *,
        field: str = "env",
    ) -> Self:
        """Return the target behind an id, `module:callable`, or a factory that a module holds.

        Args:
            env: What builds the env.
            env_kwargs: Keyword arguments of the factory.
            field: What an error calls `env`.

        Raises:
            InvalidSpec: It cannot be found by name, is an env instance or an address, or an
                argument cannot be carried to another process.
        """
        if not isinstance(env, str) and not callable(env):
            raise InvalidSpec(
                field,
                f"{type(env).__name__} {env!r:.100} cannot be carried to a worker process; give an "
                "id, module:callable, or a factory that a module holds",
            )
        if is_address(env):
            raise InvalidSpec(field, f"{env} is the address of a served env, which no worker holds")
        found = find_target(env, field=field)
        given = dict(env_kwargs or {})
        encode_map(given, _refuse_odd, "env_kwargs")
        return cls(text=found.text, env_kwargs=given, main_file=found.main_file)

    def to_json(self) -> str:
        """Return it as JSON text, the same for equal targets."""
        return json.dumps([self.text, map_to_text(self.env_kwargs), self.main_file])

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the target that a text stands for."""
        name, kwargs, main_file = json.loads(text)
        return cls(text=name, env_kwargs=map_from_text(kwargs), main_file=main_file)


def _refuse_odd(path: str, detail: str) -> None:
    raise InvalidSpec(path, f"cannot be carried to a worker process: {detail}")


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """One worker process.

    Attributes:
        worker: Its number, from 0.
        start: How many times this worker has been started, from 1.
        address: Where the driver listens; the worker dials it.
        token: The secret that the worker says there; good for this start only.
        lanes: The lanes that live there.
        conformance: What happens to observations that do not fit their space.
        cwd: Its working directory.
        environment: Variables added to its environment.
        threads: Threads for numeric libraries that are told in code (torch); None leaves them.
        cpus: The cores it may run on; None is all.
        processes: Processes that are busy beside it: whether spinning can pay.
    """

    worker: int
    start: int
    address: str
    token: str
    lanes: tuple[int, ...]
    conformance: Policy = "warn"
    cwd: str = ""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    threads: int | None = 1
    cpus: tuple[int, ...] | None = None
    processes: int = 2

    @property
    def name(self) -> str:
        """What it calls itself at the driver's door."""
        return f"{self.worker}.{self.start}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Self:
        """Return the spec that a table stands for; what is not of it is left out."""
        given = {one.name: table[one.name] for one in fields(cls) if one.name in table}
        given["lanes"] = tuple(given["lanes"])
        if given.get("cpus") is not None:
            given["cpus"] = tuple(given["cpus"])
        return cls(**given)

    def __repr__(self) -> str:
        # the token must not reach a log
        return f"WorkerSpec(worker={self.worker}, start={self.start}, lanes={self.lanes})"


def worker_environment(threads: int | None) -> dict[str, str]:
    """Return the variables that a worker is started with.

    A variable that the user's environment sets is left alone.

    Args:
        threads: Threads that numeric libraries may use; None leaves them.
    """
    added = {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
    if threads is not None:
        added.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    return {name: value for name, value in added.items() if name not in os.environ}


def sets_threads() -> bool:
    """Return whether the user's environment says how many threads libraries may use."""
    return any(name in os.environ for name in THREAD_VARIABLES)


def working_directory() -> str:
    """Return the working directory, or the one of Python where that was deleted."""
    try:
        return str(Path.cwd())
    except OSError:
        return sys.prefix
