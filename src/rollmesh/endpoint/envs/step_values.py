"""Reads what an env returned beside its observation: rewards, flags, infos (layer 6).

Every reader accepts the forms that real envs use and refuses the rest with one sentence that
names the field, the type and the value. The common form never gets here: callers test for it
first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import numpy as np

from rollmesh.endpoint.reporting import Report
from rollmesh.errors import EndpointFault
from rollmesh.ports import NO_INFO, Info
from rollmesh.spaces.metadata import carry

_Returned: TypeAlias = "Mapping[Any, Any] | list[Any] | tuple[Any, ...] | str | float | None"
"""What an env may have returned: these are told apart, objects of other kinds are like numbers."""

_SHOWN_CHARS = 200
_FLOAT64 = np.dtype(np.float64)
_BOOL = np.dtype(np.bool_)


def nonsense(detail: str, *, env_index: int | None = None) -> EndpointFault:
    """Return the fault of an env that did what was asked and answered what nobody can read."""
    return EndpointFault(
        detail,
        error_class="InvalidReply",
        env_index=env_index,
        is_recoverable=True,
        outcome="done",
    )


def show(value: object) -> str:
    """Return type and value of something, short enough for an error."""
    try:
        text = repr(value)
    except Exception as exc:  # noqa: BLE001 - a user class
        text = f"(its __repr__ raised {type(exc).__name__})"
    if len(text) > _SHOWN_CHARS:
        text = f"{text[:_SHOWN_CHARS]}…"
    return f"{type(value).__name__} {text}"


def read_reward(value: Any, env_index: int | None = None) -> float:
    """Return exactly `float(value)` for a number, a numpy scalar or an array of one element.

    Raises:
        EndpointFault: It is no number, or too large for a float.
    """
    if isinstance(value, (str, bytes)) or value is None:
        raise nonsense(f"reward: wants one number, got {show(value)}", env_index=env_index)
    try:
        if getattr(value, "ndim", 0):  # an array of one element, as some envs give
            value = value.item()
        return float(value)
    except OverflowError as exc:
        raise nonsense(
            f"reward: too large for a float: an int of {int(value).bit_length()} bits; scale it",
            env_index=env_index,
        ) from exc
    except Exception as exc:
        raise nonsense(f"reward: wants one number, got {show(value)}", env_index=env_index) from exc


def read_flag(name: str, value: Any, env_index: int | None = None) -> bool:
    """Return a flag given as bool, `np.bool_`, 0 or 1, or a 0-d array of these.

    Raises:
        EndpointFault: It is anything else.
    """
    plain = value
    if not isinstance(plain, (bool, int)) and getattr(plain, "ndim", None) == 0:
        try:
            plain = plain.item()
        except Exception:  # noqa: BLE001 - refused below
            plain = None
    if isinstance(plain, (bool, int)) and plain in {0, 1}:
        return bool(plain)
    raise nonsense(
        f"{name}: wants a bool (or np.bool_, 0, 1), got {show(value)}", env_index=env_index
    )


def read_info(value: _Returned, report: Report, env_index: int | None = None) -> Info:
    """Return a copy of one lane's info; None counts as empty and is reported once.

    Raises:
        EndpointFault: It is no mapping.
    """
    if value is None:
        report("info", "is None where a dict is expected; taken as empty")
        return NO_INFO
    if not isinstance(value, Mapping):
        raise nonsense(f"info: wants a dict, got {show(value)}", env_index=env_index)
    return carry(value, report) if value else NO_INFO


def own_options(options: Info | None) -> dict[str, Any] | None:
    """Return a copy of reset options that the env may write into; other objects are shared."""
    return None if options is None else {name: _own(value, {}) for name, value in options.items()}


def _own(value: Any, known: dict[int, Any]) -> Any:
    """Return a copy of a value; `known` has those of the containers around it, by their id."""
    kind = cast("type[Any]", type(value))
    if kind is np.ndarray or kind is set:
        return value.copy()
    if kind is tuple:
        return tuple([_own(part, known) for part in value])
    if kind is not dict and kind is not list:
        return value
    if id(value) not in known:  # else it holds itself
        copy = cast("Any", kind)()
        known[id(value)] = copy
        if kind is list:
            copy.extend([_own(part, known) for part in value])
        else:
            copy.update({name: _own(part, known) for name, part in value.items()})
    return known[id(value)]


def read_rewards(values: Any, count: int) -> tuple[float, ...]:
    """Return the rewards of a vector step, one float per lane.

    Raises:
        EndpointFault: There is not one number per lane.
    """
    if type(values) is np.ndarray and values.dtype is _FLOAT64 and values.shape == (count,):
        return tuple(values.tolist())
    rows = _rows("rewards", values, count)
    return tuple(read_reward(row, lane) for lane, row in enumerate(rows))


def read_flags(name: str, values: Any, count: int) -> list[bool]:
    """Return the flags of a vector step, one bool per lane.

    Raises:
        EndpointFault: There is not one flag per lane.
    """
    if type(values) is np.ndarray and values.dtype is _BOOL and values.shape == (count,):
        return values.tolist()
    rows = _rows(name, values, count)
    return [read_flag(name, row, lane) for lane, row in enumerate(rows)]


def _rows(name: str, values: Any, count: int) -> list[Any]:
    """Return a vector field as a list with an entry per lane; tensors have `tolist` too."""
    if type(values) is np.ndarray and values.shape == (count,):
        return values.tolist()
    rows: _Returned
    try:
        rows = values.tolist() if hasattr(values, "tolist") else list(values)
    except Exception as exc:
        raise nonsense(f"{name}: wants one entry per lane, got {show(values)}") from exc
    if not isinstance(rows, list) or len(rows) != count or any(isinstance(r, list) for r in rows):
        shape = getattr(values, "shape", None)
        got = f"shape {tuple(shape)}" if shape is not None else show(values)
        raise nonsense(f"{name}: wants shape ({count},), one entry per lane, got {got}")
    return rows


def read_reset(result: _Returned) -> tuple[Any, Any]:
    """Return observation and info of a reset.

    Raises:
        EndpointFault: It is no pair; the old API returned the observation alone.
    """
    if isinstance(result, (tuple, list)) and len(result) == 2:  # noqa: PLR2004
        return result[0], result[1]
    raise nonsense(
        "env.reset: wants (observation, info), got "
        f"{_form(result)}; an env of the old API needs to return its info too"
    )


def bad_step(result: _Returned) -> EndpointFault:
    """Return the fault of a step that gave no five values."""
    old = isinstance(result, tuple) and len(result) == 4  # noqa: PLR2004
    hint = (
        "; this is the old API: split `done` into terminated and truncated"
        if old
        else "; return exactly these five"
    )
    return nonsense(
        "env.step: wants (observation, reward, terminated, truncated, info), got "
        f"{_form(result)}{hint}"
    )


def _form(result: _Returned) -> str:
    if isinstance(result, (tuple, list)):
        kinds = ", ".join(type(part).__name__ for part in result[:8])
        return f"a {type(result).__name__} of {len(result)} ({kinds})"
    return show(result)
