"""Turns what user code raised into an `EndpointFault` (layer 6).

Used by every local endpoint, on both sides. The runtime adds route, operation, step and seed.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

from rollmesh.errors import EndpointFault, InvalidSpec, InvalidValue, Outcome

MESSAGE_CHARS = 4096
"""Longest message kept."""
TRACEBACK_CHARS = 16384
"""Longest traceback kept; the last frames survive."""
_FRAMES = 60
_OWN_CODE = str(Path(__file__).resolve().parent.parent)


def fault_from(
    exc: BaseException,
    *,
    outcome: Outcome = "unknown",
    env_index: int | None = None,
    where: str = "env.step",
) -> EndpointFault:
    """Return an `EndpointFault` that tells class, message and traceback of an exception.

    The message is cut at about 4 kB, the traceback at about 16 kB with its last frames kept. An
    `EndpointFault` is returned as it is, with the lane filled in if it had none. Only an
    ordinary `Exception` counts as recoverable.

    Args:
        exc: What was raised.
        outcome: Whether the operation happened.
        env_index: The lane, where known.
        where: The operation that raised, as in `env.step`.

    Raises:
        KeyboardInterrupt: `exc` is one: it is a cancel, not a fault.
    """
    if isinstance(exc, KeyboardInterrupt):
        raise exc
    if isinstance(exc, EndpointFault):
        if exc.env_index is None:
            exc.env_index = env_index
        return exc
    return EndpointFault(
        _message(exc, where),
        error_class=type(exc).__name__,
        traceback_text=traceback_text(exc),
        env_index=env_index,
        is_recoverable=isinstance(exc, Exception),
        outcome=outcome,
    )


def construction_fault(
    exc: BaseException, *, where: str, env_index: int | None = None
) -> EndpointFault:
    """Return the fault behind what an env's constructor raised in a process that serves it.

    No user is at its keyboard: a `KeyboardInterrupt` is none, but what the constructor raised
    itself.

    Args:
        exc: What was raised.
        where: What was being built.
        env_index: The lane, where known.
    """
    if isinstance(exc, KeyboardInterrupt):
        exc = RuntimeError("the env's constructor raised KeyboardInterrupt")
    return fault_from(exc, outcome="not_done", env_index=env_index, where=where)


def refusal_of(fault: EndpointFault, field: str) -> InvalidSpec | None:
    """Return the `InvalidSpec` that a fault tells of, as another process raised it, or None.

    Args:
        fault: What a port raised.
        field: The field where the fault names none.
    """
    if fault.error_class != InvalidSpec.__name__:
        return None
    named, separator, detail = fault.detail.partition(": ")
    return InvalidSpec(named, detail) if separator else InvalidSpec(field, fault.detail)


def traceback_text(exc: BaseException) -> str:
    """Return the traceback as Python prints it, causes included, bounded, last frames kept.

    A value that the package refused has none: no line of the user's code is in it.
    """
    if isinstance(exc, InvalidValue) and _is_own(exc.__traceback__):
        return ""
    try:
        told = traceback.TracebackException(
            type(exc), exc, _user_part(exc.__traceback__), limit=-_FRAMES
        )
        parts = [_cut(part, MESSAGE_CHARS) for part in told.format()]
    except Exception as failure:  # noqa: BLE001 - user classes may fail in __str__ and __repr__
        return f"(no traceback: formatting it raised {type(failure).__name__})"
    text = "".join(parts)
    if len(text) <= TRACEBACK_CHARS:
        return text
    return f"(… {len(text) - TRACEBACK_CHARS} characters cut)\n{text[-TRACEBACK_CHARS:]}"


def _message(exc: BaseException, where: str) -> str:
    if isinstance(exc, SystemExit):
        code = "" if exc.code is None else repr(exc.code)
        return _cut(f"called sys.exit({code}) in {where}", MESSAGE_CHARS)
    try:
        text = str(exc)
    except Exception as failure:  # noqa: BLE001 - a user class
        return f"(no message: its __str__ raised {type(failure).__name__})"
    return _cut(text, MESSAGE_CHARS) if text else f"raised in {where} without a message"


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    end = "\n" if text.endswith("\n") else ""
    return f"{text[:limit]} … ({len(text) - limit} more characters cut){end}"


def _is_own(trace: TracebackType | None) -> bool:
    """Return whether all frames are the package's own."""
    rest = _user_part(trace)
    return rest is None or (rest is trace and _in_package(rest))


def _in_package(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_OWN_CODE)


def _user_part(trace: TracebackType | None) -> TracebackType | None:
    """Skip the package's own frames at the top, unless there are no others."""
    rest = trace
    while rest is not None and _in_package(rest):
        rest = rest.tb_next
    return rest or trace
