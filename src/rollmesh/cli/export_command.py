"""`rollmesh export`: the episodes of a run for other tools (layer 9)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rollmesh.cli import exit_codes
from rollmesh.cli.output import own_output
from rollmesh.cli.runs_command import find_run
from rollmesh.errors import InvalidSpec, RunError


def export_command(
    run: str,
    /,
    *,
    format: Annotated[Literal["csv", "parquet", "json"], Parameter(name=["--format", "-f"])],  # noqa: A002 - the option's name
    output: Annotated[str | None, Parameter(name=["--output", "-o"])] = None,
) -> int:
    """Write the episodes of a run as a file that other tools read.

    Exit codes: 0 written, 1 there is no run, it is damaged, or the file cannot be written, 2 bad
    arguments.

    Parameters
    ----------
    run
        The folder of a run, or its name in runs/ (or $ROLLMESH_RUNS).
    format
        csv and parquet hold one row an episode; json holds everything that is known of the run.
    output
        The file to write; standard output if left out.
    """
    from rollmesh.runs.exporting import export_run, write_whole
    from rollmesh.runs.reading import read_run

    with own_output() as streams:
        try:
            if format == "parquet" and output is None:
                streams.note("error: --output is missing: Parquet is no text; name a file")
                return exit_codes.BAD_ARGUMENTS
            data = export_run(read_run(find_run(run)), format)
            if output is None:
                streams.result(data.decode().removesuffix("\n"))
            else:
                write_whole(Path(output), data)
                streams.note(f"wrote {output}")
        except InvalidSpec as error:
            streams.note(f"error: {error}")
            return exit_codes.BAD_ARGUMENTS
        except RunError as error:
            streams.note(f"error: {error}")
            return exit_codes.FAILED
        except OSError as error:
            where = output or "standard output"
            streams.note(f"error: cannot write {where}: {error.strerror}; name a file with -o")
            return exit_codes.FAILED
        return exit_codes.OK
