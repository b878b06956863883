"""What all judges use: the judgement by the case's own `check`, and assertions about errors.

A judge takes an `Outcome`; it raises AssertionError, or returns a few words on which of several
right outcomes it saw, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from rollmesh import InvalidSpec, RollmeshError
from rollmesh.errors import EndpointFailed
from tests.cases.recording import Outcome

Judge = Callable[[Outcome], "str | None"]


def judge_by_file(outcome: Outcome) -> str | None:
    """Judge by what the file has: `expect_error`, `check`, `check_error`."""
    case, error = outcome.run.case, outcome.error
    check, check_error = getattr(case, "check", None), getattr(case, "check_error", None)
    words = outcome.run.expected_error
    if outcome.run.run.get("manual") and error is None:
        case.check(outcome.answer)
        return None
    if error is None:
        assert words is None, f"no error came; expected one with {words}"
        assert check is not None, "no error came, and the case has no check"
        check(outcome.r)
        return None
    if words is None and check_error is None:
        if allows_refusal(case) and is_refusal(error):
            return f"refused: {short(error)}"
        raise error
    assert isinstance(error, RollmeshError), f"an error of no documented type: {error!r}"
    for word in words or ():
        assert word in str(error), f"{word!r} is not in: {first_line(error)}"
    if check_error is not None:
        check_error(error, outcome.r)
    return None


def allows_refusal(case: ModuleType) -> bool:
    """Return whether what the case calls right has room for a refusal or an error."""
    right = (case.__doc__ or "").partition("Right")[2]
    return "refus" in right or "error" in right


def is_refusal(error: BaseException) -> bool:
    """Return whether an error refuses a value in clear words, rather than being a crash."""
    if isinstance(error, EndpointFailed):
        return error.error_class in {"InvalidValue", "InvalidReply"}
    return isinstance(error, InvalidSpec)


def first_line(error: BaseException) -> str:
    """Return the first line of an error, bounded."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:500]


def short(error: BaseException) -> str:
    """Return what an error says of the value, without where it was."""
    line = first_line(error)
    at = max(line.find(word) for word in ("InvalidValue: ", "InvalidReply: "))
    return line[max(at, 0) :]


def refused(outcome: Outcome, kind: type[Exception], *words: str) -> str:
    """Assert one clear error of this type that has these words.

    Words about a value stand in the first line: what failed, expected and got.
    """
    error = outcome.error
    assert error is not None, "expected an error, and the run finished"
    assert isinstance(error, kind), f"expected {kind.__name__}, got {error!r}"
    line = first_line(error)
    for word in words:
        assert word in line, f"{word!r} is not in: {line}"
    return f"refused: {short(error)}"


def raised(kind: type[Exception], call: Callable[[], object]) -> Exception:
    """Assert that a call raises this type, and return what it raised."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def finished(outcome: Outcome) -> dict[str, Any]:
    """Assert that the run finished, and return what cases check."""
    if outcome.error is not None:
        raise outcome.error
    return outcome.r


def checked(outcome: Outcome) -> dict[str, Any]:
    """Assert that the run finished and that the case's check holds; return what it checked."""
    r = finished(outcome)
    outcome.run.case.check(r)
    return r
