"""The plan: which episodes a run consists of, decided before anything runs (layer 7).

    plan = Plan(tasks=(Task(name="lift", env="bench:make", env_kwargs={"task": 3}, episodes=50),))
    plan.episodes[7].env_seed

Everything about an episode (env seed, policy seed, initial state, options, limit of steps) is a
pure function of plan seed, task and index: never of timing, workers, lanes, batch size or autoreset
mode. A plan is data: it has a canonical JSON form, and its hash says whether two runs mean the same
episodes. It knows no env, process or clock.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from rollmesh.errors import InvalidSpec
from rollmesh.ports import Info
from rollmesh.runtime.seeds import episode_seed, policy_seed
from rollmesh.runtime.spec import EpisodeStart

FORMAT = 1
"""Version of the JSON form; part of the hash."""
INITIAL_STATE = "initial_state"
"""The reset option that carries an initial-state index, unless a task names another one."""
_HASH_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Task:
    """Episodes of one env setup.

    Attributes:
        name: Names the task in results; distinct within a plan. Part of what seeds follow from.
        env: What builds its env (an id, `module:callable`); None takes the run's env.
        env_kwargs: Keyword arguments for that, plain values only.
        episodes: How many.
        seeds: The env seeds in order, in place of derived ones; their number is `episodes`.
        options: Reset options: one mapping for all episodes, or one (or None) each.
        initial_states: How many initial states the env has; episode k starts from state
            k modulo this, given as a reset option.
        initial_state_option: The name of that option.
        max_episode_steps: Truncates an episode after so many steps; None leaves it to the run.

    Raises:
        InvalidSpec: A field is wrong; the sentence names it.
    """

    name: str = ""
    env: str | None = None
    env_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    episodes: int | None = None
    seeds: Sequence[int] | None = None
    options: Info | Sequence[Info | None] | None = None
    initial_states: int | None = None
    initial_state_option: str = INITIAL_STATE
    max_episode_steps: int | None = None

    def __post_init__(self) -> None:
        where = f"tasks[{self.name!r}]"
        if not isinstance(cast("object", self.name), str):
            raise InvalidSpec("tasks", f"a task's name is a text, got {self.name!r}")
        if self.env is not None and not (isinstance(cast("object", self.env), str) and self.env):
            raise InvalidSpec(
                f"{where}.env", f"wants the name of an env (an id, module:callable), {self.env!r}"
            )
        if not isinstance(cast("object", self.env_kwargs), Mapping):
            raise InvalidSpec(f"{where}.env_kwargs", f"wants a mapping, got {self.env_kwargs!r}")
        object.__setattr__(self, "env_kwargs", dict(self.env_kwargs))
        if not isinstance(cast("object", self.initial_state_option), str):
            raise InvalidSpec(
                f"{where}.initial_state_option",
                f"wants the name of a reset option, got {self.initial_state_option!r}",
            )
        if self.seeds is not None:
            object.__setattr__(self, "seeds", _read_seeds(where, self.seeds))
            if self.episodes is None:
                object.__setattr__(self, "episodes", len(self.seeds))
        if self.episodes is None:
            raise InvalidSpec(f"{where}.episodes", "is missing: say how many, or give seeds")
        for name in ("episodes", "initial_states", "max_episode_steps"):
            if (given := getattr(self, name)) is not None:
                read = _read_whole(f"{where}.{name}", given, least=int(name != "episodes"))
                object.__setattr__(self, name, read)
        if self.seeds is not None and len(self.seeds) != self.episodes:
            raise InvalidSpec(
                f"{where}.episodes", f"{self.episodes} contradicts the {len(self.seeds)} seeds"
            )
        self._read_options(where)

    def _read_options(self, where: str) -> None:
        options = self.options
        if options is None or isinstance(options, Mapping):
            return
        if isinstance(options, (str, bytes)) or not isinstance(cast("object", options), Sequence):
            raise InvalidSpec(
                f"{where}.options", f"wants one mapping for all or a list of them, got {options!r}"
            )
        listed: tuple[Any, ...] = tuple(options)
        if len(listed) != self.episodes:
            raise InvalidSpec(
                f"{where}.options", f"has {len(listed)} entries for {self.episodes} episodes"
            )
        for k, one in enumerate(listed):
            if not (one is None or isinstance(one, Mapping)):
                raise InvalidSpec(f"{where}.options[{k}]", f"wants a mapping or None, got {one!r}")
        object.__setattr__(self, "options", listed)

    def options_of(self, k: int) -> Info | None:
        """Return the reset options of this task's episode k."""
        given = self.options
        own = given if given is None or isinstance(given, Mapping) else given[k]
        if self.initial_states is None:
            return own
        return {**(own or {}), self.initial_state_option: k % self.initial_states}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedEpisode:
    """One episode of a plan.

    Attributes:
        index: Its place in the plan.
        task: The task's name.
        task_index: Its place in the task.
        env_seed: Given to the env's reset; derived ones lie in [0, 2**31).
        policy_seed: What a policy finds in its `EpisodeContext`; in [0, 2**31).
        initial_state: Index of its initial state, or None.
        options: Reset options, the initial state among them, or None.
        max_episode_steps: Its limit of steps, or None.
    """

    index: int
    task: str
    task_index: int
    env_seed: int
    policy_seed: int
    initial_state: int | None
    options: Info | None
    max_episode_steps: int | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All episodes of a run.

    Attributes:
        tasks: In order; their episodes follow one another in the plan.
        seed: The number that seeds follow from, any int of 0 or more.
        name: A label, not part of the hash.

    Raises:
        InvalidSpec: A field is wrong, two tasks have one name, or a value cannot be written down.

    Guarantees: equal hashes mean equal episodes; the hash is the same on every machine and in every
    version that keeps `FORMAT`.
    """

    tasks: Sequence[Task]
    seed: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.name), str):
            raise InvalidSpec("name", f"wants a text, got {self.name!r}")
        if not isinstance(cast("object", self.tasks), Iterable):
            raise InvalidSpec("tasks", f"wants a list of Task objects, got {self.tasks!r}")
        tasks = tuple(self.tasks)
        object.__setattr__(self, "tasks", tasks)
        for task in tasks:
            if not isinstance(cast("object", task), Task):
                raise InvalidSpec("tasks", f"wants Task objects, got {task!r}")
        if not tasks:
            raise InvalidSpec("tasks", "is empty: a plan wants at least one task")
        names = [task.name for task in tasks]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidSpec("tasks", f"two tasks have the name {doubled[0]!r}; give each its own")
        if len(tasks) > 1 and "" in names:
            raise InvalidSpec("tasks", "a task has no name; give each one where there are several")
        object.__setattr__(self, "seed", _read_whole("seed", self.seed, least=0))
        self.to_json()

    @cached_property
    def episodes(self) -> tuple[PlannedEpisode, ...]:
        """All episodes, in plan order."""
        planned: list[PlannedEpisode] = []
        for task in self.tasks:
            states = task.initial_states
            for k in range(task.episodes or 0):
                seed = task.seeds[k] if task.seeds is not None else None
                env_seed = episode_seed(self.seed, task.name, k) if seed is None else seed
                planned.append(
                    PlannedEpisode(
                        index=len(planned),
                        task=task.name,
                        task_index=k,
                        env_seed=env_seed,
                        policy_seed=policy_seed(env_seed, "", 0),
                        initial_state=None if states is None else k % states,
                        options=task.options_of(k),
                        max_episode_steps=task.max_episode_steps,
                    )
                )
        return tuple(planned)

    @cached_property
    def setups(self) -> Mapping[str, Task]:
        """The env setups that the tasks need, each under the name of the first task with it."""
        setups: dict[str, Task] = {}
        for task in self.tasks:
            setups.setdefault(self.setup_of[task.name], task)
        return setups

    @cached_property
    def setup_of(self) -> Mapping[str, str]:
        """For each task, the name of the first one with the same env and arguments."""
        first: dict[str, str] = {}
        of: dict[str, str] = {}
        for task in self.tasks:
            key = json.dumps([task.env, _plain(task.env_kwargs, "env_kwargs")], sort_keys=True)
            of[task.name] = first.setdefault(key, task.name)
        return of

    def starts(self, finished: Mapping[int, object] | None = None) -> tuple[EpisodeStart, ...]:
        """Return what the runtime is to start: all episodes but those that have finished."""
        done = finished or {}
        return tuple(
            EpisodeStart(
                index=one.index,
                seed=one.env_seed,
                options=one.options,
                task=one.task,
                setup=self.setup_of[one.task],
                max_steps=one.max_episode_steps,
            )
            for one in self.episodes
            if one.index not in done
        )

    @cached_property
    def hash(self) -> str:
        """BLAKE2b over the canonical JSON form without the label, 32 hex digits."""
        table = {**self.to_dict(), "name": ""}
        text = json.dumps(table, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).hexdigest()

    # ------------------------------------------------------------------------------ written

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can carry; what is left at its default is left out."""
        return {
            "format": FORMAT,
            "name": self.name,
            "seed": self.seed,
            "tasks": [_task_dict(task) for task in self.tasks],
        }

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the plan as JSON text.

        Raises:
            InvalidSpec: A value in `env_kwargs` or `options` has no JSON form.
        """
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_dict(cls, table: object) -> Plan:
        """Build a plan from what `to_dict` returned, or a file of the same shape says.

        Raises:
            InvalidSpec: A name is unknown, or a value is wrong.
        """
        if not isinstance(table, Mapping):
            raise InvalidSpec("plan", f"wants a table with tasks, got {table!r:.100}")
        given = dict(cast("Mapping[str, Any]", table))
        version = given.pop("format", FORMAT)
        if version != FORMAT:
            raise InvalidSpec("plan.format", f"{version!r} is not known; this build knows {FORMAT}")
        _refuse_unknown("plan", given, ("name", "seed", "tasks"))
        tasks = given.get("tasks")
        if not isinstance(tasks, Sequence) or isinstance(tasks, (str, bytes)):
            raise InvalidSpec("plan.tasks", f"wants a list of tasks, got {tasks!r:.100}")
        given["tasks"] = tuple(_read_task(k, one) for k, one in enumerate(cast("Any", tasks)))
        return cls(**given)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Build a plan from JSON text.

        Raises:
            InvalidSpec: It is no JSON, or no plan.
        """
        try:
            table = json.loads(text)
        except ValueError as error:
            raise InvalidSpec("plan", f"is no JSON: {error}") from error
        return cls.from_dict(table)


_TASK_FIELDS = tuple(Task.__dataclass_fields__)


def _task_dict(task: Task) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name in _TASK_FIELDS:
        value = getattr(task, name)
        if value is None or value == Task.__dataclass_fields__[name].default:
            continue
        if name == "env_kwargs" and not value:
            continue
        table[name] = _plain(value, f"tasks[{task.name!r}].{name}")
    if task.seeds is not None:
        table.pop("episodes")
    return {"name": task.name, **table}


def _read_task(k: int, table: object) -> Task:
    if not isinstance(table, Mapping):
        raise InvalidSpec(f"plan.tasks[{k}]", f"wants a table, got {table!r:.100}")
    given = dict(cast("Mapping[str, Any]", table))
    _refuse_unknown(f"plan.tasks[{k}]", given, _TASK_FIELDS)
    return Task(**given)


def _refuse_unknown(where: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise InvalidSpec(f"{where}.{name}", f"is not known; known are {', '.join(known)}")


def _plain(value: Any, where: str) -> Any:
    """Return a value as JSON can carry it, so that reading it back gives an equal one."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise InvalidSpec(where, f"{value!r} cannot be written into a plan")
    if isinstance(value, Mapping):
        table = cast("Mapping[Any, Any]", value)
        if odd := [key for key in table if not isinstance(key, str)]:
            raise InvalidSpec(where, f"the key {odd[0]!r} is no text; a plan is kept as JSON")
        return {key: _plain(one, f"{where}.{key}") for key, one in table.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one, where) for one in cast("Sequence[Any]", value)]
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return _plain(value.tolist(), where)
    raise InvalidSpec(
        where,
        f"{value!r:.100} cannot be written into a plan, which is kept as JSON: give numbers, "
        "texts, lists and mappings",
    )


def _read_seeds(where: str, seeds: object) -> tuple[int, ...]:
    if isinstance(seeds, (str, bytes, Mapping)) or not isinstance(seeds, Iterable):
        raise InvalidSpec(f"{where}.seeds", f"wants a list of ints, one an episode, got {seeds!r}")
    read = enumerate(cast("Iterable[object]", seeds))
    return tuple(_read_whole(f"{where}.seeds[{k}]", seed, least=0) for k, seed in read)


def _read_whole(where: str, value: object, *, least: int) -> int:
    is_whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if not is_whole or cast("int", value) < least:
        raise InvalidSpec(where, f"wants an int of {least} or more, got {value!r}")
    return int(cast("int", value))
