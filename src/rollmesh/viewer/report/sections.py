"""The sections of a report: functions from runs to HTML, empty where there is nothing to say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from rollmesh.results.stats import METHOD_NAMES
from rollmesh.viewer.report.charts import IntervalRow, distribution, forest
from rollmesh.viewer.report.data import OUTCOMES, Outcome, ReportData, outcome_of
from rollmesh.viewer.report.svg import NOTHING, TIMES, duration, esc, number, size
from rollmesh.viewer.report.tables import Cell, count, facts_list, legend, numeric, table
from rollmesh.viewer.report.timeline import busy_words, timeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rollmesh.events import MetricRow
    from rollmesh.results.aggregates import Estimate
    from rollmesh.results.stats import Interval

_WHOLE = "all episodes"
_MOST_EPISODES = 1000
_MOST_CAUSES = 50
_MOST_INDICES = 12
_MOST_LOST = 200
_MOST_LAST_LINES = 10
SERIES = 6
"""Runs that have a colour of their own."""

OUTCOME_WORDS: dict[Outcome, str] = {
    "success": "success",
    "failure": "failure",
    "unjudged": "the env does not say",
    "errored": "errored",
}


def section(heading: str, body: str, note: str = "") -> str:
    """Return a section with its heading, or nothing where its body is empty."""
    if not body:
        return ""
    lead = f'<p class="note">{esc(note)}</p>' if note else ""
    return f"<section><h2>{esc(heading)}</h2>{lead}{body}</section>"


def reach(interval: Interval | None) -> str:
    """Return an interval as text."""
    return "" if interval is None else f"[{number(interval.low)}, {number(interval.high)}]"


def method_of(estimates: Iterable[Estimate]) -> str:
    """Say how intervals were computed."""
    names = {
        f"{e.interval.confidence * 100:g} % {METHOD_NAMES[e.interval.method]}": None
        for e in estimates
        if e.interval is not None and e.interval.method != "constant"
    }
    return ", ".join(names)


# ----------------------------------------------------------------------------------- tasks


def tasks_section(runs: Sequence[ReportData]) -> str:
    """Return the table by task, and the intervals as plots."""
    rows = [
        (
            Cell(task.task or _WHOLE, swatch=_series(runs, place)),
            *([Cell(run.name)] if len(runs) > 1 else []),
            count(task.episodes),
            numeric(task.rate.value, reach(task.rate.interval)),
            numeric(task.mean_return.value, reach(task.mean_return.interval)),
            count(task.errors),
        )
        for name in _task_names(runs)
        for place, run in enumerate(runs)
        for task in run.tasks
        if task.task == name
    ]
    heads = ["task", *(["run"] if len(runs) > 1 else []), "episodes", "success rate"]
    heads += ["mean return", "errored"]
    estimates = [e for run in runs for t in run.tasks for e in (t.rate, t.mean_return)]
    caption = f"Intervals: {method_of(estimates)}." if method_of(estimates) else "No intervals."
    names = _task_names(runs)
    body = ""
    if names != ("",) or len(runs) == 1:  # else the table of the runs has said it
        body = table(heads, rows, caption=caption, numbers_from=len(heads) - 4)
    body += _forests(runs)
    body += "".join(f'<p class="note">{esc(note)}</p>' for note in _notes(runs))
    return section("Results" if names == ("",) else "Results by task", body)


def _task_names(runs: Sequence[ReportData]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(task.task for run in runs for task in run.tasks))


def _series(runs: Sequence[ReportData], place: int) -> str:
    return f"s{place % SERIES}" if len(runs) > 1 else ""


def _notes(runs: Sequence[ReportData]) -> tuple[str, ...]:
    """Say what is missing or doubtful of the numbers over all tasks, one sentence a run."""
    notes: list[str] = []
    for run in runs:
        whole = {"success rate": run.success.rate} if run.success else {}
        whole |= {"mean return": run.returns.mean} if run.returns else {}
        clustered = [
            f"{name} {reach(e.clustered)}" for name, e in whole.items() if e.clustered is not None
        ]
        parts = [*dict.fromkeys(e.note for e in whole.values() if e.note)]
        if clustered:
            parts.insert(0, f"for all tasks of which these are a sample: {', '.join(clustered)}")
        if parts:
            name = f"{run.name}: " if len(runs) > 1 else ""
            text = f"{name}{'; '.join(parts)}"
            notes.append(f"{text[:1].upper() if not name else text[:1]}{text[1:]}.")
    return tuple(notes)


def _forests(runs: Sequence[ReportData]) -> str:
    rates, returns = _rows(runs, "rate"), _rows(runs, "mean_return")
    parts: list[str] = []
    if rates:
        svg = forest(rates, "Success rates with their intervals", domain=(0.0, 1.0))
        parts.append(_figure("Success rate", svg, runs))
    if returns and (len(returns) > 1 or not rates):
        svg = forest(returns, "Mean returns with their intervals")
        parts.append(_figure("Mean return", svg, runs))
    return "".join(parts)


def _rows(runs: Sequence[ReportData], what: str) -> list[IntervalRow]:
    names = _task_names(runs)
    by_run = [{task.task: task for task in run.tasks} for run in runs]
    rows: list[IntervalRow] = []
    for name in names:
        first = True
        for place, tasks in enumerate(by_run):
            estimate: Estimate | None = getattr(tasks[name], what) if name in tasks else None
            if estimate is None or estimate.value is None:
                continue
            several = len(runs) > 1
            ends = estimate.interval
            rows.append(
                IntervalRow(
                    label=(name or _WHOLE) if first else "",
                    run=runs[place].name if several else "",
                    series=place % SERIES,
                    value=estimate.value,
                    low=None if ends is None else ends.low,
                    high=None if ends is None else ends.high,
                    starts_group=first and several and len(names) > 1,
                )
            )
            first = False
    return rows


def _figure(caption: str, svg: str, runs: Sequence[ReportData] = ()) -> str:
    key = ""
    if len(runs) > 1:
        key = legend((f"s{place % SERIES}", run.name) for place, run in enumerate(runs))
    return (
        f"<figure><figcaption>{esc(caption)}</figcaption>{key}"
        f'<div class="scroll">{svg}</div></figure>'
    )


# ------------------------------------------------------------------------- distributions


def returns_section(runs: Sequence[ReportData]) -> str:
    """Return how the returns are spread."""
    svg = distribution(runs)
    if not svg:
        return ""
    seen = {outcome_of(e) for run in runs for e in run.result.episodes if e.error is None}
    key = legend((f"o-{o}", OUTCOME_WORDS[o]) for o in OUTCOMES if o in seen)
    odd = sum(run.result.num_non_finite_returns for run in runs)
    note = "Finished episodes; the line is the mean, the band its interval."
    if odd:
        note += f" {odd} returns are not finite and left out."
    return section("Returns", f'{key}<figure><div class="scroll">{svg}</div></figure>', note)


# ------------------------------------------------------------------------------ timeline


def timeline_section(runs: Sequence[ReportData]) -> str:
    """Return what each lane did when."""
    parts: list[str] = []
    for run in runs:
        svg = timeline(run)
        if svg:
            words = busy_words(run)
            caption = f"{run.name}: {words}" if len(runs) > 1 else f"{words[:1].upper()}{words[1:]}"
            parts.append(_figure(f"{caption}.", svg))
    if not parts:
        return ""
    seen = {span.outcome for run in runs for span in run.spans}
    key = legend((f"o-{o}", OUTCOME_WORDS[o]) for o in OUTCOMES if o in seen)
    note = "One row a lane, one bar an episode, from its reset to its last step."
    return section("Timeline", key + "".join(parts), note)


# -------------------------------------------------------------------------------- calls

_OPERATIONS = {
    "env.reset": "reset",
    "env.step": "step",
    "model.predict": "predict",
    "runner.round": "round",
}
_METRICS = {
    "rpc.total": "whole call",
    "endpoint.total": "at the endpoint",
    "round.total": "whole round",
    "request.bytes": "sent",
    "response.bytes": "received",
    "group.size": "rows a call",
}


def calls_section(runs: Sequence[ReportData]) -> str:
    """Return durations and sizes of the calls made."""
    parts: list[str] = []
    for run in runs:
        telemetry = run.result.telemetry
        if telemetry is None or not telemetry.rows:
            continue
        rows = [
            (
                Cell(_OPERATIONS.get(row.operation, row.operation)),
                Cell(_METRICS.get(row.metric, row.metric)),
                count(row.count),
                *(_amount(row, value) for value in (row.mean, row.p50, row.p95, row.p99, row.max)),
            )
            for row in telemetry.rows
        ]
        parts.append(
            table(
                ["call", "what", "count", "mean", "p50", "p95", "p99", "largest"],
                rows,
                caption=f"{run.name}: {_span(run)}" if len(runs) > 1 else f"O{_span(run)[1:]}.",
                numbers_from=2,
            )
        )
    return section("Calls", "".join(parts))


def _span(run: ReportData) -> str:
    """Say which part of the run its calls are of: each start counts its own."""
    is_one = run.facts.get("starts", 1) == 1 and not run.result.resumed
    return "over the whole run" if is_one else "over the last start that tells of them"


def _amount(row: MetricRow, value: float) -> Cell:
    if row.kind == "duration":
        return Cell(duration(value / 1000), sort=value, is_number=True)
    text = size(value) if row.kind == "bytes" else number(value)
    return Cell(text, sort=value, is_number=True)


# -------------------------------------------------------------------------------- errors


def errors_section(runs: Sequence[ReportData]) -> str:
    """Return the errors, grouped by cause."""
    parts: list[str] = []
    for run in runs:
        if not run.causes:
            continue
        if len(runs) > 1:
            parts.append(f"<h3>{esc(run.name)}</h3>")
        for cause in run.causes[:_MOST_CAUSES]:
            where = _indices(cause.episodes)
            tasks = ", ".join(task for task in cause.tasks if task)
            parts.append(
                f'<h3 class="cause"><b>{len(cause.episodes)} {TIMES}</b> {esc(cause.cause)}</h3>'
                f'<p class="note">Episodes {esc(where)}{esc(f" of {tasks}") if tasks else ""}</p>'
                f"<details><summary>The first in full</summary><pre>{esc(cause.example)}</pre>"
                "</details>"
            )
        if len(run.causes) > _MOST_CAUSES:
            parts.append(f"<p>{len(run.causes) - _MOST_CAUSES} more causes are not shown.</p>")
    note = "Errored episodes are neither successes nor failures; rates and means leave them out."
    return section("Errors", "".join(parts), note)


def odd_section(runs: Sequence[ReportData]) -> str:
    """Return where observations were seen that their space does not hold."""
    parts: list[str] = []
    for run in runs:
        places = run.result.odd_observations
        rows = [
            (
                Cell(place.path),
                Cell(place.words),
                count(place.count),
                count(len(place.episodes)),
                Cell(_indices(place.episodes)),
            )
            for place in places[:_MOST_CAUSES]
        ]
        if not rows:
            continue
        more = len(places) - _MOST_CAUSES
        caption = f"The first {_MOST_CAUSES} of {len(places)} places." if more > 0 else ""
        if len(runs) > 1:
            caption = f"{run.name}. {caption}".strip()
        heads = ["where", "what", "observations", "in episodes", "which"]
        parts.append(table(heads, rows, caption=caption, numbers_from=len(heads)))
    note = "Their space does not hold them; the policy got them all the same."
    return section("Odd observations", "".join(parts), note)


def _indices(episodes: Sequence[int]) -> str:
    shown = ", ".join(str(index) for index in episodes[:_MOST_INDICES])
    more = len(episodes) - _MOST_INDICES
    return f"{shown} and {more} more" if more > 0 else shown


def lost_section(runs: Sequence[ReportData]) -> str:
    """Return the attempts that came to nothing."""
    parts: list[str] = []
    for run in runs:
        rows = [
            (
                Cell(
                    NOTHING if lost.episode is None else str(lost.episode), sort=lost.episode or 0
                ),
                Cell(str(lost.attempt)),
                Cell(NOTHING if lost.worker is None else str(lost.worker)),
                Cell(lost.cause),
            )
            for lost in run.lost[:_MOST_LOST]
        ]
        if not rows:
            continue
        more = len(run.lost) - _MOST_LOST
        caption = f"The first {_MOST_LOST} of {len(run.lost)}." if more > 0 else ""
        if len(runs) > 1:
            caption = f"{run.name}. {caption}".strip()
        heads = ["episode", "attempt", "worker", "cause"]
        parts.append(table(heads, rows, caption=caption, numbers_from=len(heads)))
        parts.extend(
            f"<details><summary>Last lines of worker {esc(lost.worker)}, episode "
            f"{esc(lost.episode)}</summary><pre>{esc(lost.last_lines)}</pre></details>"
            for lost in [one for one in run.lost if one.last_lines][:_MOST_LAST_LINES]
        )
    note = "Tries at an episode that came to nothing because a worker or an endpoint was lost."
    return section("Lost attempts", "".join(parts), note)


# ------------------------------------------------------------------------------ episodes


def episodes_section(runs: Sequence[ReportData]) -> str:
    """Return the single episodes, folded away."""
    parts: list[str] = []
    for run in runs:
        episodes = run.result.episodes
        has_tasks = any(e.task for e in episodes)
        rows = [
            (
                Cell(str(e.index), sort=e.index, is_number=True),
                *([Cell(e.task)] if has_tasks else []),
                Cell("" if e.seed is None else str(e.seed), is_number=True),
                count(e.steps),
                numeric(e.total_reward, digits=4),
                Cell(OUTCOME_WORDS[outcome_of(e)], swatch=f"o-{outcome_of(e)}"),
                Cell(duration(e.duration_s), sort=e.duration_s, is_number=True),
                count(e.env_index),
                count(e.attempts),
            )
            for e in episodes[:_MOST_EPISODES]
        ]
        heads = ["episode", *(["task"] if has_tasks else []), "seed", "steps", "return"]
        heads += ["outcome", "took", "lane", "attempts"]
        if rows:
            more = len(episodes) - _MOST_EPISODES
            caption = f"The first {_MOST_EPISODES} of {len(episodes)}." if more > 0 else ""
            parts.append(
                f"<details><summary>{esc(run.name)}: {len(episodes)} episodes</summary>"
                f"{table(heads, rows, caption=caption, numbers_from=len(heads))}</details>"
            )
    return section("Episodes", "".join(parts))


# --------------------------------------------------------------------------------- facts

_PACKAGES = (
    "rollmesh", "gymnasium", "numpy", "torch", "mujoco", "jax", "stable_baselines3", "ale_py",
)  # fmt: skip


def facts_section(runs: Sequence[ReportData]) -> str:
    """Return what else is known of the runs: plan, versions, source, machine."""
    parts: list[str] = []
    for run in runs:
        facts = dict(run.facts)
        facts.pop("decision", None)  # which is told as why the run stopped
        # Those are for comparing.
        for name in ("fingerprints", "moved", "earlier", "fingerprinted_by"):
            facts.pop(name, None)
        packages = _table(facts.pop("packages", None))
        if packages:
            facts["versions"] = {n: packages[n] for n in _PACKAGES if n in packages}
        if run.result.plan_seed is not None:
            facts.setdefault("plan_seed", str(run.result.plan_seed))
        listed = facts_list(facts)
        if packages:
            text = "\n".join(f"{name} {version}" for name, version in packages.items())
            listed += (
                f"<details><summary>All {len(packages)} packages</summary>"
                f"<pre>{esc(text)}</pre></details>"
            )
        if listed:
            heading = f"<h3>{esc(run.name)}</h3>" if len(runs) > 1 else ""
            parts.append(heading + listed)
    return section("How it was run", "".join(parts))


def _table(value: Any) -> dict[str, Any]:
    """Return a stored value that should be a table, or an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
