"""What an evaluation found: one `EpisodeResult` per planned episode, and the numbers they give.

Layer 7. Built from the report of a route; knows nothing of envs, models or how they ran. Intervals
are computed when first asked for.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from rollmesh.results.conditions import Conditions
from rollmesh.results.odd import OddPlace, odd_lines, odd_places, printable
from rollmesh.results.stats import (
    METHOD_NAMES,
    Interval,
    bootstrap_interval,
    mean,
    wilson_interval,
)
from rollmesh.results.stopping import StopDecision
from rollmesh.spaces.conformance import OddObservations

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        decision: What the rule decided that the run was to stop by, or None; the success rate's
            interval is the decision's then, for it holds although somebody waited for it.
        conditions: What the episodes were played under, as far as anybody knows; `compare` says
            where those of two results differ.
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
    _finished: tuple[EpisodeResult, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        finished = tuple(e for e in self.episodes if e.error is None)
        object.__setattr__(self, "_finished", finished)

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
            task: replace(self, episodes=tuple(of_it), telemetry=None, planned=len(of_it))
            for task, of_it in groups.items()
        }

    @cached_property
    def _verdicts(self) -> tuple[bool, ...]:
        return tuple(e.success for e in self._finished if e.success is not None)

    @property
    def success_rate(self) -> float | None:
        """Rate of successes among the episodes whose env says; None if none does."""
        said = self._verdicts
        return sum(said) / len(said) if said else None

    @cached_property
    def success_interval(self) -> Interval | None:
        """Wilson's 95 % interval for the success rate; None where there is no rate.

        Where a rule decided something it is the decision's interval.
        """
        if self.decision is not None:
            return self.decision.interval
        return wilson_interval(sum(self._verdicts), len(self._verdicts))

    @property
    def success_bounds(self) -> tuple[float, float] | None:
        """The success rate had all errored episodes failed, and had they all succeeded.

        None where there is no rate. Without errors both are the rate.
        """
        said, errors = self._verdicts, self.num_errors
        if not said:
            return None
        n, good = len(said) + errors, sum(said)
        return good / n, (good + errors) / n

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

        BCa bootstrap from 10 to 2,000 episodes, Student's t below and above.
        """
        return bootstrap_interval(self._returns)

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
            "success_interval": _interval_dict(self.success_interval),
            "success_bounds": self.success_bounds,
            "mean_return": self.mean_return,
            "return_interval": _interval_dict(self.return_interval),
            "mean_length": self.mean_length,
            "num_errors": self.num_errors,
            "num_not_run": self.num_not_run,
            "num_non_finite_returns": self.num_non_finite_returns,
            "odd_observations": [asdict(one) for one in self.odd_observations],
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
        rows = [*_success_rows(self), *_return_rows(self)]
        if self.num_errors:
            rows.append(SummaryRow("errored", str(self.num_errors), "", _first_error(self)))
        rows += [
            SummaryRow(printable(label), number, "", printable(note))
            for label, number, note in odd_lines(self.odd_observations, episodes=len(self.episodes))
        ]
        speed = self.steps_per_s
        if speed is not None:
            note = f"{self.total_steps:,} steps{_predicts(self)} in {self.elapsed_s:.2f} s"
            rows.append(SummaryRow("steps/s", f"{speed:,.0f}", "", note))
        if self.plan_seed is not None:
            rows.append(SummaryRow("plan seed", str(self.plan_seed), "", ""))
        if self.run_dir is not None:
            earlier = f"{self.resumed} episodes in earlier starts" if self.resumed else ""
            rows.append(SummaryRow("kept in", self.run_dir, "", earlier))
        return tuple(rows)

    def title(self) -> str:
        """Return one line that says what ran and how far it got."""
        ended, count = f"{len(self.episodes)}", len(self.episodes)
        if self.stopped is not None or len(self.episodes) != self.planned:
            ended += f" of {self.planned}"
            count = self.planned
        lanes = f", {self.num_envs} lanes" if self.num_envs > 1 else ""
        why = f" (stopped: {_brief(self.stopped)})" if self.stopped is not None else ""
        who = " in ".join(name for name in (self.model, self.env) if name)
        who += ": " if who else ""
        return f"{who}{ended} {'episode' if count == 1 else 'episodes'}{lanes}{why}"

    def __repr__(self) -> str:
        rows = self.summary()
        wide = [
            max((len(cell) for cell in column), default=0) for column in zip(*rows, strict=True)
        ]
        lines = [f"EvalResult  {self.title()}"]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, wide, strict=True))
            lines.append(("  " + "  ".join(cells)).rstrip())
        return "\n".join(lines)


def _episode(entry: dict[str, Any]) -> EpisodeResult:
    given = dict(entry)
    for name in ("total_reward", "duration_s"):
        given[name] = math.nan if entry[name] is None else entry[name]
    return msgspec.convert(given, EpisodeResult)


def _telemetry(entry: Any) -> TelemetrySnapshot:
    from rollmesh.events import TelemetrySnapshot

    return msgspec.convert(entry, TelemetrySnapshot)


class SummaryRow(NamedTuple):
    """One line of the result table; empty cells are `""`."""

    label: str
    value: str
    interval: str
    note: str


def _success_rows(result: EvalResult) -> Iterable[SummaryRow]:
    rate, bounds = result.success_rate, result.success_bounds
    if rate is None or bounds is None:
        if result.episodes:
            is_silent = result.num_errors < len(result.episodes)
            note = "the env does not say" if is_silent else "no episode finished"
            yield SummaryRow("success rate", "-", "", note)
        return
    said = [e for e in result.episodes if e.error is None and e.success is not None]
    note = f"{sum(bool(e.success) for e in said)} of {len(said)}"
    silent = len(result.episodes) - result.num_errors - len(said)
    if silent:
        note += f"; {silent} do not say"
    if result.decision is not None:
        note += f"; interval of {result.decision.rule}, decided on {result.decision.n}"
    if result.num_errors:
        note += f"; {bounds[0]:.3f} to {bounds[1]:.3f} with the errored ones"
    yield SummaryRow("success rate", f"{rate:.3f}", _interval_text(result.success_interval), note)


def _return_rows(result: EvalResult) -> Iterable[SummaryRow]:
    average, length = result.mean_return, result.mean_length
    if average is None or length is None:
        return
    odd = result.num_non_finite_returns
    note = f"{odd} of {len(result.episodes) - result.num_errors} returns not finite" if odd else ""
    interval = _interval_text(result.return_interval)
    yield SummaryRow("mean return", _number(average), interval, note)
    yield SummaryRow("mean length", _number(length), "", "")


def _predicts(result: EvalResult) -> str:
    """Say how often the model was asked where it answered with chunks: nobody chunks unawares."""
    rows = () if result.telemetry is None or result.resumed else result.telemetry.rows
    asked = sum(
        round(row.count * row.mean)
        for row in rows
        if row.operation == "model.predict" and row.metric == "group.size"
    )
    return f" from {asked:,} predicted chunks" if 0 < asked < result.total_steps else ""


def _first_error(result: EvalResult) -> str:
    first = _brief(next(e.error for e in result.episodes if e.error is not None))
    if result.stopped is not None and _brief(result.stopped) == first:
        return "it stopped the run"
    return f"first: {first}"


def _brief(error: str) -> str:
    """Return the first line of an error, without the id that is in the episode's own entry."""
    line = error.strip().partition("\n")[0].strip() or "no message"
    line = _EPISODE_ID.sub("", printable(line))
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 2]} …"


_EPISODE_ID = re.compile(r", episode [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LONGEST_LINE = 240


def _interval_text(interval: Interval | None) -> str:
    if interval is None:
        return ""
    if interval.method == "constant":
        return "(all equal)"
    ends = f"[{_number(interval.low)}, {_number(interval.high)}]"
    return f"{ends} {interval.confidence * 100:g} % {METHOD_NAMES[interval.method]}"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    size = abs(value)
    if size and not 1e-3 <= size < 1e7:  # noqa: PLR2004 - where plain digits stop being readable
        return f"{value:.4g}"
    return f"{value:,.3f}" if size < 10 else f"{value:,.1f}"  # noqa: PLR2004


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
