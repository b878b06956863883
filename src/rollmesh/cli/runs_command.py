"""`rollmesh runs`: the runs in a folder; and how all commands find one (layer 9)."""

from __future__ import annotations

import json as json_module
import math
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from rollmesh.cli import exit_codes
from rollmesh.cli.output import own_output
from rollmesh.cli.run_folders import runs_root
from rollmesh.cli.tables import print_table
from rollmesh.results.conditions import called
from rollmesh.results.stats import wilson_interval

if TYPE_CHECKING:
    from rollmesh.runs.reading import RunGlance


def runs_command(
    root: str | None = None,
    /,
    *,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """List the runs in a folder, the latest first.

    Exit codes: 0 listed, also where there are none; 1 the folder cannot be read.

    Parameters
    ----------
    root
        The folder that holds the folders of runs; runs, or $ROLLMESH_RUNS, if left out.
    json
        Print the list as JSON.
    """
    from rollmesh.runs.reading import list_runs

    with own_output() as output:
        root = root or str(runs_root())
        try:
            found = list_runs(root)
        except OSError as error:
            output.note(f"error: {root}: {error.strerror}; name the folder that holds your runs")
            return exit_codes.FAILED
        if json:
            output.result(json_module.dumps([_values(glance) for glance in found], indent=2))
        elif not found:
            output.note(f"no runs in {root}")
        else:
            print_table(
                output,
                ("run", "status", "episodes", "success", "return", "last written", "env", "model"),
                [_cells(glance) for glance in found],
                numbers=("episodes", "return"),
                spare=("model", "env", "last written", "return"),
            )
        return exit_codes.OK


def find_run(text: str) -> Path:
    """Return the folder of a run, named by a path or by its name where runs are kept."""
    folder = Path(text)
    if not folder.exists() and folder.name == text:
        return runs_root() / text
    return folder


def local_time(seconds: float) -> str:
    """Return a time as the clock on the wall shows it, to the second."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _cells(glance: RunGlance) -> tuple[str, ...]:
    name = glance.folder.name
    if glance.problem is not None:
        return (name, "unreadable", "", "", "", "", glance.problem, "")
    episodes = str(glance.num_episodes)
    if glance.planned is not None:
        episodes += f"/{glance.planned}"
    if glance.num_errors:
        episodes += f" ({glance.num_errors} errored)"
    when = local_time(glance.last_at)
    mean = "-" if glance.mean_return is None else f"{glance.mean_return:.4g}"
    env = glance.typed or glance.env  # wrappers of one env all go by its name
    success = _success(glance)
    model = called(glance.model, glance.model_kwargs)
    return (name, glance.status or "", episodes, success, mean, when, env, model)


def _success(glance: RunGlance) -> str:
    good, said = glance.num_successes, glance.num_said
    if glance.decision is not None:  # the rate that its interval is of
        good, said = glance.decision.successes, glance.decision.n
        interval = glance.decision.interval
    else:
        interval = wilson_interval(good, said)
    if interval is None or not said:
        return "-"
    return f"{good / said:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _values(glance: RunGlance) -> dict[str, Any]:
    from rollmesh.runs.summary import iso_time

    values = asdict(glance)
    values["folder"] = str(glance.folder)
    if glance.mean_return is not None and not math.isfinite(glance.mean_return):
        values["mean_return"] = None  # JSON has no NaN
    values["last_at"] = None if glance.problem is not None else iso_time(glance.last_at)
    return values
