"""Framing: messages to frames and back, for one connection (layer 4).

A framing knows the spaces of the session on its connection: `bind` tells it, after the handshake;
before that, messages with leaves are refused. One connection carries one pair of spaces at a time
(one env, or one route to a model); binding again is fine while no request is under way.

It also remembers, per connection and direction, which episode ids the last step request of a lane
carried: they change once an episode, so they are sent once an episode. Both ends process the
frames of a connection in the same order, and the memory ends with the connection.

This module knows no sockets. Not safe for two threads that encode, or two that decode, at once; one
of each is fine.
"""

from __future__ import annotations

import logging

from rollmesh.spaces.codec import Codec
from rollmesh.spaces.metadata import ReportOnce
from rollmesh.wire.bound_spaces import Spaces
from rollmesh.wire.frame_reading import FrameReader
from rollmesh.wire.frame_writing import FrameWriter
from rollmesh.wire.metadata import Report

_logger = logging.getLogger(__name__)


class Framing:
    """Turns messages into frames and back.

    Args:
        report: Called where something in an info cannot be sent as it is; None logs a warning
            once for each path.

    Attributes:
        encode: See `FrameWriter.encode`.
        quick: See `FrameWriter.quick`.
        decode: See `FrameReader.decode`.
        check: See `FrameReader.check`.
        plans: See `FrameReader.plans`.
    """

    def __init__(self, report: Report | None = None) -> None:
        self._spaces = Spaces()
        reader = FrameReader(self._spaces)
        self._writer = FrameWriter(self._spaces, report or ReportOnce(_warn))
        self.encode = self._writer.encode
        self.quick = self._writer.quick
        self.decode = reader.decode
        self.check = reader.check
        self.plans = reader.plans

    def bind(self, observation: Codec, action: Codec, num_envs: int | None = None) -> None:
        """Fix the spaces.

        Args:
            observation: Codec of one lane's observation.
            action: Codec of one lane's action.
            num_envs: Width of the env, where the other end is one or drives one: batches may have
                at most as many rows. None for a model, which takes what comes.
        """
        self._spaces.bind(observation, action, num_envs)
        self._writer.forget()
        self.plans.clear()


def _warn(path: str, detail: str) -> None:
    _logger.warning("metadata_replaced path=%s detail=%s", path, detail)
