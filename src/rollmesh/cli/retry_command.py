"""`rollmesh retry`: run the errored episodes of a run again (layer 9)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rollmesh.cli import exit_codes
from rollmesh.cli.output import own_output
from rollmesh.cli.runs_command import find_run
from rollmesh.errors import RunError
from rollmesh.runs.reading import StoredRun

_STARTS_OVER = "--new"
_ACCEPTS = "--accept-changes"
_FOLDER = "--run-dir"


def retry_command(
    run: str, /, *, accept_changes: Annotated[bool, Parameter(negative=())] = False
) -> int:
    """Run the errored episodes of a run again, by the command that it was started with.

    Their old results are kept in the run's table of retried episodes. What had not been run yet is
    run too.

    Exit codes: those of the command; 0 where nothing errored, 1 there is no run, it is damaged or
    being driven, 2 it was not started by a command.

    Parameters
    ----------
    run
        The folder of a run, or its name in runs/ (or $ROLLMESH_RUNS).
    accept_changes
        Go on though the model's code is another than in earlier starts (it was mended).
    """
    from rollmesh.runs.moving import retry_errored
    from rollmesh.runs.reading import read_run

    with own_output() as output:
        try:
            folder = find_run(run).resolve()
            stored = read_run(folder)
            if not stored.result.num_errors and not _waiting(stored):
                output.note(f"no episode of {stored.name} errored")
                return exit_codes.OK
            problem = _why_not(stored)
            if problem is not None:
                output.note(f"error: {stored.name} {problem}")
                return exit_codes.BAD_ARGUMENTS
            errored = {*retry_errored(folder), *_waiting(stored)}
        except RunError as error:
            output.note(f"error: {error}")
            return exit_codes.FAILED
        output.note(f"{_counted(len(errored))} of {stored.name} will be run again")
    return _start(stored, accept_changes=accept_changes)


def _waiting(run: StoredRun) -> set[int]:
    """Return the episodes that a retry before this one set aside and did not come to run."""
    return {e.index for e in run.retried if e.index not in run.ended_at}


def _why_not(run: StoredRun) -> str | None:
    if run.command is None:
        return "was not started by a command; start it again from the script that did"
    place = run.facts.get("working_folder")
    if place is not None and not Path(place).is_dir():
        return f"was started in {place}, which is gone"
    return None


def _start(run: StoredRun, *, accept_changes: bool) -> int:
    """Run the stored command where it was run before."""
    place = run.facts.get("working_folder")
    if place is not None:
        os.chdir(place)
    words = again(run.command or (), run.folder)
    return _main([*words, _ACCEPTS] if accept_changes else words)


def _main(words: Sequence[str]) -> int:
    from rollmesh.cli import main  # which knows this command too

    return main(words)


def again(command: Sequence[str], folder: Path) -> list[str]:
    """Return a command that goes on with the run in a folder, wherever that was begun."""
    words: list[str] = []
    is_value = False
    for word in command:
        option = word.partition("=")[0]
        if not is_value and option not in {_STARTS_OVER, _ACCEPTS, _FOLDER}:
            words.append(word)
        is_value = word == _FOLDER
    return [*words, _FOLDER, str(folder)]


def _counted(number: int) -> str:
    return "1 errored episode" if number == 1 else f"{number} errored episodes"
