"""`rollmesh show`: what a run came to (layer 9)."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from rollmesh.cli import exit_codes
from rollmesh.cli.output import own_output
from rollmesh.cli.runs_command import find_run, local_time
from rollmesh.cli.tables import print_table
from rollmesh.errors import RunError
from rollmesh.results.conditions import called
from rollmesh.results.odd import printable
from rollmesh.results.table import more_played

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rollmesh.cli.output import Output
    from rollmesh.results.result import EvalResult
    from rollmesh.results.stats import Interval
    from rollmesh.runs.reading import StoredRun
    from rollmesh.runs.summary import Cause

_MOST_LISTED = 10


def show_command(
    run: str,
    /,
    *,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Show what a run came to: by task, odd observations, errors by cause, where its time went.

    The run may be going on. Exit codes: 0 shown, 1 there is no run or it is damaged.

    Parameters
    ----------
    run
        The folder of a run, or its name in runs/ (or $ROLLMESH_RUNS).
    json
        Print everything that is known as JSON.
    """
    from rollmesh.runs import summary
    from rollmesh.runs.reading import read_run

    with own_output() as output:
        try:
            stored = read_run(find_run(run))
        except RunError as error:
            output.note(f"error: {error}")
            return exit_codes.FAILED
        if json:
            output.result(json_module.dumps(summary.to_dict(stored), indent=2, allow_nan=False))
            return exit_codes.OK
        for line in _head(stored):
            output.result(line)
        _show_tasks(output, stored)
        _show_odd(output, stored)
        _show_causes(output, "Errored, by cause", summary.errors_by_cause(stored))
        _show_causes(output, "Attempts made again, by cause", summary.retries_by_cause(stored))
        _show_again(output, stored)
        _show_phases(output, stored)
        return exit_codes.OK


def _head(run: StoredRun) -> Iterator[str]:
    from rollmesh.runs.schema import ACCEPTED_FACT

    result = run.result
    yield f"{run.name}: {result.model_called} in {called(result.env, _env_kwargs(result))}"
    done = f"{len(result.episodes)} of {result.planned} episodes"
    why = f" ({result.stopped})" if result.stopped else ""
    if run.status == "killed":
        why = " (it ended without a word: killed, or its disk was full)"
    yield f"  {run.status}{why}, {done}, last written {local_time(run.last_at)}"
    begun = "begun" if len(run.starts) < 2 else f"started {len(run.starts)} times, first"  # noqa: PLR2004
    yield f"  {begun} {local_time(run.created_at)}, {result.elapsed_s:,.1f} s of work"
    yield f"  plan {run.identity.plan_hash[:16]}, seed {result.plan_seed}"
    if run.retried:
        count = len(run.retried)
        were = "1 errored episode was" if count == 1 else f"{count} errored episodes were"
        yield f"  {were} set aside to be run again"
    for start in run.starts:
        accepted: Mapping[str, Any] = start.facts.get(ACCEPTED_FACT) or {}
        if count := accepted.get("after"):
            after = "1 episode" if count == 1 else f"{count} episodes"
            yield f"  changed after {after}, and accepted: {'; '.join(accepted['changes'])}"


def _env_kwargs(result: EvalResult) -> Mapping[str, Any]:
    """Return what the env was built with: that of the run, and of its one task."""
    from rollmesh.runs.conditions import arguments_in

    conditions = result.conditions
    if conditions is None:
        return {}
    tasks = conditions.tasks.values() if len(conditions.tasks) == 1 else ()
    given: dict[str, Any] = {}
    for table in (conditions.settings, *tasks):
        given |= arguments_in(table, "env_kwargs")
    return given


def _show_tasks(output: Output, run: StoredRun) -> None:
    tasks = list(run.result.tasks.items())
    rows = [_task_cells(task or "(all)", result) for task, result in tasks]
    if len(tasks) > 1:
        rows.append(_task_cells("(all)", run.result))
    headers = ("task", "episodes", "errored", "success", "95 %", "mean return", "95 %  ", "length")
    numbers = ("episodes", "errored", "success", "mean return", "length")
    _show(output, headers, rows, numbers, spare=("length",))
    decision = run.result.decision
    if decision is not None:
        line = f"  success is {decision.successes} of {decision.n}, decided by {decision.rule}"
        more = more_played(run.result)
        of_all = f"; of all played {run.result.success_rate_of_all:.3f}, {more}" if more else ""
        output.result(line + of_all)


def _task_cells(task: str, result: EvalResult) -> tuple[str, ...]:
    return (
        task,
        str(len(result.episodes)),
        str(result.num_errors or ""),
        _number(result.success_rate),
        _ends(result.success_interval),
        _number(result.mean_return),
        _ends(result.return_interval),
        _number(result.mean_length),
    )


def _show_odd(output: Output, run: StoredRun) -> None:
    """Say where observations were seen that their space does not hold."""
    places = run.result.odd_observations
    rows = [
        (
            f"{place.count:,}",
            printable(place.words),
            printable(place.path),
            str(len(place.episodes)),
            _listed(place.episodes),
        )
        for place in places[:_MOST_LISTED]
    ]
    if len(places) > _MOST_LISTED:
        rows.append(("", f"… {len(places) - _MOST_LISTED} more places", "", "", ""))
    headers = ("observations", "odd", "where", "in", "episodes")
    _show(output, headers, rows, ("observations", "in"))


def _show_causes(output: Output, title: str, causes: Sequence[Cause]) -> None:
    rows = [(str(c.count), c.text, _listed(c.episodes)) for c in causes[:_MOST_LISTED]]
    if len(causes) > _MOST_LISTED:
        left = sum(cause.count for cause in causes[_MOST_LISTED:])
        rows.append((str(left), f"… {len(causes) - _MOST_LISTED} more causes", ""))
    _show(output, ("count", title, "episodes"), rows, ("count",))


def _show_again(output: Output, run: StoredRun) -> None:
    again = sorted(
        (e for e in run.result.episodes if e.attempts > 1), key=lambda e: (-e.attempts, e.index)
    )
    rows = [
        (str(e.index), e.task, str(e.attempts), "errored" if e.error is not None else "finished")
        for e in again[:_MOST_LISTED]
    ]
    if len(again) > _MOST_LISTED:
        rows.append((f"… {len(again) - _MOST_LISTED} more", "", "", ""))
    _show(output, ("episode", "task", "attempts", "at last"), rows, ("episode", "attempts"))


def _show_phases(output: Output, run: StoredRun) -> None:
    from rollmesh.runs.summary import slowest_phases, starts_with_phases

    rows = [
        (
            phase.operation,
            f"{phase.count:,}",
            f"{phase.total_s:,.1f}",
            f"{phase.p50_ms:,.3f}",
            f"{phase.p99_ms:,.3f}",
            f"{phase.max_ms:,.1f}",
        )
        for phase in slowest_phases(run)
    ]
    headers = ("slowest phases", "calls", "total s", "p50 ms", "p99 ms", "longest ms")
    _show(output, headers, rows, headers[1:])
    told, starts = starts_with_phases(run), len(run.starts)
    if rows and starts > 1:
        which = f"{told} of {starts} starts" if told < starts else f"all {starts} starts"
        last = "; p50 and p99 of the one with most calls" if told > 1 else ""
        output.result(f"  of {which}{last}")


def _show(
    output: Output,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[str],
    *,
    spare: Sequence[str] = (),
) -> None:
    """Write a table that has rows, below an empty line."""
    if rows:
        output.result("")
        print_table(output, headers, rows, numbers=numbers, spare=spare)


def _listed(indices: Sequence[int]) -> str:
    shown = ", ".join(map(str, indices[:_MOST_LISTED]))
    return f"{shown}, …" if len(indices) > _MOST_LISTED else shown


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3f}"


def _ends(interval: Interval | None) -> str:
    if interval is None or interval.method == "constant":  # which says nothing of the spread
        return "" if interval is None else "(all equal)"
    return f"[{interval.low:,.3f}, {interval.high:,.3f}]"
