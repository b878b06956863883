"""What a fault proxy does to a link: facts, and plans drawn from a seed (layer 7).

A *link* is one connection through the proxy, with two directions: `up`, from the client to the
server, and `down`. Knows no sockets.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from rollmesh.errors import InvalidSpec

Direction: TypeAlias = Literal["up", "down"]
Directions: TypeAlias = Literal["up", "down", "both"]
Ending: TypeAlias = Literal["reset", "close", "half_close", "stall"]
"""What happens at a byte: both sockets are reset (a unix socket: closed), both are closed, this
direction alone ends, or nothing more passes in it."""

ENDINGS: tuple[Ending, ...] = ("reset", "close", "half_close", "stall")


@dataclass(frozen=True, kw_only=True, slots=True)
class PipeFaults:
    """What is done to the bytes of one direction.

    Attributes:
        at_byte: `then` happens once exactly so many bytes have passed; None is never.
        then: What happens there.
        stall_s: How long a stall at that byte lasts; None is until `resume`.
        piece_bytes: Bytes are passed on in pieces of at most this size; None is as they come.
        delay_s: Bytes are passed on so many seconds after they came.
        bytes_per_s: The bandwidth; None is no limit.

    Raises:
        InvalidSpec: A number is negative or 0 where that means nothing.
    """

    at_byte: int | None = None
    then: Ending = "reset"
    stall_s: float | None = None
    piece_bytes: int | None = None
    delay_s: float = 0.0
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.at_byte is not None and self.at_byte < 0:
            raise InvalidSpec("at_byte", f"wants 0 or more bytes, got {self.at_byte}")
        if self.then not in ENDINGS:
            raise InvalidSpec("then", f"wants one of {', '.join(ENDINGS)}, got {self.then!r}")
        if self.delay_s < 0 or (self.stall_s is not None and self.stall_s < 0):
            raise InvalidSpec("delay_s", "a delay or stall wants 0 or more seconds")
        if self.piece_bytes is not None and self.piece_bytes < 1:
            raise InvalidSpec("piece_bytes", f"wants 1 or more bytes, got {self.piece_bytes}")
        if self.bytes_per_s is not None and self.bytes_per_s <= 0:
            raise InvalidSpec("bytes_per_s", f"wants more than 0, got {self.bytes_per_s}")


CLEAN = PipeFaults()


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkFaults:
    """What is done to one link.

    Attributes:
        up: From the client to the server.
        down: From the server to the client.
        is_refused: The link is reset as soon as it is there; the server never sees it.
    """

    up: PipeFaults = CLEAN
    down: PipeFaults = CLEAN
    is_refused: bool = False


NO_FAULTS = LinkFaults()

Plan: TypeAlias = Callable[[int], LinkFaults]
"""Says what is done to the link of this number; they are counted from 0."""


def seeded_plan(
    seed: int,
    *,
    most_bytes: int,
    endings: Sequence[Ending] = ("reset", "close"),
    directions: Sequence[Direction] = ("up", "down"),
    clean_share: float = 0.0,
) -> Plan:
    """Return a plan that cuts each link at a byte drawn from the seed and the link's number.

    The same seed gives the same plan, whatever the order of links.

    Args:
        seed: Any number.
        most_bytes: A link is cut before so many bytes have passed in the direction drawn.
        endings: What may happen at that byte.
        directions: Where it may happen.
        clean_share: Share of links that nothing is done to, from 0 to 1.
    """

    def plan(number: int) -> LinkFaults:
        chance = random.Random(f"{seed}:{number}")  # noqa: S311 - to be repeated, not to be secret
        if chance.random() < clean_share:
            return NO_FAULTS
        cut = PipeFaults(at_byte=chance.randrange(most_bytes), then=chance.choice(endings))
        if chance.choice(directions) == "up":
            return LinkFaults(up=cut)
        return LinkFaults(down=cut)

    return plan
