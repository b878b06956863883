"""`rollmesh report`: a page about one run or several (layer 9)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rollmesh.cli import exit_codes
from rollmesh.cli.output import own_output
from rollmesh.cli.runs_command import find_run
from rollmesh.clock import SYSTEM_CLOCK
from rollmesh.errors import RollmeshError

if TYPE_CHECKING:
    from collections.abc import Sequence


def report_command(
    *runs: Path,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("report.html"),
) -> int:
    """Write a page about one run, or about several and how they compare.

    The page is one file that loads nothing: intervals, returns, timeline, errors and calls.

    Exit codes: 0 done, 1 a run cannot be read or the page cannot be written, 2 bad arguments.

    Parameters
    ----------
    runs
        Folders of runs, or their names in runs/ (or $ROLLMESH_RUNS); the others are compared with
        the first.
    output
        Where the page is written.
    """
    with own_output() as out:
        if not runs:
            out.note("error: name the folder of a run, as in: rollmesh report runs/mine")
            return exit_codes.BAD_ARGUMENTS
        try:
            write_report(runs, output)
        except RollmeshError as error:
            out.note(f"error: {error}")
            return exit_codes.FAILED
        except OSError as error:
            out.note(f"error: cannot write {output}: {error.strerror}; name another file with -o")
            return exit_codes.FAILED
        out.result(str(output))
        return exit_codes.OK


def write_report(folders: Sequence[Path], output: Path) -> None:
    """Read the runs and write the page; it appears only when it is whole.

    Raises:
        RunError: There is no run in a folder.
        OSError: The page cannot be written.
    """
    from rollmesh.runs import read_run
    from rollmesh.runs.exporting import write_whole
    from rollmesh.viewer.report.data import ReportData
    from rollmesh.viewer.report.page import page

    names = run_names(folders)
    runs = [
        ReportData.from_run(read_run(find_run(str(folder))), name)
        for folder, name in zip(folders, names, strict=True)
    ]
    text = page(runs, written_s=SYSTEM_CLOCK.wall_ns() / 1e9)
    write_whole(output, text.encode())


def run_names(folders: Sequence[Path]) -> list[str]:
    """Return a name for each folder: its last parts, as many as tell them apart."""
    parts = [folder.absolute().parts for folder in folders]
    for count in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            break
    else:
        names = [str(folder) for folder in folders]
    seen: dict[str, int] = {}
    for place, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            names[place] = f"{name} ({seen[name]})"
    return names
