"""`rollmesh compare`: whether one run is better than another (layer 9)."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from rollmesh.cli import exit_codes
from rollmesh.cli.eval_command import log_to
from rollmesh.cli.output import own_output
from rollmesh.cli.runs_command import find_run
from rollmesh.errors import InvalidSpec, RollmeshError
from rollmesh.results.compare import compare
from rollmesh.results.result import EvalResult

if TYPE_CHECKING:
    from rollmesh.cli.output import Output
    from rollmesh.results.comparison import Comparison


def compare_command(
    a: str,
    b: str,
    /,
    *,
    metric: Literal["auto", "success", "return"] = "auto",
    margin: float | None = None,
    confidence: float = 0.95,
    gate: Annotated[bool, Parameter(negative=())] = False,
    strict: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Say whether run B is better than run A, paired by planned episode.

    Exit codes: 0 compared (with --gate: B may pass), 1 the gate is closed, 2 bad arguments, or
    nothing in common to compare, 130 Ctrl-C.

    Parameters
    ----------
    a
        What is compared with: a run folder, or a file that rollmesh eval --json or export --format
        json wrote.
    b
        What is judged: the same.
    metric
        Success rates or mean returns; auto takes success where both say it.
    margin
        The difference that is too small to matter; 0.05 for success and 5 % of A's mean return if
        left out.
    confidence
        Of the interval; 1 less the error rate of the test.
    gate
        End with 1 if B is worse, if one of the two is not finished, or if more pairs were left out
        than could be compared.
    strict
        With --gate: also end with 1 unless B is surely not worse by more than the margin, and ran
        in the same env under the same conditions.
    json
        Print the comparison as JSON.
    """
    with own_output() as output, log_to(output.note):
        try:
            if strict and not gate:
                raise InvalidSpec("--strict", "says how --gate judges; add --gate")
            first, second = read_result(a), read_result(b)
            found = compare(first, second, margin=margin, confidence=confidence, metric=metric)
        except (RollmeshError, OSError) as error:
            output.note(f"error: {error}")
            return exit_codes.BAD_ARGUMENTS
        except KeyboardInterrupt:
            return exit_codes.INTERRUPTED
        output.result(found.to_json(indent=2) if json else repr(found))
        return _judged(output, found, strict=strict) if gate else exit_codes.OK


def read_result(path: str) -> EvalResult:
    """Return the result in a run folder or a JSON file.

    Raises:
        InvalidSpec: There is nothing at the path, or no result in the file.
        RunError: The folder holds no run that can be read.
        OSError: It cannot be opened.
    """
    place = find_run(path)
    if place.is_dir():
        from rollmesh.runs import read_run

        return read_run(place).result
    if not place.exists():
        raise InvalidSpec(
            path,
            "wants a run folder or the JSON of a result, found nothing there; "
            "rollmesh runs lists those in runs/",
        )
    try:
        return EvalResult.from_json(_result_in(place.read_text(encoding="utf-8")))
    except ValueError as error:
        raise InvalidSpec(path, str(error)) from error


def _result_in(text: str) -> str:
    """Return the JSON of a result, taken out of what `export` or `--json-lines` put around it."""
    for part in (text, text.rstrip().rpartition("\n")[2]):  # of lines, the last one
        try:
            table: Any = json_module.loads(part)
        except ValueError:
            continue
        is_around = isinstance(table, dict) and "episodes" not in table and "result" in table
        return json_module.dumps(table["result"]) if is_around else text
    return text  # whoever reads a result says what is wrong


def _judged(output: Output, found: Comparison, *, strict: bool) -> int:
    gate = found.gate(strict=strict)
    output.note(f"gate {'open' if gate.is_open else 'CLOSED'}: {' '.join(gate.reasons)}")
    return exit_codes.OK if gate.is_open else exit_codes.FAILED
