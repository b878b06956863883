"""Operations: what a group asks of the world, and waits for at a `yield`.

An engine performs them; it knows their port, deadline and step number, and nothing of episodes.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal, TypeAlias

import msgspec


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One call to a port.

    Attributes:
        target: Which port.
        method: Name of the port's method.
        request: Its argument.
        name: How errors and telemetry call it (`env.step`).
        step: The step it belongs to (rule R16).
        timeout_s: Its limit in seconds; None is no limit.
        env_indices: The lanes concerned; empty is all.
        waits: False for garbage collection: the loop goes on at once, only the release waits.
    """

    target: Literal["env", "model"]
    method: str
    request: Any
    name: str
    step: int
    timeout_s: float | None
    env_indices: tuple[int, ...] = ()
    waits: bool = True


GroupLoop: TypeAlias = Generator[Operation, Any, None]
"""A group's loop: yields operations, is sent their replies, has their failures thrown in."""
