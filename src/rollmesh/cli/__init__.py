"""The command line (layer 9): the commands of `rollmesh`, and `--version`.

Exit codes are listed in `exit_codes`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import CycloptsError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: The arguments after the program's name; `sys.argv[1:]` if left out.
    """
    from cyclopts import App, CycloptsError

    from rollmesh import __version__
    from rollmesh.cli import exit_codes
    from rollmesh.cli.check_command import check_env_command, check_model_command
    from rollmesh.cli.command_line import WORDS
    from rollmesh.cli.compare_command import compare_command
    from rollmesh.cli.eval_command import eval_command
    from rollmesh.cli.export_command import export_command
    from rollmesh.cli.output import OutputError
    from rollmesh.cli.power_command import power_command
    from rollmesh.cli.probe_command import probe_command
    from rollmesh.cli.report_command import report_command
    from rollmesh.cli.retry_command import retry_command
    from rollmesh.cli.runs_command import runs_command
    from rollmesh.cli.serve_command import serve_env_command, serve_model_command
    from rollmesh.cli.show_command import show_command

    app = App(name="rollmesh", help="Run any policy in any environment.", version=__version__)
    check = App(name="check", help="Say what is wrong with an env or a model.")
    check.command(check_env_command, name="env")
    check.command(check_model_command, name="model")
    serve = App(name="serve", help="Serve an env or a model to other processes and machines.")
    serve.command(serve_env_command, name="env")
    serve.command(serve_model_command, name="model")
    app.command(eval_command, name="eval")
    app.command(check)
    app.command(serve)
    app.command(probe_command, name="probe")
    app.command(compare_command, name="compare")
    app.command(power_command, name="power")
    app.command(report_command, name="report")
    app.command(runs_command, name="runs")
    app.command(show_command, name="show")
    app.command(export_command, name="export")
    app.command(retry_command, name="retry")
    tokens = list(sys.argv[1:] if argv is None else argv)
    before = WORDS.set(tuple(tokens))
    try:
        code = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        command = " ".join(["rollmesh", *(error.command_chain or ())])
        print(f"error: {_told(error)}\nsee {command} --help", file=sys.stderr)
        return exit_codes.BAD_ARGUMENTS
    except OutputError:
        return exit_codes.FAILED
    finally:
        WORDS.reset(before)
    return code if isinstance(code, int) else exit_codes.OK


def _told(error: CycloptsError) -> str:
    """Say what is wrong with the arguments; an option left out is not one without its value."""
    from cyclopts import MissingArgumentError

    text = " ".join(str(error).split())
    is_left_out = isinstance(error, MissingArgumentError) and error.keyword is None
    if not is_left_out or error.argument is None or error.argument.tokens:
        return text
    _, _, suggestion = text.partition("requires an argument.")
    return f"{error.argument.name} is missing.{suggestion}"
