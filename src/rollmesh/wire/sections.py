"""Sections: the msgpack part of a frame, for each kind of message (layer 4).

A section is a tuple of plain values of known types. Integers beyond 64 bits travel as bytes, infos
and options as `metadata` makes them. Whatever does not have these types is a `WireError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from rollmesh.errors import WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.ports import (
    NO_INFO,
    AdapterContext,
    Completion,
    EpisodeInfo,
    Info,
    OddValue,
    ReleaseAdapterRequest,
    ResetAdapterRequest,
)
from rollmesh.spaces.codec import Leaves
from rollmesh.wire.messages import (
    Cancel,
    Close,
    Configure,
    Done,
    ErrorBody,
    Hello,
    Probe,
    ProbeReply,
    Rebuild,
    Render,
    RenderReply,
    Resolve,
    ResolveReply,
    Shutdown,
    ShutdownReply,
    Welcome,
)
from rollmesh.wire.metadata import Report, decode_map, encode_map

Number: TypeAlias = "int | bytes"

_encode = msgspec.msgpack.Encoder().encode
_BITS = 63


def encode_section(values: Any) -> bytes:
    """Return a section.

    Raises:
        WireError: A value has no form on the wire.
    """
    try:
        return _encode(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"cannot be sent: {error}") from None


def reader(kind: Any) -> Callable[[bytes | memoryview], Any]:
    """Return a function that reads a section of this type, or raises `WireError`."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(section: bytes | memoryview) -> Any:
        try:
            return decode(section)
        except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError) as error:
            raise WireError(f"section: {error}") from None

    return read


def to_number(value: int) -> Number:
    """Return an integer of any size as a section holds it."""
    if -(2**_BITS) <= value < 2**_BITS:
        return value
    return int(value).to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def from_number(value: Number) -> int:
    """Return the integer."""
    return value if isinstance(value, int) else int.from_bytes(value, "little", signed=True)


# ------------------------------------------------------------------------- infos, completions

CompletionRow: TypeAlias = (
    "tuple[int, bool, bool, bytes | None, bool, str | None, int | None, float | None]"
)
"""env_index, terminated, truncated, final info, whether a final observation follows, episode id,
step count, cumulative reward."""


def write_infos(infos: Sequence[Info], report: Report | None) -> tuple[bytes, ...]:
    """Return the infos of all rows as bytes, or nothing where all are empty."""
    if not any(infos):
        return ()
    return tuple([encode_map(info, report) for info in infos])


def read_infos(encoded: Sequence[bytes], rows: int) -> tuple[Info, ...]:
    """Return the infos of `rows` rows.

    Raises:
        WireError: There are more or fewer, or one does not hold together.
    """
    if not encoded:
        return no_infos(rows)
    if len(encoded) != rows:
        raise WireError(f"expected {rows} infos, got {len(encoded)}")
    return tuple([decode_map(info) if info else NO_INFO for info in encoded])


def no_infos(rows: int) -> tuple[Info, ...]:
    """Return the empty infos of `rows` rows."""
    return _ONE_INFO if rows == 1 else (NO_INFO,) * rows


_ONE_INFO: tuple[Info, ...] = (NO_INFO,)


def check_odd(odd: tuple[OddValue, ...], rows: int) -> tuple[OddValue, ...]:
    """Return what a peer says is odd of `rows` rows.

    Raises:
        WireError: It is about a row that is not there, or more than a space has places.
    """
    if len(odd) > rows * SIZE_LIMITS.keys or any([not 0 <= one.row < rows for one in odd]):
        raise WireError(f"{len(odd)} odd values in {rows} rows, or in one that is not there")
    return odd


def write_completion(completion: Completion, report: Report | None) -> Any:
    """Return a completion as a section holds it; its final observation travels beside it."""
    info = completion.final_info
    return (
        completion.env_index,
        completion.terminated,
        completion.truncated,
        None if info is None else encode_map(info, report, "final_info"),
        completion.final_observation is not None,
        completion.episode_id,
        completion.step_count,
        completion.cumulative_reward,
    )


def read_completion(row: Any, final_observation: Leaves | None) -> Completion:
    """Return the completion."""
    env_index, terminated, truncated, info, _, episode_id, step_count, reward = row
    return Completion(
        env_index=env_index,
        terminated=terminated,
        truncated=truncated,
        final_info=None if info is None else decode_map(info),
        final_observation=final_observation,
        episode_id=episode_id,
        step_count=step_count,
        cumulative_reward=reward,
    )


# ------------------------------------------------------------------------------ sections typed

read_reset_request = reader(
    tuple[tuple[str, ...], tuple[int | bytes, ...], tuple[bytes | None, ...], tuple[int, ...]]
)
"""Episode ids, seeds, options, env indices."""


class ResetReplyRows(
    msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True
):
    """The section of a reset's reply; `odd` is left out where nothing is."""

    infos: tuple[bytes, ...]
    odd: tuple[OddValue, ...] = ()


class StepReplyRows(
    msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True
):
    """The section of a step's reply; `odd` is left out where nothing is."""

    infos: tuple[bytes, ...]
    ended: tuple[
        tuple[int, bool, bool, bytes | None, bool, str | None, int | None, float | None], ...
    ]
    odd: tuple[OddValue, ...] = ()


read_reset_reply = reader(ResetReplyRows)
read_step_request = reader(tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]])
"""Episode ids, next episode ids, env indices."""
read_step_reply = reader(StepReplyRows)
read_predict_request = reader(
    tuple[str, str, str, tuple[tuple[str, int | bytes | None], ...], int | None]
)
"""Session id, env id, request id, episodes (id, seed), execution horizon."""
read_predict_reply = reader(tuple[str, str, str, int])
"""Session id, env id, request id, number of frames."""
_read_evicted = reader(tuple[str, str, str, tuple[str, ...]])
_read_released = reader(tuple[str, str, str, str, float | None])
_read_frame = reader(tuple[bytes])


def write_episodes(episodes: Sequence[EpisodeInfo]) -> list[tuple[str, Number | None]]:
    """Return the episodes of a predict as a section holds them."""
    return [(e.episode_id, None if e.seed is None else to_number(e.seed)) for e in episodes]


def read_episodes(rows: Sequence[tuple[str, Number | None]]) -> tuple[EpisodeInfo, ...]:
    """Return the episodes of a predict."""
    return tuple(
        [
            EpisodeInfo(episode_id, None if seed is None else from_number(seed))
            for episode_id, seed in rows
        ]
    )


# --------------------------------------------------------------- messages that are a section

_SECTION_BODIES: tuple[type[Any], ...] = (
    Hello,
    Welcome,
    Configure,
    Done,
    Render,
    Close,
    Rebuild,
    Resolve,
    ResolveReply,
    Cancel,
    ErrorBody,
    Probe,
    ProbeReply,
    Shutdown,
    ShutdownReply,
)
_BODY_READERS: dict[type[Any], Callable[[bytes | memoryview], Any]] = {
    kind: reader(kind) for kind in _SECTION_BODIES
}


def write_body(body: object, report: Report | None) -> bytes:
    """Return the section of a body that is nothing but a section.

    Raises:
        WireError: The body is no known one, or has no form on the wire.
    """
    if body is None:
        return b""
    kind = type(body)
    if kind in _BODY_READERS:
        return encode_section(body)
    if isinstance(body, RenderReply):
        return encode_section((encode_map({"frame": body.frame}, report, "render"),))
    if isinstance(body, (ResetAdapterRequest, ReleaseAdapterRequest)):
        context = body.context
        head = (context.session_id, context.env_id, context.request_id)
        if isinstance(body, ResetAdapterRequest):
            return encode_section((*head, body.episode_ids))
        return encode_section((*head, body.reason, body.timeout_s))
    raise WireError(f"{kind.__name__} is no body of a message")


def read_body(kind: type[Any], section: bytes | memoryview) -> Any:
    """Return the body of a message that is nothing but a section.

    Raises:
        WireError: The section is no such body.
    """
    if kind is type(None):
        if len(section):
            raise WireError(f"expected no section, got {len(section)} bytes")
        return None
    read = _BODY_READERS.get(kind)
    if read is not None:
        return read(section)
    if kind is RenderReply:
        return RenderReply(frame=decode_map(_read_frame(section)[0]).get("frame"))
    if kind is ResetAdapterRequest:
        session_id, env_id, request_id, episode_ids = _read_evicted(section)
        return ResetAdapterRequest(AdapterContext(session_id, env_id, request_id), episode_ids)
    if kind is ReleaseAdapterRequest:
        session_id, env_id, request_id, reason, timeout_s = _read_released(section)
        context = AdapterContext(session_id, env_id, request_id)
        return ReleaseAdapterRequest(context, reason, timeout_s)
    raise WireError(f"{kind.__name__} is no body of a message")
