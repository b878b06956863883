"""Errors: `ErrorBody` to `EnvError` and `ModelError` and back (layer 4).

Readers go by `is_recoverable`; the code says what happened. To a released peer an error that is not
recoverable ends the env's stream, and it opens a new one.

Seen on the released peer (0.1.0). An exception of the user's code arrives as INTERNAL, not
recoverable, with the text `step failed: ValueError: the door is stuck` (env) or
`internal error: ZeroDivisionError: …` (model); the class is read out of it here. `debug_info` is
empty.
"""

from __future__ import annotations

import re
from typing import Any, cast, get_args

from rollmesh.errors import Outcome
from rollmesh.limits import SIZE_LIMITS
from rollmesh.wire._gen import rlmesh_env_v1_pb2 as env_pb
from rollmesh.wire._gen import rlmesh_model_v1_pb2 as model_pb
from rollmesh.wire.dialect import Dialect
from rollmesh.wire.messages import ErrorBody

ENV_CODES = {
    "unspecified": 0,
    "timeout": 1,
    "invalid_action": 2,
    "not_ready": 3,
    "busy": 4,
    "unsupported": 5,
    "internal": 10,
    "crashed": 11,
    "cancelled": 12,
    "closed": 13,
}
"""Codes of the env service by the name that an `ErrorBody` uses."""
MODEL_CODES = {
    "unspecified": 0,
    "invalid_request": 2,
    "not_configured": 3,
    "busy": 4,
    "unsupported": 5,
    "internal": 10,
    "cancelled": 12,
    "closed": 13,
}
"""Codes of the model service."""
_ALIKE = {
    "invalid_request": "invalid_action",
    "not_configured": "not_ready",
    "invalid_action": "invalid_request",
    "not_ready": "not_configured",
    "timeout": "internal",
    "crashed": "internal",
}
"""What takes the place of a code that the service does not have."""
_NOTHING_HAPPENED = frozenset(
    ["invalid_action", "not_ready", "busy", "unsupported", "invalid_request", "not_configured"]
)
_FAILED = re.compile(r"(?:[\w ]{1,40} (?:failed|error): )?([A-Z]\w{0,80}): (.*)", re.DOTALL)
"""The words of a released peer around a class name and a text."""
_MOST_CHARS = 4096


def write_env_error(body: ErrorBody, target: env_pb.EnvError, dialect: Dialect) -> None:
    """Write an error of an env."""
    _write(body, target, ENV_CODES, dialect)
    if dialect.details and body.env_index is not None:
        target.env_index = body.env_index


def write_model_error(body: ErrorBody, target: model_pb.ModelError, dialect: Dialect) -> None:
    """Write an error of a model."""
    _write(body, target, MODEL_CODES, dialect)


def read_env_error(error: env_pb.EnvError) -> ErrorBody:
    """Return an error of an env; an unknown code reads as `unspecified`."""
    env_index = error.env_index if error.HasField("env_index") else None
    return _read(error, ENV_CODES, env_index)


def read_model_error(error: model_pb.ModelError) -> ErrorBody:
    """Return an error of a model; an unknown code reads as `unspecified`."""
    return _read(error, MODEL_CODES, None)


def _write(body: ErrorBody, target: Any, codes: dict[str, int], dialect: Dialect) -> None:
    code = codes.get(body.code)
    if code is None:
        code = codes.get(_ALIKE.get(body.code, "unspecified"), codes["internal"])
    target.SetInParent()
    target.code = code
    target.is_recoverable = body.is_recoverable
    message = _text(body.message)
    if dialect.details:
        target.message = message
        target.error_class = _text(body.error_class)
        target.traceback_text = _text(body.traceback_text)
        target.outcome = body.outcome
        target.error_id = _text(body.error_id)
        target.code_name = body.code
        return
    name = f"{body.error_class}: " if body.error_class else ""
    suffix = f" (error {body.error_id})" if body.error_id else ""
    target.message = f"{_text(name)}{message}{_text(suffix)}"
    target.debug_info = _text(body.traceback_text)


def _read(error: Any, codes: dict[str, int], env_index: int | None) -> ErrorBody:
    names = {number: name for name, number in codes.items()}
    code = _cut(error.code_name, SIZE_LIMITS.key_bytes) or names.get(error.code, "unspecified")
    error_class, message = _cut(error.error_class, 200), error.message
    if not error_class:
        found = _FAILED.fullmatch(message[:_MOST_CHARS])
        if found is not None:
            error_class, message = found[1], found[2]
    outcome: Outcome
    if error.outcome in get_args(Outcome):
        outcome = cast("Outcome", error.outcome)
    else:
        outcome = "not_done" if code in _NOTHING_HAPPENED else "unknown"
    return ErrorBody(
        code=code,
        error_class=error_class,
        message=_cut(message, _MOST_CHARS),
        traceback_text=_cut(error.traceback_text or error.debug_info, 4 * _MOST_CHARS),
        is_recoverable=error.is_recoverable,
        outcome=outcome,
        env_index=env_index,
        error_id=_cut(error.error_id, SIZE_LIMITS.key_bytes),
    )


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _text(text: str) -> str:
    """Return a text that can be sent: Python's may hold lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
