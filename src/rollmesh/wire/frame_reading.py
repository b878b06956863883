"""Reading frames: bytes of a peer to the messages of one connection (layer 4).

What a header announces is compared with the spaces before the payload is allocated; what then does
not hold together is a `WireError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from rollmesh.errors import WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.ports import (
    AdapterContext,
    OddValue,
    PredictReply,
    PredictRequest,
    ResetReply,
    ResetRequest,
    StepReply,
    StepRequest,
)
from rollmesh.spaces.codec import Given, Leaves
from rollmesh.wire import sections
from rollmesh.wire.bound_spaces import Side, Spaces
from rollmesh.wire.frames import (
    HEADER_BYTES,
    MOST_LEAVES,
    ONE_LANE,
    REPLY,
    SHARED,
    TIMED,
    Buffer,
    Header,
    Layout,
    header_prefix,
    padded,
    padded_total,
    read_lengths,
)
from rollmesh.wire.messages import REPLIES, REQUESTS, Kind, Message
from rollmesh.wire.metadata import decode_map

_MOST_PLANS = 256
_NO_IDS: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
_NO_LEAVES: Leaves = []
_STEP, _RESET, _PREDICT = Kind.STEP, Kind.RESET, Kind.PREDICT


_Read: TypeAlias = Callable[[Any, int, int, Any], Message]


class Plan(NamedTuple):
    """How to read a frame whose header starts like that of one before.

    There is one for steps without a section, and for predicts.

    Attributes:
        end: Where the payload ends on the socket, or the header where the payload is not there.
        stop: Bytes of the frame on the socket.
        nbytes: Bytes of the payload.
        is_shared: Whether the payload lies in shared memory, and where there.
        slot: Of the header.
        page: Of the header.
        read: Takes payload, request id and time of the header, and the section.
    """

    end: int
    stop: int
    nbytes: int
    is_shared: bool
    slot: int
    page: int
    read: _Read


class FrameReader:
    """Turns the frames that one end receives into messages. For one thread at a time.

    Args:
        spaces: The spaces of the connection.

    Attributes:
        plans: By the first bytes of a header, how to read the frames that start like this.
    """

    def __init__(self, spaces: Spaces) -> None:
        self._spaces = spaces
        self._received_ids: dict[int, Any] = {}
        self.plans: dict[bytes, Plan] = {}

    def check(self, header: Header) -> None:
        """Check what a header announces against the spaces, before the payload is allocated.

        A predict of a client that has made no env known can be read over, and answered.

        Raises:
            WireError: No message of this session can have such a payload.
        """
        if not self._is_unknown_predict(header):
            self._groups(header)

    def _is_unknown_predict(self, header: Header) -> bool:
        is_request = header.kind is _PREDICT and not header.flags & REPLY
        return is_request and not self._spaces.is_bound

    def decode(
        self, header: Header, payload: Buffer, offset: int, section: bytes | memoryview
    ) -> Message:
        """Return the message. Its leaves are views of the payload.

        A predict request before the spaces are known has no body.

        Args:
            header: The header.
            payload: A buffer with the whole payload.
            offset: Where in it the payload starts; a multiple of 16 from an aligned start.
            section: The section.

        Raises:
            WireError: It does not hold together.
        """
        kind = header.kind
        reply = header.flags & REPLY
        read = (_READ_REPLY if reply else _READ_REQUEST).get(kind)
        nbytes = header.payload_bytes + header.section_bytes
        if self._is_unknown_predict(header):
            return Message(kind, header.request_id, None, nbytes)
        if read is not None:
            body = read(self, header, payload, offset, section)
            if kind is _PREDICT or (kind is _STEP and not header.section_bytes):
                self._remember(header)
        else:
            self._groups(header)
            body_type = (REPLIES if reply else REQUESTS).get(kind)
            if body_type is None:
                raise WireError(f"{kind.name} is no {'reply' if reply else 'request'}")
            body = sections.read_body(body_type, section)
        return Message(kind, header.request_id, body, nbytes)

    def _remember(self, header: Header) -> None:
        """Remember how to read the next frames that start like this one."""
        reply = bool(header.flags & REPLY)
        rows = header.rows
        is_step = header.kind is _STEP
        side = self._spaces.observation if reply is is_step else self._spaces.action
        layout = side.layout(rows)
        if header.leaves != layout.count or not header.payload_bytes:
            return
        shared = bool(header.flags & SHARED)
        if is_step:
            read = self._reply_plan(header, layout) if reply else self._request_plan(header, layout)
        elif reply:
            read = self._predict_reply_plan(header, layout)
        else:
            read = self._predict_request_plan(header, layout)
        if len(self.plans) >= _MOST_PLANS:
            self.plans.clear()
        end = HEADER_BYTES + (0 if shared else header.payload_bytes)
        stop = end + header.section_bytes
        plan = Plan(end, stop, header.payload_bytes, shared, header.slot, header.page, read)
        self.plans[header_prefix(header)] = plan

    def _request_plan(self, header: Header, layout: Layout) -> _Read:
        one = header.flags & ONE_LANE
        lanes: tuple[int, ...] = (header.lane,) if one else ()
        key = header.lane if one else -1
        known_ids, nbytes, leaves = self._received_ids.get, header.payload_bytes, layout.whole

        def read(payload: Any, request_id: int, time: int, section: Any) -> Message:
            del section
            ids, next_ids = known_ids(key, _NO_IDS)
            body = StepRequest(
                action=leaves(payload, 0, nbytes),
                episode_ids=ids,
                timeout_ms=time,
                env_indices=lanes,
                next_episode_ids=next_ids,
            )
            return Message(_STEP, request_id, body, nbytes)

        return read

    @staticmethod
    def _reply_plan(header: Header, layout: Layout) -> _Read:
        rows, nbytes = header.rows, header.payload_bytes
        infos = sections.no_infos(rows)
        rewards = struct.Struct(f"<{rows}d").unpack_from
        offset, leaves = 8 * rows, layout.whole
        timed = header.flags & TIMED

        def read(payload: Any, request_id: int, time: int, section: Any) -> Message:
            del section
            body = StepReply(
                observation=leaves(payload, offset, nbytes),
                rewards=rewards(payload),
                infos=infos,
                endpoint_total_ns=time if timed else None,
                response_bytes=nbytes,
            )
            return Message(_STEP, request_id, body, nbytes)

        return read

    @staticmethod
    def _predict_request_plan(header: Header, layout: Layout) -> _Read:
        nbytes, leaves = header.payload_bytes, layout.whole
        rows, total = header.rows, header.payload_bytes + header.section_bytes

        def read(payload: Any, request_id: int, time: int, section: Any) -> Message:
            body = _predict_request(leaves(payload, 0, nbytes), section, rows, time)
            return Message(_PREDICT, request_id, body, total)

        return read

    @staticmethod
    def _predict_reply_plan(header: Header, layout: Layout) -> _Read:
        nbytes, leaves = header.payload_bytes, layout.whole
        timed, total = header.flags & TIMED, header.payload_bytes + header.section_bytes

        def read(payload: Any, request_id: int, time: int, section: Any) -> Message:
            frames = (leaves(payload, 0, nbytes),)
            body = _predict_reply(frames, section, time if timed else None, total)
            return Message(_PREDICT, request_id, body, total)

        return read

    def _groups(self, header: Header) -> tuple[Side | None, int, int]:
        """Return the space of the leaves, how many groups follow the first one, and the prefix.

        For a reply of PREDICT all groups are alike; else those after the first have one row.
        """
        kind, rows = header.kind, header.rows
        reply = header.flags & REPLY
        if kind is _PREDICT and reply and not (header.leaves or header.payload_bytes):
            return None, 0, 0  # no frames, or frames without leaves
        if kind is _STEP:
            side = self._spaces.observation if reply else self._spaces.action
            prefix = 8 * rows if reply else 0
        elif kind is _PREDICT:
            side, prefix = (self._spaces.action if reply else self._spaces.observation), 0
        elif kind is _RESET and reply:
            side, prefix = self._spaces.observation, 0
        else:
            if header.payload_bytes or header.leaves or header.rows:
                raise WireError(f"a {kind.name} message has no leaves, but announces some")
            return None, 0, 0
        if self._spaces.num_envs is not None and rows > self._spaces.num_envs:
            raise WireError(f"{rows} rows, but the env has {self._spaces.num_envs} lanes")
        layout = side.layout(rows)
        more = 0
        if header.leaves != layout.count:
            more, rest = divmod(header.leaves, layout.count or 1)
            more -= 1
            if rest or more < 0 or not reply or kind is _RESET:
                raise WireError(
                    f"{header.leaves} leaves in a {kind.name} message; the space has {layout.count}"
                )
        self._check_size(header, layout, side.layout(rows if kind is _PREDICT else 1), more, prefix)
        return side, more, prefix

    @staticmethod
    def _check_size(header: Header, first: Layout, other: Layout, more: int, prefix: int) -> None:
        lengths = 8 * (first.ragged + more * other.ragged)
        least = padded(prefix + lengths) + first.least_bytes + more * other.least_bytes
        announced = header.payload_bytes
        if announced != least if not first.ragged else announced < least:
            raise WireError(
                f"a payload of {announced} bytes in a {header.kind.name} message of {header.rows} "
                f"rows; expected {least}{' or more' if first.ragged else ''}"
            )

    def _leaves(
        self, header: Header, payload: Buffer, offset: int
    ) -> tuple[list[Leaves], Side | None]:
        """Return the groups of leaves of a payload."""
        side, more, prefix = self._groups(header)
        if side is None:
            return [], None
        rows = header.rows
        first = side.layout(rows)
        stop = offset + header.payload_bytes
        if not more:
            return [first.whole(payload, offset + prefix, stop)], side
        other = first if header.kind is _PREDICT else side.layout(1)
        layouts = [first] + [other] * more
        place = offset + prefix
        count = sum([layout.ragged for layout in layouts])
        sizes = read_lengths(payload, place, count, stop)
        place = offset + padded(prefix + 8 * count)
        total = sum([layout.least_bytes for layout in layouts]) + padded_total(sizes)
        if place + total != stop:
            raise WireError(f"leaves of {total} bytes in a payload of {stop - place}")
        lengths = iter(sizes)
        groups: list[Leaves] = []
        for layout in layouts:
            leaves, place = layout.read(payload, place, lengths)
            groups.append(leaves)
        return groups, side

    def reset_request(
        self, header: Header, payload: Buffer, offset: int, section: bytes | memoryview
    ) -> ResetRequest:
        """Read the request of a reset."""
        del payload, offset
        self._groups(header)
        ids, seeds, options, lanes = sections.read_reset_request(section)
        return ResetRequest(
            episode_ids=ids,
            seeds=tuple([sections.from_number(seed) for seed in seeds]),
            options=tuple([None if o is None else decode_map(o) for o in options]),
            timeout_ms=header.time,
            env_indices=lanes,
        )

    def step_request(
        self, header: Header, payload: Buffer, offset: int, section: bytes | memoryview
    ) -> StepRequest:
        """Read the request of a step."""
        groups, _ = self._leaves(header, payload, offset)
        is_one = header.flags & ONE_LANE
        key = header.lane if is_one else -1
        lanes: tuple[int, ...] = (header.lane,) if is_one else ()
        if section:
            ids, next_ids, many = sections.read_step_request(section)
            _check_ids(ids, header.rows)
            _check_ids(next_ids, header.rows)
            if many:
                if is_one or len(many) != header.rows:
                    raise WireError(f"{len(many)} lanes named for {header.rows} rows")
                lanes = many
            else:
                self._received_ids[key] = ids, next_ids
        else:
            ids, next_ids = self._received_ids.get(key, _NO_IDS)
        if is_one and header.rows != 1:
            raise WireError(f"one lane named for {header.rows} rows")
        return StepRequest(
            action=groups[0],
            episode_ids=ids,
            timeout_ms=header.time,
            env_indices=lanes,
            next_episode_ids=next_ids,
        )

    def reset_reply(
        self, header: Header, payload: Buffer, offset: int, section: bytes | memoryview
    ) -> ResetReply:
        """Read the reply of a reset."""
        groups, _ = self._leaves(header, payload, offset)
        told = sections.read_reset_reply(section) if section else None
        return ResetReply(
            observation=groups[0],
            infos=sections.read_infos(told.infos if told else (), header.rows),
            odd=sections.check_odd(told.odd, header.rows) if told else (),
            endpoint_total_ns=header.time if header.flags & TIMED else None,
            response_bytes=header.payload_bytes + header.section_bytes,
        )

    def step_reply(
        self, header: Header, payload: Buffer, offset: int, section: bytes | memoryview
    ) -> StepReply:
        """Read the reply of a step."""
        groups, _ = self._leaves(header, payload, offset)
        rows = header.rows
        odd: tuple[OddValue, ...] = ()
        if section:
            told = sections.read_step_reply(section)
            infos, ended = sections.read_infos(told.infos, rows), told.ended
            odd = sections.check_odd(told.odd, rows) if told.odd else ()
        else:
            infos, ended = sections.no_infos(rows), ()
        finals = iter(groups[1:])
        completions = tuple(
            [
                sections.read_completion(row, next(finals, _NO_LEAVES) if row[4] else None)
                for row in ended
            ]
        )
        if sum([row[4] for row in ended]) != len(groups) - 1 and groups[0]:
            raise WireError(f"{len(groups) - 1} final observations for other completions")
        return StepReply(
            observation=groups[0],
            rewards=struct.unpack_from(f"<{rows}d", payload, offset),
            infos=infos,
            completions=completions,
            odd=odd,
            endpoint_total_ns=header.time if header.flags & TIMED else None,
            response_bytes=header.payload_bytes + header.section_bytes,
        )

    def predict_request(
        self, header: Header, payload: Buffer, offset: int, section: bytes | memoryview
    ) -> PredictRequest:
        """Read the request of a predict."""
        groups, _ = self._leaves(header, payload, offset)
        return _predict_request(groups[0], section, header.rows, header.time)

    def predict_reply(
        self, header: Header, payload: Buffer, offset: int, section: bytes | memoryview
    ) -> PredictReply:
        """Read the reply of a predict."""
        groups: list[Leaves] | None = None
        if header.leaves or header.payload_bytes:
            groups, _ = self._leaves(header, payload, offset)
        elif self._spaces.action.layout(1).count:
            groups = []
        time = header.time if header.flags & TIMED else None
        total = header.payload_bytes + header.section_bytes
        return _predict_reply(groups, section, time, total)


def _predict_request(
    observation: Leaves, section: bytes | memoryview, rows: int, time: int
) -> PredictRequest:
    session_id, env_id, request_id, episodes, horizon = sections.read_predict_request(section)
    if len(episodes) != rows:
        raise WireError(f"{len(episodes)} episodes for {rows} rows")
    return PredictRequest(
        context=AdapterContext(session_id, env_id, request_id),
        observation=Given(observation),  # it was sent for this call alone
        episode_info=sections.read_episodes(episodes),
        timeout_ms=time,
        execution_horizon=horizon,
    )


def _predict_reply(
    frames: Sequence[Leaves] | None, section: bytes | memoryview, spent_ns: int | None, nbytes: int
) -> PredictReply:
    """Return the reply; no frames are those of a space without leaves, as many as announced."""
    session_id, env_id, request_id, count = sections.read_predict_reply(section)
    if frames is None and 0 <= count <= MOST_LEAVES:
        frames = [[] for _ in range(count)]
    if frames is None or len(frames) != count:
        raise WireError(f"{count} frames announced, {len(frames or ())} sent")
    return PredictReply(
        context=AdapterContext(session_id, env_id, request_id),
        frames=tuple(frames),
        endpoint_total_ns=spent_ns,
        response_bytes=nbytes,
    )


def _check_ids(ids: Sequence[str], rows: int) -> None:
    """Refuse ids that are not worth remembering."""
    if ids and (len(ids) != rows or max(map(len, ids)) > SIZE_LIMITS.key_bytes):
        raise WireError(f"{len(ids)} episode ids for {rows} rows, or one that is too long")


_READ_REQUEST: dict[Kind, Callable[..., Any]] = {
    _RESET: FrameReader.reset_request,
    _STEP: FrameReader.step_request,
    _PREDICT: FrameReader.predict_request,
}
_READ_REPLY: dict[Kind, Callable[..., Any]] = {
    _RESET: FrameReader.reset_reply,
    _STEP: FrameReader.step_reply,
    _PREDICT: FrameReader.predict_reply,
}
