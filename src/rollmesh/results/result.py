"""What an evaluation found: one `EpisodeResult` per planned episode, and the numbers they give.

Layer 7. Built from the report of a route; knows nothing of envs, models or how they ran. Intervals
are computed when first asked for.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from rollmesh.results.conditions import Conditions, called
from rollmesh.results.odd import OddPlace, odd_places
from rollmesh.results.stats import (
    Interval,
    mean,
    stratified_interval,
    wilson_interval,
)
from rollmesh.results.stopping import StopDecision
from rollmesh.results.table import SummaryRow, brief, table_rows
from rollmesh.spaces.conformance import OddObservations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollmesh.events import TelemetrySnapshot
    from rollmesh.runtime.report import EpisodeSummary

_Plain: TypeAlias = "dict[str, Any] | list[Any] | tuple[Any, ...] | str | float | None"
"""What `to_dict` gives: values that JSON knows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeResult:
    """One episode that ended, by itself, by a cap, or by a fault of its env.

    Attributes:
        index: Its place in the plan.
        seed: The env seed it was reset with; None if none was sent.
        env_index: The lane it ran on.
        episode_id: Its id (UUIDv7).
        steps: Number of env steps.
        total_reward: Sum of rewards; NaN if one was.
        terminated: Whether the env ended it.
        truncated: Whether a limit cut it short.
        success: The env's own word, or None where it has none.
        duration_s: From the reset's reply to the last step's, in seconds.
        error: What spoiled it, or None. An episode with an error is neither success nor failure.
        attempts: How often it was started; more than 1 where a worker or served endpoint was lost.
        causes: Why the earlier attempts came to nothing, one line each.
        task: The task of the plan it belongs to; `""` without tasks.
        odd_observations: How many of its observations their space did not hold (NaN, out of
            bounds) and were delivered all the same, by kind and path; empty where all were right.
    """

    index: int
    seed: int | None
    env_index: int
    episode_id: str
    steps: int
    total_reward: float
    terminated: bool
    truncated: bool
    success: bool | None = None
    duration_s: float = 0.0
    error: str | None = None
    attempts: int = 1
    causes: tuple[str, ...] = ()
    task: str = ""
    odd_observations: tuple[OddObservations, ...] = ()

    @classmethod
    def from_summary(cls, summary: EpisodeSummary) -> EpisodeResult:
        """Build one from a route report's summary."""
        return cls(**{name: getattr(summary, name) for name in _EPISODE_FIELDS})


_EPISODE_FIELDS = tuple(f.name for f in fields(EpisodeResult))


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """The outcome of `evaluate`.

    Numbers are taken over the episodes that finished; an episode with an `error` is in `episodes`
    and in no mean or rate.

    Attributes:
        episodes: The episodes that ended, in plan order.
        telemetry: Durations and sizes of the calls made, or None if nothing ran.
        plan_seed: The number all episode seeds follow from; None with explicit seeds or none.
        env: The env's name.
        model: The model's name.
        num_envs: Number of lanes that ran.
        planned: Number of episodes asked for.
        elapsed_s: Time the run took, building and loading not counted, in seconds.
        stopped: Why fewer episodes ended than were planned, or None.
        plan_hash: The hash of the plan, where there was one in full; equal hashes mean equal
            episodes.
        run_dir: The folder that the run is kept in, or None.
        resumed: How many of the episodes had ended in earlier starts of the run; `telemetry` knows
            nothing of these.
        decision: What the rule decided that the run was to stop by, or None. The success rate, its
            counts and its interval are the decision's then: that interval holds although somebody
            waited for it, and it is of these episodes. Those that ended later are in
            `success_rate_of_all`, and in all other numbers.
        conditions: What the episodes were played under, as far as anybody knows; `compare` says
            where those of two results differ.
        model_kwargs: The keyword arguments that the model was built with, as JSON texts, without a
            token.
        num_unwatched: Of how many episodes nobody counted the odd observations: those that a store
            holds of a version that did not.
    """

    episodes: tuple[EpisodeResult, ...]
    telemetry: TelemetrySnapshot | None = None
    plan_seed: int | None = None
    env: str = ""
    model: str = ""
    num_envs: int = 1
    planned: int = 0
    elapsed_s: float = 0.0
    stopped: str | None = None
    plan_hash: str | None = None
    run_dir: str | None = None
    resumed: int = 0
    decision: StopDecision | None = None
    conditions: Conditions | None = field(default=None, repr=False, hash=False)
    model_kwargs: Mapping[str, str] = field(default_factory=dict[str, str], repr=False, hash=False)
    num_unwatched: int = 0
    _finished: tuple[EpisodeResult, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        finished = tuple(e for e in self.episodes if e.error is None)
        object.__setattr__(self, "_finished", finished)

    @property
    def model_called(self) -> str:
        """The model's name with its keyword arguments, as people read it: `my:Noisy(eps=0.7)`."""
        return called(self.model, self.model_kwargs)

    # Rates over the episodes whose env says.

    @property
    def base_seed(self) -> int | None:
        """The `base_seed` that makes `evaluate` run this plan again: the plan seed."""
        return self.plan_seed

    @property
    def num_errors(self) -> int:
        """Number of episodes spoiled by a fault."""
        return len(self.episodes) - len(self._finished)

    @property
    def num_not_run(self) -> int:
        """Number of planned episodes that neither finished nor errored."""
        return max(0, self.planned - len(self.episodes))

    @cached_property
    def odd_observations(self) -> tuple[OddPlace, ...]:
        """What observations their space did not hold, by kind and path, and in which episodes.

        Policy `warn` delivers them all the same. Errored episodes are counted too.
        """
        return odd_places(self.episodes)

    @cached_property
    def tasks(self) -> dict[str, EvalResult]:
        """The result of each task's episodes, in plan order; one entry without tasks."""
        groups: dict[str, list[EpisodeResult]] = {}
        for episode in self.episodes:
            groups.setdefault(episode.task, []).append(episode)
        return {
            task: replace(
                self,
                episodes=tuple(of_it),
                telemetry=None,
                planned=len(of_it),
                decision=self.decision if len(groups) == 1 else None,
                num_unwatched=self.num_unwatched if len(groups) == 1 else 0,
            )
            for task, of_it in groups.items()
        }

    @property
    def success_counts(self) -> tuple[int, int] | None:
        """Number of successes, and of the episodes that the success rate is of; None of none.

        Where a rule decided something these are the episodes that it was decided on.
        """
        if self.decision is not None:
            return self.decision.successes, self.decision.n
        return self.success_counts_of_all

    @property
    def success_rate(self) -> float | None:
        """Rate of successes among the episodes whose env says; None if none does.

        Where a rule decided something it is the rate among those that it was decided on.
        """
        return _rate(self.success_counts)

    @cached_property
    def success_interval(self) -> Interval | None:
        """Wilson's 95 % interval for the success rate; None where there is no rate.

        Where a rule decided something it is the decision's interval.
        """
        if self.decision is not None:
            return self.decision.interval
        return wilson_interval(*(self.success_counts_of_all or (0, 0)))

    @property
    def success_bounds(self) -> tuple[float, float] | None:
        """The success rate had all errored episodes failed, and had they all succeeded.

        None where there is no rate. Without errors both are the rate. Where a rule decided
        something they are about the errored ones among those that it was decided on.
        """
        counts = self.success_counts
        if counts is None:
            return None
        good, said = counts
        errors = sum(1 for e in self._judged if e.error is not None)
        return good / (said + errors), (good + errors) / (said + errors)

    @cached_property
    def success_counts_of_all(self) -> tuple[int, int] | None:
        """Number of successes, and of all episodes whose env says; None where none does."""
        said = [e.success for e in self._finished if e.success is not None]
        return (sum(said), len(said)) if said else None

    @property
    def success_rate_of_all(self) -> float | None:
        """The success rate of all episodes that ended, also after a rule's decision."""
        return _rate(self.success_counts_of_all)

    @cached_property
    def _judged(self) -> tuple[EpisodeResult, ...]:
        """The episodes that the success rate is of, errored and silent ones among them."""
        if self.decision is None:
            return self.episodes
        left = self.decision.n
        judged: list[EpisodeResult] = []
        for episode in sorted(self.episodes, key=lambda e: e.index):
            if not left:
                break
            judged.append(episode)
            left -= episode.error is None and episode.success is not None
        return tuple(judged)

    # Returns of finished episodes.

    @cached_property
    def _returns(self) -> tuple[float, ...]:
        return tuple(e.total_reward for e in self._finished)

    @property
    def mean_return(self) -> float | None:
        """Mean of the total rewards; NaN if one of them is, None of no episodes."""
        return mean(self._returns)

    @property
    def num_non_finite_returns(self) -> int:
        """Number of finished episodes whose total reward is NaN or infinite."""
        return sum(1 for value in self._returns if not math.isfinite(value))

    @cached_property
    def return_interval(self) -> Interval | None:
        """95 % interval for the mean return; None below two episodes or if one is not finite.

        BCa bootstrap from 10 to 2,000 episodes, Student's t below and above; of several tasks each
        is resampled by itself (`stratified_interval`).
        """
        groups: dict[str, list[float]] = {}
        for episode in self._finished:
            groups.setdefault(episode.task, []).append(episode.total_reward)
        return stratified_interval(groups.values())

    @property
    def mean_length(self) -> float | None:
        """Mean number of steps; None of no episodes."""
        return mean([float(e.steps) for e in self._finished])

    @property
    def total_steps(self) -> int:
        """Number of env steps of all episodes here."""
        return sum(e.steps for e in self.episodes)

    @property
    def steps_per_s(self) -> float | None:
        """Env steps per second of the run; None where nothing ran."""
        return self.total_steps / self.elapsed_s if self.elapsed_s > 0 else None

    # Views.

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can carry, keys named as the fields.

        Non-finite numbers become None, and their paths (`episodes[3].total_reward`) are listed
        under `non_finite`.
        """
        table: dict[str, Any] = {
            "env": self.env,
            "model": self.model,
            "model_kwargs": dict(self.model_kwargs),
            "num_envs": self.num_envs,
            "planned": self.planned,
            "plan_hash": self.plan_hash,
            "run_dir": self.run_dir,
            "resumed": self.resumed,
            "plan_seed": self.plan_seed,
            "stopped": self.stopped,
            "decision": None if self.decision is None else asdict(self.decision),
            "conditions": None if self.conditions is None else self.conditions.to_dict(),
            "success_rate": self.success_rate,
            "success_counts": self.success_counts,
            "success_interval": _interval_dict(self.success_interval),
            "success_bounds": self.success_bounds,
            "success_rate_of_all": self.success_rate_of_all,
            "success_counts_of_all": self.success_counts_of_all,
            "mean_return": self.mean_return,
            "return_interval": _interval_dict(self.return_interval),
            "mean_length": self.mean_length,
            "num_errors": self.num_errors,
            "num_not_run": self.num_not_run,
            "num_non_finite_returns": self.num_non_finite_returns,
            "odd_observations": [asdict(one) for one in self.odd_observations],
            "num_unwatched": self.num_unwatched,
            "total_steps": self.total_steps,
            "elapsed_s": self.elapsed_s,
            "steps_per_s": self.steps_per_s,
            "episodes": [asdict(e) for e in self.episodes],
            "telemetry": None if self.telemetry is None else msgspec.to_builtins(self.telemetry),
        }
        non_finite: list[str] = []
        cleaned: dict[str, Any] = _finite(table, "", non_finite)
        cleaned["non_finite"] = non_finite
        return cleaned

    def to_json(self, *, indent: int | None = None) -> str:
        """Return `to_dict()` as JSON text that any parser accepts."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> EvalResult:
        """Read what `to_json()` wrote; what was not finite comes back as NaN.

        Raises:
            ValueError: The text is no such JSON.
        """
        try:
            table = json.loads(text)
            episodes = tuple(_episode(entry) for entry in table["episodes"])
            known = {f.name for f in fields(cls) if f.init} & set(table)
            given: dict[str, Any] = {name: table[name] for name in known}
            if given.get("telemetry") is not None:
                given["telemetry"] = _telemetry(given["telemetry"])
            given["episodes"] = episodes
            given["decision"] = StopDecision.from_dict(table.get("decision"))
            given["conditions"] = Conditions.from_dict(table.get("conditions"))
            return cls(**given)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"wants the JSON of a result, as `rollmesh eval --json` prints it, got something "
                f"else ({type(error).__name__}: {error})"
            ) from error

    def summary(self) -> tuple[SummaryRow, ...]:
        """Return the lines of the result table."""
        return tuple(table_rows(self))

    def title(self) -> str:
        """Return one line that says what ran and how far it got."""
        ended, count = f"{len(self.episodes)}", len(self.episodes)
        if self.stopped is not None or len(self.episodes) != self.planned:
            ended += f" of {self.planned}"
            count = self.planned
        lanes = f", {self.num_envs} lanes" if self.num_envs > 1 else ""
        why = f" (stopped: {brief(self.stopped)})" if self.stopped is not None else ""
        who = " in ".join(name for name in (self.model, self.env) if name)
        who += ": " if who else ""
        return f"{who}{ended} {'episode' if count == 1 else 'episodes'}{lanes}{why}"

    def __repr__(self) -> str:
        rows = self.summary()
        # A folder's name pushes what is beside it and no other line.
        numbers = [row if len(row.value) <= _WIDEST else row._replace(value="") for row in rows]
        wide = [max(map(len, column)) for column in zip(*numbers, strict=True)]
        lines = [f"EvalResult  {self.title()}"]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, wide, strict=True))
            lines.append(("  " + "  ".join(cells)).rstrip())
        return "\n".join(lines)


_WIDEST = 16
"""Characters of the longest value that the lines of a result are aligned for."""


def _episode(entry: dict[str, Any]) -> EpisodeResult:
    given = dict(entry)
    for name in ("total_reward", "duration_s"):
        given[name] = math.nan if entry[name] is None else entry[name]
    return msgspec.convert(given, EpisodeResult)


def _telemetry(entry: Any) -> TelemetrySnapshot:
    from rollmesh.events import TelemetrySnapshot

    return msgspec.convert(entry, TelemetrySnapshot)


def _rate(counts: tuple[int, int] | None) -> float | None:
    return None if counts is None else counts[0] / counts[1]


def _interval_dict(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else asdict(interval)


def _finite(value: _Plain, path: str, found: list[str]) -> Any:
    """Return a copy with None for every non-finite float, whose paths are added to `found`."""
    if isinstance(value, dict):
        return {
            key: _finite(item, f"{path}.{key}" if path else str(key), found)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_finite(item, f"{path}[{i}]", found) for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        found.append(path)
        return None
    return value
