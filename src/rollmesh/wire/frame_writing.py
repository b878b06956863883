"""Writing frames: messages of one connection to bytes (layer 4)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from rollmesh.errors import WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.ports import (
    PredictReply,
    PredictRequest,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.spaces.codec import Leaves
from rollmesh.wire import sections
from rollmesh.wire.bound_spaces import Spaces
from rollmesh.wire.frames import (
    HEADER,
    MAGIC,
    MOST_LEAVES,
    MOST_SECTION_BYTES,
    ONE_LANE,
    PREFIX_BYTES,
    REPLY,
    TAIL,
    TIMED,
    VERSION,
    Frame,
    Layout,
    padding,
)
from rollmesh.wire.messages import REPLIES, REQUESTS, Kind, Message, is_reply
from rollmesh.wire.metadata import Report, encode_map

_NO_IDS: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
_REWARD = struct.Struct("<d")
_QUICK_BYTES = 8192
"""Steps and predicts with payloads up to this size are sent as one piece."""
_MOST_PLANS = 256
_tail = TAIL.pack
_STEP, _RESET, _PREDICT = Kind.STEP, Kind.RESET, Kind.PREDICT
_PREDICT_KIND = int(_PREDICT)


class FrameWriter:
    """Turns the messages that one end sends into frames. For one thread at a time.

    Args:
        spaces: The spaces of the connection.
        report: Called where something in an info cannot be sent as it is.
    """

    def __init__(self, spaces: Spaces, report: Report) -> None:
        self._spaces = spaces
        self._report = report
        self._sent_ids: dict[int, Any] = {}
        # what one step after another has in common: the start of the header, and how to go on
        self._requests: dict[tuple[int, ...], tuple[bytes, Any, Any, Layout]] = {}
        self._replies: dict[int, tuple[bytes, bytes, Callable[..., bytes], Layout]] = {}
        self._quick: dict[type[Any], Callable[[int, Any], bytes | None]] = {
            StepRequest: self._quick_step,
            StepReply: self._quick_step_reply,
            PredictRequest: self._quick_predict,
            PredictReply: self._quick_predict_reply,
        }

    def forget(self) -> None:
        """Forget what earlier messages had in common, as the spaces are others now."""
        self._requests.clear()
        self._replies.clear()

    def quick(self, message: Message) -> bytes | None:
        """Return the whole frame of a small predict, or of a small step like one before.

        None asks for `encode`, which says what is wrong where something is.
        """
        body: object = message.body
        write = self._quick.get(type(body))
        if write is None:
            return None
        try:
            return write(message.request_id, body)
        except struct.error:
            return None

    def _quick_step(self, request_id: int, request: StepRequest) -> bytes | None:
        known = self._requests.get(request.env_indices)
        if known is None or known[1] != request.episode_ids or known[2] != request.next_episode_ids:
            return None
        return known[3].join(known[0] + _tail(request_id, request.timeout_ms), request.action)

    def _quick_step_reply(self, request_id: int, reply: StepReply) -> bytes | None:
        rewards = reply.rewards
        known = self._replies.get(len(rewards))
        if (
            known is None
            or reply.completions
            or reply.odd
            or any(reply.infos)
            or len(reply.infos) != len(rewards)
        ):
            return None
        spent_ns = reply.endpoint_total_ns
        if spent_ns is None:
            head = known[0] + _tail(request_id, 0) + known[2](*rewards)
        else:
            head = known[1] + _tail(request_id, spent_ns) + known[2](*rewards)
        return known[3].join(head, reply.observation)

    def _quick_predict(self, request_id: int, request: PredictRequest) -> bytes | None:
        rows = len(request.episode_info)
        layout = self._spaces.observation.layout(rows)
        nbytes = layout.least_bytes
        if layout.ragged or not 0 < nbytes <= _QUICK_BYTES:
            return None
        section = _predict_section(request)
        size = len(section)
        head = HEADER.pack(
            MAGIC, VERSION, _PREDICT_KIND, 0, rows, 0, layout.count, 0, nbytes, size, 0, request_id,
            request.timeout_ms,
        )  # fmt: skip
        return layout.join(head, request.observation, section) if size <= _QUICK_BYTES else None

    def _quick_predict_reply(self, request_id: int, reply: PredictReply) -> bytes | None:
        frames = reply.frames
        if len(frames) != 1:
            return None
        rows = _rows_of(frames)
        layout = self._spaces.action.layout(rows)
        nbytes = layout.least_bytes
        if layout.ragged or not 0 < nbytes <= _QUICK_BYTES:
            return None
        section = _reply_section(reply)
        size, spent_ns = len(section), reply.endpoint_total_ns
        flags, time = (REPLY, 0) if spent_ns is None else (REPLY | TIMED, spent_ns)
        head = HEADER.pack(
            MAGIC,
            VERSION,
            _PREDICT_KIND,
            flags,
            rows,
            0,
            layout.count,
            0,
            nbytes,
            size,
            0,
            request_id,
            time,
        )
        return layout.join(head, frames[0], section) if size <= _QUICK_BYTES else None

    def _remember(self, frame: Frame, body: Any) -> None:
        """Remember what the next steps will have in common with this one."""
        is_request = type(body) is StepRequest
        layout = (self._spaces.action if is_request else self._spaces.observation).layout(
            frame.rows
        )
        if layout.ragged:
            return
        prefix = frame.header()[:PREFIX_BYTES]
        if is_request:
            if len(self._requests) >= _MOST_PLANS:
                self._requests.clear()
            ids, next_ids = body.episode_ids, body.next_episode_ids
            self._requests[body.env_indices] = prefix, ids, next_ids, layout
            return
        flags = frame.flags
        frame.flags = flags | TIMED
        timed = frame.header()[:PREFIX_BYTES]
        frame.flags = flags & ~TIMED
        untimed = frame.header()[:PREFIX_BYTES]
        frame.flags = flags
        if len(self._replies) >= _MOST_PLANS:
            self._replies.clear()
        rows = frame.rows
        rewards = struct.Struct(f"<{rows}d{len(padding(8 * rows))}x").pack
        self._replies[rows] = untimed, timed, rewards, layout

    def encode(self, message: Message) -> Frame:
        """Return the frame of a message. It must be sent, or the connection dropped.

        Raises:
            WireError: The message has no form on the wire. Nothing was remembered of it.
        """
        body: object
        kind, body = message.kind, message.body
        write = _WRITE.get(type(body))
        if write is not None:
            frame: Frame = write(self, message, body)
        else:
            reply = is_reply(kind, body)
            expected = (REPLIES if reply else REQUESTS).get(kind)
            if type(body) is not expected:
                raise WireError(f"{type(body).__name__} is no body of a {kind.name} message")
            section = sections.write_body(body, self._report)
            flags = REPLY if reply else 0
            frame = Frame(int(kind), flags, message.request_id, section=section)
        if frame.payload_bytes + len(frame.section) > SIZE_LIMITS.message_bytes:
            self._sent_ids.clear()
            raise WireError(
                f"a {kind.name} message of {frame.payload_bytes + len(frame.section)} bytes; at "
                f"most {SIZE_LIMITS.message_bytes} are allowed (SIZE_LIMITS.message_bytes)"
            )
        if frame.leaves > MOST_LEAVES or len(frame.section) > MOST_SECTION_BYTES:
            self._sent_ids.clear()
            raise WireError(f"a {kind.name} message of {frame.leaves} leaves is too large")
        if kind is _STEP and not frame.section and frame.payload_bytes <= _QUICK_BYTES:
            self._remember(frame, body)
        return frame

    def _payload(
        self, frame: Frame, prefix: bytes, groups: Sequence[tuple[Layout, Leaves]]
    ) -> Frame:
        """Fill in the payload of a frame."""
        lengths: list[int] = []
        parts: list[Any] = []
        total = count = 0
        for layout, leaves in groups:
            total += layout.write(leaves, parts, lengths)
            count += layout.count
        head = prefix + struct.pack(f"<{len(lengths)}Q", *lengths) if lengths else prefix
        if head:
            head += padding(len(head))
            parts.insert(0, head)
        frame.parts = parts
        frame.leaves = count
        frame.payload_bytes = total + len(head)
        return frame

    def reset_request(self, message: Message, request: ResetRequest) -> Frame:
        """Write the request of a reset."""
        options = tuple(
            [None if o is None else encode_map(o, self._report, "options") for o in request.options]
        )
        seeds = tuple([sections.to_number(seed) for seed in request.seeds])
        section = sections.encode_section(
            (request.episode_ids, seeds, options, request.env_indices)
        )
        time = request.timeout_ms
        return Frame(int(_RESET), 0, message.request_id, time=time, section=section)

    def step_request(self, message: Message, request: StepRequest) -> Frame:
        """Write the request of a step."""
        lanes = request.env_indices
        ids = (request.episode_ids, request.next_episode_ids)
        flags, lane, key = 0, 0, -1
        if len(lanes) == 1:
            flags, lane = ONE_LANE, lanes[0]
            rows, key = 1, lane
        else:
            rows = len(lanes) or len(request.episode_ids) or self._spaces.num_envs or 0
        if not 0 <= lane < SIZE_LIMITS.rows:
            raise WireError(f"lane {lane} is none")
        section = b""
        if len(lanes) > 1:
            section = sections.encode_section((*ids, lanes))
        elif self._sent_ids.get(key, _NO_IDS) != ids:
            section = sections.encode_section((*ids, ()))
        frame = Frame(
            int(_STEP), flags, message.request_id, rows, lane, 0, request.timeout_ms, [], 0, section
        )
        layout = self._spaces.action.layout(rows)
        self._payload(frame, b"", ((layout, request.action),))
        if section and len(lanes) <= 1:
            self._sent_ids[key] = ids
        return frame

    def reset_reply(self, message: Message, reply: ResetReply) -> Frame:
        """Write the reply of a reset."""
        rows = len(reply.infos)
        infos = sections.write_infos(reply.infos, self._report)
        section = b""
        if infos or reply.odd:
            section = sections.encode_section((infos, reply.odd) if reply.odd else (infos,))
        frame = _timed(Frame(int(_RESET), REPLY, message.request_id, rows, section=section), reply)
        layout = self._spaces.observation.layout(rows)
        return self._payload(frame, b"", ((layout, reply.observation),))

    def step_reply(self, message: Message, reply: StepReply) -> Frame:
        """Write the reply of a step."""
        rewards = reply.rewards
        rows = len(rewards)
        if len(reply.infos) != rows:
            raise WireError(f"{rows} rewards, but {len(reply.infos)} infos")
        side = self._spaces.observation
        groups = [(side.layout(rows), reply.observation)]
        infos = sections.write_infos(reply.infos, self._report)
        section = b""
        if infos or reply.completions or reply.odd:
            rest = [sections.write_completion(c, self._report) for c in reply.completions]
            section = sections.encode_section(
                (infos, rest, reply.odd) if reply.odd else (infos, rest)
            )
            finals = [c.final_observation for c in reply.completions]
            one = side.layout(1)
            groups.extend([(one, leaves) for leaves in finals if leaves is not None])
        frame = Frame(int(_STEP), REPLY, message.request_id, rows, section=section)
        try:
            prefix = _REWARD.pack(rewards[0]) if rows == 1 else struct.pack(f"<{rows}d", *rewards)
        except struct.error as error:
            raise WireError(f"rewards: {error}") from None
        return self._payload(_timed(frame, reply), prefix, groups)

    def predict_request(self, message: Message, request: PredictRequest) -> Frame:
        """Write the request of a predict."""
        rows, section = len(request.episode_info), _predict_section(request)
        frame = Frame(
            int(_PREDICT), 0, message.request_id, rows, time=request.timeout_ms, section=section
        )
        layout = self._spaces.observation.layout(rows)
        return self._payload(frame, b"", ((layout, request.observation),))

    def predict_reply(self, message: Message, reply: PredictReply) -> Frame:
        """Write the reply of a predict."""
        rows, section = _rows_of(reply.frames), _reply_section(reply)
        layout = self._spaces.action.layout(rows)
        frame = Frame(int(_PREDICT), REPLY, message.request_id, rows, section=section)
        groups = [(layout, leaves) for leaves in reply.frames]
        return self._payload(_timed(frame, reply), b"", groups)


def _predict_section(request: PredictRequest) -> bytes:
    context = request.context
    return sections.encode_section(
        (
            context.session_id,
            context.env_id,
            context.request_id,
            sections.write_episodes(request.episode_info),
            request.execution_horizon,
        )
    )


def _reply_section(reply: PredictReply) -> bytes:
    context = reply.context
    return sections.encode_section(
        (context.session_id, context.env_id, context.request_id, len(reply.frames))
    )


def _timed(frame: Frame, reply: Any) -> Frame:
    if reply.endpoint_total_ns is not None:
        frame.flags |= TIMED
        frame.time = reply.endpoint_total_ns
    return frame


def _rows_of(frames: Sequence[Leaves]) -> int:
    """Return the rows of action frames; leaves say it themselves."""
    if not frames or not frames[0]:
        return 0
    leaf = frames[0][0]
    return int.from_bytes(leaf[:8], "little") if isinstance(leaf, bytes) else len(leaf)


_WRITE: dict[type[Any], Callable[[FrameWriter, Message, Any], Frame]] = {
    ResetRequest: FrameWriter.reset_request,
    ResetReply: FrameWriter.reset_reply,
    StepRequest: FrameWriter.step_request,
    StepReply: FrameWriter.step_reply,
    PredictRequest: FrameWriter.predict_request,
    PredictReply: FrameWriter.predict_reply,
}
