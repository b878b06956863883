"""gRPC: steps that are like the one before, written and read the short way (layer 5).

What `wire.proto_quick` does for bytes, for the requests and replies of steps. Each class here has a
short way, which may give up (None), and is told by `learn` what the long way made. A template is
made when the same came twice in a row, so that messages which differ every time cost nothing.
"""

from __future__ import annotations

import struct
from typing import Any

from rollmesh.ports import StepReply, StepRequest
from rollmesh.spaces.codec import Codec
from rollmesh.wire.proto_quick import Template
from rollmesh.wire.proto_values import tag

_ACTION = _OBSERVATION = tag(1)[0]
_REWARDS = tag(2)[0]


def _likeness(body: StepRequest) -> tuple[Any, ...]:
    """Return what two requests must share to be alike."""
    return body.episode_ids, body.timeout_ms, body.env_indices, body.next_episode_ids


class RequestWriter:
    """Writes requests.

    Args:
        actions: Codec of the action space.
    """

    def __init__(self, actions: Codec) -> None:
        self._to_buffers = actions.to_buffers
        self._is_fixed = actions.row_bytes is not None
        self._last: tuple[Any, ...] = ()
        self._template: Template | None = None

    def write(self, request_id: str, body: StepRequest) -> bytes | None:
        """Return a request as bytes, or None."""
        template = self._template
        if template is None or _likeness(body) != self._last:
            return None
        return template.fill(self._to_buffers(body.action), request_id)

    def learn(self, body: StepRequest, data: bytes) -> None:
        """Take note of a request that was written the long way."""
        likeness = _likeness(body)
        self._template = None
        if self._is_fixed and likeness == self._last:
            self._template = Template.learn(data, _ACTION)
        self._last = likeness


class RequestReader:
    """Reads requests.

    Args:
        actions: Codec of the action space.
        num_envs: Width of the env.
    """

    def __init__(self, actions: Codec, num_envs: int) -> None:
        self._from_buffers = actions.from_buffers
        self._is_fixed = actions.row_bytes is not None
        self._num_envs = num_envs
        self._rows = 0
        self._last: StepRequest | None = None
        self._template: Template | None = None

    def read(self, data: bytes) -> tuple[StepRequest, str] | None:
        """Return a request and its id, or None."""
        template, last = self._template, self._last
        if template is None or last is None:
            return None
        found = template.match(data)
        if found is None or found[2] is not None:
            return None
        body = StepRequest(
            action=self._from_buffers(found[0], self._rows),
            episode_ids=last.episode_ids,
            timeout_ms=last.timeout_ms,
            env_indices=last.env_indices,
            next_episode_ids=last.next_episode_ids,
        )
        return body, found[1]

    def learn(self, body: StepRequest, data: bytes) -> None:
        """Take note of a request that was read the long way."""
        last, self._last, self._template = self._last, body, None
        if self._is_fixed and last is not None and _likeness(last) == _likeness(body):
            self._rows = len(body.env_indices) or self._num_envs
            self._template = Template.learn(data, _ACTION)


def is_plain(reply: StepReply) -> bool:
    """Return whether a reply has nothing but an observation and rewards."""
    return not reply.completions and not reply.odd and not any(reply.infos)


class ReplyWriter:
    """Writes replies, of which `is_plain` and nothing else is to be told.

    Args:
        observations: Codec of the observation space.
    """

    def __init__(self, observations: Codec) -> None:
        self._to_buffers = observations.to_buffers
        self._is_fixed = observations.row_bytes is not None
        self._lanes: tuple[int, ...] | None = None
        self._numbers = struct.Struct("<d")
        self._template: Template | None = None

    def write(
        self, request_id: str, reply: StepReply, lanes: tuple[int, ...], total_ns: int
    ) -> bytes | None:
        """Return a reply as bytes, or None."""
        template = self._template
        if template is None or lanes != self._lanes:
            return None
        try:
            numbers = self._numbers.pack(*reply.rewards)
        except struct.error:
            return None
        return template.fill([*self._to_buffers(reply.observation), numbers], request_id, total_ns)

    def learn(self, lanes: tuple[int, ...], reply: StepReply, data: bytes) -> None:
        """Take note of a reply that was written the long way."""
        self._template = None
        if self._is_fixed and lanes == self._lanes:
            self._numbers = struct.Struct(f"<{len(reply.rewards)}d")
            self._template = Template.learn(data, _OBSERVATION, _REWARDS)
        self._lanes = lanes


class ReplyReader:
    """Reads replies that are `is_plain`.

    Args:
        observations: Codec of the observation space.
    """

    def __init__(self, observations: Codec) -> None:
        self._from_buffers = observations.from_buffers
        self._is_fixed = observations.row_bytes is not None
        self._lanes: tuple[int, ...] | None = None
        self._rows = 0
        self._numbers = struct.Struct("<d")
        self._template: Template | None = None

    def match(self, data: bytes) -> tuple[list[bytes], str, int | None] | None:
        """Return what is in a response, or None."""
        template = self._template
        return None if template is None else template.match(data)

    def read(
        self, found: tuple[list[bytes], str, int | None], request: StepRequest, size: int
    ) -> StepReply | None:
        """Return the reply to a request, or None where it was of other lanes."""
        if request.env_indices != self._lanes:
            return None
        contents, _, total_ns = found
        rows = self._rows
        return StepReply(
            observation=self._from_buffers(contents[:-1], rows),
            rewards=self._numbers.unpack(contents[-1]),
            infos=tuple([{} for _ in range(rows)]),
            endpoint_total_ns=total_ns,
            response_bytes=size,
        )

    def learn(self, request: StepRequest, reply: StepReply, data: bytes) -> None:
        """Take note of a reply that was read the long way."""
        self._template = None
        lanes = request.env_indices
        if self._is_fixed and lanes == self._lanes and is_plain(reply):
            self._rows = len(reply.rewards)
            self._numbers = struct.Struct(f"<{self._rows}d")
            self._template = Template.learn(data, _OBSERVATION, _REWARDS)
        self._lanes = lanes
