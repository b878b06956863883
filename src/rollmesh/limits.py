"""Every limit in one place: how long things may take, and how large they may be (layer 1).

`Limits` are the durations of rule R4. `SizeLimits` are checked before anything that came from
outside is allocated, indexed or looped over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING, Any

from rollmesh.errors import InvalidSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_WAIT_S = float(2**33)
"""About 272 years: a longer limit is none, because no lock or socket takes it as a timeout."""

_JSON_NAMES = {
    "env_connect_s": "envConnectTimeoutMs",
    "model_connect_s": "modelConnectTimeoutMs",
    "configure_s": "configureRouteTimeoutMs",
    "env_reset_s": "envResetTimeoutMs",
    "model_predict_s": "modelPredictTimeoutMs",
    "model_first_predict_s": "modelFirstPredictTimeoutMs",
    "env_step_s": "envStepTimeoutMs",
    "close_s": "serviceCloseTimeoutMs",
    "telemetry_window_s": "telemetryWindowMs",
}
_ZERO_OK = frozenset(["model_first_predict_s", "telemetry_window_s"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How long each operation may take, in seconds; None means no limit.

    Infinity, and whatever is longer than `LONGEST_WAIT_S`, is accepted and stored as None. 0 is
    allowed for `telemetry_window_s`, where it turns window telemetry off, and for
    `model_first_predict_s`, where it means `model_predict_s`.

    Attributes:
        env_connect_s: Building or connecting an env, a rebuild included.
        model_connect_s: Building, loading or connecting a model.
        configure_s: Preparing the route between the two.
        env_reset_s: One reset.
        model_predict_s: One predict.
        model_first_predict_s: The same until the model has answered once: it may have to compile.
        env_step_s: One env step.
        close_s: Closing an endpoint, releasing an adapter, one eviction.
        telemetry_window_s: Time between two window snapshots.

    Raises:
        InvalidSpec: A duration is negative, NaN, not a number, or 0 where that is not allowed.
    """

    env_connect_s: float | None = 60.0
    model_connect_s: float | None = 600.0
    configure_s: float | None = 600.0
    env_reset_s: float | None = 300.0
    model_predict_s: float | None = 300.0
    model_first_predict_s: float | None = 0.0
    env_step_s: float | None = 300.0
    close_s: float | None = 5.0
    telemetry_window_s: float | None = 1.0

    def __post_init__(self) -> None:
        for name in _JSON_NAMES:
            zero_ok = name in _ZERO_OK
            value = check_duration(f"limits.{name}", getattr(self, name), zero_ok=zero_ok)
            is_endless = value is not None and value > LONGEST_WAIT_S
            object.__setattr__(self, name, None if is_endless else value)

    def predict_s(self, *, is_first: bool) -> float | None:
        """Return the limit of a predict, the first one of a model or a later one."""
        first_s = self.model_first_predict_s
        return first_s if is_first and first_s != 0 else self.model_predict_s

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Limits:
        """Build limits from a JSON object, by the names of this class or of the wire.

        `{"env_step_s": 0.5}` is in seconds, `{"envStepTimeoutMs": 500}` in milliseconds.

        Raises:
            InvalidSpec: A name is unknown, a limit is given twice, or a value is not a duration.
        """
        names = {json_name: name for name, json_name in _JSON_NAMES.items()}
        given: dict[str, float | None] = {}
        for key, value in table.items():
            field = f"limits.{key}"
            name = names.get(key, key)
            if name not in _JSON_NAMES:
                known = ", ".join([f"{own} or {json}" for own, json in _JSON_NAMES.items()])
                raise InvalidSpec(field, f"unknown limit; known ones: {known}")
            if name in given:
                raise InvalidSpec(
                    field, f"is given twice: {name} (seconds) and {_JSON_NAMES[name]} are one limit"
                )
            unit, per_s = ("seconds", 1.0) if key == name else ("milliseconds", 1000.0)
            zero_ok = name in _ZERO_OK
            checked = check_duration(field, value, zero_ok=zero_ok, unit=unit)
            given[name] = None if checked is None else checked / per_s
        return cls(**given)

    def to_json(self) -> dict[str, float | None]:
        """Return the limits under their JSON names, in milliseconds; null is no limit.

        One that only repeats another is left out.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        if values["model_first_predict_s"] == 0:
            del values["model_first_predict_s"]
        return {
            _JSON_NAMES[name]: None if value is None else value * 1000.0
            for name, value in values.items()
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeLimits:
    """How large a thing from outside may be, checked before it is believed.

    Attributes:
        message_bytes: One encoded value or message; 256 MiB is the wire's own cap.
        dims: Dimensions of an array.
        nesting: Depth of nested spaces and metadata.
        keys: Keys of one map, and children of one space.
        key_bytes: UTF-8 bytes of one key.
        text_bytes: UTF-8 bytes of one text.
        hello_bytes: One message from a peer that has not been admitted yet.
        rows: Rows (lanes) of one batch.
    """

    message_bytes: int = 256 * 2**20
    dims: int = 8
    nesting: int = 16
    keys: int = 1024
    key_bytes: int = 256
    text_bytes: int = 2**20
    hello_bytes: int = 16 * 2**10
    rows: int = 2**16


SIZE_LIMITS = SizeLimits()


def check_duration(
    field: str, value: object, *, zero_ok: bool = False, unit: str = "seconds"
) -> float | None:
    """Return a duration as a float, or None for no limit; `unit` is for the refusal only.

    Raises:
        InvalidSpec: The value is negative, NaN, not a number, or 0 where that is not allowed.
    """
    if value is None:
        return None
    number: Any = value
    if isinstance(value, bool) or not isinstance(value, Real):  # NumPy's numbers are such
        raise InvalidSpec(field, f"wants a number of {unit} or None for no limit, got {value!r}")
    try:
        seconds = float(number)
    except OverflowError:  # an integer beyond every float
        seconds = math.inf if number > 0 else -math.inf
    if math.isnan(seconds) or seconds < 0 or (seconds == 0 and not zero_ok):
        least = "0 or more" if zero_ok else "more than 0"
        raise InvalidSpec(
            field, f"wants {least} {unit}, or None or infinity for no limit, got {value!r}"
        )
    return None if math.isinf(seconds) else seconds


def timeout_ms(timeout_s: float | None) -> int:
    """Return a limit as a request carries it: ms rounded up, at least 1; 0 is no limit."""
    return 0 if timeout_s is None else max(1, math.ceil(timeout_s * 1000.0))
