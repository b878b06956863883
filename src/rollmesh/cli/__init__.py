"""The command line (layer 9): `rollmesh eval`, `rollmesh check`, `rollmesh --version`.

Exit codes are listed in `exit_codes`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: The arguments after the program's name; `sys.argv[1:]` if left out.
    """
    from cyclopts import App, CycloptsError

    from rollmesh import __version__
    from rollmesh.cli import exit_codes
    from rollmesh.cli.check_command import check_env_command, check_model_command
    from rollmesh.cli.eval_command import eval_command

    app = App(name="rollmesh", help="Run any policy in any environment.", version=__version__)
    check = App(name="check", help="Say what is wrong with an env or a model.")
    check.command(check_env_command, name="env")
    check.command(check_model_command, name="model")
    app.command(eval_command, name="eval")
    app.command(check)
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        code = app(tokens, exit_on_error=False, print_error=True, result_action="return_value")
    except CycloptsError:  # printed already
        return exit_codes.BAD_ARGUMENTS
    return code if isinstance(code, int) else exit_codes.OK
