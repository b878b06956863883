"""What one process tells another of a failure, and what that makes of it (layer 6).

The traceback goes to peers of the same user on this machine, or to all where the server says so.
Others get the class, the first line, and an id under which the server's log has the rest.
"""

from __future__ import annotations

import logging
import secrets

from rollmesh.endpoint.faults import fault_from
from rollmesh.errors import EndpointFault, InvalidValue, Outcome, PortTimeout, WireError
from rollmesh.wire.messages import ErrorBody, Kind, Message

_logger = logging.getLogger(__name__)

PROCESS_DIED = "EnvProcessDied"
"""Error class where the process of an isolated env is gone: the next reset starts another."""


class Refused(Exception):  # noqa: N818 - never leaves a server
    """A request that is not carried out; nothing happened.

    Attributes:
        body: What the client is told.
    """

    def __init__(
        self, code: str, message: str, *, is_recoverable: bool = True, error_class: str = ""
    ) -> None:
        super().__init__(message)
        self.body = ErrorBody(
            code=code,
            error_class=error_class or code,
            message=message,
            is_recoverable=is_recoverable,
            outcome="not_done",
        )


def error(request_id: int, body: ErrorBody) -> Message:
    """Return the message that answers a request with an error."""
    return Message(Kind.ERROR, request_id, body)


def error_body(exc: BaseException, *, where: str, is_trusted: bool) -> ErrorBody:
    """Return what a client is told of something that user code, or we, raised.

    Args:
        exc: What was raised.
        where: The operation.
        is_trusted: Whether the client may see tracebacks.
    """
    if isinstance(exc, Refused):
        return exc.body
    fault = _fault(exc, where)
    code = "internal"
    if isinstance(exc, PortTimeout):
        code = "timeout"
    elif fault.error_class == PROCESS_DIED:
        code = "crashed"
    if is_trusted:
        return _body(code, fault, fault.detail, fault.traceback_text, "")
    error_id = secrets.token_hex(6)
    _logger.error(
        "operation_failed operation=%s error_id=%s error=%s: %s\n%s",
        where,
        error_id,
        fault.error_class,
        fault.detail,
        fault.traceback_text,
    )
    return _body(code, fault, fault.detail.partition("\n")[0], "", error_id)


def fault_of(body: ErrorBody) -> EndpointFault:
    """Return what an error told by a process of ours is here, word for word."""
    return EndpointFault(
        body.message,
        error_class=body.error_class,
        traceback_text=body.traceback_text,
        env_index=body.env_index,
        is_recoverable=body.is_recoverable,
        outcome=body.outcome,
    )


def _fault(exc: BaseException, where: str) -> EndpointFault:
    if isinstance(exc, KeyboardInterrupt):  # our own handler raises none: user code did
        text = f"raised KeyboardInterrupt in {where}"
        return EndpointFault(text, error_class="KeyboardInterrupt")
    outcome: Outcome = "done" if isinstance(exc, (InvalidValue, WireError)) else "unknown"
    return fault_from(exc, outcome=outcome, where=where)


def _body(
    code: str, fault: EndpointFault, message: str, traceback_text: str, error_id: str
) -> ErrorBody:
    return ErrorBody(
        code=code,
        error_class=fault.error_class,
        message=message,
        traceback_text=traceback_text,
        is_recoverable=fault.is_recoverable,
        outcome=fault.outcome,
        env_index=fault.env_index,
        error_id=error_id,
    )
